"""Reductions, and loops with runtime bounds. What is missing is named in its error."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from math import prod
from typing import overload

from metile_mlx.dtypes import DType, bf16, f16, f32, i32, u32
from metile_mlx.frontend import loops
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.types import DTypeLike, Scalar, Tile
from metile_mlx.frontend.loops import TileRange
from metile_mlx.frontend.naming import suffix
from metile_mlx.frontend.operators import BINARY, binary
from metile_mlx.frontend.rules import outside, rule
from metile_mlx.frontend.values import describe
from metile_mlx.ir import tile
from metile_mlx.ir.arith import REDUCED, BinaryKind, CombineKind, CompareKind
from metile_mlx.ir.core import Value
from metile_mlx.ir.types import TileType


def tile_range(
    start: Scalar | int, end: Scalar | int | None = None, step: Scalar | int = 1
) -> Iterator[Scalar]:
    """`for i in metile.tile_range(start, end, step)`: a loop with uniform runtime bounds (SPEC K5).

    `i` is start, start + step, ... below `end`; `tile_range(end)` starts at 0. Nothing is unrolled.
    A name that holds a number, scalar or tile before the loop and is assigned in it keeps its value
    from one iteration to the next, and its type.

    Args:
        start, end, step: ints or uniform i32 scalars. A step below 1 is an error: here where it is
            a constant, at the call (LaunchError) where it is a parameter; where it is computed such
            a loop runs no iteration.

    Raises:
        CompileError: another bound; `break` or `return` in the loop; a carried value that changes
            its type; a tensor that is loaded and stored in one loop (K7).
        OwnershipError: beside explicit thread layouts (O5).
    """
    raise outside("tile_range")


@overload
def sum(x: Tile, axis: None = None, acc: DTypeLike | None = None) -> Scalar: ...
@overload
def sum(x: Tile, axis: int, acc: DTypeLike | None = None) -> Tile: ...
def sum(x: Tile, axis: int | None = None, acc: DTypeLike | None = None) -> Tile | Scalar:
    """The sum of all elements, a uniform scalar; with `axis` the sums along it (SPEC K3, R2).

    The sums along an axis of a tile of several dimensions are a tile of the shape and owners of
    `x`: every element holds the sum of its row, all that differ from it in this coordinate only.
    Lanes that a load left out count as their `fill`. Sums of integers wrap. The order of additions
    is fixed by the layout, so the same values give the same bits in every program.

    Args:
        x: a tile of f32, i32 or u32; of another dtype with `acc`.
        axis: None for all elements, or the axis to sum along; negative ones count from the last.
        acc: the dtype of the sum, to which elements are cast before: f32 for floats, i32 or u32 for
            integers and masks. f16 and bf16 need it, since they overflow and stagnate (SPEC R4).

    Raises:
        CompileError: not a tile, a dtype that needs `acc`, another `acc`, or an axis `x` hasn't.
    """
    raise outside("sum")


@overload
def max(x: Tile, axis: None = None, acc: DTypeLike | None = None) -> Scalar: ...
@overload
def max(x: Tile, axis: int, acc: DTypeLike | None = None) -> Tile: ...
def max(x: Tile, axis: int | None = None, acc: DTypeLike | None = None) -> Tile | Scalar:
    """The largest element, a uniform scalar; with `axis` the largest along it (SPEC K3).

    NaN if any element is NaN, as in MLX; which NaN is not said, nor which zero of two signs. The
    result along an axis is a tile as that of `sum`.

    Args:
        x: a tile of f16, bf16, f32, i32 or u32. What a load leaves out is its `fill`, which has to
            be given there unless the load is in bounds for certain (SPEC K2).
        axis: as for `sum`.
        acc: the dtype of the result, as for `sum`; None is that of `x`.

    Raises:
        CompileError: not a tile, a dtype that needs `acc`, an axis `x` hasn't, or a load without
            `fill` among what `x` is made of.
    """
    raise outside("max")


@overload
def min(x: Tile, axis: None = None, acc: DTypeLike | None = None) -> Scalar: ...
@overload
def min(x: Tile, axis: int, acc: DTypeLike | None = None) -> Tile: ...
def min(x: Tile, axis: int | None = None, acc: DTypeLike | None = None) -> Tile | Scalar:
    """The smallest element, in all else as `max` (SPEC K3)."""
    raise outside("min")


@overload
def argmax(x: Tile, axis: None = None) -> Scalar: ...
@overload
def argmax(x: Tile, axis: int) -> Tile: ...
def argmax(x: Tile, axis: int | None = None) -> Tile | Scalar:
    """The index of the largest element, i32; the smallest index among equals (SPEC K6, F51).

    Of the flattened tile, or along `axis`, as a tile like that of `max`. The first NaN counts as
    the largest, as in MLX.

    Args:
        x, axis: as for `max`.

    Raises:
        CompileError: not a tile, one of another dtype, an axis `x` hasn't, or a load without `fill`
            among what `x` is made of.
    """
    raise outside("argmax")


@rule(tile_range)
def _tile_range(build: Build, start: object, end: object, step: object) -> TileRange:
    return loops.tile_range(build, start, end, step)


def _combined(build: Build, kind: CombineKind, x: object, axis: object, acc: object) -> Value:
    x = _tile(build, x)
    assert isinstance(x.type, TileType)
    along = _axis(build, axis, len(x.type.shape))
    dtype = x.type.dtype
    wide = _accumulator(build, kind, x, dtype, acc)
    source = build.cast(x, wide)
    made = build.add(tile.Reduce(kind, source, along), suffix(x, kind.value))
    narrow = acc is None and dtype.is_float
    return build.cast(made, dtype) if narrow else made


def _tile(build: Build, x: object) -> Value:
    if isinstance(x, Value) and isinstance(x.type, TileType):
        return x
    raise build.error(f"x is {describe(x)}, expected a tile", "x")


def _accumulator(build: Build, kind: CombineKind, x: Value, dtype: DType, acc: object) -> DType:
    """The dtype in which elements are combined. Extremes of f16 and bf16 are exact in f32."""
    name = x.name or "x"
    allowed = (f32,) if dtype.is_float else (i32, u32)
    if acc is not None:
        if acc not in allowed:
            names = " or ".join(repr(item) for item in allowed)
            raise build.error(f"acc is {describe(acc)}, expected {names} for {dtype}", "acc")
        assert isinstance(acc, DType)
        return acc
    if dtype in REDUCED:
        return dtype
    if not dtype.is_float:
        raise build.error(
            f"x is {dtype}, expected one of f32, i32, u32, or acc=",
            "x",
            f"give the dtype to count in: metile.{kind.value}({name}, acc=metile.i32)",
        )
    if kind is CombineKind.SUM:
        raise build.error(
            f"x is {dtype}, cast to f32 before summing: a sum in {dtype} overflows or stagnates",
            "x",
            f"metile.sum({name}, acc=metile.f32)",
        )
    return f32


def _axis(build: Build, axis: object, rank: int) -> int | None:
    """The axis from 0 on; None for all elements, which the only axis of a 1-D tile is too."""
    if axis is None:
        return None
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
        raise build.error(f"axis is {describe(axis)}, expected None or 0 to {rank - 1}", "axis")
    return axis % rank if rank > 1 else None


@rule(sum)
def _sum(build: Build, x: object, axis: object, acc: object) -> Value:
    return _combined(build, CombineKind.SUM, x, axis, acc)


@rule(max)
def _max(build: Build, x: object, axis: object, acc: object) -> Value:
    return _combined(build, CombineKind.MAX, x, axis, acc)


@rule(min)
def _min(build: Build, x: object, axis: object, acc: object) -> Value:
    return _combined(build, CombineKind.MIN, x, axis, acc)


@rule(argmax)
def _argmax(build: Build, x: object, axis: object) -> Value:
    """The smallest index at which the maximum stands, or a NaN."""
    x = _tile(build, x)
    assert isinstance(x.type, TileType)
    allowed = (f16, bf16, *REDUCED)
    if x.type.dtype not in allowed:
        raise build.error(
            f"x is {x.type.dtype}, expected one of {', '.join(map(str, allowed))}",
            "x",
            f"cast it first: metile.argmax(metile.cast({x.name or 'x'}, metile.i32))",
        )
    largest = _combined(build, CombineKind.MAX, x, axis, None)
    along = _axis(build, axis, len(x.type.shape))
    is_best = build.add(tile.Compare(CompareKind.EQ, x, largest), "is_largest")
    if x.type.dtype.is_float:
        is_nan = build.add(tile.Compare(CompareKind.NE, x, x), "is_nan")
        is_best = build.add(tile.Binary(BinaryKind.OR, is_best, is_nan), "is_largest")
    index = _positions(build, x.type, along)
    behind = build.constant(x.type.size, i32)
    place = build.add(tile.Select(is_best, index, behind), "place")
    return build.add(tile.Reduce(CombineKind.MIN, place, along), suffix(x, "argmax"))


def _positions(build: Build, like: TileType, along: int | None) -> Value:
    """Each element's index in the flattened tile, or along an axis."""
    start = build.constant(0, i32)
    flat = build.add(tile.Arange(start, like.size, like.layout), "index")
    shaped = build.add(tile.Reshape(flat, like.shape), "index") if like.shape[1:] else flat
    if along is None:
        return shaped
    behind, extent = prod(like.shape[along + 1 :]), like.shape[along]
    row = binary(build, BINARY[ast.FloorDiv], shaped, behind) if behind > 1 else shaped
    made = binary(build, BINARY[ast.Mod], row, extent) if along > 0 else row
    assert isinstance(made, Value)
    return made
