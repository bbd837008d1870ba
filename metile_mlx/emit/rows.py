"""Rows of tiles in loops over threads: runs in which indices stand still or count by one (X4).

A tile of two dimensions lies in order over the threads: a thread's row is its index shifted, its
column its index masked. A loop over one row at a time sees the row as a constant and the column
count, so that compilers see neighbours in memory, and what is out of bounds is whole rows, or the
end of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from metile_mlx.emit.recomputation import Recomputation
from metile_mlx.emit.segments import Row, Segment, reads
from metile_mlx.emit.thread_tables import ThreadTables, is_uniform
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import Effect, Op, Value
from metile_mlx.ir.metal import Binary, Store

# Shorter rows are not worth a loop.
_SHORTEST = 16


class Rows:
    """The rows of the loops of one kernel.

    Args:
        threads: of a threadgroup.
        tables: what index arithmetic gives in every thread.
    """

    def __init__(self, threads: int, tables: ThreadTables) -> None:
        self._threads = threads
        self._tables = tables

    def part(
        self, segment: Segment, again: Recomputation, place: Callable[[Value], Value]
    ) -> list[Segment]:
        """The loop as loops over rows, as many as can run one after the other; else itself.

        Args:
            segment: of which no op is written yet.
            again: what is computed again where it is used.
            place: the value in whose place a value is kept.
        """
        used = {item: again.used(item, segment.assigned) for item in segment.assigned}
        row = self.of(item for items in used.values() for item in items)
        if row is None or segment.span is not None:
            return [segment]
        made = []
        for items in _apart(segment.assigned, used, place):
            results = {value for item in items for value in item.results}
            made.append(Segment(items, row=row, kept=segment.kept & results))
        return made

    def of(self, ops: Iterable[Op]) -> Row | None:
        """The longest rows that all indices of `ops` agree on; None where there are none."""
        found = [item.result for item in ops if isinstance(item, Binary) and self._is_part(item)]
        size = self._threads
        while found and size > _SHORTEST:
            size //= 2
            kinds = {value: self._kind(value, size) for value in found}
            if None not in kinds.values():
                counting = {v: kind == "from 0" for v, kind in kinds.items() if kind != "fixed"}
                fixed = frozenset(v for v, kind in kinds.items() if kind == "fixed")
                return Row(size, fixed, counting) if fixed and counting else None
        return None

    def _is_part(self, item: Binary) -> bool:
        """Some bits of the thread index."""
        return (
            self._tables.is_thread_index(item.lhs)
            and item.kind in (BinaryKind.AND, BinaryKind.SHR)
            and self._tables.table(item.result) is not None
            and not self._tables.is_thread_index(item.result)
        )

    def _kind(self, value: Value, size: int) -> str | None:
        table = self._tables.table(value)
        assert table is not None
        rows = table.reshape(-1, size)
        behind = rows - rows[:, :1]
        if not behind.any():
            return "fixed"
        if not bool((behind == np.arange(size)).all()):
            return None
        return "offset" if rows[:, 0].any() else "from 0"


def _apart(
    items: Sequence[Op], used: Mapping[Op, Iterable[Op]], place: Callable[[Value], Value]
) -> list[list[Op]]:
    """Ops of one loop as several that can run one after the other, in program order.

    One where they do more than load, compute and store, or write one array in turns.
    """
    if any(item.effect & ~(Effect.READ | Effect.WRITE) for item in items) or any(
        item.effect & Effect.WRITE and not isinstance(item, Store) for item in items
    ):
        return [list(items)]
    leader = {item: item for item in items}

    def find(item: Op) -> Op:
        while leader[item] is not item:
            item = leader[item]
        return item

    first: dict[Value, Op] = {}
    for item in items:
        for other in used[item]:
            if other in leader:
                leader[find(item)] = find(other)
        # What is overwritten in its place stays with all that is read there.
        touched = [*item.results, *(v for v in reads(item) if not is_uniform(v))]
        for value in map(place, touched):
            leader[find(item)] = find(first.setdefault(value, item))
    groups: dict[Op, list[Op]] = {}
    for item in items:
        groups.setdefault(find(item), []).append(item)
    parts = list(groups.values())
    in_turns = _stores(items) != _stores([item for part in parts for item in part])
    return [list(items)] if in_turns else parts


def _stores(items: Iterable[Op]) -> dict[Value, list[Op]]:
    found: dict[Value, list[Op]] = {}
    for item in items:
        if isinstance(item, Store):
            found.setdefault(item.buffer, []).append(item)
    return found
