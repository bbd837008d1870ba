"""Masks that hold in the first threads and in no other, told without asking each of them (SPEC X4).

A bounds check compares an index with an extent that all threads share. Where the index is a
uniform number plus a multiple of the thread index, as many threads pass as there are steps up to
the extent. The rest fails, unless the index wraps on the way there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from metile_mlx.analysis.consecutive import Sum, Sums
from metile_mlx.analysis.ranges import Interval, Ranges
from metile_mlx.dtypes import i32, u32
from metile_mlx.emit.thread_tables import ThreadTables, is_uniform
from metile_mlx.ir.arith import BinaryKind, CompareKind, element
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.metal import Binary, Compare

# Steps and threads: the index stays within its first 2**31 numbers.
_LARGEST_STEP = 1 << 20


@dataclass(frozen=True)
class Prefix:
    """`index` < `bound`; from one thread to the next the index grows by `step`.

    `wraps`: whether the index may pass the end of its dtype within the threadgroup.
    """

    index: Value
    bound: Value
    step: int
    wraps: bool

    def last(self, threads: int) -> int:
        """The largest index of the first thread with which none of `threads` wraps."""
        return int(element(self.index).max) - self.step * (threads - 1)


# What masks are joined of: prefixes and uniform values.
Conditions = tuple[Prefix | Value, ...]


class Prefixes:
    """The prefixes that the masks of one kernel are.

    Args:
        defined: the op that makes each value.
        tables: what index arithmetic gives in every thread.
        ranges: the intervals of the kernel's integers.
        uniform: whether all threads of a loop share a value; as a rule those of a program.
        steps: whether a value counts the threads of a loop; as a rule the thread index alone does.
    """

    def __init__(
        self,
        defined: Mapping[Value, Op],
        tables: ThreadTables,
        ranges: Ranges,
        uniform: Callable[[Value], bool] = is_uniform,
        steps: Callable[[Value], bool] | None = None,
    ) -> None:
        self._defined = defined
        self._ranges = ranges
        self._uniform = uniform
        self._steps = steps or tables.is_thread_index
        self._sums = Sums(defined)
        self._known: dict[Value, Conditions | None] = {}

    def of(self, mask: Value) -> Conditions | None:
        """What has to hold together; None: the mask is something else."""
        if mask not in self._known:
            self._known[mask] = (mask,) if self._uniform(mask) else self._apart(mask)
        return self._known[mask]

    def joint(self, masks: Iterable[Value]) -> Conditions | None:
        """The conditions of all masks; None if one is something else."""
        found: dict[Prefix | Value, None] = {}
        for mask in masks:
            conditions = self.of(mask)
            if conditions is None:
                return None
            found.update(dict.fromkeys(conditions))
        return tuple(found)

    def _apart(self, mask: Value) -> Conditions | None:
        match self._defined.get(mask):
            case Binary(kind=BinaryKind.AND, lhs=lhs, rhs=rhs):
                return self.joint((lhs, rhs))
            case Compare(kind=CompareKind.LT, lhs=index, rhs=bound):
                return self._prefix(index, bound)
            case Compare(kind=CompareKind.GT, lhs=bound, rhs=index):
                return self._prefix(index, bound)
            case _:
                return None

    def _prefix(self, index: Value, bound: Value) -> Conditions | None:
        dtype = element(index)
        if dtype not in (i32, u32) or not self._uniform(bound):
            return None
        total = self._sums.of(index)
        varying = [(value, step) for value, step in total.terms if not self._uniform(value)]
        if len(varying) != 1:
            return None
        ((value, step),) = varying
        if not self._steps(value) or step > _LARGEST_STEP:
            return None
        made = Prefix(index, bound, step, wraps=False)
        whole = Interval(int(dtype.min), made.last(self._ranges.threads))
        if not self._uniform_part(total).within(whole):
            made = replace(made, wraps=True)
        return (made,)

    def _uniform_part(self, total: Sum) -> Interval:
        """The index without what the thread adds, as a number that has not wrapped."""
        low = high = _signed(total.constant)
        for value, factor in total.terms:
            if self._uniform(value):
                ends = [_signed(factor) * end for end in self._ranges.of(value)]
                low, high = low + min(ends), high + max(ends)
        return Interval(low, high)


def _signed(number: int) -> int:
    """The number of least magnitude that is `number` modulo 2**32."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
