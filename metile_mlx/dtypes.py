"""Element types and their promotion (SPEC K4). Each backend has its own words for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from metile_mlx.errors import CompileError


class Kind(Enum):
    """What a dtype's bits mean."""

    FLOAT = "float"
    INT = "int"
    UINT = "uint"
    BOOL = "bool"


@dataclass(frozen=True)
class DType:
    """An element type: its short name (`f32`), kind, and size in memory in bits."""

    name: str
    kind: Kind
    bits: int

    def __reduce__(self) -> str:
        """Each exists once: copies are the dtype itself, a pickle is its name in this module."""
        return repr(self).removeprefix("metile.")

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return "metile.bool_" if self.name == "bool" else f"metile.{self.name}"

    @property
    def bytes(self) -> int:
        """Size of one element in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned, not bool."""
        return self.kind in (Kind.INT, Kind.UINT)

    @property
    def is_signed(self) -> bool:
        return self.kind in (Kind.INT, Kind.FLOAT)

    @property
    def is_arithmetic(self) -> bool:
        """Whether operations exist on it; the others are only loaded, stored and cast (SPEC K4)."""
        return self in (f16, bf16, f32, i32, u32, bool_)

    @property
    def min(self) -> int:
        """Smallest value of an integer or bool type."""
        return -(1 << (self.bits - 1)) if self.kind is Kind.INT else 0

    @property
    def max(self) -> int:
        """Largest value of an integer or bool type."""
        if self.kind is Kind.BOOL:
            return 1
        return (1 << (self.bits - (self.kind is Kind.INT))) - 1


f16 = DType("f16", Kind.FLOAT, 16)
bf16 = DType("bf16", Kind.FLOAT, 16)
f32 = DType("f32", Kind.FLOAT, 32)
i8 = DType("i8", Kind.INT, 8)
i16 = DType("i16", Kind.INT, 16)
i32 = DType("i32", Kind.INT, 32)
i64 = DType("i64", Kind.INT, 64)
u8 = DType("u8", Kind.UINT, 8)
u16 = DType("u16", Kind.UINT, 16)
u32 = DType("u32", Kind.UINT, 32)
u64 = DType("u64", Kind.UINT, 64)
bool_ = DType("bool", Kind.BOOL, 8)

ALL = (f16, bf16, f32, i8, i16, i32, i64, u8, u16, u32, u64, bool_)
BY_NAME = {dtype.name: dtype for dtype in ALL}
# MLX's spelling of each, as `str(mx.float32)` ends.
MLX_NAMES = {
    "float16": f16,
    "bfloat16": bf16,
    "float32": f32,
    "int8": i8,
    "int16": i16,
    "int32": i32,
    "int64": i64,
    "uint8": u8,
    "uint16": u16,
    "uint32": u32,
    "uint64": u64,
    "bool": bool_,
}


def promote(lhs: DType, rhs: DType) -> DType:
    """The dtype in which two operands meet, as MLX promotes (SPEC K4).

    Raises:
        CompileError: u32 with i32, or a dtype without arithmetic.
    """
    for dtype in (lhs, rhs):
        if not dtype.is_arithmetic:
            raise CompileError(
                f"{dtype} has no arithmetic; it is only loaded, stored and cast",
                hint="cast to i32, u32 or f32 first",
            )
    if lhs == rhs:
        return lhs
    if lhs.is_float and rhs.is_float:
        return f32
    if lhs.is_float or rhs.is_float:
        return lhs if lhs.is_float else rhs
    if bool_ in (lhs, rhs):
        return rhs if lhs == bool_ else lhs
    raise CompileError(
        f"{lhs} and {rhs} do not mix: neither holds every value of the other",
        hint="cast one of them with metile.cast",
    )
