"""Gradients of the weight and the bias of a norm: sums over the rows (SPEC B1).

For y = n * w + b, with n = (x - m) * r, m and r of each row: the weight's gradient is the sum of
cotangent * n, the bias's that of the cotangents. A program adds up `BLOCK` columns of `chunk` rows
in their order, so that a run gives the same bits as the one before it (F51).
"""

import metile_mlx as metile


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
