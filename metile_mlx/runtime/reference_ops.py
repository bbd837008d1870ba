"""Arithmetic of the tile ops in MLX ops, for operands of one dtype that broadcast.

Integer arithmetic wraps, as MLX's does. f16 and bf16 results are rounded after every operation.
"""

from __future__ import annotations

from collections.abc import Callable

from metile_mlx.ir.arith import (
    BITWISE,
    SHIFTS,
    BinaryKind,
    CombineKind,
    CompareKind,
    UnaryKind,
)
from metile_mlx.runtime.optional import mx

Number = int | float | bool


def _exp2(x: mx.array) -> mx.array:
    return mx.power(mx.array(2.0, x.dtype), x)


def _not_equal(a: mx.array, b: mx.array) -> mx.array:
    # MLX 0.32.4 loses the batch axis of mx.not_equal under vmap when one operand has none.
    return mx.logical_not(mx.equal(a, b))


# Behind functions: where mlx is missing its attributes can't be read at import.
UNARY: dict[UnaryKind, Callable[[mx.array], mx.array]] = {
    UnaryKind.NEG: lambda x: mx.negative(x),
    UnaryKind.NOT: lambda x: mx.bitwise_invert(x),
    UnaryKind.ABS: lambda x: mx.abs(x),
    UnaryKind.EXP: lambda x: mx.exp(x),
    UnaryKind.EXP2: _exp2,
    UnaryKind.LOG: lambda x: mx.log(x),
    UnaryKind.LOG2: lambda x: mx.log2(x),
    UnaryKind.SQRT: lambda x: mx.sqrt(x),
    UnaryKind.RSQRT: lambda x: mx.rsqrt(x),
    UnaryKind.SIN: lambda x: mx.sin(x),
    UnaryKind.COS: lambda x: mx.cos(x),
    UnaryKind.TANH: lambda x: mx.tanh(x),
    UnaryKind.SIGMOID: lambda x: mx.sigmoid(x),
    UnaryKind.ERF: lambda x: mx.erf(x),
    UnaryKind.FLOOR: lambda x: mx.floor(x),
    UnaryKind.CEIL: lambda x: mx.ceil(x),
}

COMPARE: dict[CompareKind, Callable[[mx.array, mx.array], mx.array]] = {
    CompareKind.EQ: lambda a, b: mx.equal(a, b),
    CompareKind.NE: _not_equal,
    CompareKind.LT: lambda a, b: mx.less(a, b),
    CompareKind.LE: lambda a, b: mx.less_equal(a, b),
    CompareKind.GT: lambda a, b: mx.greater(a, b),
    CompareKind.GE: lambda a, b: mx.greater_equal(a, b),
}

_BINARY: dict[BinaryKind, Callable[[mx.array, mx.array], mx.array]] = {
    BinaryKind.ADD: lambda a, b: mx.add(a, b),
    BinaryKind.SUB: lambda a, b: mx.subtract(a, b),
    BinaryKind.MUL: lambda a, b: mx.multiply(a, b),
    BinaryKind.DIV: lambda a, b: mx.divide(a, b),
    # The floor of a quotient already rounded to its dtype, as mx.floor_divide has it.
    BinaryKind.FLOORDIV: lambda a, b: mx.floor_divide(a, b),
    BinaryKind.MOD: lambda a, b: mx.remainder(a, b),
    BinaryKind.POW: lambda a, b: mx.power(a, b),
    # A count beyond the width is undefined on every processor; the language takes it modulo.
    BinaryKind.SHL: lambda a, b: mx.left_shift(a, mx.bitwise_and(b, mx.array(31, b.dtype))),
    BinaryKind.SHR: lambda a, b: mx.right_shift(a, mx.bitwise_and(b, mx.array(31, b.dtype))),
    BinaryKind.AND: lambda a, b: mx.bitwise_and(a, b),
    BinaryKind.OR: lambda a, b: mx.bitwise_or(a, b),
    BinaryKind.XOR: lambda a, b: mx.bitwise_xor(a, b),
    BinaryKind.MINIMUM: lambda a, b: mx.minimum(a, b),
    BinaryKind.MAXIMUM: lambda a, b: mx.maximum(a, b),
}


_ON_BOOL: dict[BinaryKind, Callable[[mx.array, mx.array], mx.array]] = {
    BinaryKind.AND: lambda a, b: mx.logical_and(a, b),
    BinaryKind.OR: lambda a, b: mx.logical_or(a, b),
    BinaryKind.XOR: _not_equal,
}


def binary(
    kind: BinaryKind, a: mx.array, b: mx.array, divisor: Number | None, traced: bool
) -> mx.array:
    """`a kind b`.

    Args:
        divisor: the value of `b` where it is a Python number.
        traced: whether an operand may be batched by `mx.vmap`.
    """
    if a.dtype == mx.bool_:
        return _ON_BOOL[kind](a, b)
    if traced and kind in BITWISE | SHIFTS:
        # MLX 0.32.4 loses the batch axis of a bitwise op when one operand has none.
        zero = mx.array(0, a.dtype)
        a, b = a + b * zero, b + a * zero
    divides = kind in (BinaryKind.FLOORDIV, BinaryKind.MOD)
    if not divides or mx.issubdtype(a.dtype, mx.floating):
        return _BINARY[kind](a, b)
    if divisor is not None and divisor not in (0, -1):
        return _BINARY[kind](a, b)
    return _guarded_division(kind, a, b)


def _guarded_division(kind: BinaryKind, a: mx.array, b: mx.array) -> mx.array:
    """x // 0 == x % 0 == 0, and INT_MIN // -1 wraps: both would stop the process on a CPU."""
    one = mx.array(1, b.dtype)
    special = mx.equal(b, mx.array(0, b.dtype))
    if mx.issubdtype(b.dtype, mx.signedinteger):
        special = mx.logical_or(special, mx.equal(b, mx.array(-1, b.dtype)))
    quotient = _BINARY[kind](a, mx.where(special, one, b))
    # With divisor 1 the remainder is 0 already; the quotient by 0 and by -1 is the product.
    return quotient if kind is BinaryKind.MOD else mx.where(special, mx.multiply(a, b), quotient)


def fma(a: mx.array, b: mx.array, c: mx.array) -> mx.array:
    """a * b + c, rounded once to f32 and from there to a narrower dtype.

    On a GPU, which has no f64, an f32 product is rounded too.
    """
    dtype = a.dtype
    if mx.default_device().type == mx.DeviceType.gpu:
        a, b, c = (x.astype(mx.float32) for x in (a, b, c))
        return mx.add(mx.multiply(a, b), c).astype(dtype)
    a, b, c = (x.astype(mx.float64) for x in (a, b, c))
    product = mx.multiply(a, b)  # exact: 24 + 24 bits
    total = mx.add(product, c)
    rest = mx.subtract(total, product)
    error = (product - (total - rest)) + (c - rest)  # what f64 rounded away, exactly
    nearest = total.astype(mx.float32)
    # Where `total` lies half way between two f32, the part rounded away decides, not evenness.
    other = total + (total - nearest.astype(mx.float64))
    rounded = other.astype(mx.float32)
    halfway = mx.logical_and(rounded.astype(mx.float64) == other, mx.isfinite(nearest))
    towards = mx.where(other > total, error > 0, mx.logical_and(other < total, error < 0))
    return mx.where(mx.logical_and(halfway, towards), rounded, nearest).astype(dtype)


# Along the last axis.
REDUCE: dict[CombineKind, Callable[[mx.array], mx.array]] = {
    CombineKind.SUM: lambda x: mx.sum(x, axis=-1),
    CombineKind.MAX: lambda x: mx.max(x, axis=-1),
    CombineKind.MIN: lambda x: mx.min(x, axis=-1),
}


def combined(kind: CombineKind, x: mx.array) -> mx.array:
    """The last axis of `x`, which has a power of two of elements, combined; it stays, of extent 1.

    By 32 at a time: one pass over a long row loses bits, this one about as few as the devices.
    """
    while x.shape[-1] > 1:
        width = min(32, x.shape[-1])
        x = REDUCE[kind](mx.reshape(x, (*x.shape[:-1], -1, width)))
    return x
