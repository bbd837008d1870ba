"""Rows of a table by their numbers, as an embedding takes them (SPEC B1).

A number of -size to -1 counts from the end, as an index of MLX does. Any other number outside of
the table reads nothing: its row is NaN, or 0 in a table of integers.

    from metile_kernels.gather import gather

    rows = gather[ids.size](table, ids, metile.empty((*ids.shape, width), table.dtype), size, width)
"""

import math
from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_kernels._samples import FLOATS, normal


def gather_reference(table: mx.array, ids: mx.array) -> mx.array:
    """Rows of a table of at least one by integers of any shape, in MLX's operations."""
    size = table.shape[0]
    is_inside = (ids >= -size) & (ids < size)
    nothing = mx.array(math.nan if mx.issubdtype(table.dtype, mx.floating) else 0, table.dtype)
    return mx.where(is_inside[..., None], table[mx.where(is_inside, ids, 0)], nothing)


@metile.inline
def from_the_end(index, size):
    """An index of -size to -1 as the one that it means; another as it is."""
    return metile.where(index < 0, index + size, index)


@metile.kernel
def gather(table, ids, output, size: int, width: int, BLOCK: metile.constexpr = 1024):
    """Row `ids[i]` of the table as row i of the output, bit for bit.

    Args:
        table: size * width elements of any dtype.
        ids: i32; the grid is their number.
        output: ids * width elements of the table's dtype.
        size, width: any numbers; new ones compile nothing.
        BLOCK: elements at a time, one per thread: a power of two of 32 to 1024.
    """
    programs = metile.num_programs(0)
    source = metile.tensor(table, shape=(size, width), access="read")
    result = metile.tensor(output, shape=(programs, width), access="write")
    program = metile.program_id(0)
    row = from_the_end(metile.tensor(ids, shape=programs, access="read").load(program), size)
    NOTHING = math.nan if table.dtype in (metile.f16, metile.bf16, metile.f32) else 0
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + metile.arange(0, BLOCK)
        result.store((program, columns), source.load((row, columns), fill=NOTHING))


def _selftest(dtype, width, backend):
    """The last number lies outside, which gives a NaN of any bits."""
    table, exact = normal(dtype, 5, width)
    ids = mx.array([4, 0, -1, -5, 5], mx.int32)
    arguments = (table, ids, metile.empty((5, width), dtype), 5, width)
    dispatch = gather[5].prepare(*arguments, backend=backend)
    expected = np.concatenate([exact[[4, 0, 4, 0]], np.full((1, width), np.nan)])
    return dispatch, arguments, expected, 0.1


SELFTESTS = [
    (f"gather, {width} columns, {name}", partial(_selftest, dtype, width))
    for width in (3, 1500)
    for name, dtype in FLOATS
]
