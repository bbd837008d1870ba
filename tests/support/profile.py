"""How much a run tries: `dev` while working, `ci` on every change, `full` before a release."""

from __future__ import annotations

import os
import sys

from hypothesis import HealthCheck, settings

from tests.support import tried

VARIABLE = "METILE_TEST_PROFILE"
EXAMPLES = {"dev": 50, "ci": 500, "full": 5000}
PROFILES = tuple(EXAMPLES)


def name() -> str:
    """The profile of this run: the variable, else `dev`.

    Raises:
        ValueError: the variable names no profile.
    """
    chosen = os.environ.get(VARIABLE, "dev")
    if chosen not in EXAMPLES:
        raise ValueError(f"{VARIABLE}={chosen!r}; expected one of {', '.join(PROFILES)}")
    return chosen


def count(*, ci: int, full: int) -> int:
    """How many cases a test tries under the present profile; `dev` tries at most 50 of `ci`.

    For `@settings(max_examples=count(ci=100, full=20_000))`, for loops over random cases, and for a
    constant of the module. A `full` run ends with a table of these numbers.
    """
    chosen = {"dev": min(ci, EXAMPLES["dev"]), "ci": ci, "full": full}[name()]
    tried.note(chosen, sys._getframe(1))
    return chosen


def load() -> None:
    """Register the hypothesis profiles and load the present one; before any test is imported."""
    slow = [HealthCheck.too_slow]
    settings.register_profile("dev", max_examples=EXAMPLES["dev"], deadline=None)
    # Derandomised and without a database: the same commit gives the same answer on any machine.
    settings.register_profile(
        "ci",
        max_examples=EXAMPLES["ci"],
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=slow,
    )
    settings.register_profile(
        "full", max_examples=EXAMPLES["full"], deadline=None, suppress_health_check=slow
    )
    settings.load_profile(name())
