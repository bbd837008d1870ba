"""Which outputs hold values that no rounding has touched: loaded, moved, counted, never computed
in floating point. Backends must then agree in every bit."""

from __future__ import annotations

from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Func, Op, Value, definitions, walk
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

    Integer arithmetic is exact too. A comparison of floats counts by its operands.
    """
    rounded = _Rounded(func)
    tensors = {op.result: op.param for op in walk(func.body) if isinstance(op, Tensor)}
    outputs = {tensors[op.tensor].name for op in walk(func.body) if isinstance(op, Store)}
    touched = {
        tensors[op.tensor].name
        for op in walk(func.body)
        if isinstance(op, Store) and any(rounded(value) for value in _parts(op))
    }
    return frozenset(outputs - touched)


def _parts(op: Store) -> tuple[Value, ...]:
    return (op.value, *op.indices, *(() if op.mask is None else (op.mask,)))


class _Rounded:
    """Whether a value depends on floating-point arithmetic."""

    def __init__(self, func: Func) -> None:
        self._defined = definitions(func)
        self._known: dict[Value, bool] = {}

    def __call__(self, value: Value) -> bool:
        if value not in self._known:
            item = self._defined.get(value)
            self._known[value] = item is not None and self._made_by(item, value)
        return self._known[value]

    def _made_by(self, item: Op, value: Value) -> bool:
        if isinstance(item, If):
            at = item.results.index(value)
            yielded = [block.ops[-1].operands()[at] for block in item.blocks()]
            return any(self(part) for part in (item.condition, *yielded))
        operands = [v for v in item.operands() if isinstance(v.type, ScalarType | TileType)]
        if any(self(operand) for operand in operands):
            return True
        return not isinstance(item, _MOVES) and element(value).is_float
