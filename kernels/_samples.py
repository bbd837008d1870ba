"""Numbers for the SELFTESTS of this package's modules."""

import mlx.core as mx
import numpy as np

FLOATS = (("f32", mx.float32), ("f16", mx.float16), ("bf16", mx.bfloat16))


def positive(dtype, *shape):
    """Magnitudes of `normal`."""
    x, wide = normal(dtype, *shape)
    return mx.abs(x), np.abs(wide)


def normal(dtype, *shape, scale=1.0):
    """N(0, scale) numbers of a dtype, the same each time, and what they are in float64."""
    generator = np.random.default_rng(shape)
    x = mx.array((scale * generator.standard_normal(shape)).astype(np.float32)).astype(dtype)
    return x, np.array(x.astype(mx.float32)).astype(np.float64)
