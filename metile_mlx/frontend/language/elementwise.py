"""Elementwise mathematics on tiles and scalars (SPEC K3).

Each gives a tile for a tile and a scalar for a scalar, of the operand's dtype; f16 and bf16 results
are rounded to their dtype (SPEC K4). A call on Python constants is computed at compile time.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import overload

from metile_mlx.dtypes import i32
from metile_mlx.errors import CompileError
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.types import (
    MaskLike,
    Scalar,
    ScalarLike,
    Tile,
    TileLike,
    TileOrScalar,
)
from metile_mlx.frontend.naming import infix, prefix
from metile_mlx.frontend.operators import FLOORDIV, binary, fold
from metile_mlx.frontend.rules import host, outside, rule
from metile_mlx.frontend.values import describe, is_static
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, UnaryKind
from metile_mlx.ir.core import Value


def abs(x: TileOrScalar) -> TileOrScalar:
    """Absolute value of numbers (SPEC K3); in a kernel the builtin `abs` is the same."""
    raise outside("abs")


def exp(x: TileOrScalar) -> TileOrScalar:
    """e to the power of x, floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("exp")


def exp2(x: TileOrScalar) -> TileOrScalar:
    """2 to the power of x, floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("exp2")


def log(x: TileOrScalar) -> TileOrScalar:
    """Natural logarithm, floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("log")


def log2(x: TileOrScalar) -> TileOrScalar:
    """Base-2 logarithm, floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("log2")


def sqrt(x: TileOrScalar) -> TileOrScalar:
    """Square root, floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("sqrt")


def rsqrt(x: TileOrScalar) -> TileOrScalar:
    """1 / sqrt(x), floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("rsqrt")


def sin(x: TileOrScalar) -> TileOrScalar:
    """Sine of radians, floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("sin")


def cos(x: TileOrScalar) -> TileOrScalar:
    """Cosine of radians, floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("cos")


def tanh(x: TileOrScalar) -> TileOrScalar:
    """Hyperbolic tangent, floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("tanh")


def sigmoid(x: TileOrScalar) -> TileOrScalar:
    """1 / (1 + exp(-x)), floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("sigmoid")


def erf(x: TileOrScalar) -> TileOrScalar:
    """Error function, floats (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("erf")


def floor(x: TileOrScalar) -> TileOrScalar:
    """Largest whole number not above x, as the same float dtype (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("floor")


def ceil(x: TileOrScalar) -> TileOrScalar:
    """Smallest whole number not below x, as the same float dtype (SPEC K3).

    Raises:
        CompileError: integers or masks; cast them to f32 first.
    """
    raise outside("ceil")


@overload
def minimum(a: Tile, b: TileLike) -> Tile: ...
@overload
def minimum(a: TileLike, b: Tile) -> Tile: ...
@overload
def minimum(a: ScalarLike, b: ScalarLike) -> Scalar: ...
def minimum(a: TileLike, b: TileLike) -> Tile | Scalar:
    """The smaller of two, elementwise; NaN wins, as in `mx.minimum` (SPEC K3).

    Raises:
        CompileError: masks, or dtypes that don't mix (u32 with i32).
    """
    raise outside("minimum")


@overload
def maximum(a: Tile, b: TileLike) -> Tile: ...
@overload
def maximum(a: TileLike, b: Tile) -> Tile: ...
@overload
def maximum(a: ScalarLike, b: ScalarLike) -> Scalar: ...
def maximum(a: TileLike, b: TileLike) -> Tile | Scalar:
    """The larger of two, elementwise; NaN wins, as in `mx.maximum` (SPEC K3).

    Raises:
        CompileError: masks, or dtypes that don't mix (u32 with i32).
    """
    raise outside("maximum")


@overload
def where(  # type: ignore[overload-overlap]
    condition: Scalar | bool, a: ScalarLike, b: ScalarLike
) -> Scalar: ...
@overload
def where(condition: MaskLike, a: TileLike, b: TileLike) -> Tile: ...
def where(condition: MaskLike, a: TileLike, b: TileLike) -> Tile | Scalar:
    """`a` where the condition holds, else `b`, elementwise (SPEC K3).

    Args:
        condition: bool tile or scalar.
        a, b: tiles, scalars or numbers; they meet in one dtype as the operands of `+` do.

    Raises:
        CompileError: a condition that is not bool, dtypes or shapes that don't mix.
    """
    raise outside("where")


def fma(a: TileOrScalar, b: TileLike, c: TileLike) -> TileOrScalar:
    """a * b + c with one rounding, floats (SPEC K3).

    Raises:
        CompileError: operands that are not floats of dtypes that mix.
    """
    raise outside("fma")


@overload
def cdiv(a: int, b: int) -> int: ...  # type: ignore[overload-overlap]
@overload
def cdiv(a: Scalar | int, b: Scalar | int) -> Scalar: ...
@overload
def cdiv(a: Tile, b: Tile | Scalar | int) -> Tile: ...
@host
def cdiv(a: Tile | Scalar | int, b: Tile | Scalar | int) -> Tile | Scalar | int:
    """a / b rounded up, integers; also an ordinary function on Python ints (SPEC K3).

        >>> cdiv(9, 8), cdiv(8, 8), cdiv(-9, 8)
        (2, 1, -1)

    Raises:
        CompileError: not integers, or a constant zero divisor.
    """
    if not isinstance(a, int) or not isinstance(b, int):
        raise CompileError(f"[cdiv] got {describe(a)} and {describe(b)}, expected integers")
    if b == 0:
        raise CompileError("[cdiv] division by zero")
    return -(-a // b)


@host
def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least n; a compile-time constant (SPEC K3).

        >>> next_power_of_2(1000), next_power_of_2(1), next_power_of_2(0)
        (1024, 1, 1)

    Raises:
        CompileError: not a Python int.
    """
    if not isinstance(n, int):
        raise CompileError(
            f"[next_power_of_2] got {describe(n)}, expected an int known at compile time"
        )
    return 1 << builtins.max(n - 1, 0).bit_length()


_HOST: dict[UnaryKind, Callable[[float], float]] = {
    UnaryKind.EXP: math.exp,
    UnaryKind.EXP2: lambda x: 2.0**x,
    UnaryKind.LOG: math.log,
    UnaryKind.LOG2: math.log2,
    UnaryKind.SQRT: math.sqrt,
    UnaryKind.RSQRT: lambda x: 1.0 / math.sqrt(x),
    UnaryKind.SIN: math.sin,
    UnaryKind.COS: math.cos,
    UnaryKind.TANH: math.tanh,
    UnaryKind.SIGMOID: lambda x: 1.0 / (1.0 + math.exp(-x)),
    UnaryKind.ERF: math.erf,
    UnaryKind.FLOOR: lambda x: float(math.floor(x)),
    UnaryKind.CEIL: lambda x: float(math.ceil(x)),
    UnaryKind.ABS: builtins.abs,
}


def _register(kind: UnaryKind, stub: Callable[..., object]) -> None:
    @rule(stub)
    def translate(build: Build, x: object) -> object:
        build.expect_number(x, "x")
        if not isinstance(x, Value):
            return fold(_HOST[kind], x)
        return build.add(tile.Unary(kind, x), prefix(kind.value, x))


for _stub in (abs, exp, exp2, log, log2, sqrt, rsqrt, sin, cos, tanh, sigmoid, erf, floor, ceil):
    _register(UnaryKind(_stub.__name__), _stub)


def _extremum(build: Build, kind: BinaryKind, a: object, b: object) -> object:
    for name, value in (("a", a), ("b", b)):
        build.expect_number(value, name)
    if is_static((a, b)):
        return fold(builtins.min if kind is BinaryKind.MINIMUM else builtins.max, a, b)
    dtype = build.common(a, b)
    left, right = build.lift(a, dtype), build.lift(b, dtype)
    return build.add(tile.Binary(kind, left, right), infix(kind.value[:3], left, right))


@rule(minimum)
def _minimum(build: Build, a: object, b: object) -> object:
    return _extremum(build, BinaryKind.MINIMUM, a, b)


@rule(maximum)
def _maximum(build: Build, a: object, b: object) -> object:
    return _extremum(build, BinaryKind.MAXIMUM, a, b)


@rule(where)
def _where(build: Build, condition: object, a: object, b: object) -> Value:
    mask = build.number(condition, "condition")
    for name, value in (("a", a), ("b", b)):
        build.expect_number(value, name)
    dtype = build.common(a, b)
    item = tile.Select(mask, build.lift(a, dtype), build.lift(b, dtype))
    return build.add(item, prefix("where", mask))


@rule(fma)
def _fma(build: Build, a: object, b: object, c: object) -> Value:
    for name, value in (("a", a), ("b", b), ("c", c)):
        build.expect_number(value, name)
    dtype = build.common(a, b, c)
    parts = [build.lift(value, dtype) for value in (a, b, c)]
    return build.add(tile.Fma(*parts), prefix("fma", *parts))


@rule(cdiv)
def _cdiv(build: Build, a: object, b: object) -> object:
    dtype = build.common(a, b)
    if dtype != i32:
        raise build.error(f"got {describe(a)} and {describe(b)}, expected {i32} integers")
    # -(-a // b) can't wrap, as a + b - 1 would near the largest i32.
    minus_a = tile.Unary(UnaryKind.NEG, build.lift(a, dtype))
    quotient = binary(build, FLOORDIV, build.add(minus_a, "minus_a"), b)
    assert isinstance(quotient, Value)
    return build.add(tile.Unary(UnaryKind.NEG, quotient), "ceil_div")


@rule(next_power_of_2)
def _next_power_of_2(build: Build, n: object) -> object:
    raise build.error(f"n is {describe(n)}, expected an int known at compile time", "n")
