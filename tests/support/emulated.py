"""Every kernel the suite compiles, once more as the MSL that MLX generates, under the checker.

A hook on `Dispatch` remembers one launch of each text that a test file compiles for Metal or the
CPU. When the file is done they are built, many per compiler run, and run in the emulator on data of
our own; results must be the reference's, the checker must find nothing, the strict front no error.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from metile_mlx import emulator, testing
from metile_mlx.analysis.exact import exact_outputs
from metile_mlx.backends import BACKENDS
from metile_mlx.context import Schedule
from metile_mlx.dispatch import Dispatch
from metile_mlx.dtypes import MLX_NAMES
from metile_mlx.emulator import build
from metile_mlx.errors import CompileError, MetileError, OutOfResources, UnsupportedError
from metile_mlx.ir.core import walk
from metile_mlx.ir.matrix import Dot
from metile_mlx.ir.printer import print_func
from metile_mlx.ir.tile import Reduce
from metile_mlx.runtime import metal
from metile_mlx.runtime.autodiff import reference_launch
from metile_mlx.runtime.backend import Request, Scalar
from metile_mlx.runtime.backends import metal_inputs, metal_outputs, registered_source
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.runtime.record import CapturedKernel
from metile_mlx.target import CPU, EMULATOR
from tests.support import profile
from tests.support.public import DTYPES, payload

# Larger launches are left out, and counted.
MAX_ELEMENTS = 1 << 22
MAX_THREADS = 1 << 20
# Texts per test file and process: those whose launches hash lowest, so always the same ones.
LIMITS = {"dev": 20, "ci": 100, "full": 10**9}
# Fewer where texts repeat each other: the library has one for each dtype of each argument, and
# tests/kernels emulates by itself; tests/emulator runs all pairs of owners of the first.
FEWER = {
    "test_conversions_run": 0,
    "nn": 16,
    "patch": 16,
    "kernels": 40,
    "test_selftest": 40,
    "test_multiply": 0,
    "test_matmul": 3,
    "test_products": 6,
}
SCHEDULES = 2


@dataclass(frozen=True)
class Launch:
    """A launch to repeat.

    Attributes:
        request: for the emulator.
        arrays: our own inputs, by parameter.
        schedule: of the compilation.
        otherwise: the same launch elsewhere, where the reference can't run it.
    """

    request: Request
    arrays: Mapping[str, mx.array]
    schedule: Schedule
    otherwise: Callable[[list[mx.array]], Sequence[mx.array]] | None = None

    @property
    def threads(self) -> int:
        assert self.request.source is not None
        return math.prod(self.request.grid) * self.request.source.threads

    def recorded(self) -> CapturedKernel:
        """The kernel as MLX records it."""
        kernel = metal.build(registered_source(self.request), mx.fast.metal_kernel)
        outputs, zero = metal_outputs(self.request)
        return metal.record_msl(
            kernel,
            metal_inputs(self.request)(list(self.arrays.values())),
            [out.shape for out in outputs],
            [mlx_dtypes()[out.dtype] for out in outputs],
            self.request.grid,
            [metal.ZERO if zero else metal.UNINITIALISED] * len(outputs),
        )


@dataclass
class Tally:
    """What has been run so far."""

    kernels: int = 0
    without_threads: int = 0
    too_large: int = 0
    refused: int = 0
    left_out: int = 0
    seconds: float = field(default=0.0, compare=False)

    def add(self, other: Tally) -> None:
        self.kernels += other.kernels
        self.without_threads += other.without_threads
        self.too_large += other.too_large
        self.refused += other.refused
        self.left_out += other.left_out
        self.seconds += other.seconds

    def __str__(self) -> str:
        return (
            f"{self.kernels} kernels emulated under the checker in {self.seconds:.0f} s, "
            f"{self.without_threads} launches have no thread, {self.too_large} are too large, "
            f"{self.refused} are more than Metal takes, {self.left_out} are left out by the profile"
        )


@dataclass
class Collector:
    """The launches of one test file. `on` is False while a test launches faults on purpose."""

    on: bool = True
    found: dict[object, tuple[Dispatch, tuple[Scalar, ...]]] = field(default_factory=dict)

    def note(self, dispatch: Dispatch, scalars: tuple[Scalar, ...]) -> None:
        """One launch of each text and shape is enough."""
        if self.on and dispatch._backend.name in ("metal", "cpu", "emulator"):
            key = (
                id(dispatch._specialisation),
                dispatch._options.schedule,
                dispatch._options.math_mode,
                tuple(array.shape for array in dispatch._arrays),
            )
            self.found.setdefault(key, (dispatch, scalars))

    def take(self) -> list[tuple[Dispatch, tuple[Scalar, ...]]]:
        taken = list(self.found.values())
        self.found.clear()
        return taken


@contextmanager
def collecting(collector: Collector) -> Iterator[None]:
    """What is compiled or bound inside is noted, whether it is then launched or only read."""
    bind: Callable[..., Any] = Dispatch._bind
    prepare: Callable[..., None] = Dispatch.prepare

    def noting(self: Dispatch, scalars: tuple[Scalar, ...], key: tuple[object, ...]) -> Any:
        launch = bind(self, scalars, key)
        collector.note(self, scalars)
        return launch

    def preparing(self: Dispatch, scalars: tuple[Scalar, ...]) -> None:
        prepare(self, scalars)
        collector.note(self, scalars)

    hooked: Any = Dispatch
    hooked._bind, hooked.prepare = noting, preparing
    try:
        yield
    finally:
        hooked._bind, hooked.prepare = bind, prepare


def limit(path: Path) -> int:
    """How many texts of a test file are run."""
    most = LIMITS[profile.name()]
    is_full = profile.name() == "full"
    fewer = FEWER.get(path.stem, FEWER.get(path.parent.name, most))
    return most if is_full else min(most, fewer)


def run_all(collector: Collector, tally: Tally, most: int | None = None) -> list[str]:
    """Builds and runs what was collected, `most` texts or the profile's; one text per fault."""
    start = time.perf_counter()
    most = LIMITS[profile.name()] if most is None else most
    chosen: dict[tuple[str, str], tuple[Launch, str]] = {}
    taken = collector.take()
    if len(taken) > most:
        # A text takes as long to make as to run, so what is left out is not made either.
        taken.sort(key=place)
    for number, (dispatch, scalars) in enumerate(taken):
        if len(chosen) == most:
            tally.left_out += len(taken) - number
            break
        if 0 in dispatch.grid:
            tally.without_threads += 1
            continue
        try:
            launch = make(dispatch, scalars)
            captured = launch.recorded() if launch else None
        except OutOfResources:
            tally.refused += 1
            continue
        if launch is None or captured is None:
            tally.too_large += 1
            continue
        chosen.setdefault((captured.name, captured.text), (launch, captured.math_mode or "safe"))
    for mode in {mode for _, mode in chosen.values()}:
        texts = [key for key in chosen if chosen[key][1] == mode]
        # A text that is refused is built again, alone, and reported then.
        with suppress(CompileError):
            build.prebuild(texts, checked=True, math_mode=mode)
    faults = []
    for (_, text), (launch, _) in chosen.items():
        tally.kernels += 1
        faults += examine(launch, text)
    tally.seconds += time.perf_counter() - start
    return faults


def place(noted: tuple[Dispatch, tuple[Scalar, ...]]) -> bytes:
    """Where a launch stands among those of its file: at random, and always there."""
    dispatch, _ = noted
    shapes = [array.shape for array in dispatch._arrays]
    options = dispatch._options
    what = f"{print_func(dispatch._specialisation.func)}{shapes}{options.schedule}"
    return hashlib.sha256(f"{what}{options.math_mode}".encode()).digest()


def make(dispatch: Dispatch, scalars: tuple[Scalar, ...]) -> Launch | None:
    """The launch with inputs of our own; None where it is too large.

    Raises:
        OutOfResources: more buffers than Metal has, for example.
    """
    sizes = [math.prod(array.shape) for array in dispatch._arrays]
    if max(sizes, default=0) > MAX_ELEMENTS or math.prod(dispatch.grid) > MAX_THREADS // 32:
        return None
    # Here there may be no such stream, and a text is the same on any.
    request = replace(dispatch._request(scalars, EMULATOR), stream=None)
    only_moves = exact_outputs(request.func) >= {out.param for out in request.outputs}
    shapes = {array.name: (tuple(array.shape), array.dtype) for array in dispatch._inputs}
    arrays = {
        name: data(only_moves, *shapes[name], seed) for seed, name in enumerate(request.inputs)
    }

    def on_the_cpu(arrays: list[mx.array]) -> Sequence[mx.array]:
        return BACKENDS["cpu"].bind(dispatch._request(scalars, CPU))(arrays)

    launch = Launch(request, arrays, dispatch._options.schedule, on_the_cpu)
    return launch if launch.threads <= MAX_THREADS else None


def data(only_moves: bool, shape: tuple[int, ...], dtype: mx.Dtype, seed: int) -> mx.array:
    """Any bits where values only move, else moderate numbers."""
    name = MLX_NAMES[str(dtype).rpartition(".")[2]].name
    if only_moves and name in DTYPES:
        return payload(name, shape, seed)
    rng = np.random.default_rng(seed)
    if mx.issubdtype(dtype, mx.floating):
        return mx.array(rng.uniform(-4, 4, shape).astype(np.float32)).astype(dtype)
    lowest = 0 if mx.issubdtype(dtype, mx.unsignedinteger) or dtype == mx.bool_ else -50
    return mx.array(rng.integers(lowest, 50, shape).astype(np.int32)).astype(dtype)


class _Recorded(Exception):
    pass


def prebuild(launches: Iterable[Callable[[], object]]) -> None:
    """Builds what the functions launch on the emulator, many texts per compiler run, checked."""
    found: list[tuple[str, str]] = []

    def record(name: str, text: str, **_: object) -> None:
        found.append((name, text))
        raise _Recorded

    hooked: Any = build
    whole = hooked.build
    hooked.build = record
    try:
        for launch in launches:
            with suppress(_Recorded):
                launch()
                raise AssertionError("nothing was launched on the emulator")
    finally:
        hooked.build = whole
    build.prebuild(found, checked=True)


def examine(launch: Launch, text: str) -> list[str]:
    """What is wrong with a launch: the faults, then the text with line numbers."""
    request = launch.request
    arrays = list(launch.arrays.values())
    try:
        expected = reference_launch(request)(arrays)
    except UnsupportedError:
        # A loop whose bounds are no Python numbers.
        assert launch.otherwise is not None
        expected = launch.otherwise(arrays)
    try:
        made, wrong = run_checked(launch)
    except CompileError as error:
        return [f"{error}\n{build.numbered(text)}"]
    judge = testing._Judge(
        request, launch.arrays, launch.schedule, None, _absolute(request, expected)
    )
    compared = [
        judge.compare("emulator", position, made[position], expected[position])
        for position in range(len(expected))
    ]
    wrong = [*(str(each) for each in compared if each.difference), *wrong]
    return ["\n".join([*wrong, build.numbered(text)])] if wrong else []


def run_checked(launch: Launch) -> tuple[Sequence[mx.array], list[str]]:
    """What a launch writes in the emulator, and what the checker found.

    Raises:
        CompileError: its text is refused.
    """
    request = launch.request
    emulator.take()
    with emulator.options(checked=True, schedules=SCHEDULES):
        made = BACKENDS["emulator"].bind(request)(list(launch.arrays.values()))
        mx.eval(*made)
    report = emulator.take()
    wrong = [str(each) for each in report.findings]
    if report.launches != 1 and not any(0 in out.shape for out in request.outputs):
        wrong.append(f"{report.launches} launches ran, expected 1")
    return made, wrong


def _absolute(request: Request, expected: Sequence[mx.array]) -> float | None:
    """Where sums may cancel, 1e-5 of the largest value beside each dtype's own tolerance.

    The order of the additions is free, and what cancels keeps the error of what it came from.
    """
    if not any(isinstance(item, (Reduce, Dot)) for item in walk(request.func.body)):
        return None
    largest = 0.0
    for array in expected:
        if array.size and mx.issubdtype(array.dtype, mx.floating):
            values = np.abs(np.array(array.astype(mx.float32)))
            largest = max(largest, float(values[np.isfinite(values)].max(initial=0.0)))
    own = max(
        (testing.TOLERANCES[out.dtype][1] for out in request.outputs if out.dtype.is_float),
        default=0.0,
    )
    return own + 1e-5 * largest


def unavailable() -> str | None:
    """Why nothing can be emulated here, else None."""
    try:
        return emulator.available()
    except MetileError as error:
        return str(error)
