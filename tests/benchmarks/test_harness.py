"""`benchmarks.harness`: statistics, alternation, and the check before any timing (SPEC B3)."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.harness import (
    Arm,
    Goal,
    WrongResult,
    calibrated,
    geometric_mean,
    measure,
    quantile,
    ratio,
    rotations,
    summarise,
)


def test_summary_of_known_times() -> None:
    found = summarise([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.median, found.q1, found.q3, found.least, found.samples) == (3, 2, 4, 1, 5)
    assert found.spread == pytest.approx(2 / 3)


def test_quartiles_lie_between_neighbours() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.25) == pytest.approx(1.75)
    assert quantile([7.0], 0.75) == 7.0


def test_one_outlier_moves_no_median() -> None:
    assert summarise([1.0] * 9 + [1000.0]).median == 1.0


def test_nothing_to_summarise_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        summarise([])


def test_geometric_mean_of_inverse_ratios_is_one() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([1.0, 8.0, 1.0]) == pytest.approx(2.0)
    for bad in ([], [1.0, 0.0], [1.0, -2.0]):
        with pytest.raises(ValueError, match="positive"):
            geometric_mean(bad)


def test_each_arm_goes_first_equally_often() -> None:
    orders = rotations(["a", "b", "c"], 6)
    assert [order[0] for order in orders] == ["a", "b", "c", "a", "b", "c"]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)


def accept(arm: Arm, result: Any) -> str | None:
    return None


def ticking(step: float) -> Callable[[], float]:
    """A clock that moves by `step` at each look."""
    ticks = itertools.count()
    return lambda: next(ticks) * step


def test_arms_alternate_after_check_and_warmup() -> None:
    order: list[str] = []
    arms = [Arm(name, lambda name=name: order.append(name)) for name in "ab"]  # type: ignore[misc]
    measure(arms, accept, rounds=4, warmup=1)
    assert "".join(order) == "ab" + "ab" + "abbaabba"


def test_time_is_of_one_unit_of_work() -> None:
    found = measure([Arm("a", list, repeats=4)], accept, rounds=3, warmup=0, clock=ticking(2.0))
    assert found["a"].median == 0.5


def test_what_an_arm_prepares_is_given_to_it_and_not_timed() -> None:
    """Before each run anew: the check's, the warm-up's and the timed ones."""
    now = [0.0]
    given: list[float] = []

    def prepare() -> float:
        now[0] += 100
        return now[0]

    def run(made: float) -> None:
        given.append(made)
        now[0] += 1

    arm = Arm("a", run, prepare=prepare)
    found = measure([arm], accept, rounds=2, warmup=1, clock=lambda: now[0])
    assert (found["a"].median, found["a"].least) == (1.0, 1.0)
    assert len(set(given)) == 4


def test_wrong_arm_is_refused_before_any_arm_is_timed() -> None:
    """F15: output is checked first, so that skipped work is no wonderful benchmark."""
    looks = itertools.count()
    runs: list[str] = []

    def clock() -> float:
        return float(next(looks))

    def run(name: str) -> Callable[[], str]:
        return lambda: runs.append(name) or name  # type: ignore[func-returns-value]

    arms = [Arm("right", run("right")), Arm("wrong", run("wrong"))]
    with pytest.raises(WrongResult, match="wrong: differs"):
        measure(
            arms, lambda arm, made: "differs" if made == "wrong" else None, rounds=2, clock=clock
        )
    assert runs == ["right", "wrong"]
    assert next(looks) == 0


def test_arms_need_different_names() -> None:
    with pytest.raises(ValueError, match="share a name"):
        measure([Arm("a", list), Arm("a", list)], accept, rounds=1)


def test_collector_is_off_while_timing_and_on_again_after_an_error() -> None:
    states: list[bool] = []

    def run() -> None:
        states.append(gc.isenabled())
        if len(states) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure([Arm("a", run)], accept, rounds=5, warmup=0)
    assert states == [True, False, False]
    assert gc.isenabled()


def test_ratio_below_one_means_the_first_is_faster() -> None:
    results = {"ours": summarise([1.0]), "theirs": summarise([4.0])}
    assert ratio(results, "ours", "theirs") == 0.25


def test_repeats_stay_within_bounds() -> None:
    assert calibrated(lambda: None, 10.0, most=7) == 7
    assert calibrated(lambda: sum(range(100_000)), 1e-9, most=7) == 1


@pytest.mark.parametrize(
    ("value", "met"), [(7.9, True), (8.0, True), (8.1, False), (math.nan, False)]
)
def test_goal_can_fail(value: float, met: bool) -> None:
    goal = Goal("call", value, 8.0, "us")
    assert goal.is_met is met
    assert goal.line().startswith("PASS" if met else "MISS")
    assert "(target <= 8 us)" in goal.line()
    assert goal.to_dict()["met"] is met
