"""The arithmetic of all element types on NumPy arrays, as the backends do it.

f16 and bf16 operations are computed in f32 and rounded. A bf16 value is its bits in a uint16.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metile_mlx import dtypes
from metile_mlx.dtypes import DType, Kind, bf16
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind

Array = NDArray[Any]

NUMPY: dict[DType, Any] = {
    dtypes.f16: np.float16,
    dtypes.bf16: np.uint16,
    dtypes.f32: np.float32,
    dtypes.i8: np.int8,
    dtypes.i16: np.int16,
    dtypes.i32: np.int32,
    dtypes.i64: np.int64,
    dtypes.u8: np.uint8,
    dtypes.u16: np.uint16,
    dtypes.u32: np.uint32,
    dtypes.u64: np.uint64,
    dtypes.bool_: np.bool_,
}


def literal(value: int | float | bool, dtype: DType) -> Array:
    """An array of one element."""
    if dtype is bf16:
        return to_bf16(np.array([value], np.float32))
    return np.array([value], NUMPY[dtype])


def to_bf16(x: Array) -> Array:
    """f32 to bf16 bits, to nearest even; a NaN stays one and keeps what fits of its payload."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | np.uint32(0x40)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, quiet, rounded).astype(np.uint16)


def from_bf16(bits: Array) -> Array:
    """bf16 bits to f32, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_f32(x: Array, dtype: DType) -> Array:
    return from_bf16(x) if dtype is bf16 else x.astype(np.float32)


def from_f32(x: Array, dtype: DType) -> Array:
    return to_bf16(x) if dtype is bf16 else x.astype(NUMPY[dtype])


_erf = np.vectorize(math.erf, otypes=[np.float64])

FLOAT_UNARY: dict[UnaryKind, Callable[[Array], Array]] = {
    UnaryKind.NEG: np.negative,
    UnaryKind.ABS: np.abs,
    UnaryKind.EXP: np.exp,
    UnaryKind.EXP2: np.exp2,
    UnaryKind.LOG: np.log,
    UnaryKind.LOG2: np.log2,
    UnaryKind.SQRT: np.sqrt,
    UnaryKind.RSQRT: lambda x: 1 / np.sqrt(x),
    UnaryKind.SIN: np.sin,
    UnaryKind.COS: np.cos,
    UnaryKind.TANH: np.tanh,
    UnaryKind.SIGMOID: lambda x: 1 / (1 + np.exp(-x)),
    UnaryKind.ERF: lambda x: _erf(x).astype(np.float32),
    UnaryKind.FLOOR: np.floor,
    UnaryKind.CEIL: np.ceil,
}
INTEGER_UNARY: dict[UnaryKind, Callable[[Array], Array]] = {
    UnaryKind.NEG: np.negative,
    UnaryKind.NOT: np.invert,
    UnaryKind.ABS: np.abs,
}
FLOAT_BINARY: dict[BinaryKind, Callable[[Array, Array], Array]] = {
    BinaryKind.ADD: np.add,
    BinaryKind.SUB: np.subtract,
    BinaryKind.MUL: np.multiply,
    BinaryKind.DIV: np.divide,
    BinaryKind.REM: np.fmod,
    BinaryKind.POW: np.power,
    BinaryKind.MINIMUM: np.minimum,
    BinaryKind.MAXIMUM: np.maximum,
}
INTEGER_BINARY: dict[BinaryKind, Callable[[Array, Array], Array]] = {
    BinaryKind.ADD: np.add,
    BinaryKind.SUB: np.subtract,
    BinaryKind.MUL: np.multiply,
    BinaryKind.DIV: lambda a, b: _truncated(a, b)[0],
    BinaryKind.REM: lambda a, b: _truncated(a, b)[1],
    BinaryKind.SHL: np.left_shift,
    BinaryKind.SHR: np.right_shift,
    BinaryKind.AND: np.bitwise_and,
    BinaryKind.OR: np.bitwise_or,
    BinaryKind.XOR: np.bitwise_xor,
    BinaryKind.MINIMUM: np.minimum,
    BinaryKind.MAXIMUM: np.maximum,
}
COMPARE: dict[CompareKind, Callable[[Array, Array], Array]] = {
    CompareKind.EQ: np.equal,
    CompareKind.NE: np.not_equal,
    CompareKind.LT: np.less,
    CompareKind.LE: np.less_equal,
    CompareKind.GT: np.greater,
    CompareKind.GE: np.greater_equal,
}


def _truncated(a: Array, b: Array) -> tuple[Array, Array]:
    rest = np.fmod(a, b)
    return (a - rest) // b, rest


def widen(x: Array) -> Array:
    """Integers at 64 bits, where sums and products of 32-bit ones are exact."""
    return x.astype(np.int64)


def unary(kind: UnaryKind, x: Array, dtype: DType) -> Array:
    """One operand."""
    if dtype.is_float:
        return from_f32(FLOAT_UNARY[kind](to_f32(x, dtype)), dtype)
    return INTEGER_UNARY[kind](x)


def binary(kind: BinaryKind, a: Array, b: Array, dtype: DType) -> Array:
    """Two operands. Shift counts are taken modulo the width; integer DIV and REM truncate."""
    if dtype.is_float:
        return from_f32(FLOAT_BINARY[kind](to_f32(a, dtype), to_f32(b, dtype)), dtype)
    if kind in (BinaryKind.SHL, BinaryKind.SHR):
        b = b & b.dtype.type(dtype.bits - 1)
    return INTEGER_BINARY[kind](a, b)


def compare(kind: CompareKind, a: Array, b: Array, dtype: DType) -> Array:
    """IEEE comparison."""
    return COMPARE[kind](from_bf16(a), from_bf16(b)) if dtype is bf16 else COMPARE[kind](a, b)


def cast(x: Array, source: DType, target: DType) -> Array:
    """Convert values. Float to integer truncates; out of range, which devices leave undefined, it
    saturates, and NaN is 0."""
    if source is bf16:
        x = from_bf16(x)
    if target is bf16:
        return to_bf16(x.astype(np.float32))
    if source.is_float and target.is_integer:
        whole = np.trunc(np.nan_to_num(x.astype(np.float64), posinf=2.0**65, neginf=-(2.0**65)))
        clipped = [min(max(int(number), target.min), target.max) for number in whole]
        return np.array(clipped, NUMPY[target])
    return x != 0 if target.kind is Kind.BOOL else x.astype(NUMPY[target])
