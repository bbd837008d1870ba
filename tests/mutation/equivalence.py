"""Why a mutant does what the program does: mechanical rules, each about the damage alone.

A rule that holds excuses a mutant only if it also gives the same bits in every order of threads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from metile_mlx.context import Stage
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import Effect, Func, Op, Value, walk
from metile_mlx.ir.types import PointerType, ScratchType, TensorType
from metile_mlx.target import EMULATOR
from metile_mlx.verify import examine
from metile_mlx.verify.decisions import Decisions, turns
from metile_mlx.verify.reading import Access, Unreadable, differences
from metile_mlx.verify.thread_reader import thread_reader
from metile_mlx.verify.thread_values import ThreadValues
from metile_mlx.verify.tile_reader import TileReader
from tests.mutation.editing import MEMORY
from tests.mutation.judge import Trial
from tests.mutation.operators import is_barrier, scratch_of


def no_memory_in_common(trial: Trial) -> bool:
    """What changed places accesses no memory that the other one accesses or orders.

    Barriers order threadgroup memory only: threads hand nothing to each other in device memory.
    """
    first, others = trial.mutant.op, trial.mutant.passed
    return bool(others) and not any(_meet(first, other) for other in others)


def _meet(one: Op, other: Op) -> bool:
    """Whether both access one memory, or one orders what the other accesses."""
    if is_barrier(one) or is_barrier(other):
        return all(is_barrier(item) or scratch_of(item) for item in (one, other))
    return bool(_memory(one) & _memory(other))


def _memory(item: Op) -> set[object]:
    """What an op accesses: the array that a thread's program names, any array, or scratch."""
    found: set[object] = set(scratch_of(item))
    for value in item.operands():
        if isinstance(value.type, PointerType):
            found.add(value)
        elif isinstance(value.type, TensorType):
            found.add("arrays")
    return found


def _is_device(item: Op) -> bool:
    return bool(_memory(item) - scratch_of(item))


def two_reads(trial: Trial) -> bool:
    """Reads change nothing."""
    items = (trial.mutant.op, *trial.mutant.passed)
    return len(items) > 1 and all(item.effect & MEMORY == Effect.READ for item in items)


def parts_of_one_access(trial: Trial) -> bool:
    """Register slots of one tensor access hold different elements, in no order."""
    items = (trial.mutant.op, *trial.mutant.passed)
    numbers = {getattr(item, "access", None) for item in items}
    return len(items) > 1 and len(numbers) == 1 and None not in numbers


def nobody_takes_part(trial: Trial) -> bool:
    """The mask of what was damaged is false in every thread, whatever the arguments are.

    Of loads that exchange their results, both, and they have the same fill.
    """
    mutant, func = trial.mutant, trial.snapshot.func
    if trial.snapshot.stage is not Stage.THREAD or mutant.passed:
        return False
    values = ThreadValues(func)
    items = (mutant.op, *(mutant.others if mutant.op.results else ()))
    fills = {getattr(item, "fill", None) for item in items}
    return len(fills) == 1 and all(_never(item, values) for item in items)


def _never(item: Op, values: ThreadValues) -> bool:
    mask = getattr(item, "mask", None)
    if not isinstance(mask, Value):
        return False
    known = [
        found for part in conditions(mask, values) if (found := truth(part, values)) is not None
    ]
    return bool(known) and not np.logical_and.reduce(known).any()


def conditions(mask: Value, values: ThreadValues) -> list[Value]:
    """What a mask joins."""
    item = values.made_by.get(mask)
    if isinstance(item, metal.Binary) and item.kind is BinaryKind.AND:
        return [*conditions(item.lhs, values), *conditions(item.rhs, values)]
    return [mask]


def truth(condition: Value, values: ThreadValues) -> NDArray[np.bool_] | None:
    """In which threads a condition holds, where that follows from the thread alone."""
    found = values.evaluate(condition)
    return None if found is None else found != 0


def reads_alike(trial: Trial) -> bool:
    """Read with numbers that stand for values, both programs access the same places with the same
    values: what was damaged is equal elsewhere, or goes to lanes that nobody asks."""
    mutant, snapshot = trial.mutant, trial.snapshot
    if snapshot.stage < Stage.PLANNED or mutant.passed or mutant.kept is not None:
        return False
    if any(examine(mutant.func, snapshot.stage, None, EMULATOR).values()):
        return False
    if snapshot.stage is Stage.THREAD:
        before = next(s.before for s in trial.program.snapshots if s.stage is Stage.THREAD)
    else:
        before = snapshot.func
    try:
        for turn in range(turns(before)):
            was, now = (
                _accesses(func, before, snapshot.stage, turn)
                for func in (snapshot.func, mutant.func)
            )
            if differences(was, now) or differences(now, was):
                return False
    except (Unreadable, ValueError):
        return False
    return True


def _accesses(func: Func, before: Func, stage: Stage, turn: int) -> list[Access]:
    if stage is Stage.THREAD:
        return thread_reader(func, before, turn, exact=True).accesses
    reader = TileReader(func, 32, Decisions(before, turn), frozenset())
    reader.run()
    return reader.accesses


def nothing_depends_on_it(trial: Trial) -> bool:
    """Neither a store nor a branch uses a result of what was damaged, even through others."""
    mutant, snapshot = trial.mutant, trial.snapshot
    if not mutant.op.results or mutant.passed:
        return False
    reached = {value for item in (mutant.op, *mutant.others) for value in item.results}
    known: set[object] = set()
    # A loop comes back to what stands before: until nothing new is reached.
    while known != reached:
        known = set(reached)
        for item in walk(snapshot.func.body):
            if reached.isdisjoint(item.operands()):
                continue
            if item.blocks() or item.effect & Effect.TERMINATOR:
                return False
            if item.effect & Effect.WRITE and _is_device(item):
                return False
            reached.update(item.results)
            reached.update(v for v in item.operands() if isinstance(v.type, ScratchType))
    return True


def implied(trial: Trial) -> bool:
    """Each condition that was dropped holds wherever those hold that stay."""
    mutant, func = trial.mutant, trial.snapshot.func
    mask = getattr(mutant.op, "mask", None)
    if trial.snapshot.stage is not Stage.THREAD or mutant.kept is None or mask is None:
        return False
    values = ThreadValues(func)
    kept = conditions(mutant.kept, values)
    dropped = [part for part in conditions(mask, values) if part not in kept]
    return all(any(_implies(one, other, values) for one in kept) for other in dropped)


def _implies(one: Value, other: Value, values: ThreadValues) -> bool:
    here, there = truth(one, values), truth(other, values)
    if here is not None and there is not None:
        return bool((there | ~here).all())
    return False


RULES: dict[str, Callable[[Trial], bool]] = {
    "no memory in common": no_memory_in_common,
    "two reads": two_reads,
    "parts of one access": parts_of_one_access,
    "nobody takes part": nobody_takes_part,
    "nothing depends on it": nothing_depends_on_it,
    "the conditions that stay imply it": implied,
    "it reads alike": reads_alike,
}
SAME_TEXT = "the text is the same"


def rule(trial: Trial, same_text: bool) -> str | None:
    """The name of the rule that says that the mutant is equivalent, else None."""
    if same_text:
        return SAME_TEXT
    return next((name for name, holds in RULES.items() if holds(trial)), None)
