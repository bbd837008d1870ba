"""Outputs that several stores cover together, of views and loops of their own (SPEC K7)."""

from __future__ import annotations

import mlx.core as mx
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

import metile_mlx.frontend.language as metile
from metile_mlx.analysis.coverage import coverage
from metile_mlx.dtypes import i32
from metile_mlx.ir.core import Func
from metile_mlx.runtime.reference import evaluate
from tests.support.kernels import tile_ir

BLOCK = 32
SCALARS = ("width", "half", "apart", "first", "stride", "other_stride")


def parts(
    y,
    width,
    half,
    apart,
    first,
    stride,
    other_stride,
    MOST: metile.constexpr,
    BOTH: metile.constexpr,
    BRANCH: metile.constexpr,
):
    """Two parts of `half` columns, `apart` from each other, and what is from `first` on."""
    rows = metile.num_programs(0)
    pairs = metile.tensor(y, shape=(rows, 2, half), strides=(stride, apart, 1), access="write")
    rest = metile.tensor(y, shape=(rows, width), strides=(other_stride, 1), access="write")
    row, lanes = metile.program_id(0), metile.arange(0, 32)
    ones = metile.full(32, 1, metile.i32)
    for start in metile.tile_range(0, half, 32):
        pairs.store((row, 0, start + lanes), ones, mask=lanes < MOST)
        if BOTH:
            pairs.store((row, 1, start + lanes), ones)
    if BRANCH:
        if width > 5:
            rest.store((row, first + lanes), ones)
    else:
        for start in metile.tile_range(first, width, 32):
            rest.store((row, start + lanes), ones)


def func(most: int = BLOCK, both: bool = True, branch: bool = False) -> Func:
    kinds = ("i32*", *("i32",) * len(SCALARS))
    return tile_ir(parts, *kinds, MOST=most, BOTH=both, BRANCH=branch)


WHOLE = func()


def is_stored(program: Func, numbers: tuple[int, ...], rows: int, size: int) -> bool:
    """By the reference: an element that no program stores is 0."""
    scalars = dict(zip(SCALARS, numbers, strict=True))
    made = evaluate(program, {}, scalars, {"y": ((size,), i32)}, (rows, 1, 1))["y"]
    return bool(mx.all(made == 1).item())


def is_proven(program: Func, numbers: tuple[int, ...], rows: int, size: int) -> bool:
    (found,) = coverage(program)
    return found.proven(dict(zip(SCALARS, numbers, strict=True)), (rows, 1, 1), size)


@pytest.mark.parametrize(
    "numbers",
    [
        (81, 40, 40, 80, 81, 81),
        (81, 40, 40, 80, 81, 80),
        (81, 40, 40, 63, 81, 81),
        (81, 40, 40, 0, 81, 81),
        (81, 40, 40, -7, 81, 81),
        (81, 40, 39, 79, 81, 81),
        (80, 40, 40, 80, 80, 80),
        (9, 1, 1, 2, 9, 9),
        (9, 0, 0, 0, 9, 9),
    ],
)
def test_k7_parts_that_are_all(numbers: tuple[int, ...]) -> None:
    """With neighbours, overlaps, a second loop that runs no iteration, a first one that does not.

    One row needs no right stride.
    """
    width = numbers[0]
    rows = 3 if numbers[-1] == numbers[-2] else 1
    assert is_proven(WHOLE, numbers, rows, rows * width)
    assert is_stored(WHOLE, numbers, rows, rows * width)


def test_k7_parts_whose_bounds_an_array_holds_prove_nothing() -> None:
    """Where the rest begins is asked for, as its extent is."""
    (found,) = coverage(WHOLE)
    for unknown in ("first", "width"):
        numbers = zip(SCALARS, (81, 40, 40, 80, 81, 81), strict=True)
        scalars = {name: number for name, number in numbers if name != unknown}
        said = found.explain(scalars, (3, 1, 1), 243)
        assert f"the view depends on {unknown}, which is an MLX array in this call" in said
        assert not found.proven(scalars, (3, 1, 1), 243)


# What is wrong, the numbers, rows and size of a call, and what the report says of it.
FAULTS: dict[str, tuple[tuple[int, ...], int, int, str]] = {
    "the rest begins one later": (
        (82, 40, 40, 81, 82, 82),
        3,
        246,
        "the view of shape (3, 2, 40) and strides (82, 40, 1) is not all of 246 elements; the "
        "first 81 of 82 along dimension 1 are missed",
    ),
    "the rest has no iteration": (
        (81, 40, 40, 81, 81, 81),
        3,
        243,
        "the view of shape (3, 2, 40) and strides (81, 40, 1) is not all of 243 elements; a loop "
        "around the store runs no iteration",
    ),
    "the parts are one further apart": ((81, 40, 41, 81, 81, 81), 3, 243, ""),
    "the parts are one less apart": ((81, 40, 39, 80, 81, 81), 3, 243, ""),
    "a part is one shorter": ((81, 39, 40, 80, 81, 81), 3, 243, ""),
    "rows of the parts are one further apart": ((81, 40, 40, 80, 82, 81), 3, 245, ""),
    "rows of the rest are one less apart": ((81, 40, 40, 80, 81, 80), 3, 243, ""),
    "a program too few": ((81, 40, 40, 80, 81, 81), 2, 243, ""),
    "an element too many": ((81, 40, 40, 80, 81, 81), 3, 244, ""),
    "nothing is left": ((81, 40, 40, 80, 81, 81), 0, 243, "the grid is empty"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_k7_parts_with_a_fault_prove_nothing(name: str) -> None:
    numbers, rows, size, reason = FAULTS[name]
    assert not is_proven(WHOLE, numbers, rows, size)
    assert not (rows and is_stored(WHOLE, numbers, rows, size))
    (found,) = coverage(WHOLE)
    said = found.explain(dict(zip(SCALARS, numbers, strict=True)), (rows, 1, 1), size)
    assert said == reason or not reason, said


@pytest.mark.parametrize(
    "program",
    [func(most=BLOCK - 1), func(both=False), func(branch=True)],
    ids=["a mask leaves a lane out", "one part is not stored", "the rest is under a condition"],
)
def test_k7_programs_with_a_fault_prove_nothing(program: Func) -> None:
    numbers = (81, 40, 40, 80, 81, 81)
    assert is_proven(WHOLE, numbers, 3, 243)
    assert not is_proven(program, numbers, 3, 243)


@st.composite
def calls(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    """Each number is a little off now and then."""
    slack = st.sampled_from([0, 0, 0, 0, 0, 0, 1, -1])
    half = draw(st.sampled_from([0, 1, 2, 3, 31, 32, 33, 40]))
    apart, first = half + draw(slack), 2 * half + draw(slack)
    width = max(0, first + draw(st.sampled_from([0, 1, 2, 31, 33])) + draw(slack))
    rows = draw(st.integers(1, 3))
    stride, other = (width + draw(slack) for _ in range(2))
    return (width, half, apart, first, stride, other), rows, rows * width + draw(slack)


@given(calls(), st.sampled_from([WHOLE, func(most=31), func(both=False)]))
def test_k7_what_parts_prove_is_stored(
    call: tuple[tuple[int, ...], int, int], program: Func
) -> None:
    (width, half, apart, _, stride, other), rows, size = call[0], *call[1:]
    last = max((rows - 1) * stride + apart + half, (rows - 1) * other + width)
    assume(min(apart, stride, other) >= 0 and last <= size)
    proven = is_proven(program, *call)
    event(f"proven: {proven}")
    stored = is_stored(program, *call)
    assert stored or not proven


def wrapping(y, n, m):
    """A loop to n * m, which is an i32."""
    out = metile.tensor(y, shape=(256,), access="write")
    for start in metile.tile_range(0, n * m, 32):
        out.store(start + metile.arange(0, 32), metile.full(32, 1, metile.i32))


def test_k7_bounds_of_loops_wrap_as_in_the_program() -> None:
    """2**16 * 2**15 is -2**31: no iteration runs, though the host's product is beyond the view."""
    (found,) = coverage(tile_ir(wrapping, "i32*", "i32", "i32"))
    assert found.proven({"n": 16, "m": 16}, (1, 1, 1), 256)
    wrapped = found.explain({"n": 2**16, "m": 2**15}, (1, 1, 1), 256)
    assert wrapped == "a loop around the store runs no iteration"
    assert found.proven({"n": 2**16 + 1, "m": 2**16}, (1, 1, 1), 256)
