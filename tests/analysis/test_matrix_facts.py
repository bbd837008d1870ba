"""What is known of programs with products: coverage, fills, bounds, offsets (SPEC K2, K7)."""

from __future__ import annotations

import math

import pytest

import metile_mlx.frontend.language as metile
from metile_mlx.analysis.coverage import coverage
from metile_mlx.compiler import lower
from metile_mlx.context import Context, Schedule
from metile_mlx.errors import CompileError
from metile_mlx.ir import metal
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Func, walk
from metile_mlx.report import ExecutionReport
from metile_mlx.target import CPU, METAL
from tests.support.kernels import tile_ir
from tests.support.products import constexprs, matmul

KINDS = (*("f32*",) * 3, *("i32",) * 6)
TILE = (16, 32, 8)


def func() -> Func:
    return tile_ir(matmul.definition, *KINDS, **constexprs(TILE))


@pytest.mark.parametrize(
    ("m", "n", "grid", "gap"),
    [
        (64, 64, (2, 4, 3), ""),
        (65, 33, (2, 5, 3), ""),
        (1, 1, (1, 1, 3), ""),
        (65, 64, (2, 4, 3), "4 programs along y cover 64 of 65 along dimension 1"),
        (64, 65, (2, 4, 3), "2 programs along x cover 64 of 65 along dimension 2"),
        (64, 64, (2, 4, 2), "2 programs along z cover 2 of 3 along dimension 0"),
    ],
)
def test_k7_tiles_cover_the_output(m: int, n: int, grid: tuple[int, int, int], gap: str) -> None:
    """So nothing is zero-filled before a product, whatever its edges."""
    (found,) = coverage(func())
    assert (found.param, found.access, found.reasons) == ("C", "write", ())
    scalars = {"COUNT": 3, "M": m, "N": n, "K": 5, "MK": 5 * m, "KN": 5 * n}
    assert found.proven(scalars, grid, 3 * m * n) is (not gap)
    x, y, z = grid
    assert found.explain(scalars, grid, 3 * m * n) == (
        gap or f"{x} x {y} x {z} programs store all {3 * m * n} elements of C"
    )


def maxima(A, B, C, FILLED: metile.constexpr, SHAPE: metile.constexpr):
    """The largest element of a product, and of what it begins with."""
    a, b = metile.tensor(A, shape=SHAPE), metile.tensor(B, shape=SHAPE)
    x, y = metile.tile_load(a, (0, 0), (16, 16)), metile.tile_load(b, (0, 0), (16, 16))
    if FILLED:
        start = metile.tile_load(a, (0, 0), (16, 16), fill=-math.inf)
    else:
        start = metile.tile_load(a, (0, 0), (16, 16))
    out = metile.tensor(C, shape=(2,), access="write")
    out.store(0, metile.max(metile.dot(x, y)))
    out.store(1, metile.max(metile.dot(x, y, start)))


def test_k2_zeros_are_right_in_a_product_and_wrong_in_a_maximum() -> None:
    """The operands need no fill; what is accumulated in counts as itself."""
    kinds = ("f32*", "f32*", "f32*")
    tile_ir(maxima, *kinds, FILLED=True, SHAPE=(15, 16))
    tile_ir(maxima, *kinds, FILLED=False, SHAPE=(16, 16))
    with pytest.raises(CompileError, match="take part in the maximum of line") as caught:
        tile_ir(maxima, *kinds, FILLED=False, SHAPE=(15, 16))
    assert "start = metile.tile_load(a, (0, 0), (16, 16))" in str(caught.value)


def largest(A, C, N: metile.constexpr, FILL: metile.constexpr):
    a = metile.tensor(A, shape=(N, N))
    if FILL is None:
        x = metile.tile_load(a, (0, 0), (16, 16))
    else:
        x = metile.tile_load(a, (0, 0), (16, 16), fill=FILL)
    metile.tensor(C, shape=(1,), access="write").store(0, metile.max(x))


def test_k2_a_maximum_over_a_tile_needs_a_fill_at_the_edge_only() -> None:
    tile_ir(largest, "f32*", "f32*", N=16, FILL=None)
    tile_ir(largest, "f32*", "f32*", N=15, FILL=-math.inf)
    with pytest.raises(CompileError, match="take part in the maximum"):
        tile_ir(largest, "f32*", "f32*", N=15, FILL=None)


def fixed(A, B, C, M: metile.constexpr, N: metile.constexpr, K: metile.constexpr):
    """Extents that are known when the kernel is compiled."""
    a, b = metile.tensor(A, shape=(M, K)), metile.tensor(B, shape=(K, N))
    c = metile.tensor(C, shape=(M, N), access="write")
    row, column = metile.program_id(1) * 16, metile.program_id(0) * 16
    acc = metile.zeros((16, 16), metile.f32)
    for k in metile.tile_range(0, K, 16):
        x = metile.tile_load(a, (row, k), (16, 16))
        acc = metile.dot(x, metile.tile_load(b, (k, column), (16, 16)), acc)
    metile.tile_store(c, (row, column), acc)


def lowered(kernel: Func, ctx: Context) -> tuple[Func, ExecutionReport]:
    return lower(kernel, ctx), ctx.report


@pytest.mark.parametrize("staging", ["threadgroup", "device"])
def test_r5_whole_tiles_of_k_are_not_compared(staging: str) -> None:
    """A grid may have more programs than tiles, so rows and columns are; each access counts one."""
    removed = {}
    for depth in (64, 65):
        kernel = tile_ir(fixed, "f32*", "f32*", "f32*", M=64, N=64, K=depth)
        _, report = lowered(kernel, Context(METAL, Schedule(staging=staging)))
        removed[depth] = report.bounds_checks_removed
    loads = 2 * (2 if staging == "threadgroup" else 4)
    assert removed == {64: loads, 65: 0}


@pytest.mark.parametrize("target", [METAL, CPU])
@pytest.mark.parametrize("bits", [32, 64])
def test_x8_offsets_are_as_wide_as_the_arrays_ask_for(target: object, bits: int) -> None:
    assert target in (METAL, CPU)
    made, _ = lowered(func(), Context(METAL if target == METAL else CPU, index_bits=bits))
    accesses = [i for i in walk(made.body) if isinstance(i, metal.Load | metal.Store)]
    assert accesses
    assert {element(item.index).bits for item in accesses} == {bits}


def biased(A, C, N: int):
    """One row for all: the stride of rows is 0."""
    bias = metile.tensor(A, shape=(64, N), strides=(0, 1))
    c = metile.tensor(C, shape=(64, N), access="write")
    at = (metile.program_id(1) * 16, metile.program_id(0) * 16)
    x = metile.tile_load(bias, at, (16, 16))
    metile.tile_store(c, at, metile.dot(x, x, metile.zeros((16, 16), metile.f32)))


def test_a_stride_of_0_takes_no_part_in_offsets_and_its_extent_is_still_compared() -> None:
    made, _ = lowered(tile_ir(biased, "f32*", "f32*", "i32"), Context(METAL))
    loads = [item for item in walk(made.body) if isinstance(item, metal.Load | metal.LoadGroup)]
    assert loads
    assert all(item.mask is not None for item in loads)
    (found,) = coverage(tile_ir(biased, "f32*", "f32*", "i32"))
    assert found.proven({"N": 30}, (2, 4, 1), 64 * 30)
