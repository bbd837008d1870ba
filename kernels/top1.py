"""The largest element of each row and where it is, and the gradient (SPEC B1).

Of equal ones the first; of a row with NaN the first NaN, as `metile.argmax` has it (F51).

    from metile_kernels.top1 import top1

    values, indices = top1[rows](
        x, metile.empty(rows, x.dtype), metile.empty(rows, mx.uint32), width
    )
"""

from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_kernels._samples import FLOATS
from metile_kernels.reductions import arithmetic, neutral

NOWHERE = 2**31 - 1


def top1_reference(x: mx.array) -> tuple[mx.array, mx.array]:
    """(largest, its index) of the last axis in MLX's operations, of the dtype of x and u32."""
    is_nan = x != x
    first = mx.argmax(is_nan, axis=-1)
    places = mx.where(mx.any(is_nan, axis=-1), first, mx.argmax(x, axis=-1))
    places = mx.stop_gradient(places)
    return mx.take_along_axis(x, places[..., None], axis=-1)[..., 0], places


@metile.kernel
def top1(inputs, values, indices, width: int, BLOCK: metile.constexpr = 1024):
    """The largest of each row of `width` elements.

    Each thread keeps the first of the largest that it has met. The row's is the lowest index among
    the threads whose element is the row's largest.

    Args:
        inputs: rows * width elements of f16, bf16, f32, i32 or u32; the grid is the number of rows.
        values: one for each row, of the dtype of the inputs.
        indices: one for each row, i32 or u32.
        width: any number but 0; a new one compiles nothing.
        BLOCK: elements at a time, one per thread: a power of two of 32 to 1024.
    """
    rows = metile.num_programs(0)
    source = metile.tensor(inputs, shape=(rows, width), access="read")
    row = metile.program_id(0)
    dtype = arithmetic(inputs.dtype)
    LOWEST = neutral(dtype, "max")
    lanes = metile.arange(0, BLOCK)
    best = metile.full(BLOCK, LOWEST, dtype)
    place = lanes
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        value = metile.cast(source.load((row, columns), fill=LOWEST), dtype)
        # A NaN is better than what is none.
        is_better = (value > best) | ((value != value) & (best == best))
        best = metile.where(is_better, value, best)
        place = metile.where(is_better, columns, place)
    largest = metile.max(best)
    is_largest = (best == largest) | (best != best)
    index = metile.min(metile.where(is_largest, place, NOWHERE))
    metile.tensor(values, shape=rows, access="write").store(row, metile.cast(largest, inputs.dtype))
    metile.tensor(indices, shape=rows, access="write").store(row, metile.cast(index, indices.dtype))


@metile.kernel
def top1_gradient(indices, cotangents, gradient, width: int, BLOCK: metile.constexpr = 1024):
    """The cotangent of each row's largest where it is, 0 elsewhere.

    Args:
        indices, cotangents: one for each row.
        gradient: rows * width elements; the grid is the number of rows.
        width, BLOCK: as of `top1`.
    """
    rows = metile.num_programs(0)
    result = metile.tensor(gradient, shape=(rows, width), access="write")
    row = metile.program_id(0)
    place = metile.cast(metile.tensor(indices, shape=rows, access="read").load(row), metile.i32)
    cotangent = metile.tensor(cotangents, shape=rows, access="read").load(row)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + metile.arange(0, BLOCK)
        result.store((row, columns), metile.where(columns == place, cotangent, 0))


def _selftest(dtype, backend):
    """Of few different numbers, so that the largest stand several times."""
    generator = np.random.default_rng(0)
    numbers = generator.integers(0, 40, (5, 1500)).astype(np.float32)
    x = mx.array(numbers).astype(dtype)
    arguments = (x, metile.empty(5, dtype), metile.empty(5, mx.int32), 1500)
    dispatch = top1[5].prepare(*arguments, backend=backend)
    indices = mx.array(np.argmax(numbers, axis=1).astype(np.int32))
    return dispatch, arguments, (x[mx.arange(5), indices], indices), 0


SELFTESTS = [(f"top1, {name}", partial(_selftest, dtype)) for name, dtype in FLOATS]
