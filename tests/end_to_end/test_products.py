"""Products of matrices on every backend (SPEC K6, P4; F12, F20, F45, F57, F62, F64).

Operands are small integers, so that every sum is exact in any order and results are compared bit
for bit; functions of sums that are not exact are compared in float64 with a tolerance per dtype.
"""

from __future__ import annotations

import itertools
import re
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

import metile_mlx as metile
from metile_mlx import emulator
from metile_mlx.compiler import compile_kernel, lower
from metile_mlx.context import Context, Schedule
from metile_mlx.emulator import build
from metile_mlx.errors import CompileError
from metile_mlx.target import METAL
from tests.support import emulated, simulate
from tests.support.kernels import tile_ir
from tests.support.products import accumulated, constexprs, epilogue, gram, grid, matmul
from tests.support.profile import count
from tests.support.public import compile_all

SIZES = (1, 7, 8, 9, 31, 64, 65, 128, 257)
DTYPES = (mx.float32, mx.float16, mx.bfloat16)
STAGINGS = ("threadgroup", "device")
TILE = (32, 16, 16)
TOLERANCES = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}
"""Relative to the largest value: one rounding of the result, and exp in f32."""

Matrix = NDArray[np.float64]


def whole(dtype: mx.Dtype, *shape: int) -> mx.array:
    rng = np.random.default_rng(sum(shape))
    return mx.array(rng.integers(-4, 5, shape).astype(np.float32)).astype(dtype)


def numbers(x: mx.array) -> Matrix:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def rounded(values: Matrix, dtype: mx.Dtype) -> Matrix:
    """Exact in f32, then rounded once."""
    assert (values == values.astype(np.float32)).all()
    return numbers(mx.array(values.astype(np.float32)).astype(dtype))


SHAPES = (
    (1, 257, 7), (7, 128, 9), (8, 65, 64), (9, 64, 65), (31, 31, 257), (64, 9, 8), (65, 8, 31),
    (128, 7, 1), (257, 1, 128), (1, 1, 1), (65, 65, 65),
)  # fmt: skip


def shapes() -> list[tuple[int, int, int]]:
    """M, N and K: all in the full profile, else each size at each place."""
    if count(ci=0, full=1):
        return list(itertools.product(SIZES, repeat=3))
    return list(SHAPES)


def test_the_sample_has_each_size_at_each_place() -> None:
    for place in range(3):
        assert {each[place] for each in shapes()} == set(SIZES)


Case = tuple[tuple[int, int, int], mx.Dtype, Schedule, bool, bool]
SCHEDULES = (
    *(Schedule(staging=staging) for staging in STAGINGS),
    Schedule(staging="threadgroup", double_buffer=True),
)


def cases() -> list[Case]:
    """Each shape with a dtype, staging and storage of its own in turn; all of them in full."""
    ways = [
        (dtype, schedule, *turned)
        for schedule in SCHEDULES
        for dtype in DTYPES
        for turned in ((False, False), (True, False), (False, True))
    ]
    if count(ci=0, full=1):
        return [(each, *way) for each in shapes() for way in ways]
    return [(each, *ways[number * 5 % len(ways)]) for number, each in enumerate(shapes())]


def dispatch(case: Case, backend: str, tile: tuple[int, int, int] = TILE) -> tuple[Any, Matrix]:
    """A launch, and what it has to give."""
    (m, n, k), dtype, schedule, turned_a, turned_b = case
    a, b = whole(dtype, 2, m, k), whole(dtype, 2, k, n)
    expected = rounded(numbers(a) @ numbers(b), dtype)
    given = [
        mx.contiguous(mx.swapaxes(x, 1, 2)) if turned else x
        for x, turned in ((a, turned_a), (b, turned_b))
    ]
    args = (*given, metile.empty((2, m, n), dtype), 2, m, n, k, m * k, k * n)
    options = constexprs(tile, TURNED_A=turned_a, TURNED_B=turned_b)
    prepared = matmul[grid(m, n, tile, 2)].prepare(
        *args, **options, backend=backend, schedule=schedule
    )
    return (prepared, args), expected


def test_every_shape_on_the_reference() -> None:
    for case in cases():
        (prepared, args), expected = dispatch(case, "reference")
        assert (numbers(prepared(*args)) == expected).all(), case


@pytest.mark.emulator
def test_every_shape_emulated() -> None:
    """Copies, barriers and fragments under the race checker: no report."""
    chosen = cases()
    launches = [dispatch(case, "emulator") for case in chosen]
    texts = {}
    for (prepared, args), _ in launches:
        made = emulated.make(prepared, args[3:])
        assert made is not None
        recorded = made.recorded()
        texts[recorded.name, recorded.text] = None
    build.prebuild(list(texts), checked=True)
    emulator.take()
    with emulator.options(checked=True, schedules=1):
        for case, ((prepared, args), expected) in zip(chosen, launches, strict=True):
            assert (numbers(prepared(*args)) == expected).all(), case
    report = emulator.take()
    assert not report.findings
    assert report.launches == len(chosen)


def test_every_shape_on_the_cpu() -> None:
    launches = [(case, *dispatch(case, "cpu", (32, 32, 32))) for case in cases()]
    compile_all(prepared for _, (prepared, _), _ in launches)
    for case, (prepared, args), expected in launches:
        assert (numbers(prepared(*args)) == expected).all(), case


def test_some_shapes_simulated() -> None:
    """Per-thread programs on NumPy, whose own checker sees accesses that are not ordered."""
    for (m, n, k), staging in zip(
        ((7, 9, 33), (17, 1, 8), (8, 31, 0)), (*STAGINGS, None), strict=True
    ):
        kinds = (*("f32*",) * 3, *("i32",) * 6)
        func = tile_ir(matmul.definition, *kinds, **constexprs((8, 16, 16)))
        made = lower(func, Context(METAL, Schedule(staging=staging)))
        a, b = whole(mx.float32, 2, m, k), whole(mx.float32, 2, k, n)
        arrays = {"A": np.array(a).reshape(-1), "B": np.array(b).reshape(-1)}
        arrays["C"] = np.full(2 * m * n, np.nan, np.float32)
        scalars = {"COUNT": 2, "M": m, "N": n, "K": k, "MK": m * k, "KN": k * n}
        found, _ = simulate.run(made, arrays, scalars, grid(m, n, (8, 16), 2))
        assert (found["C"].reshape(2, m, n) == numbers(a) @ numbers(b)).all()


def several(backend: str) -> list[Any]:
    """Both ways of staging where they differ."""
    return [
        Schedule(staging=staging) for staging in (STAGINGS if backend == "emulator" else [None])
    ]


BACKENDS = ("reference", "cpu", pytest.param("emulator", marks=pytest.mark.emulator))


@pytest.mark.parametrize("backend", BACKENDS)
def test_f12_no_depth_gives_zeros_and_no_rows_nothing(backend: str) -> None:
    """K of 0; M or N of 0 has no program."""
    for schedule in several(backend):
        for m, n, k in ((33, 17, 0), (0, 17, 5), (33, 0, 5), (0, 0, 0)):
            a, b = mx.zeros((2, m, k)), mx.zeros((2, k, n))
            y = matmul[grid(m, n, TILE, 2)](
                a, b, metile.empty((2, m, n), mx.float32), 2, m, n, k, m * k, k * n,
                **constexprs(TILE), backend=backend, schedule=schedule,
            )  # fmt: skip
            assert y.shape == (2, m, n)
            assert (numbers(y) == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_k7_what_a_mask_leaves_out_keeps_what_it_held(backend: str) -> None:
    """F20: batches along z; a product accumulates in what is stored to."""
    for schedule in several(backend):
        m, n, k = 19, 23, 21
        a, b, c = (
            whole(mx.bfloat16, 3, m, k),
            whole(mx.bfloat16, 3, k, n),
            whole(mx.float32, 3, m, n),
        )
        y = accumulated[grid(m, n, (16, 16), 3)](
            a, b, c, 3, m, n, k, **constexprs((16, 16, 8)), backend=backend, schedule=schedule
        )
        kept = (np.arange(m) % 5 == 0)[:, None] | (np.arange(n) % 5 == 0)
        assert (
            numbers(y) == np.where(kept, numbers(c), numbers(c) + numbers(a) @ numbers(b))
        ).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_epilogues_work_on_what_each_thread_has(backend: str) -> None:
    """Bias by a stride of 0, scale, activation, residual and cast."""
    for schedule in several(backend):
        for dtype in DTYPES:
            m, n, k = 33, 20, 17
            a, b = whole(mx.float32, m, k), whole(mx.float32, k, n)
            bias, residual = whole(mx.float16, n), whole(dtype, m, n)
            y = epilogue[grid(m, n, TILE)](
                a, b, metile.empty((m, n), dtype), bias, residual, m, n, k, 0.125,
                **constexprs(TILE), backend=backend, schedule=schedule,
            )  # fmt: skip
            value = numbers(a) @ numbers(b) * 0.125 + numbers(bias)
            near(y, value / (1 + np.exp(-value)) + numbers(residual), dtype)


def near(y: mx.array, expected: Matrix, dtype: mx.Dtype) -> None:
    difference = np.abs(numbers(y) - expected).max()
    assert difference <= TOLERANCES[dtype] * np.abs(expected).max()


@metile.kernel
def centred(A, B, C, N: int, S: metile.constexpr, AXIS: metile.constexpr):
    """The product without the mean of its rows or columns; what lies outside is 0."""
    a, b = metile.tensor(A, shape=(N, N)), metile.tensor(B, shape=(N, N))
    c = metile.tensor(C, shape=(N, N), access="write")
    x, y = metile.tile_load(a, (0, 0), (S, S)), metile.tile_load(b, (0, 0), (S, S))
    made = metile.dot(x, y)
    metile.tile_store(c, (0, 0), made - metile.sum(made, axis=AXIS) / metile.cast(N, metile.f32))


@metile.kernel
def attention(Q, K, V, Y, N: int, D: int, scale: float, S: metile.constexpr):
    """softmax(Q @ K^T * scale) @ V over one block of scores."""
    q, v = metile.tensor(Q, shape=(N, D)), metile.tensor(V, shape=(N, D))
    k = metile.tensor(K, shape=(D, N), strides=(1, D))
    y = metile.tensor(Y, shape=(N, D), access="write")
    scores = metile.dot(metile.tile_load(q, (0, 0), (S, 16)), metile.tile_load(k, (0, 0), (16, S)))
    column = metile.reshape(metile.arange(0, S * S), (S, S)) % S
    scores = metile.where(column < N, scores * scale, -1e30)
    weights = metile.exp(scores - metile.max(scores, axis=1))
    weights = weights / metile.sum(weights, axis=1)
    metile.tile_store(y, (0, 0), metile.dot(weights, metile.tile_load(v, (0, 0), (S, 16))))


@metile.kernel
def powers(A, C, N: int, STEPS: int, S: metile.constexpr):
    """A to the power of 1 + STEPS, clamped: what a loop carries is an operand and its sums."""
    a = metile.tensor(A, shape=(N, N))
    c = metile.tensor(C, shape=(N, N), access="write")
    x = metile.tile_load(a, (0, 0), (S, S))
    made = x
    for _ in metile.tile_range(0, STEPS):
        made = metile.minimum(metile.maximum(metile.dot(made, x), -9.0), 9.0)
    metile.tile_store(c, (0, 0), made)


@metile.kernel
def apart(A, B, C, M: int, N: int):
    """Two products; operands of the second are loaded beside work on the first."""
    a, b = metile.tensor(A, shape=(M, N)), metile.tensor(B, shape=(M, N))
    turned = metile.tensor(B, shape=(N, M), strides=(1, N))
    c = metile.tensor(C, shape=(64, 8), access="write")
    x, y = metile.tile_load(turned, (4, 0), (32, 32)), metile.tile_load(b, (2, 3), (32, 8))
    made = metile.dot(x, y)
    made = metile.minimum(made - metile.sum(made, axis=0), 3.0)
    least = metile.min(made)
    made = metile.minimum(made - metile.sum(made, axis=0), 9.0)
    x = metile.cast(metile.tile_load(a, (0, 0), (64, 8)), metile.f32) * 2
    y = metile.tile_load(a, (3, 9), (8, 8))
    start = metile.cast(metile.tile_load(a, (0, 7), (64, 8), fill=3), metile.f32)
    last = metile.dot(metile.cast(x, metile.bf16), y, start)
    metile.tile_store(c, (0, 0), last + metile.minimum(least, 0.0) + metile.max(made) * 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_operands_that_are_loaded_beside_other_work(backend: str) -> None:
    """A loop that is split hands on what products read."""
    m, n = 35, 24
    a, b = whole(mx.bfloat16, m, n), whole(mx.bfloat16, m, n)
    y = apart[(1,)](a, b, metile.empty((64, 8), mx.float32), m, n, backend=backend)
    padded, turned = np.zeros((128, 64)), np.zeros((128, 128))
    padded[:m, :n], turned[:n, :m] = numbers(a), numbers(b).T
    first = turned[4:36, :32] @ np.pad(numbers(b), ((0, 32), (0, 32)))[2:34, 3:11]
    least = np.minimum(first - first.sum(0), 3).min()
    start = np.full((64, 8), 3.0)
    start[:m] = padded[:m, 7:15]
    expected = padded[:64, :8] * 2 @ padded[3:11, 9:17] + start + min(least, 0)
    assert (numbers(y) == expected).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_along_an_axis_of_a_product(backend: str) -> None:
    """Threads that share a row exchange what they have, behind the product."""
    for schedule in several(backend):
        for n, size, axis in ((31, 32, 0), (32, 32, 1), (61, 64, 1)):
            a, b = whole(mx.float32, n, n), whole(mx.float32, n, n)
            y = centred[(1,)](
                a, b, metile.empty((n, n), mx.float32), n, S=size, AXIS=axis,
                backend=backend, schedule=schedule,
            )  # fmt: skip
            made = numbers(a) @ numbers(b)
            near(y, made - made.sum(axis, keepdims=True) / n, mx.float32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_softmax_of_a_product_in_a_product(backend: str) -> None:
    """C5: what one product gives is handed over to the next through threadgroup memory."""
    n, d = 61, 13
    q, k, v = (mx.random.normal((n, d), key=mx.random.key(seed)) for seed in range(3))
    out = metile.empty((n, d), mx.float32)
    y = attention[(1,)](q, k, v, out, n, d, 0.25, S=64, backend=backend)
    scores = numbers(q) @ numbers(k).T * 0.25
    weights = np.exp(scores - scores.max(1, keepdims=True))
    near(y, weights / weights.sum(1, keepdims=True) @ numbers(v), mx.float32)
    if backend == "emulator":
        device = Schedule(staging="device")
        with pytest.raises(CompileError, match=r"\[dot\] a has to change owners"):
            attention[(1,)](q, k, v, out, n, d, 0.25, S=64, backend=backend, schedule=device)


@pytest.mark.parametrize("backend", BACKENDS)
def test_f57_a_loop_carries_an_operand(backend: str) -> None:
    """No step, one and several: each reads what the one before it has left in other threads."""
    for n, size in ((8, 8), (21, 32)):
        a = whole(mx.float32, n, n) * (mx.random.uniform(shape=(n, n), key=mx.random.key(n)) < 0.3)
        for steps in (0, 1, 2, 5):
            y = powers[(1,)](a, metile.empty((n, n), mx.float32), n, steps, S=size, backend=backend)
            expected = numbers(a)
            for _ in range(steps):
                expected = np.clip(expected @ numbers(a), -9, 9)
            assert (numbers(y) == expected).all(), (n, steps)


@cache
def texts() -> dict[str, str]:
    """MSL of products on one simdgroup and on several, staged both ways."""
    kinds = (*("bf16*",) * 3, *("i32",) * 6)
    found = {}
    for tile, staging in itertools.product(((8, 8, 8), (8, 8, 32), (32, 32, 8)), STAGINGS):
        ctx = Context(METAL, Schedule(staging=staging))
        source = compile_kernel(tile_ir(matmul.definition, *kinds, **constexprs(tile)), ctx)
        found[f"{tile} {staging} {source.threads}"] = source.header + source.body
    return found


def test_f62_no_text_declares_how_many_threads_there_are() -> None:
    """A declared maximum of 32 lets Apple's compiler drop barriers, and breaks 8 by 8 tiles."""
    found = texts()
    assert any(name.endswith(" 32") for name in found)
    assert any(name.endswith(" 128") for name in found)
    for text in found.values():
        assert "max_total_threads" not in text


def test_f64_registers_of_fragments_are_variables_with_names() -> None:
    """An index that is computed into a local array returns 0 in large kernels."""
    for name, text in texts().items():
        assert "simdgroup_multiply_accumulate" in text
        declared = re.findall(
            r"^\s*(?:thread )?[a-z_0-9]+ ([A-Za-z_]\w*)\[[^\]]*\]\s*[;=]", text, re.M
        )
        assert declared == [], name
        for inside in re.findall(r"thread_elements\(\)\[([^\]]*)\]", text):
            assert inside in ("0", "1"), name


def test_a_view_may_be_both_operands() -> None:
    a = whole(mx.float16, 2, 9, 14)
    for backend in ("reference", "cpu"):
        out = metile.empty((2, 9, 9), mx.float32)
        y = gram[(2,)](a, out, 2, 9, 14, 9 * 14, backend=backend)
        assert (numbers(y) == numbers(a) @ numbers(a).swapaxes(1, 2)).all()
