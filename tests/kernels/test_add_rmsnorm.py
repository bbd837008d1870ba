"""`metile_kernels.add_rmsnorm` and the runtime-width gradients, against float64 (SPEC B1, F73)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_kernels.add_rmsnorm import add_rmsnorm, add_rmsnorm_register
from metile_kernels.norm_weights import norm_weight_gradients
from metile_kernels.rmsnorm import rmsnorm_gradients
from metile_mlx import emulator
from tests.support.public import compilations, same_bits
from tests.support.rounding import exact, rounded, ulps

EPS = 1e-5
DTYPES = (mx.float16, mx.bfloat16, mx.float32)
WIDTHS = (1, 3, 31, 33, 127, 1009, 4096)
ROWS = 3
# Rows of a program, in the layout of the tables: each thread has the same columns of all.
TOGETHER = [(mx.bfloat16, 32, 8), (mx.float32, 61, 4), (mx.float16, 1, 2)]
Numbers = np.ndarray[Any, Any]


def data(width: int, dtype: mx.Dtype, rows: int = ROWS) -> tuple[mx.array, mx.array, mx.array]:
    """Rows of which some cancel, and weights."""
    rng = np.random.default_rng(width)
    x, r = rng.standard_normal((2, rows, width))
    r[:, ::5] = -x[:, ::5] + 1e-3
    w = rng.uniform(0.5, 2, width)
    return tuple(mx.array(a.astype(np.float32)).astype(dtype) for a in (x, r, w))


def launch(
    x: mx.array, r: mx.array, w: mx.array, is_register: bool, **options: Any
) -> tuple[mx.array, mx.array]:
    width, out = x.shape[-1], metile.empty(x.shape, x.dtype)
    if not is_register:
        return add_rmsnorm[x.shape[0]](x, r, w, out, out, width, EPS, **options)
    block, programs = max(32, metile.next_power_of_2(width)), x.shape[0] // options.get("ROWS", 1)
    return add_rmsnorm_register[programs](x, r, w, out, out, EPS, N=width, BLOCK=block, **options)


def check(made: tuple[mx.array, mx.array], x: mx.array, r: mx.array, w: mx.array) -> None:
    """F73: the sum has MLX's bits; the norm is of the rounded sum, within 2 ulp or a millionth."""
    normed, total = made
    assert same_bits(total, x + r)
    wide = exact(x + r)
    scale = 1 / np.sqrt((wide**2).mean(axis=1, keepdims=True) + float(np.float32(EPS)))
    right = wide * scale * exact(w)
    if x.dtype == mx.float32:
        assert np.abs(exact(normed) - right).max() <= 1e-6 * np.abs(right).max()
        assert ulps(normed, rounded(right, x.dtype)).max() <= 16
    else:
        assert ulps(normed, rounded(right, x.dtype)).max() <= 2


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_register", [True, False])
def test_f73_every_width_on_the_cpu(is_register: bool, dtype: mx.Dtype) -> None:
    every = (*WIDTHS, 32_768)
    # Registers of each width are a text of their own: each dtype has some.
    for width in every[DTYPES.index(dtype) :: 3] if is_register else every:
        arrays = data(width, dtype)
        check(launch(*arrays, is_register, backend="cpu"), *arrays)


@pytest.mark.parametrize(("dtype", "width", "together"), TOGETHER)
def test_f51_rows_of_a_program_have_the_bits_of_one_alone(
    dtype: mx.Dtype, width: int, together: int
) -> None:
    arrays = data(width, dtype, 2 * together)
    made = launch(*arrays, True, ROWS=together, backend="cpu")
    check(made, *arrays)
    alone = launch(*arrays, True, backend="cpu")
    assert all(same_bits(a, b) for a, b in zip(made, alone, strict=True))
    check(launch(*arrays, True, ROWS=together, backend="reference"), *arrays)


@pytest.mark.emulator
@pytest.mark.parametrize("is_register", [True, False])
def test_f73_on_the_reference_and_in_the_emulator(is_register: bool) -> None:
    for width, dtype in zip((1, 33, 300), DTYPES, strict=True):
        arrays = data(width, dtype)
        check(launch(*arrays, is_register, backend="reference"), *arrays)
        with emulator.checked(schedules=2):
            check(launch(*arrays, is_register, backend="emulator"), *arrays)


def test_k7_one_text_for_all_widths_and_rows() -> None:
    with compilations() as found:
        for width in (2, 40, 1100):
            for rows in (1, 5):
                launch(*data(width, mx.float32, rows), False, backend="cpu")
    assert found in ([], ["add_rmsnorm"])


def expected_gradients(
    x: mx.array, w: mx.array, c: mx.array, passed: mx.array
) -> tuple[Numbers, Numbers, Numbers]:
    wide, weight, cotangent = exact(x), exact(w), exact(c)
    root = 1 / np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPS)
    normal, along = wide * root, cotangent * weight
    gradient = root * (along - normal * (along * normal).mean(axis=1, keepdims=True))
    return gradient + exact(passed), root[:, 0], (cotangent * normal).sum(axis=0)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", DTYPES)
def test_f28_gradients_of_any_width(dtype: mx.Dtype) -> None:
    """For the inputs, with what was passed on, and for the weight in chunks of rows."""
    step = {mx.float32: 1e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3}[dtype]
    cases = [(width, "cpu") for width in WIDTHS]
    cases += [(70, "reference"), (70, "emulator")]
    for width, backend in cases:
        x, passed, w = data(width, dtype, rows=7)
        c = data(width + 1, dtype, rows=7)[0][:, :width]
        with emulator.checked(schedules=2):
            gradient, roots = rmsnorm_gradients[7](
                x, w, c, passed, metile.empty(x.shape, dtype), metile.empty(7, mx.float32),
                width, EPS, BLOCK=64, PASSED=True, backend=backend,
            )  # fmt: skip
            parts = norm_weight_gradients[metile.cdiv(width, 32), 3](
                x, c, roots, roots, metile.empty((3, width), mx.float32),
                metile.empty((3, width), mx.float32), 7, width, 3, BLOCK=32, backend=backend,
            )  # fmt: skip
            mx.eval(gradient, roots, parts)
        right, root, total = expected_gradients(x, w, c, passed)
        assert np.abs(exact(gradient) - right).max() <= step * np.abs(right).max()
        assert np.abs(exact(roots) / root - 1).max() <= 1e-6
        assert np.abs(exact(parts).sum(axis=0) - total).max() <= 1e-6 * np.abs(total).max()
