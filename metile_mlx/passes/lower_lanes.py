"""Raw lanes and declared threadgroup memory as one thread's program (SPEC K6)."""

from __future__ import annotations

from collections.abc import Sequence

from metile_mlx.dtypes import i32, u16, u32
from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import CompareKind, element
from metile_mlx.ir.core import Value
from metile_mlx.ir.lanes import (
    LaneReduce,
    LaneShuffle,
    Shared,
    SharedAlloc,
    Sync,
    ThreadId,
    ThreadLaneReduce,
    ThreadLaneShuffle,
    ThreadSync,
)
from metile_mlx.ir.types import ScalarType, TileType
from metile_mlx.passes.addresses import View, bounds, offset
from metile_mlx.passes.lowering import Lowered, Lowering, Rules
from metile_mlx.report import Allocation


def differs(value: Value) -> bool:
    """Whether threads have elements or values of their own."""
    type_ = value.type
    return isinstance(type_, TileType) or (isinstance(type_, ScalarType) and not type_.uniform)


def where(
    low: Lowering, view: View, indices: Sequence[Value], mask: Value | None
) -> tuple[Value | None, Value]:
    """The mask (None: always) and the offset of one slot's access."""
    inside = bounds(low.b, view, indices, low.ctx)
    at = offset(low.b, view, indices, low.ctx)
    for value, name in ((inside, "in_bounds"), (at, "offset")):
        if value is not None:
            value.name = value.name or name
    return low.b.both(inside, mask), at


def _thread_id(low: Lowering, item: ThreadId) -> Lowered:
    return ((low.b.cast(low.b.thread, i32),),)


def _lane_reduce(low: Lowering, item: LaneReduce) -> Lowered:
    return (tuple(low.b.emit(ThreadLaneReduce(item.kind, src))[0] for src in low.slots[item.src]),)


def _lane_shuffle(low: Lowering, item: LaneShuffle) -> Lowered:
    found: list[Value] = []
    for src, lane in low.rows(item.src, item.lane):
        assert src is not None
        assert lane is not None
        found += low.b.emit(ThreadLaneShuffle(src, low.b.cast(lane, u16)))
    return (tuple(found),)


def _shared(low: Lowering, item: Shared) -> Lowered:
    b, step = low.b, 1
    strides = []
    for extent in reversed(item.shape):
        strides.append(b.constant(step, i32))
        step *= extent
    (buffer,) = b.emit(SharedAlloc(item.dtype, item.elements, item.slot), (item.result.name,))
    low.shared[item.result] = buffer
    size = item.elements * item.dtype.bytes
    low.ctx.report.allocations.append(Allocation(item.slot, str(item.dtype), item.elements, size))
    shape = tuple(b.constant(extent, i32) for extent in item.shape)
    low.views[item.result] = View(None, None, None, shape, tuple(reversed(strides)))
    return ((),)


def load_shared(low: Lowering, item: tile.Load, view: View) -> Lowered:
    """Each slot's element of declared memory, or the fill."""
    b, buffer = low.b, low.shared[item.tensor]
    dtype = element(item.result)
    fill = b.constant(0, dtype) if item.fill is None else low.scalar(item.fill)
    found: list[Value] = []
    for *indices, user_mask in low.rows(*item.indices, item.mask):
        mask, at = where(low, view, [i for i in indices if i is not None], user_mask)
        place = b.cast(at, u32)
        masked = (mask, fill) if mask is not None else (None, None)
        found += b.emit(metal.ThreadgroupLoad(buffer, place, *masked))
    return (tuple(found),)


def store_shared(low: Lowering, item: tile.Store, view: View) -> Lowered:
    """Each slot's value into declared memory, where the mask holds."""
    b, buffer = low.b, low.shared[item.tensor]
    for *indices, value, user_mask in low.rows(*item.indices, item.value, item.mask):
        assert value is not None
        mask, at = where(low, view, [i for i in indices if i is not None], user_mask)
        if not any(map(differs, item.operands())):
            # One address and one value: one thread is enough.
            mask = b.both(mask, b.compare_number(CompareKind.EQ, b.thread, 0))
        if mask is None or b.number(mask) != 0:
            b.emit(metal.ThreadgroupStore(buffer, b.cast(at, u32), value, mask))
    return ()


def _sync(low: Lowering, item: Sync) -> Lowered:
    low.b.emit(ThreadSync("declared"))
    return ()


LANES: Rules = {
    ThreadId: _thread_id,
    LaneReduce: _lane_reduce,
    LaneShuffle: _lane_shuffle,
    Shared: _shared,
    Sync: _sync,
}
