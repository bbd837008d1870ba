"""Reductions along an axis: every total is made of the elements of its row, each exactly once.

A per-thread program states them (ir/stated.py), and this is the proof. Each value that a thread has
before the reduction gets a random number of 64 bits, and each step adds numbers where the program
combines values: a tree over registers, an exchange of lanes, a trip through threadgroup memory. In
the end the number of each total has to be the sum over its row. What is combined twice, left out or
taken from another row changes that sum; that it does not show has odds of 1 to 2**64. A second sum,
of ones, counts the values for the message.

Memory has to be immutable once published (SPEC R3): each element is written once, a barrier
follows, and nobody but this reduction uses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from metile_mlx.ir import metal, planned
from metile_mlx.ir.arith import COMBINE, element, identity
from metile_mlx.ir.core import Func, Op, Value, definitions, walk
from metile_mlx.ir.stated import AxisReduction
from metile_mlx.ir.types import ScratchType, TileType
from metile_mlx.layout.affine import Indices
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import SIMD_WIDTH
from metile_mlx.verify.conversions import elements
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.structure import is_threaded
from metile_mlx.verify.thread_values import ThreadValues, thread_values

Numbers: TypeAlias = "NDArray[np.uint64]"
_STEPS = (metal.Binary, metal.Shuffle, metal.SimdReduce, metal.ThreadgroupLoad)


@dataclass(frozen=True, eq=False)
class Cone:
    """What lies between the sources and the totals of one statement.

    Attributes:
        item: the statement.
        ops: the steps.
        buffers: the threadgroup memory of the steps.
    """

    item: AxisReduction
    ops: frozenset[Op]
    buffers: frozenset[Value]


@lru_cache(maxsize=4)
def cones(func: Func) -> tuple[Cone, ...]:
    """One for each reduction along an axis that a Stage.THREAD program states, in order."""
    wanted = [item for item in walk(func.body) if isinstance(item, AxisReduction)]
    if not wanted:
        return ()
    made_by = definitions(func)
    stores: dict[Value, list[metal.ThreadgroupStore]] = {}
    for item in walk(func.body):
        if isinstance(item, metal.ThreadgroupStore):
            stores.setdefault(item.buffer, []).append(item)
    return tuple(_cone(item, made_by, stores) for item in wanted)


def _cone(
    item: AxisReduction,
    made_by: dict[Value, Op],
    stores: dict[Value, list[metal.ThreadgroupStore]],
) -> Cone:
    ends = set(item.sources)
    ops: set[Op] = set()
    buffers: set[Value] = set()
    pending = list(item.totals)
    while pending:
        value = pending.pop()
        step = made_by.get(value)
        if value in ends or step in ops or not isinstance(step, _STEPS):
            continue
        ops.add(step)
        match step:
            case metal.ThreadgroupLoad():
                buffers.add(step.buffer)
                for store in stores.get(step.buffer, ()):
                    ops.add(store)
                    pending.append(store.value)
            case metal.Binary():
                pending += step.operands()
            case metal.Shuffle() | metal.SimdReduce():
                pending.append(step.src)
    return Cone(item, frozenset(ops), frozenset(buffers))


def check_axis_reductions(func: Func, before: Func | None) -> list[Finding]:
    """All faults of the stated reductions of a Stage.THREAD program; `before` may be planned."""
    found = cones(func)
    findings: list[Finding] = []
    if found:
        values = thread_values(func)
        order = {item: position for position, item in enumerate(walk(func.body))}
        for cone in found:
            findings += _Proof(func, cone, values, order).run()
        findings += _escapes(func, found)
    if before is not None and not findings and not is_threaded(before):
        findings += _compare(before, [cone.item for cone in found])
    return findings


def _compare(before: Func, stated: list[AxisReduction]) -> list[Finding]:
    """Each planned reduction along an axis is stated, as the one that it is."""
    every = walk(before.body)
    wanted = [i for i in every if isinstance(i, planned.Reduce) and i.axis is not None]
    findings = []
    for plan, item in zip(wanted, stated, strict=False):
        type_ = plan.src.type
        assert isinstance(type_, TileType)
        asked = (plan.kind, plan.axis, type_.shape, type_.layout)
        if asked != (item.kind, item.axis, item.shape, item.layout):
            text = f"states another reduction than that of line {plan.loc.line}"
            findings.append(Finding(item, text))
    if len(wanted) != len(stated):
        text = f"states {len(stated)} reductions along an axis, expected {len(wanted)}"
        findings.append(Finding(None, text))
    return findings


def _escapes(func: Func, found: Iterable[Cone]) -> list[Finding]:
    """What has been exchanged and is no total yet is used by its own reduction only."""
    owner: dict[Value, Cone] = {}
    for cone in found:
        totals = set(cone.item.totals)
        for item in walk(func.body):
            if item not in cone.ops or isinstance(item, metal.ThreadgroupStore):
                continue
            exchanged = not isinstance(item, metal.Binary) or any(
                owner.get(value) is cone for value in item.operands()
            )
            if exchanged and item.result not in totals:
                owner[item.result] = cone
    findings = []
    for item in walk(func.body):
        for value in item.operands():
            cone_of = owner.get(value)
            if cone_of is not None and item not in cone_of.ops:
                text = f"uses {value!r}, which is a part of the row only, expected its total"
                findings.append(Finding(item, text))
    return findings


def rows_of(layout: ThreadLayout, shape: tuple[int, ...], axis: int) -> Indices:
    """The number of the row along `axis` that each slot's element belongs to."""
    behind = prod(shape[axis + 1 :])
    owned = elements(layout)
    return owned // (behind * shape[axis]) * behind + owned % behind


class _Proof:
    """The numbers of one reduction's values, thread by thread."""

    def __init__(self, func: Func, cone: Cone, values: ThreadValues, order: dict[Op, int]) -> None:
        self.func = func
        self.item = cone.item
        self.cone = cone
        self.values = values
        self.order = order
        self.findings: list[Finding] = []
        self.numbers: dict[Value, Numbers | None] = {}
        self.memory: dict[Value, Numbers | None] = {}
        random = np.random.default_rng(20)
        for value in self.item.sources:
            if value not in self.numbers:
                drawn = random.integers(0, 1 << 64, self.func.threads, np.uint64)
                self.numbers[value] = np.stack([np.ones_like(drawn), drawn])

    def add(self, item: Op, message: str) -> None:
        self.findings.append(Finding(item, message))

    def run(self) -> list[Finding]:
        item, threads = self.item, self.func.threads
        if item.layout.size != prod(item.shape) or item.layout.thread_count != threads:
            self.add(item, f"{item.layout!r} does not own {item.shape} on {threads} threads")
            return self.findings
        rows = rows_of(item.layout, item.shape, item.axis)
        sources = [self.of(value) for value in item.sources]
        found = [self.of(value) for value in item.totals]
        if self.findings:
            return self.findings
        given = np.concatenate([n for n in sources if n is not None], axis=1)
        made = np.concatenate([n for n in found if n is not None], axis=1)
        expected = np.zeros((2, int(rows.max()) + 1), np.uint64)
        for channel in range(2):
            np.add.at(expected[channel], rows, given[channel])
        wrong = np.flatnonzero((made != expected[:, rows]).any(axis=0))
        if wrong.size:
            self.add(item, self.difference(int(wrong[0]), rows, made, expected))
        return self.findings

    def difference(self, slot: int, rows: Indices, made: Numbers, expected: Numbers) -> str:
        register, thread = divmod(slot, self.func.threads)
        row = int(rows[slot])
        where = f"the total in slot {register} of thread {thread}"
        if made[0, slot] != expected[0, row]:
            return f"{where} combines {made[0, slot]} values, expected {expected[0, row]}"
        return f"{where} combines other elements than those of its row, number {row}"

    def of(self, value: Value) -> Numbers | None:
        """The numbers of a value in each thread; None after a finding."""
        if value not in self.numbers:
            self.numbers[value] = None
            step = self.values.made_by.get(value)
            if step not in self.cone.ops or step is None:
                self.add(
                    self.item, f"{value!r} is no combination of what the reduction begins with"
                )
            else:
                self.numbers[value] = self.step(step)
        return self.numbers[value]

    def step(self, item: Op) -> Numbers | None:
        match item:
            case metal.Binary():
                return self.combined(item)
            case metal.Shuffle():
                return self.shuffled(item)
            case metal.SimdReduce():
                return self.over_lanes(item)
            case metal.ThreadgroupLoad():
                return self.loaded(item)
            case _:
                self.add(item, "is no step of a reduction")
                return None

    def combined(self, item: metal.Binary) -> Numbers | None:
        if item.kind is not COMBINE[self.item.kind]:
            self.add(
                item, f"combines by {item.kind.value}, expected {COMBINE[self.item.kind].value}"
            )
            return None
        lhs, rhs = self.of(item.lhs), self.of(item.rhs)
        return None if lhs is None or rhs is None else lhs + rhs

    def shuffled(self, item: metal.Shuffle) -> Numbers | None:
        src, lanes = self.of(item.src), self.values.evaluate(item.lane)
        if src is None:
            return None
        if lanes is None or int(lanes.max()) >= SIMD_WIDTH:
            what = "no function of the thread index" if lanes is None else f"{lanes.max()}"
            self.add(item, f"its lane is {what}, expected one below {SIMD_WIDTH}")
            return None
        first = np.arange(self.func.threads) // SIMD_WIDTH * SIMD_WIDTH
        return src[:, first + lanes]

    def over_lanes(self, item: metal.SimdReduce) -> Numbers | None:
        src = self.of(item.src)
        if src is None:
            return None
        if item.kind is not self.item.kind:
            self.add(item, f"combines by {item.kind.value}, expected {self.item.kind.value}")
            return None
        found = src.reshape(2, -1, SIMD_WIDTH).sum(axis=2, dtype=np.uint64)
        if item.uniform and (found != found[:, :1]).any():
            self.add(item, "is typed uniform, but simdgroups combine different values")
            return None
        return np.repeat(found, SIMD_WIDTH, axis=1)

    def loaded(self, item: metal.ThreadgroupLoad) -> Numbers | None:
        if item.buffer not in self.memory:
            self.memory[item.buffer] = self.published(item.buffer)
        held = self.memory[item.buffer]
        if held is None:
            return None
        found = self.table(item, item.index, item.mask, held.shape[1])
        if found is None:
            return None
        places, lanes = found
        if item.fill is not None and not self.is_identity(item.fill):
            self.add(
                item, f"fills with {item.fill!r}, which is not ignored by {self.item.kind.value}"
            )
            return None
        return np.where(lanes != 0, held[:, np.where(lanes != 0, places, 0)], np.uint64(0))

    def is_identity(self, fill: Value) -> bool:
        made = self.values.made_by.get(fill)
        kind = self.item.kind
        return isinstance(made, metal.Constant) and made.value == identity(kind, made.dtype)

    def published(self, buffer: Value) -> Numbers | None:
        """The numbers that lie in threadgroup memory once all of it is written."""
        made = self.values.made_by.get(buffer)
        if not isinstance(made, metal.ThreadgroupAlloc):
            self.add(self.item, f"reads {buffer!r}, expected an allocation made before")
            return None
        users = [item for item in walk(self.func.body) if buffer in item.operands()]
        for user in users:
            if user not in self.cone.ops or user not in self.order:
                self.add(
                    user,
                    f"uses {made.slot}, expected only the accesses of the reduction in line "
                    f"{self.item.loc.line}",
                )
        stores = [user for user in users if isinstance(user, metal.ThreadgroupStore)]
        loads = [user for user in users if isinstance(user, metal.ThreadgroupLoad)]
        self.ordered(made, stores, loads)
        held = np.zeros((2, made.elements), np.uint64)
        written = np.zeros(made.elements, np.int64)
        for store in stores:
            value = self.of(store.value)
            found = self.table(store, store.index, store.mask, made.elements)
            if value is None or found is None:
                return None
            if element(store.value) != made.dtype:
                self.add(store, f"stores {element(store.value)} to {made.slot} of {made.dtype}")
            who = np.flatnonzero(found[1])
            written += np.bincount(found[0][who], minlength=made.elements)
            held[:, found[0][who]] = value[:, who]
        wrong = np.flatnonzero(written != 1)
        if wrong.size:
            place = int(wrong[0])
            text = (
                f"element {place} of {made.slot} is written {written[place]} times, expected once"
            )
            self.add(made, text)
        return None if self.findings else held

    def ordered(
        self,
        made: metal.ThreadgroupAlloc,
        stores: list[metal.ThreadgroupStore],
        loads: list[metal.ThreadgroupLoad],
    ) -> None:
        """All of it is written, then comes a barrier, then it is read."""
        last = max((self.order.get(store, 0) for store in stores), default=0)
        first = min((self.order.get(load, 0) for load in loads), default=0)
        between = [item for item, place in self.order.items() if last <= place < first]
        if not any(isinstance(item, metal.Barrier) for item in between):
            late = max(stores, key=lambda store: self.order.get(store, 0), default=made)
            self.add(
                late,
                f"no barrier stands between all writes to {made.slot} and the first read of it",
            )

    def table(
        self, item: Op, index: Value, mask: Value | None, count: int
    ) -> tuple[Indices, Indices] | None:
        """Each thread's element of threadgroup memory, and whether it takes part."""
        places = self.values.evaluate(index)
        everyone: Indices | None = np.ones(self.func.threads, np.int64)
        lanes = everyone if mask is None else self.values.evaluate(mask)
        if places is None or lanes is None:
            what = "index" if places is None else "mask"
            self.add(item, f"its {what} is no function of the thread index")
            return None
        used = places[lanes != 0]
        if used.size and (int(used.min()) < 0 or int(used.max()) >= count):
            self.add(item, f"accesses element {used.max()} of {count}")
            return None
        return places, lanes


def check_planned_axis(item: planned.Reduce) -> str:
    """What is wrong with the memory of a planned reduction along an axis, or nothing.

    Expected is an element for each simdgroup and row it has part of, where a row has several.
    """
    type_ = item.src.type
    if not isinstance(type_, TileType) or item.axis is None:
        return f"reduces {type_}, expected a tile"
    if not isinstance(type_.layout, ThreadLayout):
        return f"reduces {type_}, expected one owner of each element"
    rows = rows_of(type_.layout, type_.shape, item.axis)
    groups = np.arange(rows.size) % type_.layout.thread_count // SIMD_WIDTH
    pairs = np.unique(np.stack([rows, groups]), axis=1)
    spans = bool((np.bincount(pairs[0]) > 1).any())
    needed = pairs.shape[1] if spans else 0
    if item.scratch is None:
        return f"has no scratch, expected {needed} {type_.dtype}" if needed else ""
    scratch = item.scratch.type
    assert isinstance(scratch, ScratchType)
    if not needed:
        return "has scratch, expected none where each row lies in one simdgroup"
    if (scratch.elements, scratch.dtype) != (needed, type_.dtype):
        return (
            f"has scratch of {scratch.elements} {scratch.dtype}, expected {needed} {type_.dtype}: "
            "one for each simdgroup and row it has part of"
        )
    return ""
