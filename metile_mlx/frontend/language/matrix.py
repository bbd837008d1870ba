"""Two-dimensional tiles and their products: `tile_load`, `tile_store`, `dot` (SPEC K6, P1, P4)."""

from __future__ import annotations

from metile_mlx.dtypes import f32, i32
from metile_mlx.errors import CompileError
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.arguments import shape_argument
from metile_mlx.frontend.language.tensors import Tensor, load_at, store_at
from metile_mlx.frontend.language.types import Scalar, ScalarLike, Shape, Tile
from metile_mlx.frontend.naming import suffix
from metile_mlx.frontend.operators import ADD, binary
from metile_mlx.frontend.rules import outside, rule
from metile_mlx.frontend.values import describe
from metile_mlx.ir import tile
from metile_mlx.ir.core import Value
from metile_mlx.ir.matrix import Coordinate, Dot
from metile_mlx.ir.types import ScalarType, TensorType, TileType

_LOAD = "load one with metile.tile_load(tensor, (row, column), (rows, columns))"


def dot(a: Tile, b: Tile, acc: Tile | None = None) -> Tile:
    """acc + a @ b: the product of two matrices, accumulated in f32 (SPEC K6, P4).

    Products of f16 and bf16 are exact in f32; the order in which eight of them are added is the
    hardware's, everything else goes up in K.

    Args:
        a: a tile of (M, K) in f16, bf16 or f32; M, N and K are powers of two from 8 to 128.
        b: a tile of (K, N) of the same dtype.
        acc: an f32 tile of (M, N); None is zeros.

    Returns:
        An f32 tile of (M, N).

    Raises:
        CompileError: shapes that do not fit, or other dtypes.
    """
    raise outside("dot")


def tile_load(
    tensor: Tensor, origin: tuple[Scalar | int, ...], shape: Shape, fill: ScalarLike = 0
) -> Tile:
    """A rectangle of a tensor (SPEC K6); elements outside its bounds are `fill`.

    Args:
        tensor: a declared view.
        origin: where the rectangle starts: one uniform i32 per dimension of the tensor.
        shape: its extents along the last dimensions, powers of two; the others are indexed.
        fill: a number or uniform scalar, converted to the tensor's dtype.

    Raises:
        CompileError: an origin of another length, extents that are no powers of two, or as
            `Tensor.load`.
    """
    raise outside("tile_load")


def tile_store(tensor: Tensor, origin: tuple[Scalar | int, ...], value: Tile) -> None:
    """Write a tile as a rectangle of a tensor (SPEC K6); nothing outside its bounds is written.

    Args:
        tensor: a declared view.
        origin: as for `tile_load`.
        value: a tile; a float of another float dtype is rounded to the tensor's, once, here.

    Raises:
        CompileError: an origin of another length, or as `Tensor.store`.
    """
    raise outside("tile_store")


@rule(dot)
def _dot(build: Build, a: object, b: object, acc: object) -> Value:
    left, right = _tile(build, a, "a", _LOAD), _tile(build, b, "b", _LOAD)
    if acc is None:
        shape = (_shape(left)[0], _shape(right)[-1])
        start = build.add(tile.Splat(build.constant(0, f32), shape), "zeros")
    else:
        start = _tile(build, acc, "acc", "start with metile.zeros((M, N), metile.f32)")
    try:
        return build.add(Dot(left, right, start), suffix(start, "dot"))
    except CompileError as error:
        message = error.message.removeprefix("[dot] ")
        argument = None if " and b " in message else message.partition(" ")[0]
        raise build.error(message, argument, error.hint) from None


@rule(tile_load)
def _tile_load(build: Build, tensor: object, origin: object, shape: object, fill: object) -> Value:
    view, extents = _tensor(build, tensor), shape_argument(build, shape)
    if any(extent & (extent - 1) for extent in extents):
        raise build.error(
            f"shape is {extents}, expected powers of two",
            "shape",
            "use the next power of two: what is outside the tensor's bounds is loaded as fill",
        )
    indices = _indices(build, view, origin, extents)
    try:
        return load_at(build, view, indices, fill)
    except CompileError as error:
        if not error.message.startswith("[load] "):
            raise
        raise build.error(error.message.removeprefix("[load] "), "tensor", error.hint) from None


@rule(tile_store)
def _tile_store(build: Build, tensor: object, origin: object, value: object) -> None:
    view, stored = _tensor(build, tensor), _tile(build, value, "value", _LOAD)
    store_at(build, view, _indices(build, view, origin, _shape(stored)), stored)


def _indices(
    build: Build, tensor: Value, origin: object, shape: tuple[int, ...]
) -> tuple[Value, ...]:
    """One index per dimension: the origin's, with each element's place in the rectangle."""
    assert isinstance(tensor.type, TensorType)
    starts = origin if isinstance(origin, tuple) else (origin,)
    rank = tensor.type.rank
    if len(starts) != rank or len(shape) > rank:
        raise build.error(
            f"{tensor.name} has {rank} dimension{'s' * (rank != 1)}, got an origin of "
            f"{len(starts)} and a tile of {len(shape)}",
            "origin",
            "give one start per dimension; the tile lies along the last ones",
        )
    found: list[Value] = []
    for number, start in enumerate(starts):
        first = build.number(start, "origin")
        if first.type != ScalarType(i32):
            raise build.error(
                f"an entry of origin is {describe(start)}, expected an int or a uniform i32 scalar",
                "origin",
            )
        axis = number - (rank - len(shape))
        if axis >= 0:
            place = build.add(Coordinate(shape, axis), f"axis_{axis}")
            total = binary(build, ADD, first, place)
            assert isinstance(total, Value)
            first = total
        found.append(first)
    return tuple(found)


def _tile(build: Build, value: object, argument: str, hint: str) -> Value:
    if not isinstance(value, Value) or not isinstance(value.type, TileType):
        raise build.error(f"{argument} is {describe(value)}, expected a tile", argument, hint)
    return value


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TileType)
    return value.type.shape


def _tensor(build: Build, tensor: object) -> Value:
    if not isinstance(tensor, Value) or not isinstance(tensor.type, TensorType):
        raise build.error(
            f"tensor is {describe(tensor)}, expected a declared view",
            "tensor",
            "declare it at kernel entry: metile.tensor(array, shape=(M, N))",
        )
    return tensor
