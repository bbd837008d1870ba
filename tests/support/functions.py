"""What tests of functions of MLX arrays share: inputs, and how near two results are."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from tests.support.rounding import exact


def normal(shape: tuple[int, ...], dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    """Numbers of N(0, 1), the same each time."""
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def close(a: mx.array, b: mx.array, rtol: float = 1e-5) -> None:
    """Of one shape and dtype; differences are shares of the largest magnitude in `b`."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    wide, other = exact(a), exact(b)
    assert np.abs(wide - other).max(initial=0) <= rtol * np.abs(other).max(initial=1e-30)
