"""Which integers a per-thread value can be: an interval that holds in every thread of every launch.

`Ranges` is filled op by op, either over a whole kernel (`analyse`) or while a pass builds one
(`record`). Arithmetic of i32 and u32 wraps, so an operation whose exact result may leave its dtype
has the dtype's full range; one that can't may be marked `nowrap` (`excludes_wrap`). Program ids lie
in 0..2**31 - 1 and the thread index below the size of the threadgroup; nothing is assumed of a
parameter or of what memory holds. Intervals forget which values go together: the range of `x - x`
is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from metile_mlx.dtypes import DType, Kind
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind, element
from metile_mlx.ir.core import Block, Func, Op, Value
from metile_mlx.ir.loops import Loop
from metile_mlx.ir.types import ScalarType

MAX_PROGRAMS = 2**31 - 1


class Interval(NamedTuple):
    """The integers from `lo` to `hi`, both included. False is 0 and True is 1."""

    lo: int
    hi: int

    @property
    def point(self) -> int | None:
        """The only member, if there is just one."""
        return self.lo if self.lo == self.hi else None

    def __contains__(self, value: object) -> bool:
        return isinstance(value, int) and self.lo <= value <= self.hi

    def within(self, other: Interval) -> bool:
        """Whether every member is one of `other`."""
        return other.lo <= self.lo and self.hi <= other.hi

    def union(self, other: Interval) -> Interval:
        """The smallest interval that holds both."""
        return Interval(min(self.lo, other.lo), max(self.hi, other.hi))


def full(dtype: DType) -> Interval:
    """All values of an integer or bool dtype."""
    return Interval(dtype.min, dtype.max)


class Ranges:
    """Intervals of the integer and bool values of one kernel of `threads` threads.

    Without `propagate` only constants are known, to see what the rest is worth.
    """

    def __init__(self, threads: int, propagate: bool = True) -> None:
        self.threads = threads
        self._propagate = propagate
        self._known: dict[Value, Interval] = {}
        # Of the loops that are entered, what the end is around them.
        self._outside: list[Interval] = []

    def of(self, value: Value) -> Interval:
        """The interval of a value: what was recorded, else all its dtype holds.

        `value` has an integer dtype or is bool.
        """
        return self._known.get(value) or full(element(value))

    def point(self, value: Value) -> int | None:
        """The only integer (bools are 0 and 1) that `value` can be, None if several or a float."""
        known = self._known.get(value)
        return None if known is None else known.point

    def assume(self, value: Value, interval: Interval) -> None:
        """What the host has checked of a value."""
        self._known[value] = interval

    def enter(self, item: Op) -> None:
        """Work out what the blocks of `item` bind, before the ops in them.

        The index of a loop lies between its bounds, and whole steps from its start; a carried value
        can be anything. An iteration shows that the end lies behind the start.
        """
        if self._propagate and isinstance(item, Loop):
            start, end, step = (self.of(value) for value in (item.start, item.end, item.step))
            last = max(start.lo, end.hi - 1)
            self._outside.append(end)
            self._known[item.end] = Interval(max(end.lo, start.lo + 1), last + 1)
            if start.point is not None and step.point is not None and step.point > 0:
                last -= (last - start.lo) % step.point
            self._known[item.index] = Interval(start.lo, last)

    def leave(self, item: Op) -> None:
        """Forget what only the blocks of `item` could know."""
        if self._propagate and isinstance(item, Loop):
            self._known[item.end] = self._outside.pop()

    def record(self, item: Op) -> None:
        """Work out the results of `item`; its operands, and ops in its blocks, come first."""
        rule = _RULES.get(type(item))
        if rule is None or not (self._propagate or isinstance(item, metal.Constant)):
            return
        for value, interval in zip(item.results, rule(self, item), strict=False):
            if interval is not None and _is_discrete(value):
                self._known[value] = interval

    def steps_fit(self, item: Loop) -> bool:
        """Whether the index stays in i32 when it is counted past the end of the loop."""
        last = self.of(item.index).hi + self.of(item.step).hi
        return last <= element(item.index).max

    def excludes_wrap(self, kind: BinaryKind, lhs: Value, rhs: Value) -> bool:
        """Whether ADD, SUB or MUL of these two can't leave their dtype."""
        exact = _exact(kind, self.of(lhs), self.of(rhs))
        return exact is not None and exact.within(full(element(lhs)))


def analyse(func: Func) -> Ranges:
    """The intervals of a whole kernel at Stage.THREAD."""
    ranges = Ranges(func.threads)

    def visit(block: Block) -> None:
        for item in block.ops:
            ranges.enter(item)
            for inner in item.blocks():
                visit(inner)
            ranges.leave(item)
            ranges.record(item)

    visit(func.body)
    return ranges


def _is_discrete(value: Value) -> bool:
    return isinstance(value.type, ScalarType) and value.type.dtype.kind is not Kind.FLOAT


def _fit(interval: Interval, dtype: DType) -> Interval:
    """`interval`, or everything when a member wraps."""
    return interval if interval.within(full(dtype)) else full(dtype)


def _exact(kind: BinaryKind, a: Interval, b: Interval) -> Interval | None:
    """ADD, SUB and MUL in unbounded integers; None for the others."""
    match kind:
        case BinaryKind.ADD:
            return Interval(a.lo + b.lo, a.hi + b.hi)
        case BinaryKind.SUB:
            return Interval(a.lo - b.hi, a.hi - b.lo)
        case BinaryKind.MUL:
            return _hull(x * y for x in a for y in b)
        case _:
            return None


def _hull(values: Iterable[int]) -> Interval:
    found = list(values)
    return Interval(min(found), max(found))


def _truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _divide(a: Interval, b: Interval, dtype: DType) -> Interval:
    # The extremes lie at the ends of the dividend and at the ends of each sign of the divisor.
    divisors = {b.lo, b.hi, *(near for near in (-1, 1) if near in b)} - {0}
    if not divisors:
        return full(dtype)
    return _hull(_truncated(x, y) for x in a for y in divisors)


def _remainder(a: Interval, b: Interval, dtype: DType) -> Interval:
    largest = max(abs(b.lo), abs(b.hi)) - 1
    if largest < 0:
        return full(dtype)
    return Interval(max(min(a.lo, 0), -largest), min(max(a.hi, 0), largest))


def _counts(b: Interval, dtype: DType) -> Interval:
    """Shift counts, which are taken modulo the width."""
    return b if b.within(Interval(0, dtype.bits - 1)) else Interval(0, dtype.bits - 1)


def _shift_left(a: Interval, b: Interval, dtype: DType) -> Interval:
    return _hull(x << n for x in a for n in _counts(b, dtype))


def _shift_right(a: Interval, b: Interval, dtype: DType) -> Interval:
    return _hull(x >> n for x in a for n in _counts(b, dtype))


def _and(a: Interval, b: Interval, dtype: DType) -> Interval:
    limits = [side.hi for side in (a, b) if side.lo >= 0]
    if limits:
        return Interval(0, min(limits))
    return Interval(_below(a, b), max(a.hi, b.hi, -1))


def _or(a: Interval, b: Interval, dtype: DType) -> Interval:
    if a.lo >= 0 and b.lo >= 0:
        return Interval(max(a.lo, b.lo), _above(a, b))
    return Interval(min(a.lo, b.lo), max(_above(a, b), -1))


def _xor(a: Interval, b: Interval, dtype: DType) -> Interval:
    if a.lo >= 0 and b.lo >= 0:
        return Interval(0, _above(a, b))
    return Interval(_below(a, b), _above(a, b))


def _above(a: Interval, b: Interval) -> int:
    """The largest number of as many bits as either needs."""
    return (1 << max(_bits(a), _bits(b))) - 1


def _below(a: Interval, b: Interval) -> int:
    return -(1 << max(_bits(a), _bits(b)))


def _bits(interval: Interval) -> int:
    # A negative number n has the magnitude bits of ~n.
    return max((end if end >= 0 else ~end).bit_length() for end in interval)


def _minimum(a: Interval, b: Interval, dtype: DType) -> Interval:
    return Interval(min(a.lo, b.lo), min(a.hi, b.hi))


def _maximum(a: Interval, b: Interval, dtype: DType) -> Interval:
    return Interval(max(a.lo, b.lo), max(a.hi, b.hi))


_BINARY: dict[BinaryKind, Callable[[Interval, Interval, DType], Interval]] = {
    BinaryKind.DIV: _divide,
    BinaryKind.REM: _remainder,
    BinaryKind.SHL: _shift_left,
    BinaryKind.SHR: _shift_right,
    BinaryKind.AND: _and,
    BinaryKind.OR: _or,
    BinaryKind.XOR: _xor,
    BinaryKind.MINIMUM: _minimum,
    BinaryKind.MAXIMUM: _maximum,
}

Found = tuple[Interval | None, ...]


def _binary(ranges: Ranges, item: metal.Binary) -> Found:
    dtype = element(item.lhs)
    if dtype.kind is Kind.FLOAT:
        return ()
    a, b = ranges.of(item.lhs), ranges.of(item.rhs)
    exact = _exact(item.kind, a, b)
    if exact is None:
        rule = _BINARY.get(item.kind)
        exact = rule(a, b, dtype) if rule else full(dtype)
    return (_fit(exact, dtype),)


def _unary(ranges: Ranges, item: metal.Unary) -> Found:
    dtype = element(item.src)
    if dtype.kind is Kind.FLOAT:
        return ()
    a = ranges.of(item.src)
    match item.kind:
        case UnaryKind.NEG:
            exact = Interval(-a.hi, -a.lo)
        case UnaryKind.ABS:
            ends = [abs(a.lo), abs(a.hi), *([0] if 0 in a else [])]
            exact = _hull(ends)
        case UnaryKind.NOT:
            # On u32 and bool, all bits set is the largest value; on i32 it is -1.
            ones = -1 if dtype.is_signed else dtype.max
            exact = Interval(ones - a.hi, ones - a.lo)
        case _:
            exact = full(dtype)
    return (_fit(exact, dtype),)


def _compare(ranges: Ranges, item: metal.Compare) -> Found:
    if element(item.lhs).kind is Kind.FLOAT:
        return ()
    return (_truth(decide(item.kind, ranges.of(item.lhs), ranges.of(item.rhs))),)


def _truth(answer: bool | None) -> Interval:
    return Interval(0, 1) if answer is None else Interval(int(answer), int(answer))


def decide(kind: CompareKind, a: Interval, b: Interval) -> bool | None:
    """What comparing any member of `a` with any of `b` gives, None where it depends."""
    match kind:
        case CompareKind.LT:
            yes, no = a.hi < b.lo, a.lo >= b.hi
        case CompareKind.LE:
            yes, no = a.hi <= b.lo, a.lo > b.hi
        case CompareKind.GT:
            yes, no = a.lo > b.hi, a.hi <= b.lo
        case CompareKind.GE:
            yes, no = a.lo >= b.hi, a.hi < b.lo
        case CompareKind.EQ:
            yes, no = a.lo == a.hi == b.lo == b.hi, a.hi < b.lo or b.hi < a.lo
        case CompareKind.NE:
            yes, no = a.hi < b.lo or b.hi < a.lo, a.lo == a.hi == b.lo == b.hi
    return True if yes else False if no else None


def _select(ranges: Ranges, item: metal.Select) -> Found:
    if not _is_discrete(item.on_true):
        return ()
    chosen = ranges.of(item.condition).point
    if chosen is not None:
        return (ranges.of(item.on_true if chosen else item.on_false),)
    return (ranges.of(item.on_true).union(ranges.of(item.on_false)),)


def _cast(ranges: Ranges, item: metal.Cast) -> Found:
    if not _is_discrete(item.src) or item.dtype.kind is Kind.FLOAT:
        return ()
    a = ranges.of(item.src)
    if item.dtype.kind is Kind.BOOL:
        return (_truth(False if a.point == 0 else None if 0 in a else True),)
    return (_fit(a, item.dtype),)


def _constant(ranges: Ranges, item: metal.Constant) -> Found:
    if item.dtype.kind is Kind.FLOAT:
        return ()
    return (Interval(int(item.value), int(item.value)),)


def _shuffle(ranges: Ranges, item: metal.Shuffle) -> Found:
    return (ranges.of(item.src),) if _is_discrete(item.src) else ()


def _if(ranges: Ranges, item: metal.If) -> Found:
    sides = (item.then.ops[-1].operands(), item.otherwise.ops[-1].operands())
    return tuple(
        ranges.of(a).union(ranges.of(b)) if _is_discrete(a) else None
        for a, b in zip(*sides, strict=True)
    )


_RULES: dict[type[Op], Callable[[Ranges, Any], Found]] = {
    metal.Constant: _constant,
    metal.ThreadIndex: lambda ranges, _: (Interval(0, ranges.threads - 1),),
    metal.ProgramId: lambda *_: (Interval(0, MAX_PROGRAMS),),
    metal.NumPrograms: lambda *_: (Interval(1, MAX_PROGRAMS),),
    metal.Unary: _unary,
    metal.Binary: _binary,
    metal.Compare: _compare,
    metal.Select: _select,
    metal.Cast: _cast,
    metal.Shuffle: _shuffle,
    metal.If: _if,
}
