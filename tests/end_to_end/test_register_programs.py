"""Random programs over register tiles mean the same at every stage and as compiled text (R1, R2).

The reference evaluates the program after each tile pass, the simulator (with its race checker) the
per-thread program before and after the clean-up, and the CPU runs the emitted C++. Every value is
exact, so all of them agree bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx.compiler import STEPS
from metile_mlx.context import Context, Stage
from metile_mlx.emit.cpp import emit_cpp
from metile_mlx.emit.msl import emit_msl
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir.core import Func
from metile_mlx.ir.printer import print_func
from metile_mlx.runtime import cpu
from metile_mlx.runtime.reference import evaluate
from metile_mlx.target import METAL
from metile_mlx.verify import verify
from tests.support import simulate
from tests.support.arithmetic import Array
from tests.support.profile import count
from tests.support.random_tiles import PROGRAMS, RandomTiles, random_tiles
from tests.support.simulated_metal import to_mlx, to_numpy

BATCH = 50
GRID = (PROGRAMS, 1, 1)


def stages(func: Func, ctx: Context) -> Iterator[tuple[str, Stage, Func]]:
    """The program before and after each pass, verified."""
    verify(func, Stage.TILE, ctx)
    yield "tile", Stage.TILE, func
    for step in STEPS:
        before, func = func, step.run(func, ctx)
        verify(func, step.stage, ctx, before)
        yield step.name, step.stage, func


def as_mlx(data: Array) -> mx.array:
    """The programs read floats only, bf16 as bits."""
    return to_mlx(data, mx.bfloat16 if data.dtype == np.uint16 else mx.float32)


def reference(made: RandomTiles, func: Func) -> dict[str, Array]:
    given = {name: as_mlx(data) for name, data in made.arrays.items()}
    found = evaluate(func, given, {}, made.outputs, GRID)
    mx.eval(*found.values())
    return {name: to_numpy(array) for name, array in found.items()}


def simulated(made: RandomTiles, func: Func, expected: dict[str, Array]) -> dict[str, Array]:
    found, written = simulate.run(func, {**made.arrays, **expected}, {}, GRID)
    # What no thread stores is zero on every backend (SPEC K7).
    return {n: np.where(written[n], found[n], np.zeros((), found[n].dtype)) for n in found}


def compiled(made: RandomTiles, source: KernelSource, kernel: cpu.CpuKernel) -> dict[str, Array]:
    inputs = [as_mlx(made.arrays[argument.param]) for argument in source.inputs]
    names = [argument.param for argument in source.outputs]
    shapes = [made.outputs[name][0] for name in names]
    dtypes = [made.outputs[name][1] for name in names]
    found = kernel.launch(inputs, [], shapes, dtypes, GRID, [cpu.INIT_ZERO] * len(names))
    mx.eval(*found)
    return {name: to_numpy(array) for name, array in zip(names, found, strict=True)}


def check(expected: dict[str, Array], found: dict[str, Array], what: str, seed: int) -> None:
    for name, data in expected.items():
        same = data.dtype == found[name].dtype and np.array_equal(
            data.view(np.uint8), found[name].view(np.uint8)
        )
        assert same, f"{what}: {name} differs; seed {seed}\n{print_func(random_tiles(seed).func)}"


TOTAL = count(ci=300, full=4000)


@pytest.mark.parametrize("start", range(0, TOTAL, BATCH))
def test_random_programs_over_register_tiles(start: int) -> None:
    seeds = range(start, min(start + BATCH, TOTAL))
    cases: list[tuple[int, RandomTiles, dict[str, Array], KernelSource]] = []
    for seed in seeds:
        made = random_tiles(seed)
        assert made.func is not None
        expected: dict[str, Array] = {}
        ctx = Context(METAL, index_bits=32 if seed % 2 else 64)
        for name, stage, func in stages(made.func, ctx):
            if stage < Stage.THREAD:
                found = reference(made, func)
                expected = expected or found
            else:
                found = simulated(made, func, expected)
            check(expected, found, name, seed)
        check_text(emit_msl(func, ctx))
        cases.append((seed, made, expected, emit_cpp(func, ctx)))
    kernels = cpu.build_many([source for *_, source in cases])
    for (seed, made, expected, source), kernel in zip(cases, kernels, strict=True):
        check(expected, compiled(made, source, kernel), "cpu", seed)


def check_text(source: KernelSource) -> None:
    """F64: a thread's values are names; only arguments and partials are ever indexed."""
    indexed = set(re.findall(r"(\w+)\[", source.body))
    arrays = {argument.name for argument in (*source.inputs, *source.outputs)}
    assert {name for name in indexed - arrays if not name.startswith("partials_")} == set()


def test_the_sample_is_what_it_claims() -> None:
    """Every number of registers, several sums in a row, one and many simdgroups, ragged extents."""
    sample = [random_tiles(seed) for seed in range(300)]
    registers = {made.layout.elements_per_thread for made in sample}
    assert registers == {1, 2, 4, 8, 16, 32}
    assert sum(made.sums > 0 for made in sample) > 150
    assert sum(made.sums > 1 for made in sample) > 50
    assert sum(made.extent % 32 != 0 for made in sample) > 100
    assert {made.layout.thread_count for made in sample} >= {32, 64, 128, 256}
