"""Communication of the per-thread program: order, bounds, lanes, and that it is what was planned.

Addresses of threadgroup memory and lanes of shuffles are functions of the thread index; they are
evaluated here for every thread, so nothing about their form is assumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from metile_mlx.dtypes import u16, u32
from metile_mlx.ir import metal, planned
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.lanes import RAW
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.matrix import FragmentMultiply
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.ir.stated import AxisReduction
from metile_mlx.ir.types import ScratchType, SlotsType, TileType
from metile_mlx.layout.affine import AffineMap, Indices
from metile_mlx.target import SIMD_WIDTH
from metile_mlx.verify.axis_reductions import cones
from metile_mlx.verify.conversions import images, wires
from metile_mlx.verify.correspondence import check_contents
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.order import declared
from metile_mlx.verify.reductions import partials
from metile_mlx.verify.scratch import WIRE_DTYPES, ScratchOrder
from metile_mlx.verify.structure import is_threaded
from metile_mlx.verify.thread_values import thread_values

_TOGETHER = (
    metal.ThreadgroupAlloc,
    metal.ThreadgroupStore,
    metal.ThreadgroupLoad,
    metal.Barrier,
    metal.Shuffle,
    metal.SimdReduce,
    AxisReduction,
)

_PLANNED = (
    planned.Reduce,
    planned.ScratchStore,
    planned.ScratchLoad,
    planned.Barrier,
    planned.Shuffle,
)

_SPOKEN_OF = frozenset({*_TOGETHER, metal.If, ThreadFor})


@dataclass(frozen=True)
class Event:
    """One step of communication. `table`: what each thread addresses, as bytes of int64.

    Where a loop takes turns, in each of them. `phase`: of a pipeline, for findings.
    """

    op: Op
    kind: str
    subject: str = ""
    table: bytes = b""
    phase: str = ""

    def matches(self, other: Event) -> bool:
        return (self.kind, self.subject, self.table) == (other.kind, other.subject, other.table)


def check_communication(func: Func, before: Func | None, full: bool = True) -> list[Finding]:
    """All faults of a Stage.THREAD program; `before` is planned or per-thread itself.

    Which value is sent is asked of register tiles, and if `full` of all.
    """
    walker = _walked(func)
    if before is None:
        return list(walker.findings)
    if is_threaded(before):
        # What they send is among what verify/kept.py compares.
        return list(walker.findings) or _compare(_walked(before).events, walker.events)
    # A fault that the program alone shows has a place in the planned one.
    findings = [*walker.findings, *_compare(_planned_events(before), walker.events)]
    if findings or not (full or _sends_registers(before)):
        return findings
    return check_contents(func, walker.values, before)


def _sends_registers(func: Func) -> bool:
    """Whether a planned program moves tiles of several values per thread."""
    for item in func.body.ops:
        if isinstance(item, planned.ScratchStore | planned.Shuffle):
            moved = item.value if isinstance(item, planned.ScratchStore) else item.src
            assert isinstance(moved.type, TileType | SlotsType)
            if moved.type.size > func.threads:
                return True
    return False


@lru_cache(maxsize=4)
def _walked(func: Func) -> _Threads:
    """The finished walk; remembered because the program after one step is that before the next."""
    walker = _Threads(func)
    walker.run()
    return walker


class _Threads:
    """The walk over one program."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.values = thread_values(func)
        # Not of conversions: what reductions use, and what the user has declared.
        self.declared = declared(func)
        self.partials = partials(func) | self.declared
        # What verify/axis_reductions.py looks at, and the memory of each statement.
        self.stated = frozenset(op for cone in cones(func) for op in cone.ops)
        self.rows_scratch = {cone.item: self._slots(cone.buffers) for cone in cones(func)}
        self.has_products = any(isinstance(i, FragmentMultiply) for i in walk(func.body))
        # Of each piece of memory, its stages.
        self.memory: dict[Value, list[ScratchOrder]] = {}
        # In which turn each loop is.
        self.turns: dict[Op, int] = {}
        self.findings: list[Finding] = []
        self.events: list[Event] = []

    @property
    def orders(self) -> Iterator[ScratchOrder]:
        """All stages of all memory."""
        return (order for stages in self.memory.values() for order in stages)

    def run(self) -> None:
        self.block(self.func.body)
        for order in self.orders:
            self.findings += order.end()
        self.findings = list(dict.fromkeys(self.findings))

    def block(self, block: Block) -> None:
        for item in block.ops:
            if type(item) not in _SPOKEN_OF or item in self.stated:
                continue
            match item:
                case metal.ThreadgroupAlloc():
                    self.allocate(item)
                case metal.ThreadgroupStore() if item.buffer not in self.partials:
                    self.store(item)
                case metal.ThreadgroupLoad() if item.buffer not in self.partials:
                    self.load(item)
                case metal.SimdReduce(uniform=True) | AxisReduction():
                    self.event(item, "reduce", self.scratch_of(item))
                case metal.Barrier():
                    self.event(item, "barrier", item.role)
                    for order in self.orders:
                        self.findings += order.barrier(item.role)
                case metal.Shuffle():
                    self.shuffle(item)
                case metal.If() | ThreadFor():
                    self.nested(item)
                case _:
                    pass

    def _slots(self, buffers: Iterable[Value]) -> str:
        made = [self.values.made_by.get(buffer) for buffer in buffers]
        return ", ".join(sorted(i.slot for i in made if isinstance(i, metal.ThreadgroupAlloc)))

    def add(self, item: Op, message: str) -> None:
        if message:
            self.findings.append(Finding(item, message))

    def event(self, item: Op, kind: str, subject: str = "", table: Indices | None = None) -> None:
        """Note a step of communication, once for all turns."""
        if not any(self.turns.values()):
            self.events.append(
                Event(item, kind, subject, b"" if table is None else table.tobytes())
            )

    def nested(self, item: metal.If | ThreadFor) -> None:
        """Reductions may stand under conditions that verify/convergence.py proves; no exchange.

        Beside products, operands may be handed over there, too.
        """
        text = "stands under a condition, expected where every thread takes part"
        inside = [other for block in item.blocks() for other in walk(block)]
        communicates = [i for i in inside if isinstance(i, _TOGETHER) and not self.is_raw(i)]
        reduces = any(isinstance(i, metal.SimdReduce | AxisReduction) for i in communicates)
        for other in communicates:
            if not self.has_products and not (reduces and self.is_of_reduction(other)):
                self.add(other, text)
        if reduces or (self.has_products and communicates):
            for turn in range(self.values.turns(item) if isinstance(item, ThreadFor) else 1):
                self.turns[item] = turn
                for block in item.blocks():
                    self.event(item, "block")
                    self.block(block)
            # What is carried is then what it was in the beginning.
            self.turns[item] = 0

    def is_raw(self, item: Op) -> bool:
        """What the user has asked for, verify/convergence.py and verify/order.py check."""
        if isinstance(item, metal.ThreadgroupStore | metal.ThreadgroupLoad):
            return item.buffer in self.declared
        return isinstance(item, RAW)

    def is_of_reduction(self, item: Op) -> bool:
        match item:
            case metal.ThreadgroupStore() | metal.ThreadgroupLoad():
                return item.buffer in self.partials
            case metal.Shuffle():
                return item in self.stated
            case _:
                return isinstance(item, metal.SimdReduce | metal.Barrier | AxisReduction)

    def allocate(self, item: metal.ThreadgroupAlloc) -> None:
        if item.dtype not in WIRE_DTYPES:
            self.add(item, f"holds {item.dtype}, expected {wires()}")
        if any(item.slot == order.slot for order in self.orders):
            self.add(item, f"{item.slot} is allocated twice, expected one allocation per slot id")
        stages = 1 if item.stages is None else item.stages
        if stages < 1 or item.elements % stages:
            self.add(item, f"has {stages} stages of {item.elements} elements, expected alike")
            return
        size = item.elements // stages
        orders = [ScratchOrder(item.slot, item.dtype, size) for _ in range(stages)]
        self.memory[item.result] = orders

    def scratch_of(self, item: metal.SimdReduce | AxisReduction) -> str:
        """The slot id of the partials a total is made of."""
        if isinstance(item, AxisReduction):
            return self.rows_scratch[item]
        load = self.values.made_by.get(item.src)
        if not isinstance(load, metal.ThreadgroupLoad) or load.buffer not in self.partials:
            return ""
        stages = self.memory.get(load.buffer)
        return stages[0].slot if stages else ""

    def store(self, item: metal.ThreadgroupStore) -> None:
        order, table = self.access(item, item.buffer, item.index, "writes")
        if order is None:
            return
        if element(item.value) != order.dtype:
            self.add(item, f"stores {element(item.value)} to {order.slot} of {order.dtype}")
        if table is not None and np.bincount(table).max() > 1:
            self.add(item, f"two threads write one element of {order.slot}")
        self.add(item, order.store(item, table))

    def load(self, item: metal.ThreadgroupLoad) -> None:
        order, table = self.access(item, item.buffer, item.index, "reads")
        if order is not None:
            self.add(item, order.load(item, table))

    def shuffle(self, item: metal.Shuffle) -> None:
        dtype = element(item.src)
        if dtype not in WIRE_DTYPES:
            self.add(item, f"shuffles {dtype}, expected {wires()}")
        lanes = self.values.evaluate(item.lane)
        if lanes is None:
            self.add(item, "its lane is no function of the thread index")
            return
        if element(item.lane) != u16 or int(lanes.max()) >= SIMD_WIDTH:
            self.add(item, f"takes from lane {lanes.max()}, expected a u16 below {SIMD_WIDTH}")
        self.event(item, "shuffle", str(dtype), lanes)

    def access(
        self, item: Op, buffer: Value, index: Value, verb: str
    ) -> tuple[ScratchOrder | None, Indices | None]:
        """The accessed allocation and each thread's element, where they are known."""
        stages = self.memory.get(buffer)
        if not stages:
            self.add(item, f"accesses {buffer!r}, expected an allocation made before")
            return None, None
        table, loop = self.values.in_turns(index)
        if table is None or element(index) != u32:
            self.add(item, f"its index {index!r} is no u32 function of the thread index")
            return stages[0], None
        pitch, slot = stages[0].elements, stages[0].slot
        elements = pitch * len(stages)
        if int(table.max()) >= elements:
            self.add(item, f"{verb} element {table.max()} of {slot}, which has {elements}")
        self.event(item, "store" if verb == "writes" else "load", slot, table)
        here = table if loop is None else table[self.turns.get(loop, 0)]
        first = min(int(here[0]) // max(pitch, 1), len(stages) - 1)
        here = here - first * pitch
        if len(stages) > 1 and not ((here >= 0) & (here < pitch)).all():
            self.add(item, f"{verb} elements of several stages of {slot}, expected of one")
        return stages[first], here


def _planned_events(func: Func) -> list[Event]:
    """The communication that a Stage.PLANNED program asks for, an event per register."""
    slots = {i.result: i.slot for i in walk(func.body) if isinstance(i, planned.Scratch)}
    events: list[Event] = []
    turns: dict[Value, Indices] = {}

    def visit(block: Block, phase: str = "") -> None:
        for item in block.ops:
            for event in _asked(item, slots, func.threads, turns):
                events.append(replace(event, phase=phase))
            if isinstance(item, SoftwarePipeline):
                pipeline(item)
                continue
            inside = (other for inner in item.blocks() for other in walk(inner))
            if any(isinstance(other, _PLANNED) for other in inside):
                for inner in item.blocks():
                    events.append(Event(item, "block"))
                    visit(inner)

    def pipeline(item: SoftwarePipeline) -> None:
        """A loop, or a branch with a loop in it; slots are taken in turns."""
        turns.update(_slots_of(item))
        for phase, block in item.phases.items():
            if item.guard is not None and phase == "first":
                events.append(Event(item, "block", phase=phase))
            if phase == "steady":
                events.append(Event(item, "block", phase=phase))
            visit(block, phase)
        if item.guard is not None:
            events.append(Event(item, "block", phase="none"))

    visit(func.body)
    return events


def _slots_of(item: SoftwarePipeline) -> Iterator[tuple[Value, Indices]]:
    """What the slots are that the phases bind, turn by turn."""
    both = np.array([[0], [1]])
    none = both[:1]
    steady = (none, none) if item.guard is None else (both, both[::-1])
    yield from zip(item.first.args[1:2], (none,), strict=False)
    yield from zip(item.steady.args[2:4], steady, strict=False)
    yield from zip(item.last.args[1:2], (both,), strict=False)


def _asked(
    item: Op, slots: Mapping[Value, str], threads: int, turns: Mapping[Value, Indices]
) -> Iterator[Event]:
    match item:
        case planned.ScratchStore() | planned.ScratchLoad():
            kind = "store" if isinstance(item, planned.ScratchStore) else "load"
            for row in _rows(item.slots, item.registers, threads):
                table = row - item.skip
                if item.stage is not None:
                    assert isinstance(item.buffer.type, ScratchType)
                    table = table + turns[item.stage] * item.buffer.type.pitch
                yield Event(item, kind, slots[item.buffer], table.tobytes())
        case planned.Barrier():
            yield Event(item, "barrier", item.role)
        case planned.Reduce():
            slot = "" if item.scratch is None else slots[item.scratch]
            for role in ("publish", "release") if item.release else ("publish",):
                if slot:
                    yield Event(item, "barrier", role)
            yield Event(item, "reduce", slot)
        case planned.Shuffle():
            for row in _rows(item.lanes, item.registers, threads):
                # What a thread takes from itself needs no shuffle.
                if (row % threads != np.arange(threads)).any():
                    lanes = (row % SIMD_WIDTH).tobytes()
                    yield Event(item, "shuffle", str(planned.held(item.src).dtype), lanes)
        case _:
            pass


def _rows(slots: AffineMap, registers: tuple[int, ...] | None, threads: int) -> Indices:
    """The images of each register's slots."""
    rows = images(slots).reshape(-1, threads)
    return rows if registers is None else rows[list(registers)]


def _compare(expected: list[Event], found: list[Event]) -> list[Finding]:
    """Both do the same in the same order; a load whose value nobody uses may have gone."""
    position = 0
    gone: Event | None = None
    for event in expected:
        here = found[position] if position < len(found) else None
        if here is not None and event.matches(here):
            position, gone = position + 1, None
        elif event.kind == "load":
            gone = event
        else:
            # A load in the place of one that has gone is that one, done wrongly.
            wrong = gone if here is not None and here.kind == "load" else None
            return [_difference(wrong or event, here)]
    if position < len(found):
        return [Finding(found[position].op, "no such communication in the program before")]
    return []


def _difference(event: Event, here: Event | None) -> Finding:
    phase = f" in phase {event.phase}" if event.phase else ""
    source = f"the {event.kind} {event.subject} of line {event.op.loc.line}{phase}"
    source = source.replace("  ", " ")
    if here is None:
        return Finding(event.op, f"is missing in the program after{phase}")
    if (here.kind, here.subject) == (event.kind, event.subject):
        return Finding(here.op, f"other threads or elements than in {source}, expected the same")
    return Finding(here.op, f"stands where {source} is expected")
