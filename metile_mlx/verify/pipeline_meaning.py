"""What a software pipeline means: the loop it was made from, step by step (SPEC P3).

A loop means what one step makes of any index k and any carried values. A pipeline means the same
where, for any k, the tiles that are copied for step k are the same in each phase that copies them,
and what is consumed at step k makes the same of them in each phase that consumes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from metile_mlx.ir.core import Block, Op, Value
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.verify.meaning import Meaning

Path = tuple[Hashable, ...]


class Walker(Protocol):
    """The walk of verify/conversions.py."""

    meaning: Meaning
    stages: dict[Value, int]

    def block(self, block: Block, path: Path) -> None: ...
    def enter(self, item: SoftwarePipeline) -> Path: ...
    def leave(self, item: SoftwarePipeline, body: Block, path: Path) -> None: ...
    def origins(self, storage: tuple[Value, ...], stage: int) -> list[int]: ...
    def add(self, item: Op, message: str) -> None: ...


def follow(item: SoftwarePipeline, walker: Walker, path: Path) -> None:
    """Walk the phases, and define what the pipeline leaves as the loop would."""
    meaning, of = walker.meaning, walker.meaning.numbering.of
    key = walker.enter(item)
    inside = (*path, key)
    k, other = of(*key, "argument", 0), of(*key, "another step")
    carried = [of(*key, "argument", position + 1) for position in range(len(item.inits))]

    def run(block: Block, steps: tuple[int, ...], stages: tuple[int, ...]) -> list[int]:
        """Walk a phase; the numbers of what it yields."""
        numbers = (*steps, *[of("stage", stage) for stage in stages])
        given = (*numbers, *carried)[: len(block.args)]
        # Where the arguments are of another number, verify/structure.py has said so.
        for arg, number in zip(block.args, given, strict=False):
            meaning.define(arg, number)
        slots = block.args[len(steps) : len(numbers)]
        walker.stages.update(zip(slots, stages, strict=False))
        walker.block(block, inside)
        return [meaning.numbers[value] for value in block.ops[-1].operands()]

    if item.guard is None:
        run(item.steady, (k, k), (0, 0))
        walker.leave(item, item.steady, inside)
        return
    run(item.first, (k,), (0,))
    tiles = walker.origins(item.storage, 0)
    # The phases that belong to other steps do the same accesses: those of step k count once.
    seen = len(meaning.accesses)
    made = run(item.steady, (k, other), (0, 1))
    walker.leave(item, item.steady, inside)
    run(item.steady, (other, k), (1, 0))
    if walker.origins(item.storage, 0) != tiles:
        walker.add(item, "phase steady copies other tiles for a step than phase first would")
    del meaning.accesses[seen:]
    if run(item.last, (k,), (0,)) != made:
        walker.add(item, "phase last makes something else of its tiles than phase steady would")
