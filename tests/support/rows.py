"""What tests of kernels of rows of any width share: widths, numbers, and how near is right."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from metile_mlx.selftest import ulps_between
from tests.support.rounding import exact

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
WIDTHS = (1, 3, 31, 33, 127, 1009, 1024, 1025, 4096, 32_768, 151_936)
# For backends that take a thread or an operation at a time.
SMALL_WIDTHS = (1, 33, 300)
INF, NAN = float("inf"), float("nan")


def normal(
    shape: tuple[int, ...], dtype: mx.Dtype = mx.float32, seed: int = 0, scale: float = 1.0
) -> mx.array:
    """N(0, scale) numbers, the same for the same arguments."""
    return (scale * mx.random.normal(shape, key=mx.random.key(seed))).astype(dtype)


def check(found: mx.array, expected: NDArray[np.float64], what: object, f32: float = 16) -> None:
    """Within so many units in the last place in f32; rounded right, or all but, in f16 and bf16."""
    assert tuple(found.shape) == expected.shape, what
    distance = ulps_between(found, expected).max(initial=0)
    assert distance <= (f32 if found.dtype == mx.float32 else 0.51), (what, distance)


def near(
    found: mx.array, expected: NDArray[np.float64], what: object, scale: Any, part: float = 4e-7
) -> None:
    """Within a part of `scale`, which is larger than numbers that cancel, and one rounding."""
    assert tuple(found.shape) == expected.shape, what
    unit = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}[found.dtype]
    smallest = 2.0**-25 if found.dtype == mx.float16 else 2.0**-126
    allowed = part * np.abs(scale) + 1.01 * unit * np.abs(expected) + smallest
    worst = (np.abs(exact(found) - expected) / allowed).max(initial=0)
    assert worst <= 1, (what, f"{worst} times what is allowed")


def softmax64(x: mx.array) -> NDArray[np.float64]:
    """Of the rows of a matrix."""
    wide = exact(x)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    made: NDArray[np.float64] = powers / powers.sum(axis=1, keepdims=True)
    return made


def log_softmax64(x: mx.array) -> NDArray[np.float64]:
    """Of the rows of a matrix."""
    wide = exact(x)
    shifted = wide - wide.max(axis=1, keepdims=True)
    made: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return made


def check_softmax(x: mx.array, made: mx.array, logarithm: mx.array, what: object) -> None:
    """Both of the rows of a matrix are right, but for an exponent that is a rounded difference."""
    expected, wanted = softmax64(x), log_softmax64(x)
    distance = exact(x).max(axis=1, keepdims=True) - exact(x)
    near(made, expected, what, expected * (4 + distance), 2.0**-23)
    near(logarithm, wanted, what, 1 + np.abs(wanted))
