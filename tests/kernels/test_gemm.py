"""`metile_kernels.gemm` and `gemm_split` against float64 (SPEC B1, P4, F12, F20, F51, F57)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

import metile_mlx as metile
from metile_kernels.activations import exactly, gelu_tanh, relu, silu
from metile_kernels.gemm import gemm, grid
from metile_kernels.gemm_split import add_parts, gemm_split
from metile_kernels.program_order import grouped, hilbert, morton
from tests.support.profile import count
from tests.support.public import compilations, same_bits
from tests.support.rounding import exact, rounded
from tests.support.rows import DTYPES, near, normal

# What runs on the cpu is emulated, too, when this file is done.
BACKENDS = ("cpu", "reference")
TILES = {"BM": 16, "BN": 8, "BK": 8}
# (batches, M, N, K): one of each, odd ones, whole tiles, and around 8.
SIZES = ((1, 1, 1, 1), (1, 7, 9, 8), (2, 33, 17, 20), (1, 16, 8, 24), (3, 1, 31, 9), (1, 40, 1, 7))

# Each dtype, and each way of storing A and B.
STORED = list(zip(DTYPES * 2, ("nn", "nt", "tn", "tt", "tn", "nt"), strict=True))


def small(dtype: mx.Dtype, *shape: int) -> mx.array:
    """Integers whose products add up exactly in f32."""
    return mx.random.randint(-4, 5, shape, key=mx.random.key(sum(shape))).astype(dtype)


def run(
    a: mx.array,
    b: mx.array,
    *,
    bias: mx.array | None = None,
    residual: mx.array | None = None,
    function: Any = None,
    scale: float | None = None,
    transposed: str = "nn",
    **options: Any,
) -> mx.array:
    """Of (batches, M, K) and (batches, K, N); one batch is all of them; "t" is stored the other way
    round."""
    batches, (m, k), n = max(len(a), len(b)), a.shape[1:], b.shape[2]
    given = [
        mx.contiguous(mx.swapaxes(x, 1, 2)) if how == "t" else x
        for x, how in zip((a, b), transposed, strict=True)
    ]
    steps = [0 if len(x) == 1 else x.shape[1] * x.shape[2] for x in given]
    pitches = [x.shape[2] for x in given]
    flags = {"A_TRANSPOSED": transposed[0] == "t", "B_TRANSPOSED": transposed[1] == "t"}
    held = {**TILES, **flags, **options}
    programs = grid(batches, m, n, held["BM"], held["BN"], held.get("ORDER"))
    made: mx.array = gemm[programs](
        *given, a if bias is None else bias, a if residual is None else residual,
        metile.empty((batches, m, n), a.dtype), batches, m, n, k, steps[0], pitches[0], steps[1],
        pitches[1], 1.0 if scale is None else scale, SCALED=scale is not None,
        BIASED=bias is not None, FUNCTION=function, RESIDUAL=residual is not None, **held,
    )  # fmt: skip
    return made


def check_exact(made: mx.array, a: mx.array, b: mx.array) -> None:
    assert np.array_equal(exact(made), rounded(exact(a) @ exact(b), made.dtype))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("dtype", "transposed"), STORED)
def test_p4_products_of_integers_are_exact(backend: str, dtype: mx.Dtype, transposed: str) -> None:
    """Any size with one text, ragged ones too, and any way of storing either matrix."""
    check_sizes(backend, dtype, transposed)


@pytest.mark.emulator
@pytest.mark.parametrize(("dtype", "transposed"), STORED[: count(ci=2, full=6)])
def test_p4_products_of_integers_are_exact_in_the_emulator(
    dtype: mx.Dtype, transposed: str
) -> None:
    check_sizes("emulator", dtype, transposed)


def check_sizes(backend: str, dtype: mx.Dtype, transposed: str) -> None:
    for number, (batches, m, n, k) in enumerate(SIZES):
        a, b = small(dtype, batches, m, k), small(dtype, batches, k, n)
        with compilations() as found:
            check_exact(run(a, b, transposed=transposed, backend=backend), a, b)
        assert number == 0 or found == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_f20_batches_lie_along_the_third_axis(backend: str) -> None:
    """All with their own matrices, or all with the same one of either."""
    many, one = (3, 17, 9), (1, 17, 9)
    for of_a, of_b in ((many, many), (many, one), (one, many)):
        a, b = small(mx.float32, *of_a), mx.swapaxes(small(mx.float32, *of_b) + 1, 1, 2)
        check_exact(run(a, mx.contiguous(b), backend=backend), a, b)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_b1_all_that_follows_the_product_is_rounded_once(backend: str, dtype: mx.Dtype) -> None:
    a, b = normal((2, 33, 20), dtype, 1), normal((1, 20, 17), dtype, 2)
    bias, rest = normal((17,), mx.float32, 3), normal((2, 33, 17), dtype, 4)
    product, size = exact(a) @ exact(b), np.abs(exact(a)) @ np.abs(exact(b))

    def finished(name: str, inner: NDArray[np.float64]) -> NDArray[np.float64]:
        made: NDArray[np.float64] = exactly(name, inner)
        return made

    near(run(a, b, scale=-0.25, backend=backend), -0.25 * product, "scale", size)
    inner, size = 0.5 * product + exact(bias), size + np.abs(exact(bias)) + np.abs(exact(rest))
    made = run(a, b, bias=bias, residual=rest, function=gelu_tanh, scale=0.5, backend=backend)
    near(made, finished("gelu_tanh", inner) + exact(rest), "all", 4 * size)
    if dtype == mx.float32:
        for function in (relu, silu):
            made = run(a, b, bias=bias, function=function, backend=backend)
            name = function.__name__
            near(made, finished(name, product + exact(bias)), name, 4 * size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_p1_every_order_of_programs_makes_the_same_bits(backend: str) -> None:
    """Of 5 x 4 tiles, in blocks of 2 x 2."""
    a, b = normal((2, 70, 9), mx.float16, 1), normal((2, 9, 31), mx.float16, 2)
    expected = run(a, b, backend=backend)
    for walk in (grouped, morton, hilbert):
        assert same_bits(run(a, b, ORDER=walk, LEVELS=1, backend=backend), expected)


@pytest.mark.emulator
def test_p4_operands_may_pass_through_either_memory() -> None:
    a, b = normal((1, 33, 20), mx.bfloat16, 1), normal((1, 20, 17), mx.bfloat16, 2)
    made = [
        run(a, b, backend="emulator", schedule=metile.Schedule(staging=staging))
        for staging in ("device", "threadgroup")
    ]
    assert same_bits(*made)
    near(made[0], exact(a) @ exact(b), "both", np.abs(exact(a)) @ np.abs(exact(b)))


def test_k7_every_element_is_provably_stored() -> None:
    """In no order but the grid's own: no proof follows a walk, so the output starts as zeros."""
    x, out = mx.zeros((2, 33, 40)), metile.empty((2, 33, 33), mx.float32)
    sizes = (2, 33, 33, 40, 1320, 40, 1320, 40)
    for order, proven in ((None, True), (hilbert, False)):
        dispatch = gemm[grid(2, 33, 33, 16, 8, order)].prepare(
            x, x, x, x, out, *sizes, 1.0, B_TRANSPOSED=True, ORDER=order, **TILES
        )
        (fact,) = dispatch.execution_report.coverage
        assert fact.proven == proven


@pytest.mark.parametrize("backend", BACKENDS)
def test_f12_f57_nothing_is_multiplied(backend: str) -> None:
    """K = 0 gives zeros, and then what follows; M or N of 0 gives nothing."""
    a, b = mx.zeros((1, 9, 0)), mx.zeros((1, 0, 17))
    assert same_bits(run(a, b, backend=backend), mx.zeros((1, 9, 17)))
    bias = normal((17,))
    made = run(a, b, bias=bias, function=relu, backend=backend)
    assert same_bits(made, mx.broadcast_to(mx.maximum(bias, 0), (1, 9, 17)))
    for m, n in ((0, 17), (9, 0), (0, 0)):
        made = run(mx.zeros((1, m, 5)), mx.zeros((1, 5, n)), backend=backend)
        assert made.shape == (1, m, n)
        mx.eval(made)


@pytest.mark.parametrize("backend", BACKENDS)
def test_b1_parts_of_k_and_their_sums(backend: str) -> None:
    """The last part may be shorter, or have nothing left."""
    batches, m, n, chunk = 2, 9, 17, 16
    for k, splits in ((44, 3), (48, 3), (33, 3), (16, 2), (1, 1)):
        a, b = small(mx.float16, batches, m, k), small(mx.float16, batches, k, n)
        parts = gemm_split[metile.cdiv(n, 8), metile.cdiv(m, 16), batches * splits](
            a, b, metile.empty((batches * splits, m, n), mx.float32), batches, m, n, k,
            m * k, k, k * n, n, chunk, SPLITS=splits, **TILES, backend=backend,
        )  # fmt: skip
        for number, part in enumerate(exact(parts)):
            batch, at = number // splits, slice(number % splits * chunk, None)
            inner = slice(at.start, at.start + chunk)
            assert np.array_equal(part, exact(a)[batch, :, inner] @ exact(b)[batch, inner])
        made = add_parts[metile.cdiv(m * n, 256), batches](
            parts, a, a, metile.empty((batches, m, n), a.dtype), splits, m * n, n, 1.0,
            backend=backend,
        )  # fmt: skip
        check_exact(made, a, b)


@pytest.mark.parametrize("backend", BACKENDS)
def test_f51_parts_are_added_in_their_order(backend: str) -> None:
    """The bits are those of one addition after the other; what follows is that of `gemm`."""
    parts, bias, rest = normal((6, 5, 33), scale=1e3), normal((33,)), normal((2, 5, 33))
    out = metile.empty((2, 5, 33), mx.float32)
    made = add_parts[1, 2](parts, bias, rest, out, 3, 165, 33, 1.0, backend=backend)
    first = np.array(parts)[::3] + np.array(parts)[1::3] + np.array(parts)[2::3]
    assert same_bits(made, mx.array(first))
    made = add_parts[1, 2](
        parts, bias, rest, out, 3, 165, 33, 0.5, SCALED=True, BIASED=True, FUNCTION=relu,
        RESIDUAL=True, backend=backend,
    )  # fmt: skip
    inner = np.float32(0.5) * first + np.array(bias)
    assert same_bits(made, mx.array(np.maximum(inner, 0) + np.array(rest)))
