"""Slots of two vectors on the CPU: which loops are told to take both at once (SPEC X4)."""

from __future__ import annotations

import pytest

import metile_mlx as metile
from tests.support.public import payload, same_bits, source

LINE = "METILE_NEIGHBOURS\n"


@metile.kernel
def moved(x, y, WIDTH: metile.constexpr, BACK: metile.constexpr, LAYOUT: metile.constexpr):
    """Rows of WIDTH; to the places they come from, or from the next row's."""
    row = metile.program_id(0)
    columns = metile.arange(0, LAYOUT.size, layout=LAYOUT)
    shape = (metile.num_programs(0), WIDTH)
    inputs = metile.tensor(x, shape=shape, access="read")
    outputs = metile.tensor(y, shape=shape, access="write")
    if BACK:
        outputs.store((row, columns), inputs.load((metile.num_programs(0) - 1 - row, columns)))
    else:
        outputs.store((row, columns), inputs.load((row, columns)))


@pytest.mark.parametrize(
    ("name", "width", "values", "back", "loops"),
    [
        ("f32", 128, 4, False, 1),
        ("i32", 250, 8, False, 1),
        # Of other places, a line a slot, more threads, few slots.
        ("f32", 128, 4, True, 0),
        ("bf16", 128, 4, False, 0),
        ("f32", 256, 4, False, 0),
        ("f32", 64, 2, False, 0),
    ],
)
def test_loops_that_read_and_write_slots_of_two_lines(
    name: str, width: int, values: int, back: bool, loops: int
) -> None:
    x = payload(name, (3, width))
    layout = metile.ThreadLayout.identity(max(32, 1 << (width - 1).bit_length()), values)
    empty = metile.empty(x.shape, x.dtype)
    options = {"WIDTH": width, "BACK": back, "LAYOUT": layout, "backend": "cpu"}
    text = source(moved[(3,)].prepare(x, empty, **options))
    assert text.body.count(LINE) == loops
    assert (LINE.strip() in text.header) == bool(loops)
    if loops:
        assert f"{LINE}    for (uint32_t thread = 0; thread < 32; ++thread) {{" in text.body
    made = moved[(3,)](x, empty, **options)
    assert same_bits(made, x[::-1] if back else x)
