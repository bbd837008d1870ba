"""Loops with runtime bounds, and reductions: named here so that their absence is said clearly."""

from __future__ import annotations

from collections.abc import Iterator

from metile_mlx.errors import UnsupportedError
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.types import DTypeLike, Scalar, Tile
from metile_mlx.frontend.rules import outside, rule


def tile_range(
    start: Scalar | int, end: Scalar | int | None = None, step: Scalar | int = 1
) -> Iterator[Scalar]:
    """`for i in metile.tile_range(start, end, step)`: a loop with uniform runtime bounds (SPEC K5).

    Raises:
        UnsupportedError: runtime loops are not supported yet.
    """
    raise outside("tile_range")


def sum(x: Tile, axis: int | None = None, acc: DTypeLike | None = None) -> Scalar:
    """The sum of a tile's elements (SPEC K3).

    Raises:
        UnsupportedError: reductions are not supported yet.
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
    return UnsupportedError(f"[{name}] reductions are not supported yet", build.call.loc)


@rule(sum)
def _sum(build: Build, x: object, axis: object, acc: object) -> object:
    raise _reduction(build)


@rule(max)
def _max(build: Build, x: object, axis: object) -> object:
    raise _reduction(build)


@rule(min)
def _min(build: Build, x: object, axis: object) -> object:
    raise _reduction(build)


@rule(argmax)
def _argmax(build: Build, x: object, axis: object) -> object:
    raise _reduction(build)
