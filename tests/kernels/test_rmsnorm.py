"""`metile_kernels.rmsnorm`: each layout, width and dtype against float64 (SPEC B1, R2, F67)."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_kernels.rmsnorm import rmsnorm, rmsnorm_register, rmsnorm_register_gradients
from metile_mlx import emulator
from tests.support import emulated
from tests.support.profile import count
from tests.support.public import compile_all, same_bits
from tests.support.rounding import exact, rounded, ulps

EPS = 1e-5
BLOCK = 1024
DTYPES = (mx.float16, mx.bfloat16, mx.float32)
WIDTHS = (1, 31, 1000, 1009, 1023, 1024)
ROWS = 3


def layout(kind: str, values: int, block: int = BLOCK) -> metile.ThreadLayout:
    bits, low = block.bit_length() - 1, values.bit_length() - 1
    order = (*range(bits - low, bits), *range(bits - low)) if kind == "adjacent" else range(bits)
    return metile.ThreadLayout(order, elements_per_thread=values)


LAYOUTS = [
    layout(kind, values)
    for kind in ("striped", "adjacent")
    for values in (1, 2, 4, 8, 16, 32)
    if (kind, values) != ("adjacent", 1)
]


def data(width: int, dtype: mx.Dtype, rows: int = ROWS, seed: int = 0) -> tuple[mx.array, mx.array]:
    """Rows with outliers, and weights."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, width))
    x[:, :: max(width // 3, 1)] *= 100
    w = rng.uniform(0.5, 2, width)
    return tuple(mx.array(a.astype(np.float32)).astype(dtype) for a in (x, w))


def expected(x: mx.array, w: mx.array, eps: float = EPS) -> np.ndarray[Any, Any]:
    wide = exact(x)
    scale = 1 / np.sqrt((wide**2).mean(axis=1, keepdims=True) + float(np.float32(eps)))
    return rounded(wide * scale * exact(w), x.dtype)


def check(y: mx.array, x: mx.array, w: mx.array, what: object) -> None:
    """2 units in the last place; in f32 a millionth."""
    right = expected(x, w)
    if y.dtype == mx.float32:
        worst = float((np.abs(exact(y) - right) / np.abs(right)).max())
        assert worst <= 1e-6, what
    else:
        assert ulps(y, right).max() <= 2, what


def norm(
    x: mx.array, w: mx.array, lanes: metile.ThreadLayout | None = None, **options: Any
) -> mx.array:
    width = x.shape[-1]
    options.setdefault("BLOCK", lanes.size if lanes else max(32, metile.next_power_of_2(width)))
    return rmsnorm_register[(x.shape[0],)](
        x, w, metile.empty(x.shape, x.dtype), EPS, N=width, LAYOUT=lanes, **options
    )


def test_the_source_documents_command_line() -> None:
    """The seed's call, word for word; four striped values per thread by default."""
    inputs, weights = data(1009, mx.float16)
    output, rows = metile.empty(inputs.shape, inputs.dtype), ROWS
    dispatch = rmsnorm_register[(rows,)].prepare(
        inputs, weights, output, 1e-5,
        N=1009, BLOCK=1024, RELAXED_PRECISION=False,
    )  # fmt: skip
    check(dispatch(inputs, weights, output, 1e-5), inputs, weights, "seed")
    report = dispatch.execution_report
    assert (report.threads, report.math_mode) == (256, "safe")
    assert {value.layout for value in report.value_layouts} == {repr(layout("striped", 4))}


@pytest.mark.emulator
def test_every_layout_width_and_dtype_emulated() -> None:
    """All registers, striped and adjacent: no race, no access outside, and right (R2, V1)."""
    every = list(itertools.product(LAYOUTS, WIDTHS, DTYPES))
    # 5 has no factor with the numbers of widths and dtypes, so a sample meets each of them.
    cases = every[:: 5 if count(ci=0, full=1) == 0 else 1]
    inputs = [data(width, dtype, seed=i) for i, (_, width, dtype) in enumerate(cases)]

    def launch(case: Any, arrays: tuple[mx.array, mx.array]) -> mx.array:
        return norm(*arrays, case[0], backend="emulator")

    pairs = list(zip(cases, inputs, strict=True))
    emulated.prebuild(partial(launch, *pair) for pair in pairs)
    with emulator.checked():
        made = [launch(*pair) for pair in pairs]
        mx.eval(made)
    for y, (case, (x, w)) in zip(made, pairs, strict=True):
        check(y, x, w, case)


def test_every_layout_and_dtype_on_the_cpu() -> None:
    cases = [(held, 1009, dtype) for held in LAYOUTS for dtype in DTYPES]
    cases += [(LAYOUTS[2], width, dtype) for width in WIDTHS for dtype in DTYPES]
    inputs = [data(width, dtype, seed=i) for i, (_, width, dtype) in enumerate(cases)]
    compile_all(
        rmsnorm_register[(ROWS,)].prepare(
            x, w, metile.empty(x.shape, x.dtype), EPS, N=width, BLOCK=BLOCK, LAYOUT=held,
            target="cpu",
        )
        for (held, width, _), (x, w) in zip(cases, inputs, strict=True)
    )  # fmt: skip
    for (held, width, dtype), (x, w) in zip(cases, inputs, strict=True):
        check(norm(x, w, held, backend="cpu"), x, w, (held, width, dtype))


def test_32_values_on_1024_elements_are_one_simdgroup() -> None:
    """R2: no scratch, no barrier, in the report and in the text."""
    x, w = data(1009, mx.float32)
    dispatch = rmsnorm_register[(ROWS,)].prepare(
        x, w, metile.empty(x.shape, x.dtype), EPS, N=1009, BLOCK=BLOCK,
        LAYOUT=metile.ThreadLayout.identity(1024, elements_per_thread=32), target="metal",
    )  # fmt: skip
    report = dispatch.execution_report
    (reduction,) = report.register_reductions
    assert (report.threads, reduction.threads, reduction.registers) == (32, 32, 32)
    assert reduction.scratch is None
    assert report.allocations == []
    assert "threadgroup_barrier" not in dispatch.msl
    assert "threadgroup float" not in dispatch.msl
    assert "simd_sum" in dispatch.msl


def test_inputs_are_read_once() -> None:
    """The row stays in registers across the reduction."""
    x, w = data(1024, mx.float32)
    dispatch = rmsnorm_register[(ROWS,)].prepare(
        x, w, metile.empty(x.shape, x.dtype), EPS, N=1024, BLOCK=BLOCK, target="metal"
    )
    assert dispatch.msl.count("inputs[") == 4


@pytest.mark.parametrize("width", [1, 31, 33, 1009])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_agrees(width: int, dtype: mx.Dtype) -> None:
    x, w = data(width, dtype)
    check(norm(x, w, backend="reference"), x, w, width)


def test_relaxed_precision_chooses_mlxs_math_mode() -> None:
    x, w = data(256, mx.float32)
    arguments = (x, w, metile.empty(x.shape, x.dtype), EPS)
    relaxed = rmsnorm_register[(ROWS,)].prepare(
        *arguments, N=256, BLOCK=256, RELAXED_PRECISION=True, target="metal"
    )
    named = rmsnorm_register[(ROWS,)].prepare(
        *arguments, N=256, BLOCK=256, RELAXED_PRECISION=True, math_mode="safe", target="metal"
    )
    assert relaxed.execution_report.math_mode == "relaxed"
    assert named.execution_report.math_mode == "safe"


def test_f67_squares_and_sums_are_f32() -> None:
    """x = 300 in f16 gives the weight, bf16 ones give 1, over 4096 columns; outliers of 3e4."""
    w = data(4096, mx.float16)[1]
    x = mx.full((2, 4096), 300, dtype=mx.float16)
    assert same_bits(norm(x, w), mx.broadcast_to(w, x.shape))
    ones = mx.ones((2, 4096), mx.bfloat16)
    assert mx.array_equal(norm(ones, ones[0]), ones)
    x = data(4096, mx.float16, seed=5)[0]
    x[:, 7] = 3e4
    check(norm(x, w), x, w, "outliers")


def test_a_row_of_nan_stays_in_its_row() -> None:
    x, w = data(1009, mx.float32)
    spoiled = mx.array(x)
    spoiled[1, 700] = float("nan")
    found, clean = norm(spoiled, w), norm(x, w)
    assert mx.all(mx.isnan(found[1]))
    assert same_bits(found[::2], clean[::2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_f51_a_row_does_not_depend_on_the_batch(dtype: mx.Dtype) -> None:
    x, w = data(1009, dtype, rows=17)
    assert same_bits(norm(x[:1], w), norm(x, w)[:1])


@pytest.mark.parametrize("eps", [0.0, 1e-12, 1.0])
def test_eps_is_f32(eps: float) -> None:
    """1e-12 would vanish in f16."""
    x = mx.full((1, 64), 1e-6, dtype=mx.float16)
    w = mx.ones((64,), mx.float16)
    y = rmsnorm_register[(1,)](x, w, metile.empty(x.shape, x.dtype), eps, N=64, BLOCK=64)
    assert ulps(y, expected(x, w, eps)).max() <= 2


def rejected(error: type[Exception], *parts: str, **options: Any) -> None:
    x, w = options.pop("x"), options.pop("w")
    rows = options.pop("rows", x.shape[0])
    out = options.pop("out", metile.empty(x.shape, x.dtype))
    options = {"N": 1009, "BLOCK": 1024, **options}
    with pytest.raises(error) as caught:
        rmsnorm_register[(rows,)](x, w, out, EPS, **options)
    for part in parts:
        assert part in str(caught.value)


def test_x10_buffers_and_sizes_that_do_not_fit() -> None:
    x, w = data(1009, mx.float32)
    rejected(metile.LaunchError, "inputs", "4036", "3027", x=x, w=w, rows=4,
             out=metile.empty((4, 1009), mx.float32))  # fmt: skip
    rejected(metile.LaunchError, "output", "3027", x=x, w=w, out=metile.empty((10,), mx.float32))
    rejected(metile.LaunchError, "weights", "1009", "1008", x=x, w=w[:-1])
    rejected(metile.CompileError, "at least one column", x=x, w=w, N=0)
    rejected(metile.CompileError, "must fit into the block", x=x, w=w, BLOCK=512)
    rejected(metile.LayoutError, "power of two", x=x, w=w, BLOCK=1010)
    rejected(metile.LayoutError, "power of two", x=x, w=w, BLOCK=1010)
    held = metile.ThreadLayout.identity(2048, elements_per_thread=4)
    rejected(metile.CompileError, "2048", "1024", x=x, w=w, LAYOUT=held)


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [31, 1009])
def test_f28_gradients_against_float64(width: int, dtype: mx.Dtype, together: int) -> None:
    x, w = data(width, dtype, rows=8)
    c = data(width, dtype, rows=8, seed=1)[0]
    made = rmsnorm_register_gradients[(8 // together,)](
        x, w, c, c, metile.empty(x.shape, dtype),
        metile.empty((8 // together, width), mx.float32), EPS,
        N=width, BLOCK=max(32, metile.next_power_of_2(width)), ROWS=together,
    )  # fmt: skip
    wide, weight, cotangent = exact(x), exact(w), exact(c)
    root = 1 / np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPS)
    normal, along = wide * root, cotangent * weight
    right = root * (along - normal * (along * normal).mean(axis=1, keepdims=True))
    step = {mx.float32: 1e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3}[dtype]
    assert np.abs(exact(made[0]) - right).max() <= step * np.abs(right).max()
    total = (cotangent * normal).sum(axis=0)
    assert np.abs(exact(made[1]).sum(axis=0) - total).max() <= 1e-6 * np.abs(total).max()


# Runtime width

RUNTIME_WIDTHS = (1, 3, 31, 33, 127, 1009, 1024, 1025, 4096, 32_768, 151_936)


def runtime(x: mx.array, w: mx.array, **options: Any) -> mx.array:
    out = metile.empty(x.shape, x.dtype)
    return rmsnorm[x.shape[0]](x, w, out, x.shape[-1], EPS, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", [32, 256, 1024])
def test_b1_any_width_with_one_text(block: int, dtype: mx.Dtype) -> None:
    """SPEC B1, F67: every width on the CPU, against float64; outliers among the numbers."""
    texts = set()
    for width in RUNTIME_WIDTHS:
        x, w = data(width, dtype, seed=width)
        check(runtime(x, w, BLOCK=block, backend="cpu"), x, w, (block, width))
        special = list(rmsnorm._specialisations.values())[-1]
        texts.add(id(special))
    assert len(texts) == 1


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", DTYPES)
def test_b1_any_width_on_the_reference_and_in_the_emulator(dtype: mx.Dtype) -> None:
    for width in (1, 33, 300, 1009):
        x, w = data(width, dtype, seed=width)
        check(runtime(x, w, BLOCK=256, backend="reference"), x, w, width)
        with emulator.checked(schedules=2):
            check(runtime(x, w, BLOCK=256, backend="emulator"), x, w, width)
    # F67: a sum in the dtype overflows or stalls.
    large, ones = (mx.full((2, 4096), value, dtype) for value in (300, 1))
    for x in (large, ones):
        with emulator.checked(schedules=2):
            check(runtime(x, ones[0], BLOCK=256, backend="emulator"), x, ones[0], dtype)


def test_f66_mlx_order_of_rounding_with_a_runtime_width() -> None:
    """Bit for bit what the kernel of constant width gives, where no addition rounds."""
    rng = np.random.default_rng(0)
    numbers = mx.array(rng.integers(-8, 9, (4, 1024)).astype(np.float32))
    for dtype in DTYPES:
        x, w = numbers.astype(dtype), data(1024, dtype)[1]
        made = {}
        for rounds in (False, True):
            lanes = metile.ThreadLayout.identity(1024)
            made[rounds] = runtime(x, w, ROUND_NORMALISED=rounds, backend="cpu")
            fixed = norm(x, w, lanes, ROUND_NORMALISED=rounds, backend="cpu")
            assert same_bits(made[rounds], fixed)
        # The two orders can be told apart.
        assert same_bits(made[False], made[True]) == (dtype == mx.float32)


def test_f67_squares_are_added_in_f32_at_any_width() -> None:
    x = mx.full((2, 4096), 300, mx.float16)
    w = mx.random.normal((4096,)).astype(mx.float16)
    assert same_bits(runtime(x, w, backend="cpu"), mx.broadcast_to(w, (2, 4096)))
    ones = mx.ones((2, 4096), mx.bfloat16)
    assert same_bits(runtime(ones, ones[0], backend="cpu"), ones)


def test_k7_no_filling_of_a_runtime_width() -> None:
    """The loop over the row provably stores all of it."""
    x, w = data(1009, mx.float32)
    dispatch = rmsnorm[ROWS].prepare(x, w, metile.empty(x.shape, x.dtype), 1009, EPS)
    (fact,) = dispatch.execution_report.coverage
    assert fact.proven


def test_an_unweighted_runtime_width_and_no_rows() -> None:
    x, _ = data(77, mx.float32)
    made = runtime(x, x, WEIGHTED=False, BLOCK=32, backend="cpu")
    check(made, x, mx.ones(77), "unweighted")
    assert runtime(x[:0], x[0], backend="cpu").shape == (0, 77)
