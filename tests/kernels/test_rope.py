"""`metile_kernels.rope`: both kinds of pairs, offsets and shapes against float64 (SPEC B1, F20)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_kernels.rope import rope, rope_reference
from metile_mlx import emulator
from tests.support.public import compilations, same_bits
from tests.support.rounding import exact

DTYPES = (mx.float16, mx.bfloat16, mx.float32)
STEPS = {mx.float16: 2**-11, mx.bfloat16: 2**-8, mx.float32: 1e-6}
BASE = 10000.0


def launch(
    x: mx.array, dims: int, traditional: bool, offsets: mx.array, **options: Any
) -> mx.array:
    """Three heads of a program where they can be divided so, else one."""
    batch, heads, positions, width = x.shape
    plane, together = positions * width, 1 if heads % 3 else 3
    return rope[positions, batch, heads // together](
        x, offsets, x, metile.empty(x.shape, x.dtype), width, heads * plane, together * plane,
        plane, dims // 2, int(offsets.size > 1), together, 1.0, float(np.log2(BASE)), 1.0,
        BLOCK=32, TRADITIONAL=traditional, **options,
    )  # fmt: skip


def check(made: mx.array, x: mx.array, dims: int, traditional: bool, offsets: mx.array) -> None:
    """One rounding, and the error of an f32 angle; what does not turn has the same bits."""
    wide, half = exact(x), dims // 2
    places = np.arange(x.shape[2]) + exact(offsets)[:, None]
    angles = places[:, None, :, None] * BASE ** (-np.arange(half) / half)
    c, s = np.cos(angles), np.sin(angles)
    step = slice(0, dims, 2), slice(1, dims, 2)
    left, right = step if traditional else (slice(half), slice(half, dims))
    a, b = wide[..., left], wide[..., right]
    expected = wide.copy()
    expected[..., left], expected[..., right] = a * c - b * s, a * s + b * c
    far = 1e-6 * np.abs(places).max(initial=1) * np.abs(wide).max(initial=0)
    allowed = 1.01 * STEPS[x.dtype] * np.abs(expected) + 0.2 * far + 1e-6
    assert (np.abs(exact(made) - expected) <= allowed).all(), (x.shape, dims, traditional)
    assert same_bits(made[..., dims:], x[..., dims:])


CASES = (
    # batch, heads, positions, width, dims
    (1, 1, 1, 2, 2),
    (2, 6, 5, 8, 6),
    (3, 5, 7, 66, 66),
    (1, 2, 3, 200, 130),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("traditional", [False, True])
def test_every_shape_on_the_cpu(traditional: bool, dtype: mx.Dtype) -> None:
    for *shape, dims in CASES:
        x = mx.random.normal(shape, key=mx.random.key(0)).astype(dtype)
        for offsets in (mx.array([0]), mx.arange(shape[0]) * 40):
            made = launch(x, dims, traditional, offsets, backend="cpu")
            check(made, x, dims, traditional, offsets)


@pytest.mark.emulator
@pytest.mark.parametrize("traditional", [False, True])
def test_f20_on_the_reference_and_in_the_emulator(traditional: bool) -> None:
    """Three axes of programs."""
    x = mx.random.normal((2, 3, 4, 70), key=mx.random.key(1))
    offsets = mx.array([5, 900])
    check(launch(x, 66, traditional, offsets, backend="reference"), x, 66, traditional, offsets)
    with emulator.checked(schedules=2):
        check(launch(x, 66, traditional, offsets, backend="emulator"), x, 66, traditional, offsets)


def test_the_plain_reference_is_the_same() -> None:
    x = mx.random.normal((2, 3, 4, 10), key=mx.random.key(1))
    for traditional in (False, True):
        for offsets in (mx.array([3]), mx.array([3, 50])):
            periods = BASE ** (mx.arange(4) / 4)
            made = rope_reference(x, 8, traditional=traditional, offsets=offsets, periods=periods)
            check(made, x, 8, traditional, offsets)


@pytest.mark.parametrize("traditional", [False, True])
def test_k7_no_filling_whatever_part_of_the_features_turns(traditional: bool) -> None:
    x, offsets = mx.zeros((2, 6, 5, 64)), mx.array([0])
    for half in (32, 31, 1):
        for grid, is_proven in (((5, 2, 2), True), ((5, 1, 2), False)):
            dispatch = rope[grid].prepare(
                x, offsets, x, metile.empty(x.shape, x.dtype), 64, 1920, 960, 320, half, 0, 3, 1.0,
                1.0, 1.0, BLOCK=32, TRADITIONAL=traditional,
            )  # fmt: skip
            (fact,) = dispatch.execution_report.coverage
            assert fact.proven == is_proven, fact


def test_k7_one_text_for_all_shapes() -> None:
    with compilations() as found:
        for *shape, dims in CASES:
            launch(mx.zeros(shape), dims, False, mx.array([0]), backend="cpu")
    assert found in ([], ["rope"])
