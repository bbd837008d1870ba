"""Python's // and % from machine division, which truncates (SPEC K3).

The two differ where the signs of the operands do, and machine division has two divisors it can't
take: 0, and -1 under the smallest i32. Here x // 0 and x % 0 are 0, and INT_MIN // -1 wraps to
INT_MIN. Corrections and guards are built only for signs and divisors that ranges don't exclude.
Floats follow MLX: floor of the quotient, and the remainder with the divisor's sign.
"""

from __future__ import annotations

from metile_mlx.dtypes import Kind, bool_
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind, element
from metile_mlx.ir.core import Value
from metile_mlx.passes.lane_builder import LaneBuilder


def floor_divide(b: LaneBuilder, lhs: Value, rhs: Value) -> Value:
    """lhs // rhs, for two values of one arithmetic dtype."""
    dtype = element(lhs)
    if dtype.kind is Kind.FLOAT:
        return b.unary(UnaryKind.FLOOR, b.binary(BinaryKind.DIV, lhs, rhs))
    number = b.number(rhs)
    if number is not None and number > 0 and number & (number - 1) == 0:
        return b.with_number(BinaryKind.SHR, lhs, number.bit_length() - 1)
    special, divisor = _guarded(b, rhs)
    quotient = b.binary(BinaryKind.DIV, lhs, divisor)
    product = b.binary(BinaryKind.MUL, quotient, divisor)
    adjust = _signs_differ(b, lhs, divisor, b.binary(BinaryKind.SUB, lhs, product))
    lower = b.with_number(BinaryKind.SUB, quotient, 1) if b.number(adjust) != 0 else quotient
    floored = b.select(adjust, lower, quotient)
    # lhs * rhs is lhs // rhs for the divisors 0 and -1, wrapped where that wraps.
    return b.select(special, b.binary(BinaryKind.MUL, lhs, rhs), floored)


def modulo(b: LaneBuilder, lhs: Value, rhs: Value) -> Value:
    """lhs % rhs with the sign of rhs, for two values of one arithmetic dtype."""
    dtype = element(lhs)
    if dtype.kind is Kind.FLOAT:
        return _float_modulo(b, lhs, rhs)
    here, by = b.ranges.of(lhs), b.ranges.of(rhs)
    if here.lo >= 0 and here.hi < by.lo:
        return lhs
    number = b.number(rhs)
    if number is not None and number > 0 and number & (number - 1) == 0:
        return b.with_number(BinaryKind.AND, lhs, number - 1)
    # The divisor 1 put in place of 0 and -1 leaves the remainder 0, as they would.
    _, divisor = _guarded(b, rhs)
    rest = b.binary(BinaryKind.REM, lhs, divisor)
    adjust = _signs_differ(b, lhs, divisor, rest)
    if b.number(adjust) == 0:
        return rest
    return b.select(adjust, b.binary(BinaryKind.ADD, rest, divisor), rest)


def _guarded(b: LaneBuilder, rhs: Value) -> tuple[Value, Value]:
    """(whether rhs is 0 or -1, rhs with 1 in place of those two)."""
    lo, hi = b.ranges.of(rhs)
    is_zero = b.compare_number(CompareKind.EQ, rhs, 0)
    special = is_zero
    if element(rhs).is_signed and lo <= -1 <= hi:
        is_minus_one = b.compare_number(CompareKind.EQ, rhs, -1)
        special = b.binary(BinaryKind.OR, is_zero, is_minus_one)
    return special, b.select(special, b.constant(1, element(rhs)), rhs)


def _signs_differ(b: LaneBuilder, lhs: Value, divisor: Value, rest: Value) -> Value:
    """Whether floor and truncation differ: `rest` is not 0 and of another sign than the divisor."""
    if not element(lhs).is_signed:
        return b.constant(False, bool_)
    left, right = b.ranges.of(lhs), b.ranges.of(divisor)
    if left.lo >= 0 and right.lo >= 0:
        return b.constant(False, bool_)
    if right.lo >= 0:
        return b.compare_number(CompareKind.LT, rest, 0)
    mixed = divisor if left.lo >= 0 else b.binary(BinaryKind.XOR, rest, divisor)
    opposite = b.compare_number(CompareKind.LT, mixed, 0)
    return b.binary(BinaryKind.AND, b.compare_number(CompareKind.NE, rest, 0), opposite)


def _float_modulo(b: LaneBuilder, lhs: Value, rhs: Value) -> Value:
    rest = b.binary(BinaryKind.REM, lhs, rhs)
    opposite = b.binary(
        BinaryKind.XOR,
        b.compare_number(CompareKind.LT, rest, 0),
        b.compare_number(CompareKind.LT, rhs, 0),
    )
    adjust = b.binary(BinaryKind.AND, b.compare_number(CompareKind.NE, rest, 0), opposite)
    return b.select(adjust, b.binary(BinaryKind.ADD, rest, rhs), rest)
