"""`metile_kernels.cross_entropy`: any width and dtype against float64 (B1, F24, F51, F53)."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

import metile_mlx as metile
from metile_kernels.cross_entropy import cross_entropy, cross_entropy_gradient
from metile_mlx import emulator
from tests.support import emulated
from tests.support.public import compilations, same_bits
from tests.support.rounding import exact
from tests.support.rows import DTYPES, INF, NAN, SMALL_WIDTHS, WIDTHS, near, normal

BACKENDS = ("cpu", "reference", pytest.param("emulator", marks=pytest.mark.emulator))


def data(width: int, dtype: mx.Dtype, scale: float = 3) -> tuple[mx.array, mx.array]:
    """Five rows; targets at both ends, between, and on both sides of a block's end."""
    targets = [0, width - 1, width // 2, min(1023, width - 1), min(1024, width - 1)]
    return normal((5, width), dtype, seed=width, scale=scale), mx.array(targets, mx.int32)


def run(
    x: mx.array, targets: mx.array, dtype: Any = mx.float32, **options: Any
) -> tuple[mx.array, mx.array, mx.array]:
    rows = x.shape[0]
    found = metile.empty(rows, mx.float32)
    made: tuple[mx.array, mx.array, mx.array] = cross_entropy[rows](
        x, targets, metile.empty(rows, dtype), found, found, x.shape[1], **options
    )
    return made


def losses64(x: mx.array, targets: mx.array) -> NDArray[np.float64]:
    wide = exact(x)
    shifted = wide - wide.max(axis=1, keepdims=True)
    score = shifted[np.arange(len(wide)), np.array(targets)]
    made: NDArray[np.float64] = np.log(np.exp(shifted).sum(axis=1)) - score
    return made


def check(width: int, dtype: mx.Dtype, scale: float = 3, **options: Any) -> None:
    """The losses in f32 and in the dtype, and the gradient for cotangents of both."""
    x, targets = data(width, dtype, scale)
    loss, largest, total = run(x, targets, **options)
    expected, wide = losses64(x, targets), exact(x)
    size = 1 + np.abs(expected)
    near(loss, expected, width, size)
    near(run(x, targets, dtype, **options)[0], expected, width, size)
    assert np.array_equal(exact(largest), wide.max(axis=1))
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    near(total, powers.sum(axis=1), width, powers.sum(axis=1))
    c, t = normal((5,), dtype, seed=1), normal((5,), seed=2)
    made = cross_entropy_gradient[5](
        x, targets, largest, total, c, t, metile.empty(x.shape, dtype), width, **options
    )
    hits = np.zeros(wide.shape)
    hits[np.arange(5), np.array(targets)] = 1
    given, extra = exact(c)[:, None], exact(t)[:, None]
    part = powers / powers.sum(axis=1, keepdims=True)
    size = np.abs(given) * (part + hits) + np.abs(extra) * powers
    # The exponent is a rounded difference.
    distance = 4 + wide.max(axis=1, keepdims=True) - wide
    near(made, given * (part - hits) + extra * powers, width, size * distance, 2.0**-23)


@pytest.mark.parametrize("dtype", DTYPES)
def test_b1_any_width_with_one_text(dtype: mx.Dtype) -> None:
    check(5, dtype, backend="cpu")
    with compilations() as found:
        for width in WIDTHS:
            check(width, dtype, backend="cpu")
        check(1000, dtype, scale=30, backend="cpu")
    assert found == []


def test_b1_on_the_reference() -> None:
    for width, dtype in zip(SMALL_WIDTHS, DTYPES, strict=True):
        check(width, dtype, BLOCK=128, backend="reference")


@pytest.mark.emulator
def test_b1_any_width_and_dtype_in_the_emulator() -> None:
    """The texts are built together."""
    options = {"BLOCK": 128, "backend": "emulator"}
    x, rows = {dtype: data(40, dtype) for dtype in DTYPES}, mx.ones(5)
    emulated.prebuild(
        [
            *(partial(run, *x[dtype], **options) for dtype in DTYPES),
            *(partial(run, *x[dtype], dtype, **options) for dtype in DTYPES[1:]),
            *(
                partial(
                    cross_entropy_gradient[5], *x[dtype], rows, rows, rows.astype(dtype), rows,
                    metile.empty((5, 40), dtype), 40, **options,
                )
                for dtype in DTYPES
            ),
        ]
    )  # fmt: skip
    for dtype in DTYPES:
        with emulator.checked(schedules=2):
            for width in WIDTHS[:-1]:
                check(width, dtype, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_f53_targets_outside_of_the_row_read_nothing(backend: str) -> None:
    """The rows beside them are as they are; every bound of i32 is among the targets."""
    x = normal((7, 33))
    targets = mx.array([0, 33, -1, 2**31 - 1, -(2**31), -33, 32], mx.int32)
    right = mx.array([0, 0, 0, 0, 0, 0, 32], mx.int32)
    outside = np.array([False, True, True, True, True, True, False])
    results = []
    for given in (targets, right):
        made = run(x, given, BLOCK=32, backend=backend)
        gradient = cross_entropy_gradient[7](
            x, given, made[1], made[2], mx.ones(7), mx.zeros(7), metile.empty(x.shape, x.dtype),
            33, BLOCK=32, backend=backend,
        )  # fmt: skip
        results.append((np.array(made[0]), np.array(gradient)))
    for made, expected in zip(*results, strict=True):
        assert np.isnan(made[outside]).all()
        assert np.array_equal(made[~outside], expected[~outside])


@pytest.mark.parametrize("backend", BACKENDS)
def test_f24_masked_logits(backend: str) -> None:
    """A masked target costs inf, a row of nothing else NaN, as in MLX."""
    x = mx.array([[-INF, 0, -INF], [-INF, 0, -INF], [-INF] * 3, [NAN, 0, 0], [INF, 0, 0]])
    targets = mx.array([1, 0, 0, 1, 1], mx.int32)
    loss = run(x, targets, BLOCK=32, backend=backend)[0]
    assert np.array_equal(np.array(loss), [0, INF, NAN, NAN, NAN], equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_f51_a_row_depends_on_nothing_else(dtype: mx.Dtype) -> None:
    x = normal((17, 1009), dtype)
    targets = mx.arange(17, dtype=mx.int32)
    loss = run(x, targets, backend="cpu")[0]
    assert same_bits(run(x[:1], targets[:1], backend="cpu")[0], loss[:1])
    spoiled = mx.array(x)
    spoiled[1] = NAN
    assert same_bits(run(spoiled, targets, backend="cpu")[0][2:], loss[2:])


def test_k7_every_element_is_provably_stored() -> None:
    x, targets = data(33, mx.float32)
    found = metile.empty(5, mx.float32)
    forward = cross_entropy[5].prepare(x, targets, found, found, found, 33)
    rows = mx.ones(5)
    backward = cross_entropy_gradient[5].prepare(
        x, targets, rows, rows, rows, rows, metile.empty(x.shape, x.dtype), 33
    )
    for dispatch in (forward, backward):
        assert all(fact.proven for fact in dispatch.execution_report.coverage)
