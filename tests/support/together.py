"""Hypothesis for checks that are cheap together and dear alone, as those that run a compiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from random import Random
from typing import TypeVar

from hypothesis import HealthCheck, Phase, core, given, seed, settings
from hypothesis.strategies import SearchStrategy, integers

T = TypeVar("T")


def fresh_seed() -> int:
    """The same where the profile is derandomised, that of --hypothesis-seed, or a new one."""
    if settings().derandomize:
        return 0
    given_seed = core.global_force_seed
    return Random().getrandbits(32) if given_seed is None else int(given_seed)


def examples(strategy: SearchStrategy[T], wanted: int, number: int = 0) -> list[T]:
    """`wanted` different examples, the same ones for the same `number`."""
    return [example for _, example in _drawn(strategy, wanted, number)]


def check_together(
    strategy: SearchStrategy[T],
    check: Callable[[Sequence[T]], Sequence[str | None]],
    wanted: int,
    number: int,
) -> None:
    """All examples of a strategy in one call of `check`; only a failing one is shrunk, alone.

    Args:
        strategy: of examples whose repr says all there is to them.
        check: what is wrong with each example, or None.
        wanted: how many.
        number: decides which.

    Raises:
        AssertionError: with the smallest example found, and what is wrong with it.
    """
    drawn = _drawn(strategy, wanted, number)
    found = check([example for _, example in drawn])
    wrong = [(own, fault) for (own, _), fault in zip(drawn, found, strict=True) if fault]
    if not wrong:
        return
    own, fault = wrong[0]
    known: dict[str, str | None] = {}

    def alone(example: T) -> None:
        key = repr(example)
        if key not in known:
            [known[key]] = check([example])
        assert known[key] is None, f"seed {own}: {known[key]}"

    _run(strategy, alone, own)
    raise AssertionError(f"seed {own}, right when it was tried again: {fault}")


def _drawn(strategy: SearchStrategy[T], wanted: int, number: int) -> list[tuple[int, T]]:
    """The examples, each with its seed.

    One run of hypothesis would spend most of its examples on variations of few.
    """
    drawn: dict[str, tuple[int, T]] = {}
    for turn in count():
        assert turn < 100 * wanted, f"{len(drawn)} different examples, expected {wanted}"
        own = (number << 20) + turn
        made: list[T] = []
        _run(strategy, made.append, own)
        drawn.setdefault(repr(made[-1]), (own, made[-1]))
        if len(drawn) == wanted:
            break
    return list(drawn.values())


def _run(strategy: SearchStrategy[T], body: Callable[[T], None], own: int) -> None:
    @seed(own)
    @settings(
        max_examples=2,  # the simplest one is always the first
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        # All but the last, which tries what a failure does not depend on: nobody is told of it.
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow],
    )
    # The second differs from it in the first choice: this one, so that it is free in all others.
    @given(integers(0, 2**32), strategy)
    def test(_: int, example: T) -> None:
        body(example)

    test()
