"""The programs that are damaged: kernels of the library, mechanisms, samples, random programs.

Each has data of its own, chosen so that sums are exact in any order, and the program after every
pass of the compiler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_kernels import mechanisms, permutations
from metile_kernels.rmsnorm import rmsnorm_register, rmsnorm_register_gradients
from metile_mlx.compiler import STEPS
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.dtypes import DType
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir.core import Func
from metile_mlx.ir.types import PointerType
from metile_mlx.runtime.backend import Output, Request, Scalar
from metile_mlx.target import EMULATOR
from tests.end_to_end import test_conversions_run as conversions
from tests.end_to_end import test_sums as sums
from tests.support import products, register_layouts, samples
from tests.support import random_conversions as chains
from tests.support import random_loops as loops
from tests.support.arithmetic import Array
from tests.support.grouped import adjacent, row, striped
from tests.support.random_tiles import PROGRAMS, programs
from tests.support.together import examples


@dataclass(frozen=True)
class Snapshot:
    """The program after one pass.

    Attributes:
        step: position of the pass in the compiler's order.
        stage: what it leaves.
        before: the program it was given.
        func: what it made of it.
    """

    step: int
    stage: Stage
    before: Func
    func: Func

    @property
    def name(self) -> str:
        return STEPS[self.step].name


@dataclass(frozen=True)
class Program:
    """A valid program with what a launch of it needs.

    Attributes:
        name: for the report.
        func: at Stage.TILE.
        arrays: contents of what it reads, by parameter.
        outputs: what it writes.
        scalars: by parameter.
        grid: programs.
        schedule, index_bits, masked: of the compilation.
    """

    name: str
    func: Func
    arrays: Mapping[str, mx.array]
    outputs: tuple[Output, ...]
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    grid: tuple[int, int, int] = (1, 1, 1)
    schedule: Schedule = field(default_factory=Schedule)
    index_bits: int = 32
    masked: frozenset[str] = frozenset()

    def context(self) -> Context:
        """A fresh compilation."""
        return Context(EMULATOR, self.schedule, self.index_bits, self.masked)

    @cached_property
    def snapshots(self) -> tuple[Snapshot, ...]:
        """The program after each pass that changed it."""
        found, func, ctx = [], self.func, self.context()
        for position, step in enumerate(STEPS):
            before, func = func, step.run(func, ctx)
            if func is not before:
                found.append(Snapshot(position, step.stage, before, func))
        return tuple(found)

    def request(self, source: KernelSource) -> Request:
        """A launch of this text on the program's data."""
        return Request(
            self.func,
            source,
            tuple(self.arrays),
            tuple(tuple(array.shape) for array in self.arrays.values()),
            self.outputs,
            self.scalars,
            self.grid,
            None,
        )


def of_dispatch(name: str, dispatch: metile.Dispatch, summed: bool = False) -> Program:
    """A kernel of the public language on data of our own: small whole numbers where it sums."""
    outputs = dispatch._outputs(dispatch._values)
    key = dispatch._text_key(dispatch._values, EMULATOR, outputs)
    request = dispatch.reference_request()
    arrays = {a.name: (tuple(a.shape), a.dtype) for a in dispatch._inputs}
    return Program(
        name,
        request.func,
        {
            param: data(*arrays[param], seed, summed or param == "index")
            for seed, param in enumerate(request.inputs)
        },
        outputs,
        dict(request.scalars),
        request.grid,
        key.schedule,
        key.index_bits,
        key.masked_outputs,
    )


def data(shape: tuple[int, ...], dtype: mx.Dtype, seed: int, small: bool) -> mx.array:
    """Any finite numbers, all different as far as the dtype allows; or small whole ones."""
    size = math.prod(shape)
    rng = np.random.default_rng(seed)
    if dtype == mx.bool_:
        return mx.array(rng.integers(0, 2, shape).astype(bool))
    numbers = rng.permutation(size).reshape(shape) + 1
    if small:
        numbers = numbers % 8 + 1
    return mx.array(numbers.astype(np.int64)).astype(dtype)


def _kernel(
    kernel: metile.Kernel, grid: Sequence[int], *args: Any, **constexprs: Any
) -> metile.Dispatch:
    return kernel[tuple(grid)].prepare(*args, backend="reference", **constexprs)


def _mechanisms() -> Iterator[Program]:
    """Those that the selftest runs, each once or twice instead of for each dtype."""
    wanted = (
        "f16", "bf16", "bool", "masks", "merged", "grid", "integers", "gather", "exp", "round",
        "copy 4 adjacent a thread, 1009 columns, f16", "copy 4 adjacent a thread, 1024 columns",
        "copy 4 striped a thread, 1009 columns, bf16",
        "sum 4 striped a thread, 1009", "sum 8 adjacent a thread, 1024",
    )  # fmt: skip
    selftests: Any = mechanisms.SELFTESTS
    for name, make in selftests:
        skip = name.startswith(("copy 100", "round")) and not name.endswith("bf16")
        large = " a thread, " in name
        chosen = [w for w in wanted if w in name and (not large or " a thread, " in w)]
        if chosen and not skip:
            dispatch, *_ = make("reference")
            program = of_dispatch(f"mechanism: {name}", dispatch, "sum" in name)
            if "stop" in program.scalars:
                # So that the bound of the array cuts off something that the mask does not.
                program = replace(program, scalars={**program.scalars, "stop": 90})
            yield program


def _conversions() -> Iterator[Program]:
    """Owners of every kind: chains through one scratch, shuffles, forced scratch."""
    for dtype in ("f32", "bf16", "bool"):
        small = [case for case in conversions.cases(dtype) if case.size <= 128]
        for case in small[:6]:
            kind = case.kernel.definition.name
            name = f"conversion: {kind} of {case.size} {dtype}, {case.conversion}, {case.seed}"
            yield of_dispatch(name, case.prepare("reference"))


def _registers() -> Iterator[Program]:
    """Several elements a thread: each kind of pair of owners, by any means and by scratch."""
    rng = Random(6)
    dtypes = (mx.float32, mx.bfloat16, mx.bool_)
    for number, (kind, bits, registers, conversion) in enumerate(
        (kind, bits, registers, conversion)
        for kind in register_layouts.KINDS
        for bits, registers in ((7, 2), (8, 4))
        for conversion in ("auto", "scratch")
    ):
        a, b = register_layouts.pair(rng, bits, registers, kind)
        x = mx.zeros((2, 1 << bits), dtypes[number % 3])
        dispatch = conversions.straight[(2,)].prepare(
            x, metile.empty(x.shape, x.dtype), 2, SIZE=1 << bits, A=a, B=b, backend="reference",
            schedule=metile.Schedule(conversion=conversion),
        )  # fmt: skip
        yield of_dispatch(f"registers: {kind}, {registers} of {1 << bits}, {conversion}", dispatch)


def _sums() -> Iterator[Program]:
    x = mx.zeros((2, 500))
    for registers, near in ((1, False), (4, True), (2, False)):
        owner = sums.layout(512, registers, near)
        y = metile.empty((2,), mx.float32)
        dispatch = _kernel(sums.totals, (2,), x, y, N=500, LAYOUT=owner)
        yield of_dispatch(f"sum: {registers} of 512", dispatch, True)
    owner = sums.layout(256, 4)
    y = metile.empty((2, 250), mx.float32)
    dispatch = _kernel(sums.standardised, (2,), mx.zeros((2, 250)), y, N=250, LAYOUT=owner)
    yield of_dispatch("sum: two in a row", dispatch, True)


def _norms() -> Iterator[Program]:
    for width, dtype in ((31, mx.float16), (200, mx.float32)):
        x, w, y = mx.zeros((3, width), dtype), mx.zeros(width, dtype), metile.empty
        block = metile.next_power_of_2(max(width, 32))
        dispatch = _kernel(
            rmsnorm_register, (3,), x, w, y(x.shape, dtype), 1e-5, N=width, BLOCK=block
        )
        yield of_dispatch(f"kernel: rmsnorm of {width}", dispatch, True)
    rearranged: Any = permutations.SELFTESTS
    for name, make in rearranged:
        if name in ("two 8x8 transposes, 4 a thread, bf16", "Hadamard transform of 1024, f32"):
            dispatch, *_ = make("reference")
            yield of_dispatch(f"kernel: {name}", dispatch, True)
    x, w = mx.zeros((4, 60)), mx.zeros(60)
    dispatch = _kernel(
        rmsnorm_register_gradients, (2,), x, w, x, x, metile.empty(x.shape, x.dtype),
        metile.empty((2, 60), x.dtype), 1e-5, N=60, BLOCK=64, ROWS=2,
    )  # fmt: skip
    yield of_dispatch("kernel: gradient of rmsnorm", dispatch, True)


def _samples() -> Iterator[Program]:
    n = 100
    x, y = mx.zeros(n), metile.empty(n, mx.float32)
    of = samples.SAMPLES
    yield of_dispatch("sample: chain", _kernel(samples.chain, (2,), x, mx.zeros(n), n))
    dispatch = _kernel(samples.numbers, (2, 2), x, y, n, 0.5, POWER=1)
    yield of_dispatch("sample: numbers", dispatch)
    rows = mx.zeros((3, 128), mx.bfloat16)
    dispatch = _kernel(samples.turned, (3,), rows, metile.empty(rows.shape, rows.dtype), 3)
    yield of_dispatch("sample: permutation", dispatch)
    yield of_dispatch("sample: print", _kernel(samples.printed, (4,), x, y, n))
    square = metile.empty((3, 64), mx.int32)
    yield of_dispatch("sample: square", _kernel(samples.square, (1, 1, 3), square, 3))
    many = mx.zeros(1000)
    dispatch = _kernel(
        samples.centred,
        (2,),
        many,
        mx.zeros(1000),
        1000,
        LAYOUT=of["registers"].constexprs["LAYOUT"],
    )
    yield of_dispatch("sample: centred", dispatch, True)


def _lanes() -> Iterator[Program]:
    """Threadgroup memory and collectives of the user's own; what a loop leaves in it."""
    x, y = mx.zeros(64), metile.empty((64,), mx.float32)
    yield of_dispatch("lanes: passed on", _kernel(samples.passed_on, (1,), x, y, 5), True)
    yield of_dispatch("lanes: exchanged", _kernel(samples.exchanged, (1,), x, y, 64), True)


def _products() -> Iterator[Program]:
    """Products in a loop, of what each simdgroup loads, and without one, staged both ways."""
    m, n, k = 7, 20, 20
    a, b = mx.zeros((2, m, k), mx.bfloat16), mx.zeros((2, k, n), mx.bfloat16)
    dispatch = products.accumulated[products.grid(m, n, (8, 16), 2)].prepare(
        a, b, mx.zeros((2, m, n), a.dtype), 2, m, n, k, **products.constexprs((8, 16, 8)),
        backend="reference", schedule=metile.Schedule(staging="device"),
    )  # fmt: skip
    yield of_dispatch("product: device", dispatch, True)
    a, c = mx.zeros((2, 9, 14), mx.float16), metile.empty((2, 9, 9), mx.float32)
    for staging in ("threadgroup", "device"):
        dispatch = products.gram[(2,)].prepare(
            a, c, 2, 9, 14, 9 * 14, backend="reference", schedule=metile.Schedule(staging=staging)
        )
        yield of_dispatch(f"product: of one matrix, {staging}", dispatch, True)


def _rows() -> Iterator[Program]:
    """Neighbours behind guards, and indices that have to be compared when the kernel runs."""
    for how, layout, extent, thirds in (
        ("4 adjacent", adjacent(128), None, False),
        ("4 adjacent, thirds", adjacent(128, xor_mask=5), None, True),
        ("8 adjacent of 250", adjacent(256, 8), 250, False),
        ("4 striped", striped(128), None, False),
    ):
        func = row(layout, extent=extent, thirds=thirds).func()
        size = extent or 3 * layout.size - 3
        scalars: dict[str, Scalar] = {} if extent else {"n": size, "start": 5}
        yield Program(
            f"row: {how}",
            func,
            {"x": data((size,), mx.float32, 1, False)},
            (Output("y", (size,), metile.f32, "zero"),),
            scalars,
            (1 if extent else 3, 1, 1),
        )


def _random(count: int) -> Iterator[Program]:
    """Random programs over register tiles of few threads."""
    small = programs().filter(
        lambda made: made.layout.thread_count <= 128 and made.layout.elements_per_thread <= 8
    )
    for number, made in enumerate(examples(small, count)):
        dtypes = {name: dtype for name, (_, dtype) in made.views.items()}
        yield Program(
            f"random tiles: {number}",
            made.func,
            {name: _array(array, dtypes[name]) for name, array in made.arrays.items()},
            _zeroed(made.outputs),
            {},
            (PROGRAMS, 1, 1),
            index_bits=made.index_bits,
        )


def _chains(count: int) -> Iterator[Program]:
    """Random programs full of conversions: chains, diamonds, shared intermediates."""
    for seed in range(count):
        made, _ = chains.random_conversions(seed)
        arrays = {p.name: p.type.dtype for p in made.p.params if isinstance(p.type, PointerType)}
        yield Program(
            f"random conversions: {seed}",
            made.p.func(),
            {name: _array(array, arrays[name]) for name, array in made.arrays.items()},
            _zeroed(made.outputs),
            {},
            (chains.PROGRAMS, 1, 1),
        )


def _loops(count: int) -> Iterator[Program]:
    """Loops with runtime bounds: a kernel, and random programs with loops and branches."""
    x, y = mx.zeros(200), metile.empty((200,), mx.float32)
    yield of_dispatch("loops: sample", _kernel(samples.in_loops, (1,), x, y, 200), True)
    seeds = (seed for seed in range(1000) if loops.random_loops(seed).size <= 64)
    for seed in islice(seeds, count):
        made = loops.random_loops(seed)
        assert made.func is not None
        yield Program(
            f"loops: {seed}",
            made.func,
            {name: _array(array, metile.f32) for name, array in made.arrays.items()},
            _zeroed(made.outputs),
            dict(made.scalars),
            (loops.PROGRAMS, 1, 1),
        )


def _pipelines() -> Iterator[Program]:
    """Loops of products through threadgroup memory, with one slot and with two, ragged."""
    for double, dtype in ((True, mx.float32), (False, mx.bfloat16)):
        a, b = mx.zeros((20, 18), dtype), mx.zeros((18, 23), dtype)
        dispatch = samples.multiplied[(2, 2)].prepare(
            a, b, metile.empty((20, 23), dtype), 20, 23, 18, BM=16, BN=16, BK=8,
            backend="reference", schedule=metile.Schedule(double_buffer=double),
        )  # fmt: skip
        yield of_dispatch(f"pipeline: {1 + double} slots", dispatch, True)


def _zeroed(outputs: Mapping[str, tuple[tuple[int, ...], DType]]) -> tuple[Output, ...]:
    return tuple(Output(name, shape, dtype, "zero") for name, (shape, dtype) in outputs.items())


def _array(found: Array, dtype: DType) -> mx.array:
    return mx.array(found).view(mx.bfloat16) if dtype == metile.bf16 else mx.array(found)


SOURCES: dict[str, Callable[[], Iterator[Program]]] = {
    "mechanisms": _mechanisms,
    "conversions": _conversions,
    "registers": _registers,
    "sums": _sums,
    "kernels": _norms,
    "samples": _samples,
    "lanes": _lanes,
    "products": _products,
    "rows": _rows,
    "random tiles": lambda: _random(12),
    "loops": lambda: _loops(8),
    "pipelines": _pipelines,
    "random conversions": lambda: _chains(12),
}


def corpus() -> list[Program]:
    """All programs."""
    return [program for source in SOURCES.values() for program in source()]
