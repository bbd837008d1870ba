"""Softmax and log-softmax of rows of any width, and their gradients (SPEC B1).

One program per row, which loops over it twice. The first loop finds the largest element m and
sum(exp(x - m)) together: each thread scales its sum when it meets a larger element (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018). All arithmetic is f32, with one
rounding at the store.

`-inf` is a masked element: 0 in a softmax. A row of nothing else, or one that has a NaN or +inf,
gives NaN in every element, as MLX does.

    from metile_kernels.softmax import softmax

    y = softmax[rows](x, metile.empty(x.shape, x.dtype), width)
"""

import math
from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_kernels._samples import FLOATS, normal

# Below every finite f32, so that exp(-inf - LOWEST) is 0 and not NaN.
LOWEST = -3.4028234663852886e38


def softmax_reference(x: mx.array) -> mx.array:
    """Over the last axis in MLX's operations, f32."""
    powers = mx.exp(_shifted(x))
    return powers / mx.sum(powers, axis=-1, keepdims=True)


def log_softmax_reference(x: mx.array) -> mx.array:
    """`softmax` with LOG: over the last axis in MLX's operations, f32."""
    shifted = _shifted(x)
    return shifted - mx.log(mx.sum(mx.exp(shifted), axis=-1, keepdims=True))


def _shifted(x):
    wide = x.astype(mx.float32)
    return wide - mx.stop_gradient(mx.max(wide, axis=-1, keepdims=True))


@metile.inline
def larger_and_sum(largest, total, value):
    """One element more for each thread: the larger, and the sum of exp(element - larger)."""
    power = metile.exp(metile.minimum(largest, value) - metile.maximum(largest, value))
    total = metile.where(value > largest, total * power + 1, total + power)
    return metile.maximum(largest, value), total


@metile.inline
def together(largest, total):
    """The threads' parts as one: the largest element, and the sum of exp(element - largest)."""
    most = metile.max(largest)
    return most, metile.sum(total * metile.exp(largest - most))


@metile.inline
def most_and_total(source, row, lanes, width, BLOCK):
    """The largest element m of a row, and the sum of its exp(x - m), in one loop: two f32 scalars.

    `source` is a (rows, width) tensor of floats, `lanes` the numbers 0 to BLOCK - 1.
    """
    largest = metile.full(BLOCK, LOWEST, metile.f32)
    total = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        value = metile.cast(source.load((row, start + lanes), fill=-math.inf), metile.f32)
        largest, total = larger_and_sum(largest, total, value)
    return together(largest, total)


@metile.kernel
def softmax(
    inputs, output, width: int, LOG: metile.constexpr = False, BLOCK: metile.constexpr = 1024
):
    """`exp(x - m) / sum(exp(x - m))` of rows of `width` elements, m their largest.

    Args:
        inputs, output: rows * width elements; the grid is the number of rows.
        width: any number; a new one compiles nothing.
        LOG: the logarithm of that, `x - m - log(sum(exp(x - m)))`.
        BLOCK: elements at a time, one per thread: a power of two of 32 to 1024.
    """
    shape = (metile.num_programs(0), width)
    source = metile.tensor(inputs, shape=shape, access="read")
    result = metile.tensor(output, shape=shape, access="write")
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    most, total_of_row = most_and_total(source, row, lanes, width, BLOCK)
    scale = metile.log(total_of_row) if LOG else 1 / total_of_row
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        value = metile.cast(source.load((row, columns)), metile.f32) - most
        result.store((row, columns), value - scale if LOG else metile.exp(value) * scale)


@metile.kernel
def softmax_gradient(outputs, cotangents, gradient, width: int, BLOCK: metile.constexpr = 1024):
    """`y * (c - sum(c * y))` for y of `softmax` and the cotangents c of its elements.

    Args:
        outputs, cotangents, gradient: rows * width elements; the grid is the number of rows.
        width, BLOCK: as of `softmax`.
    """
    shape = (metile.num_programs(0), width)
    source = metile.tensor(outputs, shape=shape, access="read")
    given = metile.tensor(cotangents, shape=shape, access="read")
    result = metile.tensor(gradient, shape=shape, access="write")
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    total = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        value = metile.cast(source.load((row, columns)), metile.f32)
        total = total + value * metile.cast(given.load((row, columns)), metile.f32)
    along = metile.sum(total)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        value = metile.cast(source.load((row, columns)), metile.f32)
        cotangent = metile.cast(given.load((row, columns)), metile.f32)
        result.store((row, columns), value * (cotangent - along))


@metile.kernel
def log_softmax_gradient(inputs, cotangents, gradient, width: int, BLOCK: metile.constexpr = 1024):
    """`c - softmax(x) * sum(c)` for the cotangents c of log-softmax.

    The softmax is that of the inputs: outputs of f16 or bf16 are too coarse to be exponents.

    Args:
        inputs, cotangents, gradient: rows * width elements; the grid is the number of rows.
        width, BLOCK: as of `softmax`.
    """
    shape = (metile.num_programs(0), width)
    source = metile.tensor(inputs, shape=shape, access="read")
    given = metile.tensor(cotangents, shape=shape, access="read")
    result = metile.tensor(gradient, shape=shape, access="write")
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    largest = metile.full(BLOCK, LOWEST, metile.f32)
    total = metile.zeros(BLOCK, metile.f32)
    cotangent_sum = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        value = metile.cast(source.load((row, columns), fill=-math.inf), metile.f32)
        largest, total = larger_and_sum(largest, total, value)
        cotangent_sum = cotangent_sum + metile.cast(given.load((row, columns)), metile.f32)
    most, total_of_row = together(largest, total)
    scale = metile.sum(cotangent_sum) / total_of_row
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        value = metile.cast(source.load((row, columns)), metile.f32)
        cotangent = metile.cast(given.load((row, columns)), metile.f32)
        result.store((row, columns), cotangent - metile.exp(value - most) * scale)


def _softmax64(x):
    """In float64."""
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _selftest(dtype, width, log, backend):
    x, exact = normal(dtype, 3, width)
    arguments = (x, metile.empty(x.shape, dtype), width)
    dispatch = softmax[3].prepare(*arguments, LOG=log, backend=backend)
    expected = np.log(_softmax64(exact)) if log else _softmax64(exact)
    return dispatch, arguments, expected, 32 if dtype == mx.float32 else 1


def _selftest_gradient(dtype, width, backend):
    x, exact = normal(dtype, 3, width)
    cotangents, given = normal(dtype, 3, width, scale=2)
    arguments = (x, cotangents, metile.empty(x.shape, mx.float32), width)
    dispatch = log_softmax_gradient[3].prepare(*arguments, backend=backend)
    return dispatch, arguments, given - _softmax64(exact) * given.sum(axis=1, keepdims=True), 4096


SELFTESTS = [
    (f"{'log ' * log}softmax, {width} columns, {name}", partial(_selftest, dtype, width, log))
    for width in (33, 1500)
    for log in (False, True)
    for name, dtype in FLOATS
] + [
    (f"gradient of log softmax, 1500 columns, {name}", partial(_selftest_gradient, dtype, 1500))
    for name, dtype in FLOATS
]
