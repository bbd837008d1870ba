"""What ops compute, in numbers that stand for values: a program is read with them, not run.

Integers and masks are exact. A float is a bit pattern, and an operation on floats is a hash of its
kind and its operands: equal for equal expressions, and for nothing else, but for an accident of one
in 2**32 (2**16 for halves). What lowering relies on has its laws: sums over lanes are associative
with 0, extremes with their infinity, and going there and back by a bitcast is nothing. What no
program knows - memory, arguments, its place in the grid - is a hash too, or is chosen for TRIALS
runs. So two programs that give equal numbers compute the same from whatever they are given (random
interpretation, after Gulwani and Necula), and one that differs gives others.

An array of numbers has one row for each trial, or one for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metile_mlx.dtypes import DType, Kind, bf16, f16
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.layout.affine import Indices

# One row per choice of the arguments, in canonical form: signed or unsigned as the dtype is, 0 or
# 1, or the bits of a float. u64 as the i64 of the same bits.
Numbers: TypeAlias = Indices
Compares: TypeAlias = Callable[[CompareKind, Numbers, Numbers, DType], Numbers]
TRIALS = 6
# Negative as an i32 when multiplied by any size of a tile.
FAR = 0x7FFF0005
_ROUNDS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9))
_SHIFT = np.uint64(29)


@lru_cache(maxsize=4096)
def _seed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(what: str, *parts: Numbers) -> NDArray[np.uint64]:
    """A hash of `what` and the parts, element by element."""
    found: NDArray[np.uint64] = np.full((1, 1), _seed(what), np.uint64)
    for part in parts:
        found = (found ^ part.view(np.uint64)) * _ROUNDS[0]
        found ^= found >> _SHIFT
        found = found * _ROUNDS[1]
    return found ^ (found >> _SHIFT)


def canonical(image: Numbers, dtype: DType) -> Numbers:
    """Integers modulo the range of `dtype`; the low bits of a float's pattern."""
    if dtype.kind is Kind.BOOL:
        return image & 1
    if dtype.bits >= 64:
        return image
    image = image & ((1 << dtype.bits) - 1)
    return (image ^ -dtype.min) + dtype.min if dtype.is_signed and dtype.is_integer else image


def unknown(what: str, dtype: DType, *parts: Numbers) -> Numbers:
    """A value that only its name tells: `what` at `parts`. Some integers are small."""
    image = mix(what, np.arange(TRIALS, dtype=np.int64)[:, None], *parts).view(np.int64)
    image = np.array(image)
    if dtype.is_integer:
        # In the first trials an integer may serve as an index.
        image[:-1] &= 63
    return canonical(image, dtype)


def arguments(given: Sequence[tuple[str, DType, bool]], size: int) -> list[Numbers]:
    """The runtime scalars of a program whose tiles have `size` elements; no integer is negative.

    Extents (the third of each) are almost nothing, a few, some, and more than all programs touch,
    each in another trial, so that a bound cuts off all, much, little and nothing while others
    don't. Other numbers are small or large at random; in two trials they ascend, as a start and a
    stop do.
    """
    extents = [name for name, _, is_extent in given if is_extent]
    others = [name for name, dtype, is_extent in given if dtype.is_integer and not is_extent]
    found = []
    for name, dtype, is_extent in given:
        if not dtype.is_integer:
            found.append(unknown(f"scalar {name}", dtype))
            continue
        at = (extents if is_extent else others).index(name)
        image = _extent(name, at, size) if is_extent else _number(name, at, len(others), size)
        found.append(canonical(image, dtype))
    return found


def _spread(name: str) -> Numbers:
    """Any non-negative number for each trial."""
    return (mix(f"scalar {name}", np.arange(TRIALS)[:, None]) >> _SHIFT).view(np.int64)


def _extent(name: str, at: int, size: int) -> Numbers:
    scales = np.array([1, 5, size + size // 2, 4 * size, 6 * size, size // 2 + 1])
    scale: Numbers = np.roll(scales, -2 * at)[:, None]
    image: Numbers = scale + _spread(name) % scale
    return image


def _number(name: str, at: int, count: int, size: int) -> Numbers:
    scales = np.array([1, 5, size // 4 + 3, size + 7, 4 * size + 9])
    spread = _spread(name)
    scale = scales[spread % len(scales)]
    image: Numbers = scale + (spread >> 2) % scale
    if count > 1:
        image[2], image[5] = (at * reach // (count - 1) for reach in (3 * size, size))
    return image


def program(axis: int) -> Numbers:
    """The place in the grid; once so far out that an index of tiles in a row wraps."""
    places = [3, 0, 1, FAR, 1, 0] if axis == 0 else [1, 0, 2, 1, 0, 1]
    return np.array(places, np.int64)[:, None]


def programs(axis: int) -> Numbers:
    """The extent of the grid: a little more than the place in it."""
    return program(axis) + np.array([1, 1, 2, 3 + axis, 1, 2], np.int64)[:, None]


def constant(value: int | float | bool, dtype: DType) -> Numbers:
    """A literal."""
    if not dtype.is_float:
        bits = int(value) & (1 << 64) - 1
        return canonical(np.full((1, 1), bits, np.uint64).view(np.int64), dtype)
    if dtype == f16:
        bits = int(np.array(value, np.float16).view(np.uint16))
    else:
        bits = int(np.array(value, np.float32).view(np.uint32))
    if dtype == bf16:
        # To nearest, ties to even; a NaN stays one.
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 if value == value else bits >> 16
    return np.full((1, 1), bits, np.int64)


def unary(kind: UnaryKind, a: Numbers, dtype: DType) -> Numbers:
    """`kind` of a."""
    if not dtype.is_float:
        if kind is UnaryKind.NOT:
            return canonical(~a, dtype)
        if kind is UnaryKind.NEG:
            return canonical(-a, dtype)
        if kind is UnaryKind.ABS:
            return canonical(np.abs(a), dtype)
    return canonical(mix(f"{kind.value} {dtype}", a).view(np.int64), dtype)


def binary(
    kind: BinaryKind, a: Numbers, b: Numbers, dtype: DType, compares: Compares | None = None
) -> Numbers:
    """a `kind` b, of tiles and of threads; a remainder `compares` floats, by default as here."""
    if not dtype.is_float:
        with np.errstate(over="ignore"):
            return canonical(_INTEGER[kind](a, b, dtype), dtype)
    if kind is BinaryKind.FLOORDIV:
        return unary(UnaryKind.FLOOR, binary(BinaryKind.DIV, a, b, dtype), dtype)
    if kind is BinaryKind.MOD:
        return _float_modulo(a, b, dtype, compares or compare)
    if kind in (BinaryKind.MINIMUM, BinaryKind.MAXIMUM):
        return _extreme(kind, a, b, dtype)
    return canonical(mix(f"{kind.value} {dtype}", a, b).view(np.int64), dtype)


def _float_modulo(a: Numbers, b: Numbers, dtype: DType, compares: Compares) -> Numbers:
    """The remainder with the divisor's sign (SPEC K3)."""
    zero = constant(0.0, dtype)
    rest = binary(BinaryKind.REM, a, b, dtype)
    opposite = compares(CompareKind.LT, rest, zero, dtype) ^ compares(
        CompareKind.LT, b, zero, dtype
    )
    adjust = compares(CompareKind.NE, rest, zero, dtype) & opposite
    return np.where(adjust != 0, binary(BinaryKind.ADD, rest, b, dtype), rest)


def _extreme(kind: BinaryKind, a: Numbers, b: Numbers, dtype: DType) -> Numbers:
    """One of the two, by an order in which the infinity that changes nothing is last."""
    sign = 1 if kind is BinaryKind.MAXIMUM else -1
    neutral = constant(-sign * np.inf, dtype)
    first, second = (np.where(x == neutral, -(1 << 32), sign * x) for x in (a, b))
    return np.where(first >= second, a, b)


def compare(kind: CompareKind, a: Numbers, b: Numbers, dtype: DType) -> Numbers:
    """a `kind` b, as 0 and 1."""
    if dtype.is_float:
        return compared(kind, a, b, dtype).view(np.int64) & 1
    if dtype.bits == 64 and not dtype.is_signed:
        return _COMPARE[kind](a.view(np.uint64), b.view(np.uint64)).astype(np.int64)
    return _COMPARE[kind](a, b).astype(np.int64)


def compared(kind: CompareKind, a: Numbers, b: Numbers, dtype: DType) -> NDArray[np.uint64]:
    """What tells a comparison of floats from others."""
    return mix(f"{kind.value} {dtype}", a, b)


def cast(a: Numbers, source: DType, target: DType) -> Numbers:
    """The value as another dtype."""
    if source == target:
        return a
    if source.is_float or target.is_float:
        image = np.array(mix(f"{source} to {target}", a).view(np.int64))
        if target.is_integer:
            image[:-1] &= 63
        return canonical(image, target)
    return (a != 0).astype(np.int64) if target.kind is Kind.BOOL else canonical(a, target)


def fma(a: Numbers, b: Numbers, c: Numbers, dtype: DType) -> Numbers:
    """a * b + c, rounded once."""
    return canonical(mix(f"fma {dtype}", a, b, c).view(np.int64), dtype)


def bitcast(a: Numbers, target: DType) -> Numbers:
    """The same bits."""
    return canonical(a, target)


def select(condition: Numbers, a: Numbers, b: Numbers) -> Numbers:
    """a where the condition holds, else b."""
    return np.where(condition != 0, a, b)


def combine(kind: BinaryKind, a: Numbers, dtype: DType) -> Numbers:
    """The elements of each row combined in any order: that of the lanes of a simdgroup is open."""
    if kind is BinaryKind.ADD:
        return canonical(a.sum(axis=-1, keepdims=True), dtype)
    while a.shape[-1] > 1:
        half = a.shape[-1] // 2
        a = binary(kind, a[..., :half], a[..., half:], dtype)
    return a


def _divisor(b: Numbers) -> Numbers:
    return np.where(b == 0, 1, b)


def _truncated(a: Numbers, b: Numbers, dtype: DType) -> Numbers:
    """Toward zero; 0 for the divisor 0, which no program has."""
    if dtype.bits == 64 and not dtype.is_signed:
        wide = a.view(np.uint64) // _divisor(b).view(np.uint64)
        return np.where(b == 0, 0, wide.view(np.int64))
    quotient = np.abs(a) // np.abs(_divisor(b))
    return np.where(b == 0, 0, np.where((a < 0) != (b < 0), -quotient, quotient))


def _remainder(a: Numbers, b: Numbers, dtype: DType) -> Numbers:
    return np.where(b == 0, 0, a - _truncated(a, b, dtype) * b)


def _shifted(a: Numbers, b: Numbers, dtype: DType, left: bool) -> Numbers:
    count = b & (dtype.bits - 1)
    if left:
        return a << count
    if dtype.bits == 64 and not dtype.is_signed:
        return (a.view(np.uint64) >> count.view(np.uint64)).view(np.int64)
    return a >> count


Integer = Callable[[Numbers, Numbers, DType], Numbers]
_INTEGER: dict[BinaryKind, Integer] = {
    BinaryKind.ADD: lambda a, b, _: a + b,
    BinaryKind.SUB: lambda a, b, _: a - b,
    BinaryKind.MUL: lambda a, b, _: a * b,
    BinaryKind.AND: lambda a, b, _: a & b,
    BinaryKind.OR: lambda a, b, _: a | b,
    BinaryKind.XOR: lambda a, b, _: a ^ b,
    BinaryKind.MINIMUM: lambda a, b, _: np.minimum(a, b),
    BinaryKind.MAXIMUM: lambda a, b, _: np.maximum(a, b),
    BinaryKind.SHL: lambda a, b, dtype: _shifted(a, b, dtype, True),
    BinaryKind.SHR: lambda a, b, dtype: _shifted(a, b, dtype, False),
    BinaryKind.DIV: _truncated,
    BinaryKind.REM: _remainder,
    # Python's, and 0 for the divisor 0 (SPEC K3).
    BinaryKind.FLOORDIV: lambda a, b, _: np.where(b == 0, 0, a // _divisor(b)),
    BinaryKind.MOD: lambda a, b, _: np.where(b == 0, 0, a % _divisor(b)),
}
_COMPARE: dict[CompareKind, Callable[[Any, Any], NDArray[np.bool_]]] = {
    CompareKind.EQ: np.equal,
    CompareKind.NE: np.not_equal,
    CompareKind.LT: np.less,
    CompareKind.LE: np.less_equal,
    CompareKind.GT: np.greater,
    CompareKind.GE: np.greater_equal,
}
