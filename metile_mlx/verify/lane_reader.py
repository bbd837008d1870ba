"""Threads and lanes of the user's own, read with numbers: where tiles hold one value per thread.

Such programs state no layouts, so element t of a tile is thread t's, and a scalar of each thread's
own has a column per thread too (SPEC O5, K6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from metile_mlx.ir import tile
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.lanes import LaneReduce, LaneShuffle, Shared, ThreadId
from metile_mlx.ir.types import ScalarType
from metile_mlx.target import SIMD_WIDTH
from metile_mlx.verify import numbers
from metile_mlx.verify.numbers import TRIALS, Numbers
from metile_mlx.verify.reading import Unreadable, combined


def is_own(value: Value) -> bool:
    """Whether it is a scalar of each thread's own."""
    return isinstance(value.type, ScalarType) and not value.type.uniform


class LaneReader:
    """Collectives, and threadgroup memory that was declared; `known` are the numbers so far."""

    def __init__(self, threads: int, known: Mapping[Value, Numbers]) -> None:
        self.threads = threads
        self.known = known
        self.memory: dict[Value, Numbers] = {}
        self.shapes: dict[Value, tuple[int, ...]] = {}

    def op(self, item: Op) -> Sequence[Numbers]:
        """What one op gives.

        Raises:
            Unreadable: it is none of these.
        """
        match item:
            case ThreadId():
                return (np.arange(self.threads)[None],)
            case LaneReduce():
                lanes = self.wide(self.known[item.src]).reshape(TRIALS, -1, SIMD_WIDTH)
                total = combined(item.kind, lanes, item.src)[..., 0]
                return (np.repeat(total, SIMD_WIDTH, axis=1),)
            case LaneShuffle():
                first = np.arange(self.threads) // SIMD_WIDTH * SIMD_WIDTH
                source = self.wide(first + self.known[item.lane])
                return (np.take_along_axis(self.wide(self.known[item.src]), source, axis=1),)
            case Shared():
                self.memory[item.result] = np.zeros((TRIALS, item.elements), np.int64)
                self.shapes[item.result] = item.shape
                return (np.zeros((1, 1), np.int64),)
            case _:
                raise Unreadable(item.opcode)

    def load(self, item: tile.Load, path: Numbers) -> Numbers:
        """Each thread's element of declared memory, or the fill."""
        active, at = self._where(item.tensor, item.indices, item.mask, path)
        there = np.take_along_axis(self.memory[item.tensor], np.where(active != 0, at, 0), axis=1)
        dtype = element(item.result)
        fill = numbers.constant(0, dtype) if item.fill is None else self.known[item.fill]
        return numbers.select(active, there, fill)

    def store(self, item: tile.Store, path: Numbers) -> None:
        """Where all is uniform the first thread stores."""
        active, at = self._where(item.tensor, item.indices, item.mask, path)
        held = self.memory[item.tensor].copy()
        rows, threads = np.nonzero(active)
        held[rows, at[rows, threads]] = self.wide(self.known[item.value])[rows, threads]
        self.memory[item.tensor] = held

    def _where(
        self, tensor: Value, indices: Sequence[Value], mask: Value | None, path: Numbers
    ) -> tuple[Numbers, Numbers]:
        active, at = path, np.zeros((1, 1), np.int64)
        for value, extent in zip(indices, self.shapes[tensor], strict=True):
            index = self.known[value]
            active = active & (index >= 0) & (index < extent)
            at = at * extent + index
        if mask is not None:
            active = active & self.known[mask]
        return self.wide(active), self.wide(at)

    def wide(self, found: Numbers) -> Numbers:
        """One row per trial and one column per thread."""
        return np.broadcast_to(found, (TRIALS, self.threads))
