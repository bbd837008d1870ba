"""Random tile programs as MSL in the emulator mean what the reference says (SPEC X1, X5)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metile_mlx.compiler import compile_kernel
from metile_mlx.context import Context, Schedule
from metile_mlx.emulator import build
from metile_mlx.ir.core import Func
from metile_mlx.ir.types import PointerType
from metile_mlx.runtime.backend import Output, Request
from metile_mlx.target import EMULATOR
from tests.passes.test_random_programs import NUMBERS, PROGRAMS, Random, programs
from tests.support import emulated
from tests.support.profile import count

pytestmark = pytest.mark.emulator

RNG = np.random.default_rng(0)
ARRAYS = {
    "ints": mx.array(RNG.integers(-100, 100, 300).astype(np.int32)),
    "table": mx.array(RNG.standard_normal(8 * 13).astype(np.float32)),
}


def launch_of(made: tuple[Random, Func], n: int, index_bits: int, rows: int) -> emulated.Launch:
    """The program over PROGRAMS threadgroups."""
    program, func = made
    arrays = [param.name for param in func.params if isinstance(param.type, PointerType)]
    inputs = tuple(name for name in arrays if name not in program.outputs)
    shape = (PROGRAMS, program.size)
    request = Request(
        func,
        compile_kernel(func, Context(EMULATOR, index_bits=index_bits)),
        inputs,
        tuple(tuple(ARRAYS[name].shape) for name in inputs),
        tuple(Output(name, shape, dtype, "stored") for name, dtype in program.outputs.items()),
        {"n": n, "rows": rows},
        (PROGRAMS, 1, 1),
        None,
    )
    return emulated.Launch(request, {name: ARRAYS[name] for name in inputs}, Schedule())


def test_random_programs_are_race_free_and_agree_with_the_reference() -> None:
    """Collected first and built together: a compiler run for each would take minutes."""
    launches: list[emulated.Launch] = []

    @settings(max_examples=count(ci=100, full=3000), database=None)
    @given(programs(), st.sampled_from(NUMBERS), st.sampled_from([32, 64]), st.integers(0, 8))
    def collect(made: tuple[Random, Func], n: int, index_bits: int, rows: int) -> None:
        launches.append(launch_of(made, n, index_bits, rows))

    collect()
    recorded = [launch.recorded() for launch in launches]
    build.prebuild([(kernel.name, kernel.text) for kernel in recorded], checked=True)
    for launch, kernel in zip(launches, recorded, strict=True):
        faults = emulated.examine(launch, kernel.text)
        assert not faults, faults[0]
