"""A sample of the mutation suite, and that the suite itself would notice; the whole is a command:
`python -m tests.mutation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import pytest

from metile_mlx.compiler import STEPS
from metile_mlx.ir import metal, planned
from tests.mutation import corpus, equivalence, judge, suite
from tests.mutation.corpus import Program
from tests.mutation.editing import places, settled
from tests.mutation.judge import Trial
from tests.mutation.operators import OPERATORS, is_barrier
from tests.mutation.suite import CHECKER, RESULTS, Row, Table
from tests.support.profile import count

# Small ones that between them have all that there is to damage.
SAMPLED = (
    "mechanism: transpose by scratch, bool",
    "mechanism: transpose by shuffle, bf16",
    "mechanism: stores merged into an input",
    "sum: two in a row",
    "registers: any, 2 of 128, auto",
    "row: 4 adjacent, thirds",
    "sample: chain",
    "random conversions: 4",
)


@cache
def sampled() -> tuple[Program, ...]:
    found = tuple(program for program in corpus.corpus() if program.name in SAMPLED)
    assert len(found) == len(SAMPLED)
    return found


@cache
def sample() -> tuple[Trial, ...]:
    """Some mutants of each operator, evenly spread."""
    every: dict[str, list[Trial]] = {name: [] for name in OPERATORS}
    for trial in judge.trials(sampled()):
        every[trial.operator].append(trial)
    most = count(ci=60, full=10**9)
    return tuple(
        trial for found in every.values() for trial in found[:: max(1, len(found) // most)][:most]
    )


def test_a_sample_is_rejected_by_the_verifiers() -> None:
    """At least nine of ten, of every operator, without executing anything."""
    table, _ = suite.verified(sample())
    assert table.total.made >= 400
    for name, row in table.rows.items():
        assert row.made >= 10, name
        assert row.verifiers.total() >= 0.9 * row.made, name
    # Most are found by default, and not all.
    assert 0.8 * table.total.made <= table.total.by_default < table.total.verifiers.total()


def test_what_full_adds_is_not_counted_as_found_by_default() -> None:
    """Of those that fall to a verifier that reads more in full, some fall without it, too."""
    fallen: dict[tuple[str, bool], int] = Counter()
    for trial in sample():
        by = judge.rejected(trial)
        if by is not None:
            fallen[by, judge.by_default(trial, by)] += 1
    assert fallen["lowering", False] > 0
    assert fallen["structure", True] > 0
    assert all(fallen[by, False] == 0 for by in ("structure", "ownership", "order"))


@pytest.mark.emulator
@pytest.mark.faulty
def test_what_the_verifiers_accept_is_told_apart_or_equivalent_by_a_rule() -> None:
    table, accepted = suite.verified(sample())
    table.add(suite.executed(accepted))
    assert table.total.survived == []
    assert table.total.equivalent.total() <= suite.EQUIVALENT * table.total.made


def last_of(program: str, operator: str) -> Iterator[Trial]:
    """Mutants of the last program that passes leave."""
    (found,) = (each for each in sampled() if each.name == program)
    for trial in judge.trials([found]):
        if trial.operator == operator and trial.snapshot is found.snapshots[-1]:
            yield trial


@pytest.mark.emulator
@pytest.mark.faulty
def test_without_verifiers_the_checker_and_the_results_tell() -> None:
    """A race, a store that goes astray and a changed value, each accepted on purpose."""
    exchange, row = "mechanism: transpose by scratch, bool", "row: 4 adjacent, thirds"
    race = next(last_of(exchange, "barrier dropped"))
    slot = next(t for t in last_of(exchange, "slot changed") if t.mutant.how == "index flipped")
    masks = [t for t in last_of(row, "mask dropped") if "condition" not in t.mutant.how]
    table = suite.executed([race, slot, masks[-1]])
    assert table.rows["barrier dropped"] == Row(executed=Counter({CHECKER: 1}))
    assert table.rows["slot changed"] == Row(executed=Counter({RESULTS: 1}))
    assert table.rows["mask dropped"].executed.total() == 1
    assert table.total.survived == []
    assert suite.faults(table)


@pytest.mark.emulator
@pytest.mark.faulty
def test_a_rule_excuses_nothing_that_does_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last programs, what a rule calls equivalent has equal results in every order of
    threads, whatever the verifiers say of it; and without a rule it would have survived."""
    excused: dict[str, list[Trial]] = {}
    for program in sampled():
        for trial in judge.trials([program]):
            if trial.snapshot is program.snapshots[-1]:
                by = equivalence.rule(trial, same_text=False)
                excused.setdefault(by or "", []).append(trial)
    trials = [
        t
        for by, found in sorted(excused.items())
        if by
        for t in found[:: max(1, len(found) // 6)][:6]
    ]
    assert len(trials) >= 12, {by: len(found) for by, found in excused.items()}
    table = suite.executed(trials)
    assert table.total.equivalent.total() == len(trials), str(table)
    monkeypatch.setattr(equivalence, "RULES", {})
    table = suite.executed(trials[:1])
    assert table.total.survived == [str(trials[0])]


def test_rules_are_few() -> None:
    assert len(equivalence.RULES) + 1 <= 10


def test_every_barrier_is_one_to_the_operators() -> None:
    """They know it by what it has: a new kind of barrier is dropped and moved too."""
    found = {
        type(item)
        for program in sampled()
        for snapshot in program.snapshots
        for _, item, _ in places(snapshot.func)
        if is_barrier(item)
    }
    assert found == {planned.Barrier, metal.Barrier}


def test_each_pass_has_programs_that_it_changed() -> None:
    rest = [each for name in ("pipelines", "products") for each in corpus.SOURCES[name]()]
    changed = {snapshot.name for program in (*sampled(), *rest) for snapshot in program.snapshots}
    assert changed == {step.name for step in STEPS}


def test_types_that_are_right_are_left_as_they_are() -> None:
    for program in sampled():
        for snapshot in program.snapshots:
            assert settled(snapshot.func) is snapshot.func


def broken(**fields: object) -> Sequence[str]:
    """What the command says of a table with one row."""
    row = Row(made=10_000, verifiers=Counter({"structure": 9990}))
    for name, value in fields.items():
        setattr(row, name, value)
    return suite.faults(Table({"barrier dropped": row}))


def test_the_command_fails_where_its_numbers_do_not_hold() -> None:
    assert broken() == []
    assert broken(made=4999, verifiers=Counter({"structure": 4999})) == [
        "4999 mutants, expected at least 5000"
    ]
    assert broken(verifiers=Counter({"structure": 8999})) == [
        "verifiers reject 8999 of 10000, expected 90%"
    ]
    assert broken(equivalent=Counter({"two reads": 501})) == [
        "501 are equivalent, expected at most 5%"
    ]
    assert broken(survived=["one"]) == ["1 survived"]
