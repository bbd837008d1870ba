"""Whether indices follow one another in every thread: sums of products of numbers and values.

An index is taken apart through additions, multiplications by numbers and integer conversions into
k_0 + sum k_i * v_i, where a `v_i` is whatever can't be taken apart. Two indices whose sums differ
in k_0 only lie that far apart in every thread, whatever the values are: it is algebra, with no case
for striped, permuted or flipped ownership.

Integer arithmetic wraps, so the algebra holds modulo 2**32. Read `exact`ly, an operation is taken
apart only where ranges exclude that it wraps; then it holds for the numbers themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metile_mlx.analysis.ranges import Ranges
from metile_mlx.dtypes import DType, i32, i64, u32, u64
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, element
from metile_mlx.ir.core import Op, Value

WIDE = (i32, u32, i64, u64)
Terms = frozenset[tuple[Value, int]]


@dataclass(frozen=True)
class Sum:
    """constant + the sum of coefficient * value over `terms`."""

    terms: Terms
    constant: int

    def plus(self, other: Sum, factor: int, modulus: int) -> Sum:
        """self + factor * other."""
        found = dict(self.terms)
        for value, coefficient in other.terms:
            found[value] = (found.get(value, 0) + factor * coefficient) % modulus
        kept = frozenset((value, k) for value, k in found.items() if k)
        return Sum(kept, (self.constant + factor * other.constant) % modulus)


_NOTHING = Sum(frozenset(), 0)


class Sums:
    """The sums that the integers of one kernel are.

    Args:
        defined: the op that makes each value.
        ranges: the intervals of the same kernel: sums are exact. None: modulo 2**32.
    """

    def __init__(self, defined: Mapping[Value, Op], ranges: Ranges | None = None) -> None:
        self._defined = defined
        self._ranges = ranges
        # An offset of 64 bits is an address modulo 2**64.
        self._modulus = 1 << (32 if ranges is None else 64)
        self._known: dict[Value, Sum] = {}

    def of(self, value: Value) -> Sum:
        """The sum; a value that can't be taken apart is one term."""
        if value not in self._known:
            item = self._defined.get(value)
            found = None if item is None else self._apart(item)
            self._known[value] = found or Sum(frozenset({(value, 1)}), 0)
        return self._known[value]

    def distances(self, first: Value, others: Iterable[Value]) -> list[int | None]:
        """How far each of `others` lies behind `first` in every thread, None where that varies."""
        start = self.of(first)
        half = self._modulus >> 1
        found: list[int | None] = []
        for other in others:
            there = self.of(other)
            away = (there.constant - start.constant + half) % self._modulus - half
            found.append(away if there.terms == start.terms else None)
        return found

    def _apart(self, item: Op) -> Sum | None:
        match item:
            case metal.Constant() if item.dtype.is_integer:
                return Sum(frozenset(), int(item.value) % self._modulus)
            case metal.Cast() if item.dtype in WIDE and element(item.src) in WIDE:
                return self.of(item.src) if self._keeps(item.src, item.dtype) else None
            case metal.Binary() if element(item.lhs) in WIDE:
                return self._binary(item)
            case _:
                return None

    def _keeps(self, value: Value, dtype: DType) -> bool:
        """Whether converting to `dtype` leaves the number as it is."""
        if self._ranges is None or dtype.bits == 64:
            return True
        interval = self._ranges.of(value)
        return dtype.min <= interval.lo and interval.hi <= dtype.max

    def _binary(self, item: metal.Binary) -> Sum | None:
        lhs, rhs, kind = self.of(item.lhs), self.of(item.rhs), item.kind
        factor = 1
        if kind is BinaryKind.SHL and not rhs.terms and rhs.constant < element(item.lhs).bits:
            factor, kind = 1 << rhs.constant, BinaryKind.MUL
        elif kind is BinaryKind.MUL and not rhs.terms:
            factor = rhs.constant
        elif kind is BinaryKind.MUL and not lhs.terms:
            factor, lhs = lhs.constant, rhs
        elif kind is BinaryKind.SUB:
            factor = -1
        elif kind is not BinaryKind.ADD:
            return None
        if not self._fits(item):
            return None
        if kind is BinaryKind.MUL:
            return _NOTHING.plus(lhs, factor, self._modulus)
        return lhs.plus(rhs, factor, self._modulus)

    def _fits(self, item: metal.Binary) -> bool:
        """Whether the operation means in these numbers what it says."""
        if self._ranges is None or element(item.result).bits == 64:
            return True
        if item.kind is BinaryKind.SHL:
            dtype, interval = element(item.lhs), self._ranges.of(item.lhs)
            count = self._ranges.of(item.rhs).hi
            return dtype.min <= interval.lo << count and interval.hi << count <= dtype.max
        return self._ranges.excludes_wrap(item.kind, item.lhs, item.rhs)
