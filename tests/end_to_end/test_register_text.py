"""What the Metal text of kernels over register tiles looks like (SPEC R1, R2, R5, F64)."""

from __future__ import annotations

import re

import mlx.core as mx
import pytest

import metile_mlx as metile
from tests.end_to_end.test_sums import layout, rmsnorm, totals


def prepared(registers: int, block: int = 1024, n: int = 1009) -> metile.Dispatch:
    return rmsnorm[(2,)].prepare(
        mx.ones((2, n)),
        mx.ones((n,)),
        metile.empty((2, n), mx.float32),
        1e-5,
        N=n,
        BLOCK=block,
        LAYOUT=layout(block, registers),
        target="metal",
    )


def test_32_values_per_thread_communicate_nothing() -> None:
    """Issue 4: one simdgroup, no scratch, no barrier: in the report and in the text."""
    x = mx.ones((1, 1024))
    dispatch = totals[(1,)].prepare(
        x, metile.empty((1,), mx.float32), N=1024, LAYOUT=layout(1024, 32), target="metal"
    )
    report = dispatch.execution_report
    assert (report.threads, report.allocations) == (32, [])
    (reduction,) = report.register_reductions
    assert (reduction.registers, reduction.threads, reduction.scratch) == (32, 32, None)
    assert "32 registers x 32 threads  one simdgroup: no scratch, no barrier" in dispatch.explain()
    assert "threadgroup float" not in dispatch.msl
    assert "barrier" not in dispatch.msl
    assert dispatch.msl.count("simd_sum(") == 1


def test_the_check_of_a_row_against_the_grid_is_gone() -> None:
    """SPEC R5: a program id is always below the grid's extent, so only the last slot is checked."""
    dispatch = prepared(4)
    # Rows of x and y in four slots, columns of x, w and y in three of four.
    assert dispatch.execution_report.bounds_checks_removed == 2 * 4 + 3 * 3
    assert dispatch.msl.count("< 1009") == 1
    assert "threadgroups_per_grid" not in dispatch.msl
    (output,) = dispatch.execution_report.coverage
    assert output.proven


@pytest.mark.parametrize(("registers", "block"), [(4, 1024), (8, 1024), (32, 1024), (32, 32768)])
def test_f64_register_slots_are_names(registers: int, block: int) -> None:
    """SPEC R1: a name per slot, with its number; nothing but memory is ever indexed."""
    text = prepared(registers, block, block - 15).msl
    body = text[text.index("{") :]
    indexed = set(re.findall(r"(\w+)\[", body))
    assert indexed - {"inputs", "weights", "eps", "output", "partials_0"} == set()
    for register in range(registers):
        suffix = f"_{register}" if register else ""
        assert re.search(rf"\bfloat w{suffix} = ", body) or re.search(
            rf"\bfloat weight_load{suffix} = ", body
        )
        assert re.search(rf"\bfloat value_times_scale{suffix} = ", body)


def test_r2_partials_are_published_once_and_read_by_every_simdgroup() -> None:
    body = prepared(4).msl
    order = [
        "threadgroup float partials_0[8];",
        "uint tid = thread_index & 255u;",
        "float total_partial = simd_sum(",
        "uint lane = tid & 31u;",
        "if (is_first_lane) { partials_0[simdgroup_] = total_partial; }",
        "threadgroup_barrier(mem_flags::mem_threadgroup);",
        "float published = has_partial ? partials_0[lane] : 0.0f;",
        "float total = simd_sum(published);",
    ]
    places = [body.index(line) for line in order]
    assert places == sorted(places)
    assert body.count("threadgroup_barrier") == 1


def test_all_32_simdgroups_need_no_mask() -> None:
    body = prepared(1).msl
    assert "float published = partials_0[lane];" in body
