"""A software pipeline read with numbers: its phases in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from metile_mlx.ir.core import Block, Value
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.verify import numbers
from metile_mlx.verify.numbers import Numbers
from metile_mlx.verify.reading import ITERATIONS


def piped(
    item: SoftwarePipeline,
    known: dict[Value, Numbers],
    path: Numbers,
    run: Callable[[Block, Numbers], tuple[Numbers, ...]],
) -> Sequence[Numbers]:
    """What a pipeline leaves of its carried values, its steady phase no more than ITERATIONS times.

    Which slot is whose, and how many steps there are, is another in each trial.
    """

    def phase(block: Block, active: Numbers, *given: Numbers) -> Sequence[Numbers]:
        known.update(zip(block.args, given, strict=True))
        return run(block, active)

    def kept(active: Numbers, made: Sequence[Numbers]) -> list[Numbers]:
        pairs = zip(made, carried, strict=True)
        return [numbers.select(active, new, old) for new, old in pairs]

    now, end, step = known[item.start], known[item.end], known[item.step]
    carried = [known[value] for value in item.inits]
    slot: Numbers = np.zeros((1, 1), np.int64)
    if item.guard is None:
        for _ in range(ITERATIONS):
            active = path & (now < end)
            if not active.any():
                break
            carried = kept(active, phase(item.steady, active, now, now, slot, slot, *carried))
            now = now + step
        return carried
    guard = path & known[item.guard]
    phase(item.first, guard, now, slot)
    for _ in range(ITERATIONS):
        ahead = now + step
        active = guard & (ahead < end)
        if not active.any():
            break
        made = phase(item.steady, active, now, ahead, slot, 1 - slot, *carried)
        carried = kept(active, made)
        now, slot = numbers.select(active, ahead, now), numbers.select(active, 1 - slot, slot)
    return kept(guard, phase(item.last, guard, now, slot, *carried))
