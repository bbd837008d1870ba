"""Where a program stands, and tiles made from nothing (SPEC K3)."""

from __future__ import annotations

from metile_mlx.dtypes import DType, i32
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.arguments import dtype_argument, layout_argument, shape_argument
from metile_mlx.frontend.language.types import DTypeLike, Scalar, ScalarLike, Shape, Tile
from metile_mlx.frontend.naming import suffix
from metile_mlx.frontend.rules import outside, rule
from metile_mlx.frontend.values import describe
from metile_mlx.ir import tile
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Value
from metile_mlx.ir.types import ScalarType
from metile_mlx.layout.thread_layout import ThreadLayout

AXES = (0, 1, 2)


def program_id(axis: int) -> Scalar:
    """This program's position along a grid axis (0..2), an i32 scalar (SPEC K3).

    Raises:
        CompileError: the axis is not 0, 1 or 2.
    """
    raise outside("program_id")


def num_programs(axis: int) -> Scalar:
    """The extent of the grid along an axis (0..2), an i32 scalar (SPEC K3).

    The host knows it at each call, so it may also be an extent or stride of a `tensor`.

    Raises:
        CompileError: the axis is not 0, 1 or 2.
    """
    raise outside("num_programs")


def arange(start: Scalar | int, size: int, layout: ThreadLayout | None = None) -> Tile:
    """start, start + 1, ..., start + size - 1: a 1-D i32 tile (SPEC K3).

    Args:
        start: an int or a uniform i32 scalar.
        size: number of elements, a power of two known at compile time; not an end.
        layout: who owns each element; None leaves it open (identity).

    Raises:
        CompileError: the size is no power of two, or not the layout's; the start is no uniform i32.
    """
    raise outside("arange")


def full(
    shape: Shape, value: ScalarLike, dtype: DTypeLike, layout: ThreadLayout | None = None
) -> Tile:
    """A tile of one repeated value (SPEC K3).

    Args:
        shape: extents known at compile time.
        value: a number or uniform scalar, cast to `dtype`.
        dtype: a metile or MLX dtype.
        layout: who owns each element of the row-major flattened tile.

    Raises:
        CompileError: a shape that is not constant, a value that does not fit, another layout size.
    """
    raise outside("full")


def zeros(shape: Shape, dtype: DTypeLike, layout: ThreadLayout | None = None) -> Tile:
    """A tile of zeros: `full(shape, 0, dtype, layout)` (SPEC K3)."""
    raise outside("zeros")


def _axis(build: Build, axis: object) -> int:
    if isinstance(axis, bool) or not isinstance(axis, int) or axis not in AXES:
        raise build.error(f"axis is {describe(axis)}, expected 0, 1 or 2", "axis")
    return axis


@rule(program_id)
def _program_id(build: Build, axis: object) -> Value:
    number = _axis(build, axis)
    return build.add(tile.ProgramId(number), f"program_{number}")


@rule(num_programs)
def _num_programs(build: Build, axis: object) -> Value:
    number = _axis(build, axis)
    made = build.add(tile.NumPrograms(number), f"num_programs_{number}")
    build.grid_extents.add(made)
    return made


@rule(arange)
def _arange(build: Build, start: object, size: object, layout: object) -> Value:
    first = build.number(start, "start")
    if first.type != ScalarType(i32):
        raise build.error(
            f"start is {describe(start)}, expected an int or a uniform i32 scalar", "start"
        )
    if isinstance(size, bool) or not isinstance(size, int):
        raise build.error(
            f"size is {describe(size)}, expected an int known at compile time",
            "size",
            "annotate the parameter metile.constexpr",
        )
    owner = layout_argument(build, layout)
    return build.add(tile.Arange(first, size, owner), f"arange_{size}")


@rule(full)
def _full(build: Build, shape: object, value: object, dtype: object, layout: object) -> Value:
    target = dtype_argument(build, dtype)
    extents = shape_argument(build, shape)
    owner = layout_argument(build, layout)
    build.expect_number(value, "value")
    if isinstance(value, Value) and value.type != ScalarType(element(value)):
        raise build.error(
            f"value is {describe(value)}, expected a number or a uniform scalar", "value"
        )
    return _splat(build, build.cast(value, target), extents, owner)


@rule(zeros)
def _zeros(build: Build, shape: object, dtype: object, layout: object) -> Value:
    target: DType = dtype_argument(build, dtype)
    extents = shape_argument(build, shape)
    return _splat(build, build.constant(0, target), extents, layout_argument(build, layout))


def _splat(
    build: Build, value: Value, shape: tuple[int, ...], layout: ThreadLayout | None
) -> Value:
    item = tile.Splat(value, shape, layout)
    (type_,) = item.infer()
    size = getattr(type_, "size", 0)
    if layout is not None and layout.size != size:
        raise build.error(
            f"shape {shape} has {size} elements, {layout!r} owns {layout.size}",
            "layout",
            "give a layout of the tile's size",
        )
    return build.add(item, suffix(value, "tile"))
