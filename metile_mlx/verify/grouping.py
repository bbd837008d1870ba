"""Groups of memory accesses: neighbours for every thread, and no other accesses than before (V4).

Indices are worked out for each thread: what depends on the thread index alone as numbers, the rest
as numbers times values that are the same whenever the ops are. Nothing is assumed of their form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from metile_mlx.analysis.ranges import Ranges, analyse
from metile_mlx.dtypes import i32, i64, u32, u64
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, element
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.structure import is_threaded
from metile_mlx.verify.thread_values import thread_values

_WIDE = (i32, u32, i64, u64)
_GROUPS = (metal.LoadGroup, metal.StoreGroup)
_SCALARS = (metal.Load, metal.Store)
Row: TypeAlias = "NDArray[np.uint64]"
# What multiplies each opaque value, one number per thread; None: what is added.
Parts: TypeAlias = "dict[Value | None, Row]"
# What takes each lane of a vector apart.
Extracts: TypeAlias = "dict[tuple[Value, int], Value]"
# One element's access: array, index, mask, and the value stored, or the fill and the result; then
# whether the bounds of a view hold it.
Part: TypeAlias = "tuple[Value | bool | None, ...]"


def check_grouping(func: Func, before: Func | None) -> list[Finding]:
    """All faults of the groups of a Stage.THREAD program; `before` may be of any stage, or None."""
    findings = _vectors(func)
    groups = [item for item in walk(func.body) if isinstance(item, _GROUPS)]
    if groups:
        findings += _consecutive(func, groups)
        findings += [f for block in _blocks(func.body) for f in _undivided(block)]
    known = frozenset() if before is None else frozenset(map(id, walk(before.body)))
    fresh = [item for item in groups if id(item) not in known]
    if fresh and before is not None and not findings:
        findings += _compare(before, func, fresh)
    return findings


def _blocks(block: Block) -> Iterator[Block]:
    """A block and all that stand in it, in program order."""
    yield block
    for item in block.ops:
        for inner in item.blocks():
            yield from _blocks(inner)


def _vectors(func: Func) -> list[Finding]:
    """Vectors are loaded, then taken apart, and used by nobody else."""
    findings: list[Finding] = []
    loaded: set[Value] = set()
    for item in walk(func.body):
        if isinstance(item, metal.LoadGroup):
            loaded.update(item.results)
        if isinstance(item, metal.Extract):
            if item.vector not in loaded:
                findings.append(Finding(item, f"is not dominated by its vector, {item.vector!r}"))
        elif not loaded.isdisjoint(item.operands()):
            findings.append(Finding(item, "uses a vector, expected a scalar extracted from it"))
    return findings


def _consecutive(func: Func, groups: Sequence[Op]) -> list[Finding]:
    findings = []
    wrapped, exact = _Indices(func, None), _Indices(func, analyse(func))
    for item in groups:
        assert isinstance(item, _GROUPS)
        fault = wrapped.fault(item.indices)
        if fault:
            findings.append(Finding(item, fault))
        elif not item.checked and not item.bounded and exact.fault(item.indices):
            text = "compares no indices, but nothing excludes that one of them wraps"
            findings.append(Finding(item, text))
    return findings


class _Indices:
    """Index arithmetic in every thread: modulo 2**32, or in whole numbers where `ranges` say so."""

    def __init__(self, func: Func, ranges: Ranges | None) -> None:
        self.values = thread_values(func)
        self.ranges = ranges
        self.mask = np.uint64((1 << (32 if ranges is None else 64)) - 1)
        self._known: dict[Value, Parts] = {}

    def fault(self, indices: Sequence[Value]) -> str:
        """Why the indices don't follow one another in every thread; empty when they do."""
        first = self.parts(indices[0])
        for lane, index in enumerate(indices[1:], 1):
            there = self.parts(index)
            for value in first.keys() | there.keys():
                away = self._row(there, value) - self._row(first, value)
                wrong = (away & self.mask) != (lane if value is None else 0)
                if wrong.any():
                    thread = int(np.argmax(wrong))
                    far = int(away[thread].astype(np.int64 if self.ranges else np.int32))
                    what = f"{far} elements" if value is None else f"another multiple of {value!r}"
                    return (
                        f"index {lane} lies {what} behind the first in thread {thread}, "
                        f"expected {lane} in every thread"
                    )
        return ""

    def _row(self, parts: Parts, value: Value | None) -> Row:
        return parts.get(value, np.zeros(self.values.threads, np.uint64))

    def parts(self, value: Value) -> Parts:
        """What the value is in every thread."""
        if value not in self._known:
            table = self.values.evaluate(value)
            item = self.values.made_by.get(value)
            if table is not None:
                found: Parts | None = {None: table.astype(np.uint64) & self.mask}
            else:
                found = self._taken_apart(item)
            one = np.ones(self.values.threads, np.uint64)
            self._known[value] = {value: one} if found is None else found
        return self._known[value]

    def _taken_apart(self, item: Op | None) -> Parts | None:
        if isinstance(item, metal.Cast):
            wide = item.dtype in _WIDE and element(item.src) in _WIDE
            return self.parts(item.src) if wide and self._same_number(item) else None
        if not isinstance(item, metal.Binary) or element(item.lhs) not in _WIDE:
            return None
        if self.ranges and element(item.lhs).bits < 64:
            kinds = (BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL)
            if item.kind not in kinds or not self.ranges.excludes_wrap(
                item.kind, item.lhs, item.rhs
            ):
                return None
        lhs, rhs = self.parts(item.lhs), self.parts(item.rhs)
        match item.kind:
            case BinaryKind.ADD | BinaryKind.SUB:
                sign = np.uint64(1 if item.kind is BinaryKind.ADD else int(self.mask))
                return {
                    v: self._row(lhs, v) + sign * self._row(rhs, v) & self.mask for v in lhs | rhs
                }
            case BinaryKind.MUL if set(rhs) <= {None} or set(lhs) <= {None}:
                by, factor = (lhs, rhs) if set(rhs) <= {None} else (rhs, lhs)
                return {v: row * self._row(factor, None) & self.mask for v, row in by.items()}
            case BinaryKind.SHL if set(rhs) <= {None}:
                count = self._row(rhs, None) & np.uint64(element(item.lhs).bits - 1)
                return {v: row << count & self.mask for v, row in lhs.items()}
            case _:
                return None

    def _same_number(self, item: metal.Cast) -> bool:
        if self.ranges is None or item.dtype.bits == 64:
            return True
        interval = self.ranges.of(item.src)
        return item.dtype.min <= interval.lo and interval.hi <= item.dtype.max


def _accesses(block: Block) -> list[Op]:
    """The ops of a block itself that access arrays."""
    return [item for item in block.ops if isinstance(item, _GROUPS + _SCALARS)]


def _number(item: Op) -> int | None:
    assert isinstance(item, _GROUPS + _SCALARS)
    return item.access


def _undivided(block: Block) -> list[Finding]:
    """The parts of one tensor access stand together."""
    findings = []
    done: set[int] = set()
    last: int | None = None
    for item in _accesses(block):
        number = _number(item)
        if number is None and isinstance(item, _GROUPS):
            findings.append(Finding(item, "belongs to no tensor access"))
        if number is not None and number != last and number in done:
            text = "stands apart from the access it belongs to, expected no other access between"
            findings.append(Finding(item, text))
        if number is not None:
            done.add(number)
        last = number
    return findings


def _compare(before: Func, func: Func, fresh: Iterable[Op]) -> list[Finding]:
    """Each access has the parts it had, with their masks, fills and values, in the same place."""
    if not is_threaded(before):
        return [Finding(item, "was in no program before, expected scalars first") for item in fresh]
    was, now = list(_blocks(before.body)), list(_blocks(func.body))
    if len(was) != len(now):
        return [Finding(None, f"has {len(now)} blocks, expected {len(was)} as before")]
    formerly, extracted = _extracts(before), _extracts(func)
    pairs = zip(was, now, strict=True)
    return [finding for pair in pairs for finding in _changed(*pair, formerly, extracted)]


def _changed(was: Block, now: Block, formerly: Extracts, extracted: Extracts) -> list[Finding]:
    """The first access of a block that is another than before."""
    old, new = list(_runs(_accesses(was))), list(_runs(_accesses(now)))
    for position, here in enumerate(new):
        parts = [part for item in here for part in _parts(item, extracted)]
        there = old[position] if position < len(old) else []
        expected = [part for item in there for part in _parts(item, formerly)]
        if _number(here[0]) != (_number(there[0]) if there else None):
            return [Finding(here[0], "stands in the place of another access, expected its own")]
        for item in here:
            for part in _parts(item, extracted):
                if part not in expected:
                    return [Finding(item, _difference(item, part, expected))]
        if len(parts) != len(expected):
            text = f"accesses {len(parts)} elements, expected {len(expected)} as before"
            return [Finding(here[0], text)]
    gone = old[len(new) : len(new) + 1]
    return [Finding(run[0], "is missing in the program after") for run in gone]


def _runs(items: Iterable[Op]) -> Iterator[list[Op]]:
    """The ops of each access; one without a number is one of its own."""
    run: list[Op] = []
    for item in items:
        if run and (_number(item) is None or _number(item) != _number(run[0])):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def _extracts(func: Func) -> Extracts:
    return {
        (item.vector, item.lane): item.result
        for item in walk(func.body)
        if isinstance(item, metal.Extract)
    }


def _parts(item: Op, extracted: Extracts) -> list[Part]:
    match item:
        case metal.LoadGroup():
            vectors = [(v, k) for v in item.results for k in range(metal.GROUP_WIDTH)]
            return [
                (item.buffer, *part, extracted.get(lane), item.bounded)
                for lane, part in zip(vectors, item.parts(), strict=True)
            ]
        case metal.StoreGroup():
            return [(item.buffer, *part, None, item.bounded) for part in item.parts()]
        case metal.Load():
            return [(item.buffer, item.index, item.mask, item.fill, item.result, item.bounded)]
        case metal.Store():
            return [(item.buffer, item.index, item.value, item.mask, None, item.bounded)]
        case _:
            return []


def _difference(item: Op, part: Part, expected: list[Part]) -> str:
    same = next((p for p in expected if p[:2] == part[:2]), None)
    if same is None:
        return f"accesses {part[1]!r}, which this access did not before"
    names = (
        ("mask", "fill", "result", "claim to be in bounds")
        if isinstance(item, metal.LoadGroup)
        else ("value", "mask", "", "claim to be in bounds")
    )
    what = next(n for n, a, b in zip(names, part[2:], same[2:], strict=True) if a is not b)
    return f"has another {what} at {part[1]!r} than the scalar before, expected the same"
