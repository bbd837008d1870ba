"""Integer values as affine functions of program ids and loop indices, exact over a tile's lanes.

Adding, subtracting and multiplying by a constant commute with wrapping, so they are followed
through program ids modulo 2**32. Every other operation is worked out exactly, as the language
defines it, and only where none of these is involved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metile_mlx.dtypes import DType, i32, u32
from metile_mlx.ir.arith import BinaryKind, UnaryKind
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.lanes import ThreadId
from metile_mlx.ir.loops import For
from metile_mlx.ir.matrix import Coordinate
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.tile import (
    Arange,
    Binary,
    Cast,
    Constant,
    Convert,
    Load,
    NumPrograms,
    ProgramId,
    Reshape,
    Splat,
    Unary,
)
from metile_mlx.ir.types import ScalarType, TileType

Lanes: TypeAlias = "NDArray[np.int64]"
FOLLOWED = (i32, u32)


@dataclass(frozen=True, eq=False)
class Affine:
    """coefficients[0] * program_id(0) + ... + part, modulo 2**32; `dtype` is i32 or u32.

    From coefficient 3 on they belong to the indices of the kernel's loops, in program order; those
    left out are 0. `part` has shape (lanes,) in row-major order, or (1,) where the value is
    uniform. It is in the range of `dtype`; with all coefficients 0 it is the value itself.
    """

    dtype: DType
    part: Lanes
    coefficients: tuple[int, ...] = ()

    @property
    def is_fixed(self) -> bool:
        """The same in every program and iteration."""
        return not any(self.coefficients)

    @property
    def is_number(self) -> bool:
        """One compile-time number."""
        return self.is_fixed and self.part.size == 1


Form: TypeAlias = "Affine | str"
"""An affine form, or what the value depends on that is none: text for a sentence."""


def affine_forms(func: Func, threads: int = 0) -> dict[Value, Form]:
    """The form of every value of a kernel's body and loops; branches are not followed.

    With `threads` a thread's number is what it is in each of them, as in a tile of that size.
    Where tiles have several sizes, which are refused later, it is not followed.
    """
    forms: dict[Value, Form] = {
        param: f"the scalar parameter {param.name}"
        for param in func.params
        if isinstance(param.type, ScalarType)
    }
    loops = [op for op in walk(func.body) if isinstance(op, For)]
    types = [value.type for op in walk(func.body) for value in op.results] if threads else []
    if len({type_.size for type_ in types if isinstance(type_, TileType)}) > 1:
        threads = 0
    _block(func.body, forms, {loop: number for number, loop in enumerate(loops)}, threads)
    return forms


def _block(block: Block, forms: dict[Value, Form], loops: Mapping[For, int], threads: int) -> None:
    for op in block.ops:
        if isinstance(op, For):
            forms[op.index] = _make(i32, _number(0), [0] * (3 + loops[op]) + [1])
            forms.update((arg, f"{arg.name}, which a loop carries") for arg in op.carried)
            _block(op.body, forms, loops, threads)
        if threads and isinstance(op, ThreadId):
            forms[op.result] = _make(i32, np.arange(threads, dtype=np.int64))
        elif len(op.results) == 1 and isinstance(op.result.type, (ScalarType, TileType)):
            rule = _RULES.get(type(op))
            known = op.result.type.dtype in FOLLOWED
            forms[op.result] = rule(op, forms) if rule and known else f"the result of {op.opcode}"
        else:
            forms.update((value, f"the result of {op.opcode}") for value in op.results)


def wrap(part: Lanes, dtype: DType) -> Lanes:
    """`part` modulo 2**32, in the range of `dtype`."""
    return ((part - dtype.min) & 0xFFFFFFFF) + dtype.min


def _make(dtype: DType, part: Lanes, coefficients: list[int] | None = None) -> Affine:
    # Coefficients stay small numbers of either sign: -1 and 2**32 - 1 are the same one.
    reduced = tuple(((c + 2**31) & 0xFFFFFFFF) - 2**31 for c in coefficients or ())
    return Affine(dtype, wrap(part, dtype), reduced)


def _number(value: int) -> Lanes:
    return np.array([value], np.int64)


def _constant(op: Constant, forms: Mapping[Value, Form]) -> Form:
    return _make(op.dtype, _number(int(op.value)))


def _program_id(op: ProgramId, forms: Mapping[Value, Form]) -> Form:
    return _make(i32, _number(0), [int(axis == op.axis) for axis in range(3)])


def _num_programs(op: NumPrograms, forms: Mapping[Value, Form]) -> Form:
    return "num_programs"


def _load(op: Load, forms: Mapping[Value, Form]) -> Form:
    return f"what is read from {op.tensor.name or 'memory'}"


def _arange(op: Arange, forms: Mapping[Value, Form]) -> Form:
    start = forms[op.start]
    if isinstance(start, str):
        return start
    part = start.part + np.arange(op.size, dtype=np.int64)
    return _make(i32, part, list(start.coefficients))


def _coordinate(op: Coordinate, forms: Mapping[Value, Form]) -> Form:
    return _make(i32, np.indices(op.shape)[op.axis].reshape(-1))


def _forward(op: Splat | Reshape | Convert, forms: Mapping[Value, Form]) -> Form:
    return forms[op.src]


def _permute(op: Permute, forms: Mapping[Value, Form]) -> Form:
    source = forms[op.src]
    if isinstance(source, str) or source.part.size == 1:
        return source
    part = source.part[op.map.apply(np.arange(op.map.size))]
    return _make(source.dtype, part, list(source.coefficients))


def _cast(op: Cast, forms: Mapping[Value, Form]) -> Form:
    source = forms[op.src]
    if isinstance(source, str):
        return source
    return _make(op.dtype, source.part, list(source.coefficients))


def _unary(op: Unary, forms: Mapping[Value, Form]) -> Form:
    source = forms[op.src]
    if isinstance(source, str):
        return source
    negated = [-c for c in source.coefficients]
    if op.kind is UnaryKind.NEG:
        return _make(source.dtype, -source.part, negated)
    if op.kind is UnaryKind.NOT:
        return _make(source.dtype, -source.part - 1, negated)
    if source.is_fixed:
        return _make(source.dtype, np.abs(source.part))
    return f"{op.kind.value} of a program id"


def _binary(op: Binary, forms: Mapping[Value, Form]) -> Form:
    lhs, rhs = forms[op.lhs], forms[op.rhs]
    if isinstance(lhs, str):
        return lhs
    if isinstance(rhs, str):
        return rhs
    pairs = list(zip_longest(lhs.coefficients, rhs.coefficients, fillvalue=0))
    if op.kind is BinaryKind.ADD:
        return _make(lhs.dtype, lhs.part + rhs.part, [a + b for a, b in pairs])
    if op.kind is BinaryKind.SUB:
        return _make(lhs.dtype, lhs.part - rhs.part, [a - b for a, b in pairs])
    if op.kind is BinaryKind.MUL and rhs.is_number:
        return _scaled(lhs, int(rhs.part[0]))
    if op.kind is BinaryKind.MUL and lhs.is_number:
        return _scaled(rhs, int(lhs.part[0]))
    if op.kind is BinaryKind.SHL and rhs.is_number:
        return _scaled(lhs, 1 << (int(rhs.part[0]) & 31))
    if lhs.is_fixed and rhs.is_fixed and op.kind in _EXACT:
        return _make(lhs.dtype, _EXACT[op.kind](lhs.part, rhs.part))
    return f"{op.kind.value} of a program id"


def _scaled(form: Affine, factor: int) -> Affine:
    return _make(form.dtype, form.part * factor, [c * factor for c in form.coefficients])


def _floordiv(a: Lanes, b: Lanes) -> Lanes:
    return np.where(b == 0, 0, a // np.where(b == 0, 1, b))


def _mod(a: Lanes, b: Lanes) -> Lanes:
    return np.where(b == 0, 0, a % np.where(b == 0, 1, b))


# Operands are in the range of their dtype, so int64 holds every result exactly before it wraps.
_EXACT: dict[BinaryKind, Callable[[Lanes, Lanes], Lanes]] = {
    BinaryKind.MUL: lambda a, b: wrap(a, i32) * wrap(b, i32),
    BinaryKind.FLOORDIV: _floordiv,
    BinaryKind.MOD: _mod,
    BinaryKind.SHL: lambda a, b: wrap(a, i32) << (b & 31),
    BinaryKind.SHR: lambda a, b: a >> (b & 31),
    BinaryKind.AND: np.bitwise_and,
    BinaryKind.OR: np.bitwise_or,
    BinaryKind.XOR: np.bitwise_xor,
    BinaryKind.MINIMUM: np.minimum,
    BinaryKind.MAXIMUM: np.maximum,
}

_RULES: dict[type[Op], Callable[[Any, Mapping[Value, Form]], Form]] = {
    Constant: _constant,
    ProgramId: _program_id,
    NumPrograms: _num_programs,
    Load: _load,
    Arange: _arange,
    Coordinate: _coordinate,
    Splat: _forward,
    Reshape: _forward,
    Convert: _forward,
    Permute: _permute,
    Cast: _cast,
    Unary: _unary,
    Binary: _binary,
}
