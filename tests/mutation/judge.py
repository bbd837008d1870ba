"""What the verifiers say of a mutant, asked as the compiler asks: with the program before the pass.

Those that they accept go through the passes and verifiers that follow, as a fault of a pass would.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from metile_mlx.compiler import STEPS
from metile_mlx.context import Stage
from metile_mlx.errors import CompileError, MetileError, OutOfResources
from metile_mlx.ir.core import Func
from metile_mlx.target import EMULATOR
from metile_mlx.verify import examine
from metile_mlx.verify.resources import check_resources
from tests.mutation.corpus import Program, Snapshot
from tests.mutation.operators import OPERATORS, Mutant

# What passes raise when a program breaks what they need; the compilation fails, as it should.
_REFUSED = (AssertionError, IndexError, KeyError, TypeError, ValueError)
# The verifiers that look at more programs when asked in full.
_LONGER = ("communication", "meaning", "lowering")


@dataclass(frozen=True)
class Trial:
    """One mutant of one program after one pass.

    Attributes:
        program, snapshot: what was damaged.
        operator: how, by name.
        number: tells apart the mutants of one operator and snapshot.
        mutant: the result.
    """

    program: Program
    snapshot: Snapshot
    operator: str
    number: int
    mutant: Mutant

    def __str__(self) -> str:
        where = f"{self.program.name}, after {self.snapshot.name}"
        return f"{self.operator} #{self.number} in {where}: {self.mutant.how}"


def trials(programs: Sequence[Program]) -> Iterator[Trial]:
    """Every mutant: each operator at each place of each program after each pass."""
    for program in programs:
        for snapshot in program.snapshots:
            for name, operator in OPERATORS.items():
                for number, mutant in enumerate(operator(snapshot.func)):
                    yield Trial(program, snapshot, name, number, mutant)


def rejected(trial: Trial, full: bool = True) -> str | None:
    """The verifier that rejects a mutant where it was made; None: they accept it."""
    snapshot = trial.snapshot
    return _asked(trial.mutant.func, snapshot.stage, trial.program, snapshot.before, full)


def by_default(trial: Trial, by: str) -> bool:
    """Whether a mutant that the verifier `by` rejects falls without METILE_VERIFY=full too, there
    or after one of the passes that follow."""
    if by not in _LONGER or rejected(trial, full=False) is not None:
        return True
    return finished(trial, full=False)[0] is None


def _asked(func: Func, stage: Stage, program: Program, before: Func, full: bool) -> str | None:
    try:
        properties = examine(func, stage, before, EMULATOR, full)
    except CompileError:
        # A race on declared memory, which the user hears of.
        return "order"
    found = [name for name, findings in properties.items() if findings]
    if not found and stage >= Stage.PLANNED:
        try:
            check_resources(func, program.context())
        except OutOfResources:
            found = ["resources"]
    # Where several do, the first one would have been enough.
    return found[0] if found else None


def finished(trial: Trial, full: bool = True) -> tuple[Func | None, str]:
    """The mutant after the passes that follow, or None and who stopped it on the way."""
    func, ctx = trial.mutant.func, trial.program.context()
    for step in STEPS[trial.snapshot.step + 1 :]:
        before = func
        try:
            func = step.run(func, ctx)
        except (MetileError, *_REFUSED) as error:
            return None, f"{step.name}: {type(error).__name__}"
        if func is not before:
            by = _asked(func, step.stage, trial.program, before, full)
            if by is not None:
                return None, by
    return func, ""
