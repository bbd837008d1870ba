"""Gradients of the weight and the bias of a norm: sums over the rows (SPEC B1).

For y = n * w + b, with n = (x - m) * r, m and r of each row: the weight's gradient is the sum of
cotangent * n, the bias's that of the cotangents. A program adds up `BLOCK` columns of `chunk` rows
in their order, so that a run gives the same bits as the one before it (F51).
"""

from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile


def norm_weight_gradients_reference(
    x: mx.array, cotangents: mx.array, means: mx.array, roots: mx.array, chunk: int
) -> tuple[mx.array, mx.array]:
    """Parts of the gradients of the weight and the bias, CENTRED, in MLX's operations, f32.

    Args:
        x, cotangents: (rows, width).
        means, roots: (rows,).
        chunk: rows that are added up to one part.
    """
    given = cotangents.astype(mx.float32)
    normalised = (x.astype(mx.float32) - means[:, None]) * roots[:, None]
    return _parts(given * normalised, chunk), _parts(given, chunk)


def _parts(x, chunk):
    rows, width = x.shape
    padded = mx.pad(x, [(0, -rows % chunk), (0, 0)])
    return mx.sum(mx.reshape(padded, (-1, chunk, width)), axis=1)


@metile.kernel
def norm_weight_gradients(
    inputs,
    cotangents,
    means,
    roots,
    weight_parts,
    bias_parts,
    rows: int,
    width: int,
    chunk: int,
    BLOCK: metile.constexpr = 256,
    CENTRED: metile.constexpr = False,
    WEIGHTED: metile.constexpr = True,
    BIASED: metile.constexpr = False,
):
    """Parts of both gradients, of any width, over a grid (width / BLOCK, rows / chunk), rounded up.

    Args:
        inputs, cotangents: rows * width elements.
        means, roots: m and r of each row, f32.
        weight_parts, bias_parts: grid[1] * width elements, f32; their sums over the first axis are
            the gradients.
        chunk: rows per program.
        CENTRED, WEIGHTED, BIASED: without them means, inputs with roots and weight_parts, and
            bias_parts are neither read nor written.
    """
    parts = (metile.num_programs(1), width)
    given = metile.tensor(cotangents, shape=(rows, width), access="read")
    if WEIGHTED:
        source = metile.tensor(inputs, shape=(rows, width), access="read")
        scales = metile.tensor(roots, shape=(rows,), access="read")
        if CENTRED:
            centres = metile.tensor(means, shape=(rows,), access="read")
    columns = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    first = metile.program_id(1) * chunk
    weight_total = metile.zeros(BLOCK, metile.f32)
    bias_total = metile.zeros(BLOCK, metile.f32)
    for index in metile.tile_range(chunk):
        # Past the last row everything loads as 0.
        row = first + index
        cotangent = metile.cast(given.load((row, columns)), metile.f32)
        if WEIGHTED:
            values = metile.cast(source.load((row, columns)), metile.f32)
            if CENTRED:
                values = values - centres.load(row)
            weight_total = weight_total + cotangent * (values * scales.load(row))
        bias_total = bias_total + cotangent
    at = (metile.program_id(1), columns)
    if WEIGHTED:
        metile.tensor(weight_parts, shape=parts, access="write").store(at, weight_total)
    if BIASED:
        metile.tensor(bias_parts, shape=parts, access="write").store(at, bias_total)


def _selftest(dtype, backend):
    """Five rows of small integers, three and two at a time: sums are exact."""
    generator = np.random.default_rng(0)
    x, cotangent = generator.integers(-8, 9, (2, 5, 70)).astype(np.float64)
    means, roots = np.arange(5.0), 2.0 ** np.arange(5)
    arrays = (mx.array(a.astype(np.float32)).astype(dtype) for a in (x, cotangent))
    statistics = (mx.array(a.astype(np.float32)) for a in (means, roots))
    parts = metile.empty((2, 70), mx.float32)
    arguments = (*arrays, *statistics, parts, parts, 5, 70, 3)
    dispatch = norm_weight_gradients[2, 2].prepare(
        *arguments, BLOCK=64, CENTRED=True, BIASED=True, backend=backend
    )
    product = cotangent * (x - means[:, None]) * roots[:, None]
    expected = tuple(
        mx.array(np.add.reduceat(a, [0, 3]).astype(np.float32)) for a in (product, cotangent)
    )
    return dispatch, arguments, expected, 0


SELFTESTS = [
    (f"norm_weight_gradients, {name}", partial(_selftest, dtype))
    for name, dtype in (("f32", mx.float32), ("f16", mx.float16), ("bf16", mx.bfloat16))
]
