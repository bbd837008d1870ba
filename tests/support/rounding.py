"""Float64 results rounded once to a dtype, and distances in units of the last place."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

MANTISSA = {mx.float32: 23, mx.float16: 10, mx.bfloat16: 7}


def exact(x: mx.array) -> NDArray[np.float64]:
    """The values of an array, exactly."""
    return np.array(x.astype(mx.float32)).astype(np.float64)


def rounded(values: NDArray[np.float64], dtype: mx.Dtype) -> NDArray[np.float64]:
    """To the nearest number of `dtype`, ties to even; normal numbers within its range only."""
    fraction, exponent = np.frexp(values)
    scale = 2.0 ** (MANTISSA[dtype] + 1)
    made: NDArray[np.float64] = np.ldexp(np.round(fraction * scale) / scale, exponent)
    return made


def ulps(found: mx.array, expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances from values of the array's dtype, in its numbers; NaN and NaN are equal."""
    places = [_place(values, found.dtype) for values in (exact(found), expected)]
    same_nan = np.isnan(exact(found)) & np.isnan(expected)
    made: NDArray[np.float64] = np.where(same_nan, 0, np.abs(places[0] - places[1]))
    return made


def _place(values: NDArray[np.float64], dtype: mx.Dtype) -> NDArray[Any]:
    """The number of each value among those of the dtype, counted from zero."""
    _, exponent = np.frexp(np.where(np.isnan(values), np.inf, np.abs(values)))
    lowest = -13 if dtype == mx.float16 else -125
    exponent = np.maximum(exponent, lowest)
    steps = np.ldexp(np.abs(values), MANTISSA[dtype] + 1 - exponent)
    place = (exponent - lowest) * 2.0 ** MANTISSA[dtype] + steps
    return np.where(np.isnan(values), np.inf, np.copysign(place, values))
