"""`metile_kernels.activations`: functions and slopes against float64 (SPEC B1, F14, F24, F52)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_kernels import activations
from metile_kernels.activations import (
    SLOPES,
    activation,
    activation_gradient,
    gated,
    gated_gradients,
)
from metile_mlx import emulator
from metile_mlx.nn.layouts import flat_layout
from tests.support import emulated
from tests.support.public import compilations
from tests.support.rounding import exact

NAMES = ("silu", "gelu", "gelu_tanh", "gelu_sigmoid", "relu")
DTYPES = (mx.float16, mx.bfloat16, mx.float32)
# Half a unit of the last place, and of f32 what the 1 of a gelu takes away.
STEPS = {mx.float16: 2**-11, mx.bfloat16: 2**-8, mx.float32: 2**-22}
ABSOLUTE = 1e-6
LAYOUT = flat_layout("metal")


def numbers(size: int, dtype: mx.Dtype, seed: int = 0) -> mx.array:
    """Some of each sign, some where the functions are flat."""
    rng = np.random.default_rng(seed)
    return mx.array(rng.uniform(-6, 6, size).astype(np.float32)).astype(dtype)


def near(found: mx.array, right: np.ndarray[Any, Any], steps: float = 1.0) -> bool:
    dtype = found.dtype
    allowed = 1.01 * STEPS[dtype] * np.abs(right) + ABSOLUTE
    return bool((np.abs(exact(found) - right) <= steps * allowed).all())


def slope(name: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """By central differences of the float64 function."""
    step = 1e-5
    made: np.ndarray[Any, Any] = (
        activations.exactly(name, x + step) - activations.exactly(name, x - step)
    ) / (2 * step)
    return made


def kernels(name: str, size: int, dtype: mx.Dtype, **options: Any) -> list[Callable[[], Any]]:
    """The launches of a function's four kernels, on the same numbers."""
    function: Any = getattr(activations, name)
    x, up, c = (numbers(size, dtype, seed) for seed in range(3))
    grid, out = metile.cdiv(size, 1024), metile.empty(size, dtype)
    of = {"FUNCTION": function, **options}
    slope_of = {"SLOPE": SLOPES[function], **options}
    return [
        partial(activation[grid], x, out, size, **of),
        partial(gated[grid], x, up, out, size, **of),
        partial(activation_gradient[grid], x, c, out, size, **slope_of),
        partial(gated_gradients[grid], x, up, c, out, out, size, **(of | slope_of)),
    ]


def has_all(name: str, dtype: mx.Dtype) -> bool:
    """Whether all four are compared in this dtype, or the first one alone."""
    return DTYPES.index(dtype) == NAMES.index(name) % 3


def launches(name: str, size: int, dtype: mx.Dtype, **options: Any) -> None:
    """The kernels of a function, compared: all four in one dtype, the first in the others."""
    x, up, c = (exact(numbers(size, dtype, seed)) for seed in range(3))
    right, steep = activations.exactly(name, x), slope(name, x)
    single, product, gradient, gradients = kernels(name, size, dtype, **options)
    assert near(single(), right), name
    if not has_all(name, dtype):
        return
    assert near(product(), right * up, 6), name
    assert near(gradient(), c * steep, 6), name
    of_gate, of_up = gradients()
    assert near(of_gate, c * up * steep, 36), name
    assert near(of_up, c * right, 6), name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_every_function_on_the_cpu_and_the_reference(name: str, dtype: mx.Dtype) -> None:
    for size in (1, 7, 8, 9, 1023, 2049):
        launches(name, size, dtype, backend="cpu")
    launches(name, 33, dtype, backend="reference")


@pytest.mark.emulator
def test_every_function_in_the_emulator() -> None:
    """Four neighbours a thread: groups, and a last one that is not full (F52)."""
    options: dict[str, Any] = {"backend": "emulator", "LAYOUT": LAYOUT}
    cases = [(name, 1030, dtype) for name in NAMES for dtype in DTYPES if has_all(name, dtype)]
    emulated.prebuild(launch for case in cases for launch in kernels(*case, **options))
    for case in cases:
        with emulator.checked():
            launches(*case, **options)


def test_four_neighbours_are_one_access() -> None:
    x = mx.zeros(4096, mx.bfloat16)
    dispatch = gated[4].prepare(
        x, x, metile.empty(4096, x.dtype), 4096, FUNCTION=activations.silu, LAYOUT=LAYOUT,
        target="metal",
    )  # fmt: skip
    report = dispatch.execution_report
    assert (len(report.grouped_loads), len(report.grouped_stores)) == (2, 1)
    assert report.coverage[0].proven


def test_f24_infinities_and_nan() -> None:
    """Far out the functions are x and 0, and their slopes 1 and 0."""
    inf, nan = float("inf"), float("nan")
    x = mx.array([inf, 1e30, 200.0, -200.0, -1e30, nan])
    out = metile.empty(6, mx.float32)
    for name in NAMES:
        function: Any = getattr(activations, name)
        y = activation[1](x, out, 6, FUNCTION=function, backend="cpu").tolist()
        assert y[:3] == [inf, mx.array(1e30).item(), 200.0], name
        assert y[3:5] == [0, 0], name
        assert np.isnan(y[5]), name
        ones = mx.ones(6)
        z = activation_gradient[1](x, ones, out, 6, SLOPE=SLOPES[function], backend="cpu").tolist()
        assert z[1:5] == [1, 1, 0, 0], name
        # As of MLX, whose relu has no slope where nothing is larger than 0.
        assert z[5] == 0 if name == "relu" else np.isnan(z[5]), name


def test_k7_one_text_for_all_sizes() -> None:
    with compilations() as found:
        for size in (1, 5, 1024, 5000):
            launches("silu", size, mx.float16, backend="cpu")
    assert len(found) <= 4
