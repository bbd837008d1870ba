"""`metile.argmax`: ties take the smallest index, the first NaN counts as the largest (K6, F51)."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile

pytestmark = pytest.mark.usefixtures("gpu")


@metile.kernel
def top(x, out, n, BLOCK: metile.constexpr, LAYOUT: metile.constexpr = None):
    row, rows = metile.program_id(0), metile.num_programs(0)
    least = -math.inf if x.dtype in (metile.f16, metile.bf16, metile.f32) else 0
    columns = metile.arange(0, BLOCK, layout=LAYOUT)
    values = metile.tensor(x, shape=(rows, n)).load((row, columns), fill=least)
    metile.tensor(out, shape=rows, access="write").store(row, metile.argmax(values))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16, mx.uint32])
@pytest.mark.parametrize("width", [1, 31, 33, 100])
def test_f51_ties_take_the_smallest_index(width: int, dtype: mx.Dtype, backend: str) -> None:
    low = 0 if dtype == mx.uint32 else -3
    numbers = np.random.default_rng(width).integers(low, 4, (20, width))
    x = mx.array(numbers.astype(np.float32)).astype(dtype)
    out = metile.empty(20, mx.int32)
    assert mx.array_equal(top[20](x, out, width, BLOCK=128, backend=backend), mx.argmax(x, axis=1))


@pytest.mark.parametrize(
    "row",
    [
        [3.0, 7.0, 7.0, 7.0],
        [1.0, math.nan, 2.0],
        [math.nan, 1.0, math.nan],
        [1.0, 2.0, math.nan, math.nan],
        [-math.inf] * 5,
        [0.0, -0.0],
        [-0.0, 0.0],
        [math.inf, math.inf],
    ],
)
def test_special_values_are_those_of_mlx(row: list[float], backend: str) -> None:
    x = mx.array([row])
    made = top[1](x, metile.empty(1, mx.int32), len(row), BLOCK=64, backend=backend)
    assert made.item() == mx.argmax(x).item()


def test_over_registers(backend: str) -> None:
    layout = metile.ThreadLayout((6, 7, 0, 1, 2, 3, 4, 5), elements_per_thread=4)
    x = mx.array(np.random.default_rng(5).integers(-3, 4, (20, 250)).astype(np.float32))
    made = top[20](x, metile.empty(20, mx.int32), 250, BLOCK=256, LAYOUT=layout, backend=backend)
    assert mx.array_equal(made, mx.argmax(x, axis=1))


@metile.kernel
def along(x, out, AXIS: metile.constexpr):
    flat = metile.arange(0, 64)
    values = metile.reshape(metile.tensor(x, shape=64).load(flat), (4, 16))
    found = metile.argmax(values, axis=AXIS)
    metile.tensor(out, shape=64, access="write").store(flat, metile.reshape(found, 64))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_along_an_axis(axis: int, backend: str) -> None:
    x = mx.array(np.random.default_rng(7).integers(-3, 4, (4, 16)).astype(np.float32))
    made = along[1](x, metile.empty(64, mx.int32), AXIS=axis, backend=backend).reshape(4, 16)
    assert mx.array_equal(made, mx.broadcast_to(mx.argmax(x, axis=axis, keepdims=True), (4, 16)))


@metile.kernel
def top_of_long_rows(x, out, n, BLOCK: metile.constexpr):
    """Blocks of a row in a loop: a later block wins only where it is larger."""
    row, rows = metile.program_id(0), metile.num_programs(0)
    source = metile.tensor(x, shape=(rows, n))
    best, place = -math.inf, 0
    for start in metile.tile_range(0, n, BLOCK):
        values = source.load((row, start + metile.arange(0, BLOCK)), fill=-math.inf)
        most = metile.max(values)
        if most > best:
            place = start
        best = metile.maximum(best, most)
    columns = place + metile.arange(0, BLOCK)
    found = metile.argmax(source.load((row, columns), fill=-math.inf))
    metile.tensor(out, shape=rows, access="write").store(row, place + found)


@pytest.mark.parametrize("width", [1, 64, 65, 1000])
def test_long_rows(width: int, backend: str) -> None:
    x = mx.array(np.random.default_rng(width).integers(-50, 50, (9, width)).astype(np.float32))
    out = metile.empty(9, mx.int32)
    made = top_of_long_rows[9](x, out, width, BLOCK=64, backend=backend)
    assert mx.array_equal(made, mx.argmax(x, axis=1))


@metile.kernel
def without_fill(x, out, n):
    values = metile.tensor(x, shape=n).load(metile.arange(0, 32))
    metile.tensor(out, shape=1, access="write").store(0, metile.argmax(values))


@metile.kernel
def carried_without_fill(x, out, n):
    source = metile.tensor(x, shape=n)
    best = metile.full(32, -math.inf, metile.f32)
    for start in metile.tile_range(0, n, 32):
        best = metile.maximum(best, source.load(start + metile.arange(0, 32)))
    metile.tensor(out, shape=1, access="write").store(0, metile.max(best))


def test_k2_a_load_without_fill_is_refused_through_loops_too() -> None:
    for kernel, dtype in ((without_fill, mx.int32), (carried_without_fill, mx.float32)):
        with pytest.raises(metile.CompileError, match="would be 0, and take part") as caught:
            kernel[1](mx.ones(5), metile.empty(1, dtype), 5)
        assert "fill=" in (caught.value.hint or "")
