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
