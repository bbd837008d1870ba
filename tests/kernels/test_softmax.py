"""`metile_kernels.softmax`: every width and dtype against float64 (SPEC B1, F24, F51, F53, F67)."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_kernels.softmax import log_softmax_gradient, softmax, softmax_gradient
from metile_mlx import emulator
from tests.support import emulated
from tests.support.public import compilations, same_bits
from tests.support.rounding import exact
from tests.support.rows import (
    DTYPES,
    INF,
    NAN,
    SMALL_WIDTHS,
    WIDTHS,
    check_softmax,
    near,
    normal,
    softmax64,
)

BACKENDS = ("cpu", "reference", pytest.param("emulator", marks=pytest.mark.emulator))


def run(x: mx.array, **options: Any) -> mx.array:
    made: mx.array = softmax[x.shape[0]](x, metile.empty(x.shape, x.dtype), x.shape[1], **options)
    return made


def check_both(x: mx.array, what: object, **options: Any) -> None:
    check_softmax(x, run(x, **options), run(x, LOG=True, **options), what)


@pytest.mark.parametrize("dtype", DTYPES)
def test_b1_any_width_with_one_text(dtype: mx.Dtype) -> None:
    """On the CPU; numbers of both signs and of large ones."""
    check_both(normal((3, 5), dtype), "first", backend="cpu")
    with compilations() as found:
        for width in WIDTHS:
            check_both(normal((3, width), dtype, scale=3), width, backend="cpu")
        check_both(normal((17, 40), dtype, scale=30), "many rows", backend="cpu")
    assert found == []


@pytest.mark.parametrize("block", [32, 256])
def test_b1_any_block(block: int) -> None:
    for width in (1, 31, 256, 257, 5000):
        check_both(normal((2, width), scale=3), width, BLOCK=block, backend="cpu")


def test_b1_on_the_reference() -> None:
    for width, dtype in zip(SMALL_WIDTHS, DTYPES, strict=True):
        check_both(normal((3, width), dtype, scale=3), width, BLOCK=128, backend="reference")


@pytest.mark.emulator
def test_b1_any_width_and_dtype_in_the_emulator() -> None:
    """The texts are built together; a row has the same bits in any company (F51)."""
    emulated.prebuild(
        partial(run, normal((1, 40), dtype), LOG=log, BLOCK=128, backend="emulator")
        for dtype in DTYPES
        for log in (False, True)
    )
    for dtype in DTYPES:
        with emulator.checked(schedules=2):
            for width in WIDTHS:
                x = normal((2, width), dtype, scale=3)
                check_both(x, width, BLOCK=128, backend="emulator")
            x = normal((17, 300), dtype)
            one, many = (run(a, BLOCK=128, backend="emulator") for a in (x[:1], x))
            assert same_bits(one, many[:1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_f24_masked_elements_and_rows_that_have_no_result(backend: str) -> None:
    """As MLX has it: NaN for a row of -inf, and for one with NaN or +inf."""
    rows = [[-INF, -INF, 0], [-INF] * 3, [INF, 0, 1], [NAN, 0, 1]]
    for dtype in DTYPES:
        low = -6e4 if dtype == mx.float16 else -3e38
        x = mx.array([*rows, [low, low, -INF]]).astype(dtype)
        made = run(x, BLOCK=32, backend=backend)
        log = run(x, LOG=True, BLOCK=32, backend=backend)
        nan = [NAN] * 3
        assert np.array_equal(
            exact(made), [[0, 0, 1], nan, nan, nan, [0.5, 0.5, 0]], equal_nan=True
        )
        assert mx.array_equal(made, mx.softmax(x, axis=1, precise=True), equal_nan=True)
        half = float(exact(mx.array(np.log(0.5)).astype(dtype)))
        assert np.array_equal(
            exact(log), [[-INF, -INF, 0], nan, nan, nan, [half, half, -INF]], equal_nan=True
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_f53_what_is_beyond_a_row_counts_for_nothing(backend: str) -> None:
    """Five large negative numbers in a block of 32: 0 would be the largest, and all of the sum."""
    assert same_bits(run(mx.full((2, 5), -1e30), BLOCK=32, backend=backend), mx.full((2, 5), 0.2))


def test_f67_sums_are_f32() -> None:
    """A sum of bf16 stalls at 256."""
    for dtype in DTYPES:
        x = mx.full((2, 32_768), 3, dtype)
        assert same_bits(run(x, backend="cpu"), mx.full(x.shape, 2.0**-15, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_f51_a_row_depends_on_nothing_else(dtype: mx.Dtype) -> None:
    """Not on the batch, not on its neighbours, and two runs have the same bits."""
    x = normal((17, 1009), dtype)
    spoiled = mx.array(x)
    spoiled[1] = NAN
    for options in ({}, {"LOG": True}):
        made = run(x, backend="cpu", **options)
        assert same_bits(run(x[:1], backend="cpu", **options), made[:1])
        assert same_bits(run(spoiled, backend="cpu", **options)[2:], made[2:])
        assert same_bits(run(x, backend="cpu", **options), made)


def test_k7_every_element_is_provably_stored() -> None:
    x = normal((3, 1009))
    out = metile.empty(x.shape, x.dtype)
    for dispatch in (
        softmax[3].prepare(x, out, 1009),
        softmax_gradient[3].prepare(x, x, out, 1009),
        log_softmax_gradient[3].prepare(x, x, out, 1009),
    ):
        (fact,) = dispatch.execution_report.coverage
        assert fact.proven


def check_gradients(width: int, dtype: mx.Dtype, **options: Any) -> None:
    x, c = normal((3, width), dtype, scale=2), normal((3, width), dtype, seed=1)
    y, out = mx.softmax(x, axis=1, precise=True), metile.empty(x.shape, dtype)
    wide, given, right = exact(y), exact(c), softmax64(x)
    made = softmax_gradient[3](y, c, out, width, **options)
    along = (wide * given).sum(axis=1, keepdims=True)
    size = wide * (np.abs(given) + (wide * np.abs(given)).sum(axis=1, keepdims=True))
    near(made, wide * (given - along), width, size)
    made = log_softmax_gradient[3](x, c, out, width, **options)
    total = given.sum(axis=1, keepdims=True)
    size = np.abs(given) + right * np.abs(given).sum(axis=1, keepdims=True)
    near(made, given - right * total, width, size)


@pytest.mark.parametrize("dtype", DTYPES)
def test_f28_gradients_against_float64(dtype: mx.Dtype) -> None:
    for width in WIDTHS:
        check_gradients(width, dtype, backend="cpu")


@pytest.mark.emulator
def test_f28_gradients_on_the_reference_and_in_the_emulator() -> None:
    for width in SMALL_WIDTHS:
        check_gradients(width, mx.float16, BLOCK=128, backend="reference")
        with emulator.checked(schedules=2):
            check_gradients(width, mx.float16, BLOCK=128, backend="emulator")
