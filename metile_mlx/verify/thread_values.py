"""What integer and mask arithmetic gives in each thread, where it follows from the thread index.

A loop may carry a number that comes back to where it began, as the slot of a pipeline does: 0, 1,
0, 1. What follows from the thread index and such a number is known turn by turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import lcm
from typing import TypeAlias

import numpy as np

from metile_mlx.dtypes import DType, bool_
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind, element
from metile_mlx.ir.core import Func, Op, Value, definitions, walk
from metile_mlx.ir.loops import Loop
from metile_mlx.ir.types import ScalarType
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


MOST_TURNS = 8
"""Longer cycles are not looked for."""

Turned: TypeAlias = "tuple[Indices | None, Loop | None]"


class ThreadValues:
    """The values of one program's ops, evaluated for every thread when asked for."""

    def __init__(self, func: Func) -> None:
        self.threads = max(func.threads, 1)
        self.made_by = definitions(func)
        self._known: dict[Value, Indices | None] = {}
        self._turned: dict[Value, Turned] = {}
        self._cycles: dict[Loop, dict[int, list[int]]] = {}
        loops = [item for item in walk(func.body) if isinstance(item, Loop)]
        self._carried = {arg: (i, at) for i in loops for at, arg in enumerate(i.carried)}
        self._left = {value: (i, at) for i in loops for at, value in enumerate(i.results)}

    def evaluate(self, value: Value) -> Indices | None:
        """The value in every thread (a mask as 0 and 1), or None when it depends on more."""
        if value not in self._known:
            item = self.made_by.get(value)
            self._known[value] = None if item is None else self._evaluate(item)
        return self._known[value]

    def in_turns(self, value: Value) -> Turned:
        """As `evaluate`; else a row for each turn of a loop, and that loop.

        Row i is that of iteration i, or of what is left after i of them, modulo their number.
        """
        plain = self.evaluate(value)
        if plain is not None:
            return plain, None
        if value not in self._turned:
            self._turned[value] = self._turn(value)
        return self._turned[value]

    def turns(self, loop: Loop) -> int:
        """After how many iterations all that comes back has come back."""
        return lcm(*map(len, self.cycles(loop).values()))

    def cycles(self, loop: Loop) -> dict[int, list[int]]:
        """What the carried values, by their positions, are in turns."""
        if loop not in self._cycles:
            found: dict[int, list[int]] = {}
            rows = zip(loop.carried, loop.inits, loop.yields, strict=False)
            for at, (arg, init, made) in enumerate(rows):
                turns = self._cycle(arg, init, made)
                if turns:
                    found[at] = turns
            # Turns of several lengths are walked together, if they are not too many.
            self._cycles[loop] = found if lcm(*map(len, found.values())) <= MOST_TURNS else {}
        return self._cycles[loop]

    def _cycle(self, arg: Value, init: Value, made: Value) -> list[int]:
        begun = self.evaluate(init) if _is_count(arg) else None
        if begun is None:
            return []
        turns = [int(begun[0])]
        while len(turns) <= MOST_TURNS:
            then = self._with(made, {arg: np.full(self.threads, turns[-1])})
            if then is None or (then != then[0]).any():
                return []
            if then[0] == turns[0]:
                return turns
            turns.append(int(then[0]))
        return []

    def _with(self, value: Value, known: dict[Value, Indices | None]) -> Indices | None:
        """The value where others are as `known`, which grows."""
        if value not in known:
            found, item = self.evaluate(value), self.made_by.get(value)
            if found is None and item is not None and not item.block_fields:
                found = self._computed(item, [self._with(each, known) for each in item.operands()])
            known[value] = found
        return known[value]

    def _turn(self, value: Value) -> Turned:
        loop, at = self._carried.get(value) or self._left.get(value) or (None, 0)
        if loop is not None:
            turns = self.cycles(loop).get(at)
            if turns is None:
                return None, None
            rows = np.resize(np.array(turns), self.turns(loop))
            return np.repeat(rows[:, None], self.threads, axis=1), loop
        item = self.made_by.get(value)
        if item is None or item.block_fields:
            return None, None
        parts = [self.in_turns(operand) for operand in item.operands()]
        loops = {loop for _, loop in parts if loop is not None}
        image = self._computed(item, [part for part, _ in parts]) if len(loops) == 1 else None
        return image, None if image is None else loops.pop()

    def _evaluate(self, item: Op) -> Indices | None:
        if isinstance(item, metal.ThreadIndex):
            return np.arange(self.threads)
        if isinstance(item, metal.Constant) and not isinstance(item.value, float):
            return _wrapped(np.full(self.threads, int(item.value)), item.dtype)
        if item.block_fields:
            return None
        return self._computed(item, [self.evaluate(operand) for operand in item.operands()])

    def _computed(self, item: Op, parts: list[Indices | None]) -> Indices | None:
        """What an op makes of the integers of all threads."""
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


def _is_count(value: Value) -> bool:
    """Whether it is an integer that all threads agree on."""
    type_ = value.type
    return isinstance(type_, ScalarType) and type_.uniform and type_.dtype.is_integer


@lru_cache(maxsize=4)
def thread_values(func: Func) -> ThreadValues:
    """Those of `func`, which several verifiers ask for one after the other."""
    return ThreadValues(func)
