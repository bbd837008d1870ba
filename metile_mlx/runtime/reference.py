"""The reference backend: a kernel at tile stages as a graph of MLX ops over all programs (SPEC X5).

With P programs a scalar is an array of shape (P, 1), a tile of n elements (P, n) in row-major
logical order; either has 1 in place of P where it is the same in all programs. Owners have no
meaning here, so the planned stage's exchanges are permutations of logical elements.

Gathers and scatters are `take_along_axis` and `put_along_axis` on flat arrays: of MLX's forms these
differentiate both ways and work under `mx.vmap`. Values only move through them and `where`, which
keep every bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from metile_mlx.analysis.views import INT32_MAX, needs_64_bit, view_of
from metile_mlx.dtypes import DType
from metile_mlx.errors import OutOfResources, UnsupportedError
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Block, Effect, Func, Op, Value, definitions, walk
from metile_mlx.ir.planned import Barrier, Scratch, ScratchLoad, ScratchStore, Shuffle
from metile_mlx.ir.tile import (
    Arange,
    Automatic,
    Binary,
    Bitcast,
    Cast,
    Compare,
    Constant,
    Convert,
    Fma,
    If,
    Load,
    NumPrograms,
    ProgramId,
    Reshape,
    Select,
    Splat,
    Store,
    Tensor,
    Unary,
    Yield,
)
from metile_mlx.ir.types import TileType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.runtime.optional import mx
from metile_mlx.runtime.reference_ops import COMPARE, UNARY, Number, binary, fma

MAX_BYTES = 4 << 30
"""No array in the graph may be larger; several are alive at once."""

Shape: TypeAlias = "tuple[int, ...]"


def evaluate(
    func: Func,
    arrays: Mapping[str, mx.array],
    scalars: Mapping[str, Number | mx.array],
    outputs: Mapping[str, tuple[Shape, DType]],
    grid: tuple[int, int, int],
    stream: mx.Stream | mx.Device | None = None,
) -> dict[str, mx.array]:
    """What a launch writes, as lazy arrays; nothing is evaluated, values can be traced ones.

    Args:
        func: a kernel at Stage.TILE, OWNED or PLANNED.
        arrays: the parameters that are read (access read and read_write), of any shape.
        scalars: runtime scalars; an MLX array of one element stays lazy and makes offsets 64-bit.
        outputs: shape and dtype of each parameter that is written. Elements no program stores are
            the input's (read_write) or zero (write), SPEC K7.
        grid: programs along x, y, z.
        stream: where to run; None is MLX's default.

    Raises:
        UnsupportedError: an op of the automatic path, or `if` on a scalar given as an MLX array.
        OutOfResources: an array of the graph would pass MAX_BYTES.
        LaunchError: an illegal extent or stride, as `View.geometry`.
    """
    _check_memory(func, grid)
    with mx.stream(stream) if stream is not None else nullcontext():
        programs = _Programs(func, arrays, scalars, outputs, grid)
        if 0 not in grid:
            programs.run(func.body)
        return programs.results(outputs)


def _check_memory(func: Func, grid: tuple[int, int, int]) -> None:
    """Refuse before MLX is asked for it. 8 bytes: a flat index may be 64 bits wide."""
    count = prod(grid)
    largest, where = 1, ""
    for op in walk(func.body):
        for value in op.results:
            if isinstance(value.type, TileType) and value.type.size > largest:
                largest, where = value.type.size, f" {value.name!r}" if value.name else ""
    needed = count * largest * 8
    if needed > MAX_BYTES:
        raise OutOfResources(
            f"[reference] {func.name}: {count} programs with a tile{where} of {largest} elements "
            f"need arrays of {needed / 2**30:.1f} GiB; at most {MAX_BYTES / 2**30:.1f} are allowed",
            func.loc,
            "launch fewer programs at once, or use a compiled backend",
        )


@dataclass(frozen=True)
class _View:
    """A declared tensor: numbers where they are known, arrays of shape (1, 1) elsewhere."""

    param: str
    shape: tuple[int | mx.array, ...]
    strides: tuple[int | mx.array, ...]
    index: Any


class _Programs:
    """All programs of one launch, as far as they have been run."""

    def __init__(
        self,
        func: Func,
        arrays: Mapping[str, mx.array],
        scalars: Mapping[str, Number | mx.array],
        outputs: Mapping[str, tuple[Shape, DType]],
        grid: tuple[int, int, int],
    ) -> None:
        self.grid = grid
        self.defined = definitions(func)
        self.params = frozenset(func.params)
        self.integers = {n: v for n, v in scalars.items() if isinstance(v, int)}
        self.env: dict[Value, mx.array] = {}
        self.views: dict[Value, _View] = {}
        # Python numbers; values that follow from those alone; values that need an MLX scalar.
        self.numbers: dict[Value, Number] = {}
        self.fixed: set[Value] = set()
        self.lazy: set[Value] = set()
        self.guard: mx.array | None = None
        self.inputs = {name: mx.reshape(array, (array.size,)) for name, array in arrays.items()}
        # One element more than the output: where masked-off lanes store.
        self.buffers = {name: self._buffer(name, *out) for name, out in outputs.items()}
        for param in func.params:
            if param.name in scalars:
                self._bind_scalar(param, scalars[param.name])

    def _buffer(self, name: str, shape: Shape, dtype: DType) -> mx.array:
        made = mlx_dtypes()[dtype]
        if name not in self.inputs:
            return mx.zeros((prod(shape) + 1,), made)
        return mx.concatenate([self.inputs[name], mx.zeros((1,), made)])

    def _bind_scalar(self, param: Value, given: Number | mx.array) -> None:
        dtype = mlx_dtypes()[element(param)]
        if isinstance(given, mx.array):
            self.env[param] = mx.reshape(given, (1, 1)).astype(dtype)
            self.lazy.add(param)
        else:
            self.env[param] = mx.array([[given]], dtype)
            self.numbers[param] = given
            self.fixed.add(param)

    def run(self, block: Block) -> tuple[Value, ...]:
        """Run a block; the values it yields."""
        for op in block.ops:
            if isinstance(op, Yield):
                return op.values
            made = RULES[type(op)](self, op)
            if made is not None:
                self.env[op.result] = made
                self._classify(op)
        return ()

    def _classify(self, op: Op) -> None:
        if op.effect is not Effect.PURE or isinstance(op, ProgramId):
            return
        operands = op.operands()
        if self.fixed.issuperset(operands):
            self.fixed.add(op.result)
        if not self.lazy.isdisjoint(operands):
            self.lazy.add(op.result)

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

    def address(self, op: Load | Store) -> tuple[mx.array, mx.array | None]:
        """Flat element offsets, meaningless where a lane is off; and which lanes are on."""
        view = self.views[op.tensor]
        flat = mx.zeros((1, 1), view.index)
        lanes = self.env[op.mask] if op.mask is not None else None
        for index, extent, stride in zip(op.indices, view.shape, view.strides, strict=True):
            position = self.env[index]
            lanes = both(lanes, (position >= 0) & (position < extent))
            flat = flat + position.astype(view.index) * stride
        return flat, lanes


def both(a: mx.array | None, b: mx.array | None) -> mx.array | None:
    """The lanes of two masks; None is all lanes."""
    if a is None or b is None:
        return b if a is None else a
    return mx.bitwise_and(a, b)


def _constant(s: _Programs, op: Constant) -> mx.array:
    s.numbers[op.result] = op.value
    return mx.array([[op.value]], mlx_dtypes()[op.dtype])


def _program_id(s: _Programs, op: ProgramId) -> mx.array:
    below, extent = prod(s.grid[: op.axis]), s.grid[op.axis]
    if extent == 1:
        return mx.zeros((1, 1), mx.int32)
    # x fastest. Built from three ranges, since MLX's integer division is slow.
    ids = mx.reshape(mx.arange(extent, dtype=mx.int32), (1, extent, 1))
    above = prod(s.grid) // (below * extent)
    return mx.reshape(mx.broadcast_to(ids, (above, extent, below)), (-1, 1))


def _num_programs(s: _Programs, op: NumPrograms) -> mx.array:
    s.numbers[op.result] = s.grid[op.axis]
    return mx.array([[s.grid[op.axis]]], mx.int32)


def _arange(s: _Programs, op: Arange) -> mx.array:
    return s.env[op.start] + mx.arange(op.size, dtype=mx.int32)[None]


def _splat(s: _Programs, op: Splat) -> mx.array:
    src = s.env[op.src]
    return mx.broadcast_to(src, (src.shape[0], prod(op.shape)))


def _unary(s: _Programs, op: Unary) -> mx.array:
    return UNARY[op.kind](s.env[op.src])


def _binary(s: _Programs, op: Binary) -> mx.array:
    return binary(op.kind, s.env[op.lhs], s.env[op.rhs], s.numbers.get(op.rhs))


def _compare(s: _Programs, op: Compare) -> mx.array:
    return COMPARE[op.kind](s.env[op.lhs], s.env[op.rhs])


def _select(s: _Programs, op: Select) -> mx.array:
    return mx.where(s.env[op.condition], s.env[op.on_true], s.env[op.on_false])


def _cast(s: _Programs, op: Cast) -> mx.array:
    return s.env[op.src].astype(mlx_dtypes()[op.dtype])


def _bitcast(s: _Programs, op: Bitcast) -> mx.array:
    return mx.view(s.env[op.src], mlx_dtypes()[op.dtype])


def _fma(s: _Programs, op: Fma) -> mx.array:
    return fma(s.env[op.a], s.env[op.b], s.env[op.c])


def _forward(s: _Programs, op: Reshape | Convert) -> mx.array:
    return s.env[op.src]


def _tensor(s: _Programs, op: Tensor) -> None:
    view = view_of(op, s.defined, s.params)
    size = s.buffers[view.param].size if view.access == "write" else s.inputs[view.param].size
    wide = needs_64_bit((view,), s.integers) or size > INT32_MAX
    s.views[op.result] = _View(
        view.param,
        tuple(s.known(value) for value in op.shape),
        tuple(s.known(value) for value in op.strides),
        mx.int64 if wide else mx.int32,
    )


def _load(s: _Programs, op: Load) -> mx.array:
    view = s.views[op.tensor]
    flat, lanes = s.address(op)
    array = s.inputs[view.param]
    fill = s.env[op.fill] if op.fill is not None else mx.zeros((1, 1), array.dtype)
    if array.size == 0:
        shape = flat.shape if lanes is None else mx.broadcast_shapes(flat.shape, lanes.shape)
        return mx.broadcast_to(fill, mx.broadcast_shapes(shape, fill.shape))
    # Off lanes and, where views could not be checked, wild ones stay inside the array.
    last = mx.array(array.size - 1, view.index)
    flat = mx.minimum(mx.maximum(flat, mx.array(0, view.index)), last)
    found = mx.take_along_axis(array, mx.reshape(flat, (-1,)), axis=0)
    found = mx.reshape(found, flat.shape)
    return found if lanes is None else mx.where(lanes, found, fill)


def _store(s: _Programs, op: Store) -> None:
    view = s.views[op.tensor]
    flat, lanes = s.address(op)
    lanes = both(lanes, s.guard)
    buffer = s.buffers[view.param]
    value = s.env[op.value]
    trash = mx.array(buffer.size - 1, view.index)
    target = mx.minimum(flat if lanes is None else mx.where(lanes, flat, trash), trash)
    shape = mx.broadcast_shapes(target.shape, value.shape)
    s.buffers[view.param] = mx.put_along_axis(
        buffer,
        mx.reshape(mx.broadcast_to(target, shape), (-1,)),
        mx.reshape(mx.broadcast_to(value, shape), (-1,)),
        axis=0,
    )


def _automatic(s: _Programs, op: Automatic) -> None:
    raise UnsupportedError(
        f"{op.construct} has no meaning on the reference backend",
        op.loc,
        "use tensors, arange and layouts, or run a compiled backend",
    )


def _if(s: _Programs, op: If) -> None:
    condition = op.condition
    if condition in s.lazy:
        raise UnsupportedError(
            f"`if` depends on {condition.name or 'a scalar'}, which was given as an MLX array; "
            "the reference backend takes branch scalars as Python numbers",
            op.loc,
            "pass a Python number, or use metile.where and masks",
        )
    if condition in s.fixed:
        # Follows from Python numbers alone, so no traced array is evaluated here.
        taken = op.then if s.env[condition].item() else op.otherwise
        for result, value in zip(op.results, s.run(taken), strict=True):
            _alias(s, result, value)
        return
    outer, inside = s.guard, s.env[condition]
    s.guard = both(outer, inside)
    on_true = s.run(op.then)
    s.guard = both(outer, mx.logical_not(inside))
    on_false = s.run(op.otherwise)
    s.guard = outer
    for result, a, b in zip(op.results, on_true, on_false, strict=True):
        s.env[result] = mx.where(inside, s.env[a], s.env[b])
        if a in s.lazy or b in s.lazy:
            s.lazy.add(result)


def _alias(s: _Programs, result: Value, value: Value) -> None:
    s.env[result] = s.env[value]
    if value in s.numbers:
        s.numbers[result] = s.numbers[value]
    for kind in (s.fixed, s.lazy):
        if value in kind:
            kind.add(result)


def _scratch(s: _Programs, op: Scratch) -> mx.array:
    return mx.zeros((1, op.elements), mlx_dtypes()[op.dtype])


def _scratch_store(s: _Programs, op: ScratchStore) -> None:
    layout = _layout(op.value)
    slots = np.arange(layout.size)
    source = np.full(s.env[op.buffer].shape[1], -1)
    source[op.slots.apply(slots)] = layout.map.apply(slots)
    stored = _take(s.env[op.value], np.maximum(source, 0))
    s.env[op.buffer] = mx.where(mx.array(source >= 0)[None], stored, s.env[op.buffer])


def _scratch_load(s: _Programs, op: ScratchLoad) -> mx.array:
    slots = op.layout.slot_map.apply(np.arange(op.layout.size))
    return _take(s.env[op.buffer], op.slots.apply(slots))


def _barrier(s: _Programs, op: Barrier) -> None:
    """Whole tiles are already together."""


def _shuffle(s: _Programs, op: Shuffle) -> mx.array:
    slots = op.layout.slot_map.apply(np.arange(op.layout.size))
    return _take(s.env[op.src], _layout(op.src).map.apply(_widened(op.lanes, slots)))


def _widened(lanes: AffineMap, slots: Any) -> Any:
    """A map on the low bits of a slot keeps the others."""
    return slots // lanes.size * lanes.size + lanes.apply(slots % lanes.size)


def _layout(value: Value) -> ThreadLayout:
    assert isinstance(value.type, TileType)
    assert value.type.layout is not None
    return value.type.layout


def _take(tile: mx.array, elements: Any) -> mx.array:
    """Columns of a tile; no arithmetic, so every bit is kept."""
    return mx.take(tile, mx.array(elements.astype(np.int32)), axis=1)


RULES: dict[type[Op], Callable[[_Programs, Any], mx.array | None]] = {
    Constant: _constant,
    ProgramId: _program_id,
    NumPrograms: _num_programs,
    Arange: _arange,
    Splat: _splat,
    Unary: _unary,
    Binary: _binary,
    Compare: _compare,
    Select: _select,
    Cast: _cast,
    Bitcast: _bitcast,
    Fma: _fma,
    Reshape: _forward,
    Convert: _forward,
    Tensor: _tensor,
    Load: _load,
    Store: _store,
    Automatic: _automatic,
    If: _if,
    Scratch: _scratch,
    ScratchStore: _scratch_store,
    ScratchLoad: _scratch_load,
    Barrier: _barrier,
    Shuffle: _shuffle,
}
