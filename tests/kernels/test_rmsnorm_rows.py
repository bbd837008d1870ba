"""`rmsnorm_rows`: several short rows a program, ragged in both directions (SPEC B1, R2)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_kernels.rmsnorm import rmsnorm_register, rmsnorm_rows
from tests.kernels.test_rmsnorm import check, data
from tests.support.profile import count
from tests.support.public import compile_all, same_bits

EPS = 1e-5
L = metile.ThreadLayout
# (rows, block, layout): in registers, a simdgroup each, in eight lanes, across simdgroups.
TOGETHER: list[tuple[int, int, metile.ThreadLayout | None]] = [
    (4, 256, None),
    (4, 256, L.identity(1024, elements_per_thread=32)),
    (8, 256, L((8, 9, 10, 0, 1, 2, 3, 4, 5, 6, 7), elements_per_thread=8)),
    (8, 32, L((6, 7, 0, 1, 2, 3, 4, 5), elements_per_thread=4)),
    (2, 1024, L((0, 1, 5, 6, 7, 2, 3, 4, 9, 10, 8), elements_per_thread=4)),
]
# Rows and columns: full, ragged either way and both, fewer rows than a program takes.
SHAPES = [(16, 1.0), (13, 1.0), (16, 0.98), (1, 0.7), (11, 0.03)]
DTYPES = [mx.float32, mx.float16, mx.bfloat16]
Case = tuple[tuple[int, int, metile.ThreadLayout | None], int, int, mx.Dtype]


def cases() -> list[Case]:
    """Each way to hold rows with each shape, dtypes in turn."""
    found: list[Case] = []
    for held in TOGETHER:
        for rows, share in SHAPES:
            dtype = DTYPES[len(found) % 3]
            found.append((held, rows, max(1, int(held[1] * share)), dtype))
    return found if count(ci=0, full=1) else found[::2]


def prepared(case: Case, x: mx.array, w: mx.array, backend: str) -> Any:
    (together, block, layout), rows, width, dtype = case
    return rmsnorm_rows[metile.cdiv(rows, together)].prepare(
        x, w, metile.empty(x.shape, dtype), EPS, rows, N=width, BLOCK=block, ROWS=together,
        WHOLE=rows % together == 0, LAYOUT=layout, backend=backend,
    )  # fmt: skip


def test_every_way_to_hold_rows_on_the_cpu() -> None:
    """Emulated under the checker when the file is done, like every kernel here."""
    found = cases()
    arrays = [data(width, dtype, rows, seed) for seed, (_, rows, width, dtype) in enumerate(found)]
    pairs = list(zip(found, arrays, strict=True))
    dispatches = [prepared(case, *given, "cpu") for case, given in pairs]
    compile_all(dispatches)
    for dispatch, (case, (x, w)) in zip(dispatches, pairs, strict=True):
        y = dispatch(x, w, metile.empty(x.shape, x.dtype), EPS, case[1])
        check(y, x, w, case)


def test_every_way_to_hold_rows_on_the_reference() -> None:
    for seed, case in enumerate(cases()[::3]):
        x, w = data(case[2], case[3], case[1], seed)
        dispatch = prepared(case, x, w, "reference")
        check(dispatch(x, w, metile.empty(x.shape, x.dtype), EPS, case[1]), x, w, case)


def test_rows_need_no_memory_where_a_simdgroup_has_them() -> None:
    x, w = data(256, mx.float16, 16)
    report = prepared((TOGETHER[2], 16, 256, mx.float16), x, w, "cpu").execution_report
    (reduction,) = report.register_reductions
    assert (reduction.axis, reduction.shuffles, reduction.scratch) == (1, 0, None)
    assert report.threads == 256
    assert not report.allocations
    assert len(report.grouped_stores) == 2
    assert all(output.proven for output in report.coverage)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("width", [32, 64, 128])
def test_f51_a_row_has_the_same_bits_in_any_company(width: int, dtype: mx.Dtype) -> None:
    """`metile.rms_norm` takes several rows where it can, and one where it can't."""
    x, w = data(width, dtype, 8)
    together = metile.rms_norm(x, w, EPS)
    assert same_bits(together[:3], metile.rms_norm(x[:3], w, EPS))
    alone = rmsnorm_register[(8,)](
        x, w, metile.empty(x.shape, dtype), EPS, N=width, BLOCK=width, ROUND_NORMALISED=True,
        LAYOUT=L.identity(width, elements_per_thread=width // 32), backend="cpu",
    )  # fmt: skip
    assert same_bits(together, alone)
