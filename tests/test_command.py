"""`python -m tests` runs all of its steps and fails when one of them fails."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest
from hypothesis import settings

from tests.__main__ import parse, run, steps
from tests.support import profile, timing


def exits(code: int) -> list[str]:
    return [sys.executable, "-c", f"import sys; sys.exit({code})"]


def test_a_failure_stops_no_later_step_and_fails_the_run(
    capfd: pytest.CaptureFixture[str],
) -> None:
    said = [sys.executable, "-c", "print('ran')"]
    assert run({"one": exits(3), "two": said}, "ci") == 1
    out = capfd.readouterr().out
    assert "\nran\n" in out
    assert "FAILED (3)" in out


def test_a_run_without_failure_succeeds(capfd: pytest.CaptureFixture[str]) -> None:
    assert run({"one": exits(0), "two": exits(0)}, "ci") == 0
    assert capfd.readouterr().out.count(" ok ") == 2


def test_steps_are_format_lint_types_tests_in_this_order() -> None:
    assert list(steps(parse([]))) == ["ruff format", "ruff check", "mypy", "pytest"]
    assert parse([]).profile == "ci"


def test_only_selects_tests_and_leaves_the_linters_out() -> None:
    chosen = steps(parse(["--only", "layout", "--update-golden", "-n", "0"]))
    assert list(chosen) == ["pytest"]
    assert chosen["pytest"][2:] == ["pytest", "--update-golden", "-k", "layout"]


def test_the_steps_see_the_chosen_profile(capfd: pytest.CaptureFixture[str]) -> None:
    shows = [sys.executable, "-c", f"import os; print(os.environ['{profile.VARIABLE}'])"]
    assert run({"one": shows}, "full") == 0
    assert "\nfull\n" in capfd.readouterr().out


def test_the_steps_keep_bytecode(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    shows = [sys.executable, "-c", "import sys; print('kept', not sys.dont_write_bytecode)"]
    assert run({"one": shows}, "ci") == 0
    assert "\nkept True\n" in capfd.readouterr().out


@pytest.mark.parametrize(("name", "expected"), [("dev", 50), ("ci", 300), ("full", 9000)])
def test_count_follows_the_profile(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: int
) -> None:
    monkeypatch.setenv(profile.VARIABLE, name)
    assert profile.count(ci=300, full=9000) == expected


def test_dev_tries_no_more_than_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profile.VARIABLE, "dev")
    assert profile.count(ci=7, full=9000) == 7


def test_an_unknown_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(profile.VARIABLE, "quick")
    with pytest.raises(ValueError, match=r"'quick'; expected one of dev, ci, full"):
        profile.name()


def test_hypothesis_runs_under_the_present_profile() -> None:
    assert settings().max_examples == profile.EXAMPLES[profile.name()]
    assert settings.get_profile("ci").derandomize
    assert settings.get_profile("ci").deadline is None


@dataclass
class Phase:
    nodeid: str
    duration: float


def test_table_counts_each_test_once_and_adds_its_phases() -> None:
    phases = [
        Phase("tests/a.py::one", 0.5),
        Phase("tests/a.py::one", 1.0),
        Phase("tests/b.py::two", 4.0),
        Phase("tests/a.py::three", 0.25),
    ]
    rows = timing.per_file(phases)
    assert rows == [("tests/b.py", 1, 4.0), ("tests/a.py", 2, 1.75)]
    assert timing.table(rows)[-1].split() == ["total", "3", "5.75"]
