"""Python's operators on constants, scalars and tiles: folding, promotion, ops (SPEC K3, K4)."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metile_mlx.dtypes import bool_, f32, i32
from metile_mlx.errors import CompileError
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.naming import infix, prefix
from metile_mlx.frontend.values import PointerOffset, describe, is_number, is_static
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind, element
from metile_mlx.ir.core import Value
from metile_mlx.ir.tile import Binary, Compare, Unary
from metile_mlx.ir.types import PointerType, ScalarType, TensorType, TileType

# Of integers in compile-time expressions: far more than any dtype holds, and Python prints them.
MAX_BITS = 4096


@dataclass(frozen=True)
class Operator:
    """An operator's sign, its meaning on Python constants, its kind of op, its word in names."""

    sign: str
    fold: Callable[[Any, Any], object]
    kind: BinaryKind | CompareKind
    word: str


def _power(base: Any, exponent: Any) -> object:
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1:
        _limit(base.bit_length() * exponent)
    return base**exponent


def _shifted_left(value: Any, count: Any) -> object:
    if isinstance(value, int) and isinstance(count, int) and value:
        _limit(value.bit_length() + count)
    return value << count


def _limit(bits: int) -> None:
    """Refuse in time what would fill the memory."""
    if bits > MAX_BITS:
        raise OverflowError(f"an integer of more than {MAX_BITS} bits")


BINARY: dict[type[ast.operator], Operator] = {
    ast.Add: Operator("+", operator.add, BinaryKind.ADD, "plus"),
    ast.Sub: Operator("-", operator.sub, BinaryKind.SUB, "minus"),
    ast.Mult: Operator("*", operator.mul, BinaryKind.MUL, "times"),
    ast.Div: Operator("/", operator.truediv, BinaryKind.DIV, "over"),
    ast.FloorDiv: Operator("//", operator.floordiv, BinaryKind.FLOORDIV, "div"),
    ast.Mod: Operator("%", operator.mod, BinaryKind.MOD, "mod"),
    ast.Pow: Operator("**", _power, BinaryKind.POW, "pow"),
    ast.LShift: Operator("<<", _shifted_left, BinaryKind.SHL, "shl"),
    ast.RShift: Operator(">>", operator.rshift, BinaryKind.SHR, "shr"),
    ast.BitAnd: Operator("&", operator.and_, BinaryKind.AND, "and"),
    ast.BitOr: Operator("|", operator.or_, BinaryKind.OR, "or"),
    ast.BitXor: Operator("^", operator.xor, BinaryKind.XOR, "xor"),
}
COMPARE: dict[type[ast.cmpop], Operator] = {
    ast.Eq: Operator("==", operator.eq, CompareKind.EQ, "eq"),
    ast.NotEq: Operator("!=", operator.ne, CompareKind.NE, "ne"),
    ast.Lt: Operator("<", operator.lt, CompareKind.LT, "lt"),
    ast.LtE: Operator("<=", operator.le, CompareKind.LE, "le"),
    ast.Gt: Operator(">", operator.gt, CompareKind.GT, "gt"),
    ast.GtE: Operator(">=", operator.ge, CompareKind.GE, "ge"),
}
# Python constants only: identity and membership.
STATIC_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], object]] = {
    ast.Is: lambda lhs, rhs: lhs is rhs,
    ast.IsNot: lambda lhs, rhs: lhs is not rhs,
    ast.In: lambda lhs, rhs: lhs in rhs,
    ast.NotIn: lambda lhs, rhs: lhs not in rhs,
}
ADD, SUB, MUL, FLOORDIV = (BINARY[k] for k in (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv))
AND = BINARY[ast.BitAnd]


def fold(function: Callable[..., object], *values: object) -> object:
    """Compute with Python constants; what Python raises becomes an error of the user's line."""
    try:
        result = function(*values)
        if type(result) is int:
            _limit(result.bit_length())
        return result
    except ZeroDivisionError:
        raise CompileError("division by zero in a compile-time expression") from None
    except (TypeError, ValueError, ArithmeticError, AttributeError, IndexError) as error:
        raise CompileError(f"{error} (in a compile-time expression)") from None


def binary(build: Build, op: Operator, lhs: object, rhs: object) -> object:
    """`lhs op rhs`.

    Raises:
        CompileError: operands that don't mix (u32 with i32, arrays, masks in arithmetic).
    """
    if is_static(lhs) and is_static(rhs):
        return fold(op.fold, lhs, rhs)
    if _is_pointer(lhs) or _is_pointer(rhs):
        return _pointer(build, op, lhs, rhs)
    _check_operands(op, lhs, rhs)
    if isinstance(op.kind, CompareKind):
        return compare(build, op, lhs, rhs)
    if op.kind is BinaryKind.POW and rhs == 2 and not isinstance(rhs, Value | bool):
        return binary(build, MUL, lhs, lhs)
    dtype = build.common(lhs, rhs)
    if op.kind is BinaryKind.DIV and dtype.is_integer:
        dtype = f32
    left, right = build.lift(lhs, dtype), build.lift(rhs, dtype)
    return build.add(Binary(op.kind, left, right), infix(op.word, left, right))


def compare(build: Build, op: Operator, lhs: object, rhs: object) -> object:
    """`lhs op rhs` as bool; constants compare in Python."""
    if is_static(lhs) and is_static(rhs):
        return fold(op.fold, lhs, rhs)
    _check_operands(op, lhs, rhs)
    assert isinstance(op.kind, CompareKind)
    dtype = build.common(lhs, rhs)
    left, right = build.lift(lhs, dtype), build.lift(rhs, dtype)
    return build.add(Compare(op.kind, left, right), infix(op.word, left, right))


def unary(build: Build, node: ast.unaryop, operand: object) -> object:
    """`-x`, `+x`, `~x`, `not x`."""
    if isinstance(node, ast.Not):
        return negate(build, operand)
    sign, function, kind, word = _UNARY[type(node)]
    if is_static(operand):
        return fold(function, operand)
    if not is_number(operand):
        raise CompileError(f"{sign} takes numbers, got {describe(operand)}", hint=_remedy(operand))
    assert isinstance(operand, Value)
    if kind is None:
        return operand
    return build.add(Unary(kind, operand), prefix(word, operand))


_UNARY: dict[type[ast.unaryop], tuple[str, Callable[[Any], object], UnaryKind | None, str]] = {
    ast.USub: ("-", operator.neg, UnaryKind.NEG, "neg"),
    ast.UAdd: ("+", operator.pos, None, ""),
    ast.Invert: ("~", operator.invert, UnaryKind.NOT, "not"),
}


def truth(build: Build, value: object, where: str) -> bool | Value:
    """A condition: decided now for a constant, else a uniform bool scalar.

    Raises:
        CompileError: a tile or per-thread value has no single truth; or neither.
    """
    if is_static(value):
        return bool(fold(bool, value))
    if not isinstance(value, Value) or not is_number(value):
        raise CompileError(f"{where} needs a condition, got {describe(value)}", hint=_remedy(value))
    if isinstance(value.type, TileType) or value.type != ScalarType(element(value)):
        raise CompileError(
            f"{where} needs one value for the whole threadgroup, got {describe(value)}",
            hint=_CHOICES[where],
        )
    if element(value) == bool_:
        return value
    zero = build.constant(0, element(value))
    return build.add(Compare(CompareKind.NE, value, zero), infix("ne", value, zero))


def negate(build: Build, value: object) -> object:
    """`not value`."""
    condition = truth(build, value, "`not`")
    if isinstance(condition, bool):
        return not condition
    return build.add(Unary(UnaryKind.NOT, condition), prefix("not", condition))


_MASK = "use metile.where(condition, a, b), or mask= of load and store"
_CHOICES = {
    "`if`": _MASK,
    "a conditional expression": "use metile.where(condition, a, b)",
    "`not`": "use ~mask to negate a mask",
    "`and`": "use a & b to combine masks",
    "`or`": "use a | b to combine masks",
    "assert": _MASK,
}


def _is_pointer(value: object) -> bool:
    return isinstance(value, PointerOffset) or (
        isinstance(value, Value) and isinstance(value.type, PointerType)
    )


def _pointer(build: Build, op: Operator, lhs: object, rhs: object) -> PointerOffset:
    """`array + offset`, `array + offset + offset` (SPEC K6)."""
    base, offset = (lhs, rhs) if _is_pointer(lhs) else (rhs, lhs)
    if op.kind is not BinaryKind.ADD or not is_number(offset):
        raise CompileError(
            f"{op.sign} does not take {describe(base)} and {describe(offset)}",
            hint=_remedy(base),
        )
    if isinstance(base, PointerOffset):
        total = binary(build, ADD, base.offset, offset)
        assert isinstance(total, Value)
        return PointerOffset(base.array, total)
    assert isinstance(base, Value)
    value = build.number(offset)
    if element(value) != i32:
        raise CompileError(
            f"a pointer offset is {element(value)}, expected i32",
            hint="cast it: metile.cast(offset, metile.i32)",
        )
    return PointerOffset(base, value)


def _check_operands(op: Operator, lhs: object, rhs: object) -> None:
    for value in (lhs, rhs):
        if not is_number(value):
            raise CompileError(
                f"{op.sign} takes numbers, got {describe(value)}", hint=_remedy(value)
            )


def _remedy(value: object) -> str | None:
    if isinstance(value, Value) and isinstance(value.type, PointerType):
        return f"declare a view and load from it: metile.tensor({value.name}, shape=..., ...).load"
    if isinstance(value, Value) and isinstance(value.type, TensorType):
        return f"load from it first: {value.name or 'tensor'}.load(indices)"
    return None
