"""Between two barriers no thread writes what another one accesses, on any path (SPEC C2, F43, F58).

Threads run in any order between barriers. The walk keeps the accesses to threadgroup memory that no
barrier has closed yet. A branch leaves those of both sides; the body of a loop is walked twice, so
that its first accesses meet those which its last iteration left open.

Two accesses conflict when one writes and two different threads name one element. Elements that do
not follow from the thread index alone may be any; of one access they are taken to be different. But
a loop may take the parts of a memory in turns: then its body is walked until all turns have met.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from metile_mlx.errors import CompileError
from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.core import Block, Func, Op, Value
from metile_mlx.ir.lanes import SharedAlloc
from metile_mlx.ir.loops import Loop
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.layout.affine import Indices
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.thread_values import thread_values


@dataclass(frozen=True, eq=False)
class _Access:
    """One access.

    `places`: each thread's element, -1 for none, None where that isn't known; where a loop takes
    turns, a row for each, this iteration's first. `run`: that loop, this time that it runs.
    `stage`: of a planned access, if known.
    """

    op: Op
    buffer: Value
    writes: bool
    places: Indices | None
    run: object = None
    stage: int | None = None


def declared(func: Func) -> frozenset[Value]:
    """The threadgroup memory of a Stage.THREAD program that the user has declared."""
    return frozenset(item.result for item in func.body.ops if isinstance(item, SharedAlloc))


def check_order(func: Func) -> list[Finding]:
    """All races on threadgroup memory of a Stage.PLANNED or THREAD program with branches or loops.

    Straight-line programs are the business of verify/scratch.py and verify/reductions.py, except
    for the memory that the user has declared: there a race is the user's.

    Raises:
        CompileError: a race on declared memory.
    """
    shared = declared(func)
    if not shared and not any(item.block_fields for item in func.body.ops):
        return []
    walker = _Walk(func)
    walker.block(func.body, frozenset())
    for one, other in walker.races:
        if one.buffer in shared:
            raise _race(one, other)
    races = ((one.op, _text(one, other)) for one, other in walker.races if one is not other)
    return [Finding(item, text) for item, text in dict.fromkeys(races)]


def _race(one: _Access, other: _Access) -> CompileError:
    if one is other:
        return CompileError(
            f"[shared] several threads store to one element of {one.buffer.name} here",
            one.op.loc,
            "give each thread an element of its own, or mask all but one",
        )
    does, did = (_verb(access, access is other) for access in (one, other))
    again = one.op.loc.line <= other.op.loc.line
    return CompileError(
        f"[shared] {one.buffer.name} {does} here what another thread {did} in line "
        f"{other.op.loc.line}{', an iteration before' if again else ''}: no barrier() stands "
        "between them on every way through the kernel",
        one.op.loc,
        "separate them by metile.barrier(), or give each thread elements of its own",
    )


def _verb(access: _Access, past: bool) -> str:
    if access.writes:
        return "has stored" if past else "stores"
    return "may still load" if past else "loads"


def _text(one: _Access, other: _Access) -> str:
    return (
        f"{'writes' if one.writes else 'reads'} {one.buffer!r} that line {other.op.loc.line} has "
        f"{'written' if other.writes else 'read'}, expected a barrier between them on every path"
    )


class _Walk:
    def __init__(self, func: Func) -> None:
        self.values = thread_values(func)
        # In the order in which they were found.
        self.races: dict[tuple[_Access, _Access], None] = {}
        self._accesses: dict[tuple[Op, bool, object, int, int | None], _Access] = {}
        # The loops that are walked: this run of each, and its iteration.
        self.runs: dict[Op, tuple[object, int]] = {}
        # Which stage the slots of a pipeline are.
        self.stages: dict[Value, int] = {}

    def block(self, block: Block, open_: frozenset[_Access]) -> frozenset[_Access]:
        """The accesses left open behind the block, of those before it and its own."""
        for item in block.ops:
            match item:
                case Loop():
                    open_ = self.loop(item, open_)
                case SoftwarePipeline():
                    open_ = self.pipeline(item, open_)
                case tile.If() | metal.If():
                    sides = [self.block(inner, open_) for inner in item.blocks()]
                    open_ = frozenset().union(*sides)
                case planned.Barrier() | metal.Barrier():
                    open_ = frozenset()
                case planned.Reduce() if item.scratch is not None:
                    self.meet(item, item.scratch, True, open_)
                    open_ = frozenset({self.access(item, item.scratch, False)})
                    if item.release:
                        open_ = frozenset()
                case planned.ScratchStore() | metal.ThreadgroupStore():
                    open_ |= {self.meet(item, item.buffer, True, open_)}
                case planned.ScratchLoad() | metal.ThreadgroupLoad():
                    open_ |= {self.meet(item, item.buffer, False, open_)}
                case _:
                    pass
        return open_

    def loop(self, item: Loop, open_: frozenset[_Access]) -> frozenset[_Access]:
        """After the second walk no third one would find more open, were it not for turns."""
        run = object()
        for turn in range(1 + self.values.turns(item)):
            self.runs[item] = run, turn
            open_ |= self.block(item.body, open_)
        del self.runs[item]
        return open_

    def pipeline(self, item: SoftwarePipeline, open_: frozenset[_Access]) -> frozenset[_Access]:
        """All phases, after any number of steps."""
        if item.guard is None:
            self.stages.update((arg, 0) for arg in item.steady.args[2:4])
            for _ in range(2):
                open_ |= self.block(item.steady, open_)
            return open_
        self.stages.update((arg, 0) for arg in item.first.args[1:2])
        now, left = self.block(item.first, open_), open_
        for step in range(4):
            slot = step % 2
            self.stages.update((arg, slot) for arg in item.last.args[1:2])
            left |= self.block(item.last, now)
            self.stages.update(zip(item.steady.args[2:4], (slot, 1 - slot), strict=False))
            now = self.block(item.steady, now)
        return left

    def access(self, item: Op, buffer: Value, writes: bool) -> _Access:
        value = getattr(item, "stage", None)
        stage = self.stages.get(value) if isinstance(value, Value) else None
        found, loop = self.places(item)
        run, turn = (None, 0) if loop is None else self.runs.get(loop, (None, 0))
        key = (item, writes, run, turn, stage)
        if key not in self._accesses:
            if found is not None and found.ndim > 1:
                found = np.roll(found, -turn, axis=0)
            self._accesses[key] = _Access(item, buffer, writes, found, run, stage)
        return self._accesses[key]

    def places(self, item: Op) -> tuple[Indices | None, Op | None]:
        """Each thread's element, and the loop that takes turns."""
        if not isinstance(item, metal.ThreadgroupStore | metal.ThreadgroupLoad):
            return None, None
        found, loop = self.values.in_turns(item.index)
        if found is None or item.mask is None:
            return found, loop
        mask = self.values.evaluate(item.mask)
        return (found if mask is None else np.where(mask != 0, found, -1)), loop

    def meet(self, item: Op, buffer: Value, writes: bool, open_: frozenset[_Access]) -> _Access:
        """Note an access beside those that are open."""
        made = self.access(item, buffer, writes)
        if writes and made.places is not None and _may_meet(made, made):
            self.races.setdefault((made, made))
        for other in open_:
            if other.buffer is buffer and (writes or other.writes) and _may_meet(made, other):
                self.races.setdefault((made, other))
        return made


def _may_meet(a: _Access, b: _Access) -> bool:
    """Whether two different threads may name one element."""
    if a.stage is not None and b.stage is not None and a.stage != b.stage:
        # Each stays in its stage: verify/pipelines.py.
        return False
    if a.places is None or b.places is None:
        return True
    one, two = np.atleast_2d(a.places), np.atleast_2d(b.places)
    if a is b or (a.run is not None and a.run is b.run):
        return any(map(_share, one, two))
    # In which turns they are is not known of each other.
    return any(_share(row, other) for row in one for other in two)


def _share(a: Indices, b: Indices) -> bool:
    """Whether thread i of the one and another thread of the other name the same element."""
    if a.max() < b.min() or b.max() < a.min():
        return False
    ordered, named = np.sort(b), a[a >= 0]
    pairs = np.searchsorted(ordered, named, "right") - np.searchsorted(ordered, named, "left")
    return int(pairs.sum()) > int(((a == b) & (a >= 0)).sum())
