"""What an expression of a kernel can be: a Python constant, an IR value, a pointer."""

from __future__ import annotations

import math
import struct
from collections.abc import Hashable
from dataclasses import dataclass
from numbers import Integral, Real
from types import ModuleType

from metile_mlx.dtypes import MLX_NAMES, DType, Kind, bf16, bool_, f16, f32, i32
from metile_mlx.errors import CompileError
from metile_mlx.ir.core import Value, literal_key
from metile_mlx.ir.types import PointerType, ScalarType, TensorType, TileType
from metile_mlx.layout.thread_layout import ThreadLayout

MISSING = object()
"""No value: an unset default, a name without a binding."""

Number = bool | int | float


@dataclass(frozen=True)
class ArraySpec:
    """What a specialisation knows of an array argument."""

    dtype: DType


@dataclass(frozen=True)
class ScalarSpec:
    """What a specialisation knows of a runtime scalar: i32, f32 or bool, never its value.

    `lazy`: it comes as an MLX array, so that the host does not know its value either (SPEC X10).
    """

    dtype: DType
    lazy: bool = False


@dataclass(frozen=True)
class PointerOffset:
    """`X + offsets`: addresses for the automatic path's pointer loads (SPEC K6)."""

    array: Value
    offset: Value


@dataclass(frozen=True)
class Unbound:
    """What a name holds when only some ways through the kernel assign it."""

    message: str
    hint: str


@dataclass(frozen=True)
class Identity:
    """Key of an object compared by identity; keeps it alive, so that no other has its id."""

    item: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and other.item is self.item

    def __hash__(self) -> int:
        return id(self.item)


def constant_key(value: object) -> Hashable:
    """Equal for two values exactly when a kernel can't tell them apart: 1, 1.0 and True differ."""
    match value:
        case float():
            return literal_key(value)
        case bool() | int() | str():
            return (type(value), value)
        case tuple():
            return (tuple, *(constant_key(part) for part in value))
        case DType() | ThreadLayout() | None:
            return value
        case _:
            return Identity(value)


def as_constant(value: object) -> object:
    """A Python object as a kernel sees it: MLX dtypes become ours, NumPy numbers int and float.

    Objects a kernel can't compute with (modules, functions) pass; see `is_constant`.
    """
    if isinstance(value, bool | str | tuple | DType | ThreadLayout | ModuleType) or value is None:
        return tuple(as_constant(part) for part in value) if isinstance(value, tuple) else value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if type(value).__name__ == "Dtype":
        return MLX_NAMES.get(str(value).rpartition(".")[2], value)
    return value


def is_constant(value: object) -> bool:
    """Whether a kernel may hold this as a compile-time constant (SPEC K1)."""
    if isinstance(value, tuple):
        return all(is_constant(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str | DType | ThreadLayout)


def is_number(value: object) -> bool:
    """Whether this takes part in arithmetic: a Python number, a scalar or a tile."""
    if isinstance(value, Value):
        return isinstance(value.type, ScalarType | TileType)
    return isinstance(value, bool | int | float)


def is_static(value: object) -> bool:
    """Whether no IR value is in it, so that Python can compute with it now."""
    if isinstance(value, tuple):
        return all(is_static(part) for part in value)
    return not isinstance(value, Value | PointerOffset)


def default_dtype(value: Number) -> DType:
    """The dtype of a Python number that meets no tile: bool, i32 or f32."""
    if isinstance(value, bool):
        return bool_
    return i32 if isinstance(value, int) else f32


def meet(value: Number, dtype: DType) -> DType:
    """The dtype in which a Python number meets a tile or scalar of `dtype` (SPEC K4).

    The tile's own, except where the number's kind is above it, as in MLX: a float beside integers
    gives f32, an integer beside a mask gives i32.

    Raises:
        CompileError: `dtype` has no arithmetic.
    """
    if not dtype.is_arithmetic:
        raise CompileError(
            f"{dtype} has no arithmetic; it is only loaded, stored and cast",
            hint="cast to i32, u32 or f32 first",
        )
    if isinstance(value, bool) or dtype.is_float:
        return dtype
    if isinstance(value, float):
        return f32
    return i32 if dtype is bool_ else dtype


def represent(value: Number, dtype: DType) -> Number:
    """The number as `dtype` holds it: floats rounded as MLX does, integers unchanged.

    Raises:
        CompileError: an integer outside the dtype's range, or a float for an integer type.
    """
    if dtype.is_float:
        return _round(value, dtype)
    if dtype.kind is Kind.BOOL:
        return bool(value)
    if isinstance(value, float):
        raise CompileError(
            f"{value!r} is a float, {dtype} holds integers",
            hint=f"write an integer, or cast: metile.cast(value, {dtype!r})",
        )
    if not dtype.min <= value <= dtype.max:
        # Python refuses to print integers of thousands of digits.
        shown = int(value) if abs(value) < 2**512 else f"an integer of {value.bit_length()} bits"
        raise CompileError(
            f"{shown} does not fit {dtype} ({dtype.min}..{dtype.max})",
            hint="use a smaller number or a wider dtype",
        )
    return int(value)


def convert(value: Number, dtype: DType) -> Number:
    """`metile.cast` of a Python number: like `represent`, and a float truncates toward zero."""
    if dtype.is_integer and isinstance(value, float):
        if not math.isfinite(value):
            raise CompileError(f"{value!r} has no value in {dtype}")
        return represent(int(value), dtype)
    return represent(value, dtype)


def _round(value: Number, dtype: DType) -> float:
    """To f32 and from there to the narrower type, which is MLX's path for Python numbers."""
    try:
        number = float(value)
    except OverflowError:
        raise CompileError(
            f"an integer of {int(value).bit_length()} bits does not fit {dtype}"
        ) from None
    if not math.isfinite(number):
        return number
    single = _pack("<f", number)
    if dtype is f16:
        return _pack("<e", single)
    if dtype is bf16 and math.isfinite(single):
        bits: int = struct.unpack("<I", struct.pack("<f", single))[0]
        bits += 0x7FFF + (bits >> 16 & 1)
        rounded: float = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0]
        return rounded
    return single


def _pack(code: str, value: float) -> float:
    """Round to a narrower format; what is too large becomes an infinity, as in the hardware."""
    if not math.isfinite(value):
        return value
    try:
        rounded: float = struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)
    return rounded


def describe(value: object) -> str:
    """What a value is, in the words of a message, with its name where it has one."""
    if isinstance(value, Value):
        name = f"`{value.name}`, " if value.name and value.name.isidentifier() else ""
        return name + _describe_type(value)
    if isinstance(value, PointerOffset):
        return "a pointer"
    if isinstance(value, bool | int | float | str | DType | ThreadLayout) or value is None:
        return repr(value)
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _describe_type(value: Value) -> str:
    match value.type:
        case TileType(dtype=dtype, shape=shape):
            extents = "x".join(str(extent) for extent in shape)
            return f"a tile of {extents} {dtype}"
        case ScalarType(dtype=dtype, uniform=True):
            return f"a runtime {dtype}"
        case ScalarType(dtype=dtype):
            return f"a per-thread {dtype}"
        case PointerType(dtype=dtype):
            return f"an array of {dtype}"
        case TensorType(dtype=dtype, rank=rank):
            return f"a {rank}-dimensional tensor of {dtype}"
        case _:
            return str(value.type)
