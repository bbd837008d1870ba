"""The automatic path: pointers, per-thread values, threadgroup memory, matrix tiles (SPEC K6).

Pointers are views of whole arrays. What has no lowering translates to `tile.automatic`, which names
the construct; ownership inference rejects all of them beside explicit layouts (SPEC O4, O5).
"""

from __future__ import annotations

from metile_mlx.dtypes import f32, i32
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.arguments import dtype_argument, shape_argument
from metile_mlx.frontend.language.tensors import Pointer, Tensor, load_whole, store_whole
from metile_mlx.frontend.language.types import (
    DTypeLike,
    IndexLike,
    MaskLike,
    Scalar,
    ScalarLike,
    Shape,
    Tile,
    TileLike,
)
from metile_mlx.frontend.rules import outside, rule
from metile_mlx.frontend.values import PointerOffset, describe
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Value
from metile_mlx.ir.tile import Automatic
from metile_mlx.ir.types import PointerType


def load(pointer: Pointer, mask: MaskLike | None = None, fill: ScalarLike = 0) -> Tile:
    """`metile.load(X + offsets, mask=, fill=)`: read `X` at element offsets (SPEC K6).

    Offsets count elements of the flat array, whatever its shape. A lane that is not masked off has
    to stay inside the array: the emulator and, where it can tell, the reference report one that
    doesn't; compiled for a device it gives `fill`, and nothing outside is read.

    Args:
        pointer: an array parameter plus i32 offsets, uniform or tile; the array alone is offset 0.
        mask: bool, uniform or tile.
        fill: what lanes that are masked off get; converted to the array's dtype.

    Raises:
        CompileError: not `array + offsets`; a load after a store to the same array (K7).
        OwnershipError: beside explicit thread layouts (O5).
    """
    raise outside("load")


def store(pointer: Pointer, value: TileLike, mask: MaskLike | None = None) -> None:
    """`metile.store(X + offsets, value, mask=)`: write `X` at element offsets (SPEC K6).

    Args:
        pointer, mask: as for `load`; a lane outside the array is reported, or writes nothing.
        value: as for `Tensor.store`.

    Raises:
        CompileError: not `array + offsets`, or a value of another kind of dtype.
        OwnershipError: beside explicit thread layouts (O5).
    """
    raise outside("store")


def thread_id() -> Scalar:
    """The thread's number in its threadgroup, an i32 of each thread's own (SPEC K6)."""
    raise outside("thread_id")


def simd_lane_id() -> Scalar:
    """The thread's lane in its SIMD group, 0..31 (SPEC K6)."""
    raise outside("simd_lane_id")


def simd_sum(value: Scalar) -> Scalar:
    """The sum over the 32 lanes of the SIMD group (SPEC K6)."""
    raise outside("simd_sum")


def simd_max(value: Scalar) -> Scalar:
    """The largest over the 32 lanes of the SIMD group (SPEC K6)."""
    raise outside("simd_max")


def simd_shuffle_xor(value: Scalar, mask: int) -> Scalar:
    """The value of the lane whose number differs in the bits of `mask` (SPEC K6)."""
    raise outside("simd_shuffle_xor")


def simd_broadcast(value: Scalar, lane: int) -> Scalar:
    """The value of one lane, in all 32 (SPEC K6)."""
    raise outside("simd_broadcast")


def shared(shape: Shape, dtype: DTypeLike) -> Tensor:
    """Threadgroup memory of a shape known at compile time (SPEC K6)."""
    raise outside("shared")


def barrier() -> None:
    """All threads of the threadgroup meet (SPEC K6)."""
    raise outside("barrier")


def dot(a: Tile, b: Tile, acc: Tile | None = None) -> Tile:
    """The matrix product of two 2-D tiles, accumulated in f32 (SPEC K6)."""
    raise outside("dot")


def tile_load(
    tensor: Tensor, origin: tuple[IndexLike, ...], shape: Shape, fill: ScalarLike = 0
) -> Tile:
    """A tile of `shape` of a tensor, from `origin` on (SPEC K6)."""
    raise outside("tile_load")


def tile_store(tensor: Tensor, origin: tuple[IndexLike, ...], value: Tile) -> None:
    """Write a tile to a tensor, from `origin` on (SPEC K6)."""
    raise outside("tile_store")


def _automatic(build: Build, *inputs: object, dtype: object = i32) -> Value:
    """A `tile.automatic` named after the call; nested tuples of inputs are flattened."""
    values: list[Value] = []
    for item in inputs:
        parts = item if isinstance(item, tuple) else (item,)
        for part in parts:
            if isinstance(part, PointerOffset):
                values += [part.array, part.offset]
            elif isinstance(part, Value):
                values.append(part)
            elif part is not None:
                values.append(build.number(part))
    name = build.call.name
    return build.add(Automatic(f"{name}()", tuple(values), dtype_argument(build, dtype)), name)


def _pointer(build: Build, pointer: object) -> PointerOffset:
    if isinstance(pointer, PointerOffset):
        return pointer
    if isinstance(pointer, Value) and isinstance(pointer.type, PointerType):
        return PointerOffset(pointer, build.constant(0, i32))
    raise build.error(
        f"pointer is {describe(pointer)}, expected array + offsets",
        "pointer",
        "declared views have their own: tensor.load(indices), tensor.store(indices, value)",
    )


@rule(load)
def _load(build: Build, pointer: object, mask: object, fill: object) -> Value:
    source = _pointer(build, pointer)
    return load_whole(build, source.array, source.offset, mask, fill)


@rule(store)
def _store(build: Build, pointer: object, value: object, mask: object) -> None:
    target = _pointer(build, pointer)
    store_whole(build, target.array, target.offset, value, mask)


@rule(thread_id)
def _thread_id(build: Build) -> Value:
    return _automatic(build)


@rule(simd_lane_id)
def _simd_lane_id(build: Build) -> Value:
    return _automatic(build)


def _collective(build: Build, value: object, *others: object) -> Value:
    source = build.number(value, "value")
    return _automatic(build, source, *others, dtype=element(source))


@rule(simd_sum)
def _simd_sum(build: Build, value: object) -> Value:
    return _collective(build, value)


@rule(simd_max)
def _simd_max(build: Build, value: object) -> Value:
    return _collective(build, value)


@rule(simd_shuffle_xor)
def _simd_shuffle_xor(build: Build, value: object, mask: object) -> Value:
    return _collective(build, value, mask)


@rule(simd_broadcast)
def _simd_broadcast(build: Build, value: object, lane: object) -> Value:
    return _collective(build, value, lane)


@rule(shared)
def _shared(build: Build, shape: object, dtype: object) -> Value:
    return _automatic(build, shape_argument(build, shape), dtype=dtype)


@rule(barrier)
def _barrier(build: Build) -> None:
    _automatic(build)


@rule(dot)
def _dot(build: Build, a: object, b: object, acc: object) -> Value:
    return _automatic(build, a, b, acc, dtype=f32)


@rule(tile_load)
def _tile_load(build: Build, tensor: object, origin: object, shape: object, fill: object) -> Value:
    return _automatic(build, tensor, origin, shape_argument(build, shape), fill)


@rule(tile_store)
def _tile_store(build: Build, tensor: object, origin: object, value: object) -> None:
    _automatic(build, tensor, origin, value)
