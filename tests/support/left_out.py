"""Tests that can't run here: left out and counted, or one failure that says what to install.

Left out is what the platform or its devices can't do. What a package would bring is missing by
mistake, and a run that hid it would look complete.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from metile_mlx.runtime import cuda, cuda_compile, metal
from tests.support import emulated

# By mark: why its tests can't run here, or None.
REASONS: dict[str, Callable[[], str | None]] = {
    "metal": metal.available,
    "cuda": cuda.available,
    "nvcc": cuda_compile.available,
    "emulator": emulated.unavailable,
}


def is_a_mistake(mark: str) -> bool:
    """Whether this platform can run the tests, so that something is only not installed."""
    return mark == "emulator" and sys.platform == "linux"


class NotInstalled(pytest.Item):
    """Stands for all tests of a mark, and fails."""

    message: str

    def runtest(self) -> None:
        pytest.fail(self.message, pytrace=False)

    def reportinfo(self) -> tuple[str, None, str]:
        return "", None, self.name


def arrange(session: pytest.Session, items: list[pytest.Item]) -> dict[str, int]:
    """Take out of `items` what can't run here; how many tests of each mark that are left out.

    Tests that need what is not installed are replaced by one that fails.
    """
    reasons = {mark: reason for mark, why in REASONS.items() if (reason := why()) is not None}
    counts: dict[str, int] = {}
    kept = []
    for item in items:
        marks = [mark for mark in reasons if item.get_closest_marker(mark)]
        for mark in marks[:1]:
            counts[mark] = counts.get(mark, 0) + 1
        if not marks:
            kept.append(item)
    if len(kept) == len(items):
        return {}
    gone = set(items) - set(kept)
    session.config.hook.pytest_deselected(items=[item for item in items if item in gone])
    for mark in [mark for mark in counts if is_a_mistake(mark)]:
        kept.append(stand_in(session, mark, counts.pop(mark), reasons[mark]))
    items[:] = kept
    return counts


def stand_in(session: pytest.Session, mark: str, count: int, reason: str) -> NotInstalled:
    made: NotInstalled = NotInstalled.from_parent(session, name=f"needs the {mark}")
    made.message = f"{count} tests did not run. {reason}\nor leave them out: -m 'not {mark}'"
    return made


def lines(counts: Mapping[str, int]) -> Iterator[str]:
    """For the end of a run."""
    for mark, count in counts.items():
        reason = (REASONS[mark]() or "").partition("\n")[0]
        yield f"left out: {count} tests marked {mark}: {reason}"
