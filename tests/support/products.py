"""Kernels with matrix products, and what their results have to be."""

from __future__ import annotations

from typing import Any

import metile_mlx as metile


@metile.kernel
def matmul(
    A, B, C, COUNT: int, M: int, N: int, K: int, MK: int, KN: int,
    BM: metile.constexpr, BN: metile.constexpr, BK: metile.constexpr,
    TURNED_A: metile.constexpr = False, TURNED_B: metile.constexpr = False,
):  # fmt: skip
    """C[i] = A[i] @ B[i] for each i of COUNT; a turned operand lies column by column."""
    if TURNED_A:
        a = metile.tensor(A, shape=(COUNT, M, K), strides=(MK, 1, M))
    else:
        a = metile.tensor(A, shape=(COUNT, M, K))
    if TURNED_B:
        b = metile.tensor(B, shape=(COUNT, K, N), strides=(KN, 1, K))
    else:
        b = metile.tensor(B, shape=(COUNT, K, N))
    c = metile.tensor(C, shape=(COUNT, M, N), access="write")
    batch = metile.program_id(2)
    row = metile.program_id(1) * BM
    column = metile.program_id(0) * BN
    acc = metile.zeros((BM, BN), metile.f32)
    for k in metile.tile_range(0, K, BK):
        x = metile.tile_load(a, (batch, row, k), (BM, BK))
        y = metile.tile_load(b, (batch, k, column), (BK, BN))
        acc = metile.dot(x, y, acc)
    metile.tile_store(c, (batch, row, column), acc)


@metile.kernel
def epilogue(
    A, B, C, BIAS, RESIDUAL, M: int, N: int, K: int, scale: float,
    BM: metile.constexpr, BN: metile.constexpr, BK: metile.constexpr,
):  # fmt: skip
    """C = silu(scale * (A @ B) + BIAS) + RESIDUAL, in the dtype of C."""
    a, b = metile.tensor(A, shape=(M, K)), metile.tensor(B, shape=(K, N))
    bias = metile.tensor(BIAS, shape=(M, N), strides=(0, 1))
    residual = metile.tensor(RESIDUAL, shape=(M, N))
    c = metile.tensor(C, shape=(M, N), access="write")
    at = (metile.program_id(1) * BM, metile.program_id(0) * BN)
    acc = metile.zeros((BM, BN), metile.f32)
    for k in metile.tile_range(0, K, BK):
        x = metile.tile_load(a, (at[0], k), (BM, BK))
        acc = metile.dot(x, metile.tile_load(b, (k, at[1]), (BK, BN)), acc)
    value = acc * scale + metile.cast(metile.tile_load(bias, at, (BM, BN)), metile.f32)
    value = value / (1 + metile.exp(-value))
    value += metile.cast(metile.tile_load(residual, at, (BM, BN)), metile.f32)
    metile.tile_store(c, at, value)


@metile.kernel
def accumulated(
    A, B, C, COUNT: int, M: int, N: int, K: int,
    BM: metile.constexpr, BN: metile.constexpr, BK: metile.constexpr,
):  # fmt: skip
    """C[i] += A[i] @ B[i], where neither row nor column is a multiple of 5."""
    a, b = metile.tensor(A, shape=(COUNT, M, K)), metile.tensor(B, shape=(COUNT, K, N))
    c = metile.tensor(C, shape=(COUNT, M, N), access="read_write")
    batch = metile.program_id(2)
    row, column = metile.program_id(1) * BM, metile.program_id(0) * BN
    acc = metile.cast(metile.tile_load(c, (batch, row, column), (BM, BN)), metile.f32)
    for k in metile.tile_range(0, K, BK):
        x = metile.tile_load(a, (batch, row, k), (BM, BK))
        y = metile.tile_load(b, (batch, k, column), (BK, BN))
        acc = metile.dot(x, y, acc)
    flat = metile.reshape(metile.arange(0, BM * BN), (BM, BN))
    i, j = row + flat // BN, column + flat % BN
    c.store((batch, i, j), acc, mask=(i % 5 != 0) & (j % 5 != 0))


@metile.kernel
def gram(A, C, COUNT: int, N: int, K: int, NK: int):
    """C[i] = A[i] @ A[i]^T without a loop; N and K are 16 at most."""
    a = metile.tensor(A, shape=(COUNT, N, K))
    turned = metile.tensor(A, shape=(COUNT, K, N), strides=(NK, 1, K))
    c = metile.tensor(C, shape=(COUNT, N, N), access="write")
    batch = metile.program_id(0)
    x = metile.tile_load(a, (batch, 0, 0), (16, 16))
    y = metile.tile_load(turned, (batch, 0, 0), (16, 16))
    metile.tile_store(c, (batch, 0, 0), metile.dot(x, y))


def grid(m: int, n: int, tile: tuple[int, ...], count: int = 1) -> tuple[int, int, int]:
    """Programs for an m by n result."""
    return (-(-n // tile[1]), -(-m // tile[0]), count)


def constexprs(tile: tuple[int, int, int], **others: Any) -> dict[str, Any]:
    return {"BM": tile[0], "BN": tile[1], "BK": tile[2], **others}
