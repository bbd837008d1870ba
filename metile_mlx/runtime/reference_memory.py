"""Loads, stores and exchanges of the reference: gathers, scatters and permutations.

Gathers and scatters are `take_along_axis` and `put_along_axis` on flat arrays: of MLX's forms these
differentiate both ways and work under `mx.vmap`. Values only move through them and `where`, which
keep every bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from metile_mlx.analysis.views import INT32_MAX, needs_64_bit, view_of
from metile_mlx.errors import LaunchError
from metile_mlx.ir.core import Value
from metile_mlx.ir.planned import (
    Barrier,
    Choose,
    Scratch,
    ScratchLoad,
    ScratchStore,
    Shuffle,
    held,
)
from metile_mlx.ir.tile import Load, Store, Tensor
from metile_mlx.ir.types import ScratchType, SlotsType, TileType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.runtime.optional import mx
from metile_mlx.runtime.programs import Programs, View


def both(a: mx.array | None, b: mx.array | None) -> mx.array | None:
    """The lanes of two masks; None is all lanes."""
    if a is None or b is None:
        return b if a is None else a
    return mx.logical_and(a, b)


def _address(s: Programs, op: Load | Store) -> tuple[mx.array, mx.array | None]:
    """Flat element offsets, meaningless where a lane is off; and which lanes are on."""
    view = s.views[op.tensor]
    flat = mx.zeros((1, 1), view.index)
    lanes = s.env[op.mask] if op.mask is not None else None
    if view.whole:
        _check_pointer(s, op, view, lanes)
    for index, extent, stride in zip(op.indices, view.shape, view.strides, strict=True):
        position = s.env[index]
        lanes = both(lanes, mx.logical_and(position >= 0, position < extent))
        flat = flat + position.astype(view.index) * stride
    return flat, lanes


def _check_pointer(s: Programs, op: Load | Store, view: View, lanes: mx.array | None) -> None:
    """Refuse a pointer that leaves its array, where it does not depend on what arrays hold.

    Raises:
        LaunchError: names the program's offset.
    """
    known = s.untraced.issuperset([*op.indices, *([] if op.mask is None else [op.mask])])
    if not known or s.guard is not None:
        return
    (at,), (size,) = [s.env[index] for index in op.indices], view.shape
    outside = both(lanes, mx.logical_or(at < 0, at >= size))
    assert outside is not None
    if not mx.any(outside).item():
        return
    wrong = mx.broadcast_to(at, outside.shape).reshape(-1)[mx.argmax(outside.reshape(-1))]
    what = "load" if isinstance(op, Load) else "store"
    raise LaunchError(
        f"[{what}] offset {wrong.item()} lies outside {view.param}, which has {size} elements",
        op.loc,
        "mask what lies outside: mask=offsets < n",
    )


def tensor(s: Programs, op: Tensor) -> None:
    """A declared view: what of it is a number, and how wide its offsets are."""
    view = view_of(op, s.defined, s.params)
    arrays = s.buffers if view.access == "write" else s.inputs
    wide = needs_64_bit((view,), s.integers) or arrays[view.param].size > INT32_MAX
    s.views[op.result] = View(
        view.param,
        tuple(s.known(value) for value in op.shape),
        tuple(s.known(value) for value in op.strides),
        mx.int64 if wide else mx.int32,
        op.whole,
    )


def load(s: Programs, op: Load) -> mx.array:
    """Gather; lanes out of bounds or masked off give the fill."""
    view = s.views[op.tensor]
    flat, lanes = _address(s, op)
    array = s.inputs[view.param]
    fill = s.env[op.fill] if op.fill is not None else mx.zeros((1, 1), array.dtype)
    # Where views could not be checked, wild lanes stay inside the array.
    last = mx.array(max(array.size - 2, 0), view.index)
    flat = mx.minimum(mx.maximum(flat, mx.array(0, view.index)), last)
    if lanes is not None:
        # MLX multiplies the gradient of a `where` by its mask. What comes to a lane that is off may
        # be a NaN, which then goes to the element past the end.
        flat = mx.where(lanes, flat, mx.array(array.size - 1, view.index))
    found = mx.take_along_axis(array, mx.reshape(flat, (-1,)), axis=0)
    found = mx.reshape(found, flat.shape)
    return found if lanes is None else mx.where(lanes, found, fill)


def store(s: Programs, op: Store) -> None:
    """Scatter; lanes out of bounds or masked off go to the element past the end."""
    view = s.views[op.tensor]
    flat, lanes = _address(s, op)
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


def scratch(s: Programs, op: Scratch) -> mx.array:
    """Threadgroup memory of every program."""
    return mx.zeros((1, op.elements), mlx_dtypes()[op.dtype])


def scratch_store(s: Programs, op: ScratchStore) -> None:
    """Write a permutation of the tile, or a part of one."""
    order = _order(op.value)
    slots = _taking_part(order.size, op.value, op.registers)
    source = np.full(s.env[op.buffer].shape[1], -1)
    source[op.slots.apply(slots) - op.skip + _stage(s, op)] = order[slots]
    stored = _take(s.env[op.value], np.maximum(source, 0))
    s.env[op.buffer] = mx.where(mx.array(source >= 0)[None], stored, s.env[op.buffer])


def scratch_load(s: Programs, op: ScratchLoad) -> mx.array:
    """Read a permutation of the scratch, or of a part of it."""
    order = _order(op.result)
    # Of the slots that hold an element, the first.
    slots = np.unique(order, return_index=True)[1]
    part = _taking_part(order.size, op.result, op.registers)
    reads = np.isin(slots, part)
    at = op.slots.apply(slots) - op.skip + _stage(s, op)
    found = _take(s.env[op.buffer], np.where(reads, at, 0))
    if op.base is None:
        return found
    kept = _take(s.env[op.base], _order(op.base)[slots])
    return mx.where(mx.array(reads)[None], found, kept)


def _stage(s: Programs, op: ScratchStore | ScratchLoad) -> int:
    """Where the stage begins that is accessed: the loops of pipelines bind numbers."""
    if op.stage is None:
        return 0
    assert isinstance(op.buffer.type, ScratchType)
    return int(s.numbers[op.stage]) * op.buffer.type.pitch


def barrier(s: Programs, op: Barrier) -> None:
    """Whole tiles are already together."""


def shuffle(s: Programs, op: Shuffle) -> mx.array:
    """A permutation of the tile, or of a part of it."""
    slots = np.argsort(_order(op.result))
    part = np.isin(slots, _taking_part(slots.size, op.src, op.registers))
    return _take(s.env[op.src], _order(op.src)[np.where(part, _widened(op.lanes, slots), slots)])


def choose(s: Programs, op: Choose) -> mx.array:
    """Registers of one thread, told apart by its number."""
    slots = np.argsort(_order(op.result))
    threads = slots.size // len(op.registers)
    register, thread = np.divmod(slots, threads)
    taken = np.array(op.registers)[register, thread >> op.bit & 1]
    return _take(s.env[op.src], _order(op.src)[taken * threads + thread])


def _widened(lanes: AffineMap, slots: Any) -> Any:
    """A map on the low bits of a slot keeps the others."""
    return slots // lanes.size * lanes.size + lanes.apply(slots % lanes.size)


def _order(value: Value) -> Any:
    """The column in which `env` has each slot: tiles are in logical order, slots as they are."""
    if isinstance(value.type, SlotsType):
        return np.arange(value.type.size)
    assert isinstance(value.type, TileType)
    assert value.type.layout is not None
    slots = value.type.layout.map
    return slots.apply(np.arange(slots.size))


def _taking_part(size: int, value: Value, registers: tuple[int, ...] | None) -> Any:
    """The slots of some registers; None is all."""
    if registers is None:
        return np.arange(size)
    threads = size // held(value).registers
    return (np.array(registers)[:, None] * threads + np.arange(threads)).reshape(-1)


def _take(tile: mx.array, elements: Any) -> mx.array:
    """Columns of a tile; no arithmetic, so every bit is kept."""
    return mx.take(tile, mx.array(elements.astype(np.int32)), axis=1)
