"""What a machine can't run is counted; what is only not installed fails the run, once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The first runs kernels in the emulator; the second only rewrites texts for it.
FILES = ("tests/emulator/test_atomics.py", "tests/emulator/test_text.py")
ON_A_MAC = """
import os, sys, types
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems():
    sys.platform = "darwin"
    os.uname = lambda: types.SimpleNamespace(sysname="Darwin")

pytest_sessionfinish = pytest_collection_modifyitems
"""


def run(folder: Path, *options: str) -> tuple[int, str]:
    """Pytest where no compiler is on the path: exit status and output."""
    environment = {**os.environ, "PATH": str(folder), "CXX": "", "PYTHONPATH": f"{ROOT}:{folder}"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *FILES],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_missing_clang_is_one_failure_that_says_what_to_install(tmp_path: Path) -> None:
    code, text = run(tmp_path)
    assert code == 1
    assert re.search(
        r"1\d tests did not run. the emulator needs clang 16 or newer: none found\n", text
    )
    assert "hint: apt-get install clang-19" in text
    assert "or leave them out: -m 'not emulator'" in text
    assert re.search(r"^1 failed, \d\d passed, 1\d deselected", text, re.M)


def test_they_can_be_left_out(tmp_path: Path) -> None:
    """So every test that needs clang carries the mark."""
    code, text = run(tmp_path, "-m", "not emulator")
    assert code == 0
    assert re.search(r"^\d\d passed, 1\d deselected", text, re.M)


def test_another_platform_counts_what_it_leaves_out(tmp_path: Path) -> None:
    """With pytest-xdist too, whose last line counts nothing that its processes deselect."""
    (tmp_path / "on_a_mac.py").write_text(ON_A_MAC, encoding="utf-8")
    code, text = run(tmp_path, "-p", "on_a_mac", "-n", "2")
    assert code == 0
    assert re.search(
        "^left out: 1\\d tests marked emulator: the emulator runs on Linux$", text, re.M
    )
    assert re.search(r"^\d\d passed", text, re.M)
