"""The kinds of arithmetic both op sets speak of, and the type rules they share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum

from metile_mlx.dtypes import DType, Kind, bool_, f32, i32, u32
from metile_mlx.errors import CompileError
from metile_mlx.ir.core import Value
from metile_mlx.ir.types import ScalarType, TileType, Type


class UnaryKind(Enum):
    """One operand, result of the same dtype."""

    NEG = "neg"
    NOT = "not"  # bitwise on integers, logical on bool
    ABS = "abs"
    EXP = "exp"
    EXP2 = "exp2"
    LOG = "log"
    LOG2 = "log2"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    SIN = "sin"
    COS = "cos"
    TANH = "tanh"
    SIGMOID = "sigmoid"
    ERF = "erf"
    FLOOR = "floor"
    CEIL = "ceil"


class BinaryKind(Enum):
    """Two operands of one dtype, result of the same dtype."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"  # floats; on integers (metal ops only) truncating
    FLOORDIV = "floordiv"  # Python's //; tile ops only
    MOD = "mod"  # Python's %; tile ops only
    REM = "rem"  # remainder of DIV on integers, fmod on floats; metal ops only
    POW = "pow"
    SHL = "shl"
    SHR = "shr"
    AND = "and"
    OR = "or"
    XOR = "xor"
    MINIMUM = "minimum"  # NaN wins, as in MLX
    MAXIMUM = "maximum"


class CompareKind(Enum):
    """Two operands of one dtype, bool result."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


class CombineKind(Enum):
    """How a reduction combines the elements of a tile."""

    SUM = "sum"
    MAX = "max"  # NaN wins, as in MLX
    MIN = "min"


FLOAT_UNARY = frozenset(UnaryKind) - {UnaryKind.NEG, UnaryKind.NOT, UnaryKind.ABS}
BITWISE = frozenset({BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR})
SHIFTS = frozenset({BinaryKind.SHL, BinaryKind.SHR})
TILE_ONLY = frozenset({BinaryKind.FLOORDIV, BinaryKind.MOD})
METAL_ONLY = frozenset({BinaryKind.REM})
REDUCED = (f32, i32, u32)
"""What reductions combine."""
COMBINE = {
    CombineKind.SUM: BinaryKind.ADD,
    CombineKind.MAX: BinaryKind.MAXIMUM,
    CombineKind.MIN: BinaryKind.MINIMUM,
}
"""Two values combined."""


def element(value: Value) -> DType:
    """The dtype of a scalar's or tile's elements.

    Raises:
        CompileError: the value is an array, a tensor or scratch.
    """
    if isinstance(value.type, ScalarType | TileType):
        return value.type.dtype
    raise CompileError(
        f"{value.name or 'a value'} is {value.type}, not a number",
        hint="load from it first: metile.tensor(...).load(...)",
    )


def check_unary(kind: UnaryKind, dtype: DType) -> None:
    """Raise CompileError unless the operation exists on `dtype`."""
    if kind in FLOAT_UNARY and not dtype.is_float:
        raise CompileError(
            f"{kind.value} takes floats, got {dtype}", hint="cast to f32 first: metile.cast"
        )
    if kind is UnaryKind.NOT and dtype.is_float:
        raise CompileError(f"~ takes integers and masks, got {dtype}")
    if kind in (UnaryKind.NEG, UnaryKind.ABS) and dtype == bool_:
        raise CompileError(
            f"{kind.value} takes numbers, got bool", hint="use ~mask to negate a mask"
        )


def check_binary(kind: BinaryKind, lhs: DType, rhs: DType) -> None:
    """Raise CompileError unless the operation exists on two operands of these dtypes."""
    if lhs != rhs:
        raise CompileError(f"{kind.value} takes one dtype, got {lhs} and {rhs}")
    if not lhs.is_arithmetic:
        raise CompileError(f"{lhs} has no arithmetic", hint="cast to i32, u32 or f32 first")
    if kind in BITWISE and lhs.is_float:
        raise CompileError(f"{kind.value} takes integers and masks, got {lhs}")
    if kind in SHIFTS and not lhs.is_integer:
        raise CompileError(f"{kind.value} takes integers, got {lhs}")
    if kind not in BITWISE and lhs.kind is Kind.BOOL:
        raise CompileError(
            f"{kind.value} takes numbers, got bool", hint="combine masks with & | ^ ~, or cast"
        )
    if kind is BinaryKind.POW and not lhs.is_float:
        raise CompileError(f"** takes floats, got {lhs}", hint="cast to f32 first, or multiply")


def check_reduced(kind: CombineKind, src: Value, axis: int | None) -> None:
    """Raise CompileError unless `src` is a tile that is reduced along an axis it has.

    Smaller dtypes are widened before: exactly for max and min, on demand for sums (SPEC R4).
    """
    if not isinstance(src.type, TileType):
        raise CompileError(
            f"[{kind.value}] got {src.type}, expected a tile",
            hint="a uniform scalar has nothing to reduce",
        )
    if src.type.dtype not in REDUCED:
        names = ", ".join(str(dtype) for dtype in REDUCED)
        raise CompileError(
            f"[{kind.value}] {src.name or 'the tile'} is {src.type.dtype}, expected one of {names}",
            hint="cast it first: metile.cast(x, metile.f32)",
        )
    if axis is not None and not 0 <= axis < len(src.type.shape):
        raise CompileError(f"[{kind.value}] axis is {axis}, the tile has {src.type.shape}")


def identity(kind: CombineKind, dtype: DType) -> int | float:
    """What a combination leaves as it is."""
    if kind is CombineKind.SUM:
        return 0.0 if dtype.is_float else 0
    if dtype.is_float:
        return -math.inf if kind is CombineKind.MAX else math.inf
    return dtype.min if kind is CombineKind.MAX else dtype.max


def join(values: Iterable[Value], dtype: DType, uniform: bool = True) -> Type:
    """The type of an elementwise result: the shape and layout of the tiles among `values`.

    A tile whose layout is undecided takes that of the others; whether decided owners agree is the
    ownership pass's business (SPEC O3), so the first one is taken here. A scalar is `uniform` only
    where all of them are.

    Raises:
        CompileError: two tiles of different shapes.
    """
    tiles = [(value, value.type) for value in values if isinstance(value.type, TileType)]
    if not tiles:
        given = all(value.type.uniform for value in values if isinstance(value.type, ScalarType))
        return ScalarType(dtype, uniform and given)
    first = tiles[0]
    for other in tiles[1:]:
        if other[1].shape != first[1].shape:
            raise CompileError(
                f"tiles of different shapes meet: {_named(*first)} and {_named(*other)}",
                hint="tile sizes agree within a kernel; reshape or use one size",
            )
    layout = next((type_.layout for _, type_ in tiles if type_.layout is not None), None)
    return TileType(dtype, first[1].shape, layout)


def _named(value: Value, type_: TileType) -> str:
    return f"{value.name or 'a value'} {type_.shape}"
