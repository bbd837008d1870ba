"""Kernels for a GPU with their data and right results, made on any machine.

Each is the MSL text, its arrays in the order of the signature, and what it must write; between them
they use every mechanism, dtype, number of threads and ragged end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_mlx import dtypes
from metile_mlx.analysis.exact import exact_outputs
from metile_mlx.compiler import lower
from metile_mlx.context import Context
from metile_mlx.dtypes import DType, bf16, f16, f32
from metile_mlx.emit.msl import emit_msl
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir.core import Func
from metile_mlx.runtime.autodiff import reference_launch
from metile_mlx.runtime.backends import metal_inputs, metal_outputs
from metile_mlx.target import CUDA
from tests.end_to_end import test_argmax as indices
from tests.end_to_end import test_axis_reductions as axes
from tests.end_to_end import test_conversions_run as conversions
from tests.end_to_end import test_lanes as lanes
from tests.end_to_end import test_loops as loops
from tests.end_to_end import test_register_conversions as exchanges
from tests.end_to_end import test_sums as sums
from tests.support import emulated, grouped, products, simulate
from tests.support.arithmetic import NUMPY, Array, literal
from tests.support.public import DTYPES
from tests.support.random_loops import PROGRAMS as LOOP_PROGRAMS
from tests.support.random_loops import random_loops
from tests.support.random_tiles import PROGRAMS, programs
from tests.support.simulated_metal import to_numpy
from tests.support.together import examples


@dataclass(frozen=True)
class Case:
    """One launch.

    Attributes:
        module: what it is about; `name` tells it from the others of the module.
        source: the MSL text.
        inputs: in the order of the signature; bf16 as bits.
        outputs: shape and dtype of each.
        expected: the right contents of each output, or None where nothing is said of it.
        tolerance: relative and absolute; None compares bits.
        grid: programs along x, y, z.
        zero: whether the outputs begin as zeros.
    """

    module: str
    name: str
    source: KernelSource
    inputs: tuple[Array, ...]
    outputs: tuple[tuple[tuple[int, ...], DType], ...]
    expected: tuple[Array | None, ...]
    tolerance: tuple[float, float] | None
    grid: tuple[int, int, int]
    zero: bool


def of_func(
    module: str,
    name: str,
    func: Func,
    arrays: Mapping[str, Array],
    grid: tuple[int, int, int],
    scalars: Mapping[str, int] | None = None,
    index_bits: int = 32,
) -> Case:
    """A kernel of the IR; `arrays` has one of the right shape for each output too.

    The simulator says what is right.
    """
    ctx = Context(CUDA, index_bits=index_bits)
    made = lower(func, ctx)
    source = emit_msl(made, ctx)
    found, stored = simulate.run(made, arrays, scalars or {}, grid)
    right = {n: np.where(stored[n], found[n], np.zeros((), found[n].dtype)) for n in found}
    given = dict(scalars or {})
    return Case(
        module,
        name,
        source,
        tuple(
            literal(given[a.param], a.dtype).reshape(1) if a.is_scalar else arrays[a.param]
            for a in source.inputs
        ),
        tuple((right[a.param].shape, a.dtype) for a in source.outputs),
        tuple(right[a.param] for a in source.outputs),
        None,
        grid,
        True,
    )


def of_dispatch(module: str, name: str, dispatch: metile.Dispatch) -> Case:
    """A kernel of the public language on data of our own; the reference says what is right."""
    request = dispatch._request(dispatch._values, CUDA)
    assert request.source is not None
    only_moves = exact_outputs(request.func) >= {out.param for out in request.outputs}
    given = {a.name: (tuple(a.shape), a.dtype) for a in dispatch._inputs}
    arrays = [
        emulated.data(only_moves, *given[param], seed) for seed, param in enumerate(request.inputs)
    ]
    right = dict(
        zip((o.param for o in request.outputs), reference_launch(request)(arrays), strict=True)
    )
    outputs, zero = metal_outputs(request)
    small = any(out.dtype in (f16, bf16) for out in outputs)
    return Case(
        module,
        name,
        request.source,
        tuple(np.atleast_1d(to_numpy(x)) for x in metal_inputs(request)(arrays)),
        tuple((out.shape, out.dtype) for out in outputs),
        tuple(
            to_numpy(right[out.param])
            if out.fill != "input" and out.dtype == _dtype(right[out.param])
            else None
            for out in outputs
        ),
        None if only_moves else ((3e-2, 1e-2) if small else (1e-5, 1e-5)),
        request.grid,
        zero,
    )


def _dtype(x: mx.array) -> DType:
    return dtypes.MLX_NAMES[str(x.dtype).rpartition(".")[2]]


def converted(count: int = 11) -> Iterator[Case]:
    """Conversions of owners: every mechanism, dtype and number of threads."""
    for dtype in DTYPES:
        all_of_it = conversions.cases(dtype)
        for turn in range(count):
            # 7 has no factor with 6, so the sizes of six neighbours are all met.
            case = all_of_it[turn * 7 % len(all_of_it)]
            kind = case.kernel.definition.name
            name = f"{kind} of {case.size} {dtype}, {case.conversion}, {case.seed}"
            yield of_dispatch("conversions", name, case.prepare("reference"))


def random_programs(count: int = 40) -> Iterator[Case]:
    """Random programs over register tiles, exact in any order of additions."""
    for number, made in enumerate(examples(programs(), count)):
        arrays = dict(made.arrays)
        for name, (shape, dtype) in made.outputs.items():
            arrays[name] = np.zeros(shape, NUMPY[dtype])
        yield of_func(
            "random tiles", f"number {number}", made.func, arrays, (PROGRAMS, 1, 1),
            index_bits=made.index_bits,
        )  # fmt: skip


def rows() -> Iterator[Case]:
    """Rows of register tiles: neighbours behind guards, any first address, ragged ends, strides."""
    layouts = {
        "4 adjacent": grouped.adjacent(256),
        "8 adjacent": grouped.adjacent(512, 8),
        "16 adjacent": grouped.adjacent(512, 16),
        "4 adjacent, flipped": grouped.adjacent(128, 4, xor_mask=5),
        "4 striped": grouped.striped(256),
    }
    for number, (how, layout) in enumerate(layouts.items()):
        for dtype in (f32, f16, bf16):
            for start, short, thirds in ((0, 0, False), (1, 3, True), (4 + number, 9, False)):
                n = 3 * layout.size + start - short
                func = grouped.row(layout, dtype, thirds=thirds).func()
                scalars = {"n": n, "start": start}
                arrays = {
                    "x": _numbers(dtype, n),
                    "y": np.zeros(n, NUMPY[dtype]),
                }
                name = f"{how} {dtype} from {start}, {n}" + (", thirds" if thirds else "")
                yield of_func("rows", name, func, arrays, (3, 1, 1), scalars)


def _numbers(dtype: DType, size: int) -> Array:
    small = mx.array(np.random.default_rng(size).integers(-99, 99, size).astype(np.float32))
    kind = {f32: mx.float32, f16: mx.float16, bf16: mx.bfloat16}[dtype]
    return to_numpy(small.astype(kind))


def summed() -> Iterator[Case]:
    """Sums and norms: every number of registers, one and many simdgroups, ragged widths."""
    for registers in (1, 2, 4, 8, 16, 32):
        for adjacent in (False, True):
            owner = sums.layout(1024, registers, adjacent)
            for n in (1009, 1024):
                x, y = mx.zeros((3, n)), metile.empty((3,), mx.float32)
                made = sums.totals[(3,)].prepare(x, y, N=n, LAYOUT=owner, backend="reference")
                how = "adjacent" if adjacent else "striped"
                yield of_dispatch("sums", f"{registers} {how} of {n}", made)
    for n in (1, 31, 1000, 1024):
        for dtype in ("f32", "f16", "bf16"):
            kind = DTYPES[dtype]
            block = 1 << max(n - 1, 127).bit_length()
            x, w = mx.zeros((3, n), kind), mx.zeros((n,), kind)
            owner = sums.layout(block, 4)
            made = sums.rmsnorm[(3,)].prepare(
                x, w, metile.empty((3, n), kind), 1e-5, N=n, BLOCK=block, LAYOUT=owner,
                backend="reference",
            )  # fmt: skip
            yield of_dispatch("sums", f"rmsnorm of {n} {dtype}", made)
    largest = sums.layout(32768, 32)
    made = sums.standardised[(2,)].prepare(
        mx.zeros((2, 32768)), metile.empty((2, 32768), mx.float32), N=32768, LAYOUT=largest,
        backend="reference",
    )  # fmt: skip
    yield of_dispatch("sums", "1024 threads of 32 registers, two sums", made)


def exchanged(count: int = 8) -> Iterator[Case]:
    """Conversions of register tiles, each lowering forced; 8 of a dtype are two of each."""
    for dtype in DTYPES:
        for case in exchanges.cases(dtype)[:count]:
            kind = case.kernel.definition.name
            name = f"{kind} of {case.size} {dtype}, {case.conversion}, {case.seed}"
            # The costs are asked again where the text for a GPU is made.
            with exchanges.preferred(case.conversion):
                yield of_dispatch("register conversions", name, case.prepare("reference"))


def looped() -> Iterator[Case]:
    """Loops with runtime bounds: sums and releases in them, carried tiles, lanes, shared memory."""
    x, f32_3 = mx.zeros((3, 300)), metile.empty((3,), mx.float32)
    square = mx.zeros((3, 256))
    lane_rows = (square, metile.empty(square.shape, square.dtype))
    launches = {
        "sum of 64 at a time": loops.summed[3].prepare(
            x, f32_3, 300, BLOCK=64, backend="reference"
        ),
        "sum of 32 at a time": loops.summed[3].prepare(
            x, f32_3, 300, BLOCK=32, backend="reference"
        ),
        "largest index": indices.top_of_long_rows[3].prepare(
            x, metile.empty((3,), mx.int32), 300, BLOCK=64, backend="reference"
        ),
        "sums of rows": axes.streamed[1].prepare(x, f32_3, 3, 300, backend="reference"),
        "shared, reversed": lanes.reversed_rows[3].prepare(
            *lane_rows, 3, BLOCK=256, backend="reference"
        ),
        "shared, halves": lanes.tree[3].prepare(
            mx.zeros((3, 120)), f32_3, 7, BLOCK=128, backend="reference"
        ),
    }
    for name, dispatch in launches.items():
        yield of_dispatch("loops", name, dispatch)


SCHEDULES = {
    "device": metile.Schedule(staging="device"),
    "one slot": metile.Schedule(staging="threadgroup"),
    "two slots": metile.Schedule(staging="threadgroup", double_buffer=True),
}


def product(schedule: str, dtype: mx.Dtype, m: int, n: int, k: int) -> metile.Dispatch:
    """Two products of m x k by k x n in tiles of 32 x 16 x 8, one of them turned."""
    sizes = {"BM": 32, "BN": 16, "BK": 8, "TURNED_A": False, "TURNED_B": True}
    return products.matmul[products.grid(m, n, (32, 16), 2)].prepare(
        mx.zeros((2, m, k), dtype), mx.zeros((2, n, k), dtype), metile.empty((2, m, n), dtype),
        2, m, n, k, m * k, k * n, **sizes, backend="reference", schedule=SCHEDULES[schedule],
    )  # fmt: skip


def multiplied() -> Iterator[Case]:
    """Products by every schedule, ragged, of 0 to 5 steps of K; with an epilogue."""
    for schedule, options in SCHEDULES.items():
        for name in ("f32", "f16", "bf16"):
            dtype = DTYPES[name]
            for m, n, k in ((33, 20, 40), (64, 16, 8), (7, 9, 17), (32, 32, 0)):
                made = product(schedule, dtype, m, n, k)
                yield of_dispatch("products", f"{schedule} {name} {m} x {n} x {k}", made)
        x = mx.zeros((40, 24), mx.float16)
        made = products.epilogue[products.grid(40, 40, (16, 32))].prepare(
            x, x.T, metile.empty((40, 40), x.dtype), mx.zeros((40,), x.dtype),
            mx.zeros((40, 40), x.dtype), 40, 40, 24, 0.25, BM=16, BN=32, BK=16,
            backend="reference", schedule=options,
        )  # fmt: skip
        yield of_dispatch("products", f"{schedule}, epilogue", made)


def random_loop_programs(count: int = 20) -> Iterator[Case]:
    """Random programs of loops, branches and sums, exact in any order of additions."""
    for seed in range(count):
        made = random_loops(seed)
        assert made.func is not None
        arrays = dict(made.arrays)
        for name, (shape, dtype) in made.outputs.items():
            arrays[name] = np.zeros(shape, NUMPY[dtype])
        yield of_func(
            "random loops", f"number {seed}", made.func, arrays, (LOOP_PROGRAMS, 1, 1),
            made.scalars,
        )  # fmt: skip


def all_cases() -> Iterator[Case]:
    """All of the above."""
    yield from converted(9)
    yield from exchanged(4)
    yield from rows()
    yield from summed()
    yield from looped()
    yield from islice(multiplied(), 0, None, 2)
    yield from random_programs(30)
    yield from random_loop_programs(12)


def corpus() -> list[Case]:
    """A smaller set for checkers, which are slow; it still meets every mechanism."""
    return [
        *converted(4),
        *exchanged(),
        *rows(),
        *summed(),
        *looped(),
        *multiplied(),
        *random_programs(20),
        *random_loop_programs(),
    ]


def difference(case: Case, position: int, got: Array) -> str:
    """What is wrong with an output; empty where it is right."""
    right = case.expected[position]
    if right is None:
        return ""
    argument = case.source.outputs[position]
    if case.tolerance is None:
        wrong = got.view(np.uint8).reshape(-1) != right.view(np.uint8).reshape(-1)
    else:
        a, b = _wide(got, argument.dtype), _wide(right, argument.dtype)
        relative, absolute = case.tolerance
        wrong = ~np.isclose(a, b, relative, absolute, equal_nan=True)
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong)) // (right.itemsize if case.tolerance is None else 1)
    return (
        f"{argument.param}: {int(wrong.sum())} differ, first element {at}: "
        f"{got.reshape(-1)[at]}, expected {right.reshape(-1)[at]}"
    )


def _wide(data: Array, dtype: DType) -> Array:
    flat = np.ascontiguousarray(data).reshape(-1)
    if dtype == bf16:
        return (flat.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return flat.astype(np.float64)
