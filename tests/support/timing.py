"""Tests and seconds of each file, for the end of a `full` run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Phase(Protocol):
    """What is read of pytest's `TestReport`: one for setup, call and teardown of each test."""

    @property
    def nodeid(self) -> str: ...

    @property
    def duration(self) -> float: ...


def per_file(phases: Iterable[Phase]) -> list[tuple[str, int, float]]:
    """(file, tests, seconds with setup and teardown), the slowest file first."""
    tests: dict[str, set[str]] = {}
    seconds: dict[str, float] = {}
    for phase in phases:
        file = phase.nodeid.split("::")[0]
        tests.setdefault(file, set()).add(phase.nodeid)
        seconds[file] = seconds.get(file, 0.0) + phase.duration
    return sorted(
        ((f, len(tests[f]), seconds[f]) for f in tests), key=lambda row: (-row[2], row[0])
    )


def table(rows: list[tuple[str, int, float]]) -> list[str]:
    """Lines of a table with a total."""
    total = ("total", sum(row[1] for row in rows), sum(row[2] for row in rows))
    width = max(len(row[0]) for row in [*rows, total])
    head = f"{'file':<{width}}  tests  seconds"
    return [head, *(f"{file:<{width}}  {n:>5}  {s:>7.2f}" for file, n, s in [*rows, total])]
