"""Reductions, and loops with runtime bounds. What is missing is named, so that errors say so."""

from __future__ import annotations

from collections.abc import Iterator

from metile_mlx.dtypes import f32
from metile_mlx.errors import UnsupportedError
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.types import DTypeLike, Scalar, Tile
from metile_mlx.frontend.naming import suffix
from metile_mlx.frontend.rules import outside, rule
from metile_mlx.frontend.values import describe
from metile_mlx.ir import tile
from metile_mlx.ir.arith import CombineKind
from metile_mlx.ir.core import Value
from metile_mlx.ir.types import TileType


def tile_range(
    start: Scalar | int, end: Scalar | int | None = None, step: Scalar | int = 1
) -> Iterator[Scalar]:
    """`for i in metile.tile_range(start, end, step)`: a loop with uniform runtime bounds (SPEC K5).

    Raises:
        UnsupportedError: runtime loops are not supported yet.
    """
    raise outside("tile_range")


def sum(x: Tile, axis: int | None = None, acc: DTypeLike | None = None) -> Scalar:
    """The sum of all elements of an f32 tile, a uniform f32 scalar (SPEC K3, R2).

    Lanes that a load left out count as their `fill`. The order of additions is fixed, so the same
    values give the same bits in every program.

    Args:
        x: an f32 tile. Cast f16 and bf16 first: they overflow and stagnate (SPEC R4).
        axis: None, or 0 for a 1-D tile.
        acc: None or f32: the dtype sums are accumulated in.

    Raises:
        CompileError: not a tile, f16 or bf16, another axis or `acc`.
        UnsupportedError: a tile of integers; an axis of a tile of several dimensions.
    """
    raise outside("sum")


def max(x: Tile, axis: int | None = None) -> Scalar:
    """The largest element (SPEC K3).

    Raises:
        UnsupportedError: reductions are not supported yet.
    """
    raise outside("max")


def min(x: Tile, axis: int | None = None) -> Scalar:
    """The smallest element (SPEC K3).

    Raises:
        UnsupportedError: reductions are not supported yet.
    """
    raise outside("min")


def argmax(x: Tile, axis: int | None = None) -> Scalar:
    """The index of the largest element, the smallest index among equals (SPEC K6).

    Raises:
        UnsupportedError: reductions are not supported yet.
    """
    raise outside("argmax")


@rule(tile_range)
def _tile_range(build: Build, start: object, end: object, step: object) -> object:
    raise UnsupportedError(
        "[tile_range] loops with runtime bounds are not supported yet",
        build.call.loc,
        "unroll the loop: for i in range(N) with a constexpr N",
    )


def _reduction(build: Build) -> UnsupportedError:
    name = build.call.name
    return UnsupportedError(f"[{name}] this reduction is not supported yet", build.call.loc)


@rule(sum)
def _sum(build: Build, x: object, axis: object, acc: object) -> Value:
    if not isinstance(x, Value) or not isinstance(x.type, TileType):
        raise build.error(f"x is {describe(x)}, expected a tile", "x")
    dtype = x.type.dtype
    if dtype.is_float and dtype != f32:
        raise build.error(
            f"x is {dtype}, cast to f32 before summing: a sum in {dtype} overflows or stagnates",
            "x",
            f"metile.sum(metile.cast({x.name or 'x'}, metile.f32))",
        )
    if dtype != f32:
        error = build.error(f"x is {dtype}: only f32 tiles can be summed yet", "x")
        hint = f"cast it, where f32 holds it exactly: metile.cast({x.name or 'x'}, metile.f32)"
        raise UnsupportedError(error.message, error.loc, hint)
    _check_axis(build, axis, len(x.type.shape))
    if acc is not None and acc != f32:
        raise build.error(f"acc is {describe(acc)}, expected metile.f32 or None", "acc")
    return build.add(tile.Reduce(CombineKind.SUM, x), suffix(x, "sum"))


def _check_axis(build: Build, axis: object, rank: int) -> None:
    if axis is None:
        return
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
        raise build.error(f"axis is {describe(axis)}, expected None or 0 to {rank - 1}", "axis")
    if rank > 1:
        error = build.error(f"axis={axis} of a tile of {rank} dimensions is not supported yet")
        raise UnsupportedError(error.message, error.loc, "axis=None sums all elements")


@rule(max)
def _max(build: Build, x: object, axis: object) -> object:
    raise _reduction(build)


@rule(min)
def _min(build: Build, x: object, axis: object) -> object:
    raise _reduction(build)


@rule(argmax)
def _argmax(build: Build, x: object, axis: object) -> object:
    raise _reduction(build)
