"""Marks, profiles, the golden files, and an environment that no caller's setting can change."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from tests.support import emulated, left_out, mlx_jit, profile, simulated_metal, timing, tried

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path(__file__).resolve().parent / "golden"
profile.load()
for _name in [n for n in os.environ if n.startswith("METILE_")]:
    if _name not in (profile.VARIABLE, "METILE_CACHE_DIR"):
        del os.environ[_name]
# All that the suite compiles is verified in full.
os.environ["METILE_VERIFY"] = "full"
# Thousands of generated kernels don't belong in the cache of whoever runs the tests.
os.environ.setdefault("METILE_CACHE_DIR", str(ROOT / "build" / "test-cache"))
mlx_jit.redirect(ROOT / "build" / "test-mlx")
# Syntax trees and programs are many objects and few cycles: a sixth of Python's time went there.
gc.set_threshold(100_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """After -m and -k: what can't run on this machine is left out, and counted at the end."""
    LEFT_OUT.update(left_out.arrange(session, items))


LEFT_OUT: dict[str, int] = {}
COLLECTOR = emulated.Collector()
TALLY = emulated.Tally()


@pytest.fixture(scope="session", autouse=True)
def _collecting() -> Iterator[None]:
    """All launches of kernels are noted, and all Metal texts can run on a simulated device."""
    with emulated.collecting(COLLECTOR), simulated_metal.remembering():
        yield


@pytest.fixture(scope="module", autouse=True)
def _emulated(request: pytest.FixtureRequest) -> Iterator[None]:
    """When a test file is done, its kernels run as MSL under the checker."""
    yield
    if emulated.unavailable() is None:
        faults = emulated.run_all(COLLECTOR, TALLY, emulated.limit(request.path))
        assert not faults, "\n\n".join(faults)


@pytest.fixture(autouse=True)
def _faulty(request: pytest.FixtureRequest) -> Iterator[None]:
    """Kernels that are faulty on purpose are not noted."""
    COLLECTOR.on = request.node.get_closest_marker("faulty") is None
    yield
    COLLECTOR.on = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    tried.note_item(item.nodeid, getattr(item, "obj", None))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is there before the first test stays."""
    gc.collect()
    gc.freeze()


class Failures:
    """Says which test failed when it does, not only after hours."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            during = "" if report.when == "call" else f" ({report.when})"
            self._terminal.write(f"\nFAILED {report.nodeid}{during}\n", flush=True, red=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    # Processes of pytest-xdist have a terminal too, which nobody sees.
    if hasattr(session.config, "workerinput"):
        return
    mlx_jit.precompile()
    if terminal is not None:
        session.config.pluginmanager.register(Failures(terminal))


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["emulated"] = astuple(TALLY)
        output["left_out"] = LEFT_OUT
        output["tried"] = tried.CASES


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Of each process of pytest-xdist."""
    output = getattr(node, "workeroutput", {})
    TALLY.add(emulated.Tally(*output.get("emulated", ())))
    # Each collects all tests.
    LEFT_OUT.update(output.get("left_out", {}))
    tried.CASES.update(output.get("tried", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in left_out.lines(LEFT_OUT):
        terminalreporter.line(line)
    reason = emulated.unavailable()
    terminalreporter.line(f"no kernel was emulated: {reason}" if reason else str(TALLY))
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
        terminalreporter.section("cases tried, over all parameters of a test")
        ran = {report.nodeid for report in phases if report.when == "call"}
        for line in tried.table(tried.per_test(tried.CASES, ran)):
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
