"""Constants as text that parses back to the same bits (F25), and the names of types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from metile_mlx.dtypes import (
    DType,
    Kind,
    bf16,
    bool_,
    f16,
    f32,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)


def quoted(text: str) -> str:
    """A string literal of printable ASCII."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True)
class Spelling:
    """How one language writes types and constants.

    Attributes:
        types: the name of each dtype's values.
        suffixes: of the integer types that have literals; narrower ones are constructed.
        half_bits: f16 and bf16 values are carried as their bits in an unsigned integer.
    """

    types: Mapping[DType, str]
    suffixes: Mapping[DType, str]
    half_bits: bool


MSL = Spelling(
    types={
        **{f16: "half", bf16: "bfloat", f32: "float", bool_: "bool"},
        **{i8: "char", i16: "short", i32: "int", i64: "long"},
        **{u8: "uchar", u16: "ushort", u32: "uint", u64: "ulong"},
    },
    suffixes={i32: "", u32: "u", i64: "l", u64: "ul"},
    half_bits=False,
)
CPP = Spelling(
    types={
        **{f16: "uint16_t", bf16: "uint16_t", f32: "float", bool_: "bool"},
        **{i8: "int8_t", i16: "int16_t", i32: "int32_t", i64: "int64_t"},
        **{u8: "uint8_t", u16: "uint16_t", u32: "uint32_t", u64: "uint64_t"},
    },
    suffixes={i32: "", u32: "u", i64: "ll", u64: "ull"},
    half_bits=True,
)


def _single(value: float) -> np.float32:
    with np.errstate(over="ignore"):
        return np.float32(value)


def bits_of(value: float, dtype: DType) -> int:
    """The bits of a number rounded to f32, then to f16 or bf16, as MLX rounds its scalars."""
    single = _single(value)
    word = int(single.view(np.uint32))
    if dtype == f16:
        with np.errstate(over="ignore"):
            return int(np.float16(single).view(np.uint16))
    if dtype == bf16:
        rounded = (word + 0x7FFF + (word >> 16 & 1)) >> 16
        return word >> 16 | 0x40 if np.isnan(single) else rounded
    return word


def round_to(value: float, dtype: DType) -> float:
    """A number rounded to a float dtype."""
    bits = bits_of(value, dtype)
    if dtype == f16:
        return float(np.uint16(bits).view(np.float16))
    return float(np.uint32(bits << 16 if dtype == bf16 else bits).view(np.float32))


def wrap(value: int, dtype: DType) -> int:
    """An integer modulo the width of `dtype`, in its range."""
    low = value & ((1 << dtype.bits) - 1)
    return low - (1 << dtype.bits) if low > dtype.max else low


def float_literal(value: float) -> str:
    """The shortest decimal of the f32 nearest to `value`; INFINITY and NAN by name."""
    single = _single(value)
    if np.isnan(single):
        return "NAN"
    if np.isinf(single):
        return "INFINITY" if single > 0 else "-INFINITY"
    return f"{single!s}f"


def literal(value: float, dtype: DType, spelling: Spelling) -> str:
    """`value` as a constant of type `dtype`: one token, perhaps with a minus, or bracketed."""
    if dtype.kind is Kind.BOOL:
        return "true" if value else "false"
    if dtype == f32:
        return float_literal(value)
    name = spelling.types[dtype]
    if dtype.is_float:
        bits = f"0x{bits_of(value, dtype):04x}"
        return f"{name}({bits})" if spelling.half_bits else f"{name}({float_literal(value)})"
    number = wrap(int(value), dtype)
    suffix = spelling.suffixes.get(dtype)
    if suffix is None:
        return f"{name}({number})"
    if dtype.kind is Kind.INT and number == dtype.min:
        # A minus is no part of a literal, and the magnitude alone doesn't fit the type.
        return f"({number + 1}{suffix} - 1)"
    return f"{number}{suffix}"
