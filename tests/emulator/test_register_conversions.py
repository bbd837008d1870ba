"""Register tiles that change owners, as MSL under the race checker (SPEC C6, F38, F43)."""

from __future__ import annotations

import mlx.core as mx
import pytest

from metile_mlx import emulator
from metile_mlx.emulator import build
from tests.end_to_end import test_register_conversions as conversions
from tests.support import emulated
from tests.support.profile import count
from tests.support.public import DTYPES, same_bits

BATCH = 100


@pytest.mark.emulator
@pytest.mark.parametrize("wish", conversions.WISHES)
def test_c6_each_lowering_is_race_free_and_moves_every_bit(wish: str) -> None:
    """504 pairs of each wish in the full profile, of all dtypes, in several orders of threads."""
    every = [case for dtype in DTYPES for case in conversions.cases(dtype)]
    cases = [case for case in every if case.conversion == wish]
    cases = cases[:: len(cases) // count(ci=3, full=len(cases))]
    for first in range(0, len(cases), BATCH):
        batch = cases[first : first + BATCH]
        dispatches = [case.prepare("emulator") for case in batch]
        with conversions.preferred(wish):
            launches = [emulated.make(dispatch, dispatch._values) for dispatch in dispatches]
            recorded = [launch.recorded() for launch in launches if launch is not None]
        assert len(recorded) == len(batch)
        build.prebuild([(kernel.name, kernel.text) for kernel in recorded], checked=True)
        before = emulator.completed_runs()
        with emulator.checked(schedules=3):
            made = [case.run(each) for case, each in zip(batch, dispatches, strict=True)]
            mx.eval(*made)
        assert emulator.completed_runs() == before + len(batch)
        for case, output in zip(batch, made, strict=True):
            assert same_bits(output, case.expected()), case
