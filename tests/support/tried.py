"""How many cases each test tries: noted where it is decided, for the end of a `full` run."""

from __future__ import annotations

import linecache
import os
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from hypothesis import is_hypothesis_test

# By the test that runs, or by the constant of a file that several tests share.
CASES: dict[str, int] = {}


def note(count: int, caller: FrameType) -> None:
    """Remember a number for the running test, or for the constant that a module gives it to."""
    node = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if node:
        CASES[node] = CASES.get(node, 0) + count
        return
    line = linecache.getline(caller.f_code.co_filename, caller.f_lineno)
    name, assigned, _ = line.partition(" = ")
    # What a decorator takes belongs to the test below it: `note_item`.
    if assigned and name.isidentifier():
        # As pytest names it in a run from the root.
        file = Path(os.path.relpath(caller.f_code.co_filename)).as_posix()
        CASES[f"{file}::{name}"] = count


def note_item(nodeid: str, function: object) -> None:
    """Remember how many examples hypothesis draws for a test, if it is one of its own."""
    if is_hypothesis_test(function):
        settings = function._hypothesis_internal_use_settings  # type: ignore[attr-defined]
        CASES[nodeid] = CASES.get(nodeid, 0) + settings.max_examples


def per_test(cases: Mapping[str, int], ran: set[str]) -> list[tuple[str, int]]:
    """(test or constant, cases over all its parameters) of the files that ran, the largest first.

    Args:
        cases: as CASES.
        ran: ids of the tests that ran.
    """
    files = {node.partition("::")[0] for node in ran}
    found: dict[str, int] = {}
    for node, count in cases.items():
        if node.partition("::")[0] in files:
            name = node.partition("[")[0]
            found[name] = found.get(name, 0) + count
    return sorted(found.items(), key=lambda row: (-row[1], row[0]))


def table(rows: list[tuple[str, int]]) -> list[str]:
    """Lines of a table with a total."""
    rows = [*rows, ("total", sum(count for _, count in rows))]
    width = max(len(name) for name, _ in rows)
    head = f"{'test, or number that tests share':<{width}}  {'cases':>9}"
    return [head, *(f"{name:<{width}}  {count:>9}" for name, count in rows)]
