"""Random programs of loops, reductions and lanes mean the same everywhere (K5, K6, F43, F58).

The reference evaluates the program after each tile pass, the simulator (with its race checker) the
per-thread program before and after the clean-up, the CPU runs the emitted C++, and the emulator,
under the checker, the emitted MSL. Every value is exact, so all agree bit for bit.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx.compiler import STEPS
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.emit.cpp import emit_cpp
from metile_mlx.emit.msl import emit_msl
from metile_mlx.emit.source import KernelSource
from metile_mlx.emulator import build
from metile_mlx.errors import UnsupportedError
from metile_mlx.ir.core import Func
from metile_mlx.ir.printer import print_func
from metile_mlx.runtime import cpu
from metile_mlx.runtime.backend import Output, Request
from metile_mlx.runtime.reference import evaluate
from metile_mlx.target import EMULATOR
from metile_mlx.verify import verify
from tests.support import emulated, simulate, verified
from tests.support.arithmetic import Array
from tests.support.memory import SimulationError
from tests.support.mutate import drop_barrier, without_barrier
from tests.support.profile import count
from tests.support.random_loops import PROGRAMS, RandomLoops, random_loops
from tests.support.simulated_metal import to_numpy

BATCH = 45
GRID = (PROGRAMS, 1, 1)
TOTAL = count(ci=45, full=4000)


@dataclass
class Case:
    """A program, what it computes, and its texts."""

    seed: int
    made: RandomLoops
    expected: dict[str, Array]
    cpp: KernelSource
    msl: KernelSource

    def launch(self) -> emulated.Launch:
        return launch_of(self.made, self.msl)

    def compiled(self, kernel: cpu.CpuKernel) -> dict[str, Array]:
        scalars = [self.made.scalars[a.param] for a in self.cpp.inputs if a.is_scalar]
        given = inputs_of(self.made)
        inputs = [given[a.param] for a in self.cpp.inputs if not a.is_scalar]
        names = [argument.param for argument in self.cpp.outputs]
        shapes, dtypes = zip(*(self.made.outputs[name] for name in names), strict=True)
        init = [cpu.INIT_ZERO] * len(names)
        found = kernel.launch(inputs, scalars, list(shapes), list(dtypes), GRID, init)
        mx.eval(*found)
        return {name: to_numpy(array) for name, array in zip(names, found, strict=True)}


def inputs_of(made: RandomLoops) -> dict[str, mx.array]:
    return {name: mx.array(data) for name, data in made.arrays.items()}


def launch_of(made: RandomLoops, msl: KernelSource) -> emulated.Launch:
    """Of one of its texts, in the emulator."""
    assert made.func is not None
    request = Request(
        made.func,
        msl,
        tuple(made.arrays),
        tuple(data.shape for data in made.arrays.values()),
        tuple(Output(n, *out, "zero") for n, out in made.outputs.items()),
        dict(made.scalars),
        GRID,
        None,
    )
    return emulated.Launch(request, inputs_of(made), Schedule())


def reference(made: RandomLoops, func: Func) -> dict[str, Array]:
    found = evaluate(func, inputs_of(made), made.scalars, made.outputs, GRID)
    mx.eval(*found.values())
    return {name: to_numpy(array) for name, array in found.items()}


def simulated(made: RandomLoops, func: Func) -> dict[str, Array]:
    dtypes = {"f32": np.float32, "i32": np.int32}
    empty = {n: np.zeros(shape, dtypes[str(d)]) for n, (shape, d) in made.outputs.items()}
    found, written = simulate.run(func, {**made.arrays, **empty}, made.scalars, GRID)
    # What no thread stores is zero on every backend (SPEC K7).
    return {n: np.where(written[n], found[n], np.zeros((), found[n].dtype)) for n in empty}


def check(expected: dict[str, Array], found: dict[str, Array], what: str, seed: int) -> None:
    for name, data in found.items():
        same = np.array_equal(expected[name].view(np.uint32), data.view(np.uint32))
        assert same, f"{what}: {name} differs; seed {seed}\n{print_func(random_loops(seed).func)}"


def compile_all(seed: int) -> Case:
    """The program after each pass, verified and run; then its texts."""
    made = random_loops(seed)
    assert made.func is not None
    ctx = Context(EMULATOR, index_bits=32 if seed % 2 else 64)
    expected: dict[str, Array] = {}
    func = made.func
    verify(func, Stage.TILE, ctx)
    evaluates = not made.by_program
    if evaluates:
        expected = reference(made, func)
    else:
        # SPEC X5: the loop is named, unless no program comes to it.
        with suppress(UnsupportedError):
            expected = reference(made, func)
    for step in STEPS:
        before, func = func, step.run(func, ctx)
        if func is before:
            continue
        verify(func, step.stage, ctx, before)
        if step.stage is Stage.THREAD:
            found = simulated(made, func)
            expected = expected or found
            check(expected, found, step.run.__name__, seed)
        elif step.stage < Stage.THREAD and evaluates:
            check(expected, reference(made, func), step.run.__name__, seed)
    return Case(seed, made, expected, emit_cpp(func, ctx), emit_msl(func, ctx))


@pytest.mark.emulator
@pytest.mark.parametrize("start", range(0, TOTAL, BATCH))
def test_random_programs_of_loops_and_branches(start: int) -> None:
    cases = [compile_all(seed) for seed in range(start, min(start + BATCH, TOTAL))]
    kernels = cpu.build_many([case.cpp for case in cases])
    for case, kernel in zip(cases, kernels, strict=True):
        check(case.expected, case.compiled(kernel), "cpu", case.seed)
    emulate(cases)


def emulate(cases: list[Case]) -> None:
    """The MSL that MLX generates, in several orders of threads, under the checker."""
    launches = [case.launch() for case in cases]
    recorded = [launch.recorded() for launch in launches]
    build.prebuild([(kernel.name, kernel.text) for kernel in recorded], checked=True)
    for case, launch in zip(cases, launches, strict=True):
        made, wrong = emulated.run_checked(launch)
        assert not wrong, f"seed {case.seed}: {wrong}"
        found = zip(case.made.outputs, map(to_numpy, made), strict=True)
        check(case.expected, dict(found), "emulator", case.seed)


@pytest.mark.emulator
@pytest.mark.faulty
def test_f43_a_removed_barrier_is_reported_wherever_it_stood() -> None:
    """By the verifier always. By the simulator where the program comes to both accesses, which it
    does not in a loop of one iteration; by the emulator too, but for a read that nobody uses, which
    clang leaves out."""
    launches, races = [], []
    for seed in range(count(ci=BATCH, full=400)):
        made, ctx = random_loops(seed), Context(EMULATOR, index_bits=32 if seed % 2 else 64)
        func = made.func
        assert func is not None
        for step in STEPS:
            func = step.run(func, ctx)
        msl = emit_msl(func, ctx)
        for number, mutant in enumerate(drop_barrier(func)):
            verified.rejected(mutant.func, Stage.THREAD, target=EMULATOR)
            try:
                simulated(made, mutant.func)
                races.append(False)
            except SimulationError as error:
                races.append("race" in str(error))
            launches.append(launch_of(made, without_barrier(msl, number)))
    texts = [launch.recorded() for launch in launches]
    build.prebuild([(kernel.name, kernel.text) for kernel in texts], checked=True)
    found = []
    for launch, is_race in zip(launches, races, strict=True):
        _, wrong = emulated.run_checked(launch)
        found.append(any("data race" in each for each in wrong))
        assert found[-1] == bool(wrong)
        assert is_race or not wrong
    assert len(races) >= BATCH
    assert sum(races) >= 0.6 * len(races)
    assert sum(found) >= 0.9 * sum(races)


def test_the_sample_is_what_it_claims() -> None:
    """Loops in loops, branches, reductions of every kind in loops on one and on many simdgroups."""
    sample = [random_loops(seed) for seed in range(200)]
    assert sum(made.loops > 1 for made in sample) > 80
    assert sum(made.branches > 0 for made in sample) > 80
    assert sum(made.reductions_in_loops > 0 for made in sample) > 60
    assert sum(made.reductions_in_loops > 0 and made.size > 32 for made in sample) > 40
    assert sum(made.exchanges_in_loops > 0 for made in sample) > 40
    assert sum(made.by_program for made in sample) > 10
    kinds = ("whole sum", "whole max", "whole min", "axis", "argmax")
    for kind in kinds:
        assert sum(made.reduced[kind] > 0 for made in sample) > 10, kind
