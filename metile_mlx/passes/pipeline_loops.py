"""Loops that hand operands to products become software pipelines (SPEC P1, P2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metile_mlx.context import Context
from metile_mlx.dtypes import DType, i32
from metile_mlx.errors import Loc, OutOfResources
from metile_mlx.ir.cloning import cloned
from metile_mlx.ir.core import Block, Builder, Func, Op, Value, walk
from metile_mlx.ir.loops import For
from metile_mlx.ir.matrix import Operand
from metile_mlx.ir.pipeline import Buffer, SoftwarePipeline
from metile_mlx.ir.planned import Barrier, Scratch
from metile_mlx.ir.rewrite import rewrite
from metile_mlx.ir.tile import Yield
from metile_mlx.ir.types import ScalarType, TileType
from metile_mlx.layout.banks import spread
from metile_mlx.passes.loop_parts import Parts, candidates
from metile_mlx.passes.pipeline_report import declined, described
from metile_mlx.passes.plan_operands import (
    decode,
    handed_over,
    in_turn_bytes,
    load_operand,
    store_operand,
)
from metile_mlx.passes.plan_reductions import partial_bytes
from metile_mlx.report import Allocation
from metile_mlx.target import LANE_BITS

SLOTS = {False: 1, True: 2}
"""Of a pipeline, with and without Schedule(double_buffer=True)."""


def pipeline_loops(func: Func, ctx: Context) -> Func:
    """Loops whose tiles are loaded for products become pipelines of one slot. Stage.PLANNED.

    Taken is a loop that, besides arithmetic, loads tiles from arrays that are only read, at places
    that follow from its index, for products to which tile.operand hands them. Its other work, on
    what it carries, is done where the tiles are consumed. All else stays as it is. Appends a
    Pipeline to the report for each loop that hands operands over, with the reason if it stays, and
    an Allocation per tile.

    Raises:
        OutOfResources: two slots (Schedule(double_buffer=True)) are more than threadgroup memory.
    """
    found = candidates(func)
    taken = _fitting(func, ctx, found)
    if ctx.schedule.double_buffer and not found:
        ctx.report.pipelines.append(declined(func.loc, _why_none(func, ctx)))
    if not taken:
        return func
    hoisted = Builder(func.loc)
    bodies = {loop.index: parts for loop, parts in taken.items()}

    def rule(item: Op, b: Builder) -> Sequence[Value] | None:
        if not isinstance(item, For) or item.index not in bodies:
            return None
        number = sum(isinstance(op, Scratch) for op in hoisted.ops)
        made = _Writer(item, bodies[item.index], hoisted, number, ctx).pipeline()
        ctx.report.pipelines.append(described(made))
        b.ops.append(made)
        return item.results

    made = rewrite(func, rule)
    return made.with_body(Block((*hoisted.ops, *made.body.ops), made.body.args))


def pipeline_bytes(func: Func, ctx: Context) -> int:
    """Threadgroup memory that operands will ask for: of pipelines, and of all others in turn."""
    found = candidates(func)
    chosen = {loop: parts for loop, parts in found.items() if isinstance(parts, Parts)}
    slots = SLOTS[ctx.schedule.double_buffer]
    if slots == 1:
        room = ctx.target.threadgroup_bytes - partial_bytes(func)
        chosen = _affordable(func, chosen, slots, room)
    return _bytes(func, chosen, slots)


def _affordable(func: Func, taken: Mapping[For, Parts], slots: int, room: int) -> dict[For, Parts]:
    """As many of the loops, from the first on, as have room."""
    kept = dict(taken)
    while kept and _bytes(func, kept, slots) > room:
        kept.popitem()
    return kept


def _bytes(func: Func, taken: Mapping[For, Parts], slots: int) -> int:
    own = sum(_size(parts) for parts in taken.values())
    inside = {id(item) for loop in taken for item in loop.body.ops}
    others = [i for i in walk(func.body) if isinstance(i, Operand) and id(i) not in inside]
    return own * slots + in_turn_bytes(others)


def _size(parts: Parts) -> int:
    return sum(wire.bytes * elements for wire, elements in parts.wires)


def _fitting(func: Func, ctx: Context, found: Mapping[For, Parts | str]) -> dict[For, Parts]:
    """The loops that become pipelines; says of all others why they don't.

    Raises:
        OutOfResources: as `pipeline_loops`.
    """
    taken: dict[For, Parts] = {}
    for loop, parts in found.items():
        if isinstance(parts, Parts):
            taken[loop] = parts
        else:
            ctx.report.pipelines.append(declined(loop.loc, parts))
    slots = SLOTS[ctx.schedule.double_buffer]
    other = partial_bytes(func) + sum(
        item.elements * item.dtype.bytes for item in walk(func.body) if isinstance(item, Scratch)
    )
    kept = _affordable(func, taken, slots, ctx.target.threadgroup_bytes - other)
    if slots > 1 and kept.keys() != taken.keys():
        raise _too_large(taken, other, ctx)
    for loop, parts in taken.items():
        if loop not in kept:
            why = f"its tiles need {_size(parts)} bytes of threadgroup memory, more than is left"
            ctx.report.pipelines.append(declined(loop.loc, why))
    return kept


def _too_large(taken: Mapping[For, Parts], other: int, ctx: Context) -> OutOfResources:
    """Two slots of everything are too much: each buffer, and which phase fills which slot."""
    parts = [
        f"'{value.name}' of line {each.loc.line}: 2 slots of {elements} x {wire} = "
        f"{2 * elements * wire.bytes} (slot 0 filled by phase first, the free one by steady)"
        for each, found in taken.items()
        for value, (wire, elements) in zip(found.tiles, found.wires, strict=True)
    ]
    total = sum(2 * _size(found) for found in taken.values()) + other
    rest = [f"conversions and reductions: {other}"] if other else []
    return OutOfResources(
        f"[dot] Schedule(double_buffer=True) needs {total} bytes of threadgroup memory, "
        f"{ctx.target.name} has {ctx.target.threadgroup_bytes}: {'; '.join([*parts, *rest])}",
        next(iter(taken)).loc,
        "use smaller tiles or a narrower dtype, or double_buffer=False",
    )


def _why_none(func: Func, ctx: Context) -> str:
    if ctx.target.language == "cpp":
        return "on a CPU products read whole tiles: no operand is handed over"
    if ctx.schedule.staging == "device":
        return "with staging='device' each simdgroup loads its own operands: none is handed over"
    if any(isinstance(item, Operand) for item in walk(func.body)):
        return "products stand in no loop"
    return "no loop hands operands to products"


class _Writer:
    """Writes one loop as a pipeline."""

    def __init__(
        self, loop: For, parts: Parts, hoisted: Builder, number: int, ctx: Context
    ) -> None:
        self.loop = loop
        self.parts = parts
        self.ctx = ctx
        wires = zip(parts.tiles, parts.wires, strict=True)
        self.buffers = [_buffer(parts, value, wire) for value, wire in wires]
        self.storage: list[Value] = []
        hoisted.loc = loop.loc
        for position, buffer in enumerate(self.buffers):
            slot = f"pipeline_{number + position}"
            self.storage.append(hoisted.add(Scratch(buffer.dtype, buffer.elements, slot), slot))
            size = buffer.elements * buffer.dtype.bytes
            fact = Allocation(slot, str(buffer.dtype), buffer.elements, size)
            ctx.report.allocations.append(fact)

    def pipeline(self) -> SoftwarePipeline:
        loop = self.loop
        k, ahead, slot, free = (_number(name) for name in ("k", "ahead", "slot", "free"))
        b = Builder(loop.loc)
        self.copy(b, {loop.index: ahead}, free)
        b.emit(Barrier("publish"))
        yields = self.consume(b, {loop.index: k}, slot)
        b.emit(Barrier("release"))
        b.emit(Yield(yields))
        args = (k, ahead, slot, free, *loop.carried)
        return SoftwarePipeline(
            loop.start,
            loop.end,
            loop.step,
            loop.inits,
            tuple(self.storage),
            tuple(self.buffers),
            slots=1,
            first=_empty(loop.loc),
            steady=b.block(args),
            last=_empty(loop.loc, *loop.carried),
            results=loop.results,
            loc=loop.loc,
        )

    def copy(self, b: Builder, mapping: dict[Value, Value], stage: Value) -> None:
        """Load the tiles of one step, and store them to a slot."""
        b.ops += cloned(self.parts.copies, mapping)
        for value, memory, buffer in zip(self.parts.tiles, self.storage, self.buffers, strict=True):
            store_operand(b, memory, mapping.get(value, value), buffer.order, stage)

    def consume(self, b: Builder, mapping: dict[Value, Value], stage: Value) -> tuple[Value, ...]:
        """All else that the loop does in a step; what it carries on."""
        b.ops += cloned(self.parts.shared, mapping)
        where = zip(self.storage, self.buffers, strict=True)
        places = dict(zip(self.parts.tiles, where, strict=True))
        for item in self.parts.uses:
            if isinstance(item, Operand):
                memory, buffer = places[item.src]
                loaded = load_operand(b, memory, item, buffer.order, stage)
                type_ = item.src.type
                assert isinstance(type_, TileType)
                mapping[item.result] = decode(b, loaded, type_.dtype)
                handed_over(item, self.ctx, memory.name, 0)
            else:
                b.ops.append(item.with_operands(mapping))
        return tuple(mapping.get(value, value) for value in self.loop.yields)


def _buffer(parts: Parts, value: Value, wire: tuple[DType, int]) -> Buffer:
    """Memory of a tile, in an order in which neither copies nor products wait for banks."""
    dtype, elements = wire
    assert isinstance(value.type, TileType)
    read = [i.layout.map for i in parts.uses if isinstance(i, Operand) and i.src is value]
    lanes = [owned.columns[:LANE_BITS] for owned in (value.type.owners.map, *read)]
    return Buffer(dtype, elements, spread(elements.bit_length() - 1, lanes, dtype.bytes))


def _number(name: str) -> Value:
    return Value(ScalarType(i32), name)


def _empty(loc: Loc, *carried: Value) -> Block:
    """A phase that does nothing."""
    args = [Value(value.type, value.name, value.loc) for value in carried]
    return Block((Yield(loc=loc),), (_number("k"), _number("slot"), *args))
