"""Loads, stores, branches and exchanges of the reference; MLX's transforms (SPEC X5, X7, X8)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metile_mlx.context import Schedule
from metile_mlx.dtypes import ALL, DType, bf16, bool_, f16, f32, i32
from metile_mlx.errors import LaunchError, OutOfResources, UnsupportedError
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Func, Value
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.passes.plan_conversions import plan_conversions
from metile_mlx.runtime import reference_memory
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.runtime.reference import MAX_BYTES, evaluate
from tests.support.build import context, conversion_program
from tests.support.tile_program import TileProgram, transpose8

Grid = tuple[int, int, int]
ONE: Grid = (1, 1, 1)


def run(
    p: TileProgram,
    shape: tuple[int, ...],
    grid: Grid = ONE,
    dtype: DType = f32,
    scalars: dict[str, Any] | None = None,
    **arrays: mx.array,
) -> mx.array:
    """The output y of a program."""
    return evaluate(p.func(), arrays, scalars or {}, {"y": (shape, dtype)}, grid)["y"]


def copy(
    size: int, tile_size: int = 32, *, access: str = "write", strides: tuple[int, ...] | None = None
) -> tuple[TileProgram, Value, Value, Value]:
    """A program with x, y and indices pid * tile + lanes, as yet without a load."""
    p = TileProgram()
    x = p.tensor("x", (size,), "read", strides)
    y = p.tensor("y", (size,), access)
    at = p.lanes(tile_size, p.op(BinaryKind.MUL, p.program_id(), tile_size))
    return p, x, y, at


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 31, 32, 33, 100])
def test_x8_sizes_that_do_not_fill_the_grid(size: int) -> None:
    """F12: size 0 too; programs beyond the array do nothing."""
    p, x, y, at = copy(size)
    p.store(y, at, value=p.load(x, at))
    source = mx.arange(size, dtype=mx.float32) + 1
    made = run(p, (size,), (-(-size // 32) + 1, 1, 1), x=source)
    assert made.tolist() == source.tolist()


def test_lanes_out_of_bounds_or_masked_off_load_the_fill() -> None:
    p, x, _, at = copy(8)
    shifted = p.op(BinaryKind.SUB, at, 2)
    mask = p.compare(CompareKind.NE, at, 5)
    value = p.load(x, shifted, mask=mask, fill=p.number(-1.0, f32))
    p.store(p.tensor("y", (16,), "write"), at, value=value)
    source = mx.arange(8, dtype=mx.float32)
    expected = [-1, -1, 0, 1, 2, -1, 4, 5, 6, 7, -1, -1, -1, -1, -1, -1]
    assert run(p, (16,), x=source).tolist() == expected
    assert p.load(x, at).type == value.type


def test_the_fill_is_zero_where_none_is_given_and_may_depend_on_the_program() -> None:
    p, x, y, _ = copy(4)
    at = p.lanes(8)
    p.store(p.tensor("y", (3, 8), "write"), 0, at, value=p.load(x, at))
    fill = p.add(tile.Cast(p.program_id(), f32))
    value = p.load(x, at, fill=fill)
    p.store(p.tensor("y", (3, 8), "write"), p.program_id(), at, value=value)
    del y
    made = run(p, (3, 8), (3, 1, 1), x=mx.ones(4))
    assert made.tolist() == [[1.0] * 4 + [float(k)] * 4 for k in range(3)]


def test_k2_each_dimension_has_its_own_bounds() -> None:
    """Index (0, 4) of a (3, 4) view is out of bounds, though its offset is in the array."""
    p = TileProgram()
    x = p.tensor("x", (3, 4), "read")
    y = p.tensor("y", (3, 8), "write")
    at = p.lanes(8)
    row = p.program_id()
    p.store(y, row, at, value=p.load(x, row, at, fill=p.number(-1.0, f32)))
    made = run(p, (3, 8), (3, 1, 1), x=mx.arange(12, dtype=mx.float32))
    assert made.tolist() == [[*range(4 * r, 4 * r + 4), -1, -1, -1, -1] for r in range(3)]


def test_k2_declared_strides_address_the_array() -> None:
    p = TileProgram()
    x = p.tensor("x", (4, 3), "read", (1, 4))
    y = p.tensor("y", (4, 3), "write", (6, 2))
    at = p.lanes(16)
    row, column = p.op(BinaryKind.MOD, at, 4), p.op(BinaryKind.FLOORDIV, at, 4)
    p.store(y, row, column, value=p.load(x, row, column))
    source = np.arange(12, dtype=np.float32) + 1
    expected = np.zeros(24, np.float32)
    for r in range(4):
        for c in range(3):
            expected[6 * r + 2 * c] = source[r + 4 * c]
    assert run(p, (24,), x=mx.array(source)).tolist() == expected.tolist()


def test_x8_views_of_arrays_are_read_in_logical_order() -> None:
    """F10: transposed, sliced, reversed, broadcast and 0-d inputs."""
    base = mx.arange(48, dtype=mx.float32).reshape(6, 8)
    for source in (
        base.T,
        base[1:5, ::2],
        base[::-1],
        mx.broadcast_to(mx.array([1.0, 2.0]), (8, 2)),
        mx.array(3.0),
    ):
        p, x, y, at = copy(source.size)
        p.store(y, at, value=p.load(x, at))
        made = run(p, source.shape, (2, 1, 1), x=source)
        assert made.shape == source.shape
        assert mx.array_equal(made, source)


def test_k7_elements_no_program_stores_are_zero_or_the_inputs() -> None:
    """F27: never recycled memory."""
    for access, rest in (("write", 0.0), ("read_write", None)):
        p = TileProgram()
        y = p.tensor("y", (12,), access)
        at = p.lanes(8)
        even = p.compare(CompareKind.EQ, p.op(BinaryKind.MOD, at, 2), 0)
        p.store(y, at, value=p.add(tile.Cast(at, f32)), mask=even)
        given = mx.arange(12, dtype=mx.float32) + 100
        arrays = {"y": given} if access == "read_write" else {}
        made = run(p, (12,), **arrays)
        expected = given.tolist() if rest is None else [rest] * 12
        expected[:8:2] = [0.0, 2.0, 4.0, 6.0]
        assert made.tolist() == expected


def test_k7_loads_of_a_read_write_tensor_see_the_array_as_given() -> None:
    """F36: each program writes what its neighbour reads; the input array is left alone."""
    p = TileProgram()
    y = p.tensor("y", (64,), "read_write")
    at = p.lanes(32, p.op(BinaryKind.MUL, p.program_id(), 32))
    mirrored = p.add(tile.Binary(BinaryKind.SUB, p.number(63), at))
    p.store(y, at, value=p.load(y, mirrored))
    given = mx.arange(64, dtype=mx.float32)
    assert run(p, (64,), (2, 1, 1), y=given).tolist() == given.tolist()[::-1]
    assert given.tolist() == list(range(64))


def test_later_stores_of_a_program_win_and_uniform_values_and_places_broadcast() -> None:
    p = TileProgram()
    y = p.tensor("y", (40,), "write", dtype=i32)
    at = p.lanes(32)
    pid = p.program_id()
    p.store(y, at, value=p.number(7))
    p.store(y, p.op(BinaryKind.ADD, pid, 30), value=pid)
    made = run(p, (40,), (4, 1, 1), i32)
    assert made.tolist() == [7] * 30 + [0, 1, 2, 3] + [0] * 6


def test_an_empty_grid_stores_nothing() -> None:
    p, x, y, at = copy(8, access="read_write")
    p.store(y, at, value=p.load(x, at))
    given = mx.arange(8, dtype=mx.float32)
    assert run(p, (8,), (0, 1, 1), x=given + 1, y=given).tolist() == given.tolist()


def test_a_load_from_an_empty_array_is_all_fill() -> None:
    p = TileProgram()
    x = p.tensor("x", (0, 4), "read")
    y = p.tensor("y", (2, 4), "write")
    at = p.lanes(4)
    pid = p.program_id()
    value = p.load(x, pid, at, fill=p.number(2.5, f32))
    p.store(y, pid, at, value=value)
    assert run(p, (2, 4), (2, 1, 1), x=mx.zeros((0, 4))).tolist() == [[2.5] * 4] * 2


# Offsets past 2**31 (SPEC X8).


def offset_program(extent: Value | int, stride: int) -> TileProgram:
    """y[k] = x[2 * stride], for a stride of 2**30: an offset that wraps in 32 bits."""
    p = TileProgram()
    count = p.scalar("n") if isinstance(extent, Value) or extent < 0 else extent
    x = p.tensor("x", (count,), "read", (stride,))
    at = p.lanes(4)
    y = p.tensor("y", (4,), "write")
    p.store(y, at, value=p.load(x, p.op(BinaryKind.MAXIMUM, p.op(BinaryKind.MINIMUM, at, 0), 2)))
    return p


def test_x8_offsets_past_31_bits_are_64_bits_wide_and_never_wrap() -> None:
    """F21. The array is too small for its view: the offset shows as the clipped last element."""
    source = mx.arange(8, dtype=mx.float32)
    assert run(offset_program(3, 2**30), (4,), x=source).tolist() == [7.0] * 4
    given = {"n": 3}
    assert run(offset_program(-1, 2**30), (4,), scalars=given, x=source).tolist() == [7.0] * 4


def test_x8_stores_past_31_bits_do_not_wrap_into_the_array() -> None:
    p = TileProgram()
    y = p.tensor("y", (4,), "write", (2**30 + 2**29,))
    at = p.lanes(4)
    p.store(y, at, value=p.number(1.0, f32))
    assert run(p, (8,)).tolist() == [1.0] + [0.0] * 7


def test_x10_a_scalar_that_is_an_mlx_array_makes_offsets_64_bits_wide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    gather = mx.take_along_axis

    def spy(array: mx.array, indices: mx.array, axis: int) -> mx.array:
        seen.append(indices.dtype)
        return gather(array, indices, axis=axis)

    monkeypatch.setattr(reference_memory.mx, "take_along_axis", spy)
    source = mx.random.normal((3, 8, 8))
    for n in (3, mx.array(3)):
        made = evaluate(
            transpose8().func(),
            {"source": source},
            {"n": n},
            {"result": ((3, 8, 8), f32)},
            (3, 1, 1),
        )["result"]
        assert mx.array_equal(made, mx.swapaxes(source, 1, 2))
    assert seen == [mx.int32, mx.int64]


def test_an_illegal_extent_is_a_launch_error() -> None:
    with pytest.raises(LaunchError, match="extent 0 of its view is -2"):
        evaluate(
            transpose8().func(),
            {"source": mx.zeros((64,))},
            {"n": -2},
            {"result": ((64,), f32)},
            ONE,
        )


# Branches (SPEC X5, K5).


def branch(condition: Callable[[TileProgram], Value]) -> TileProgram:
    """y[pid, lane] = lane * 10 stored, then factor added by the branch, and stores inside it."""
    p = TileProgram()
    y = p.tensor("y", (4, 4), "write", dtype=i32)
    z = p.tensor("z", (4, 4), "write", dtype=i32)
    at, pid = p.lanes(4), p.program_id()
    decided = condition(p)
    outer = p.begin()
    twice = p.op(BinaryKind.MUL, at, 2)
    p.store(z, pid, at, value=twice)
    then = p.end(outer, twice, pid)
    outer = p.begin()
    below = p.op(BinaryKind.SUB, at, 100)
    p.store(z, pid, at, value=below, mask=p.compare(CompareKind.LT, at, 2))
    otherwise = p.end(outer, below, p.number(9))
    tile_result, number = p.emit(tile.If(decided, then, otherwise))
    p.store(y, pid, at, value=p.op(BinaryKind.ADD, tile_result, number))
    return p


def both(p: TileProgram, **scalars: Any) -> tuple[list[list[int]], list[list[int]]]:
    shape = ((4, 4), i32)
    made = evaluate(p.func(), {}, scalars, {"y": shape, "z": shape}, (4, 1, 1))
    return made["y"].tolist(), made["z"].tolist()


def taken(pid: int) -> tuple[list[int], list[int]]:
    return [2 * k + pid for k in range(4)], [2 * k for k in range(4)]


def passed(pid: int) -> tuple[list[int], list[int]]:
    return [k - 100 + 9 for k in range(4)], [-100, -99, 0, 0]


def test_branches_on_python_numbers_take_one_side() -> None:
    for flag, side in ((True, taken), (False, passed)):
        rows = [side(pid) for pid in range(4)]
        expected = [row[0] for row in rows], [row[1] for row in rows]
        assert both(branch(lambda p: p.scalar("flag", bool_)), flag=flag) == expected
        compared = branch(
            lambda p: p.compare(
                CompareKind.GT, p.op(BinaryKind.ADD, p.scalar("n"), p.add(tile.NumPrograms(0))), 10
            )
        )
        assert both(compared, n=7 if flag else 6) == expected


def test_branches_on_the_program_take_both_sides_with_masked_stores() -> None:
    made = both(branch(lambda p: p.compare(CompareKind.LT, p.program_id(), 2)))
    rows = [taken(0), taken(1), passed(2), passed(3)]
    assert made == ([row[0] for row in rows], [row[1] for row in rows])


def test_f23_indices_are_not_narrowed_to_16_bits() -> None:
    p, x, y, at = copy(40_000, 1024)
    fill = p.number(-1.0, f32)
    mirrored = p.add(tile.Binary(BinaryKind.SUB, p.number(40_000), at))
    p.store(y, at, value=p.load(x, mirrored, fill=fill))
    made = run(p, (40_000,), (40, 1, 1), x=mx.arange(40_000, dtype=mx.float32))
    assert made.tolist() == [-1.0, *range(39_999, 0, -1)]


def test_branches_nest() -> None:
    p = TileProgram()
    y = p.tensor("y", (4,), "write", dtype=i32)
    pid = p.program_id()
    low = p.compare(CompareKind.LT, pid, 3)
    outer = p.begin()
    inner = p.begin()
    p.store(y, pid, value=p.number(1))
    then = p.end(inner)
    inner = p.begin()
    p.store(y, pid, value=p.number(2))
    otherwise = p.end(inner)
    p.emit(tile.If(p.compare(CompareKind.NE, pid, 0), then, otherwise))
    then = p.end(outer)
    outer = p.begin()
    p.emit(tile.If(low, then, p.end(outer)))
    assert run(p, (4,), (4, 1, 1), i32).tolist() == [2, 1, 1, 0]


def test_a_branch_on_an_mlx_scalar_is_refused_at_its_line() -> None:
    p = branch(
        lambda p: p.compare(CompareKind.GT, p.op(BinaryKind.ADD, p.scalar("n"), p.program_id()), 10)
    )
    line = next(op.loc.line for op in p.builder.ops if isinstance(op, tile.If))
    with pytest.raises(UnsupportedError) as e:
        both(p, n=mx.array(3))
    assert e.value.message == (
        "`if` depends on a scalar, which was given as an MLX array; the reference backend takes "
        "branch scalars as Python numbers"
    )
    assert e.value.hint == "pass a Python number, or use metile.where and masks"
    assert e.value.loc is not None
    assert e.value.loc.line == line
    assert both(p, n=8)[0][2:] == [passed(2)[0], taken(3)[0]]


def test_a_branch_on_a_loaded_value_is_decided_per_program() -> None:
    def loaded(p: TileProgram) -> Value:
        x = p.tensor("x", (4,), "read", dtype=i32)
        return p.compare(CompareKind.NE, p.load(x, p.program_id()), 0)

    shape = ((4, 4), i32)
    made = evaluate(
        branch(loaded).func(),
        {"x": mx.array([0, 1, 0, 1])},
        {},
        {"y": shape, "z": shape},
        (4, 1, 1),
    )
    assert made["y"].tolist() == [side(k)[0] for k, side in enumerate([passed, taken] * 2)]


# Refusals.


def test_x5_a_launch_above_the_stated_memory_is_refused_with_what_it_needs() -> None:
    p = transpose8()
    programs = MAX_BYTES // (64 * 8)
    with pytest.raises(OutOfResources) as e:
        evaluate(
            p.func(),
            {"source": mx.zeros((64,))},
            {"n": 1},
            {"result": ((64,), f32)},
            (programs // 4, 4, 2),
        )
    assert e.value.message == (
        f"[reference] transpose8: {2 * programs} programs with a tile of 64 elements need arrays "
        "of 8.0 GiB; at most 4.0 are allowed"
    )
    assert e.value.hint == "launch fewer programs at once, or use a compiled backend"


# MLX's transforms (SPEC X7).


def transpose_times(x: mx.array, w: mx.array, n: Any = 5) -> mx.array:
    """The blocks of x, each element times w[element] but for the last four, with a conversion."""
    p = TileProgram()
    count = p.scalar("n")
    source = p.tensor("source", (count, 8, 8), "read")
    rows, columns = ThreadLayout.identity(64), ThreadLayout((3, 4, 5, 0, 1, 2))
    read = p.lanes(64, 0, rows)
    row, column = p.op(BinaryKind.FLOORDIV, read, 8), p.op(BinaryKind.MOD, read, 8)
    moved = p.add(tile.Convert(p.load(source, p.program_id(), row, column), columns))
    weights = p.tensor("w", (64,), "read")
    at = p.lanes(64, 0, columns)
    y = p.tensor("y", (count, 64), "write")
    product = p.add(tile.Binary(BinaryKind.MUL, moved, p.load(weights, at)))
    low = p.compare(CompareKind.LT, at, 60)
    p.store(y, p.program_id(), at, value=product, mask=low)
    grid = (5, 1, 1)
    return evaluate(p.func(), {"source": x, "w": w}, {"n": n}, {"y": ((5, 64), f32)}, grid)["y"]


def by_mlx(x: mx.array, w: mx.array) -> mx.array:
    low = mx.arange(64) < 60
    return mx.where(low, x.reshape(5, 64) * w, mx.array(0.0))


@pytest.fixture
def operands() -> tuple[mx.array, mx.array]:
    mx.random.seed(0)
    return mx.random.normal((5, 8, 8)), mx.random.normal((64,))


def test_gradients_of_first_and_second_order_and_tangents(
    operands: tuple[mx.array, mx.array],
) -> None:
    """F28."""
    x, w = operands
    mine, theirs = (lambda x, w, f=f: mx.sum(f(x, w) ** 3) for f in (transpose_times, by_mlx))
    for order in (
        lambda f: mx.grad(f, argnums=(0, 1)),
        lambda f: mx.grad(lambda x, w: mx.sum(mx.grad(f)(x, w) ** 2), argnums=(0, 1)),
    ):
        for a, b in zip(order(mine)(x, w), order(theirs)(x, w), strict=True):
            assert mx.allclose(a, b, rtol=1e-4, atol=1e-5)
    for f in (transpose_times, by_mlx):
        _, (tangent,) = mx.jvp(f, [x, w], [mx.ones_like(x), w])
        if f is transpose_times:
            mine_tangent = tangent
    assert mx.allclose(mine_tangent, tangent, rtol=1e-5)


def test_gradients_reach_a_read_write_input_only_where_it_shows() -> None:
    def f(y: mx.array) -> mx.array:
        p = TileProgram()
        view = p.tensor("y", (6,), "read_write")
        at = p.lanes(4)
        doubled = p.op(BinaryKind.MUL, p.load(view, at), p.number(2.0, f32))
        p.store(view, at, value=doubled, mask=p.compare(CompareKind.LT, at, 3))
        return run(p, (6,), y=y)

    _, (pulled,) = mx.vjp(f, [mx.arange(6, dtype=mx.float32)], [mx.arange(6) + 1.0])
    assert pulled.tolist() == [2.0, 4.0, 6.0, 4.0, 5.0, 6.0]


def test_a_scalar_given_as_an_mlx_array_has_a_gradient() -> None:
    def f(scale: mx.array) -> mx.array:
        p, x, y, at = copy(8)
        p.store(y, at, value=p.add(tile.Binary(BinaryKind.MUL, p.load(x, at), p.scalar("s", f32))))
        return mx.sum(run(p, (8,), scalars={"s": scale}, x=mx.arange(8, dtype=mx.float32)))

    assert mx.grad(f)(mx.array(2.0)).item() == 28.0


def test_compiled_graphs_hold_the_kernel(operands: tuple[mx.array, mx.array]) -> None:
    """Nothing is evaluated while MLX traces; a branch on Python numbers is decided all the same."""
    x, w = operands
    compiled = mx.compile(lambda x, w: mx.exp(transpose_times(x * 2, w)))
    for scale in (1.0, 3.0):
        expected = mx.exp(by_mlx(x * 2 * scale, w))
        assert mx.allclose(compiled(x * scale, w), expected, rtol=1e-5)

    def branched(x: mx.array) -> mx.array:
        p = branch(lambda p: p.compare(CompareKind.GT, p.scalar("n"), 1))
        at, pid = p.lanes(4), p.program_id()
        p.store(
            p.tensor("w", (4, 4), "write"), pid, at, value=p.load(p.tensor("x", (4,), "read"), at)
        )
        outputs = {"y": ((4, 4), i32), "z": ((4, 4), i32), "w": ((4, 4), f32)}
        made = evaluate(p.func(), {"x": x}, {"n": 2}, outputs, (4, 1, 1))
        return made["y"] + made["w"].astype(mx.int32)

    x4 = mx.ones(4)
    expected = [[v + 1 for v in taken(k)[0]] for k in range(4)]
    assert mx.compile(branched)(x4).tolist() == expected
    assert mx.vmap(branched)(mx.ones((2, 4))).tolist() == [expected] * 2


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, None), (2, 1)])
def test_vmap_over_any_axes(
    operands: tuple[mx.array, mx.array], axes: tuple[int | None, int | None]
) -> None:
    """F33: unbatched weights, and batch axes that are not the first."""
    x, w = operands
    batch = [
        operand if axis is None else mx.stack([operand, operand + 1, operand * 2], axis=axis)
        for operand, axis in zip((x, w), axes, strict=True)
    ]
    for out in (0, 1):
        mine = mx.vmap(transpose_times, in_axes=axes, out_axes=out)(*batch)
        theirs = mx.vmap(by_mlx, in_axes=axes, out_axes=out)(*batch)
        assert mx.array_equal(mine, theirs)
    grads = [
        mx.vmap(mx.grad(lambda x, w, f=f: mx.sum(f(x, w) ** 2)), in_axes=axes)(*batch)
        for f in (transpose_times, by_mlx)
    ]
    assert mx.allclose(*grads, rtol=1e-5)


@pytest.mark.parametrize("dtype", [i32, bool_], ids=str)
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, 0), (None, 1)])
def test_vmap_of_bitwise_operations(axes: tuple[int | None, int | None], dtype: DType) -> None:
    """MLX 0.32.4 loses the batch axis where one operand of a bitwise op or a shift has none."""

    def kernel(a: mx.array, b: mx.array) -> mx.array:
        p = TileProgram()
        x, w = (p.tensor(name, (32,), "read", dtype=dtype) for name in "xw")
        y = p.tensor("y", (32,), "write", dtype=dtype)
        at = p.lanes(32)
        left, right = p.load(x, at), p.load(w, at)
        total = left
        kinds = [BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR]
        for kind in kinds if dtype == bool_ else [*kinds, BinaryKind.SHL, BinaryKind.SHR]:
            once = p.add(tile.Binary(kind, left, right))
            swapped = p.add(tile.Binary(kind, right, left))
            both = p.add(tile.Binary(BinaryKind.XOR, once, swapped))
            total = p.add(tile.Binary(BinaryKind.OR, total, both))
        p.store(y, at, value=total)
        return run(p, (32,), dtype=dtype, x=a, w=b)

    batch = [special(dtype, 96).reshape(3, 32), special(dtype, 192)[96:].reshape(3, 32)]
    given = [
        operand[0] if axis is None else mx.moveaxis(operand, 0, axis)
        for operand, axis in zip(batch, axes, strict=True)
    ]
    made = mx.vmap(kernel, in_axes=axes)(*given)
    for k in range(3):
        one = [x[k if axis is not None else 0] for x, axis in zip(batch, axes, strict=True)]
        assert mx.array_equal(made[k], kernel(*one))


def test_vmap_over_a_scalar_parameter(operands: tuple[mx.array, mx.array]) -> None:
    """The extent differs per batch element."""
    x, w = operands
    mapped = mx.vmap(lambda n: transpose_times(x, w, n))(mx.array([5, 2, 0]))
    for n, made in zip((5, 2, 0), mapped, strict=True):
        assert mx.array_equal(made[:n], by_mlx(x, w)[:n])
        assert not made[n:].any().item()


def test_x4_a_stream_is_honoured_and_threads_may_call_at_once(
    operands: tuple[mx.array, mx.array],
) -> None:
    x, w = operands
    expected = by_mlx(x, w)
    stream = mx.new_stream(mx.cpu)
    func = transpose8().func()
    swapped = mx.swapaxes(x, 1, 2)
    made = evaluate(func, {"source": x}, {"n": 5}, {"result": ((5, 8, 8), f32)}, (5, 1, 1), stream)
    assert mx.array_equal(made["result"], swapped)
    results: list[bool] = []

    def work() -> None:
        with mx.stream(mx.new_stream(mx.cpu)):
            results.append(mx.array_equal(transpose_times(x, w), expected).item())  # type: ignore[arg-type]

    mx.eval(x, w, expected)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


# Data movement is bitwise exact, in every stage.

SPECIAL = {
    f16: [0x7C01, 0xFD23, 0x7E12, 0x8000, 0x0001, 0x3C00, 0x7C00, 0xFFFF],
    bf16: [0x7F81, 0xFFA3, 0x7FD2, 0x8000, 0x0001, 0x3F80, 0xFF80, 0xFFFF],
    f32: [0x7F800001, 0xFFA12345, 0x7FC12345, 0x80000000, 1, 0x3F800000, 0xFF800000, 0xFFFFFFFF],
}


def special(dtype: DType, count: int) -> mx.array:
    """`count` elements: signalling and quiet NaN payloads, -0.0, subnormals, then random bits."""
    rng = np.random.default_rng(7)
    if dtype == bool_:
        return mx.array(rng.integers(0, 2, count).astype(bool))
    bits = rng.integers(0, 1 << dtype.bits, count, dtype=np.uint64)
    found = SPECIAL.get(dtype, [])
    bits[: len(found)] = found
    words = mx.array(bits.astype(f"uint{dtype.bits}"))
    return mx.view(words, mlx_dtypes()[dtype])


def raw(values: mx.array) -> bytes:
    if values.dtype == mx.bool_:
        return np.array(values).tobytes()
    return np.array(mx.view(mx.contiguous(values), mx.uint8)).tobytes()


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_values_move_bit_for_bit(dtype: DType) -> None:
    """Loads with fill and mask, select, conversions and masked stores; traced, mapped, compiled."""
    p = TileProgram()
    x = p.tensor("x", (4, 64), "read", dtype=dtype)
    y = p.tensor("y", (4, 64), "read_write", dtype=dtype)
    at, pid = p.lanes(64), p.program_id()
    some = p.compare(CompareKind.NE, p.op(BinaryKind.MOD, at, 3), 0)
    first = p.load(x, pid, at, mask=some)
    second = p.load(x, pid, at)
    chosen = p.add(tile.Select(some, first, second))
    flipped = p.add(tile.Binary(BinaryKind.SUB, p.number(63), at))
    p.store(y, pid, flipped, value=chosen, mask=p.compare(CompareKind.LT, at, 60))
    source, given = special(dtype, 256).reshape(4, 64), special(dtype, 256)[::-1].reshape(4, 64)
    columns = np.arange(64)
    expected = mx.where(mx.array(columns < 4), given, source[:, ::-1])

    def kernel(x: mx.array, y: mx.array) -> mx.array:
        return run(p, (4, 64), (4, 1, 1), dtype, x=x, y=y)

    assert raw(kernel(source, given)) == raw(expected)
    if dtype in SPECIAL:  # MLX builds a kernel for each
        assert raw(mx.compile(kernel)(source, given)) == raw(expected)
    batched = mx.vmap(kernel)(mx.stack([source, given]), mx.stack([given, source]))
    assert raw(batched[0]) == raw(expected)


def planned(func: Func, conversion: str = "auto") -> Func:
    ctx = context()
    ctx.schedule = Schedule(conversion=conversion)
    return plan_conversions(infer_ownership(func, ctx), ctx)


@st.composite
def layouts(draw: st.DrawFn, bits: int, lanes_only: bool) -> ThreadLayout:
    order = draw(st.permutations(range(min(bits, 5) if lanes_only else bits)))
    mask = draw(st.integers(0, (31 if lanes_only else (1 << bits) - 1)))
    return ThreadLayout([*order, *range(len(order), bits)], mask)


@given(st.data(), st.integers(5, 8), st.booleans(), st.sampled_from([f16, bf16, f32, i32, bool_]))
def test_c1_owned_and_planned_programs_mean_what_the_tile_program_means(
    data: st.DataObject, bits: int, lanes_only: bool, dtype: DType
) -> None:
    """Shuffles and scratch are permutations; the whole is a copy, bit for bit."""
    source, target = (data.draw(layouts(bits, lanes_only)) for _ in range(2))
    func = conversion_program(source, target, dtype)
    arrays = {"x0": special(dtype, 1 << bits)}
    outputs = {"y0": ((1 << bits,), dtype)}
    stages = [func, infer_ownership(func, context()), planned(func), planned(func, "scratch")]
    for stage in stages:
        assert raw(evaluate(stage, arrays, {}, outputs, ONE)["y0"]) == raw(arrays["x0"])


def test_a_wrong_lane_or_slot_shows_in_the_result() -> None:
    """The oracle is no identity: planted faults in a planned program change what it computes."""
    layout = ThreadLayout((1, 0, 2, 3, 4))
    for conversion, attribute in (("auto", "lanes"), ("scratch", "slots")):
        func = planned(conversion_program(ThreadLayout.identity(32), layout), conversion)
        for op in func.body.ops:
            if hasattr(op, attribute) and op.results:
                object.__setattr__(op, attribute, AffineMap.identity(5))
        x = mx.arange(32, dtype=mx.float32)
        made = evaluate(func, {"x0": x}, {}, {"y0": ((32,), f32)}, ONE)["y0"]
        expected = [layout.map.inverse().apply(k) for k in range(32)]
        assert made.tolist() == expected


def test_scratch_of_one_dtype_serves_two_conversions_in_programs_of_a_grid() -> None:
    p = TileProgram()
    x = p.tensor("x", (3, 64), "read", dtype=f16)
    y = p.tensor("y", (3, 64), "write", dtype=f16)
    first, second = ThreadLayout((5, 4, 3, 2, 1, 0)), ThreadLayout((3, 4, 5, 0, 1, 2), 9)
    at, pid = p.lanes(64, 0, ThreadLayout.identity(64)), p.program_id()
    value = p.add(tile.Convert(p.load(x, pid, at), first))
    back = p.add(tile.Convert(value, second))
    p.store(y, pid, p.lanes(64, 0, second), value=back)
    source = special(f16, 192).reshape(3, 64)
    made = evaluate(planned(p.func()), {"x": source}, {}, {"y": ((3, 64), f16)}, (3, 1, 1))["y"]
    assert raw(made) == raw(source)


def test_f24_lanes_that_are_off_have_no_gradient_whatever_becomes_of_them() -> None:
    """The slope of a root at the 0 that they load is infinite; they stand for the last element."""

    def root(x: mx.array) -> mx.array:
        p, source, y, at = copy(3)
        p.store(y, at, value=p.unary(UnaryKind.SQRT, p.load(source, at)))
        return run(p, (3,), x=x)

    x = mx.array([1.0, 4.0, 16.0])
    for transform in (lambda f: f, mx.compile, lambda f: lambda x: mx.vmap(f)(x[None])[0]):
        slope = transform(mx.grad(lambda x: root(x).sum()))
        assert slope(x).tolist() == [0.5, 0.25, 0.125]
        curve = transform(mx.grad(lambda x: mx.grad(lambda x: root(x).sum())(x).sum()))
        assert mx.allclose(curve(x), -0.25 / x**1.5)
