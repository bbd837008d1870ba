"""Arithmetic as C-style expressions: integers wrap, floats round at each op, NaN wins (SPEC K4)."""

from __future__ import annotations

from metile_mlx.dtypes import DType, bool_, f32, u32, u64
from metile_mlx.emit.cstyle import CStyle, Expression
from metile_mlx.emit.literals import literal
from metile_mlx.ir.arith import SHIFTS, BinaryKind, CompareKind, UnaryKind, element
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.metal import Binary, Bitcast, Cast, Compare, Fma, Select, Unary

OPERATORS = {
    BinaryKind.ADD: "+",
    BinaryKind.SUB: "-",
    BinaryKind.MUL: "*",
    BinaryKind.DIV: "/",
    BinaryKind.REM: "%",
    BinaryKind.SHL: "<<",
    BinaryKind.SHR: ">>",
    BinaryKind.AND: "&",
    BinaryKind.OR: "|",
    BinaryKind.XOR: "^",
}
COMPARISONS = {
    CompareKind.EQ: "==",
    CompareKind.NE: "!=",
    CompareKind.LT: "<",
    CompareKind.LE: "<=",
    CompareKind.GT: ">",
    CompareKind.GE: ">=",
}
_FUNCTIONS = {BinaryKind.POW: "pow", BinaryKind.REM: "fmod"}
# The result may not fit the type; on a signed type that is undefined in C++ and in MSL.
_MAY_OVERFLOW = frozenset({BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL, BinaryKind.SHL})
_EXTREMES = {BinaryKind.MINIMUM: "<", BinaryKind.MAXIMUM: ">"}


def _carrier(dtype: DType) -> DType:
    """The unsigned type in which arithmetic on an integer dtype wraps, never narrower than int."""
    return u64 if dtype.bits == 64 else u32


def _minus(text: str) -> str:
    return f"-({text})" if text.startswith("-") else f"-{text}"


def unary(e: CStyle, item: Unary) -> str:
    """One operand; f16 and bf16 go through f32 where the language lacks the operation on them."""
    dtype = element(item.src)
    return _float_unary(e, item, dtype) if dtype.is_float else _integer_unary(e, item, dtype)


def _integer_unary(e: CStyle, item: Unary, dtype: DType) -> str:
    a = e.operand(item.src)
    if item.kind is UnaryKind.NOT:
        return f"!{a}" if dtype == bool_ else f"~{a}"
    if item.kind is UnaryKind.ABS and not dtype.is_signed:
        return a
    zero = literal(0, dtype, e.spelling)
    negated = _minus(a)
    if not e.signed_wraps:
        carrier = _carrier(dtype)
        unsigned = f"{literal(0, carrier, e.spelling)} - {e.convert(item.src, carrier)}"
        negated = f"{e.type(dtype)}({unsigned})" if dtype != carrier else unsigned
    return negated if item.kind is UnaryKind.NEG else f"{a} < {zero} ? {negated} : {a}"


def _float_unary(e: CStyle, item: Unary, dtype: DType) -> str:
    a = e.operand(item.src) if dtype in e.native else e.as_float(item.src)
    if item.kind is UnaryKind.NEG:
        return _minus(a) if dtype in e.native else e.narrow(_minus(a), dtype)
    return e.narrow(e.function(item.kind.value, e.as_float(item.src)), dtype)


def binary(e: CStyle, item: Binary) -> str:
    """Two operands of one dtype."""
    dtype = element(item.lhs)
    if item.kind in _EXTREMES:
        return _extreme(e, item, dtype)
    if dtype.is_float:
        return _float_binary(e, item, dtype)
    operator = OPERATORS[item.kind]
    if dtype == bool_:
        return f"{e.operand(item.lhs)} {e.logical[item.kind]} {e.operand(item.rhs)}"
    if item.kind in SHIFTS:
        return _shift(e, item, dtype)
    carrier = _carrier(dtype)
    narrow = dtype.bits < 32
    wraps = not e.signed_wraps and (narrow or (dtype.is_signed and not item.nowrap))
    if item.kind in _MAY_OVERFLOW and wraps:
        text = f"{e.convert(item.lhs, carrier)} {operator} {e.convert(item.rhs, carrier)}"
        return f"{e.type(dtype)}({text})"
    return f"{e.operand(item.lhs)} {operator} {e.operand(item.rhs)}"


def _shift(e: CStyle, item: Binary, dtype: DType) -> str:
    """The count is taken modulo the width (metal.binary)."""
    known = e.constant(item.rhs)
    mask = literal(dtype.bits - 1, dtype, e.spelling)
    count = f"({e.operand(item.rhs)} & {mask})" if known is None else str(int(known) % dtype.bits)
    if item.kind is BinaryKind.SHR or e.signed_wraps or not dtype.is_signed or item.nowrap:
        return f"{e.operand(item.lhs)} {OPERATORS[item.kind]} {count}"
    return f"{e.type(dtype)}({e.convert(item.lhs, _carrier(dtype))} << {count})"


def _float_binary(e: CStyle, item: Binary, dtype: DType) -> str:
    if item.kind in _FUNCTIONS:
        a, b = e.as_float(item.lhs), e.as_float(item.rhs)
        return e.narrow(e.function(_FUNCTIONS[item.kind], a, b), dtype)
    operator = OPERATORS[item.kind]
    if dtype in e.native:
        return f"{e.operand(item.lhs)} {operator} {e.operand(item.rhs)}"
    return e.narrow(f"{e.as_float(item.lhs)} {operator} {e.as_float(item.rhs)}", dtype)


def _compared(e: CStyle, value: Value) -> str:
    dtype = element(value)
    return e.as_float(value) if dtype.is_float and dtype not in e.native else e.operand(value)


def _extreme(e: CStyle, item: Binary, dtype: DType) -> str:
    """minimum or maximum: the first operand if it is NaN or less, else the second, as in MLX."""
    a, b = _compared(e, item.lhs), _compared(e, item.rhs)
    test = f"{a} {_EXTREMES[item.kind]} {b}"
    if dtype.is_float:
        test = e.nan_or(a, test)
    return f"{test} ? {e.operand(item.lhs)} : {e.operand(item.rhs)}"


def compare(e: CStyle, item: Compare) -> str:
    """As IEEE: everything but NE is false on NaN."""
    return f"{_compared(e, item.lhs)} {COMPARISONS[item.kind]} {_compared(e, item.rhs)}"


def select(e: CStyle, item: Select) -> str:
    """`condition ? on_true : on_false`"""
    on_true, on_false = e.operand(item.on_true), e.operand(item.on_false)
    return f"{e.operand(item.condition)} ? {on_true} : {on_false}"


def cast(e: CStyle, item: Cast) -> str:
    """A conversion of the value."""
    source, dtype = element(item.src), item.dtype
    if source == dtype:
        return e.operand(item.src)
    if dtype == bool_:
        zero = literal(0, f32 if source.is_float and source not in e.native else source, e.spelling)
        return f"{_compared(e, item.src)} != {zero}"
    if dtype.is_float and source.is_float:
        return e.narrow(e.as_float(item.src), dtype)
    if dtype.is_float:
        return e.narrow(f"float({e.operand(item.src)})", dtype)
    if source.is_float:
        return f"{e.type(dtype)}({e.as_float(item.src)})"
    return f"{e.type(dtype)}({e.operand(item.src)})"


def bitcast(e: CStyle, item: Bitcast) -> str:
    """The same bits."""
    source, dtype = element(item.src), item.dtype
    if source.is_float or dtype.is_float:
        return e.reinterpret(e.operand(item.src), source, dtype)
    return f"{e.type(dtype)}({e.operand(item.src)})"


def fma(e: CStyle, item: Fma) -> str:
    """One rounding in f32; for f16 and bf16 that f32 is rounded again, on every backend."""
    a, b, c = (e.as_float(value) for value in (item.a, item.b, item.c))
    return e.narrow(e.function("fma", a, b, c), element(item.a))


ARITHMETIC: dict[type[Op], Expression] = {
    Unary: unary,
    Binary: binary,
    Compare: compare,
    Select: select,
    Cast: cast,
    Bitcast: bitcast,
    Fma: fma,
}
