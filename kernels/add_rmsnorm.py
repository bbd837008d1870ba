"""Residual sum and its RMS norm in one pass, `(rms_norm(x + r), x + r)` (SPEC B1, F73).

The sum is rounded to its dtype, as MLX's `x + r` is, bit for bit; the norm is that of the rounded
sum. `add_rmsnorm` takes one row of any width per program, `add_rmsnorm_register` holds rows of
constant width in registers. Statistics and arithmetic are f32; `ROUND_NORMALISED` as in
`metile_kernels.rmsnorm`, whose gradient kernels serve here too: their inputs are the sums, and
`passed` the cotangents of the sums.
"""

from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_kernels.rmsnorm import held_rows, reciprocal_root, rmsnorm_reference, weighted


def add_rmsnorm_reference(
    x: mx.array, residual: mx.array, weight: mx.array | None, eps: float
) -> tuple[mx.array, mx.array]:
    """(norm of the sum, sum) in MLX's operations, the norm f32, the sum rounded as theirs."""
    total = x + residual
    return rmsnorm_reference(total, weight, eps), total


@metile.kernel(relaxed="RELAXED_PRECISION")
def add_rmsnorm(
    inputs,
    residuals,
    weights,
    output,
    totals,
    width: int,
    eps: float,
    BLOCK: metile.constexpr = 1024,
    RELAXED_PRECISION: metile.constexpr = False,
    ROUND_NORMALISED: metile.constexpr = False,
    WEIGHTED: metile.constexpr = True,
):
    """Add and normalise rows of any `width`, in two loops over the row.

    Args:
        inputs, residuals, output, totals: rows * width elements; totals of the dtype in which
            inputs and residuals meet.
        weights: `width` elements.
        width, eps, BLOCK, RELAXED_PRECISION, ROUND_NORMALISED, WEIGHTED: as of
            `metile_kernels.rmsnorm.rmsnorm`.
    """
    shape = (metile.num_programs(0), width)
    source = metile.tensor(inputs, shape=shape, access="read")
    other = metile.tensor(residuals, shape=shape, access="read")
    result = metile.tensor(output, shape=shape, access="write")
    sums = metile.tensor(totals, shape=shape, access="write")
    if WEIGHTED:
        scales = metile.tensor(weights, shape=(width,), access="read")
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    squares = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        at = (row, start + lanes)
        total = source.load(at) + other.load(at)
        sums.store(at, total)
        values = metile.cast(total, metile.f32)
        squares = squares + values * values
    root = metile.rsqrt(metile.sum(squares) / metile.cast(width, metile.f32) + eps)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        # What this launch stores it can't load: the sum is made again.
        total = source.load((row, columns)) + other.load((row, columns))
        normalised = metile.cast(total, metile.f32) * root
        if WEIGHTED:
            normalised = weighted(normalised, scales.load(columns), output.dtype, ROUND_NORMALISED)
        result.store((row, columns), normalised)


@metile.kernel(relaxed="RELAXED_PRECISION")
def add_rmsnorm_register(
    inputs,
    residuals,
    weights,
    output,
    totals,
    eps: float,
    N: metile.constexpr,
    BLOCK: metile.constexpr,
    RELAXED_PRECISION: metile.constexpr = False,
    LAYOUT: metile.constexpr = None,
    ROUND_NORMALISED: metile.constexpr = False,
    WEIGHTED: metile.constexpr = True,
    ROWS: metile.constexpr = 1,
):
    """Add and normalise rows of N columns; each array is read once.

    Args:
        inputs, residuals, weights, output, totals: as of `add_rmsnorm`, with N for the width.
        eps, N, BLOCK, LAYOUT and the other options: as of `rmsnorm_register` there.
        ROWS: rows of a program, a power of two that divides their number; the layout is of
            ROWS * BLOCK elements.
    """
    shape, at, columns = held_rows(N, BLOCK, LAYOUT, ROWS)
    source = metile.tensor(inputs, shape=shape, access="read")
    other = metile.tensor(residuals, shape=shape, access="read")
    total = source.load(at) + other.load(at)
    metile.tensor(totals, shape=shape, access="write").store(at, total)
    values = metile.cast(total, metile.f32)
    normalised = values * reciprocal_root(values, eps, N, ROWS)
    if WEIGHTED:
        weight = metile.tensor(weights, shape=(N,), access="read").load(columns)
        normalised = weighted(normalised, weight, output.dtype, ROUND_NORMALISED)
    metile.tensor(output, shape=shape, access="write").store(at, normalised)


def _selftest(dtype, width, is_register, backend):
    """F73: the sum within half a unit, so its bits; the norm as `rmsnorm`'s."""
    generator = np.random.default_rng(width)
    x, r = (
        mx.array(generator.standard_normal((5, width)).astype(np.float32)).astype(dtype)
        for _ in range(2)
    )
    w = mx.array(generator.uniform(0.5, 2, width).astype(np.float32)).astype(dtype)
    total = np.array((x + r).astype(mx.float32)).astype(np.float64)
    scale = 1 / np.sqrt((total**2).mean(axis=1, keepdims=True) + 1e-5)
    expected = (total * scale * np.array(w.astype(mx.float32)), total)
    empty = metile.empty(x.shape, dtype)
    if is_register:
        arguments = (x, r, w, empty, empty, 1e-5)
        block = metile.next_power_of_2(max(width, 32))
        dispatch = add_rmsnorm_register[5].prepare(
            *arguments, N=width, BLOCK=block, backend=backend
        )
    else:
        arguments = (x, r, w, empty, empty, width, 1e-5)
        dispatch = add_rmsnorm[5].prepare(*arguments, backend=backend)
    return dispatch, arguments, expected, 8 if dtype == mx.float32 else 2.5


SELFTESTS = [
    (f"{kind}, {width} columns, {name}", partial(_selftest, dtype, width, kind != "add_rmsnorm"))
    for kind, widths in (("add_rmsnorm_register", (31, 1009)), ("add_rmsnorm", (31, 4097)))
    for width in widths
    for name, dtype in (("f32", mx.float32), ("f16", mx.float16), ("bf16", mx.bfloat16))
]
