"""Which work depends on the thread index alone, and what it gives in each thread."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from metile_mlx.ir.arith import SHIFTS, BinaryKind, CompareKind, element
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.metal import (
    Binary,
    Bitcast,
    Cast,
    Compare,
    Constant,
    Select,
    ThreadIndex,
    Unary,
)
from metile_mlx.ir.types import ScalarType, VectorType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.target import LANE_BITS, SIMD_WIDTH

Table = NDArray[np.int64]
_TOP = (1 << 31) - 1
_ON_TABLES: dict[BinaryKind, Callable[[Table, Table], Table]] = {
    BinaryKind.ADD: operator.add,
    BinaryKind.SUB: operator.sub,
    BinaryKind.MUL: operator.mul,
    BinaryKind.AND: operator.and_,
    BinaryKind.OR: operator.or_,
    BinaryKind.XOR: operator.xor,
    BinaryKind.SHL: operator.lshift,
    BinaryKind.SHR: operator.rshift,
}
_COMPARISONS: dict[CompareKind, Callable[[Table, Table], NDArray[np.bool_]]] = {
    CompareKind.EQ: operator.eq,
    CompareKind.NE: operator.ne,
    CompareKind.LT: operator.lt,
    CompareKind.LE: operator.le,
    CompareKind.GT: operator.gt,
    CompareKind.GE: operator.ge,
}
_SLOW = frozenset({BinaryKind.DIV, BinaryKind.REM, BinaryKind.POW})


def is_uniform(value: Value) -> bool:
    """Whether a scalar is the same in every thread; buffers are, vectors are not."""
    if isinstance(value.type, ScalarType):
        return value.type.uniform
    return not isinstance(value.type, VectorType)


def is_cheap(item: Op) -> bool:
    """Pure work on integers and masks: computed again sooner than kept."""
    if isinstance(item, Constant | ThreadIndex):
        return True
    if not isinstance(item, Unary | Binary | Compare | Select | Cast | Bitcast):
        return False
    if isinstance(item, Binary) and item.kind in _SLOW:
        return False
    return not any(element(value).is_float for value in (*item.operands(), item.result))


def is_contiguous(columns: Sequence[int]) -> bool:
    """Whether the lanes of a simdgroup stand side by side, but simdgroups elsewhere."""
    order = [1 << bit for bit in range(len(columns))]
    return list(columns[:LANE_BITS]) == order[:LANE_BITS] and list(columns) != order


class ThreadTables:
    """What index arithmetic gives in every thread, where it depends on the thread index alone."""

    def __init__(self, threads: int, defined: Mapping[Value, Op]) -> None:
        self._threads = threads
        self._defined = defined
        self._tables: dict[Value, Table | None] = {}
        self._permutations: dict[tuple[Value, bool], AffineMap | None] = {}

    def table(self, value: Value) -> Table | None:
        """The value in threads 0, 1, ...; None if it is not a function of the thread index
        alone."""
        if value not in self._tables:
            item = self._defined.get(value)
            varies = item is not None and not is_uniform(value) and element(value).is_integer
            made = self._evaluate(item) if item is not None and varies else None
            # Within these bounds nothing has wrapped.
            if made is not None and (made.min() < 0 or made.max() > min(element(value).max, _TOP)):
                made = None
            self._tables[value] = made
        return self._tables[value]

    def _evaluate(self, item: Op) -> Table | None:
        if isinstance(item, ThreadIndex):
            return np.arange(self._threads, dtype=np.int64)
        if isinstance(item, Cast):
            return self.table(item.src)
        if isinstance(item, Binary) and item.kind in _ON_TABLES:
            lhs, rhs = self._operand(item.lhs), self._operand(item.rhs)
            if lhs is None or rhs is None:
                return None
            if item.kind in SHIFTS and rhs.max() > 31:
                return None
            return _ON_TABLES[item.kind](lhs, rhs)
        return None

    def _operand(self, value: Value) -> Table | None:
        item = self._defined.get(value)
        if not isinstance(item, Constant):
            return self.table(value)
        if not item.dtype.is_integer or not 0 <= item.value <= _TOP:
            return None
        return np.full(self._threads, int(item.value), np.int64)

    def holds(self, mask: Value) -> NDArray[np.bool_] | None:
        """A mask in threads 0, 1, ...; None if it depends on more than the thread index."""
        item = self._defined.get(mask)
        if isinstance(item, Binary) and item.kind is BinaryKind.AND:
            a, b = self.holds(item.lhs), self.holds(item.rhs)
            return None if a is None or b is None else a & b
        if not isinstance(item, Compare) or not element(item.lhs).is_integer:
            return None
        lhs, rhs = self._operand(item.lhs), self._operand(item.rhs)
        return None if lhs is None or rhs is None else _COMPARISONS[item.kind](lhs, rhs)

    def permutation(self, value: Value, lanes: bool = False) -> AffineMap | None:
        """The value as a permutation of the bits of the thread index and a constant, or None.

        With `lanes`: of the lane index, the same in every simdgroup.
        """
        key = (value, lanes)
        if key not in self._permutations:
            self._permutations[key] = self._as_permutation(value, lanes)
        return self._permutations[key]

    def _as_permutation(self, value: Value, lanes: bool) -> AffineMap | None:
        table = self.table(value)
        if table is None:
            return None
        size = SIMD_WIDTH if lanes else self._threads
        bits = size.bit_length() - 1
        width = max(bits, int(table.max()).bit_length())
        if size != 1 << bits or (lanes and width > bits):
            return None
        constant = int(table[0])
        columns = [int(table[1 << bit]) ^ constant for bit in range(bits)]
        single = {column for column in columns if column.bit_count() == 1}
        if len(single) < bits or (width > bits and not is_contiguous(columns)):
            return None
        made = AffineMap((*columns, *[0] * (width - bits)), constant)
        expected = made.apply(np.arange(self._threads) % size)
        return made if bool((expected == table).all()) else None

    def behind(self, value: Value) -> int | None:
        """How far the value lies behind the thread index, in every thread the same; or None.

        Slots of a later register are that, however they are computed: t ^ 1024 of 1024 threads is
        t + 1024, and only then do compilers see that threads access neighbours.
        """
        table = self.table(value)
        if table is None:
            return None
        distances = table - np.arange(len(table))
        first = int(distances[0])
        return first if first >= 0 and bool((distances == first).all()) else None

    def is_thread_index(self, value: Value) -> bool:
        """Whether the value is the thread index."""
        return self.behind(value) == 0
