"""Memory as the simulator sees it: contents, who wrote and read each element, and its error."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from metile_mlx.dtypes import DType, bool_
from metile_mlx.ir.core import NOWHERE, Op
from metile_mlx.ir.printer import print_op
from tests.support.arithmetic import NUMPY, Array

NOBODY, SEVERAL = -1, -2
POISON = 0xA5


class SimulationError(AssertionError):
    """A kernel did what a device leaves undefined. The message names the op and its source line."""

    def __init__(self, message: str, item: Op | None = None) -> None:
        where = f" in `{print_op(item)}`" if item is not None else ""
        line = f" at {item.loc}" if item is not None and item.loc is not NOWHERE else ""
        super().__init__(f"{message}{where}{line}")
        self.op = item


@dataclass
class Output:
    """An output array, poisoned at first, and who stored each element."""

    data: Array
    owner: Array = field(init=False)

    def __post_init__(self) -> None:
        self.owner = np.full(self.data.size, NOBODY, np.int64)

    def store(self, at: Array, value: Array, threads: Array, item: Op) -> None:
        """`threads`, numbered over the launch, write `value` to the elements `at`."""
        owner = self.owner[at]
        if np.any((owner != NOBODY) & (owner != threads)) or np.unique(at).size != at.size:
            raise SimulationError("two threads store one element", item)
        self.data[at], self.owner[at] = value, threads


@dataclass
class Scratch:
    """Threadgroup memory: contents, and who touched each element since the last barrier."""

    data: Array
    known: Array = field(init=False)
    writer: Array = field(init=False)
    reader: Array = field(init=False)

    def __post_init__(self) -> None:
        self.known = np.zeros(self.data.size, bool)
        self.order()

    def store(self, at: Array, value: Array, threads: Array, item: Op) -> None:
        """`threads` write `value` to the elements `at`."""
        if value.dtype != self.data.dtype:
            raise SimulationError(f"stores {value.dtype} to {self.data.dtype}", item)
        if np.unique(at).size != at.size:
            raise SimulationError("race: two threads write one element", item)
        _conflict(self.writer[at], threads, "write after a write", item)
        _conflict(self.reader[at], threads, "write after a read", item)
        self.data[at], self.writer[at], self.known[at] = value, threads, True

    def load(self, at: Array, threads: Array, item: Op) -> None:
        """`threads` read the elements `at`."""
        _conflict(self.writer[at], threads, "read after a write", item)
        if not self.known[at].all():
            raise SimulationError("reads threadgroup memory nobody wrote", item)
        self.reader[at] = np.where(self.reader[at] == NOBODY, threads, self.reader[at])
        # An element several threads have read conflicts with a write by any one of them.
        self.reader[at[self.reader[at] != threads]] = SEVERAL

    def order(self) -> None:
        """A barrier: what came before conflicts with nothing that follows."""
        self.writer = np.full(self.data.size, NOBODY, np.int64)
        self.reader = np.full(self.data.size, NOBODY, np.int64)


def _conflict(earlier: Array, threads: Array, what: str, item: Op) -> None:
    clash = (earlier != NOBODY) & (earlier != threads)
    if clash.any():
        at = int(np.argmax(clash))
        other = f"thread {earlier[at]}" if earlier[at] != SEVERAL else "other threads"
        raise SimulationError(
            f"race: {what} with no barrier between, by thread {threads[at]} and {other}", item
        )


def poisoned(size: int, dtype: DType) -> Array:
    """What memory holds that nobody wrote; False for bool."""
    if dtype is bool_:
        return np.zeros(size, bool)
    return np.full(size * dtype.bytes, POISON, np.uint8).view(NUMPY[dtype])
