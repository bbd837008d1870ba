"""Random programs over register tiles mean the same at every stage and as compiled text (R1, R2).

The reference evaluates the program after each tile pass, the simulator (with its race checker) the
per-thread program before and after each later one, the CPU runs the emitted C++, and the emulator
the MSL under its checker. All of them agree bit for bit where values are exact. What a math
library, the order of a sum or a contraction may change agrees within the bound that
`inexact_tiles` states for each operation and dtype.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx.compiler import STEPS, lower
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.dtypes import bf16
from metile_mlx.emit.cpp import emit_cpp
from metile_mlx.emit.msl import emit_msl
from metile_mlx.emit.source import KernelSource
from metile_mlx.emulator import build
from metile_mlx.errors import CompileError
from metile_mlx.ir.arith import BinaryKind, CombineKind
from metile_mlx.ir.core import Func, walk
from metile_mlx.ir.tile import Binary, Reduce, Unary
from metile_mlx.runtime import cpu
from metile_mlx.runtime.backend import Output, Request
from metile_mlx.runtime.reference import evaluate
from metile_mlx.target import METAL
from metile_mlx.verify import verify
from tests.support import emulated, simulate
from tests.support.arithmetic import Array, to_f32
from tests.support.inexact_tiles import FUNCTIONS, InexactTiles
from tests.support.levels import cpu_level
from tests.support.profile import count
from tests.support.random_tiles import PROGRAMS, RandomTiles, programs
from tests.support.simulated_metal import to_mlx, to_numpy
from tests.support.together import check_together, examples, fresh_seed

T = TypeVar("T")

BATCH = 50
GRID = (PROGRAMS, 1, 1)
EXACT = count(ci=250, full=4000)
INEXACT = count(ci=50, full=1000)
ROUNDED = programs(InexactTiles)
ROUNDS = (Binary, Reduce, Unary)


@dataclass
class Trial:
    """A program on its way through the stages.

    Attributes:
        made: the program.
        fault: what is wrong with it, empty so far.
        expected: what the reference makes of it first, and all others have to.
        msl, cpp: its texts.
    """

    made: RandomTiles
    fault: str = ""
    expected: dict[str, Array] | None = None
    msl: KernelSource | None = None
    cpp: KernelSource | None = None

    def compile(self, ctx: Context) -> None:
        """Through all passes, comparing after each."""
        simulated: dict[str, Array] | None = None
        for name, stage, func in stages(self.made.func, ctx):
            if stage < Stage.THREAD:
                self.compare(name, reference(self.made, func))
                continue
            found = simulate_all(self.made, func, self.expected or {})
            self.compare(name, found)
            # Passes over one thread's values change no bit of them, rounded or not.
            for output, data in (simulated or {}).items():
                if not same_bits(data, found[output]):
                    self.fault += f"{name}: {output} differs from what it was before the pass\n"
            simulated = found
        self.msl, self.cpp = emit_msl(func, ctx), emit_cpp(func, ctx)
        self.fault += "".join(f"{name} is indexed in the MSL\n" for name in indexed(self.msl))

    def compare(self, what: str, found: dict[str, Array]) -> None:
        if self.expected is None:
            self.expected = found
        for name, data in self.expected.items():
            # Each of the two may be as far from the real number as the bound says.
            limit = 2 * self.made.errors.get(name, 0.0)
            difference = beyond(data, found[name], self.made.outputs[name][1] == bf16, limit)
            if difference:
                self.fault += f"{what}: {name}: {difference}\n"

    def launch(self) -> emulated.Launch:
        """For the emulator."""
        assert self.msl is not None
        inputs = tuple(self.made.arrays)
        request = Request(
            self.made.func,
            self.msl,
            inputs,
            tuple(self.made.arrays[name].shape for name in inputs),
            tuple(
                Output(name, shape, dtype, "zero" if name in self.made.masked else "stored")
                for name, (shape, dtype) in self.made.outputs.items()
            ),
            {},
            GRID,
            None,
        )
        return emulated.Launch(request, given(self.made), Schedule())


def stages(func: Func, ctx: Context) -> Iterator[tuple[str, Stage, Func]]:
    """The program before and after each pass, verified."""
    verify(func, Stage.TILE, ctx)
    yield "tile", Stage.TILE, func
    for step in STEPS:
        before, func = func, step.run(func, ctx)
        verify(func, step.stage, ctx, before)
        yield step.name, step.stage, func


def given(made: RandomTiles) -> dict[str, mx.array]:
    """The programs read floats only, bf16 as bits."""
    return {
        name: to_mlx(data, mx.bfloat16 if data.dtype == np.uint16 else mx.float32)
        for name, data in made.arrays.items()
    }


def reference(made: RandomTiles, func: Func) -> dict[str, Array]:
    found = evaluate(func, given(made), {}, made.outputs, GRID)
    mx.eval(*found.values())
    return {name: to_numpy(array) for name, array in found.items()}


def simulate_all(made: RandomTiles, func: Func, like: dict[str, Array]) -> dict[str, Array]:
    found, written = simulate.run(func, {**made.arrays, **like}, {}, GRID)
    # What no thread stores is zero on every backend (SPEC K7).
    return {n: np.where(written[n], found[n], np.zeros((), found[n].dtype)) for n in found}


def on_cpu(made: RandomTiles, source: KernelSource, kernel: cpu.CpuKernel) -> dict[str, Array]:
    arrays = given(made)
    names = [argument.param for argument in source.outputs]
    shapes = [made.outputs[name][0] for name in names]
    dtypes = [made.outputs[name][1] for name in names]
    inputs = [arrays[argument.param] for argument in source.inputs]
    found = kernel.launch(inputs, [], shapes, dtypes, GRID, [cpu.INIT_ZERO] * len(names))
    mx.eval(*found)
    return {name: to_numpy(array) for name, array in zip(names, found, strict=True)}


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and np.array_equal(a.view(np.uint8), b.view(np.uint8))


def beyond(expected: Array, found: Array, is_bf16: bool, limit: float) -> str:
    """How two results differ by more than `limit`; 0 compares bits."""
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return f"{found.dtype} {found.shape}, expected {expected.dtype} {expected.shape}"
    if limit == 0:
        wrong = expected.view(f"u{expected.itemsize}") != found.view(f"u{found.itemsize}")
    else:
        wide = [(to_f32(x, bf16) if is_bf16 else x).astype(np.float64) for x in (expected, found)]
        # Not `>`: a NaN is wrong.
        wrong = ~(np.abs(wide[0] - wide[1]) <= limit)
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} elements differ, first {at}: expected {expected[at]}, "
        f"found {found[at]}, allowed {limit:g}"
    )


def indexed(source: KernelSource) -> set[str]:
    """F64: a thread's values are names; only arguments and partials are ever indexed."""
    names = set(re.findall(r"(\w+)\[", source.body))
    arrays = {argument.name for argument in (*source.inputs, *source.outputs)}
    return {name for name in names - arrays if not name.startswith("partials_")}


def examine(made: Sequence[RandomTiles]) -> list[str | None]:
    """What is wrong with each program, after the program."""
    trials = [Trial(each) for each in made]
    for trial in trials:
        guarded(Trial.compile, trial, Context(METAL, index_bits=trial.made.index_bits))
    ready = [trial for trial in trials if trial.msl is not None]
    run_on_cpu(ready)
    if sys.platform == "linux":  # elsewhere there is no emulator
        emulate(ready)
    return [f"{trial.made!r}\n{trial.fault}" if trial.fault else None for trial in trials]


def guarded(step: Callable[[Trial, T], None], trial: Trial, argument: T) -> None:
    """An error is a fault of its program, not of the batch."""
    try:
        step(trial, argument)
    except Exception:
        trial.fault += traceback.format_exc()


def run_on_cpu(trials: Sequence[Trial]) -> None:
    # A text that is refused is built again, alone, and reported then.
    with suppress(CompileError):
        cpu.build_many([trial.cpp for trial in trials if trial.cpp])
    for trial in trials:
        assert trial.cpp is not None
        guarded(run_one_on_cpu, trial, trial.cpp)


def run_one_on_cpu(trial: Trial, source: KernelSource) -> None:
    trial.compare("cpu", on_cpu(trial.made, source, cpu.build(source)))


def emulate(trials: Sequence[Trial]) -> None:
    launches = [trial.launch() for trial in trials]
    recorded = [launch.recorded() for launch in launches]
    # A text that is refused is built again, alone, and reported then.
    with suppress(CompileError):
        build.prebuild([(kernel.name, kernel.text) for kernel in recorded], checked=True)
    for trial, launch in zip(trials, launches, strict=True):
        guarded(emulate_one, trial, launch)


def emulate_one(trial: Trial, launch: emulated.Launch) -> None:
    made, wrong = emulated.run_checked(launch)
    names = [out.param for out in launch.request.outputs]
    trial.compare("emulator", {n: to_numpy(x) for n, x in zip(names, made, strict=True)})
    trial.fault += "".join(f"emulator: {fault}\n" for fault in wrong)


@pytest.mark.parametrize("start", range(0, EXACT, BATCH))
def test_random_programs_over_register_tiles(start: int) -> None:
    with cpu_level(shipped=start == 0):
        check_together(programs(), examine, min(BATCH, EXACT - start), fresh_seed() + start)


@pytest.mark.parametrize("start", range(0, INEXACT, BATCH))
def test_random_programs_that_round(start: int) -> None:
    """Functions, quotients, powers and means, in f32 and through smaller floats."""
    check_together(ROUNDED, examine, min(BATCH, INEXACT - start), fresh_seed() + start)


def test_the_samples_are_what_they_claim() -> None:
    """Every number of registers, several sums in a row, one and many simdgroups, ragged extents."""
    sample = examples(programs(), 100)
    assert {made.layout.elements_per_thread for made in sample} == {1, 2, 4, 8, 16, 32}
    assert {made.layout.thread_count for made in sample} >= {32, 64, 128, 256}
    assert sum(made.sums > 0 for made in sample) > 30
    assert sum(made.sums > 1 for made in sample) > 5
    assert sum(any(along.extent > 1 for along in made.axes) for made in sample) > 30
    assert {along.kind for made in sample for along in made.axes} == set(CombineKind)
    assert sum(made.extent % 32 != 0 for made in sample) > 30
    assert sum(bool(made.masked) for made in sample) > 15
    rounded = examples(ROUNDED, 100)
    assert all(made.errors for made in rounded)
    kinds = {item.kind for m in rounded for item in walk(m.func.body) if isinstance(item, ROUNDS)}
    assert kinds >= {*FUNCTIONS, BinaryKind.DIV, BinaryKind.POW, CombineKind.SUM}


def test_the_bounds_tell_neighbours_apart() -> None:
    """A run whose elements are one place further is noticed wherever they are not all alike."""
    noticed = alike = 0
    for made in examples(ROUNDED, 40):
        found = reference(made, made.func)
        for name, error in made.errors.items():
            is_bf16 = made.outputs[name][1] == bf16
            moved = np.roll(found[name], 1, axis=1)
            alike += same_bits(moved, found[name])
            noticed += bool(beyond(found[name], moved, is_bf16, 2 * error))
            assert not beyond(found[name], found[name], is_bf16, 2 * error)
    assert noticed > 15
    assert alike < 30


@pytest.mark.emulator
def test_a_missing_barrier_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: in the emulated text alone; the other programs of the batch are right."""

    emit = emit_msl

    def without(func: Func, ctx: Context) -> KernelSource:
        source = emit(func, ctx)
        head, _, tail = source.body.partition("threadgroup_barrier(mem_flags::mem_threadgroup);")
        return replace(source, body=head + tail)

    made = examples(programs(), 8, number=1)
    monkeypatch.setattr(f"{__name__}.emit_msl", without)
    faults = examine(made)
    for each, fault in zip(made, faults, strict=True):
        text = emit(lower(each.func, Context(METAL)), Context(METAL)).body
        has_barrier = "threadgroup_barrier" in text
        assert has_barrier == (fault is not None)
        assert fault is None or "emulator: " in fault
    assert any(faults)
    assert not all(faults)
