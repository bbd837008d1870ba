"""Choose how each layout conversion communicates, and write the communication out (SPEC C1-C6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metile_mlx.context import Context
from metile_mlx.dtypes import DType, bf16, bool_, u16, u32
from metile_mlx.ir.core import Builder, Func, Op, Value, walk
from metile_mlx.ir.planned import Barrier, Choose, Scratch, ScratchLoad, ScratchStore, Shuffle
from metile_mlx.ir.rewrite import rewrite
from metile_mlx.ir.tile import Bitcast, Cast, Convert
from metile_mlx.ir.types import TileType
from metile_mlx.layout.exchange import Memory, exchanges
from metile_mlx.layout.steps import Choice, Exchange, Lanes, Round
from metile_mlx.layout.thread_layout import ThreadLayout, transition
from metile_mlx.passes.conversion_choice import Chosen, choose, report
from metile_mlx.passes.pipeline_loops import pipeline_bytes
from metile_mlx.passes.plan_reductions import partial_bytes
from metile_mlx.report import Allocation
from metile_mlx.target import Target

WIRE = {bool_: u32, bf16: u16}
"""How a dtype travels between threads, where not as itself (SPEC C3)."""


def plan_conversions(func: Func, ctx: Context) -> Func:
    """Replace every tile.convert by its communication. Stage.OWNED to Stage.PLANNED.

    `layout/exchange.py` knows how values can travel, `layout/costs.py` what that costs; the
    schedule may forbid some of it. The scratch of a dtype serves all conversions of that dtype. All
    of it, and the memory of reductions and operands, fit into the threadgroup's: where they would
    not, the conversions of the largest scratch make more rounds. Nothing else is touched.
    Appends a LayoutConversion per conversion and an Allocation per scratch to the report.

    Raises:
        CompileError: the schedule forbids what a conversion needs (SPEC C5).
    """
    conversions = [item for item in walk(func.body) if isinstance(item, Convert)]
    if not conversions:
        return func
    planner = _Planner(func, conversions, ctx)
    return rewrite(func, planner.rule)


@dataclass(frozen=True)
class Survey:
    """What the planner would make of a program.

    Attributes:
        capacities: bytes of scratch that conversions of each dtype that travels are planned with.
        barriers: of all conversions, each as often as its rounds ask for.
    """

    capacities: Mapping[DType, int]
    barriers: int


def survey(func: Func, ctx: Context) -> Survey:
    """Plan without writing anything.

    Raises:
        CompileError: as `plan_conversions`.
    """
    conversions = [item for item in walk(func.body) if isinstance(item, Convert)]
    planner = _Planner(func, conversions, ctx)
    exchanges = [plan.exchange for plan in planner.plans.values()]
    return Survey(planner.caps, sum(x.cost.barriers for x in exchanges if x is not None))


def memory(wire: DType, bytes_: int, target: Target) -> Memory:
    """Scratch of so many bytes; the C++ of a CPU has no banks."""
    return Memory(wire.bytes, bytes_ // wire.bytes, banks=target.language != "cpp")


class _Planner:
    """One kernel's conversions and scratch: a buffer per dtype, made where it is first needed."""

    def __init__(self, func: Func, conversions: list[Convert], ctx: Context) -> None:
        self.ctx = ctx
        self.threads = func.threads
        self.buffers: dict[DType, Value] = {}
        self.sizes: dict[DType, int] = {}
        self.plans: dict[Value, Chosen] = {}
        reserved = partial_bytes(func) + pipeline_bytes(func, ctx)
        budget = ctx.target.threadgroup_bytes - reserved
        self._plan(conversions, budget)

    def _plan(self, conversions: list[Convert], budget: int) -> None:
        """Choose every lowering, with less memory for the largest scratch until all fit."""
        least = {wire: self.threads * wire.bytes for wire in map(_wire, conversions)}
        self.caps = caps = {wire: max(budget, bytes_) for wire, bytes_ in least.items()}
        while True:
            self.sizes = dict.fromkeys(caps, 0)
            for item in conversions:
                wire = _wire(item)
                chosen = self._choose(item, wire, caps[wire])
                self.plans[item.result] = chosen
                if chosen.exchange is not None:
                    self.sizes[wire] = max(self.sizes[wire], chosen.exchange.elements)
            used = {wire: elements * wire.bytes for wire, elements in self.sizes.items()}
            shrinking = [wire for wire in used if used[wire] > least[wire]]
            if sum(used.values()) <= budget or not shrinking:
                return
            largest = max(shrinking, key=lambda wire: used[wire])
            caps[largest] = max(used[largest] // 2, least[largest])

    def _choose(self, item: Convert, wire: DType, cap: int) -> Chosen:
        source = _layout(item.src)
        moves = transition(source, item.layout)
        if moves.is_identity:
            return Chosen(None, (), "source and destination have the same owners")
        found = exchanges(moves, self.threads, memory(wire, cap, self.ctx.target))
        return choose(item, found, self.ctx.schedule)

    def rule(self, item: Op, b: Builder) -> Value | None:
        if not isinstance(item, Convert):
            return None
        chosen = self.plans[item.result]
        wire = _wire(item)
        exchange = chosen.exchange
        if exchange is None:
            self.ctx.report.layout_conversions.append(report(item, chosen, None))
            return item.src
        buffer = self._scratch(wire, b) if exchange.rounds else None
        name = None if buffer is None else buffer.name
        self.ctx.report.layout_conversions.append(report(item, chosen, name))
        value = _encode(item.src, wire, item, b)
        moved = _Writer(item, exchange, buffer, b).write(value)
        return _decode(moved, _dtype(item.src), b)

    def _scratch(self, wire: DType, b: Builder) -> Value:
        if wire not in self.buffers:
            slot = f"scratch_{wire}"
            made = Scratch(wire, self.sizes[wire], slot)
            self.buffers[wire] = b.add(made, slot)
            self.ctx.report.allocations.append(
                Allocation(slot, str(wire), made.elements, made.elements * wire.bytes)
            )
        return self.buffers[wire]


@dataclass
class _Writer:
    """Writes one exchange out; its last step makes a tile of the destination layout."""

    item: Convert
    exchange: Exchange
    buffer: Value | None
    b: Builder

    def write(self, value: Value) -> Value:
        x = self.exchange
        self.left = len(x.before) + len(x.local) + len(x.rounds) + len(x.after)
        for choice in x.before:
            value = self._step(value, choice)
        current = value
        for step in x.local:
            current = self._step(current, step)
        for each in x.rounds:
            current = self._round(value, current, each)
        for choice in x.after:
            current = self._step(current, choice)
        return current

    def _layout(self) -> ThreadLayout | None:
        self.left -= 1
        return None if self.left else self.item.layout

    def _step(self, value: Value, step: Choice | Lanes) -> Value:
        layout = self._layout()
        if isinstance(step, Choice):
            return self.b.add(Choose(value, layout, step.bit, step.registers))
        return self.b.add(Shuffle(value, layout, step.moves, self._some(step.registers)))

    def _round(self, value: Value, base: Value, each: Round) -> Value:
        """The registers of `value` that travel in this round, in place of those of `base`."""
        assert self.buffer is not None
        layout = self._layout()
        assert isinstance(self.item.src.type, TileType)
        shape, registers = self.item.src.type.shape, self._some(each.loaded)
        store = ScratchStore(self.buffer, value, each.writes, self._some(each.stored), each.skip)
        self.b.emit(store)
        self.b.emit(Barrier("publish"))
        kept = base if registers is not None or layout is None else None
        load = ScratchLoad(self.buffer, shape, layout, each.reads, registers, each.skip, kept)
        loaded = self.b.add(load)
        self.b.emit(Barrier("release"))
        return loaded

    def _some(self, registers: tuple[int, ...]) -> tuple[int, ...] | None:
        """None where it is all of them."""
        whole = self.item.layout.elements_per_thread
        return None if len(registers) == whole else registers


def _layout(value: Value) -> ThreadLayout:
    assert isinstance(value.type, TileType)
    return value.type.owners


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, TileType)
    return value.type.dtype


def _wire(item: Convert) -> DType:
    dtype = _dtype(item.src)
    return WIRE.get(dtype, dtype)


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
