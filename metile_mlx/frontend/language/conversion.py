"""The same values in another dtype, shape, or with other owners (SPEC K3, C1)."""

from __future__ import annotations

from collections.abc import Sequence

from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.arguments import dtype_argument, layout_argument, shape_argument
from metile_mlx.frontend.language.types import DTypeLike, Shape, Tile, TileOrScalar
from metile_mlx.frontend.naming import suffix
from metile_mlx.frontend.rules import outside, rule
from metile_mlx.frontend.values import describe
from metile_mlx.ir import tile
from metile_mlx.ir.core import Value
from metile_mlx.ir.permute import Permute
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


def permute(value: Tile, bit_order: Sequence[int] | None = None, xor_mask: int = 0) -> Tile:
    """The elements in another order, named anew where they are: nothing moves.

    Element i of the result is element j of `value`, where bit b of j is bit `bit_order[b]` of i
    (None: bit b), and then j is XORed with `xor_mask`. A thread holds what it held, so owners are
    others than before; `convert_layout` brings the result to those that the next operation needs.
    With it `xor_mask=1 << k` is the exchange of a butterfly, `bit_order=(3, 4, 5, 0, 1, 2)` an 8
    by 8 transpose.

    Args:
        value: a one-dimensional tile.
        bit_order: a permutation of the bits of its index, a tuple or a range known at compile time.
        xor_mask: 0 to size - 1, known at compile time.

    Raises:
        CompileError: not such a tile, or numbers other than these.
    """
    raise outside("permute")


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


@rule(permute)
def _permute(build: Build, value: object, bit_order: object = None, xor_mask: object = 0) -> Value:
    source = _tile(build, value)
    assert isinstance(source.type, TileType)
    if bit_order is None:
        order: tuple[int, ...] = tuple(range(source.type.size.bit_length() - 1))
    else:
        order = _integers(build, bit_order)
    if not isinstance(xor_mask, int) or isinstance(xor_mask, bool):
        raise build.error(
            f"xor_mask is {describe(xor_mask)}, expected an int known at compile time", "xor_mask"
        )
    return build.add(Permute(source, order, xor_mask), suffix(source, "permuted"))


def _integers(build: Build, bit_order: object) -> tuple[int, ...]:
    if isinstance(bit_order, tuple | list | range):
        found = [bit for bit in bit_order if isinstance(bit, int) and not isinstance(bit, bool)]
        if len(found) == len(bit_order):
            return tuple(found)
    raise build.error(
        f"bit_order is {describe(bit_order)}, expected ints known at compile time",
        "bit_order",
        "write a tuple of bits: metile.permute(tile, (3, 4, 5, 0, 1, 2))",
    )


def _tile(build: Build, value: object) -> Value:
    if not isinstance(value, Value) or not isinstance(value.type, TileType):
        hint = None
        if isinstance(value, Value) and isinstance(value.type, ScalarType):
            kind = "a uniform scalar" if value.type.uniform else "a value of each thread's own"
            hint = f"{kind} has no owner to convert; load a tile through metile.tensor"
        raise build.error(f"value is {describe(value)}, expected a tile", "value", hint)
    return value
