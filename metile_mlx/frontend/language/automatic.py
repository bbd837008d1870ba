"""The automatic path: pointers, per-thread values, threadgroup memory (SPEC K6).

Pointers are views of whole arrays. Ownership inference rejects all of these beside explicit layouts
(SPEC O4, O5).
"""

from __future__ import annotations

from metile_mlx.dtypes import bf16, f16, f32, i32, u32
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.arguments import dtype_argument, shape_argument
from metile_mlx.frontend.language.tensors import (
    Pointer,
    Tensor,
    check_entry,
    load_whole,
    store_whole,
)
from metile_mlx.frontend.language.types import (
    DTypeLike,
    MaskLike,
    Scalar,
    ScalarLike,
    Shape,
    Tile,
    TileLike,
    TileOrScalar,
)
from metile_mlx.frontend.naming import suffix
from metile_mlx.frontend.rules import outside, rule
from metile_mlx.frontend.values import PointerOffset, describe
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CombineKind
from metile_mlx.ir.core import Value
from metile_mlx.ir.lanes import LaneReduce, LaneShuffle, Shared, Sync, ThreadId
from metile_mlx.ir.types import PointerType
from metile_mlx.target import SIMD_WIDTH

SHARED = (f16, bf16, f32, i32, u32)
"""What threadgroup memory may hold."""


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
    """The thread's number in its threadgroup, an i32 of each thread's own (SPEC K6).

    Without a stated layout thread t holds element t of each tile. Such values are no conditions of
    an `if`.

    Raises:
        OwnershipError: where it meets a tile with a stated layout (O4).
    """
    raise outside("thread_id")


def simd_lane_id() -> Scalar:
    """The thread's lane in its simdgroup, 0 to 31, in all else as `thread_id` (SPEC K6).

    Raises:
        OwnershipError: as `thread_id`.
    """
    raise outside("simd_lane_id")


def simd_sum(value: TileOrScalar) -> TileOrScalar:
    """The sum over the 32 lanes of the simdgroup, in each of them (SPEC K6).

    Of a tile each element is its thread's, so the result is a tile too.

    Args:
        value: f32, i32 or u32: a scalar, of each thread's own or uniform, or a tile.

    Raises:
        CompileError: another dtype, or under a condition that is not proven uniform (C2).
        OwnershipError: beside explicit thread layouts (O5).
    """
    raise outside("simd_sum")


def simd_max(value: TileOrScalar) -> TileOrScalar:
    """The largest over the 32 lanes of the simdgroup, in all else as `simd_sum` (SPEC K6).

    NaN if it is NaN in any lane.

    Raises:
        CompileError, OwnershipError: as `simd_sum`.
    """
    raise outside("simd_max")


def simd_shuffle_xor(value: TileOrScalar, mask: int) -> TileOrScalar:
    """The value of the lane whose number differs in the bits of `mask` (SPEC K6).

    Args:
        value: a scalar or a tile of any dtype of 16 bits or more.
        mask: 0 to 31, known at compile time.

    Raises:
        CompileError: another dtype or mask, or under a condition that is not proven uniform (C2).
        OwnershipError: beside explicit thread layouts (O5).
    """
    raise outside("simd_shuffle_xor")


def simd_broadcast(value: TileOrScalar, lane: int) -> TileOrScalar:
    """The value of one lane, in all 32 (SPEC K6).

    Args:
        value: as for `simd_shuffle_xor`.
        lane: 0 to 31, known at compile time.

    Raises:
        CompileError, OwnershipError: as `simd_shuffle_xor`.
    """
    raise outside("simd_broadcast")


def shared(shape: Shape, dtype: DTypeLike) -> Tensor:
    """Threadgroup memory of a shape known at compile time, declared at kernel entry (SPEC K6).

    A tensor that all threads of a program share: `load` and `store` take indices, masks and fills
    as those of an array's view do. Nothing is in it at first. What one thread stores another may
    load behind a `barrier()`; two accesses of different threads to one element with no barrier
    between them, one of which stores, are an error.

    Args:
        shape: an int or ints.
        dtype: f16, bf16, f32, i32 or u32.

    Raises:
        CompileError: inside a loop or a runtime `if`, another dtype, or a race.
    """
    raise outside("shared")


def barrier() -> None:
    """All threads of the threadgroup meet; shared memory is ordered across it (SPEC K6).

    Raises:
        CompileError: under a condition that is not proven the same in all threads (C2).
    """
    raise outside("barrier")


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
    return build.add(ThreadId("thread_id()"), "thread_id")


@rule(simd_lane_id)
def _simd_lane_id(build: Build) -> Value:
    return _lane(build, "simd_lane_id()")


def _lane(build: Build, construct: str) -> Value:
    thread = build.add(ThreadId(construct), "thread_id")
    last = build.constant(SIMD_WIDTH - 1, i32)
    return build.add(tile.Binary(BinaryKind.AND, thread, last), "lane")


@rule(simd_sum)
def _simd_sum(build: Build, value: object) -> Value:
    return _combined(build, CombineKind.SUM, value)


@rule(simd_max)
def _simd_max(build: Build, value: object) -> Value:
    return _combined(build, CombineKind.MAX, value)


def _combined(build: Build, kind: CombineKind, value: object) -> Value:
    source = build.number(value, "value")
    item = LaneReduce(kind, source, f"{build.call.name}()")
    return build.add(item, suffix(source, build.call.name))


@rule(simd_shuffle_xor)
def _simd_shuffle_xor(build: Build, value: object, mask: object) -> Value:
    source, by = build.number(value, "value"), _lane_number(build, mask, "mask")
    lane = _lane(build, f"{build.call.name}()")
    partner = build.add(tile.Binary(BinaryKind.XOR, lane, by), "partner")
    return build.add(LaneShuffle(source, partner, f"{build.call.name}()"), suffix(source, "xor"))


@rule(simd_broadcast)
def _simd_broadcast(build: Build, value: object, lane: object) -> Value:
    source, by = build.number(value, "value"), _lane_number(build, lane, "lane")
    return build.add(LaneShuffle(source, by, f"{build.call.name}()"), suffix(source, "broadcast"))


def _lane_number(build: Build, value: object, argument: str) -> Value:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < SIMD_WIDTH:
        raise build.error(
            f"{argument} is {describe(value)}, expected a constant of 0 to {SIMD_WIDTH - 1}",
            argument,
        )
    return build.constant(value, i32)


@rule(shared)
def _shared(build: Build, shape: object, dtype: object) -> Value:
    check_entry(build)
    kind = dtype_argument(build, dtype)
    if kind not in SHARED:
        names = ", ".join(str(item) for item in SHARED)
        raise build.error(f"dtype is {kind}, expected one of {names}", "dtype")
    extents = shape_argument(build, shape)
    item = Shared(kind, extents, f"shared_{len(build.shared)}", "shared()")
    made = build.add(item, "shared")
    build.shared.add(made)
    return made


@rule(barrier)
def _barrier(build: Build) -> None:
    build.run(Sync("barrier()"))
