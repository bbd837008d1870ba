"""A store of an 8 by 8 matrix writes rows, by their stride, and the checker orders them (F45)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx.emulator import Access, Fault
from tests.emulator.support import check

pytestmark = pytest.mark.emulator

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"


def body(stride: int, read: str, barrier: str) -> str:
    """Simdgroup 0 stores ones into rows 0 to 7; simdgroup 1 reads at `read`."""
    return (
        "uint t = thread_index_in_threadgroup, lane = thread_index_in_simdgroup;\n"
        "threadgroup float s[256];\nfor (uint k = t; k < 256; k += 64) s[k] = 0;\n"
        f"{BARRIER}simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);\n"
        f"if (t < 32) simdgroup_store(m, s, {stride});\n{barrier}"
        f"y[t] = t < 32 ? 0 : s[{read}];"
    )


ROWS = "lane % 8"


@pytest.mark.parametrize(
    ("stride", "read", "value"),
    [
        (8, f"{ROWS} * 8 + 7", 1),
        (16, f"{ROWS} * 16 + 7", 1),
        (8, f"64 + {ROWS} * 8 + 7", 0),
        (16, f"{ROWS} * 16 + 8", 0),
    ],
)
def test_f45_a_barrier_is_asked_for_where_elements_meet(stride: int, read: str, value: int) -> None:
    expected = np.repeat([0, value], 32)
    for barrier in ("", BARRIER):
        report, y = check(body(stride, read, barrier), {"x": mx.zeros(1)}, (64,))
        if value and not barrier:
            found = report.findings[0]
            assert (found.fault, found.array, found.index) == (Fault.RACE, "s", 7)
            assert found.other is not None
            sides = {found.access: found.thread, found.other_access: found.other}
            assert sides[Access.WRITE].index // 32 == 0
            assert sides[Access.READ].index // 32 == 1
            assert found.count == 8
        else:
            assert not report, str(report)
            assert (np.array(y) == expected).all()
