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

A loop stands around phases of its own, as does a branch in which threads meet: bounds and
conditions are the same in all threads. What each thread carries from one iteration to the next lies
in an array. The segment that computes the next value writes it there, where nothing still reads the
old one.

A masked access that only the first threads make gets a loop over those (`ragged`).

Where a segment reads memory at a permutation of the thread index, its loop is unrolled, so that
slots are constants and compilers see fixed moves instead of gathers. Such a segment does little
else: more work is split off into a segment after it, whose loop vectorises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metile_mlx.emit import ragged
from metile_mlx.emit.carried import Reading
from metile_mlx.emit.extents import Reach
from metile_mlx.emit.recomputation import Recomputation
from metile_mlx.emit.rows import Rows
from metile_mlx.emit.segments import (
    Around,
    Assign,
    Part,
    Phase,
    Segment,
    Targets,
    accesses,
    crosses_lanes,
    has_effect,
    hoist,
    is_around,
    is_total,
    masks,
    phases_of,
    runs_once,
)
from metile_mlx.emit.thread_tables import is_uniform
from metile_mlx.emit.tiles import Tiles
from metile_mlx.ir.core import Effect, Func, Op, Value, definitions, walk
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.matrix import BlockMultiply
from metile_mlx.ir.metal import (
    Barrier,
    Extract,
    If,
    Load,
    LoadGroup,
    Shuffle,
    Store,
    StoreGroup,
    ThreadgroupAlloc,
    ThreadgroupLoad,
    ThreadgroupStore,
)
from metile_mlx.ir.stated import AxisReduction

# Ops that do not count as work to be split off.
_MEMORY = (
    *(Load, Store, ThreadgroupLoad, ThreadgroupStore, Shuffle),
    *(LoadGroup, Extract, StoreGroup),
)


class Plan:
    """The loops of one kernel at Stage.THREAD.

    Attributes:
        uniform: ops that run once per program, before everything else.
        parts: phases, and loops and branches around them, in order.
        over_threads: values kept in arrays over all threads, in program order.
        over_lanes: values kept in arrays over one simdgroup, in program order.
        carried: values that loops carry or branches leave, in arrays over all threads.
        shared: of values kept in the array of another one, that one.
    """

    def __init__(self, func: Func) -> None:
        self._order: dict[Op, int] = {}
        self._defined = definitions(func)
        self.again = Recomputation(func, self._defined, self._order)
        self.tables = self.again.tables
        self.uniform: list[Op] = []
        self.shared: dict[Value, Value] = {}
        self.tiles = Tiles(func, self._defined, self.shared)
        self.rows = Rows(func.threads, self.again.tables)
        # The ops with which results of products begin, and for each product the first of them that
        # writes where its results lie.
        self._moves: set[Op] = set()
        self._begins: dict[Op, Op] = {}
        self._over_threads: set[Value] = set()
        self._over_lanes: set[Value] = set()
        self._home: dict[Value, tuple[Phase, Segment]] = {}
        self._reach = Reach(func.threads, self.tables)
        # The loops whose threads carry something, with the phase that ends their bodies.
        self._ends: list[tuple[ThreadFor, Phase]] = []
        self.carried: list[Value] = []
        self.parts = self._block(func.body.ops)
        first = self.parts[0] if self.parts else None
        if isinstance(first, Phase) and first.once:
            (segment,) = first.segments
            if all(map(runs_once, segment.assigned)):
                self.uniform, self.parts = segment.assigned, self.parts[1:]
        self._settle()
        self._part_rows()
        self._fill()
        self.over_threads = self._sorted(self._over_threads)
        self.over_lanes = self._sorted(self._over_lanes - self._over_threads)

    @property
    def phases(self) -> list[Phase]:
        """The phases at the top level."""
        return [part for part in self.parts if isinstance(part, Phase)]

    def _sorted(self, values: Iterable[Value]) -> list[Value]:
        return sorted(
            (value for value in values if value not in self.shared),
            key=lambda value: self._order[self._defined[value]],
        )

    # Cutting

    def _block(self, ops: Iterable[Op]) -> list[Part]:
        """The parts of a block: runs of ops, and what stands around blocks of its own."""
        parts: list[Part] = []
        run: list[Op] = []
        for item in ops:
            if isinstance(item, AxisReduction):
                continue
            if is_around(item):
                parts += [*self._run(run), self._around(item)]
                run = []
            elif item.effect is not Effect.TERMINATOR:
                self._order[item] = len(self._order)
                run.append(item)
        return parts + self._run(run)

    def _around(self, item: Op) -> Around:
        """A loop or a branch; its results are where what its bodies hand over is put."""
        assert isinstance(item, ThreadFor | If)
        made = Around(item)
        targets = item.results
        carried: tuple[Value, ...] = ()
        if isinstance(item, ThreadFor):
            targets = carried = item.carried
            self.shared.update(zip(item.results, carried, strict=True))
            made.before = self._assigns(targets, item.inits, uniform=False)
        self.carried += [target for target in targets if not is_uniform(target)]
        for block in item.blocks():
            values = block.ops[-1].operands()
            body = self._block(block.ops)
            end = self._assigns(targets, values, carried, uniform=False)
            if end and isinstance(item, ThreadFor):
                self._ends.append((item, end[0]))
            # What each thread carries may follow from a uniform value before that changes.
            last = self._assigns(targets, values, carried, uniform=True)
            made.bodies.append([*body, *end, *last])
        return made

    def _assigns(
        self,
        targets: Sequence[Value],
        values: Sequence[Value],
        carried: Sequence[Value] = (),
        *,
        uniform: bool,
    ) -> list[Phase]:
        """The phase that assigns those targets which are variables, or those which are arrays."""
        pairs = [p for p in zip(targets, values, strict=True) if is_uniform(p[0]) is uniform]
        made = self._assign(pairs, carried)
        return [Phase([Segment(made)], once=uniform)] if made else []

    def _assign(self, pairs: Sequence[tuple[Value, Value]], carried: Sequence[Value]) -> list[Op]:
        if not pairs:
            return []
        made = Assign(Targets(t for t, _ in pairs), tuple(v for _, v in pairs), Targets(carried))
        self._order[made] = len(self._order)
        return [made]

    def _run(self, ops: Sequence[Op]) -> list[Part]:
        """The phases of ops that stand in no block of their own."""
        first, rest = hoist(ops)
        phases = [part for phase in self._cut(rest) for part in self._without_ragged(phase)]
        self._split(phases)
        return [*([Phase([Segment(first)], once=True)] if first else []), *phases]

    def _cut(self, ops: Iterable[Op]) -> list[Phase]:
        phases: list[Phase] = []
        interval: list[Op] = []
        reads: set[Value] = set()
        writes: set[Value] = set()
        for item in [*ops, Barrier("end")]:
            if not isinstance(item, Barrier):
                interval.append(item)
                continue
            new_reads, new_writes = accesses(interval)
            if writes & (new_reads | new_writes) or reads & new_writes:
                phases.append(Phase())
                reads, writes = set(), set()
            reads |= new_reads
            writes |= new_writes
            for part in interval:
                self._place(part, phases)
            interval = []
        return phases

    def _place(self, item: Op, phases: list[Phase]) -> None:
        if self.again.covers(item) or isinstance(item, ThreadgroupAlloc):
            return
        if isinstance(item, BlockMultiply):
            self._place_product(item, phases)
            return
        once = runs_once(item) or is_total(item)
        if isinstance(item, Store):
            once = all(is_uniform(value) for value in item.operands())
        if not phases or phases[-1].once != once:
            phases.append(Phase(once=once))
        phase = phases[-1]
        if crosses_lanes(item) and not once and not is_uniform(item.src):
            phase.grouped = True
            if self._home.get(item.src, (None, None))[1] is phase.segments[-1]:
                phase.segments.append(Segment())
        segment = phase.segments[-1]
        segment.assigned.append(item)
        for value in item.results:
            self._home[value] = (phase, segment)

    def _place_product(self, item: BlockMultiply, phases: list[Phase]) -> None:
        """A product is done once by all threads, when its tiles are there."""

        def in_loop(value: Value) -> bool:
            return value in self._home and not self._home[value][0].once

        cut = self.tiles.cut(item, in_loop)
        begin = self._assign(list(zip(item.results, item.acc, strict=True)), item.acc)
        self._moves.update(begin)
        first = self.tiles.before(item)
        self._begins[item] = begin[0] if first is None else self._begins[first]
        for step in (*cut.copies, cut.multiply):
            self._order[step] = len(self._order)
        phase = Phase([Segment([cut.multiply])], once=True)
        phases += [Phase([Segment([*begin, *cut.copies])]), phase]
        for value in (*item.a, *item.b):
            if in_loop(value) and (value in self.tiles.slots or value in self.shared):
                self._home[value][1].kept.add(value)
                self._reach.add(value, item)
        for value in item.results:
            self._home[value] = (phase, phase.segments[0])

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
        for made in loads:
            made.kept.update(*(_kept(segment, made.assigned) for segment in phase.segments))
        moved = {item for segment in (*loads, *after) for item in segment.assigned}
        for segment in phase.segments:
            segment.assigned = [item for item in segment.assigned if item not in moved]
        return [Phase(loads), phase, Phase(after)]

    def _span(self, item: Op) -> int | None:
        """The first threads, if they alone make this access and nothing in a loop decides where."""
        if not isinstance(item, Load | Store) or not self.again.is_known(item.index):
            return None
        if isinstance(item, Load) and (item.fill is None or not is_uniform(item.fill)):
            return None
        return ragged.span(item.mask, self.tables)

    def _split(self, phases: Iterable[Phase]) -> None:
        for phase in phases:
            made: list[Segment] = []
            for segment in phase.segments:
                written = {i.buffer for i in segment.assigned if isinstance(i, ThreadgroupStore)}
                first = [
                    item
                    for item in segment.assigned
                    if self.again.is_gather(item) and written.isdisjoint(item.operands())
                ]
                rest = [item for item in segment.assigned if item not in first]
                if first and any(not isinstance(item, _MEMORY) for item in rest):
                    made += [Segment(part, kept=_kept(segment, part)) for part in (first, rest)]
                else:
                    made.append(segment)
            phase.segments = made
            self._find_homes(phase)

    def _find_homes(self, phase: Phase) -> None:
        for segment in phase.segments:
            for item in segment.assigned:
                self._home.update((value, (phase, segment)) for value in item.results)

    # What loops carry

    def _settle(self) -> None:
        """Where nothing reads a carried value any more, the next one is written at once."""
        reading = Reading(self.parts, self._defined, self._begins)
        for loop, phase in self._ends:
            segment = phase.segments[0]
            (end,) = segment.assigned
            assert isinstance(end, Assign)
            taken: dict[Value, Value] = {}
            for arg, value in end.pairs():
                free = value not in self.shared and value not in taken
                if free and reading.ends_before(arg, value, loop):
                    taken[value] = arg
            self.tiles.agree(taken)
            self.shared.update(taken)
            for value in taken:
                self._home[value][1].kept.add(value)
            late = [(arg, value) for arg, value in end.pairs() if taken.get(value) is not arg]
            segment.assigned = self._assign(late, end.carried)
            reading.replace(end, segment.assigned)
        self._drop_moves()

    def _drop_moves(self) -> None:
        """Nothing begins as what lies in its place."""
        place = self.tiles.place
        for phase in phases_of(self.parts):
            for segment in phase.segments:
                for item in segment.assigned[:]:
                    if isinstance(item, Assign) and item in self._moves:
                        pairs = [(t, v) for t, v in item.pairs() if place(t) is not place(v)]
                        segment.assigned.remove(item)
                        segment.assigned[:0] = self._assign(pairs, item.carried)

    def _part_rows(self) -> None:
        """Beside products, a loop over rows for each register slot: each has rows of its own."""
        if not any(self.tiles):
            return
        for phase in phases_of(self.parts):
            if not (phase.once or phase.grouped):
                parts = [self.rows.part(s, self.again, self.tiles.place) for s in phase.segments]
                phase.segments = [segment for made in parts for segment in made]
                self._find_homes(phase)

    # What each segment writes

    def _fill(self) -> None:
        for phase in reversed(list(phases_of(self.parts))):
            for segment in reversed(phase.segments):
                needed: set[Op] = set()
                for item in segment.assigned:
                    if phase.once or has_effect(item) or segment.kept.intersection(item.results):
                        self._need(item, phase, segment, needed)
                segment.ops = sorted(needed, key=self._order.__getitem__)
                if not phase.once and segment.span is None:
                    self._reach.limit(segment, phase.grouped, self.shared)
                    self._mask(segment)
        self.parts = _filled(self.parts)

    def _mask(self, segment: Segment) -> None:
        found = [mask for item in segment.ops for mask in masks(item)]
        known = (mask for mask in found if mask is not None and self.again.is_known(mask))
        segment.masks = tuple(dict.fromkeys(known))
        effects = [item for item in segment.ops if has_effect(item)]
        guards = {mask for item in effects for mask in masks(item) or (None,)}
        (guard,) = guards if len(guards) == 1 else (None,)
        if guard is not None and is_uniform(guard) and not segment.kept:
            segment.idle_without = guard

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
            known = self.again.permutation(value)
            if known is not None:
                segment.permuted[value] = known
            elif self.again.covers(source) or self._home[value][1] is segment:
                self._need(source, phase, segment, needed)
            if known is None and not self.again.covers(source):
                self._keep(value, phase, segment, item)

    def _keep(self, value: Value, phase: Phase, segment: Segment, user: Op) -> None:
        home_phase, home = self._home[value]
        shuffled = crosses_lanes(user) and value is user.src
        if home is segment and not shuffled:
            return
        home.kept.add(value)
        self._reach.add(value, user)
        near = home_phase is phase and phase.grouped
        (self._over_lanes if near else self._over_threads).add(value)


def _kept(segment: Segment, part: Iterable[Op]) -> set[Value]:
    """What a part of a segment has to keep: products know already what they read."""
    return {value for item in part for value in item.results if value in segment.kept}


def _filled(parts: Iterable[Part]) -> list[Part]:
    """The parts in which something is written."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, Phase):
            part.segments = [segment for segment in part.segments if segment.ops]
            if part.segments:
                found.append(part)
        else:
            part.before = _filled(part.before)
            part.bodies = [_filled(body) for body in part.bodies]
            found.append(part)
    return found
