"""What integer and mask arithmetic gives in each thread, where it follows from the thread index."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from metile_mlx.dtypes import DType, bool_
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind, element
from metile_mlx.ir.core import Func, Op, Value, definitions
from metile_mlx.layout.affine import Indices

_BINARY: dict[BinaryKind, Callable[[Indices, Indices], Indices]] = {
    BinaryKind.ADD: np.add,
    BinaryKind.SUB: np.subtract,
    BinaryKind.MUL: np.multiply,
    BinaryKind.AND: np.bitwise_and,
    BinaryKind.OR: np.bitwise_or,
    BinaryKind.XOR: np.bitwise_xor,
}
_COMPARE: dict[CompareKind, Callable[[Indices, Indices], Indices]] = {
    CompareKind.EQ: np.equal,
    CompareKind.NE: np.not_equal,
    CompareKind.LT: np.less,
    CompareKind.LE: np.less_equal,
    CompareKind.GT: np.greater,
    CompareKind.GE: np.greater_equal,
}


class ThreadValues:
    """The values of one program's ops, evaluated for every thread when asked for."""

    def __init__(self, func: Func) -> None:
        self.threads = max(func.threads, 1)
        self.made_by = definitions(func)
        self._known: dict[Value, Indices | None] = {}

    def evaluate(self, value: Value) -> Indices | None:
        """The value in every thread (a mask as 0 and 1), or None when it depends on more."""
        if value not in self._known:
            item = self.made_by.get(value)
            self._known[value] = None if item is None else self._evaluate(item)
        return self._known[value]

    def _evaluate(self, item: Op) -> Indices | None:
        if isinstance(item, metal.ThreadIndex):
            return np.arange(self.threads)
        if isinstance(item, metal.Constant) and not isinstance(item.value, float):
            return _wrapped(np.full(self.threads, int(item.value)), item.dtype)
        parts = [self.evaluate(operand) for operand in item.operands()]
        known = [part for part in parts if part is not None]
        if not parts or len(known) < len(parts) or len(item.results) != 1:
            return None
        image = _apply(item, known)
        return None if image is None else _wrapped(image, element(item.result))


def _apply(item: Op, parts: list[Indices]) -> Indices | None:
    """One op on the integers of all threads, before its dtype bounds them; None if unknown."""
    match item:
        case metal.Binary() if item.kind in _BINARY:
            return _BINARY[item.kind](parts[0], parts[1])
        case metal.Binary(kind=BinaryKind.SHL | BinaryKind.SHR):
            count = parts[1] & (element(item.lhs).bits - 1)
            return parts[0] << count if item.kind is BinaryKind.SHL else parts[0] >> count
        case metal.Binary(kind=BinaryKind.DIV | BinaryKind.REM) if (parts[0] >= 0).all() and (
            parts[1] > 0
        ).all():
            return parts[0] // parts[1] if item.kind is BinaryKind.DIV else parts[0] % parts[1]
        case metal.Compare():
            return _COMPARE[item.kind](parts[0], parts[1]).astype(np.int64)
        case metal.Cast() if not element(item.src).is_float and item.dtype != bool_:
            return parts[0]
        case metal.Unary(kind=UnaryKind.NOT):
            return ~parts[0]
        case _:
            return None


def _wrapped(image: Indices, dtype: DType) -> Indices | None:
    """The integers modulo the range of `dtype`; None for floats."""
    if dtype == bool_:
        return image & 1
    if not dtype.is_integer:
        return None
    if dtype.bits >= 64:
        return image
    image = image & ((1 << dtype.bits) - 1)
    return (image ^ -dtype.min) + dtype.min if dtype.is_signed else image


@lru_cache(maxsize=4)
def thread_values(func: Func) -> ThreadValues:
    """Those of `func`, which several verifiers ask for one after the other."""
    return ThreadValues(func)
