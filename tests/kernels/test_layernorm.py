"""`metile_kernels.layernorm`: widths and dtypes against float64 (SPEC B1, F28, F69)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_kernels.layernorm import layernorm, layernorm_gradients, layernorm_register
from metile_mlx import emulator
from tests.support.public import compilations, same_bits
from tests.support.rounding import exact

EPS = 1e-5
DTYPES = (mx.float16, mx.bfloat16, mx.float32)
WIDTHS = (1, 3, 31, 33, 127, 1009, 4096)
# Rows of a program, in the layout of the tables: each thread has the same columns of all.
TOGETHER = [(mx.float16, 32, 8), (mx.bfloat16, 61, 4), (mx.float32, 1, 2), (mx.float16, 128, 4)]
STEPS = {mx.float16: 2**-11, mx.bfloat16: 2**-8, mx.float32: 2e-6}


def data(width: int, dtype: mx.Dtype, rows: int = 3) -> tuple[mx.array, ...]:
    """Rows around 3, weights, biases and cotangents."""
    rng = np.random.default_rng(width)
    made = (rng.standard_normal((rows, width)) + 3, *rng.uniform(0.5, 2, (2, width)))
    made += (rng.standard_normal((rows, width)),)
    return tuple(mx.array(a.astype(np.float32)).astype(dtype) for a in made)


def launch(x: mx.array, w: mx.array, b: mx.array, is_register: bool, **options: Any) -> mx.array:
    rows, width = x.shape
    out = metile.empty(x.shape, x.dtype)
    if not is_register:
        return layernorm[rows](x, w, b, out, width, EPS, **options)
    block, programs = max(32, metile.next_power_of_2(width)), rows // options.get("ROWS", 1)
    return layernorm_register[programs](x, w, b, out, EPS, N=width, BLOCK=block, **options)


def normalised(x: mx.array) -> tuple[Any, Any, Any]:
    """In float64: the normalised values, the means and 1 / the deviations."""
    wide = exact(x)
    mean = wide.mean(axis=1, keepdims=True)
    root = 1 / np.sqrt(((wide - mean) ** 2).mean(axis=1, keepdims=True) + float(np.float32(EPS)))
    return (wide - mean) * root, mean, root


def check(made: mx.array, x: mx.array, w: mx.array, b: mx.array, what: object) -> None:
    """One rounding, and of f32 what the sums of values around 3 leave."""
    right = normalised(x)[0] * exact(w) + exact(b)
    allowed = 1.01 * STEPS[x.dtype] * np.abs(right) + 8e-6
    assert (np.abs(exact(made) - right) <= allowed).all(), what


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_register", [True, False])
def test_every_width_on_the_cpu(is_register: bool, dtype: mx.Dtype) -> None:
    # Registers of each width are a text of their own: each dtype has some.
    widths = WIDTHS[DTYPES.index(dtype) :: 3] if is_register else (*WIDTHS, 151_936)
    for width in widths:
        x, w, b, _ = data(width, dtype)
        check(launch(x, w, b, is_register, backend="cpu"), x, w, b, width)


@pytest.mark.parametrize(("dtype", "width", "together"), TOGETHER)
def test_f51_rows_of_a_program_have_the_bits_of_one_alone(
    dtype: mx.Dtype, width: int, together: int
) -> None:
    """Full rows and ragged ones; what one program has at the end of its rows is another's."""
    x, w, b, _ = data(width, dtype, 2 * together)
    made = launch(x, w, b, True, ROWS=together, backend="cpu")
    check(made, x, w, b, width)
    assert same_bits(made, launch(x, w, b, True, backend="cpu"))
    check(launch(x, w, b, True, ROWS=together, backend="reference"), x, w, b, width)


def test_the_widest_row_in_registers() -> None:
    x, w, b, _ = data(32_768, mx.float16)
    check(launch(x, w, b, True, backend="cpu"), x, w, b, "widest")


@pytest.mark.emulator
@pytest.mark.parametrize("is_register", [True, False])
def test_on_the_reference_and_in_the_emulator(is_register: bool) -> None:
    for width, dtype in zip((1, 33, 300), DTYPES, strict=True):
        x, w, b, _ = data(width, dtype)
        check(launch(x, w, b, is_register, backend="reference"), x, w, b, width)
        with emulator.checked(schedules=2):
            check(launch(x, w, b, is_register, backend="emulator"), x, w, b, width)


@pytest.mark.emulator
@pytest.mark.parametrize("is_register", [True, False])
def test_f69_numbers_far_from_zero(is_register: bool) -> None:
    """E[x^2] - E[x]^2 would give a variance of -128 here."""
    x = mx.array([[40000.0, 40001.0, 40002.0, 40003.0]])
    options = {"WEIGHTED": False, "BIASED": False}
    right = np.array([-1.34164, -0.44721, 0.44721, 1.34164])
    for backend in ("cpu", "reference", "emulator"):
        with emulator.checked(schedules=2):
            made = launch(x, x[0], x[0], is_register, backend=backend, **options)
            assert np.abs(exact(made) - right).max() <= 1e-5, backend
    constant = launch(mx.full((2, 300), 1e30), x[0], x[0], is_register, **options)
    assert mx.array_equal(constant, mx.zeros((2, 300)))


def test_k7_one_text_for_all_widths_and_rows() -> None:
    with compilations() as found:
        for width in (2, 40, 1100):
            for rows in (1, 5):
                x, w, b, _ = data(width, mx.float32, rows)
                launch(x, w, b, False, backend="cpu")
    assert found in ([], ["layernorm"])


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", DTYPES)
def test_f28_gradients_of_any_width(dtype: mx.Dtype) -> None:
    step = {mx.float32: 4e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3}[dtype]
    cases = [(width, "cpu") for width in WIDTHS[1:]] + [(70, "reference"), (70, "emulator")]
    for width, backend in cases:
        x, w, _, c = data(width, dtype)
        with emulator.checked(schedules=2):
            gradient, means, roots = layernorm_gradients[3](
                x, w, c, metile.empty(x.shape, dtype), *[metile.empty(3, mx.float32)] * 2,
                width, EPS, BLOCK=64, backend=backend,
            )  # fmt: skip
            mx.eval(gradient, means, roots)
        normal, mean, root = normalised(x)
        slope = exact(c) * exact(w)
        along = (slope * normal).mean(axis=1, keepdims=True)
        right = root * (slope - slope.mean(axis=1, keepdims=True) - normal * along)
        assert np.abs(exact(gradient) - right).max() <= step * np.abs(right).max()
        assert np.abs(exact(means) - mean[:, 0]).max() <= 1e-6 * 3
        assert np.abs(exact(roots) / root[:, 0] - 1).max() <= 1e-5
