"""The whole: make mutants, ask the verifiers, run what they accept, sort what nobody rejects."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from metile_mlx.ir.core import Func
from tests.mutation import corpus, equivalence, execution, judge
from tests.mutation.execution import Text
from tests.mutation.judge import Trial
from tests.mutation.operators import OPERATORS

# Has most of the places, and any verifier of SSA rejects it.
SIMPLEST = "dominance broken"
CHECKER, RESULTS = "checker", "results"
MUTANTS, VERIFIED, EQUIVALENT = 5000, 0.9, 0.05


@dataclass
class Row:
    """What became of the mutants of one operator.

    Attributes:
        made: how many.
        verifiers: by the verifier that rejected them.
        by_default: how many of those fall without METILE_VERIFY=full.
        executed: by what told them from the program when run.
        equivalent: by the rule that says so.
        survived: that nobody told from the program, and no rule excuses.
    """

    made: int = 0
    verifiers: Counter[str] = field(default_factory=Counter)
    by_default: int = 0
    executed: Counter[str] = field(default_factory=Counter)
    equivalent: Counter[str] = field(default_factory=Counter)
    survived: list[str] = field(default_factory=list)

    def add(self, other: Row) -> None:
        self.made += other.made
        self.verifiers += other.verifiers
        self.by_default += other.by_default
        self.executed += other.executed
        self.equivalent += other.equivalent
        self.survived += other.survived


@dataclass
class Table:
    """One row per operator."""

    rows: dict[str, Row] = field(default_factory=lambda: {name: Row() for name in OPERATORS})

    def add(self, other: Table) -> None:
        for name, row in other.rows.items():
            self.rows[name].add(row)

    @property
    def total(self) -> Row:
        found = Row()
        for row in self.rows.values():
            found.add(row)
        return found

    def __str__(self) -> str:
        names = ["made", "verifiers", "checker", "results", "equivalent", "survived"]
        lines = [f"{'operator':<30}" + "".join(f"{name:>12}" for name in names)]
        for name, row in [*self.rows.items(), ("all", self.total)]:
            numbers = [
                row.made,
                row.verifiers.total(),
                row.executed[CHECKER],
                row.executed[RESULTS],
                row.equivalent.total(),
                len(row.survived),
            ]
            lines.append(f"{name:<30}" + "".join(f"{number:>12}" for number in numbers))
        total = self.total
        lines += _shares(total, "all")
        rest = Row()
        for name, row in self.rows.items():
            rest.add(row if name != SIMPLEST else Row())
        lines += _shares(rest, f"all but '{SIMPLEST}'")
        for title, counted in (
            ("rejected by the verifier of", total.verifiers),
            ("equivalent because", total.equivalent),
        ):
            if counted:
                parts = [f"{name} {count}" for name, count in counted.most_common()]
                lines.append(f"{title}: {', '.join(parts)}")
        return "\n".join(lines)


def _shares(row: Row, what: str) -> list[str]:
    """How much the verifiers reject: all of them, and those that are on by default."""
    if not row.made:
        return []
    return [
        f"of {what}, verifiers reject {row.verifiers.total() / row.made:.2%}; without what "
        f"METILE_VERIFY=full adds, {row.by_default / row.made:.2%}"
    ]


def verified(trials: Iterable[Trial]) -> tuple[Table, list[Trial]]:
    """What the verifiers say where each was made, and those that they accept."""
    table, accepted = Table(), []
    for trial in trials:
        row = table.rows[trial.operator]
        row.made += 1
        by = judge.rejected(trial)
        if by is None:
            accepted.append(trial)
        else:
            row.verifiers[by] += 1
            row.by_default += judge.by_default(trial, by)
    return table, accepted


def executed(accepted: Sequence[Trial]) -> Table:
    """What becomes of mutants that their verifier accepts: the next ones, the checker, results."""
    table = Table()
    ready: list[tuple[Trial, Func, Text, Text]] = []
    originals: dict[str, Text] = {}
    for trial in accepted:
        row, program = table.rows[trial.operator], trial.program
        func, by = judge.finished(trial)
        if func is None:
            row.verifiers[by] += 1
            row.by_default += judge.finished(trial, full=False)[0] is None
            continue
        if program.name not in originals:
            original = execution.text(program, program.snapshots[-1].func)
            assert isinstance(original, Text), (program.name, original)
            originals[program.name] = original
        made = execution.text(program, func)
        if isinstance(made, str):
            row.executed[CHECKER] += 1
            continue
        ready.append((trial, func, originals[program.name], made))
    execution.build_all([each for *_, one, other in ready for each in (one, other)])
    expected = {name: execution.run(original) for name, original in originals.items()}
    for trial, func, original, made in ready:
        _sort(table.rows[trial.operator], trial, func, original, made, expected)
    return table


def _sort(
    row: Row,
    trial: Trial,
    func: Func,
    original: Text,
    made: Text,
    expected: dict[str, execution.Outcome],
) -> None:
    """Run one and count it."""
    right = expected[trial.program.name]
    assert not right.finding, (trial.program.name, right.finding)
    same_text = made.statements == original.statements
    outcome = right if same_text else execution.run(made)
    if outcome.finding:
        row.executed[CHECKER] += 1
    elif outcome.bits != right.bits:
        row.executed[RESULTS] += 1
    else:
        rule = equivalence.rule(trial, same_text)
        if rule is None:
            row.survived.append(str(trial))
        else:
            row.equivalent[rule] += 1


def _share(names: Sequence[str]) -> Table:
    """The whole for some programs of the corpus."""
    programs = [program for program in corpus.corpus() if program.name in names]
    table, accepted = verified(judge.trials(programs))
    table.add(executed(accepted))
    return table


def run(workers: int = 2) -> Table:
    """The whole corpus, in several processes."""
    names = [program.name for program in corpus.corpus()]
    assert len(set(names)) == len(names)
    table = Table()
    # Spawned: MLX has threads, which a fork would lose.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(_share, [names[start::workers] for start in range(workers)]):
            table.add(part)
    return table


def faults(table: Table) -> list[str]:
    """What the suite has to hold and this run does not."""
    total = table.total
    by_verifiers = total.verifiers.total()
    found = []
    if total.made < MUTANTS:
        found.append(f"{total.made} mutants, expected at least {MUTANTS}")
    if by_verifiers < VERIFIED * total.made:
        found.append(f"verifiers reject {by_verifiers} of {total.made}, expected {VERIFIED:.0%}")
    if total.equivalent.total() > EQUIVALENT * total.made:
        found.append(
            f"{total.equivalent.total()} are equivalent, expected at most {EQUIVALENT:.0%}"
        )
    if total.survived:
        found.append(f"{len(total.survived)} survived")
    return found
