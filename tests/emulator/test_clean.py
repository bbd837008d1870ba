"""Kernels without fault give no report, in any order of threads."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.emulator.support import check

pytestmark = pytest.mark.emulator

IDS = (
    "uint i = thread_position_in_grid.x, t = thread_index_in_threadgroup;\n"
    "uint lane = thread_index_in_simdgroup, group = simdgroup_index_in_threadgroup;\n"
)
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"

CLEAN = {
    "elementwise": "y[i] = x[i] * 2;",
    "reverse through scratch": (
        f"threadgroup float s[64];\ns[t] = x[i];\n{BARRIER}y[i] = s[63 - t];"
    ),
    "scratch used twice": (
        f"threadgroup float s[64];\nfloat a = x[i];\nfor (int k = 0; k < 3; ++k) {{\ns[t] = a;\n"
        f"{BARRIER}a += s[63 - t];\n{BARRIER}}}\ny[i] = a;"
    ),
    "lanes through scratch": (
        "threadgroup float s[64];\ns[t] = x[i];\nsimdgroup_barrier(mem_flags::mem_threadgroup);\n"
        "y[i] = s[t ^ 1];"
    ),
    "sum of a threadgroup": (
        "threadgroup float s[2];\nfloat sum = simd_sum(x[i]);\nif (lane == 0) s[group] = sum;\n"
        f"{BARRIER}y[i] = s[0] + s[1];"
    ),
    "device memory in order": (
        "y[i] = x[i];\nthreadgroup_barrier(mem_flags::mem_device);\nfloat a = y[63 - t];\n"
        "threadgroup_barrier(mem_flags::mem_device);\ny[i] = a;"
    ),
    "atomic counter": (
        "threadgroup atomic_int c;\nif (t == 0) atomic_store_explicit(&c, 0, memory_order_relaxed);"
        f"\n{BARRIER}atomic_fetch_add_explicit(&c, 1, memory_order_relaxed);\n{BARRIER}"
        "y[i] = atomic_load_explicit(&c, memory_order_relaxed);"
    ),
    "halves beside each other": (
        f"threadgroup half s[64];\ns[t] = half(x[i]);\n{BARRIER}y[i] = s[t ^ 1];"
    ),
    "bytes of one word": (
        "threadgroup uint w[16];\nthreadgroup uchar* s = (threadgroup uchar*)w;\ns[t] = uchar(i);\n"
        f"{BARRIER}y[i] = s[t ^ 1];"
    ),
    "matrix through scratch": (
        "threadgroup float s[64];\nsimdgroup_float8x8 m(2.0f);\n"
        f"if (group == 0) simdgroup_store(m, s, 8);\n{BARRIER}y[i] = s[t];"
    ),
    "early return before lane operations": (
        "y[i] = 0;\nif (lane > 20) return;\ny[i] = simd_sum(x[i]);"
    ),
    "whole vectors": (
        "const device float4* p = (const device float4*)x;\ndevice float4* q = (device float4*)y;\n"
        "if (i < 16) q[i] = p[i].wzyx;"
    ),
}


@pytest.mark.parametrize("name", CLEAN)
def test_clean_kernel_gives_no_report(name: str) -> None:
    x = mx.arange(64).astype(mx.float32)
    report, y = check(IDS + CLEAN[name], {"x": x}, (64,), schedules=5)
    assert not report, str(report)
    assert report.launches == 1
    assert np.isfinite(np.array(y)).all()


def test_results_are_right() -> None:
    x = np.arange(64, dtype=np.float32)
    cases = {
        "reverse through scratch": x[::-1],
        "sum of a threadgroup": np.full(64, x.sum()),
        "atomic counter": np.full(64, 64),
        "device memory in order": x[::-1],
        "matrix through scratch": 2 * np.eye(8, dtype=np.float32).reshape(-1),
        "whole vectors": x.reshape(16, 4)[:, ::-1].reshape(-1),
    }
    for name, expected in cases.items():
        _, y = check(IDS + CLEAN[name], {"x": mx.array(x)}, (64,))
        assert np.array_equal(np.array(y), expected), name
