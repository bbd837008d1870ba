"""Reductions: dedicated memory, one partial per simdgroup, a total that is the same everywhere.

Private scratch has no release barrier, so it has to be immutable once published: one store, one
barrier, one load, and nobody else (SPEC R2, R3, F43, F49). What a thread addresses is evaluated for
every thread; nothing is assumed of the form of an index or a mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from metile_mlx.dtypes import DType
from metile_mlx.ir import metal, planned
from metile_mlx.ir.arith import COMBINE, BinaryKind, CombineKind, element, identity
from metile_mlx.ir.core import Func, Op, Value, definitions, walk
from metile_mlx.ir.lanes import SharedAlloc, ThreadLaneReduce
from metile_mlx.ir.types import TileType
from metile_mlx.layout.affine import Indices
from metile_mlx.target import SIMD_WIDTH
from metile_mlx.verify.axis_reductions import check_planned_axis, cones
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.order import declared
from metile_mlx.verify.structure import is_threaded
from metile_mlx.verify.thread_values import thread_values


def check_planned_reductions(func: Func) -> list[Finding]:
    """All faults of the reductions of a Stage.PLANNED program."""
    groups = func.threads // SIMD_WIDTH
    made_by = {value: item for item in func.body.ops for value in item.results}
    users = _users(func)
    findings: list[Finding] = []
    for item in walk(func.body):
        if not isinstance(item, planned.Reduce):
            continue
        if item.axis is not None and (text := check_planned_axis(item)):
            findings.append(Finding(item, text))
        if item.scratch is None:
            if groups > 1 and item.axis is None:
                dtype = element(item.src)
                text = f"has no scratch, expected one {dtype} for each of {groups} simdgroups"
                findings.append(Finding(item, text))
            continue
        source = made_by.get(item.scratch)
        if not isinstance(source, planned.Scratch):
            findings.append(Finding(item, "its scratch is not the result of tile.scratch"))
            continue
        if item.axis is None:
            texts = _memory(source, groups, element(item.src))
            findings += [Finding(item, text) for text in texts]
        for other in users[item.scratch]:
            if other is not item:
                text = (
                    f"uses {source.slot} of the reduction in line {item.loc.line}, expected it to "
                    "serve that one only"
                )
                findings.append(Finding(other, text))
    return findings


def _memory(item: planned.Scratch | metal.ThreadgroupAlloc, groups: int, dtype: DType) -> list[str]:
    found = []
    if groups == 1:
        found.append(f"has {item.slot}, expected no scratch for one simdgroup")
    elif item.elements != groups:
        found.append(
            f"{item.slot} has {item.elements} elements, expected one for each of {groups} "
            "simdgroups"
        )
    if item.dtype != dtype:
        found.append(f"{item.slot} holds {item.dtype}, expected {dtype}")
    return found


# What makes the values whose users matter here.
_SOURCES = (planned.Scratch, metal.ThreadgroupAlloc, metal.ThreadgroupLoad, metal.SimdReduce)


def _users(func: Func) -> dict[Value, list[Op]]:
    """Who uses threadgroup memory, what is loaded from it, and what simdgroups combine."""
    users: dict[Value, list[Op]] = {
        value: []
        for item in walk(func.body)
        if isinstance(item, _SOURCES)
        for value in item.results
    }
    for item in walk(func.body):
        for value in item.operands():
            if value in users and item not in users[value][-1:]:
                users[value].append(item)
    return users


@lru_cache(maxsize=4)
def partials(func: Func) -> frozenset[Value]:
    """The threadgroup memory in which reductions of a Stage.THREAD program keep their partials.

    Known by its use: it is accessed under a mask, or holds what a simdgroup has combined, or feeds
    a total. So a faulty reduction is still taken for one.
    """
    made_by = definitions(func)
    found: set[Value] = {buffer for cone in cones(func) for buffer in cone.buffers}
    for item in walk(func.body):
        match item:
            case metal.ThreadgroupStore():
                source = made_by.get(item.value)
                is_partial = isinstance(source, metal.SimdReduce) and not source.uniform
                if item.mask is not None or is_partial:
                    found.add(item.buffer)
            case metal.ThreadgroupLoad() if item.mask is not None:
                found.add(item.buffer)
            case metal.SimdReduce(uniform=True) if func.threads > SIMD_WIDTH:
                source = made_by.get(item.src)
                if isinstance(source, metal.ThreadgroupLoad):
                    found.add(source.buffer)
            case _:
                pass
    return frozenset(found) - declared(func)


def check_reductions(func: Func, before: Func | None) -> list[Finding]:
    """All faults of the reductions of a Stage.THREAD program; `before` may be planned or None."""
    if not any(isinstance(i, metal.SimdReduce | metal.ThreadgroupAlloc) for i in walk(func.body)):
        return []
    checker = _Threads(func)
    checker.run()
    if before is not None and not checker.findings:
        checker.compare(before)
    return checker.findings


class _Threads:
    """The reductions of one per-thread program."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.groups = func.threads // SIMD_WIDTH
        self.values = thread_values(func)
        self.users = _users(func)
        self.ops = tuple(walk(func.body))
        self.order = {item: position for position, item in enumerate(self.ops)}
        # What verify/axis_reductions.py looks at.
        self.stated = frozenset(op for cone in cones(func) for op in cone.ops)
        self.elsewhere = frozenset(buffer for cone in cones(func) for buffer in cone.buffers)
        self.findings: list[Finding] = []

    def add(self, item: Op, message: str) -> None:
        self.findings.append(Finding(item, message))

    def run(self) -> None:
        for buffer in sorted(partials(self.func) - self.elsewhere, key=self._position):
            item = self.values.made_by.get(buffer)
            # An access to what nobody allocated is a finding of check_communication.
            if isinstance(item, metal.ThreadgroupAlloc):
                self.memory(item)
        for item in self.ops:
            if item in self.stated or isinstance(item, ThreadLaneReduce):
                continue
            match item:
                case metal.SimdReduce(uniform=True):
                    self.total(item)
                case metal.SimdReduce():
                    self.partial(item)
                case _:
                    pass

    def _position(self, buffer: Value) -> int:
        item = self.values.made_by.get(buffer)
        return -1 if item is None else self.order[item]

    def total(self, item: metal.SimdReduce) -> None:
        """All simdgroups combine the same: the published partials, or there is one simdgroup."""
        source = self.values.made_by.get(item.src)
        if self.groups > 1 and not isinstance(source, metal.ThreadgroupLoad):
            self.add(
                item,
                "combines the values of its own simdgroup and is typed uniform, expected the "
                f"partials of all {self.groups} simdgroups",
            )

    def partial(self, item: metal.SimdReduce) -> None:
        for user in self.users[item.result]:
            if not isinstance(user, metal.ThreadgroupStore) or user.value is not item.result:
                self.add(user, "uses what one simdgroup has combined, expected the uniform total")

    def memory(self, item: metal.ThreadgroupAlloc) -> None:
        """One piece of scratch: who accesses it, when, and with which elements."""
        users = self.users[item.result]
        stores = [user for user in users if isinstance(user, metal.ThreadgroupStore)]
        loads = [user for user in users if isinstance(user, metal.ThreadgroupLoad)]
        dtype = element(stores[0].value) if stores else item.dtype
        for text in _memory(item, self.groups, dtype):
            self.add(item, text)
        for user in users:
            buffer = getattr(user, "buffer", None)
            if user not in self.order or buffer is not item.result:
                self.add(
                    user, f"uses {item.slot}, expected only the accesses of the reduction it serves"
                )
        if not stores or not loads:
            what = "read" if loads else "written"
            self.add(item, f"{item.slot} is only {what}, expected the partials of a reduction")
            return
        store, load = stores[0], loads[0]
        self.publication(item, store, load)
        for writer in stores[1:]:
            self.add(
                writer,
                f"writes {item.slot} after the store of line {store.loc.line}, expected it to be "
                "immutable after publication",
            )
        for reader in loads[1:]:
            self.add(
                reader,
                f"reads {item.slot}, expected it to serve the reduction of line {load.loc.line} "
                "only",
            )
        self.written(item, store)
        self.read(item, load)

    def publication(self, item: metal.ThreadgroupAlloc, store: Op, load: Op) -> None:
        first, last = self.order.get(store, 0), self.order.get(load, 0)
        between = self.ops[first:last]
        if not any(isinstance(other, metal.Barrier) for other in between):
            self.add(
                load,
                f"reads {item.slot} before the store of line {store.loc.line} is published, "
                "expected a barrier between them",
            )

    def written(self, item: metal.ThreadgroupAlloc, store: metal.ThreadgroupStore) -> None:
        """One thread of each simdgroup writes its partial, each to another element."""
        source = self.values.made_by.get(store.value)
        if not isinstance(source, metal.SimdReduce) or source.uniform:
            self.add(store, f"stores {store.value!r}, expected what a simdgroup has combined")
        found = self._table(store, store.index, store.mask)
        if found is None:
            return
        places, lanes = found
        who = np.flatnonzero(lanes)
        expected = list(range(self.groups))
        if list(who // SIMD_WIDTH) != expected or list(places[who]) != expected:
            self.add(
                store,
                f"{who.size} threads write to elements {_shown(places[who])} of {item.slot}, "
                f"expected one of each of {self.groups} simdgroups to write one of "
                f"{_shown(expected)}",
            )

    def read(self, item: metal.ThreadgroupAlloc, load: metal.ThreadgroupLoad) -> None:
        """Every simdgroup reads each partial once, in the same lanes, and combines nothing else."""
        users = self.users.get(load.result, [])
        totals = [user for user in users if isinstance(user, metal.SimdReduce) and user.uniform]
        if len(totals) != 1 or len(users) != 1:
            self.add(load, f"its {len(users)} uses are not the one total of a reduction")
            return
        if load.fill is not None and not self._is_identity(load.fill, totals[0].kind):
            wanted = identity(totals[0].kind, element(load.fill))
            self.add(load, f"fills with {load.fill!r}, expected {wanted}")
        found = self._table(load, load.index, load.mask)
        if found is None:
            return
        places, lanes = found
        rows = np.where(lanes != 0, places, -1).reshape(-1, SIMD_WIDTH)
        expected = list(range(self.groups))
        for group, row in enumerate(rows):
            kept = row[row >= 0]
            if list(kept) != expected or (row != rows[0]).any():
                self.add(
                    load,
                    f"simdgroup {group} reads elements {_shown(kept)} of {item.slot}, expected "
                    f"{_shown(expected)}, each once and in the same lanes everywhere",
                )
                return

    def _is_identity(self, fill: Value, kind: CombineKind) -> bool:
        source = self.values.made_by.get(fill)
        return isinstance(source, metal.Constant) and source.value == identity(kind, source.dtype)

    def _table(self, item: Op, index: Value, mask: Value | None) -> tuple[Indices, Indices] | None:
        """Each thread's element, and whether it takes part."""
        places = self.values.evaluate(index)
        everyone: Indices | None = np.ones(self.values.threads, np.int64)
        lanes = everyone if mask is None else self.values.evaluate(mask)
        if places is None or lanes is None:
            what = "index" if places is None else "mask"
            self.add(item, f"its {what} is no function of the thread index")
            return None
        return places, lanes

    def compare(self, before: Func) -> None:
        """Each planned reduction has become one, over all register slots, in its own scratch."""
        if is_threaded(before):
            return
        known = {item.slot for item in before.body.ops if isinstance(item, planned.Scratch)}
        for item in self.ops:
            is_planned = isinstance(item, metal.ThreadgroupAlloc) and item.slot in known
            if isinstance(item, metal.ThreadgroupAlloc) and not (
                is_planned or isinstance(item, SharedAlloc)
            ):
                self.add(item, f"{item.slot} is no threadgroup memory that was planned")
        wanted = [
            item
            for item in walk(before.body)
            if isinstance(item, planned.Reduce) and item.axis is None
        ]
        made = [
            item
            for item in self.ops
            if isinstance(item, metal.SimdReduce) and item.uniform and item not in self.stated
        ]
        for plan, total in zip(wanted, made, strict=False):
            assert isinstance(plan.src.type, TileType)
            assert plan.src.type.layout is not None
            registers = plan.src.type.layout.elements_per_thread
            first = self._local(total)
            if (first.kind, total.kind) != (plan.kind, plan.kind):
                text = f"combines by {first.kind.value}, expected the {plan.kind.value} of line "
                self.add(first, f"{text}{plan.loc.line}")
            elif not self._combines(first.src, registers, COMBINE[plan.kind]):
                self.add(
                    first,
                    f"combines another number of values than {registers} per thread, expected the "
                    f"balanced tree of line {plan.loc.line}",
                )

    def _local(self, total: metal.SimdReduce) -> metal.SimdReduce:
        """The reduction within simdgroups that a total without faults comes from."""
        if self.groups == 1:
            return total
        load = self.values.made_by[total.src]
        assert isinstance(load, metal.ThreadgroupLoad)
        stored = [u.value for u in self.users[load.buffer] if isinstance(u, metal.ThreadgroupStore)]
        found = self.values.made_by[stored[0]]
        assert isinstance(found, metal.SimdReduce)
        return found

    def _combines(self, value: Value, count: int, kind: BinaryKind) -> bool:
        """Whether `value` is a balanced tree over `count` values."""
        if count == 1:
            return True
        item = self.values.made_by.get(value)
        return (
            isinstance(item, metal.Binary)
            and item.kind is kind
            and self._combines(item.lhs, count // 2, kind)
            and self._combines(item.rhs, count // 2, kind)
        )


def _shown(numbers: Iterable[int]) -> str:
    """A few numbers as text."""
    found = [int(number) for number in numbers]
    text = ", ".join(map(str, found[:4]))
    return f"{text}, ... {found[-1]}" if len(found) > 4 else text or "none"
