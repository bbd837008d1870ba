"""How planned reductions become one thread's program: registers, lanes, simdgroups (SPEC R2).

What is combined here is never folded or simplified: verify/reductions.py counts every part.
"""

from __future__ import annotations

from collections.abc import Sequence

from metile_mlx.dtypes import u16
from metile_mlx.ir import metal, planned, stated
from metile_mlx.ir.arith import COMBINE, BinaryKind, CombineKind, CompareKind, element, identity
from metile_mlx.ir.core import Value
from metile_mlx.ir.types import ScratchType, TileType
from metile_mlx.passes.axis_bits import AxisBits, axis_bits
from metile_mlx.passes.lane_builder import LaneBuilder
from metile_mlx.passes.lowering import Lowered, Lowering, Slots
from metile_mlx.target import LANE_BITS, SIMD_WIDTH


def reduce(low: Lowering, item: planned.Reduce) -> Lowered:
    """The totals of each register slot, or the one total of the tile."""
    return (_Axis(low, item).lower(),) if item.axis is not None else ((_whole(low, item),),)


def _whole(low: Lowering, item: planned.Reduce) -> Value:
    """Registers, then lanes, then the partial of each simdgroup, which all simdgroups read (R2)."""
    b, name = low.b, item.result.name
    local = _tree(b, item.kind, low.slots[item.src], name)
    if item.scratch is None:
        return _simd(b, item.kind, local, uniform=True)
    buffer = low.scalar(item.scratch)
    partial = _simd(b, item.kind, local, f"{name}_partial" if name else "")
    lane, group = _lane(b), b.with_number(BinaryKind.SHR, b.thread, LANE_BITS)
    _name(group, "simdgroup")
    first = b.compare_number(CompareKind.EQ, lane, 0)
    _name(first, "is_first_lane")
    b.emit(metal.ThreadgroupStore(buffer, group, partial, first))
    b.emit(metal.Barrier("publish"))
    published = _published(b, item.kind, buffer, lane, low.func.threads // SIMD_WIDTH)
    _release(b, item)
    return _simd(b, item.kind, published, uniform=True)


def _published(b: LaneBuilder, kind: CombineKind, buffer: Value, at: Value, count: int) -> Value:
    """A partial in each of the first `count` lanes, in the others what combining ignores."""
    present = b.compare_number(CompareKind.LT, _lane(b), count)
    if b.number(present) == 1:
        (published,) = b.emit(metal.ThreadgroupLoad(buffer, at))
    else:
        _name(present, "has_partial")
        assert isinstance(buffer.type, ScratchType)
        dtype = buffer.type.dtype
        nothing = b.constant(identity(kind, dtype), dtype)
        (published,) = b.emit(metal.ThreadgroupLoad(buffer, at, present, nothing))
    _name(published, "published")
    return published


def _release(b: LaneBuilder, item: planned.Reduce) -> None:
    """All have read the partials, so that the next iteration may write there."""
    if item.release:
        b.emit(metal.Barrier("release"))


class _Axis:
    """One reduction along an axis: a value per row and thread, each combined step by step."""

    def __init__(self, low: Lowering, item: planned.Reduce) -> None:
        assert isinstance(item.src.type, TileType)
        assert item.axis is not None
        self.low = low
        self.b = low.b
        self.item = item
        self.kind = item.kind
        self.tile = item.src.type
        self.layout = item.src.type.owners
        self.axis = item.axis
        self.bits = axis_bits(self.layout, self.tile.shape, self.axis)

    def lower(self) -> Slots:
        sources = self.low.slots[self.item.src]
        # By register: the value of the rows this slot belongs to.
        rows = dict(enumerate(sources))
        for bit in self.bits.registers:
            rows = {
                r: self._combine(value, rows[r | 1 << bit])
                for r, value in rows.items()
                if not r >> bit & 1
            }
        reduced = self._simdgroups(self._lanes(list(rows.values()), self._is_alone()))
        totals = dict(zip(rows, reduced, strict=True))
        chosen = sum(1 << bit for bit in self.bits.other_registers)
        found = tuple(totals[register & chosen] for register in range(len(sources)))
        stated_ = stated.AxisReduction(
            self.kind, sources, found, self.tile.shape, self.axis, self.layout
        )
        self.b.emit(stated_)
        return found

    def _is_alone(self) -> bool:
        """Whether the threadgroup is one simdgroup."""
        return self.low.func.threads == SIMD_WIDTH

    def _combine(self, a: Value, c: Value) -> Value:
        return _combined(self.b, self.kind, a, c, self._named("local"))

    def _named(self, what: str) -> str:
        return f"{self.item.result.name}_{what}" if self.item.result.name else ""

    def _lanes(self, values: list[Value], uniform: bool) -> list[Value]:
        """Each value combined over the lanes of its row."""
        lanes = self.bits.lanes
        if len(lanes) == LANE_BITS:
            name = self._named("total" if uniform or not self.bits.groups else "partial")
            return [_simd(self.b, self.kind, value, name, uniform) for value in values]
        return self._butterflies(values, lanes)

    def _butterflies(self, values: list[Value], lanes: Sequence[int]) -> list[Value]:
        """Partners exchange and combine, one lane bit after the other; rows side by side."""
        b = self.b
        for bit in lanes:
            partner = b.cast(b.with_number(BinaryKind.XOR, _lane(b), 1 << bit), u16)
            _name(partner, f"lane_xor_{1 << bit}")
            moved = [b.emit(metal.Shuffle(value, partner))[0] for value in values]
            pairs = zip(values, moved, strict=True)
            values = [_combined(b, self.kind, *pair, self._named("row")) for pair in pairs]
        return values

    def _simdgroups(self, values: list[Value]) -> list[Value]:
        """Each simdgroup publishes its part of each row, and reads all parts of its own rows."""
        if self.item.scratch is None:
            return values
        b, bits = self.b, self.bits
        buffer = self.low.scalar(self.item.scratch)
        held = sum(1 << bit for bit in bits.lanes)
        mask = None
        if held:
            mask = b.compare_number(
                CompareKind.EQ, b.with_number(BinaryKind.AND, b.thread, held), 0
            )
            _name(mask, "is_first_of_row")
        places = _Places(self.low, bits)
        for number, value in enumerate(values):
            b.emit(metal.ThreadgroupStore(buffer, places.written(number), value, mask))
        b.emit(metal.Barrier("publish"))
        if len(bits.lanes) == LANE_BITS:
            count = 1 << len(bits.groups)
            ats = [places.read(number, 0) for number in range(len(values))]
            parts = [_published(b, self.kind, buffer, at, count) for at in ats]
            _release(b, self.item)
            return self._lanes(parts, not bits.other_groups)
        return self._gathered(buffer, places, len(values))

    def _gathered(self, buffer: Value, places: _Places, count: int) -> list[Value]:
        """The lanes of a row share the loads; what more parts there are each lane loads itself."""
        b, rows = self.b, []
        for number in range(count):
            parts: list[Value] = []
            for step in range(1 << places.rest):
                at = places.read(number, step)
                parts += b.emit(metal.ThreadgroupLoad(buffer, at), ("published",))
            rows.append(tuple(parts))
        _release(b, self.item)
        found = [_tree(b, self.kind, row, self.item.result.name) for row in rows]
        return self._butterflies(found, self.bits.lanes[: places.shared])


class _Places:
    """Where the partials lie, lowest bit first: lane, simdgroups of the row, other ones, register.

    Neighbouring lanes write neighbours, and read neighbours or the same.

    Attributes:
        shared: bits of the row's simdgroups that its lanes divide among them.
        rest: the others; each lane reads 2**rest partials.
    """

    def __init__(self, low: Lowering, bits: AxisBits) -> None:
        self._b = low.b
        self._bits = bits
        self.shared = min(len(bits.lanes), len(bits.groups))
        self.rest = len(bits.groups) - self.shared
        self._row = len(bits.other_lanes)
        self._registers = self._row + len(bits.groups) + len(bits.other_groups)

    def written(self, number: int) -> Value:
        """The element that a thread's simdgroup publishes of its row `number`."""
        columns = self._columns()
        for place, bit in enumerate(self._bits.groups):
            columns[LANE_BITS + bit] = 1 << self._row + place
        return self._b.thread_map(columns, number << self._registers)

    def read(self, number: int, step: int) -> Value:
        """The element a lane reads in one of its 2**rest steps."""
        columns = self._columns()
        for place, bit in enumerate(self._bits.lanes[: self.shared]):
            columns[bit] = 1 << self._row + place
        constant = number << self._registers | step << self._row + self.shared
        return self._b.thread_map(columns, constant)

    def _columns(self) -> list[int]:
        """The images of the thread bits that tell rows apart."""
        columns = [0] * self._b.forms.width
        for place, bit in enumerate(self._bits.other_lanes):
            columns[bit] = 1 << place
        first = self._row + len(self._bits.groups)
        for place, bit in enumerate(self._bits.other_groups):
            columns[LANE_BITS + bit] = 1 << first + place
        return columns


def _simd(
    b: LaneBuilder, kind: CombineKind, value: Value, name: str = "", uniform: bool = False
) -> Value:
    return b.emit(metal.SimdReduce(kind, value, uniform), (name,))[0]


def _lane(b: LaneBuilder) -> Value:
    lane = b.with_number(BinaryKind.AND, b.thread, SIMD_WIDTH - 1)
    _name(lane, "lane")
    return lane


def _tree(b: LaneBuilder, kind: CombineKind, slots: Slots, name: str) -> Value:
    """The register slots combined, neighbours first: a balanced tree."""
    local = f"{name}_local" if name else ""
    while len(slots) > 1:
        pairs = zip(slots[::2], slots[1::2], strict=True)
        slots = tuple(_combined(b, kind, lhs, rhs, local) for lhs, rhs in pairs)
    return slots[0]


def _combined(b: LaneBuilder, kind: CombineKind, a: Value, c: Value, name: str) -> Value:
    assert element(a) == element(c)
    return b.emit(metal.Binary(COMBINE[kind], a, c), (name,))[0]


def _name(value: Value, name: str) -> None:
    value.name = value.name or name
