"""Atomic functions on device and threadgroup memory: results, and that none is lost."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx import emulator
from metile_mlx.errors import CompileError
from tests.emulator.support import check, launch

pytestmark = pytest.mark.emulator

X = np.array([3, -7, 12, 5, 9, -2, 30, 1] * 8, np.int32)
RELAXED = "memory_order_relaxed"
FETCHES = {
    "add": (100, lambda x: 100 + x.sum()),
    "sub": (100, lambda x: 100 - x.sum()),
    "min": (4, lambda x: min(4, x.min())),
    "max": (4, lambda x: max(4, x.max())),
    "and": (-1, np.bitwise_and.reduce),
    "or": (0, np.bitwise_or.reduce),
    "xor": (0, np.bitwise_xor.reduce),
}


@pytest.mark.parametrize("name", FETCHES)
def test_fetches_on_threadgroup_memory(name: str) -> None:
    start, expect = FETCHES[name]
    body = (
        "threadgroup atomic_int a;\nuint t = thread_index_in_threadgroup;\n"
        f"if (t == 0) atomic_store_explicit(&a, {start}, {RELAXED});\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        f"atomic_fetch_{name}_explicit(&a, x[t], {RELAXED});\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        f"y[t] = atomic_load_explicit(&a, {RELAXED});"
    )
    report, y = check(body, {"x": mx.array(X)}, (64,), dtype=mx.int32, schedules=4)
    assert not report, str(report)
    assert np.array_equal(np.array(y), np.full(64, expect(X)))


def test_counters_lose_nothing_between_processors() -> None:
    """Integers and floats, many threadgroups at once."""
    for kind, dtype in (("int", mx.int32), ("uint", mx.uint32), ("float", mx.float32)):
        y = launch(
            f"atomic_fetch_add_explicit(&y[thread_position_in_grid.x % 3], {kind}(1), {RELAXED});"
            "\nif (false) atomic_store_explicit(&y[0], x[0], memory_order_relaxed);",
            {"x": mx.zeros((8,))}, (3,), threads=300000, dtype=dtype, init_value=0,
            atomic_outputs=True,
        )  # fmt: skip
        assert y.tolist() == [100000] * 3


def test_compare_exchange_builds_a_maximum_of_floats() -> None:
    body = (
        "threadgroup atomic_uint a;\nuint t = thread_index_in_threadgroup;\n"
        f"if (t == 0) atomic_store_explicit(&a, as_type<uint>(-1e9f), {RELAXED});\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        f"uint old = atomic_load_explicit(&a, {RELAXED});\n"
        "while (as_type<float>(old) < x[t] && !atomic_compare_exchange_weak_explicit(&a, &old, "
        f"as_type<uint>(x[t]), {RELAXED}, {RELAXED})) {{}}\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        f"y[t] = as_type<float>(atomic_exchange_explicit(&a, as_type<uint>(30.0f), {RELAXED}));"
    )
    report, y = check(body, {"x": mx.array(X.astype(np.float32))}, (64,))
    assert not report, str(report)
    assert y.tolist() == [30] * 64


def test_sums_of_floats_depend_on_the_order_without_report() -> None:
    """`schedules` compares bits only where no float reduction is involved."""
    x = mx.array(np.random.default_rng(0).normal(size=64).astype(np.float32))
    body = f"atomic_fetch_add_explicit(&y[0], x[thread_position_in_grid.x], {RELAXED});"
    report, y = check(body, {"x": x}, (1,), schedules=5, init_value=0, atomic_outputs=True)
    assert not report, str(report)
    assert np.allclose(np.array(y), np.array(x).sum(), atol=1e-5)


def test_an_output_that_atomics_fill_must_start_somewhere() -> None:
    body = f"atomic_fetch_add_explicit(&y[0], x[thread_position_in_grid.x], {RELAXED});"
    report, _ = check(body, {"x": mx.zeros((64,))}, (1,), atomic_outputs=True)
    (finding,) = report.findings
    assert (finding.fault, finding.access) == (
        emulator.Fault.UNINITIALISED, emulator.Access.ATOMIC,
    )  # fmt: skip


def test_float_has_no_atomic_maximum() -> None:
    body = (
        f"threadgroup atomic_float a;\natomic_fetch_max_explicit(&a, x[0], {RELAXED});\ny[0] = 0;"
    )
    with pytest.raises(CompileError):
        launch(body, {"x": mx.zeros((8,))}, (1,))
