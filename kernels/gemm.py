"""Products of matrices, with what is done to the result before it is stored (SPEC B1, P1, P4).

    C = FUNCTION(scale * (A @ B) + bias) + residual

for matrices in f16, bf16 or f32, of any size. Products are added up in f32, and so is the rest; C
is rounded once, at the store. A program makes BM x BN elements of C, in steps of BK along K.

The grid is (columns, rows, batches) of tiles with ORDER=None; with a walk of `program_order` it is
(columns * rows, 1, batches). `gemm_split` makes few tiles of C with many programs.

    from metile_kernels.gemm import gemm, grid

    shape = (1, m, n)
    c = gemm[grid(1, m, n)](
        a, b, a, a, metile.empty(shape, a.dtype), 1, m, n, k, m * k, k, k * n, n, 1.0
    )
"""

from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_kernels._samples import FLOATS, positive
from metile_kernels.activations import activation_reference, gelu_tanh
from metile_kernels.program_order import hilbert, tile_of


def grid(
    batches: int, m: int, n: int, BM: int = 64, BN: int = 64, ORDER: object = None
) -> tuple[int, int, int]:
    """The programs of `gemm` for C of (batches, m, n)."""
    rows, columns = metile.cdiv(m, BM), metile.cdiv(n, BN)
    return (columns, rows, batches) if ORDER is None else (rows * columns, 1, batches)


def gemm_reference(
    a: mx.array,
    b: mx.array,
    bias: mx.array | None = None,
    residual: mx.array | None = None,
    function: object = None,
    scale: float = 1.0,
) -> mx.array:
    """The same in MLX's operations, f32.

    Args:
        a, b, bias, residual: as MLX's matmul and addition broadcast them.
        function: None, or one of `activations`.
    """
    made = scale * (a.astype(mx.float32) @ b.astype(mx.float32))
    made = made if bias is None else made + bias.astype(mx.float32)
    made = made if function is None else activation_reference(made, function)
    return made if residual is None else made + residual.astype(mx.float32)


@metile.inline
def matrix(array, batches, rows, columns, pitch, step, TRANSPOSED):
    """A view of (batches, rows, columns); `pitch` apart are rows, or columns where transposed."""
    strides = (step, 1, pitch) if TRANSPOSED else (step, pitch, 1)
    return metile.tensor(array, shape=(batches, rows, columns), strides=strides)


@metile.inline
def product(a, b, batch, row, column, first, length, BM, BN, BK):
    """`length` steps of K from `first` on, for the tile of C that begins at (row, column)."""
    total = metile.zeros((BM, BN), metile.f32)
    for k in metile.tile_range(0, length, BK):
        left = metile.tile_load(a, (batch, row, first + k), (BM, BK))
        right = metile.tile_load(b, (batch, first + k, column), (BK, BN))
        total = metile.dot(left, right, total)
    return total


@metile.kernel
def gemm(
    A,
    B,
    bias,
    residual,
    C,
    batches: int,
    M: int,
    N: int,
    K: int,
    a_step: int,
    a_pitch: int,
    b_step: int,
    b_pitch: int,
    scale: float,
    BM: metile.constexpr = 64,
    BN: metile.constexpr = 64,
    BK: metile.constexpr = 16,
    A_TRANSPOSED: metile.constexpr = False,
    B_TRANSPOSED: metile.constexpr = False,
    SCALED: metile.constexpr = False,
    BIASED: metile.constexpr = False,
    FUNCTION: metile.constexpr = None,
    RESIDUAL: metile.constexpr = False,
    ORDER: metile.constexpr = None,
    LEVELS: metile.constexpr = 3,
):
    """C of (batches, M, N) from A of (batches, M, K) and B of (batches, K, N).

    Args:
        A, B: of one dtype. Their matrices are `a_step` and `b_step` elements apart, 0 where all
            batches have the same one; rows are `a_pitch` and `b_pitch` apart.
        bias: N elements, of any float dtype; read with BIASED.
        residual: like C, of any float dtype; read with RESIDUAL.
        C: batches * M * N elements.
        K: 0 gives zeros before the bias.
        scale: with SCALED.
        BM, BN, BK: powers of two of 8 to 128.
        A_TRANSPOSED, B_TRANSPOSED: A is stored as (K, M) and B as (N, K); then columns are
            `a_pitch` and `b_pitch` apart.
        FUNCTION: None, or an inline function of a tile, as those of `activations`.
        ORDER, LEVELS: None, or WALK and LEVELS of `program_order.tile_of`.
    """
    a = matrix(A, batches, M, K, a_pitch, a_step, A_TRANSPOSED)
    b = matrix(B, batches, K, N, b_pitch, b_step, B_TRANSPOSED)
    c = metile.tensor(C, shape=(batches, M, N), access="write")
    if BIASED:
        added = metile.tensor(bias, shape=(M, N), strides=(0, 1))
    if RESIDUAL:
        rest = metile.tensor(residual, shape=(batches, M, N))
    row, column = metile.program_id(1), metile.program_id(0)
    if ORDER is not None:
        rows, columns = metile.cdiv(M, BM), metile.cdiv(N, BN)
        row, column = tile_of(metile.program_id(0), rows, columns, ORDER, LEVELS)
    row, column, batch = row * BM, column * BN, metile.program_id(2)
    total = product(a, b, batch, row, column, 0, K, BM, BN, BK)
    if SCALED:
        total = total * scale
    if BIASED:
        total = total + metile.tile_load(added, (row, column), (BM, BN))
    if FUNCTION is not None:
        total = FUNCTION(total)
    if RESIDUAL:
        total = total + metile.tile_load(rest, (batch, row, column), (BM, BN))
    metile.tile_store(c, (batch, row, column), total)


def _selftest(dtype, ORDER, backend):
    """Two batches of 33 x 17 x 20 with all of the epilogue; B is transposed, and the same."""
    # Nothing cancels, so that digits of the result are right.
    (a, b, bias, rest), wide = zip(
        *(positive(dtype, *shape) for shape in ((2, 33, 20), (17, 20), (17,), (2, 33, 17))),
        strict=True,
    )
    out = metile.empty((2, 33, 17), dtype)
    arguments = (a, b, bias, rest, out, 2, 33, 17, 20, 660, 20, 0, 20, 0.03125)
    sizes = {"BM": 16, "BN": 8, "BK": 8, "ORDER": ORDER}
    dispatch = gemm[grid(2, 33, 17, 16, 8, ORDER)].prepare(
        *arguments, **sizes, B_TRANSPOSED=True, SCALED=True, BIASED=True, FUNCTION=gelu_tanh,
        RESIDUAL=True, backend=backend,
    )  # fmt: skip
    inner = 0.03125 * (wide[0] @ wide[1].T) + wide[2]
    cubic = np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)
    expected = 0.5 * inner * (1 + np.tanh(cubic)) + wide[3]
    return dispatch, arguments, expected, 16 if dtype == mx.float32 else 1


SELFTESTS = [
    (f"gemm, {name}{', Hilbert order' if order else ''}", partial(_selftest, dtype, order))
    for order in (None, hilbert)
    for name, dtype in FLOATS
]
