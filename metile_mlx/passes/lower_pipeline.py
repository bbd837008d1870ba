"""Software pipelines in one thread's program: a branch, a loop, and slots in turns (SPEC P2)."""

from __future__ import annotations

from collections.abc import Sequence

from metile_mlx.dtypes import i32, u32
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, CompareKind
from metile_mlx.ir.core import Block, Value
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.ir.types import ScalarType
from metile_mlx.passes.lowering import (
    Lowered,
    Lowering,
    Rules,
    argument,
    loop,
    registers,
    spread,
    yielded,
)


def _pipeline(low: Lowering, item: SoftwarePipeline) -> Lowered:
    inits = [
        value
        for arg, init in zip(item.carried, item.inits, strict=True)
        for value in spread(low, init, registers(arg))
    ]
    write = _one_slot if item.guard is None else _two_slots
    made = iter(write(low, item, inits))
    return tuple(tuple(next(made) for _ in range(registers(r))) for r in item.results)


def _one_slot(low: Lowering, item: SoftwarePipeline, inits: list[Value]) -> Sequence[Value]:
    """A loop over all steps."""
    k, args, zero = _number("k"), _arguments(item), low.b.constant(0, i32)
    start, end, step = (low.scalar(value) for value in (item.start, item.end, item.step))
    head = ThreadFor(start, end, step, tuple(inits), Block((), (k, *args)))
    return loop(low, head, lambda: _run(low, item.steady, (k, k, zero, zero), args))


def _two_slots(low: Lowering, item: SoftwarePipeline, inits: list[Value]) -> Sequence[Value]:
    """Where there is a step: the first copies, a loop over the steps after it, the last step."""
    b = low.b
    assert item.guard is not None
    inside, outside = b.child(), b.child()
    with b.inside(inside):
        b.emit(metal.Yield(tuple(_phases(low, item, inits))))
    with b.inside(outside):
        b.emit(metal.Yield(tuple(inits)))
    return b.emit(metal.If(low.scalar(item.guard), inside.block(), outside.block()))


def _phases(low: Lowering, item: SoftwarePipeline, inits: list[Value]) -> Sequence[Value]:
    """All phases; what is carried in the end."""
    b = low.b
    ahead, now, slot, args = _number("ahead"), _number("now"), _number("slot"), _arguments(item)
    start, end, step = (low.scalar(value) for value in (item.start, item.end, item.step))
    zero = b.constant(0, i32)
    _run(low, item.first, (start, zero), ())

    def steady() -> list[Value]:
        free = b.with_number(BinaryKind.XOR, slot, 1)
        return [ahead, free, *_run(low, item.steady, (now, ahead, slot, free), args)]

    carried = (start, zero, *inits)
    body = Block((), (ahead, now, slot, *args))
    head = ThreadFor(_second(low, start, end, step), end, step, carried, body)
    last, full, *left = loop(low, head, steady)
    return _run(low, item.last, (last, full), left)


def _second(low: Lowering, start: Value, end: Value, step: Value) -> Value:
    """start + step, or `end` where that is none of the steps; it may leave i32."""
    b = low.b
    after = b.binary(BinaryKind.ADD, start, step)
    if b.ranges.excludes_wrap(BinaryKind.ADD, start, step):
        return after
    left = b.binary(BinaryKind.SUB, b.cast(end, u32), b.cast(start, u32))
    return b.select(b.compare(CompareKind.GT, left, b.cast(step, u32)), after, end)


def _run(
    low: Lowering, phase: Block, numbers: tuple[Value, ...], carried: Sequence[Value]
) -> list[Value]:
    """Lower a phase where the builder stands; what it yields."""
    low.slots.update((arg, (number,)) for arg, number in zip(phase.args, numbers, strict=False))
    rest = iter(carried)
    for arg in phase.args[len(numbers) :]:
        low.slots[arg] = tuple(next(rest) for _ in range(registers(arg)))
    low.block(phase)
    return yielded(low, phase)


def _number(name: str) -> Value:
    return Value(ScalarType(i32), name)


def _arguments(item: SoftwarePipeline) -> tuple[Value, ...]:
    """What the loop binds of what is carried."""
    return tuple(argument(arg, r) for arg in item.carried for r in range(registers(arg)))


PIPELINE: Rules = {SoftwarePipeline: _pipeline}
