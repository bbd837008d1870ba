"""Sums, means, maxima and minima of the rows or the columns of a matrix, and gradients (SPEC B1).

`OPERATION` is "sum", "mean", "max" or "min". Floats are added in f32 with one rounding at the
store; i32 and u32 are added in their own dtype, where they wrap, and have no mean. A NaN makes a
maximum or minimum NaN, as in MLX. The order of additions depends on the size of a row or column
alone, so the result does not depend on what stands beside it (F51).

    from metile_kernels.reductions import reduce_rows

    sums = reduce_rows[rows](x, metile.empty(rows, x.dtype), width, OPERATION="sum")
"""

import math
from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_kernels._samples import FLOATS, normal

# Rows of which `reduce_columns` has all elements of a column at once.
GROUP = 8


def reduce_reference(x: mx.array, operation: str, axis: int) -> mx.array:
    """Along an axis in MLX's operations; floats in f32. "sum", "mean", "max" or "min"."""
    wide = x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x
    return getattr(mx, operation)(wide, axis=axis)


@metile.inline
def arithmetic(dtype):
    """What numbers of a dtype are combined in."""
    return dtype if dtype in (metile.i32, metile.u32) else metile.f32


@metile.inline
def neutral(dtype, OPERATION):
    """What changes no result: 0 in a sum, an end of the range in the others."""
    assert OPERATION in ("sum", "mean", "max", "min"), "OPERATION is sum, mean, max or min"
    if OPERATION in ("sum", "mean"):
        return 0
    if dtype == metile.f32:
        return -math.inf if OPERATION == "max" else math.inf
    if dtype == metile.i32:
        return -(2**31) if OPERATION == "max" else 2**31 - 1
    return 0 if OPERATION == "max" else 2**32 - 1


@metile.inline
def nothing(dtype, OPERATION):
    """What leaves every number as it is, 0 and -0 too: what stands beyond a row or column."""
    NEUTRAL = neutral(dtype, OPERATION)
    return -0.0 if dtype == metile.f32 and OPERATION in ("sum", "mean") else NEUTRAL


@metile.inline
def combined(one, other, OPERATION):
    """Of two values. With `nothing` as the first a C++ compiler sees that there is no work."""
    if OPERATION == "max":
        return metile.maximum(one, other)
    if OPERATION == "min":
        return metile.minimum(one, other)
    return one + other


@metile.kernel
def reduce_rows(
    inputs, output, width: int, OPERATION: metile.constexpr, BLOCK: metile.constexpr = 1024
):
    """One number for each row of `width` elements.

    Args:
        inputs: rows * width elements; the grid is the number of rows.
        output: one element for each row.
        width: any number; a new one compiles nothing. A row of none gives 0, or the lowest or
            highest number, or NaN as the mean.
        OPERATION: "sum", "mean", "max" or "min".
        BLOCK: elements at a time, one per thread: a power of two of 32 to 1024.
    """
    rows = metile.num_programs(0)
    source = metile.tensor(inputs, shape=(rows, width), access="read")
    row = metile.program_id(0)
    dtype = arithmetic(inputs.dtype)
    NOTHING = neutral(dtype, OPERATION)
    lanes = metile.arange(0, BLOCK)
    parts = metile.full(BLOCK, NOTHING, dtype)
    for start in metile.tile_range(0, width, BLOCK):
        fill = nothing(dtype, OPERATION)
        value = metile.cast(source.load((row, start + lanes), fill=fill), dtype)
        parts = combined(value, parts, OPERATION)
    if OPERATION == "max":
        found = metile.max(parts)
    elif OPERATION == "min":
        found = metile.min(parts)
    else:
        found = metile.sum(parts)
    if OPERATION == "mean":
        found = found / metile.cast(width, metile.f32)
    metile.tensor(output, shape=rows, access="write").store(row, found)


@metile.kernel
def reduce_columns(
    inputs,
    output,
    rows: int,
    columns: int,
    groups: int,
    chunk: int,
    divisor: float,
    OPERATION: metile.constexpr,
    BLOCK: metile.constexpr = 256,
):
    """One number for each column of each chunk of rows, which are read in groups of GROUP.

    Tall matrices are reduced in steps, chunks first and then what they gave: more programs, and
    sums whose error grows with the length of a chunk.

    Args:
        inputs: rows * columns elements.
        output: chunks * columns elements; f32 where floats are added and chunks are to be too.
        groups: rows // GROUP.
        chunk: groups of a chunk; the last chunk may have fewer, and has the rows of no group. The
            grid is `(metile.cdiv(columns, BLOCK), chunks)`, and `chunks * chunk >= groups`.
        divisor: of a mean.
        OPERATION: as of `reduce_rows`.
        BLOCK: columns of a program, one per thread: a power of two of 32 to 1024.
    """
    grouped = metile.tensor(inputs, shape=(groups, GROUP, columns), access="read")
    source = metile.tensor(inputs, shape=(rows, columns), access="read")
    result = metile.tensor(output, shape=(metile.num_programs(1), columns), access="write")
    column = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    number, chunks = metile.program_id(1), metile.num_programs(1)
    dtype = arithmetic(inputs.dtype)
    found = metile.full(BLOCK, neutral(dtype, OPERATION), dtype)
    fill = nothing(dtype, OPERATION)
    for index in metile.tile_range(chunk):
        group = number * chunk + index
        for k in range(GROUP):
            value = metile.cast(grouped.load((group, k, column), fill=fill), dtype)
            found = combined(value, found, OPERATION)
    # The rows of no group are the last chunk's; for the others they lie outside.
    rest = metile.where(number == chunks - 1, groups * GROUP, rows)
    for index in metile.tile_range(rows - groups * GROUP):
        value = metile.cast(source.load((rest + index, column), fill=fill), dtype)
        found = combined(value, found, OPERATION)
    if OPERATION == "mean":
        found = found / divisor
    result.store((number, column), found)


@metile.inline
def shared_among(value, extreme, number, cotangent):
    """The cotangent in equal parts where the value is the extreme, which `number` of them are."""
    is_extreme = metile.cast(value, metile.f32) == extreme
    return metile.where(is_extreme, cotangent / number, 0 * (cotangent / number))


@metile.kernel
def extreme_rows_gradient(
    inputs, extremes, cotangents, gradient, width: int, BLOCK: metile.constexpr = 1024
):
    """Gradients of the maxima or minima of rows, MLX's of `reduce_reference`: equal parts for all.

    Args:
        inputs, gradient: rows * width elements of a float dtype; the grid is the number of rows.
        extremes, cotangents: one for each row. A NaN gives NaN to the whole row.
        width, BLOCK: as of `reduce_rows`.
    """
    rows = metile.num_programs(0)
    source = metile.tensor(inputs, shape=(rows, width), access="read")
    result = metile.tensor(gradient, shape=(rows, width), access="write")
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    extreme = metile.cast(metile.tensor(extremes, shape=rows).load(row), metile.f32)
    cotangent = metile.cast(metile.tensor(cotangents, shape=rows).load(row), metile.f32)
    parts = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        value = metile.cast(source.load((row, start + lanes), fill=math.nan), metile.f32)
        parts = parts + metile.where(value == extreme, 1.0, 0.0)
    number = metile.sum(parts)
    for start in metile.tile_range(0, width, BLOCK):
        value = source.load((row, start + lanes))
        result.store((row, start + lanes), shared_among(value, extreme, number, cotangent))


@metile.kernel
def extreme_columns_gradient(
    inputs,
    extremes,
    cotangents,
    gradient,
    rows: int,
    columns: int,
    BLOCK: metile.constexpr = 256,
):
    """`extreme_rows_gradient` of columns, of `reduce_reference` too.

    The grid is `metile.cdiv(columns, BLOCK)`.

    Args:
        inputs, gradient: rows * columns elements.
        extremes, cotangents: one for each column.
        BLOCK: as of `reduce_columns`.
    """
    source = metile.tensor(inputs, shape=(rows, columns), access="read")
    result = metile.tensor(gradient, shape=(rows, columns), access="write")
    column = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    extreme = metile.cast(metile.tensor(extremes, shape=columns).load(column), metile.f32)
    cotangent = metile.cast(metile.tensor(cotangents, shape=columns).load(column), metile.f32)
    number = metile.zeros(BLOCK, metile.f32)
    for row in metile.tile_range(rows):
        value = metile.cast(source.load((row, column)), metile.f32)
        number = number + metile.where(value == extreme, 1.0, 0.0)
    for row in metile.tile_range(rows):
        value = source.load((row, column))
        result.store((row, column), shared_among(value, extreme, number, cotangent))


_EXACT = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min}
# A sum is as exact as its parts, and may be near 0.
_ULPS = {"sum": 4096, "mean": 4096, "max": 1, "min": 1}


def _selftest_rows(operation, dtype, backend):
    x, exact = normal(dtype, 3, 1500)
    arguments = (x, metile.empty(3, mx.float32), 1500)
    dispatch = reduce_rows[3].prepare(*arguments, OPERATION=operation, backend=backend)
    return dispatch, arguments, _EXACT[operation](exact, axis=1), _ULPS[operation]


def _selftest_columns(operation, dtype, backend):
    """The second chunk has one group and two rows more."""
    x, exact = normal(dtype, 26, 300)
    arguments = (x, metile.empty((2, 300), mx.float32), 26, 300, 3, 2, 1.0)
    dispatch = reduce_columns[2, 2].prepare(*arguments, OPERATION=operation, backend=backend)
    reduced = _EXACT["sum" if operation == "mean" else operation]
    expected = np.stack([reduced(exact[:16], axis=0), reduced(exact[16:], axis=0)])
    return dispatch, arguments, expected, _ULPS[operation]


SELFTESTS = [
    (f"{operation} of {what}, {name}", partial(selftest, operation, dtype))
    for what, selftest in (("rows", _selftest_rows), ("columns", _selftest_columns))
    for operation in _EXACT
    for name, dtype in FLOATS
]
