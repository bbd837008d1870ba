"""Communication in one thread's program: scratch, barriers, shuffles and choices (SPEC C1-C6)."""

from __future__ import annotations

from collections.abc import Sequence

from metile_mlx.dtypes import u16, u32
from metile_mlx.ir import metal, planned
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import Value
from metile_mlx.ir.types import ScratchType
from metile_mlx.passes.lowering import Lowered, Lowering, Rules
from metile_mlx.target import SIMD_WIDTH


def _scratch(low: Lowering, item: planned.Scratch) -> Lowered:
    made = metal.ThreadgroupAlloc(item.dtype, item.elements, item.slot, item.stages)
    return ((low.b.emit(made)[0],),)


def _scratch_store(low: Lowering, item: planned.ScratchStore) -> Lowered:
    values = low.slots[item.value]
    for register in _named(item.registers, len(values)):
        columns, constant = low.columns(item.slots, register)
        at = _staged(low, item, low.b.slot_map(columns, constant - item.skip))
        low.b.emit(metal.ThreadgroupStore(low.scalar(item.buffer), at, values[register]))
    return ()


def _scratch_load(low: Lowering, item: planned.ScratchLoad) -> Lowered:
    count = planned.held(item.result).registers
    found: list[Value | None] = [None] * count if item.base is None else [*low.slots[item.base]]
    for register in _named(item.registers, count):
        columns, constant = low.columns(item.slots, register)
        at = _staged(low, item, low.b.slot_map(columns, constant - item.skip))
        (found[register],) = low.b.emit(metal.ThreadgroupLoad(low.scalar(item.buffer), at))
    return (tuple(value for value in found if value is not None),)


def _staged(low: Lowering, item: planned.ScratchStore | planned.ScratchLoad, at: Value) -> Value:
    """The address in the stage that is accessed."""
    if item.stage is None:
        return at
    assert isinstance(item.buffer.type, ScratchType)
    stage = low.b.cast(low.scalar(item.stage), u32)
    first = low.b.with_number(BinaryKind.MUL, stage, item.buffer.type.pitch)
    return low.b.binary(BinaryKind.ADD, first, at)


def _named(registers: tuple[int, ...] | None, count: int) -> Sequence[int]:
    return range(count) if registers is None else registers


def _barrier(low: Lowering, item: planned.Barrier) -> Lowered:
    low.b.emit(metal.Barrier(item.role))
    return ()


def _shuffle(low: Lowering, item: planned.Shuffle) -> Lowered:
    """A register that comes from the same lane is a new name."""
    sources = low.slots[item.src]
    found = list(sources)
    lanes = SIMD_WIDTH - 1
    for register in _named(item.registers, len(sources)):
        columns, constant = low.columns(item.lanes, register)
        src = sources[constant // low.func.threads]
        if all(column == 1 << bit for bit, column in enumerate(columns)) and not constant & lanes:
            found[register] = src
            continue
        index = low.b.slot_map([column & lanes for column in columns], constant & lanes)
        found[register] = low.b.add(metal.Shuffle(src, low.b.cast(index, u16)))
    return (tuple(found),)


def _choose(low: Lowering, item: planned.Choose) -> Lowered:
    sources = low.slots[item.src]
    made = [
        low.b.choose(item.bit, sources[clear], sources[taken]) for clear, taken in item.registers
    ]
    return (tuple(made),)


MOVES: Rules = {
    planned.Scratch: _scratch,
    planned.ScratchStore: _scratch_store,
    planned.ScratchLoad: _scratch_load,
    planned.Barrier: _barrier,
    planned.Shuffle: _shuffle,
    planned.Choose: _choose,
}
