"""The reference backend: a kernel at tile stages as a graph of MLX ops over all programs (SPEC X5).

With P programs a scalar is an array of shape (P, 1), a tile of n elements (P, n) in row-major
logical order; either has 1 in place of P where it is the same in all programs. Owners have no
meaning here, so the planned stage's exchanges are permutations of logical elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from metile_mlx.dtypes import DType, f16, i64, u64
from metile_mlx.errors import LaunchError, OutOfResources, UnsupportedError
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.lanes import LaneReduce, LaneShuffle, Shared, Sync, ThreadId
from metile_mlx.ir.loops import For
from metile_mlx.ir.matrix import Coordinate, Dot, Operand
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.ir.planned import Barrier, Choose, Scratch, ScratchLoad, ScratchStore, Shuffle
from metile_mlx.ir.planned import Reduce as PlannedReduce
from metile_mlx.ir.tile import (
    Arange,
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
    Print,
    ProgramId,
    Reduce,
    Reshape,
    Select,
    Splat,
    Store,
    Tensor,
    Unary,
    Yield,
)
from metile_mlx.ir.types import TileType
from metile_mlx.runtime import reference_lanes, reference_memory
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.runtime.optional import mx
from metile_mlx.runtime.programs import Programs, Shape
from metile_mlx.runtime.reference_ops import COMPARE, UNARY, Number, binary, combined, fma

MAX_BYTES = 4 << 30
"""No array in the graph may be larger; several are alive at once."""
MAX_ITERATIONS = 1 << 14
"""No loop runs more often."""


def evaluate(
    func: Func,
    arrays: Mapping[str, mx.array],
    scalars: Mapping[str, Number | mx.array],
    outputs: Mapping[str, tuple[Shape, DType]],
    grid: tuple[int, int, int],
    stream: Place = None,
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
        UnsupportedError: `if` on a scalar given as an MLX array, or a
            loop whose bounds are no Python numbers.
        OutOfResources: an array of the graph would pass MAX_BYTES.
        LaunchError: an illegal extent or stride, as `View.geometry`.
    """
    _check_memory(func, grid)
    with mx.stream(stream) if stream is not None else nullcontext():
        programs = Programs(func, arrays, scalars, outputs, grid)
        if 0 not in grid:
            _run(programs, func.body)
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


def _run(s: Programs, block: Block) -> tuple[Value, ...]:
    """Run a block; the values it yields."""
    for op in block.ops:
        if isinstance(op, Yield):
            return op.values
        made = RULES[type(op)](s, op)
        if made is not None:
            s.env[op.result] = made
            s.classify(op)
    return ()


def _constant(s: Programs, op: Constant) -> mx.array:
    s.numbers[op.result] = op.value
    if op.dtype == f16 and op.value != op.value:
        # MLX's own NaN of this dtype is a signalling one.
        return mx.array([[0x7E00]], mx.uint16).view(mx.float16)
    if op.dtype == u64 and op.value > i64.max:
        # MLX takes no such number.
        return mx.array([[int(op.value) - (1 << 64)]], mx.int64).view(mx.uint64)
    return mx.array([[op.value]], mlx_dtypes()[op.dtype])


def _program_id(s: Programs, op: ProgramId) -> mx.array:
    below, extent = prod(s.grid[: op.axis]), s.grid[op.axis]
    if extent == 1:
        return mx.zeros((1, 1), mx.int32)
    # x fastest. Built from three ranges, since MLX's integer division is slow.
    ids = mx.reshape(mx.arange(extent, dtype=mx.int32), (1, extent, 1))
    above = prod(s.grid) // (below * extent)
    return mx.reshape(mx.broadcast_to(ids, (above, extent, below)), (-1, 1))


def _num_programs(s: Programs, op: NumPrograms) -> mx.array:
    s.numbers[op.result] = s.grid[op.axis]
    return mx.array([[s.grid[op.axis]]], mx.int32)


def _arange(s: Programs, op: Arange) -> mx.array:
    return s.env[op.start] + mx.arange(op.size, dtype=mx.int32)[None]


def _splat(s: Programs, op: Splat) -> mx.array:
    src = s.env[op.src]
    return mx.broadcast_to(src, (src.shape[0], prod(op.shape)))


def _unary(s: Programs, op: Unary) -> mx.array:
    return UNARY[op.kind](s.env[op.src])


def _binary(s: Programs, op: Binary) -> mx.array:
    traced = not s.untraced.issuperset((op.lhs, op.rhs))
    return binary(op.kind, s.env[op.lhs], s.env[op.rhs], s.numbers.get(op.rhs), traced)


def _compare(s: Programs, op: Compare) -> mx.array:
    return COMPARE[op.kind](s.env[op.lhs], s.env[op.rhs])


def _select(s: Programs, op: Select) -> mx.array:
    return mx.where(s.env[op.condition], s.env[op.on_true], s.env[op.on_false])


def _cast(s: Programs, op: Cast) -> mx.array:
    return s.env[op.src].astype(mlx_dtypes()[op.dtype])


def _bitcast(s: Programs, op: Bitcast) -> mx.array:
    return mx.view(s.env[op.src], mlx_dtypes()[op.dtype])


def _fma(s: Programs, op: Fma) -> mx.array:
    return fma(s.env[op.a], s.env[op.b], s.env[op.c])


def _coordinate(s: Programs, op: Coordinate) -> mx.array:
    behind, extent = prod(op.shape[op.axis + 1 :]), op.shape[op.axis]
    return (mx.arange(prod(op.shape), dtype=mx.int32) // behind % extent)[None]


def _dot(s: Programs, op: Dot) -> mx.array:
    """In f32, as MLX adds it up."""
    rows, columns, depth = op.shape
    a = mx.reshape(s.env[op.a].astype(mx.float32), (-1, rows, depth))
    b = mx.reshape(s.env[op.b].astype(mx.float32), (-1, depth, columns))
    return s.env[op.acc] + mx.reshape(mx.matmul(a, b), (-1, rows * columns))


def _forward(s: Programs, op: Reshape | Convert | Operand) -> mx.array:
    return s.env[op.src]


def _permute(s: Programs, op: Permute) -> mx.array:
    src = s.env[op.src]
    if src.shape[1] == 1:
        return src
    return mx.take(src, mx.array(op.map.apply(np.arange(op.map.size))), axis=1)


def _print(s: Programs, op: Print) -> None:
    """Nothing: here no thread has the value, and the graph may be differentiated."""


def _reduce(s: Programs, op: Reduce | PlannedReduce) -> mx.array:
    src = s.env[op.src]
    if op.axis is None:
        return combined(op.kind, src)
    assert isinstance(op.src.type, TileType)
    shape = op.src.type.shape
    before, extent, behind = prod(shape[: op.axis]), shape[op.axis], prod(shape[op.axis + 1 :])
    rows = mx.swapaxes(mx.reshape(src, (-1, before, extent, behind)), 2, 3)
    totals = mx.reshape(combined(op.kind, rows), (-1, before, 1, behind))
    spread = mx.broadcast_to(totals, (totals.shape[0], before, extent, behind))
    return mx.reshape(spread, src.shape)


def _if(s: Programs, op: If) -> None:
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
        for result, value in zip(op.results, _run(s, taken), strict=True):
            _alias(s, result, value)
        return
    outer, inside = s.guard, s.env[condition]
    s.guard = reference_memory.both(outer, inside)
    on_true = _run(s, op.then)
    s.guard = reference_memory.both(outer, mx.logical_not(inside))
    on_false = _run(s, op.otherwise)
    s.guard = outer
    for result, a, b in zip(op.results, on_true, on_false, strict=True):
        s.env[result] = mx.where(inside, s.env[a], s.env[b])
        if a in s.lazy or b in s.lazy:
            s.lazy.add(result)


def _for(s: Programs, op: For) -> None:
    """Iteration by iteration: the graph holds the body once for each."""
    held = op.inits
    for index in _indices(s, op):
        held = _iteration(s, op.body, (index,), held)
    for result, value in zip(op.results, held, strict=True):
        _alias(s, result, value)


def _pipeline(s: Programs, op: SoftwarePipeline) -> None:
    """Phase by phase: the memory of each slot is a part of an array."""
    indices, held = _indices(s, op), op.inits
    if op.guard is None:
        for k in indices:
            held = _iteration(s, op.steady, (k, k, 0, 0), held)
    elif s.env[op.guard].item():
        _iteration(s, op.first, (indices.start, 0), ())
        for slot, (k, ahead) in enumerate(pairwise(indices)):
            held = _iteration(s, op.steady, (k, ahead, slot % 2, 1 - slot % 2), held)
        k = indices[-1] if indices else indices.start
        held = _iteration(s, op.last, (k, (len(indices) - 1) % 2), held)
    for result, value in zip(op.results, held, strict=True):
        _alias(s, result, value)


def _iteration(
    s: Programs, block: Block, numbers: tuple[int, ...], held: tuple[Value, ...]
) -> tuple[Value, ...]:
    """Run a block whose arguments are numbers and what is carried; what it yields."""
    known = [s.facts(value) for value in held]
    s.forget(block)
    for arg, number in zip(block.args, numbers, strict=False):
        s.bind_number(arg, number)
    for arg, facts in zip(block.args[len(numbers) :], known, strict=True):
        s.restore(arg, facts)
    return _run(s, block)


def _indices(s: Programs, op: For | SoftwarePipeline) -> range:
    """What the index of a loop is, one iteration after the other."""
    start, end, step = (_bound(s, op, name) for name in ("start", "end", "step"))
    if step < 1 and start < end:
        raise LaunchError(f"[tile_range] step is {step}, expected at least 1", op.loc)
    indices = range(start, end, max(step, 1))
    if len(indices) > MAX_ITERATIONS:
        raise UnsupportedError(
            f"the loop of line {op.loc.line} runs {len(indices)} times; the reference backend "
            f"builds a graph of every iteration, of at most {MAX_ITERATIONS}",
            op.loc,
            "use a larger step, or run a compiled backend",
        )
    return indices


def _bound(s: Programs, op: For | SoftwarePipeline, name: str) -> int:
    value = getattr(op, name)
    if value not in s.fixed:
        raise UnsupportedError(
            f"the loop of line {op.loc.line}: its {name} is no Python number, but an MLX array or "
            "different in each program; the reference backend takes numbers as bounds",
            op.loc,
            "pass Python numbers, or run a compiled backend",
        )
    number = s.env[value].item()
    assert isinstance(number, int)
    return number


def _alias(s: Programs, result: Value, value: Value) -> None:
    s.restore(result, s.facts(value))


RULES: dict[type[Op], Callable[[Programs, Any], mx.array | None]] = {
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
    Reduce: _reduce,
    PlannedReduce: _reduce,
    Reshape: _forward,
    Permute: _permute,
    Convert: _forward,
    Operand: _forward,
    Coordinate: _coordinate,
    Dot: _dot,
    Tensor: reference_memory.tensor,
    Load: reference_lanes.load,
    Store: reference_lanes.store,
    Print: _print,
    If: _if,
    For: _for,
    SoftwarePipeline: _pipeline,
    ThreadId: reference_lanes.thread_id,
    LaneReduce: reference_lanes.reduce,
    LaneShuffle: reference_lanes.shuffle,
    Shared: reference_lanes.shared,
    Sync: reference_lanes.sync,
    Scratch: reference_memory.scratch,
    ScratchStore: reference_memory.scratch_store,
    ScratchLoad: reference_memory.scratch_load,
    Barrier: reference_memory.barrier,
    Shuffle: reference_memory.shuffle,
    Choose: reference_memory.choose,
}
