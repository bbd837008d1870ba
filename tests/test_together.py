"""Checks of many examples at once still shrink what fails (tests/support/together.py)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st

from tests.support.random_tiles import programs
from tests.support.together import check_together, examples

LISTS = st.lists(st.integers(0, 1000), max_size=8)


def test_examples_differ_and_are_the_same_each_time() -> None:
    first = examples(LISTS, 60, 7)
    assert len({repr(each) for each in first}) == len(first) == 60
    assert examples(LISTS, 60, 7) == first
    assert examples(LISTS, 60, 8) != first


def test_a_strategy_that_has_too_few_is_refused() -> None:
    with pytest.raises(AssertionError, match="different examples, expected 3"):
        examples(st.booleans(), 3)


def test_only_a_failure_is_checked_alone_and_then_shrunk() -> None:
    calls: list[int] = []

    def check(lists: Sequence[list[int]]) -> list[str | None]:
        calls.append(len(lists))
        return [f"{each} is too much" if sum(each) >= 100 else None for each in lists]

    check_together(st.lists(st.integers(0, 3)), check, 50, 0)
    assert calls == [50]
    with pytest.raises(AssertionError, match=r"^seed \d+: \[100\] is too much"):
        check_together(LISTS, check, 50, 3)
    assert calls[:2] == [50, 50]
    assert set(calls[2:]) == {1}


def test_a_fault_that_does_not_come_again_is_reported() -> None:
    seen: list[int] = []

    def check(lists: Sequence[list[int]]) -> list[str | None]:
        seen.append(len(lists))
        return ["flaky" if len(seen) == 1 and sum(each) > 100 else None for each in lists]

    with pytest.raises(AssertionError, match="flaky"):
        check_together(LISTS, check, 20, 0)


def test_a_register_program_shrinks_to_a_few_lines() -> None:
    """With its text in the message: the smallest program that has a sum."""

    def check(made: Sequence[object]) -> list[str | None]:
        return [f"{each!r}" if "tile.reduce" in repr(each) else None for each in made]

    with pytest.raises(AssertionError, match="kernel @kernel") as raised:
        check_together(programs(), check, 10, 0)
    text = str(raised.value)
    assert text.count("tile.reduce") == 1
    assert "elements_per_thread" not in text
    assert len(text.splitlines()) < 30
