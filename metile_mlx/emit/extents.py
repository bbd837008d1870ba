"""How many of the first threads a loop over them has work for (SPEC X4).

What a simdgroup publishes its first lane stores, and a total is combined from the lanes of the
first simdgroup: loops over the others would do nothing that is used.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from metile_mlx.emit.segments import Segment, has_effect, is_total
from metile_mlx.emit.thread_tables import ThreadTables
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.metal import Store, ThreadgroupStore
from metile_mlx.target import SIMD_WIDTH


class Reach:
    """Who uses what segments keep, and where segments end for it."""

    def __init__(self, threads: int, tables: ThreadTables) -> None:
        self._threads = threads
        self._tables = tables
        self._used: dict[Value, int] = {}

    def add(self, value: Value, user: Op) -> None:
        """An op of another segment uses a kept value, in its own thread or its own simdgroup."""
        count = SIMD_WIDTH if is_total(user) else self._threads
        self._used[value] = max(count, self._used.get(value, 0))

    def limit(self, segment: Segment, grouped: bool, carried: Container[Value]) -> None:
        """Set `extent` and `certain` of a segment whose users are known; loops use all carried."""
        size = SIMD_WIDTH if grouped else self._threads
        extent = 0
        for value in segment.kept:
            count = self._threads if value in carried else self._used.get(value, self._threads)
            extent = max(extent, min(size, count))
        stored = [self._lanes(item, size) for item in segment.ops if has_effect(item)]
        for lanes in stored:
            found = np.flatnonzero(lanes)
            extent = max(extent, int(found[-1]) + 1 if len(found) else 0)
        if segment.permuted or not 0 < extent < size:
            return
        segment.extent = extent
        segment.certain = frozenset(
            item.mask
            for item in segment.ops
            if isinstance(item, Store | ThreadgroupStore)
            and item.mask is not None
            and self._holds(item.mask, size, extent)
        )

    def _lanes(self, item: Op, size: int) -> NDArray[np.bool_]:
        """In which of the `size` lanes of some round an op may have its effect."""
        mask = item.mask if isinstance(item, Store | ThreadgroupStore) else None
        held = None if mask is None else self._tables.holds(mask)
        every: NDArray[np.bool_] = np.ones(size, np.bool_)
        return every if held is None else np.logical_or.reduce(held.reshape(-1, size))

    def _holds(self, mask: Value, size: int, extent: int) -> bool:
        held = self._tables.holds(mask)
        return held is not None and bool(held.reshape(-1, size)[:, :extent].all())
