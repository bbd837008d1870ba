"""What a run of the suite says while it runs and at its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import tried

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.profile import count

TOTAL = count(ci=3, full=7)

@settings(max_examples=count(ci=5, full=11))
@given(st.integers())
def test_drawn(n): pass

@pytest.mark.parametrize("k", [0, 1])
def test_counted(k): assert count(ci=10, full=20)

def test_wrong(): raise ValueError

@pytest.fixture
def broken():
    yield
    raise ValueError

def test_torn(broken): pass
"""


@pytest.mark.parametrize("options", [["-n", "2"], []], ids=["two processes", "one process"])
def test_failures_have_their_names_at_once_and_cases_are_counted(
    options: list[str], tmp_path: Path
) -> None:
    (tmp_path / "test_small.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "METILE_TEST_PROFILE": "full"}
    del environment["PYTEST_CURRENT_TEST"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    early, _, late = done.stdout.partition("= ERRORS =")
    lines = early.splitlines()
    assert lines.count("FAILED test_small.py::test_wrong") == 1
    assert lines.count("FAILED test_small.py::test_torn (teardown)") == 1
    assert sum("FAILED" in line for line in lines) == 2
    table = late.partition("cases tried")[2].splitlines()[1:]
    rows = [line.rsplit(None, 1) for line in table]
    assert rows[: rows.index(["total", "58"])] == [
        ["test, or number that tests share", "cases"],
        ["test_small.py::test_counted", "40"],
        ["test_small.py::test_drawn", "11"],
        ["test_small.py::TOTAL", "7"],
    ]


def test_numbers_of_files_that_did_not_run_are_left_out() -> None:
    cases = {"a.py::A": 3, "a.py::test[x]": 4, "a.py::test[y]": 5, "b.py::B": 6}
    assert tried.per_test(cases, {"a.py::other"}) == [("a.py::test", 9), ("a.py::A", 3)]
