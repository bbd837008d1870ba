"""Choose how each layout conversion communicates, and write the communication out (SPEC C1-C3)."""

from __future__ import annotations

from metile_mlx.context import Context
from metile_mlx.dtypes import DType, bf16, bool_, u16, u32
from metile_mlx.errors import CompileError, UnsupportedError
from metile_mlx.ir.core import Builder, Func, Op, Value
from metile_mlx.ir.planned import Barrier, Scratch, ScratchLoad, ScratchStore, Shuffle
from metile_mlx.ir.rewrite import rewrite
from metile_mlx.ir.tile import Bitcast, Cast, Convert
from metile_mlx.ir.types import TileType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout, transition
from metile_mlx.report import Allocation, LayoutConversion, place

LANE_BITS = 5
"""Index bits of a lane within its simdgroup."""

WIRE = {bool_: u32, bf16: u16}
"""How a dtype travels between threads, where not as itself (SPEC C3)."""


def plan_conversions(func: Func, ctx: Context) -> Func:
    """Replace every tile.convert by its communication. Stage.OWNED to Stage.PLANNED.

    With M the map from a destination slot to the source slot that holds its element: M the identity
    forwards the value; M within each simdgroup is a shuffle; any other M stores to scratch, meets
    at a barrier, loads, and meets again so that the scratch may be reused. Nothing else is touched.
    Appends a LayoutConversion per conversion and an Allocation per scratch to the report.

    Raises:
        CompileError: the schedule forbids what a conversion needs (SPEC C5).
        UnsupportedError: values change threads or registers in tiles of several per thread (C6).
    """
    return rewrite(func, _Planner(ctx).rule)


class _Planner:
    """One kernel's scratch: a buffer per dtype that travels, made where it is first needed."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.buffers: dict[DType, Value] = {}

    def rule(self, item: Op, b: Builder) -> Value | None:
        if not isinstance(item, Convert):
            return None
        assert isinstance(item.src.type, TileType)
        assert item.src.type.layout is not None
        lanes = transition(item.src.type.layout, item.layout)
        wire = WIRE.get(item.src.type.dtype, item.src.type.dtype)
        if lanes.is_identity:
            self._report(item, "unchanged")
            return item.src
        if item.layout.elements_per_thread > 1:
            registers = item.layout.elements_per_thread
            raise UnsupportedError(
                f"[convert_layout] {_change(item)} moves values of tiles with {registers} elements "
                "per thread, which is not supported yet",
                item.loc,
                "load the tile with the layout that the later operations need",
            )
        if self._fits_shuffle(item, lanes):
            self._report(item, "shuffle", lane_rule=lane_rule(lanes.low(LANE_BITS)))
            moved = b.add(Shuffle(_encode(item.src, wire, item, b), item.layout, lanes))
        else:
            buffer = self._scratch(item, wire, b)
            self._report(item, "threadgroup", scratch=buffer.name, barriers=2)
            moved = _exchange(item, buffer, wire, lanes, b)
        return _decode(moved, item.src.type.dtype, b)

    def _fits_shuffle(self, item: Convert, lanes: AffineMap) -> bool:
        """Whether this conversion stays within simdgroups, as the schedule wants it to."""
        wanted = self.ctx.schedule.conversion
        local = lanes.preserves_bits_from(LANE_BITS)
        if wanted == "shuffle" and not local:
            raise CompileError(
                f"[convert_layout] Schedule(conversion='shuffle'): {_change(item)} crosses "
                "simdgroups, and a shuffle does not",
                item.loc,
                "use conversion='auto', which takes threadgroup memory where it must",
            )
        shuffles = local and wanted != "scratch"
        if not shuffles and self.ctx.schedule.staging == "device":
            raise CompileError(
                f"[convert_layout] Schedule(staging='device'): {_change(item)} needs an exchange "
                "through threadgroup memory",
                item.loc,
                "use staging=None or 'threadgroup', or layouts that agree on the simdgroup of "
                "every element",
            )
        return shuffles

    def _scratch(self, item: Convert, wire: DType, b: Builder) -> Value:
        if wire not in self.buffers:
            slot = f"scratch_{wire}"
            made = Scratch(wire, item.layout.size, slot)
            self.buffers[wire] = b.add(made, slot)
            self.ctx.report.allocations.append(
                Allocation(slot, str(wire), made.elements, made.elements * wire.bytes)
            )
        return self.buffers[wire]

    def _report(
        self,
        item: Convert,
        mechanism: str,
        scratch: str | None = None,
        lane_rule: str | None = None,
        barriers: int = 0,
    ) -> None:
        assert isinstance(item.src.type, TileType)
        self.ctx.report.layout_conversions.append(
            LayoutConversion(
                item.src.name,
                item.result.name,
                str(item.src.type.dtype),
                repr(item.src.type.layout),
                repr(item.layout),
                mechanism,
                place(item.loc),
                scratch,
                lane_rule,
                barriers,
            )
        )


def _exchange(item: Convert, buffer: Value, wire: DType, slots: AffineMap, b: Builder) -> Value:
    """Every slot publishes its element, then takes the one its new layout gives it."""
    assert isinstance(item.src.type, TileType)
    value = _encode(item.src, wire, item, b)
    b.emit(ScratchStore(buffer, value, AffineMap.identity(slots.bits)))
    b.emit(Barrier("publish"))
    loaded = b.add(ScratchLoad(buffer, item.src.type.shape, item.layout, slots))
    b.emit(Barrier("release"))
    return loaded


def _encode(src: Value, wire: DType, item: Convert, b: Builder) -> Value:
    assert isinstance(src.type, TileType)
    if src.type.dtype == wire:
        return src
    name = f"{item.result.name}_wire" if item.result.name else ""
    return b.add(Cast(src, wire) if src.type.dtype == bool_ else Bitcast(src, wire), name)


def _decode(moved: Value, dtype: DType, b: Builder) -> Value:
    assert isinstance(moved.type, TileType)
    if moved.type.dtype == dtype:
        return moved
    return b.add(Cast(moved, dtype) if dtype == bool_ else Bitcast(moved, dtype))


def lane_rule(lanes: AffineMap) -> str:
    """The source lane of a shuffle as text: `lane = bits (1, 0, 2, 3, 4) of lane ^ 3`.

    `bits (...)` lists, lowest first, which bit of the lane each bit of the source lane is; the XOR
    comes last. A lane that only changes by the XOR reads `lane = lane ^ 3`.
    """
    source = "lane"
    if lanes.columns != AffineMap.identity(lanes.bits).columns:
        source = f"bits {lanes.bit_order} of lane"
    return f"lane = {source}{f' ^ {lanes.constant}' if lanes.constant else ''}"


def _change(item: Convert) -> str:
    assert isinstance(item.src.type, TileType)
    source: ThreadLayout | None = item.src.type.layout
    name = f"'{item.src.name}'" if item.src.name else "the value"
    return f"{name} from {source!r} to {item.layout!r}"
