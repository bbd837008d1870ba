"""Runs MSL text on the CPU, thread by thread, under a checker for races and bounds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from metile_mlx.emulator import results
from metile_mlx.emulator.front import FrontResult, examine, require
from metile_mlx.emulator.front_rules import FrontFinding
from metile_mlx.emulator.kernel import EmulatedKernel, metal_kernel, options
from metile_mlx.emulator.measure import fiber_switches
from metile_mlx.emulator.patch import patched
from metile_mlx.emulator.report import Access, EmulatorError, Fault, Finding, Report, Thread
from metile_mlx.emulator.results import completed_runs, take
from metile_mlx.emulator.toolchain import available

__all__ = [
    "Access",
    "EmulatedKernel",
    "EmulatorError",
    "Fault",
    "Finding",
    "FrontFinding",
    "FrontResult",
    "Report",
    "Thread",
    "available",
    "checked",
    "completed_runs",
    "examine",
    "fiber_switches",
    "metal_kernel",
    "options",
    "patched",
    "require",
    "take",
]


@contextlib.contextmanager
def checked(schedules: int = 1) -> Iterator[None]:
    """Kernels called inside the block run under the checker.

    Args:
        schedules: orders of the threads to try; from 2 on, results are compared between them.

    Raises:
        EmulatorError: on leaving the block, where a kernel that ran has faults. What was not
            evaluated inside the block has not run.
    """
    with results.raising(), options(checked=True, schedules=schedules):
        yield
