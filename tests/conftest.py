"""Marks, profiles, the golden files, and an environment that no caller's setting can change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from tests.support import profile, timing

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"
DEVICES = {"metal": mx.metal.is_available, "cuda": mx.cuda.is_available}

profile.load()
for _name in [n for n in os.environ if n.startswith("METILE_")]:
    if _name not in (profile.VARIABLE, "METILE_CACHE_DIR"):
        del os.environ[_name]
# Thousands of generated kernels don't belong in the cache of whoever runs the tests.
os.environ.setdefault("METILE_CACHE_DIR", str(ROOT / "build" / "test-cache"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of a device that is not here; pytest's last line counts them."""
    absent = {mark for mark, is_available in DEVICES.items() if not is_available()}
    kept = [item for item in items if not absent & {mark.name for mark in item.iter_markers()}]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
        items[:] = kept


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if profile.name() != "full":
        return
    phases = [
        report
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport)
    ]
    if phases:
        terminalreporter.section("tests and seconds per file")
        for line in timing.table(timing.per_file(phases)):
            terminalreporter.line(line)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` equals `tests/golden/<name>`, or becomes it when updating."""
    update: bool = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"no {path}: run `python -m tests --update-golden`"
        assert text == path.read_text(encoding="utf-8")

    return check
