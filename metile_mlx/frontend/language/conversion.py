"""The same values in another dtype, shape, or with other owners (SPEC K3, C1)."""

from __future__ import annotations

from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.arguments import dtype_argument, layout_argument, shape_argument
from metile_mlx.frontend.language.types import DTypeLike, Shape, Tile, TileOrScalar
from metile_mlx.frontend.naming import suffix
from metile_mlx.frontend.rules import outside, rule
from metile_mlx.frontend.values import describe
from metile_mlx.ir import tile
from metile_mlx.ir.core import Value
from metile_mlx.ir.types import ScalarType, TileType
from metile_mlx.layout.thread_layout import ThreadLayout


def cast(value: TileOrScalar, dtype: DTypeLike) -> TileOrScalar:
    """The value converted to `dtype` (SPEC K3, K4).

    Floats round to nearest even, float to integer truncates toward zero, nonzero becomes True. A
    Python number becomes a scalar of that dtype, which then takes part in promotion.

    Raises:
        CompileError: not a number, not a dtype, or a Python integer that does not fit.
    """
    raise outside("cast")


def reshape(value: Tile, shape: Shape) -> Tile:
    """A row-major view of the same elements and owners in another shape (SPEC K3).

    Raises:
        CompileError: the shape has another number of elements.
    """
    raise outside("reshape")


def convert_layout(value: Tile, layout: ThreadLayout) -> Tile:
    """The same tile with other owners; the compiler chooses how the values travel (SPEC C1).

    Shape, dtype and values stay. Within a SIMD group values are shuffled, across groups they pass
    through threadgroup memory with the barriers that needs.

    Raises:
        CompileError: not a tile, or a layout of another size.
    """
    raise outside("convert_layout")


@rule(cast)
def _cast(build: Build, value: object, dtype: object) -> Value:
    target = dtype_argument(build, dtype)
    build.expect_number(value, "value")
    return build.cast(value, target)


@rule(reshape)
def _reshape(build: Build, value: object, shape: object) -> Value:
    source = _tile(build, value)
    return build.add(tile.Reshape(source, shape_argument(build, shape)), suffix(source, "reshaped"))


@rule(convert_layout)
def _convert_layout(build: Build, value: object, layout: object) -> Value:
    source = _tile(build, value)
    owner = layout_argument(build, layout)
    if owner is None:
        raise build.error("layout is None, expected a ThreadLayout", "layout")
    return build.add(tile.Convert(source, owner), suffix(source, "converted"))


def _tile(build: Build, value: object) -> Value:
    if not isinstance(value, Value) or not isinstance(value.type, TileType):
        hint = None
        if isinstance(value, Value) and isinstance(value.type, ScalarType):
            kind = "a uniform scalar" if value.type.uniform else "a value of each thread's own"
            hint = f"{kind} has no owner to convert; load a tile through metile.tensor"
        raise build.error(f"value is {describe(value)}, expected a tile", "value", hint)
    return value
