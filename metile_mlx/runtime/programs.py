"""What the reference knows while it runs a kernel: every value, over all programs at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from metile_mlx.analysis.views import with_grid
from metile_mlx.dtypes import DType
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Block, Effect, Func, Op, Value, definitions, walk
from metile_mlx.ir.lanes import threads_of
from metile_mlx.ir.tile import ProgramId
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.runtime.optional import mx
from metile_mlx.runtime.reference_ops import Number

Shape: TypeAlias = "tuple[int, ...]"
# A value's array, its Python number, and whether it is fixed, untraced, lazy.
Facts: TypeAlias = "tuple[mx.array, Number | None, tuple[bool, ...]]"


@dataclass(frozen=True)
class View:
    """A declared tensor: numbers where they are known, arrays of shape (1, 1) elsewhere."""

    param: str
    shape: tuple[int | mx.array, ...]
    strides: tuple[int | mx.array, ...]
    index: Any
    whole: bool = False


def _lengthened(array: mx.array) -> mx.array:
    return mx.concatenate([mx.reshape(array, (array.size,)), mx.zeros((1,), array.dtype)])


class Programs:
    """All programs of one launch, as far as they have been run.

    Attributes:
        grid: programs along x, y, z; `count`: all of them.
        threads: of each, where threads have values of their own.
        env: each value computed so far: (P or 1, 1) for a scalar, (P or 1, n) for a tile.
        numbers: uniform values that are Python numbers.
        fixed: values that follow from Python numbers alone.
        untraced: values that follow from Python numbers and program ids.
        lazy: values that need a scalar given as an MLX array.
        guard: the programs inside the branches entered, None for all.
        inputs, buffers: flat arrays by parameter, with one element more at the end, where
            masked-off lanes load and store.
    """

    def __init__(
        self,
        func: Func,
        arrays: Mapping[str, mx.array],
        scalars: Mapping[str, Number | mx.array],
        outputs: Mapping[str, tuple[Shape, DType]],
        grid: tuple[int, int, int],
    ) -> None:
        self.grid = grid
        self.count = prod(grid)
        self.threads = threads_of(func)
        self.defined = definitions(func)
        self.params = frozenset(func.params)
        self.integers = with_grid({n: v for n, v in scalars.items() if isinstance(v, int)}, grid)
        self.env: dict[Value, mx.array] = {}
        self.views: dict[Value, View] = {}
        self.numbers: dict[Value, Number] = {}
        self.fixed: set[Value] = set()
        self.untraced: set[Value] = set()
        self.lazy: set[Value] = set()
        self.guard: mx.array | None = None
        self.inputs = {name: _lengthened(array) for name, array in arrays.items()}
        self.buffers = {name: self._buffer(name, *out) for name, out in outputs.items()}
        for param in func.params:
            if param.name in scalars:
                self._bind_scalar(param, scalars[param.name])

    def _buffer(self, name: str, shape: Shape, dtype: DType) -> mx.array:
        given = self.inputs.get(name)
        return mx.zeros((prod(shape) + 1,), mlx_dtypes()[dtype]) if given is None else given

    def _bind_scalar(self, param: Value, given: Number | mx.array) -> None:
        dtype = mlx_dtypes()[element(param)]
        if isinstance(given, mx.array):
            self.env[param] = mx.reshape(given, (1, 1)).astype(dtype)
            self.lazy.add(param)
        else:
            self.bind_number(param, given)

    def classify(self, op: Op) -> None:
        """Note what the result of `op` depends on."""
        if op.effect is not Effect.PURE:
            return
        operands = op.operands()
        if self.untraced.issuperset(operands):
            self.untraced.add(op.result)
            if self.fixed.issuperset(operands) and not isinstance(op, ProgramId):
                self.fixed.add(op.result)
        if not self.lazy.isdisjoint(operands):
            self.lazy.add(op.result)

    def bind_number(self, value: Value, number: Number) -> None:
        """A uniform value is a Python number."""
        self.env[value] = mx.array([[number]], mlx_dtypes()[element(value)])
        self.numbers[value] = number
        self.fixed.add(value)
        self.untraced.add(value)

    def facts(self, value: Value) -> Facts:
        """All that is known of a value, to be given to another one."""
        kinds = tuple(value in kind for kind in (self.fixed, self.untraced, self.lazy))
        return self.env[value], self.numbers.get(value), kinds

    def restore(self, value: Value, facts: Facts) -> None:
        """A value is what another one was."""
        self.env[value], number, kinds = facts
        if number is not None:
            self.numbers[value] = number
        for kind, holds in zip((self.fixed, self.untraced, self.lazy), kinds, strict=True):
            if holds:
                kind.add(value)

    def forget(self, block: Block) -> None:
        """What an earlier iteration of a loop has found out."""
        inside = [item for op in walk(block) for item in op.blocks()]
        made = {value for op in walk(block) for value in op.results}
        made.update(arg for item in (block, *inside) for arg in item.args)
        for kind in (self.fixed, self.untraced, self.lazy):
            kind.difference_update(made)
        for value in made:
            self.numbers.pop(value, None)

    def results(self, outputs: Mapping[str, tuple[Shape, DType]]) -> dict[str, mx.array]:
        """The outputs as they are now."""
        return {
            name: mx.reshape(self.buffers[name][: prod(shape)], shape)
            for name, (shape, _) in outputs.items()
        }

    def known(self, value: Value) -> int | mx.array:
        """A uniform integer, as a Python number where it is one."""
        number = self.numbers.get(value)
        return self.env[value] if number is None else int(number)
