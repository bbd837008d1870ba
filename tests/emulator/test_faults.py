"""Faults planted in hand-written MSL: each is found, with the threads and the index it has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import pytest

from metile_mlx.emulator import Access, Fault, Finding, Report, Thread
from tests.emulator.support import check

pytestmark = pytest.mark.emulator

X64 = mx.arange(64).astype(mx.float32)
IDS = (
    "uint i = thread_position_in_grid.x, t = thread_index_in_threadgroup;\n"
    "uint lane = thread_index_in_simdgroup;\n"
)
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"


def thread(index: int, group: int = 0) -> Thread:
    return Thread((group, 0, 0), index)


@dataclass(frozen=True)
class Planted:
    """A fault: the body, and what the first finding of its kind must say."""

    body: str
    fault: Fault
    array: str = ""
    index: int = 0
    thread: Thread | None = None
    other: Thread | None = None
    access: Access = Access.NONE
    other_access: Access = Access.NONE
    count: int | None = None
    call: dict[str, Any] = field(default_factory=dict)


def race(body: str, array: str, index: int, accesses: tuple[Access, Access], *who: Thread,
         **call: Any) -> Planted:  # fmt: skip
    """`who` made the second and the first access, in the natural order of threads."""
    return Planted(body, Fault.RACE, array, index, *who, *accesses, call=call)


READ_WRITE = (Access.READ, Access.WRITE)
WRITE_READ = (Access.WRITE, Access.READ)
WRITE_WRITE = (Access.WRITE, Access.WRITE)

PLANTED = {
    # F43. Simdgroup 0 reads before simdgroup 1 writes.
    "missing publication barrier": race(
        "threadgroup float s[64];\ns[t] = x[i];\ny[i] = s[63 - t];",
        "s", 32, WRITE_READ, thread(32), thread(31),
    ),
    "missing release barrier": race(
        f"threadgroup float s[64];\ns[t] = x[i];\n{BARRIER}float a = s[63 - t];\ns[t] = a + 1;\n"
        f"{BARRIER}y[i] = s[t];",
        "s", 31, READ_WRITE, thread(32), thread(31),
    ),
    "release barrier missing over the back edge": race(
        "threadgroup float s[64];\nfloat a = x[i];\nfor (int k = 0; k < 3; ++k) {\n"
        f"s[t] = a;\n{BARRIER}a += s[63 - t];\n}}\ny[i] = a;",
        "s", 31, READ_WRITE, thread(32), thread(31),
    ),
    "race between lanes of a simdgroup": race(
        "threadgroup float s[64];\ns[t] = x[i];\nfloat sum = simd_sum(x[i]);\n"
        "y[i] = s[t ^ 1] + sum;",
        "s", 1, READ_WRITE, thread(0), thread(1),
    ),
    "mem_none orders no memory": race(
        "threadgroup float s[64];\ns[t] = x[i];\nthreadgroup_barrier(mem_flags::mem_none);\n"
        "y[i] = s[t ^ 1];",
        "s", 1, READ_WRITE, thread(0), thread(1),
    ),
    "mem_device orders no threadgroup memory": race(
        "threadgroup float s[64];\ns[t] = x[i];\nthreadgroup_barrier(mem_flags::mem_device);\n"
        "y[i] = s[t ^ 1];",
        "s", 1, READ_WRITE, thread(0), thread(1),
    ),
    "mem_threadgroup orders no device memory": race(
        f"y[i] = x[i];\n{BARRIER}if (t == 0) y[0] = y[63];",
        "y", 63, READ_WRITE, thread(0), thread(63),
    ),
    "simdgroup_barrier orders one simdgroup only": race(
        "threadgroup float s[64];\ns[t] = x[i];\n"
        "simdgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = s[63 - t];",
        "s", 32, WRITE_READ, thread(32), thread(31),
    ),
    "race between two threadgroups on device memory": race(
        "y[i % 64] = x[i % 64];", "y", 0, WRITE_WRITE, thread(0, 1), thread(0, 0), threads=128,
    ),
    "read of what another threadgroup writes": race(
        "y[i] = x[i % 64];\nif (i == 127) y[127] = y[5];",
        "y", 5, READ_WRITE, thread(63, 1), thread(5, 0), threads=128, shape=(128,),
    ),
    "simdgroup matrix store races a scalar read": race(
        "threadgroup float s[64];\ns[t] = 0; s[t + 32] = 0;\n"
        f"{BARRIER}simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);\n"
        "simdgroup_store(m, s, 8);\ny[i] = s[t];",
        "s", 1, READ_WRITE, thread(1), thread(0), threads=32, shape=(32,),
    ),
    "plain read of an atomic": race(
        "threadgroup atomic_int c;\nif (t == 0) "
        f"atomic_store_explicit(&c, 0, memory_order_relaxed);\n{BARRIER}"
        "atomic_fetch_add_explicit(&c, 1, memory_order_relaxed);\n"
        "y[i] = *(threadgroup int*)&c;",
        "c", 0, (Access.ATOMIC, Access.READ), thread(1), thread(0),
    ),
    "off by one read": Planted(
        "y[i] = x[i + 1];", Fault.BOUNDS, "x", 64, thread(63), access=Access.READ
    ),
    "off by one write": Planted(
        "y[i] = x[i];\nif (i == 63) y[i + 1] = 0;",
        Fault.BOUNDS, "y", 64, thread(63), access=Access.WRITE,
    ),
    "read before the array": Planted(
        "y[i] = x[int(i) - 1];", Fault.BOUNDS, "x", -1, thread(0), access=Access.READ
    ),
    "read far away": Planted(
        "y[i] = x[i * 100000000u];", Fault.BOUNDS, "x", 100000000, thread(1), access=Access.READ
    ),
    "threadgroup array index": Planted(
        f"threadgroup float s[64];\ns[t + 1] = x[i];\n{BARRIER}y[i] = s[max(t, 1u)];",
        Fault.BOUNDS, "s", 64, thread(63), access=Access.WRITE,
    ),
    "threadgroup pointer": Planted(
        f"threadgroup float s[64];\nthreadgroup float* p = s + 1;\np[t] = x[i];\n{BARRIER}"
        "y[i] = s[max(t, 1u)];",
        Fault.BOUNDS, "s", 64, thread(63), access=Access.WRITE,
    ),
    "shape buffer": Planted(
        "y[i] = x[i] + x_shape[1];", Fault.BOUNDS, "x_shape", 1, thread(0), access=Access.READ
    ),
    "input written": Planted(
        "((device float*)x)[i] = 1;\ny[i] = 0;", Fault.BOUNDS, "x", 0, thread(0),
        access=Access.WRITE,
    ),
    "private array": Planted(
        "float a[4] = {1, 2, 3, 4};\ny[i] = a[(i + 1) % 5];", Fault.BOUNDS, "", 4, thread(3)
    ),
    "uninitialised scratch": Planted(
        f"threadgroup float s[64];\nif (t != 5) s[t] = x[i];\n{BARRIER}y[i] = s[t];",
        Fault.UNINITIALISED, "s", 5, thread(5), access=Access.READ,
    ),
    "scratch of the threadgroup before": Planted(
        "threadgroup float s[64];\nif (threadgroup_position_in_grid.x == 0) s[t] = x[i];\n"
        f"{BARRIER}y[i] = s[t];",
        Fault.UNINITIALISED, "s", 0, thread(0, 1), access=Access.READ,
        call={"threads": 128, "shape": (128,)},
    ),
    "one uninitialised byte": Planted(
        "threadgroup uchar s[64];\nif (t != 6) s[t] = uchar(i);\n"
        f"{BARRIER}y[i] = s[t];",
        Fault.UNINITIALISED, "s", 6, thread(6), access=Access.READ,
    ),
    "output read before it is written": Planted(
        "y[i] = y[i] + x[i];", Fault.UNINITIALISED, "y", 0, thread(0), access=Access.READ
    ),
    "barrier in a branch": Planted(
        f"if (lane == 0) {{\n{BARRIER}}}\ny[i] = x[i];",
        Fault.DIVERGENT_BARRIER, "", 0, thread(0), thread(1), call={"threads": 32, "shape": (32,)},
    ),
    "two barriers in two branches": Planted(
        f"if (t < 32) {{\n{BARRIER}}} else {{\n{BARRIER}}}\ny[i] = x[i];",
        Fault.DIVERGENT_BARRIER, "", 0, thread(0), thread(32),
    ),
    "return before a barrier": Planted(
        f"if (t == 7) return;\n{BARRIER}y[i] = x[i];",
        Fault.DIVERGENT_BARRIER, "", 0, thread(0), thread(7), call={"init_value": 0},
    ),
    "sum in a branch": Planted(
        f"float sum = 0;\nif (lane < 16) sum = simd_sum(x[i]);\n{BARRIER}y[i] = sum;",
        Fault.DIVERGENT_SIMD, "", 0, thread(0), thread(16), call={"threads": 32, "shape": (32,)},
    ),
    "matrix product with lanes missing": Planted(
        "simdgroup_float8x8 m = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);\n"
        "if (lane != 9) simdgroup_multiply(m, m, m);\ny[i] = m.thread_elements()[0];",
        Fault.DIVERGENT_SIMD, "", 0, thread(0), thread(9), call={"threads": 32, "shape": (32,)},
    ),
    "shuffle from an inactive lane": Planted(
        "y[i] = 0;\nif (lane < 16) y[i] = simd_shuffle(x[i], 20);",
        Fault.INACTIVE_LANE, "", 20, thread(0), call={"threads": 32, "shape": (32,)},
    ),
    "shuffle from a lane that a partial simdgroup lacks": Planted(
        "y[i] = simd_shuffle_xor(x[i], 8);",
        Fault.INACTIVE_LANE, "", 8, thread(32), call={"threads": 40, "shape": (40,)},
    ),
    "partial last group": Planted(
        "y[i] = x[i];",
        Fault.BOUNDS, "x", 100, thread(36, 1), access=Access.READ,
        call={"threads": 128, "shape": (128,), "input": 100},
    ),
    "scratch that the threads of a partial last group lack": Planted(
        f"threadgroup float s[64];\ns[t] = x[i];\n{BARRIER}y[i] = s[63 - t];",
        Fault.UNINITIALISED, "s", 63, thread(0, 1), access=Access.READ,
        call={"threads": 100, "shape": (100,)},
    ),
    "shuffle down into the lanes of a partial last group that are missing": Planted(
        "y[i] = simd_shuffle_down(x[i], 4);",
        Fault.INACTIVE_LANE, "", 4, thread(32, 1), call={"threads": 100, "shape": (100,)},
    ),
    "output never written": Planted(
        "if (i < 61) y[i] = x[i];", Fault.UNWRITTEN, "y", 61, count=3
    ),
    "float4 load at a 4-byte aligned address": Planted(
        "const device float4* p = (const device float4*)(x + 1);\n"
        "float4 v = i < 15 ? p[i] : float4(0);\ny[i] = v.x + v.w;",
        Fault.MISALIGNED, "x", 1, thread(0),
    ),
    "float2 store at an odd address": Planted(
        "device float2* p = (device float2*)(y + 1);\nif (i < 31) p[i] = float2(x[i]);\n"
        "if (i > 61) y[(i - 62) * 63] = 0;",
        Fault.MISALIGNED, "y", 1, thread(0),
    ),
    "integer division by zero": Planted(
        "int zero = int(x[0]);\ny[i] = 5 / zero;", Fault.CRASH, "", 0, thread(0)
    ),
    "more private memory than a stack has": Planted(
        "volatile float a[100000];\na[i] = x[i];\ny[i] = a[i];", Fault.CRASH, "", 0, thread(0)
    ),
    "more threadgroup memory than devices have": Planted(
        "threadgroup float s[9000];\ns[t] = x[i];\ny[i] = s[t];",
        Fault.THREADGROUP_MEMORY, "s", 0, thread(0),
    ),
    "result that depends on the order": Planted(
        "y[i] = x[i];\nif (lane == 0) y[0] = float(i);",
        Fault.SCHEDULE, "y", 0, call={"schedules": 6},
    ),
    "result that depends on the order, beside a sum of floats": Planted(
        "y[i] = simd_sum(x[i]);\nif (lane == 0) y[0] = 1000 * float(i);",
        Fault.SCHEDULE, "y", 0, call={"schedules": 6},
    ),
}  # fmt: skip


def run(planted: Planted) -> Report:
    call = dict(planted.call)
    shape = call.pop("shape", (64,))
    x = mx.arange(call.pop("input", max(64, call.get("threads", 64)))).astype(mx.float32)
    report, _ = check(IDS + planted.body, {"x": x}, shape, **call)
    return report


def first(report: Report, fault: Fault) -> Finding:
    found = [finding for finding in report.findings if finding.fault is fault]
    assert found, str(report)
    return found[0]


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_found(name: str) -> None:
    planted = PLANTED[name]
    report = run(planted)
    finding = first(report, planted.fault)
    assert finding.kernel == "planted"
    assert (finding.array, finding.index) == (planted.array, planted.index), str(report)
    assert (finding.thread, finding.other) == (planted.thread, planted.other), str(report)
    assert (finding.access, finding.other_access) == (planted.access, planted.other_access)
    assert planted.count is None or finding.count == planted.count


ALONE = [
    name
    for name in PLANTED
    if name
    not in (
        # These are two faults each: an order that no barrier gives, and its consequence.
        "missing publication barrier",
        "missing release barrier",
        "release barrier missing over the back edge",
        "simdgroup_barrier orders one simdgroup only",
        "plain read of an atomic",
        "result that depends on the order",
        "result that depends on the order, beside a sum of floats",
        "matrix product with lanes missing",
        "simdgroup matrix store races a scalar read",
        "two barriers in two branches",
    )
]


@pytest.mark.parametrize("name", ALONE)
def test_nothing_else_is_reported(name: str) -> None:
    assert len(run(PLANTED[name]).findings) == 1


def test_a_report_names_the_line_and_shows_it() -> None:
    text = str(run(PLANTED["off by one read"]))
    assert "planted:9: out of bounds: read of x[64], which has 64 elements, by thread 63" in text
    assert "9 | y[i] = x[i + 1];" in text


def test_the_line_of_a_crash_is_known() -> None:
    assert run(PLANTED["integer division by zero"]).findings[0].line == 10
