"""How one threadgroup becomes loops on a CPU: what runs once, in which loop, and what has to be
kept (X4).

Uniform values are computed once per program: before all loops, or, where they follow from a
reduction, in a phase without a loop as soon as its total is known. The rest is cut into *phases* at
those barriers that order two accesses of one memory, and a phase into *segments*: a segment is one
loop over threads. Without a shuffle a phase runs each segment over all threads. With shuffles it
runs simdgroup by simdgroup, each segment over 32 lanes, and a shuffle or a reduction over lanes
starts a segment after the one that computes what it moves or combines.

A value used in another segment than its own is kept in an array, over the lanes of a simdgroup
within one phase with shuffles, else over all threads. Integer work on the thread index is computed
again instead.

A masked access that only the first threads make gets a loop over those (`ragged`).

Where a segment reads memory at a permutation of the thread index, its loop is unrolled, so that
slots are constants and compilers see fixed moves instead of gathers. Such a segment does little
else: more work is split off into a segment after it, whose loop vectorises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from metile_mlx.emit import ragged
from metile_mlx.emit.thread_tables import ThreadTables, is_cheap, is_uniform
from metile_mlx.ir.core import Effect, Func, Op, Value, definitions, walk
from metile_mlx.ir.metal import (
    Barrier,
    Extract,
    Load,
    LoadGroup,
    Shuffle,
    SimdReduce,
    Store,
    StoreGroup,
    ThreadgroupAlloc,
    ThreadgroupLoad,
    ThreadgroupStore,
)
from metile_mlx.ir.stated import AxisReduction
from metile_mlx.ir.types import ScalarType
from metile_mlx.layout.affine import AffineMap

# Ops that do not count as work to be split off.
_MEMORY = (
    *(Load, Store, ThreadgroupLoad, ThreadgroupStore, Shuffle),
    *(LoadGroup, Extract, StoreGroup),
)


@dataclass
class Segment:
    """One loop over threads, or lines that run once.

    Attributes:
        assigned: the ops that belong here; cheap ones are in no list.
        ops: all to be written, in program order; filled in by the plan.
        permuted: values written as permutations of the thread index.
        kept: values to be put into arrays.
        masks: of its loads and stores: uniform, or computed again from the thread index.
        idle_without: a uniform mask without which the loop does nothing.
        span: the first threads, the only ones in which the masks of its accesses hold.
    """

    assigned: list[Op] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    permuted: dict[Value, AffineMap] = field(default_factory=dict)
    kept: set[Value] = field(default_factory=set)
    masks: tuple[Value, ...] = ()
    idle_without: Value | None = None
    span: int | None = None


@dataclass
class Phase:
    """Segments between two barriers; `grouped` ones run per simdgroup; `once`: no loop at all."""

    segments: list[Segment] = field(default_factory=lambda: [Segment()])
    grouped: bool = False
    once: bool = False


class Plan:
    """The loops of one kernel at Stage.THREAD.

    Attributes:
        uniform: ops that run once per program, before all phases.
        phases: in order.
        over_threads: values kept in arrays over all threads, in program order.
        over_lanes: values kept in arrays over one simdgroup, in program order.
    """

    def __init__(self, func: Func) -> None:
        ops = [item for item in func.body.ops if not isinstance(item, AxisReduction)]
        self._order = {item: number for number, item in enumerate(ops)}
        self._defined = definitions(func)
        self.tables = ThreadTables(func.threads, self._defined)
        shuffles = [item for item in ops if isinstance(item, Shuffle)]
        across = [item for item in ops if isinstance(item, Shuffle | SimdReduce)]
        self._moved = {item.src for item in across if not is_uniform(item.src)}
        self._lanes = {item.lane for item in shuffles}
        self.uniform, rest = _hoist(ops)
        self.phases: list[Phase] = []
        self._home: dict[Value, tuple[Phase, Segment]] = {}
        self._cut(rest)
        self.phases = [part for phase in self.phases for part in self._without_ragged(phase)]
        self._split()
        self._over_threads: set[Value] = set()
        self._over_lanes: set[Value] = set()
        self._fill()
        self.over_threads = self._sorted(self._over_threads)
        self.over_lanes = self._sorted(self._over_lanes - self._over_threads)

    def _sorted(self, values: Iterable[Value]) -> list[Value]:
        return sorted(values, key=lambda value: self._order[self._defined[value]])

    # Cutting

    def _cut(self, ops: Iterable[Op]) -> None:
        interval: list[Op] = []
        reads: set[Value] = set()
        writes: set[Value] = set()
        for item in [*ops, Barrier("end")]:
            if not isinstance(item, Barrier):
                interval.append(item)
                continue
            new_reads, new_writes = _accesses(interval)
            if writes & (new_reads | new_writes) or reads & new_writes:
                self.phases.append(Phase())
                reads, writes = set(), set()
            reads |= new_reads
            writes |= new_writes
            for part in interval:
                self._place(part)
            interval = []

    def _place(self, item: Op) -> None:
        if self._is_recomputed(item) or isinstance(item, ThreadgroupAlloc):
            return
        once = _runs_once(item) or _is_total(item)
        if isinstance(item, Store):
            once = all(is_uniform(value) for value in item.operands())
        if not self.phases or self.phases[-1].once != once:
            self.phases.append(Phase(once=once))
        phase = self.phases[-1]
        if isinstance(item, Shuffle | SimdReduce) and not once and not is_uniform(item.src):
            phase.grouped = True
            if self._home.get(item.src, (None, None))[1] is phase.segments[-1]:
                phase.segments.append(Segment())
        segment = phase.segments[-1]
        segment.assigned.append(item)
        for value in item.results:
            self._home[value] = (phase, segment)

    def _is_recomputed(self, item: Op) -> bool:
        return is_cheap(item) and not is_uniform(item.result) and item.result not in self._moved

    def _without_ragged(self, phase: Phase) -> list[Phase]:
        """The phase without its ragged accesses, between the loops that make them."""
        if phase.once:
            return [phase]
        ops = [item for segment in phase.segments for item in segment.assigned]
        last = ragged.last_stores(ops, lambda item: self._span(item) is not None)
        before: dict[int, list[Op]] = {}
        after: list[Segment] = []
        for item in ops:
            span = self._span(item)
            if span is None:
                continue
            if isinstance(item, Load):
                before.setdefault(span, []).append(item)
            elif item in last:
                if not after or after[-1].span != span:
                    after.append(Segment(span=span))
                after[-1].assigned.append(item)
        loads = [Segment(items, span=span) for span, items in before.items()]
        moved = {item for segment in (*loads, *after) for item in segment.assigned}
        for segment in phase.segments:
            segment.assigned = [item for item in segment.assigned if item not in moved]
        return [Phase(loads), phase, Phase(after)]

    def _span(self, item: Op) -> int | None:
        """The first threads, if they alone make this access and nothing in a loop decides where."""
        if not isinstance(item, Load | Store) or not self._is_known(item.index):
            return None
        if isinstance(item, Load) and (item.fill is None or not is_uniform(item.fill)):
            return None
        return ragged.span(item.mask, self.tables)

    def _split(self) -> None:
        for phase in self.phases:
            made: list[Segment] = []
            for segment in phase.segments:
                first = [item for item in segment.assigned if self._is_gather(item)]
                rest = [item for item in segment.assigned if item not in first]
                if first and any(not isinstance(item, _MEMORY) for item in rest):
                    made += [Segment(first), Segment(rest)]
                else:
                    made.append(segment)
            phase.segments = made
            for segment in made:
                for item in segment.assigned:
                    for value in item.results:
                        self._home[value] = (phase, segment)

    def _is_gather(self, item: Op) -> bool:
        """Reads memory at a permutation of the thread index, and needs nothing computed in a
        loop."""
        if not isinstance(item, Load | ThreadgroupLoad | Shuffle):
            return False
        found = list(self._leaves(item.operands()))
        moved = [value for value in found if self._permutation(value) is None]
        own = item.src if isinstance(item, Shuffle) else None
        return len(moved) < len(found) and all(value is own for value in moved)

    def _leaves(self, values: Iterable[Value]) -> Iterator[Value]:
        """Permutations of the thread index, and values that are not computed again, below
        `values`."""
        for value in values:
            item = self._defined.get(value)
            if item is None or is_uniform(value):
                continue
            if self._permutation(value) is not None or not self._is_recomputed(item):
                yield value
            else:
                yield from self._leaves(item.operands())

    def _permutation(self, value: Value) -> AffineMap | None:
        if not isinstance(value.type, ScalarType) or value in self._moved:
            return None
        made = self.tables.permutation(value, value in self._lanes)
        return None if made is None or made.is_identity else made

    # What each segment writes

    def _fill(self) -> None:
        for phase in reversed(self.phases):
            for segment in reversed(phase.segments):
                needed: set[Op] = set()
                for item in segment.assigned:
                    if phase.once or _has_effect(item) or segment.kept.intersection(item.results):
                        self._need(item, phase, segment, needed)
                segment.ops = sorted(needed, key=self._order.__getitem__)
                if not phase.once and segment.span is None:
                    self._mask(segment)
        for phase in self.phases:
            phase.segments = [segment for segment in phase.segments if segment.ops]
        self.phases = [phase for phase in self.phases if phase.segments]

    def _mask(self, segment: Segment) -> None:
        found = [mask for item in segment.ops for mask in _masks(item)]
        known = (mask for mask in found if mask is not None and self._is_known(mask))
        segment.masks = tuple(dict.fromkeys(known))
        effects = [item for item in segment.ops if _has_effect(item)]
        guards = {mask for item in effects for mask in _masks(item) or (None,)}
        (guard,) = guards if len(guards) == 1 else (None,)
        if guard is not None and is_uniform(guard) and not segment.kept:
            segment.idle_without = guard

    def _is_known(self, value: Value) -> bool:
        """Uniform, or computed again from uniform values and the thread index alone."""
        return not list(self._leaves([value]))

    def recomputation(self, values: Iterable[Value]) -> list[Op]:
        """The cheap ops, in order, that compute `values` from uniform ones and the thread index."""
        needed: set[Op] = set()
        pending = [value for value in values if not is_uniform(value)]
        while pending:
            item = self._defined[pending.pop()]
            needed.add(item)
            pending += [value for value in item.operands() if not is_uniform(value)]
        return sorted(needed, key=self._order.__getitem__)

    def _need(self, item: Op, phase: Phase, segment: Segment, needed: set[Op]) -> None:
        if item in needed:
            return
        needed.add(item)
        parts = [item, *(inner for block in item.blocks() for inner in walk(block))]
        inside = {value for part in parts for value in part.results}
        for value in (v for part in parts for v in part.operands() if v not in inside):
            source = self._defined.get(value)
            if source is None or is_uniform(value) or source not in self._order:
                continue
            known = self._permutation(value)
            if known is not None:
                segment.permuted[value] = known
            elif self._is_recomputed(source) or self._home[value][1] is segment:
                self._need(source, phase, segment, needed)
            if known is None and not self._is_recomputed(source):
                self._keep(value, phase, segment, item)

    def _keep(self, value: Value, phase: Phase, segment: Segment, user: Op) -> None:
        home_phase, home = self._home[value]
        shuffled = isinstance(user, Shuffle | SimdReduce) and value is user.src
        if home is segment and not shuffled:
            return
        home.kept.add(value)
        near = home_phase is phase and phase.grouped
        (self._over_lanes if near else self._over_threads).add(value)


def _hoist(ops: Sequence[Op]) -> tuple[list[Op], list[Op]]:
    """What runs before all loops, and the rest: uniform work on a total directly behind it."""
    before: list[Op] = []
    late: list[Op] = []
    pending: set[Value] = set()
    for item in ops:
        if _is_total(item):
            pending.add(item.result)
        elif _runs_once(item):
            if pending.isdisjoint(_reads(item)):
                before.append(item)
            else:
                late.append(item)
                pending.update(item.results)
    moved = {*before, *late}
    rest: list[Op] = []
    for item in ops:
        if item in moved:
            continue
        rest.append(item)
        if _is_total(item):
            pending.discard(item.result)
            waiting = late
            late = []
            for other in waiting:
                if pending.isdisjoint(_reads(other)):
                    rest.append(other)
                    pending.difference_update(other.results)
                else:
                    late.append(other)
    return before, rest


def _is_total(item: Op) -> bool:
    """A reduction over the threadgroup: the same in every thread, known after all of them."""
    return isinstance(item, SimdReduce) and item.uniform


def _reads(item: Op) -> Iterator[Value]:
    """The operands of an op and of what its blocks hold."""
    yield from item.operands()
    for block in item.blocks():
        for inner in walk(block):
            yield from inner.operands()


def _runs_once(item: Op) -> bool:
    """Computes only values that are the same in every thread, and changes nothing."""
    parts = [item, *(inner for block in item.blocks() for inner in walk(block))]
    return not isinstance(item, ThreadgroupAlloc) and all(
        not part.effect & (Effect.WRITE | Effect.CONVERGENT)
        and not isinstance(part, ThreadgroupLoad)
        and all(is_uniform(value) for value in (*part.operands(), *part.results))
        for part in parts
    )


def _masks(item: Op) -> tuple[Value | None, ...]:
    """The masks of an access to arrays."""
    match item:
        case Load() | Store():
            return (item.mask,)
        case LoadGroup() | StoreGroup():
            return item.masks
        case _:
            return ()


def _has_effect(item: Op) -> bool:
    parts = [item, *(inner for block in item.blocks() for inner in walk(block))]
    return any(bool(part.effect & Effect.WRITE) for part in parts)


def _accesses(ops: Iterable[Op]) -> tuple[set[Value], set[Value]]:
    """Memory read and written that others may write or read: threadgroup arrays and outputs."""
    reads: set[Value] = set()
    writes: set[Value] = set()
    for item in ops:
        for part in (item, *(inner for block in item.blocks() for inner in walk(block))):
            if isinstance(part, ThreadgroupLoad):
                reads.add(part.buffer)
            elif isinstance(part, ThreadgroupStore | Store | StoreGroup):
                writes.add(part.buffer)
    return reads, writes
