"""Four neighbouring accesses of one tensor load or store become one group (SPEC V1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from metile_mlx.analysis.consecutive import Sums
from metile_mlx.analysis.ranges import analyse
from metile_mlx.context import Context
from metile_mlx.ir import metal
from metile_mlx.ir.core import Block, Effect, Func, Op, Value
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.report import GroupedAccess, place

Access = metal.Load | metal.Store
Group = tuple[Access, ...]


def group_memory(func: Func, ctx: Context) -> Func:
    """Needs and leaves Stage.THREAD. Returns the same Func when nothing is grouped.

    Slots of one access whose indices follow one another in every thread, in any order of the slots,
    are taken in fours where the last of them stood: between it and the first stands nothing but the
    access itself and pure work, so no access passes another one. Results stay the Values they were.
    Each group is a fact of the report. `Schedule(vector_width=1)` leaves all as it is (SPEC V3).
    Branches hold no register tiles, so only the top level is looked at.
    """
    if ctx.schedule.vector_width == 1:
        return func
    found = list(_Grouping(func).groups())
    if not found:
        return func
    changes: dict[Op, tuple[Op, ...]] = {}
    for group, checked in found:
        changes.update(dict.fromkeys(group.parts, ()))
        changes[group.last] = _grouped(group.parts, checked)
        _report(group.parts, ctx)
    ops = tuple(new for item in func.body.ops for new in changes.get(item, (item,)))
    return func.with_body(Block(ops, func.body.args))


@dataclass(frozen=True)
class _Four:
    """Accesses in the order of their indices, and the one that stands last in the program."""

    parts: Group
    last: Access


class _Grouping:
    """Looks for groups in one program."""

    def __init__(self, func: Func) -> None:
        self._ops = func.body.ops
        self._order = {item: position for position, item in enumerate(self._ops)}
        defined = {value: item for item in self._ops for value in item.results}
        self._wrapped = Sums(defined)
        self._exact = Sums(defined, analyse(func))

    def groups(self) -> Iterator[tuple[_Four, bool]]:
        """Every group, and whether its indices have to be compared at run time."""
        for slots in _accesses(self._ops):
            for parts in self._runs(slots):
                last = max(parts, key=self._order.__getitem__)
                if self._stays_within(parts, last):
                    yield _Four(parts, last), not self._is_exact(parts)

    def _runs(self, slots: Sequence[Access]) -> Iterator[Group]:
        """Fours of slots that follow one another."""
        rest = list(slots)
        while len(rest) >= metal.GROUP_WIDTH:
            away = self._wrapped.distances(rest[0].index, [slot.index for slot in rest])
            near = [(d, slot) for d, slot in zip(away, rest, strict=True) if d is not None]
            rest = [slot for d, slot in zip(away, rest, strict=True) if d is None]
            near.sort(key=lambda pair: pair[0])
            start = 0
            while start + metal.GROUP_WIDTH <= len(near):
                run = near[start : start + metal.GROUP_WIDTH]
                follows = [d for d, _ in run] == list(range(run[0][0], run[0][0] + len(run)))
                if follows:
                    yield tuple(slot for _, slot in run)
                start += metal.GROUP_WIDTH if follows else 1

    def _stays_within(self, parts: Group, last: Access) -> bool:
        """Whether only its own access stands between first and last, and pure work on others."""
        first = min(map(self._order.__getitem__, parts))
        results = {value for part in parts for value in part.results}
        for item in self._ops[first : self._order[last]]:
            own = isinstance(item, Access) and item.access == last.access
            if not (own or item.effect is Effect.PURE) or not results.isdisjoint(item.operands()):
                return False
        return True

    def _is_exact(self, parts: Group) -> bool:
        away = self._exact.distances(parts[0].index, [slot.index for slot in parts])
        return away == list(range(len(parts)))


def _accesses(ops: Sequence[Op]) -> Iterator[list[Access]]:
    """The slots of each tensor access that has several, by array, where groups may hold them."""
    found: dict[tuple[int, Value], list[Access]] = {}
    for item in ops:
        if not isinstance(item, Access) or item.access is None:
            continue
        assert isinstance(item.buffer.type, PointerType)
        assert isinstance(item.index.type, ScalarType)
        if item.buffer.type.dtype in metal.GROUPED_DTYPES and not item.index.type.uniform:
            found.setdefault((item.access, item.buffer), []).append(item)
    yield from found.values()


def _grouped(parts: Group, checked: bool) -> tuple[Op, ...]:
    first = parts[0]
    indices = tuple(part.index for part in parts)
    masks = tuple(part.mask for part in parts)
    # The slots of one access come from one line.
    group: metal.LoadGroup | metal.StoreGroup
    if isinstance(first, metal.Store):
        values = tuple(part.value for part in parts if isinstance(part, metal.Store))
        group = metal.StoreGroup(first.buffer, indices, values, masks, checked, first.access)
        return (replace(group, loc=first.loc),)
    fills = tuple(part.fill for part in parts if isinstance(part, metal.Load))
    group = metal.LoadGroup(first.buffer, indices, masks, fills, checked, first.access)
    name = f"{first.result.name}_group" if first.result.name else ""
    vector = Value(group.infer()[0], name, first.loc)
    extracts = tuple(
        metal.Extract(vector, lane, results=part.results, loc=part.loc)
        for lane, part in enumerate(parts)
    )
    return (replace(group, results=(vector,), loc=first.loc), *extracts)


def _report(parts: Group, ctx: Context) -> None:
    first = parts[0]
    assert isinstance(first.buffer.type, PointerType)
    dtype = str(first.buffer.type.dtype)
    fact = GroupedAccess(first.buffer.name, dtype, len(parts), place(first.loc))
    report = ctx.report
    (report.grouped_loads if isinstance(first, metal.Load) else report.grouped_stores).append(fact)
