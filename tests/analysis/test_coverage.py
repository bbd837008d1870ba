"""When a grid provably stores every element of an output (SPEC K7)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from metile_mlx.analysis.coverage import OutputCoverage, coverage
from metile_mlx.dtypes import bool_, i32
from metile_mlx.errors import LaunchError
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Block, Func, Value
from metile_mlx.ir.loops import For
from metile_mlx.ir.types import ScalarType
from metile_mlx.runtime.reference import evaluate
from tests.support.tile_program import TileProgram, transpose8

Grid = tuple[int, int, int]


def only(p: TileProgram) -> OutputCoverage:
    (found,) = coverage(p.func())
    return found


def filled(shape: tuple[Value | int, ...], *, access: str = "write") -> tuple[TileProgram, Value]:
    p = TileProgram()
    return p, p.tensor("y", shape, access, dtype=i32)


def test_k7_transpose8_is_proven_when_the_grid_has_its_batches() -> None:
    found = only(transpose8())
    assert (found.param, found.access, found.reasons) == ("result", "write", ())
    assert found.proven({"n": 5}, (5, 1, 1), 320)
    assert found.proven({"n": 5}, (9, 2, 1), 320)
    assert found.proven({"n": 0}, (0, 1, 1), 0)
    assert found.explain({"n": 5}, (5, 1, 1), 320) == (
        "5 x 1 x 1 programs store all 320 elements of result"
    )


def test_k7_rows_that_are_the_grid_are_always_covered() -> None:
    """As many rows as programs: proven for every grid, without any scalar of the call."""
    p = TileProgram()
    y = p.tensor("y", (p.add(tile.NumPrograms(0), "rows"), 50), "write", dtype=i32)
    columns = p.lanes(64)
    p.store(y, p.program_id(), columns, value=columns)
    found = only(p)
    for rows in (1, 3, 1000):
        assert found.proven({}, (rows, 1, 1), 50 * rows)
    assert found.explain({}, (3, 1, 1), 151) == (
        "the view of shape (3, 50) and strides (50, 1) is not all of 151 elements"
    )


def test_k7_a_view_of_no_element_is_not_all_of_an_array_that_has_some() -> None:
    found = only(transpose8())
    assert not found.proven({"n": 0}, (5, 1, 1), 320)
    assert found.proven({"n": 0}, (5, 1, 1), 0)


@pytest.mark.parametrize(
    ("scalars", "grid", "size", "reason"),
    [
        ({"n": 5}, (4, 1, 1), 320, "4 programs along x cover 4 of 5 along dimension 0"),
        ({"n": 5}, (5, 0, 1), 320, "the grid is empty"),
        (
            {"n": 5},
            (5, 1, 1),
            321,
            "the view of shape (5, 8, 8) and strides (64, 8, 1) is not all of 321 elements",
        ),
        ({}, (5, 1, 1), 320, "the view depends on n, which is an MLX array in this call"),
    ],
)
def test_k7_transpose8_is_not_proven(
    scalars: dict[str, int], grid: Grid, size: int, reason: str
) -> None:
    found = only(transpose8())
    assert not found.proven(scalars, grid, size)
    assert found.explain(scalars, grid, size) == reason


def test_an_illegal_extent_is_a_launch_error() -> None:
    with pytest.raises(LaunchError, match="extent 0 of its view is -1"):
        only(transpose8()).proven({"n": -1}, (1, 1, 1), 64)


MASKS = {
    "a scalar": lambda p, at: p.compare(CompareKind.GE, at, p.scalar("m")),
    "the program": lambda p, at: p.compare(CompareKind.GE, at, p.program_id()),
    "memory": lambda p, at: p.compare(
        CompareKind.GE, p.load(p.tensor("x", (64,), "read", dtype=i32), at), 0
    ),
    "a scalar, or what always holds": lambda p, at: p.op(
        BinaryKind.OR,
        p.compare(CompareKind.GE, at, 0),
        p.compare(CompareKind.GE, at, p.scalar("m")),
    ),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_depends_on_anything_proves_nothing(name: str) -> None:
    """F27: an output that is stored in part is never taken for a whole one."""
    p, y = filled((64,))
    at = p.lanes(64)
    p.store(y, at, value=at, mask=MASKS[name](p, at))
    assert only(p).reasons == (f"the store at line {p.line} is masked",)
    assert not only(p).proven({"m": 0}, (1, 1, 1), 64)


def one_of_each_row(mask: Callable[[TileProgram, Value, Value], Value]) -> TileProgram:
    """y[8 * program_id + row], of 8 rows of 32 columns, where the mask of both holds."""
    p = TileProgram()
    y = p.tensor("y", (p.scalar("n"),), "write", dtype=i32)
    at = p.lanes(256)
    row, column = p.op(BinaryKind.FLOORDIV, at, 32), p.op(BinaryKind.MOD, at, 32)
    place = p.op(BinaryKind.ADD, row, p.op(BinaryKind.MUL, p.program_id(), 8))
    p.store(y, place, value=place, mask=mask(p, row, column))
    return p


COVERING: dict[str, Callable[[TileProgram, Value, Value], Value]] = {
    "one column": lambda p, row, column: p.compare(CompareKind.EQ, column, 5),
    "several columns": lambda p, row, column: p.compare(CompareKind.LT, column, 5),
    "all but one row, and that one": lambda p, row, column: p.op(
        BinaryKind.XOR,
        p.compare(CompareKind.NE, row, 3),
        p.compare(CompareKind.EQ, column, 31),
    ),
    "a part that is negated": lambda p, row, column: p.op(
        BinaryKind.AND,
        p.unary(UnaryKind.NOT, p.compare(CompareKind.GE, column, 1)),
        p.compare(CompareKind.LE, p.number(0), row),
    ),
    "a mask of another shape": lambda p, row, column: p.add(
        tile.Reshape(p.add(tile.Reshape(p.compare(CompareKind.EQ, column, 0), (8, 32))), (256,))
    ),
}
LEAVING: dict[str, tuple[Callable[[TileProgram, Value, Value], Value], str]] = {
    "a row": (
        lambda p, row, column: p.op(
            BinaryKind.AND, p.compare(CompareKind.EQ, column, 0), p.compare(CompareKind.NE, row, 7)
        ),
        "the indices stored to y do not fill a box",
    ),
    "columns that none has": (
        lambda p, row, column: p.compare(CompareKind.EQ, column, 32),
        "is masked off in all lanes",
    ),
}


@pytest.mark.parametrize("name", COVERING)
def test_k7_one_value_of_each_row_covers_an_output(name: str) -> None:
    """Which lanes hold is the same in every program: one for each row, or more."""
    p = one_of_each_row(COVERING[name])
    found = only(p)
    assert found.reasons == ()
    for n in (1, 8, 9, 40):
        programs = -(-n // 8)
        assert found.proven({"n": n}, (programs, 1, 1), n)
        assert not found.proven({"n": n}, (programs - 1, 1, 1), n)
        stored = evaluate(p.func(), {}, {"n": n}, {"y": ((n,), i32)}, (programs, 1, 1))["y"]
        assert mx.array_equal(stored, mx.arange(n))


@pytest.mark.parametrize("name", LEAVING)
def test_k7_masks_that_leave_rows_out_prove_nothing(name: str) -> None:
    mask, reason = LEAVING[name]
    found = only(one_of_each_row(mask))
    assert not found.proven({"n": 8}, (1, 1, 1), 8)
    assert reason in found.explain({"n": 8}, (1, 1, 1), 8)


def test_a_store_under_a_condition_proves_nothing_and_one_beside_it_does() -> None:
    p, y = filled((64,))
    flag = p.scalar("flag", bool_)
    at = p.lanes(64)
    outer = p.begin()
    p.store(y, at, value=at)
    line = p.line
    then = p.end(outer)
    outer = p.begin()
    p.emit(tile.If(flag, then, p.end(outer)))
    assert only(p).reasons == (f"the store at line {line} is under a condition",)
    assert not only(p).proven({}, (1, 1, 1), 64)
    p.store(y, at, value=at)
    assert only(p).proven({}, (1, 1, 1), 64)


def test_an_output_nobody_stores_to_and_one_that_is_only_read() -> None:
    p, _ = filled((64,), access="read_write")
    p.tensor("x", (64,), "read")
    assert only(p).explain({}, (1, 1, 1), 64) == "nothing is stored to y"
    assert only(p).access == "read_write"


INDICES = {
    "what is read from x_tensor": lambda p, at: p.load(p.tensor("x", (64,), "read", dtype=i32), at),
    "num_programs": lambda p, at: p.op(
        BinaryKind.ADD, at, p.add(tile.Binary(BinaryKind.MUL, *[p.add(tile.NumPrograms(0))] * 2))
    ),
    "the scalar parameter m": lambda p, at: p.op(BinaryKind.ADD, at, p.scalar("m")),
    "shr of a program id": lambda p, at: p.op(
        BinaryKind.ADD, at, p.op(BinaryKind.SHR, p.program_id(), 1)
    ),
    "mul of a program id": lambda p, at: p.op(BinaryKind.MUL, at, p.program_id()),
    "abs of a program id": lambda p, at: p.op(
        BinaryKind.ADD, at, p.unary(UnaryKind.ABS, p.program_id())
    ),
    "the result of tile.cast": lambda p, at: p.add(
        tile.Cast(p.add(tile.Cast(p.op(BinaryKind.ADD, at, p.program_id()), bool_)), i32)
    ),
}


@pytest.mark.parametrize("what", INDICES)
def test_an_index_that_is_not_affine_is_named(what: str) -> None:
    p, y = filled((64,))
    at = p.lanes(64)
    p.store(y, INDICES[what](p, at), value=at)
    text = what if what.startswith(("num", "what", "the scalar")) or "program" in what else None
    expected = f"the store at line {p.line} has an index 0 that depends on {text or '.*'}"
    assert re.fullmatch(expected, only(p).explain({}, (1, 1, 1), 64))
    assert not only(p).proven({}, (1, 1, 1), 64)


def test_one_program_id_in_two_indices_covers_a_diagonal_only() -> None:
    p, y = filled((4, 4))
    pid = p.program_id()
    p.store(y, pid, pid, value=pid)
    assert not only(p).proven({}, (4, 1, 1), 16)
    assert "one program id or loop in several indices" in only(p).explain({}, (4, 1, 1), 16)


def test_two_program_ids_in_one_index_and_a_falling_one_are_not_followed() -> None:
    p, y = filled((4,))
    p.store(y, p.op(BinaryKind.ADD, p.program_id(0), p.program_id(1)), value=p.number(1))
    p.store(y, p.op(BinaryKind.SUB, p.number(3), p.program_id(0)), value=p.number(1))
    first, second = only(p).reasons
    assert first.endswith("has an index 0 that depends on several program ids or loops")
    assert second.endswith("has an index 0 that falls as program_id(0) rises")


def tiles_of(count: Value | int, step: int, tile_size: int) -> TileProgram:
    p, y = filled((count,))
    at = p.lanes(tile_size, p.op(BinaryKind.MUL, p.program_id(), step))
    p.store(y, at, value=at)
    return p


def test_a_ragged_last_tile_is_covered_and_a_gap_between_tiles_is_not() -> None:
    found = only(tiles_of(100, 32, 32))
    assert found.proven({}, (4, 1, 1), 100)
    assert not found.proven({}, (3, 1, 1), 100)
    assert found.explain({}, (3, 1, 1), 100) == (
        "3 programs along x cover 96 of 100 along dimension 0"
    )
    assert only(tiles_of(100, 33, 32)).explain({}, (4, 1, 1), 100) == (
        "the indices stored to y do not fill a box"
    )
    assert only(tiles_of(100, 31, 32)).proven({}, (4, 1, 1), 100)


def test_tiles_that_overlap_by_one_cover_as_far_as_their_last_index() -> None:
    """Tiles of 32 in steps of 31, the first from -1 on: 4 of them end with index 123."""
    p, y = filled((124,))
    at = p.lanes(32, p.op(BinaryKind.SUB, p.op(BinaryKind.MUL, p.program_id(), 31), 1))
    p.store(y, at, value=at)
    assert only(p).proven({}, (4, 1, 1), 124)
    assert not only(p).proven({}, (3, 1, 1), 124)


def test_stores_that_fill_a_box_together_are_one_proof() -> None:
    """An unrolled loop over rows stores one row at a time."""
    p, y = filled((40, 32))
    columns, first = p.lanes(32), p.op(BinaryKind.MUL, p.program_id(1), 8)
    for row in range(7):
        p.store(y, p.op(BinaryKind.ADD, first, row), columns, value=columns)
    assert not only(p).proven({}, (1, 5, 1), 1280)
    p.store(y, p.op(BinaryKind.ADD, first, 7), columns, value=columns)
    assert only(p).proven({}, (1, 5, 1), 1280)
    assert not only(p).proven({}, (5, 4, 1), 1280)


def test_a_dimension_without_a_program_id_must_be_filled_by_each_program() -> None:
    p = TileProgram()
    m = p.scalar("m")
    y = p.tensor("y", (4, m), "write", dtype=i32)
    at = p.lanes(32)
    p.store(y, p.program_id(), at, value=at)
    assert only(p).proven({"m": 32}, (4, 1, 1), 128)
    assert only(p).proven({"m": 20}, (4, 1, 1), 80)
    assert only(p).explain({"m": 33}, (4, 1, 1), 132) == (
        "each program covers 32 of 33 along dimension 1"
    )


def test_any_order_of_dense_strides_is_the_whole_array_and_others_are_not() -> None:
    for strides, dense in (((1, 8), True), ((16, 1), False), ((1, 4), False), ((8, 1), True)):
        p = TileProgram()
        y = p.tensor("y", (8, 8), "write", strides, dtype=i32)
        at = p.lanes(64)
        p.store(y, p.op(BinaryKind.SHR, at, 3), p.op(BinaryKind.AND, at, 7), value=at)
        assert only(p).proven({}, (1, 1, 1), 64) is dense


def test_wrapping_program_id_arithmetic_proves_only_what_does_not_wrap() -> None:
    """pid * 2**31 is 0 or -2**31, and never 1."""
    p, y = filled((2,))
    step = p.op(BinaryKind.SHL, p.program_id(), 31)
    p.store(y, step, value=p.number(1))
    assert not only(p).proven({}, (2, 1, 1), 2)
    p, y = filled((8,))
    # (2**16 * 2**16) * pid is 0 * pid: no program id is left, and each program stores element 0.
    step = p.op(BinaryKind.MUL, p.op(BinaryKind.MUL, p.program_id(), 2**16), 2**16)
    p.store(y, step, value=p.number(1))
    assert only(p).explain({}, (8, 1, 1), 8) == "each program covers 1 of 8 along dimension 0"
    # (2**31 - 1 + 2) * pid wraps to -(2**31 - 1) * pid.
    p, y = filled((8,))
    step = p.op(BinaryKind.MUL, p.program_id(), 2**31 - 1)
    twice = p.op(BinaryKind.MUL, p.program_id(), 2)
    p.store(y, p.add(tile.Binary(BinaryKind.ADD, step, twice)), value=p.number(1))
    assert "falls as program_id(0) rises" in only(p).reasons[0]


def test_what_a_tile_holds_after_wrapping_is_what_counts() -> None:
    """(lane + 2**31 - 1) >> 31 is 0 and then -1; without wrapping it would be 0 and 1."""
    p, y = filled((2,))
    shifted = p.op(BinaryKind.SHR, p.op(BinaryKind.ADD, p.lanes(32), 2**31 - 1), 31)
    p.store(y, shifted, value=shifted)
    assert not only(p).proven({}, (1, 1, 1), 2)
    assert evaluate(p.func(), {}, {}, {"y": ((2,), i32)}, (1, 1, 1))["y"].tolist() == [0, 0]


def stored(func: Func, shape: tuple[int, ...], grid: Grid) -> bool:
    """Whether running the kernel leaves no element unwritten; every store writes 1."""
    made = evaluate(func, {}, {}, {"y": (shape, i32)}, grid)["y"]
    return bool(mx.all(made == 1).item())


def one(p: TileProgram, index: Value) -> Value:
    """1 in the index's shape."""
    return p.op(BinaryKind.MAXIMUM, p.op(BinaryKind.MINIMUM, index, 1), 1)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[TileProgram, tuple[int, ...], Grid]:
    """A store that nearly tiles its view: each part of it is a little off now and then."""
    rank = draw(st.integers(1, 3))
    p = TileProgram()
    bits = draw(st.lists(st.integers(0, 2), min_size=rank, max_size=rank))
    axes = draw(st.permutations([0, 1, 2]))[:rank]
    slack = st.sampled_from([0, 0, 0, 0, 1, -1])
    grid, shape = [1, 1, 1], []
    for axis, width in zip(axes, bits, strict=True):
        driven = draw(st.booleans())
        grid[axis] = draw(st.integers(1, 4)) if driven else 1
        shape.append(max(1, (grid[axis] << width) + draw(slack)))
    y = p.tensor("y", tuple(shape), "write", dtype=i32)
    lanes, indices = p.lanes(1 << max(sum(bits), 0)), []
    for axis, width in zip(axes, bits, strict=True):
        part = p.op(BinaryKind.MOD, lanes, 1 << width)
        lanes = p.op(BinaryKind.FLOORDIV, lanes, 1 << width)
        if draw(st.booleans()):
            part = p.op(BinaryKind.XOR, part, draw(st.integers(0, (1 << width) - 1)))
        step = max(1, (1 << width) + draw(slack))
        indices.append(
            p.op(BinaryKind.ADD, part, p.op(BinaryKind.MUL, p.program_id(axis), step))
            if draw(st.booleans()) or grid[axis] > 1
            else part
        )
    p.store(y, *indices, value=one(p, indices[0]))
    return p, tuple(shape), (grid[0], grid[1], grid[2])


@given(tilings())
def test_proven_implies_covered_for_tilings(
    case: tuple[TileProgram, tuple[int, ...], Grid],
) -> None:
    p, shape, grid = case
    size = mx.zeros(shape).size
    proven = only(p).proven({}, grid, size)
    covered = stored(p.func(), shape, grid)
    event(f"proven {proven}, covered {covered}")
    assert covered or not proven


KINDS = (
    BinaryKind.ADD,
    BinaryKind.SUB,
    BinaryKind.MUL,
    BinaryKind.FLOORDIV,
    BinaryKind.MOD,
    BinaryKind.SHL,
    BinaryKind.SHR,
    BinaryKind.AND,
    BinaryKind.OR,
    BinaryKind.XOR,
    BinaryKind.MINIMUM,
    BinaryKind.MAXIMUM,
)


@st.composite
def indices(draw: st.DrawFn, p: TileProgram, lanes: Value, depth: int) -> Value:
    """Any integer expression over lanes, program ids, and numbers near 0 or the ends of i32."""
    if depth == 0:
        number = draw(st.sampled_from([0, 1, 2, 3, 4, 8, -1, -2, 2**31 - 1, -(2**31), 2**30]))
        leaves = (lanes, lanes, p.program_id(0), p.program_id(1), p.number(number))
        return draw(st.sampled_from(leaves))
    lhs = draw(indices(p, lanes, depth - 1))
    if draw(st.integers(0, 4)) == 0:
        return p.unary(draw(st.sampled_from([UnaryKind.NEG, UnaryKind.NOT, UnaryKind.ABS])), lhs)
    rhs = draw(indices(p, lanes, draw(st.integers(0, depth - 1))))
    return p.op(draw(st.sampled_from(KINDS)), lhs, rhs)


@st.composite
def programs(draw: st.DrawFn) -> tuple[TileProgram, tuple[int, ...], Grid]:
    p = TileProgram()
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    y = p.tensor("y", shape, "write", dtype=i32)
    for _ in range(draw(st.integers(1, 2))):
        lanes = p.lanes(4)
        found = tuple(draw(indices(p, lanes, draw(st.integers(0, 2)))) for _ in shape)
        p.store(
            y,
            *found,
            value=one(p, p.op(BinaryKind.ADD, lanes, found[0]))
            if any(isinstance(i.type, type(lanes.type)) for i in found)
            else p.number(1),
        )
    return p, shape, draw(st.sampled_from([(1, 1, 1), (4, 1, 1), (2, 3, 1), (1, 4, 2)]))


@given(programs())
def test_proven_implies_covered_for_any_index_expression(
    case: tuple[TileProgram, tuple[int, ...], Grid],
) -> None:
    p, shape, grid = case
    proven = only(p).proven({}, grid, mx.zeros(shape).size)
    covered = stored(p.func(), shape, grid)
    event(f"proven {proven}, covered {covered}")
    assert covered or not proven


def looped(
    bounds: tuple[Value | int, Value | int, int], by: int = 1, extent: Value | str | int = "n"
) -> TileProgram:
    """y[row, by * i + lanes] for i of a loop, 64 lanes; `n` stands for the scalar n."""
    p = TileProgram()
    n = p.scalar("n")
    rows = p.add(tile.NumPrograms(0), "rows")
    y = p.tensor("y", (rows, n if extent == "n" else extent), "write", dtype=i32)  # type: ignore[arg-type]
    lanes = p.lanes(64)
    start, end, step = (n if bound == "n" else p.uniform(bound) for bound in bounds)  # type: ignore[arg-type]
    index = Value(ScalarType(i32), "i")
    outer = p.begin()
    p.store(
        y, p.program_id(), p.op(BinaryKind.ADD, p.op(BinaryKind.MUL, index, by), lanes), value=lanes
    )
    body = replace(p.end(outer), args=(index,))
    p.emit(For(start, end, step, (), body))
    return p


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1009])
def test_k7_a_loop_in_steps_of_the_tile_covers_each_row(n: int) -> None:
    """SPEC K5: for i in tile_range(0, n, 64): y.store((row, i + lanes), ...)."""
    for p in (looped((0, "n", 64)), looped((0, "n", 1)), looped((0, "n", 1), by=64)):
        found = only(p)
        assert found.proven({"n": n}, (5, 1, 1), 5 * n)
        assert not found.proven({"n": n}, (5, 1, 1), 5 * n + 1)
        assert not found.proven({}, (5, 1, 1), 5 * n)


LOOPS: dict[str, tuple[TileProgram, str]] = {
    "too few": (looped((0, 100, 64)), "2 iterations cover 128 of 200 along dimension 1"),
    "a gap": (looped((0, "n", 65)), "do not fill a box"),
    "from 64 on": (looped((64, "n", 64)), "the first 64 of 200 along dimension 1 are missed"),
    "twice as far, from 32 on": (
        looped((32, "n", 32), by=2),
        "the first 64 of 200 along dimension 1 are missed",
    ),
    "nothing": (looped((0, -5, 64)), "a loop around the store runs no iteration"),
    "backwards": (looped((0, "n", 64), by=-1), "falls as the index of its loop rises"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_k7_loops_that_prove_nothing(name: str) -> None:
    p, reason = LOOPS[name]
    found = only(p)
    assert not found.proven({"n": 200}, (5, 1, 1), 1000)
    assert reason in found.explain({"n": 200}, (5, 1, 1), 1000)


def test_k7_a_loop_that_the_index_does_not_follow_has_to_run_once() -> None:
    p = TileProgram()
    n = p.scalar("n")
    y = p.tensor("y", (64,), "write", dtype=i32)
    lanes = p.lanes(64)
    index = Value(ScalarType(i32), "i")
    outer = p.begin()
    p.store(y, lanes, value=lanes)
    body = replace(p.end(outer), args=(index,))
    p.emit(For(p.number(0), n, p.number(1), (), body))
    found = only(p)
    assert found.proven({"n": 1}, (1, 1, 1), 64)
    assert not found.proven({"n": 0}, (1, 1, 1), 64)


def test_k7_a_loop_may_start_anywhere_where_the_index_makes_up_for_it() -> None:
    p = TileProgram()
    y = p.tensor("y", (100,), "write", dtype=i32)
    lanes = p.lanes(64)
    index = Value(ScalarType(i32), "i")
    outer = p.begin()
    p.store(y, p.op(BinaryKind.ADD, p.op(BinaryKind.SUB, index, 64), lanes), value=lanes)
    body = replace(p.end(outer), args=(index,))
    p.emit(For(p.number(64), p.scalar("n"), p.number(64), (), body))
    found = only(p)
    assert found.proven({"n": 129}, (1, 1, 1), 100)
    assert found.explain({"n": 128}, (1, 1, 1), 100) == (
        "1 iterations cover 64 of 100 along dimension 0"
    )


def test_k7_a_loop_over_computed_bounds_proves_nothing() -> None:
    p = TileProgram()
    n = p.scalar("n")
    y = p.tensor("y", (n,), "write", dtype=i32)
    lanes = p.lanes(64)
    index = Value(ScalarType(i32), "i")
    end = p.op(BinaryKind.ADD, n, p.program_id())
    outer = p.begin()
    p.store(y, p.op(BinaryKind.ADD, index, lanes), value=lanes)
    body = replace(p.end(outer), args=(index,))
    p.emit(For(p.number(0), end, p.number(64), (), body))
    reason = only(p).explain({"n": 100}, (1, 1, 1), 100)
    assert "whose bounds the host does not know" in reason


@given(st.integers(-3, 70), st.integers(-3, 200), st.integers(1, 130), st.integers(1, 2), st.data())
def test_k7_what_a_loop_proves_is_stored(
    start: int, end: int, step: int, by: int, data: st.DataObject
) -> None:
    """Against the reference: every element of a proven output has been stored."""
    extent = data.draw(st.integers(1, 200))
    func = looped((start, end, step), by, extent).func()
    (found,) = coverage(func)
    proven = found.proven({"n": 7}, (2, 1, 1), 2 * extent)
    event(f"proven: {proven}")
    ones = replace_stored_by_one(func)
    made = evaluate(ones, {}, {"n": 7}, {"y": ((2, extent), i32)}, (2, 1, 1))["y"]
    if proven:
        assert mx.all(made == 1).item()


def replace_stored_by_one(func: Func) -> Func:
    """The same stores, of ones."""
    (loop,) = (item for item in func.body.ops if isinstance(item, For))
    one = tile.Constant(1, i32)
    one = replace(one, results=(Value(ScalarType(i32)),))
    ops = [
        one,
        *(replace(i, value=one.result) if isinstance(i, tile.Store) else i for i in loop.body.ops),
    ]  # type: ignore[call-arg]
    changed = replace(loop, body=Block(tuple(ops), loop.body.args))
    top = tuple(changed if item is loop else item for item in func.body.ops)
    return func.with_body(Block(top))
