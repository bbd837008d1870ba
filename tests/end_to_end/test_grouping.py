"""Grouped memory through the public API: rows of any length, on every backend (SPEC V1-V3, E)."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx import emulator
from metile_mlx.emulator import front
from tests.support import emulated
from tests.support.public import same_bits

ADJACENT = metile.ThreadLayout((5, 6, 0, 1, 2, 3, 4), elements_per_thread=4)
STRIPED = metile.ThreadLayout.identity(128, elements_per_thread=4)


@metile.kernel
def doubled(x, y, n, first, LAYOUT: metile.constexpr):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="write")
    i = metile.program_id(0) * 128 + metile.arange(0, 128, layout=LAYOUT) + first
    value = source.load(i, mask=i % 3 != 0, fill=5)
    target.store(i, value + value)


def prepared(layout: metile.ThreadLayout, target: str, **options: object) -> metile.Dispatch:
    x, n = mx.zeros(200), 200
    return doubled[(2,)].prepare(
        x, metile.empty((n,), x.dtype), n, 0, layout, target=target, **options
    )


@pytest.mark.parametrize("target", ["metal", "cpu"])
def test_e_groups_are_facts_of_the_report(target: str) -> None:
    report = prepared(ADJACENT, target).execution_report
    (load,), (store,) = report.grouped_loads, report.grouped_stores
    assert (load.tensor, load.dtype, load.width) == ("x", "f32", 4)
    assert (store.tensor, store.dtype, store.width) == ("y", "f32", 4)
    assert load.where.startswith("test_grouping.py:")
    assert report.to_dict()["grouped_loads"] == [
        {"tensor": "x", "dtype": "f32", "width": 4, "where": load.where}
    ]
    assert prepared(STRIPED, target).execution_report.grouped_loads == []


def test_v3_vector_width_1_turns_groups_off() -> None:
    plain = prepared(ADJACENT, "metal", schedule=metile.Schedule(vector_width=1))
    assert plain.execution_report.grouped_stores == []
    assert "metile_load4" not in plain.msl
    assert "metile_load4" in prepared(ADJACENT, "metal").msl


DTYPES = [mx.float16, mx.bfloat16, mx.float32]
ROWS = ((1, 0), (5, 0), (126, 0), (127, 0), (129, 0), (200, 0), (200, 3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [ADJACENT, STRIPED], ids=["adjacent", "striped"])
def test_f52_rows_of_every_length_on_the_cpu(layout: metile.ThreadLayout, dtype: mx.Dtype) -> None:
    """Equal to MLX's own, in bits; what lies before `first` is filled with zero (K7)."""
    check(layout, dtype, "cpu", ROWS)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", DTYPES)
def test_f52_v2_rows_of_every_length_emulated(dtype: mx.Dtype) -> None:
    """MLX hands over arrays of less than 8 elements as `constant`: groups exist for both."""
    with emulator.checked():
        check(ADJACENT, dtype, "emulator", (*((n, 0) for n in range(1, 71)), *ROWS[-3:]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_v2_the_text_is_legal_msl(dtype: mx.Dtype) -> None:
    for n in (5, 200):
        x = mx.zeros(n, dtype)
        made = doubled[(2,)].prepare(x, metile.empty((n,), dtype), n, 0, ADJACENT, target="metal")
        assert "metile_load4" in made.msl
        assert not front.examine(made.msl).findings


WHOLE = metile.ThreadLayout((7, 8, *range(7)), elements_per_thread=4)


@metile.kernel
def computed(x, y):
    """A tile of 32 by 16 as it is, doubled, its maximum with 2, and chosen by a comparison."""
    source = metile.tensor(x, shape=(32, 16))
    target = metile.tensor(y, shape=(4, 32, 16), access="write")
    i = metile.arange(0, 512, layout=WHOLE)
    at = (i // 16, i % 16)
    value = source.load(at)
    target.store((0, *at), value)
    target.store((1, *at), value + value)
    target.store((2, *at), metile.maximum(value, 2))
    target.store((3, *at), metile.where(value > 2, value, -value))


@pytest.mark.emulator
@pytest.mark.parametrize("backend", ["cpu", "reference", "emulator"])
def test_f14_groups_are_carried_as_bits_and_computed_as_numbers(backend: str) -> None:
    """Bit for bit MLX's; bf16 has all integers up to 256, above they are rounded here, too."""

    def launch(dtype: mx.Dtype) -> mx.array:
        out = metile.empty((4, 32, 16), dtype)
        made: mx.array = computed[1](tiles[dtype], out, backend=backend)
        return made

    tiles = {dtype: mx.arange(512).reshape(32, 16).astype(dtype) for dtype in DTYPES}
    if backend == "emulator":
        emulated.prebuild(partial(launch, dtype) for dtype in DTYPES)
    for dtype, x in tiles.items():
        two = mx.array(2, dtype)
        expected = mx.stack([x, x + x, mx.maximum(x, two), mx.where(x > two, x, -x)])
        with emulator.checked(schedules=2):
            assert same_bits(launch(dtype), expected), dtype
    report = computed[1].prepare(x, metile.empty((4, 32, 16), dtype)).execution_report
    assert (len(report.grouped_loads), len(report.grouped_stores)) == (1, 4)


def check(
    layout: metile.ThreadLayout, dtype: mx.Dtype, backend: str, rows: tuple[tuple[int, int], ...]
) -> None:
    for n, first in rows:
        x = mx.arange(n).astype(dtype)
        i = mx.arange(n)
        expected = mx.where(i % 3 != 0, x + x, mx.array(10, dtype))
        expected = mx.where(i >= first, expected, mx.array(0, dtype))
        made = doubled[(2,)](x, metile.empty((n,), dtype), n, first, layout, backend=backend)
        assert mx.array_equal(made, expected), (n, first)
