"""Four neighbouring accesses of one tensor load or store become one group, or eight (SPEC V1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metile_mlx.analysis.consecutive import Sums
from metile_mlx.analysis.ranges import analyse
from metile_mlx.context import Context
from metile_mlx.dtypes import DType
from metile_mlx.ir import metal
from metile_mlx.ir.core import Block, Effect, Func, Op, Value, definitions
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.report import GroupedAccess, place
from metile_mlx.target import CUDA

Access = metal.Load | metal.Store
Group = tuple[Access, ...]


def group_memory(func: Func, ctx: Context) -> Func:
    """Needs and leaves Stage.THREAD. Returns the same Func when nothing is grouped.

    Slots of one access whose indices follow one another in every thread, in any order of the slots,
    are taken in fours where the last of them stood: between it and the first stands nothing but the
    access itself and pure work, so no access passes another one. Results stay the Values they were.
    Each group is a fact of the report. `Schedule(vector_width=1)` leaves all as it is (SPEC V3).
    What stands in a branch or a loop is taken together within its block.

    On CUDA eight 16-bit neighbours are one access, and the bounds of a declared view stand in for
    the comparison of indices: its compiler would keep a branch at each group, and wait for what one
    group loads before it asks for the next.
    """
    if ctx.schedule.vector_width == 1:
        return func
    return func.with_body(_block(func.body, _Neighbours(func, ctx.target == CUDA), ctx))


def _block(block: Block, neighbours: _Neighbours, ctx: Context) -> Block:
    """The block with its groups, and those of the blocks in it; the same one without any."""
    changes: dict[Op, tuple[Op, ...]] = {}
    for item in block.ops:
        inner: dict[str, Any] = {
            name: made
            for name in item.block_fields
            if (made := _block(getattr(item, name), neighbours, ctx)) is not getattr(item, name)
        }
        if inner:
            changes[item] = (replace(item, **inner),)
    for group in _Grouping(block.ops, neighbours).groups():
        changes.update(dict.fromkeys(group.parts, ()))
        changes[group.last] = _grouped(group)
        _report(group, ctx)
    if not changes:
        return block
    ops = tuple(new for item in block.ops for new in changes.get(item, (item,)))
    return Block(ops, block.args)


@dataclass(frozen=True)
class _Found:
    """Accesses in the order of their indices, and the one that stands last in the program.

    `checked`: whether the order has to be confirmed at run time.
    """

    parts: Group
    last: Access
    checked: bool


class _Neighbours:
    """Which indices of a program follow one another; `is_cuda`: for CUDA."""

    def __init__(self, func: Func, is_cuda: bool) -> None:
        self.is_cuda = is_cuda
        defined = definitions(func)
        self.wrapped = Sums(defined)
        self._exact = Sums(defined, analyse(func))

    def is_exact(self, parts: Group) -> bool:
        # Numbers below 2**31 that follow one another modulo 2**32 follow one another.
        if self.is_cuda and all(part.bounded for part in parts):
            return True
        away = self._exact.distances(parts[0].index, [slot.index for slot in parts])
        return away == list(range(len(parts)))


class _Grouping:
    """Looks for groups in one block."""

    def __init__(self, ops: Sequence[Op], neighbours: _Neighbours) -> None:
        self._ops = ops
        self._neighbours = neighbours
        self._order = {item: position for position, item in enumerate(ops)}

    def groups(self) -> Iterator[_Found]:
        """Every eight and four."""
        for slots in _accesses(self._ops):
            eights: list[Group] = []
            if self._neighbours.is_cuda and _dtype(slots[0]).bits == 16:
                eights = list(self._runs(slots, metal.GROUP_WIDTHS[-1]))
            taken = {part for eight in eights for part in eight}
            rest = [part for part in slots if part not in taken]
            for parts in (*eights, *self._runs(rest, metal.GROUP_WIDTHS[0])):
                last = max(parts, key=self._order.__getitem__)
                if self._stays_within(parts, last):
                    yield _Found(parts, last, not self._neighbours.is_exact(parts))

    def _runs(self, slots: Sequence[Access], width: int) -> Iterator[Group]:
        """Slots that follow one another, `width` at a time."""
        rest = list(slots)
        while len(rest) >= width:
            away = self._neighbours.wrapped.distances(rest[0].index, [slot.index for slot in rest])
            near = [(d, slot) for d, slot in zip(away, rest, strict=True) if d is not None]
            rest = [slot for d, slot in zip(away, rest, strict=True) if d is None]
            near.sort(key=lambda pair: pair[0])
            start = 0
            while start + width <= len(near):
                run = near[start : start + width]
                follows = [d for d, _ in run] == list(range(run[0][0], run[0][0] + width))
                if follows:
                    yield tuple(slot for _, slot in run)
                start += width if follows else 1

    def _stays_within(self, parts: Group, last: Access) -> bool:
        """Whether only its own access stands between first and last, and pure work on others."""
        first = min(map(self._order.__getitem__, parts))
        results = {value for part in parts for value in part.results}
        for item in self._ops[first : self._order[last]]:
            own = isinstance(item, Access) and item.access == last.access
            if not (own or item.effect is Effect.PURE) or not results.isdisjoint(item.operands()):
                return False
        return True


def _accesses(ops: Sequence[Op]) -> Iterator[list[Access]]:
    """The slots of each tensor access that has several, by array, where groups may hold them."""
    found: dict[tuple[int, Value], list[Access]] = {}
    for item in ops:
        if not isinstance(item, Access) or item.access is None:
            continue
        assert isinstance(item.index.type, ScalarType)
        if _dtype(item) in metal.GROUPED_DTYPES and not item.index.type.uniform:
            found.setdefault((item.access, item.buffer), []).append(item)
    yield from found.values()


def _dtype(item: Access) -> DType:
    assert isinstance(item.buffer.type, PointerType)
    return item.buffer.type.dtype


def _grouped(found: _Found) -> tuple[Op, ...]:
    parts, first = found.parts, found.parts[0]
    indices = tuple(part.index for part in parts)
    masks = tuple(part.mask for part in parts)
    # The slots of one access come from one line.
    facts = (found.checked, first.access, all(part.bounded for part in parts))
    group: metal.LoadGroup | metal.StoreGroup
    if isinstance(first, metal.Store):
        values = tuple(part.value for part in parts if isinstance(part, metal.Store))
        group = metal.StoreGroup(first.buffer, indices, values, masks, *facts)
        return (replace(group, loc=first.loc),)
    fills = tuple(part.fill for part in parts if isinstance(part, metal.Load))
    group = metal.LoadGroup(first.buffer, indices, masks, fills, *facts)
    vectors = []
    for kind, part in zip(group.infer(), parts[:: metal.GROUP_WIDTH], strict=True):
        name = f"{part.result.name}_group" if part.result.name else ""
        vectors.append(Value(kind, name, first.loc))
    extracts = (
        metal.Extract(
            vectors[k // metal.GROUP_WIDTH],
            k % metal.GROUP_WIDTH,
            results=part.results,
            loc=part.loc,
        )
        for k, part in enumerate(parts)
    )
    return (replace(group, results=tuple(vectors), loc=first.loc), *extracts)


def _report(found: _Found, ctx: Context) -> None:
    first = found.parts[0]
    fact = GroupedAccess(first.buffer.name, str(_dtype(first)), len(found.parts), place(first.loc))
    report = ctx.report
    (report.grouped_loads if isinstance(first, metal.Load) else report.grouped_stores).append(fact)
