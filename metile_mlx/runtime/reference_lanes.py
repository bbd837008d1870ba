"""Raw lanes and declared threadgroup memory in MLX operations, over all programs at once (K6, X5).

A value of each thread's own is an array of shape (P, threads), like a tile: without stated layouts
thread t holds element t. Memory is an array of shape (P, elements + 1); what is masked off goes to
the last one. Programs without races give the same in any order of threads, so also in this one.
"""

from __future__ import annotations

from metile_mlx.ir.arith import element
from metile_mlx.ir.lanes import LaneReduce, LaneShuffle, Shared, Sync, ThreadId
from metile_mlx.ir.tile import Load, Store
from metile_mlx.runtime import reference_memory
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.runtime.optional import mx
from metile_mlx.runtime.programs import Programs
from metile_mlx.runtime.reference_ops import combined
from metile_mlx.target import SIMD_WIDTH


def thread_id(s: Programs, op: ThreadId) -> mx.array:
    """0, 1, ..."""
    return mx.arange(s.threads, dtype=mx.int32)[None]


def reduce(s: Programs, op: LaneReduce) -> mx.array:
    """Each simdgroup's lanes combined, for each of them."""
    src = _spread(s, s.env[op.src])
    total = combined(op.kind, mx.reshape(src, (-1, SIMD_WIDTH)))
    return mx.reshape(mx.broadcast_to(total, (total.shape[0], SIMD_WIDTH)), src.shape)


def shuffle(s: Programs, op: LaneShuffle) -> mx.array:
    """Another lane's value, in place of each thread's own."""
    src, lane = _spread(s, s.env[op.src]), s.env[op.lane]
    first = mx.arange(s.threads, dtype=mx.int32)[None] // SIMD_WIDTH * SIMD_WIDTH
    place = mx.broadcast_to(first + lane, (src.shape[0], s.threads))
    return mx.take_along_axis(src, place, axis=1)


def _spread(s: Programs, array: mx.array) -> mx.array:
    return mx.broadcast_to(array, (array.shape[0], s.threads))


def shared(s: Programs, op: Shared) -> mx.array:
    """Memory of every program, and where a masked lane stores."""
    return mx.zeros((s.count, op.elements + 1), mlx_dtypes()[op.dtype])


def sync(s: Programs, op: Sync) -> None:
    """All threads are together already."""


def _place(s: Programs, op: Load | Store, memory: Shared) -> mx.array:
    """The element of each thread; the last one where a lane is off."""
    lanes = s.guard if op.mask is None else reference_memory.both(s.guard, s.env[op.mask])
    flat = mx.zeros((1, 1), mx.int32)
    for index, extent in zip(op.indices, memory.shape, strict=True):
        at = s.env[index]
        lanes = reference_memory.both(lanes, mx.logical_and(at >= 0, at < extent))
        flat = flat * extent + at
    assert lanes is not None
    return mx.where(lanes, flat, mx.array(memory.elements, mx.int32))


def load(s: Programs, op: Load) -> mx.array:
    """What the memory holds; the fill where a lane is off."""
    memory = s.defined.get(op.tensor)
    if not isinstance(memory, Shared):
        return reference_memory.load(s, op)
    held, place = s.env[op.tensor], _place(s, op, memory)
    place = mx.broadcast_to(place, (s.count, place.shape[1]))
    found = mx.take_along_axis(held, place, axis=1)
    fill = s.env[op.fill] if op.fill is not None else mx.zeros((1, 1), held.dtype)
    return mx.where(place == memory.elements, fill, found)


def store(s: Programs, op: Store) -> None:
    """Into the memory of every program."""
    memory = s.defined.get(op.tensor)
    if not isinstance(memory, Shared):
        reference_memory.store(s, op)
        return
    place, value = _place(s, op, memory), s.env[op.value]
    width = max(place.shape[1], value.shape[1])
    place, value = (mx.broadcast_to(a, (s.count, width)) for a in (place, value))
    assert element(op.value) == memory.dtype
    s.env[op.tensor] = mx.put_along_axis(s.env[op.tensor], place, value, axis=1)
