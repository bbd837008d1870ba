"""Cross entropy of rows of logits and integer targets, and its gradient (SPEC B1).

`log(sum(exp(x))) - x[target]` for each row, in one pass as `metile_kernels.softmax` does it, in
f32 with one rounding at the store. What the pass has found is an output too, so that the gradient
is one pass more and no sum.

A target outside of 0 to width - 1 reads nothing: the row's loss and gradient are NaN. So is the
loss of a row of `-inf`.

    from metile_kernels.cross_entropy import cross_entropy

    found = metile.empty(rows, mx.float32)
    loss, largest, total = cross_entropy[rows](
        logits, targets, metile.empty(rows, dtype), found, found, width
    )
"""

import math
from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_kernels._samples import FLOATS, normal
from metile_kernels.softmax import most_and_total


def cross_entropy_reference(
    logits: mx.array, targets: mx.array
) -> tuple[mx.array, mx.array, mx.array]:
    """(losses, largest logits, sums of exp(logit - largest)) in MLX's operations, f32.

    Args:
        logits: (rows, width).
        targets: (rows,) integers.
    """
    wide, width = logits.astype(mx.float32), logits.shape[-1]
    largest = mx.stop_gradient(mx.max(wide, axis=-1))
    totals = mx.sum(mx.exp(wide - largest[:, None]), axis=-1)
    is_inside = (targets >= 0) & (targets < width)
    places = mx.where(is_inside, targets, 0)
    scores = mx.take_along_axis(wide, places[:, None], axis=-1)[:, 0]
    # A factor and not another value: the gradient of a row outside is NaN too.
    factor = mx.where(is_inside, 1.0, math.nan)
    return factor * (mx.log(totals) - (scores - largest)), largest, totals


@metile.kernel
def cross_entropy(
    logits,
    targets,
    losses,
    maxima,
    totals,
    width: int,
    BLOCK: metile.constexpr = 1024,
):
    """`log(sum(exp(x))) - x[target]` of rows of `width` logits.

    Args:
        logits: rows * width elements; the grid is the number of rows.
        targets: one i32 for each row.
        losses: one for each row, of any float dtype.
        maxima, totals: the largest logit of each row and `sum(exp(x - largest))`, f32.
        width: any number; a new one compiles nothing.
        BLOCK: elements at a time, one per thread: a power of two of 32 to 1024.
    """
    rows = metile.num_programs(0)
    source = metile.tensor(logits, shape=(rows, width), access="read")
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    most, total_of_row = most_and_total(source, row, lanes, width, BLOCK)
    target = metile.tensor(targets, shape=rows, access="read").load(row)
    score = source.load((row, target), fill=math.nan)
    loss = metile.log(total_of_row) - (metile.cast(score, metile.f32) - most)
    metile.tensor(losses, shape=rows, access="write").store(row, loss)
    metile.tensor(maxima, shape=rows, access="write").store(row, most)
    metile.tensor(totals, shape=rows, access="write").store(row, total_of_row)


@metile.kernel
def cross_entropy_gradient(
    logits,
    targets,
    maxima,
    totals,
    cotangents,
    total_cotangents,
    gradient,
    width: int,
    BLOCK: metile.constexpr = 1024,
):
    """`c * (softmax(x) - onehot(target)) + t * exp(x - largest)`, c and t those of two outputs.

    Args:
        logits, targets, maxima, totals, width, BLOCK: as of `cross_entropy`.
        cotangents, total_cotangents: of the losses and of the totals; t is 0 in a first gradient.
        gradient: rows * width elements.
    """
    rows = metile.num_programs(0)
    source = metile.tensor(logits, shape=(rows, width), access="read")
    result = metile.tensor(gradient, shape=(rows, width), access="write")
    row = metile.program_id(0)
    target = metile.tensor(targets, shape=rows, access="read").load(row)
    most = metile.tensor(maxima, shape=rows, access="read").load(row)
    scale = 1 / metile.tensor(totals, shape=rows, access="read").load(row)
    cotangent = metile.tensor(cotangents, shape=rows, access="read").load(row)
    extra = metile.tensor(total_cotangents, shape=rows, access="read").load(row)
    is_inside = (target >= 0) & (target < width)
    factor = metile.where(is_inside, metile.cast(cotangent, metile.f32), math.nan)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + metile.arange(0, BLOCK)
        power = metile.exp(metile.cast(source.load((row, columns)), metile.f32) - most)
        hit = metile.where(columns == target, 1.0, 0.0)
        result.store((row, columns), factor * (power * scale - hit) + extra * power)


def _selftest(dtype, width, backend):
    """The last target lies outside."""
    x, exact = normal(dtype, 4, width, scale=3)
    targets = mx.array([0, width - 1, width // 2, width], mx.int32)
    found = metile.empty(4, mx.float32)
    arguments = (x, targets, found, found, found, width)
    dispatch = cross_entropy[4].prepare(*arguments, backend=backend)
    largest = exact.max(axis=1)
    totals = np.exp(exact - largest[:, None]).sum(axis=1)
    scores = np.array([exact[0, 0], exact[1, -1], exact[2, width // 2], np.nan])
    return dispatch, arguments, (np.log(totals) + largest - scores, largest, totals), 32


SELFTESTS = [
    (f"cross_entropy, {width} columns, {name}", partial(_selftest, dtype, width))
    for width in (33, 1500)
    for name, dtype in FLOATS
]
