"""Products of matrices with few tiles and a long K: parts of K first, then their sums (SPEC B1).

`gemm_split` gives each part of K a program of its own; `add_parts` adds the parts up in their order
and does the rest of what `gemm` does. Nothing depends on which program is done first, so a run
gives the same bits as the one before it (F51).
"""

from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_kernels._samples import FLOATS, normal, positive
from metile_kernels.gemm import matrix, product


def gemm_split_reference(a: mx.array, b: mx.array, chunk: int) -> mx.array:
    """Products of `chunk` columns and rows each, (batches * splits, M, N), in MLX's operations."""
    batches, m, k = a.shape
    wide = [x.astype(mx.float32) for x in (a, b)]
    parts = [
        wide[0][:, :, at : at + chunk] @ wide[1][:, at : at + chunk] for at in range(0, k, chunk)
    ]
    return mx.reshape(mx.stack(parts, axis=1), (batches * len(parts), m, -1))


def add_parts_reference(parts: mx.array, splits: int) -> mx.array:
    """Sums of `splits` parts each, in MLX's operations, f32."""
    return mx.sum(mx.unflatten(parts.astype(mx.float32), 0, (-1, splits)), axis=1)


@metile.kernel
def gemm_split(
    A,
    B,
    parts,
    batches: int,
    M: int,
    N: int,
    K: int,
    a_step: int,
    a_pitch: int,
    b_step: int,
    b_pitch: int,
    chunk: int,
    SPLITS: metile.constexpr,
    BM: metile.constexpr = 64,
    BN: metile.constexpr = 64,
    BK: metile.constexpr = 16,
    A_TRANSPOSED: metile.constexpr = False,
    B_TRANSPOSED: metile.constexpr = False,
):
    """Parts of A @ B over a grid (columns, rows, batches * SPLITS) of tiles.

    Args:
        A, B, batches, M, N, K, a_step, a_pitch, b_step, b_pitch: as of `gemm`.
        parts: batches * SPLITS * M * N elements, f32; part s is of K from s * chunk on.
        chunk: a multiple of BK; SPLITS * chunk is K or more.
        BM, BN, BK, A_TRANSPOSED, B_TRANSPOSED: as of `gemm`.
    """
    a = matrix(A, batches, M, K, a_pitch, a_step, A_TRANSPOSED)
    b = matrix(B, batches, K, N, b_pitch, b_step, B_TRANSPOSED)
    c = metile.tensor(parts, shape=(metile.num_programs(2), M, N), access="write")
    row, column = metile.program_id(1) * BM, metile.program_id(0) * BN
    part = metile.program_id(2)
    total = product(a, b, part // SPLITS, row, column, part % SPLITS * chunk, chunk, BM, BN, BK)
    metile.tile_store(c, (part, row, column), total)


@metile.kernel
def add_parts(
    parts,
    bias,
    residual,
    output,
    splits: int,
    size: int,
    width: int,
    scale: float,
    SCALED: metile.constexpr = False,
    BIASED: metile.constexpr = False,
    FUNCTION: metile.constexpr = None,
    RESIDUAL: metile.constexpr = False,
    BLOCK: metile.constexpr = 256,
):
    """Sums of parts in their order, over a grid (size / BLOCK rounded up, batches).

    Args:
        parts: batches * splits * size elements, f32.
        bias: `width` elements; the element at i of a sum has number i % width of them.
        residual, output: batches * size elements.
        scale, SCALED, BIASED, FUNCTION, RESIDUAL: as of `gemm`.
        BLOCK: elements of a program.
    """
    batches = metile.num_programs(1)
    source = metile.tensor(parts, shape=(metile.num_programs(1), splits, size))
    result = metile.tensor(output, shape=(batches, size), access="write")
    if BIASED:
        added = metile.tensor(bias, shape=(width,))
    if RESIDUAL:
        rest = metile.tensor(residual, shape=(batches, size))
    batch = metile.program_id(1)
    i = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    total = metile.zeros(BLOCK, metile.f32)
    for part in metile.tile_range(splits):
        total = total + source.load((batch, part, i))
    if SCALED:
        total = total * scale
    if BIASED:
        total = total + added.load(i % width)
    if FUNCTION is not None:
        total = FUNCTION(total)
    if RESIDUAL:
        total = total + rest.load((batch, i))
    result.store((batch, i), total)


def _selftest_split(dtype, backend):
    """Three parts of K, the last one shorter; A is transposed."""
    (a, wide_a), (b, wide_b) = positive(dtype, 44, 9), positive(dtype, 44, 12)
    arguments = (a, b, metile.empty((3, 9, 12), mx.float32), 1, 9, 12, 44, 0, 9, 0, 12, 16)
    dispatch = gemm_split[2, 1, 3].prepare(
        *arguments, SPLITS=3, BM=16, BN=8, BK=8, A_TRANSPOSED=True, backend=backend
    )
    expected = np.stack([wide_a[k : k + 16].T @ wide_b[k : k + 16] for k in (0, 16, 32)])
    return dispatch, arguments, expected, 16


def _selftest_sum(dtype, backend):
    """Five parts of two batches of 3 x 20, of integers, with a scale, a bias and a residual."""
    parts = mx.round(8 * normal(mx.float32, 2, 5, 60)[0])
    bias, rest = (mx.round(8 * normal(dtype, *shape)[0]) for shape in ((20,), (2, 60)))
    arguments = (parts, bias, rest, metile.empty((2, 60), dtype), 5, 60, 20, 0.5)
    dispatch = add_parts[2, 2].prepare(
        *arguments, SCALED=True, BIASED=True, RESIDUAL=True, BLOCK=32, backend=backend
    )
    wide = mx.tile(bias.astype(mx.float32), (3,)) + rest.astype(mx.float32)
    return dispatch, arguments, (0.5 * parts.sum(axis=1) + wide).astype(dtype), 0


SELFTESTS = [
    (f"{what}, {name}", partial(selftest, dtype))
    for what, selftest in (("gemm_split", _selftest_split), ("add_parts", _selftest_sum))
    for name, dtype in FLOATS
]
