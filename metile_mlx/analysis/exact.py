"""Which outputs hold values that no rounding has touched: loaded, moved, counted, never computed
in floating point. Backends must then agree in every bit."""

from __future__ import annotations

from collections.abc import Iterator

from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.lanes import Shared
from metile_mlx.ir.loops import For
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.tile import (
    Arange,
    Bitcast,
    Constant,
    Convert,
    If,
    Load,
    NumPrograms,
    ProgramId,
    Reshape,
    Select,
    Splat,
    Store,
    Tensor,
)
from metile_mlx.ir.types import ScalarType, TileType

# What these give is one of their operands, or an integer.
_MOVES = (
    Arange, Bitcast, Constant, Convert, Load, NumPrograms, Permute, ProgramId, Reshape, Select,
    Splat,
)  # fmt: skip


def exact_outputs(func: Func) -> frozenset[str]:
    """The array parameters of a kernel at Stage.TILE or OWNED whose stored values only move.

    Integer arithmetic is exact too. A comparison of floats counts by its operands; so does what
    decides whether, or how often, something is stored.
    """
    rounded = _Rounded(func)
    tensors = {op.result: op.param for op in walk(func.body) if isinstance(op, Tensor)}
    stores = [(op, parts) for op, parts in _stores(func.body, ()) if op.tensor in tensors]
    outputs = {tensors[op.tensor].name for op, _ in stores}
    touched = {tensors[op.tensor].name for op, parts in stores if any(map(rounded, parts))}
    return frozenset(outputs - touched)


def _stores(block: Block, around: tuple[Value, ...]) -> Iterator[tuple[Store, tuple[Value, ...]]]:
    """Each store, with the values that say what is stored, where and whether."""
    for op in block.ops:
        if isinstance(op, Store):
            mask = () if op.mask is None else (op.mask,)
            yield op, (op.value, *op.indices, *mask, *around)
        inside = (*around, *_deciding(op)) if isinstance(op, If | For) else around
        for inner in op.blocks():
            yield from _stores(inner, inside)


def _deciding(op: If | For) -> tuple[Value, ...]:
    return (op.condition,) if isinstance(op, If) else (op.start, op.end, op.step)


class _Rounded:
    """Whether a value depends on floating-point arithmetic."""

    def __init__(self, func: Func) -> None:
        self._found: set[Value] = set()
        # What lies there may come from anywhere.
        self._shared = {op.result for op in walk(func.body) if isinstance(op, Shared)}
        before = -1
        # What a loop carries may depend on what it makes of it.
        while before < len(self._found):
            before = len(self._found)
            for item in walk(func.body):
                self._visit(item)

    def __call__(self, value: Value) -> bool:
        return value in self._found

    def _visit(self, item: Op) -> None:
        if isinstance(item, If | For):
            self._merge(item)
            return
        operands = [v for v in item.operands() if isinstance(v.type, ScalarType | TileType)]
        computed = not isinstance(item, _MOVES) or (
            isinstance(item, Load) and item.tensor in self._shared
        )
        for value in item.results:
            if any(map(self, operands)) or (computed and _is_float(value)):
                self._found.add(value)

    def _merge(self, item: If | For) -> None:
        """What a branch or a loop leaves: one of several values, chosen by other ones."""
        chosen = any(map(self, _deciding(item)))
        if chosen and isinstance(item, For):
            self._found.add(item.index)
        for position, result in enumerate(item.results):
            parts = [block.ops[-1].operands()[position] for block in item.blocks()]
            if isinstance(item, For):
                parts.append(item.inits[position])
            if chosen or any(map(self, parts)):
                self._found.update((result, *_carried(item, position)))


def _carried(item: If | For, position: int) -> tuple[Value, ...]:
    return (item.carried[position],) if isinstance(item, For) else ()


def _is_float(value: Value) -> bool:
    return isinstance(value.type, ScalarType | TileType) and value.type.dtype.is_float
