"""Random kernels over matrices mean the same everywhere (SPEC K6, P1-P4, F57, F58).

Results are whole numbers that every dtype on the way holds, so all runs agree bit for bit: MLX
operations, the simulator, emulated MSL in each way of staging under the race checker, and C++. What
a way of staging can't do is refused with a message of the user's kernel.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx import emulator
from metile_mlx.compiler import lower
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.dtypes import BY_NAME
from metile_mlx.emulator import build
from metile_mlx.errors import CompileError, MetileError, VerificationError
from metile_mlx.frontend.definition import Definition
from metile_mlx.target import METAL
from tests.support import emulated, simulate
from tests.support.arithmetic import Array
from tests.support.kernels import load_module, tile_ir
from tests.support.profile import count
from tests.support.public import DTYPES, compile_all
from tests.support.random_products import PROGRAMS, RandomProduct, random_products
from tests.support.together import check_together, examples

SCHEDULES = {
    "threadgroup": Schedule(staging="threadgroup"),
    "two slots": Schedule(staging="threadgroup", double_buffer=True),
    "device": Schedule(staging="device"),
}
TOTAL, BATCH = count(ci=8, full=2000), 8


@dataclass
class Run:
    """A kernel, its arguments, and what it computes."""

    made: RandomProduct
    kernel: metile.Kernel
    args: tuple[Any, ...]
    expected: list[Array]

    def prepare(self, backend: str, schedule: Schedule | None = None) -> metile.Dispatch | None:
        """A launch; None where the compiler says why there is none."""
        try:
            return self.kernel[(PROGRAMS,)].prepare(*self.args, backend=backend, schedule=schedule)
        except VerificationError:
            raise
        except CompileError:
            return None

    def differs(self, found: Sequence[mx.array], what: str) -> str | None:
        for name, expected, array in zip("CD", self.expected, found, strict=True):
            if not np.array_equal(expected, np.array(array)):
                return f"{what}: {name} differs"
        return None


def run(made: RandomProduct, folder: Path, number: int) -> Run:
    kernel: metile.Kernel = metile.kernel(load_module(folder, made.text, f"k{number}").k)
    rng = np.random.default_rng(number)
    m, n = made.extents
    a, b = (
        mx.array(rng.integers(-4, 5, (PROGRAMS, m, n)).astype(np.float32)).astype(
            DTYPES[made.dtype]
        )
        for _ in range(2)
    )
    outs = [metile.empty((PROGRAMS, *extents), mx.float32) for extents in made.outputs]
    args = (a, b, *outs, m, n, made.steps)
    found = kernel[(PROGRAMS,)](*args, backend="reference")
    return Run(made, kernel, args, [np.array(each) for each in found])


def check(programs: Sequence[RandomProduct]) -> list[str | None]:
    """What is wrong with each."""
    with tempfile.TemporaryDirectory() as name:
        runs = [run(made, Path(name), number) for number, made in enumerate(programs)]
        wrong: list[str | None] = [simulated(each) for each in runs]
        for backend, schedule, what in (
            *(("emulator", schedule, what) for what, schedule in SCHEDULES.items()),
            ("cpu", None, "cpu"),
        ):
            prepared = [each.prepare(backend, schedule) for each in runs]
            launched = [each for each in prepared if each is not None]
            if backend == "cpu":
                compile_all(launched)
            else:
                prebuild(runs, prepared)
            for at, (each, dispatch) in enumerate(zip(runs, prepared, strict=True)):
                if dispatch is not None and wrong[at] is None:
                    wrong[at] = launch(each, dispatch, what)
        return wrong


def prebuild(runs: Sequence[Run], prepared: Sequence[metile.Dispatch | None]) -> None:
    texts = {}
    for each, dispatch in zip(runs, prepared, strict=True):
        if dispatch is not None:
            made = emulated.make(dispatch, each.args[4:])
            assert made is not None
            recorded = made.recorded()
            texts[recorded.name, recorded.text] = None
    build.prebuild(list(texts), checked=True)


def launch(each: Run, dispatch: metile.Dispatch, what: str) -> str | None:
    emulator.take()
    with emulator.options(checked=True, schedules=2):
        found = dispatch(*each.args)
        mx.eval(found)
    report = emulator.take()
    return f"{what}: {report}" if report.findings else each.differs(found, what)


def simulated(each: Run) -> str | None:
    """The per-thread program on NumPy."""
    a, b, _, _, m, n, steps = each.args
    kinds = (f"{each.made.dtype}*",) * 2 + ("f32*",) * 2 + ("i32",) * 3
    func = tile_ir(each.kernel.definition, *kinds)
    try:
        made = lower(func, Context(METAL))
    except VerificationError:
        raise
    except CompileError:
        return None
    arrays = {name: simulated_array(x) for name, x in (("A", a), ("B", b))}
    for name, extents in zip("CD", each.made.outputs, strict=True):
        arrays[name] = np.full(PROGRAMS * extents[0] * extents[1], np.nan, np.float32)
    scalars = {"M": m, "N": n, "STEPS": steps}
    found, _ = simulate.run(made, arrays, scalars, (PROGRAMS,))
    for name, expected in zip("CD", each.expected, strict=True):
        if not np.array_equal(found[name].reshape(expected.shape), expected):
            return f"simulated: {name} differs"
    return None


def simulated_array(x: mx.array) -> Array:
    """As the simulator has it: bf16 by its bits."""
    held = x.view(mx.uint16) if x.dtype == mx.bfloat16 else x
    found: Array = np.array(held).reshape(-1)
    return found


@pytest.mark.emulator
@pytest.mark.parametrize("start", range(0, TOTAL, BATCH))
def test_random_products(start: int) -> None:
    check_together(random_products(), check, min(BATCH, TOTAL - start), start // BATCH)


def test_the_sample_is_what_it_claims() -> None:
    """Loops, sums along axes, products in branches, and few that are refused."""
    sample = examples(random_products(), 24)
    has = Counter(
        word
        for made in sample
        for word in ("tile_range", "axis=", "if ", "metile.cast(", "dot(")
        if word in made.text
    )
    assert has["tile_range"] > 8
    assert has["axis="] > 2
    assert has["if "] > 2
    assert has["dot("] == 24
    refused = 0
    with tempfile.TemporaryDirectory() as name:
        for number, made in enumerate(sample):
            kinds = (f"{made.dtype}*",) * 2 + ("f32*",) * 2 + ("i32",) * 3
            module = load_module(Path(name), made.text, f"k{number}")
            try:
                lower(tile_ir(Definition.of(module.k), *kinds), Context(METAL), Stage.OWNED)
            except MetileError:
                refused += 1
    assert refused < 8
    assert {made.dtype for made in sample} <= set(BY_NAME)
