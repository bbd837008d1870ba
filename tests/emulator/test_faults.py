"""Faults planted in hand-written MSL: each is found, with its thread and index, and alone."""

from __future__ import annotations

import mlx.core as mx
import pytest

from metile_mlx.emulator import Access, Fault, Finding, Thread
from tests.emulator.support import check

X64 = mx.arange(64).astype(mx.float32)
IDS = "uint i = thread_position_in_grid.x, t = thread_index_in_threadgroup;\n"


def only(report: object) -> Finding:
    """The single finding of a report."""
    (finding,) = report.findings  # type: ignore[attr-defined]
    assert isinstance(finding, Finding)
    return finding


def test_a_missing_publication_barrier_is_a_race() -> None:
    """F43: thread 0 reads what thread 63 writes."""
    source = IDS + "threadgroup float s[64];\ns[t] = x[i];\ny[i] = s[63 - t];"
    report, _ = check(source, {"x": X64}, (64,))
    race = only(report)
    # Simdgroup 0 runs first: what it reads of simdgroup 1's part is written too late.
    assert (race.fault, race.array) == (Fault.RACE, "s")
    assert {race.access, race.other_access} == {Access.READ, Access.WRITE}
    assert race.thread is not None
    assert race.other is not None
    reader, writer = (
        (race.thread, race.other) if race.access is Access.READ else (race.other, race.thread)
    )
    assert (reader.index, writer.index) == (63 - race.index, race.index)
