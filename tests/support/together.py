"""Hypothesis for checks that are cheap together and dear alone, as those that run a compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeVar

from hypothesis import HealthCheck, core, given, seed, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def fresh_seed() -> int:
    """The same where the profile is derandomised, that of --hypothesis-seed, or a new one."""
    if settings().derandomize:
        return 0
    given_seed = core.global_force_seed
    return Random().getrandbits(32) if given_seed is None else int(given_seed)


def examples(strategy: SearchStrategy[T], count: int, number: int = 0) -> list[T]:
    """`count` different examples, the same ones for the same number.

    Raises:
        AssertionError: the strategy has not that many.
    """
    drawn: dict[str, T] = {}

    def collect(example: T) -> None:
        drawn.setdefault(repr(example), example)

    _run(strategy, collect, count, number)
    assert len(drawn) >= count, f"{len(drawn)} different examples, expected {count}"
    return list(drawn.values())[:count]


def check_together(
    strategy: SearchStrategy[T],
    check: Callable[[Sequence[T]], Sequence[str | None]],
    count: int,
    number: int,
) -> None:
    """All examples of a strategy in one call of `check`; only a failing one is shrunk, alone.

    Args:
        strategy: of examples whose repr says all there is to them.
        check: what is wrong with each example, or None.
        count: examples.
        number: seeds hypothesis.

    Raises:
        AssertionError: with the smallest example found, and what is wrong with it.
    """
    drawn = examples(strategy, count, number)
    faults = dict(zip(map(repr, drawn), check(drawn), strict=True))
    wrong = [fault for fault in faults.values() if fault is not None]
    if not wrong:
        return

    def alone(example: T) -> None:
        key = repr(example)
        if key not in faults:
            [faults[key]] = check([example])
        assert faults[key] is None, f"seed {number}: {faults[key]}"

    # The same examples up to the failing one, then hypothesis makes it smaller.
    _run(strategy, alone, count, number)
    raise AssertionError(f"seed {number}, not shrunk: {wrong[0]}")


def _run(strategy: SearchStrategy[T], body: Callable[[T], None], count: int, number: int) -> None:
    @seed(number)
    @settings(
        max_examples=5 * count // 4 + 5,  # a part of them are repetitions
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(strategy)
    def test(example: T) -> None:
        body(example)

    test()
