"""Values that equal the thread index, in lane loops (SPEC X4, K4)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile

pytestmark = pytest.mark.usefixtures("gpu")


@metile.kernel
def compared(out, n):
    """Two i32 that are the thread index, beside a number that may be negative."""
    result = metile.tensor(out, shape=(4, 32), access="write")
    i = metile.arange(0, 32)
    doubled, shifted = i * 2 - i, (i << 3) >> 3
    result.store((0, i), metile.cast(doubled < n, metile.i32))
    result.store((1, i), metile.minimum(shifted, n))
    result.store((2, i), doubled // n)
    result.store((3, i), metile.cast(metile.cast(shifted, metile.f32) - 40.0, metile.i32))


@pytest.mark.parametrize("n", [-5, 7])
def test_an_i32_that_is_the_thread_index_stays_signed(n: int, backend: str) -> None:
    i = np.arange(32)
    made = compared[1](metile.empty((4, 32), mx.int32), n, backend=backend)
    expected = [(i < n).astype(int), np.minimum(i, n), i // n, i - 40]
    assert np.array_equal(np.array(made), np.stack(expected))


@metile.kernel
def index_in_disguise(y, times, BLOCK: metile.constexpr):
    """Arithmetic that gives the thread index itself, where other lanes read it."""
    target = metile.tensor(y, shape=(5, BLOCK), access="write")
    i = metile.arange(0, BLOCK)
    same, unsigned = i & (BLOCK - 1), metile.cast(i, metile.u32)
    target.store((0, i), metile.max(i | i) + metile.sum(i ^ 0))
    target.store((1, i), metile.simd_shuffle_xor(same, 3))
    target.store((2, i), metile.cast(metile.simd_shuffle_xor(unsigned + 5, 1), metile.i32))
    a, b = unsigned & 4095, i & 2047
    for _ in metile.tile_range(times):
        a, b = metile.simd_shuffle_xor(a, 1), b + metile.simd_broadcast(same, 7)
    target.store((3, i), metile.cast(a, metile.i32))
    target.store((4, i), b)


@pytest.mark.parametrize("block", [32, 128])
def test_the_thread_index_is_kept_where_lanes_exchange_it(block: int, backend: str) -> None:
    """The text of an index that needs no variable was also left out of the array lanes read."""
    out = metile.empty((5, block), mx.int32)
    made = np.array(index_in_disguise[1](out, 3, BLOCK=block, backend=backend))
    i = np.arange(block)
    assert (made[0] == i.max() + i.sum()).all()
    expected = [i ^ 3, (i ^ 1) + 5, i ^ 1, i + 3 * (i // 32 * 32 + 7)]
    assert np.array_equal(made[1:], np.stack(expected))
