"""Which threads a launch has, and what each knows of itself."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx import emulator
from metile_mlx.emit.reserved import ATTRIBUTES
from metile_mlx.emulator import Fault
from tests.emulator.support import check, launch

Size = tuple[int, int, int]
LINEAR = (
    "uint3 p = thread_position_in_grid, n = threads_per_grid;\n"
    "uint at = p.x + n.x * (p.y + n.y * p.z);\n"
)


def attribute(name: str, grid: Size, threadgroup: Size) -> np.ndarray:
    """The attribute of every thread of the grid: (threads, 1 or 3), x fastest."""
    width = 3 if ATTRIBUTES[name] == "uint3" else 1
    value = f"uint3 v = {name};" if width == 3 else f"uint3 v = uint3({name});"
    body = f"{LINEAR}{value}\ny[3 * at] = v.x; y[3 * at + 1] = v.y; y[3 * at + 2] = v.z;"
    threads = math.prod(grid)
    y = launch(
        body, {"x": mx.zeros((8,))}, (threads, 3), grid=grid, threadgroup=threadgroup,
        dtype=mx.uint32,
    )  # fmt: skip
    return np.array(y)[:, :width]


def expected(grid: Size, threadgroup: Size) -> dict[str, np.ndarray]:
    """The attributes as dispatchThreads gives them: a partial group at each upper edge."""
    size = np.minimum(threadgroup, grid)
    z, y, x = np.meshgrid(*(np.arange(n) for n in grid[::-1]), indexing="ij")
    position = np.stack([x, y, z], -1).reshape(-1, 3)
    group, local = position // size, position % size
    actual = np.minimum(size, np.array(grid) - group * size)
    index = local[:, 0] + actual[:, 0] * (local[:, 1] + actual[:, 1] * local[:, 2])
    threads = actual.prod(1)

    def constant(value: object) -> np.ndarray:
        return np.broadcast_to(np.array(value), (len(index), np.size(value)))

    def column(value: np.ndarray) -> np.ndarray:
        return value[:, None]

    full = int(size.prod())
    return {
        "thread_position_in_grid": position,
        "thread_position_in_threadgroup": local,
        "threadgroup_position_in_grid": group,
        "threadgroups_per_grid": constant(-(-np.array(grid) // size)),
        "threads_per_grid": constant(grid),
        "grid_size": constant(grid),
        "grid_origin": constant((0, 0, 0)),
        "threads_per_threadgroup": actual,
        "dispatch_threads_per_threadgroup": constant(size),
        "thread_index_in_threadgroup": column(index),
        "thread_index_in_simdgroup": column(index % 32),
        "simdgroup_index_in_threadgroup": column(index // 32),
        "thread_index_in_quadgroup": column(index % 4),
        "quadgroup_index_in_threadgroup": column(index // 4),
        "simdgroups_per_threadgroup": column(-(-threads // 32)),
        "quadgroups_per_threadgroup": column(-(-threads // 4)),
        "dispatch_simdgroups_per_threadgroup": constant(-(-full // 32)),
        "dispatch_quadgroups_per_threadgroup": constant(-(-full // 4)),
        "threads_per_simdgroup": constant(32),
        "thread_execution_width": constant(32),
    }


def test_every_attribute_of_mlx_is_covered() -> None:
    assert set(expected((4, 4, 4), (2, 2, 2))) == set(ATTRIBUTES)


@pytest.mark.emulator
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attribute_in_whole_partial_and_shrunk_threadgroups(name: str) -> None:
    """A partial group in each dimension; a grid smaller than the threadgroup shrinks it."""
    for grid, threadgroup in (
        ((64, 3, 2), (32, 3, 2)),
        ((70, 5, 3), (32, 2, 2)),
        ((5, 1, 2), (64, 4, 1)),
    ):
        assert np.array_equal(
            attribute(name, grid, threadgroup), expected(grid, threadgroup)[name]
        ), (grid, threadgroup)


@pytest.mark.emulator
@pytest.mark.parametrize("schedules", [1, 4])
def test_a_barrier_holds_all_threads_of_a_partial_threadgroup(schedules: int) -> None:
    body = (
        "threadgroup float s[256];\nuint i = thread_position_in_grid.x;\n"
        "uint t = thread_index_in_threadgroup, n = threads_per_threadgroup.x;\n"
        "s[t] = x[i];\nthreadgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = s[n - 1 - t];"
    )
    x = np.arange(600, dtype=np.float32)
    report, y = check(
        body, {"x": mx.array(x)}, (600,), threads=600, threadgroup=(256, 1, 1),
        schedules=schedules,
    )  # fmt: skip
    assert not report, str(report)
    parts = [x[start : start + 256][::-1] for start in (0, 256, 512)]
    assert np.array_equal(np.array(y), np.concatenate(parts))


WINNERS = {
    "lanes": "if (i < 32) y[0] = int(i) + x[0];",
    "simdgroups": "if (i < 64 && i % 32 == 0) y[0] = int(i) + x[0];",
    "threadgroups": "if (i % 64 == 0) y[0] = int(i) + x[0];",
}


@pytest.mark.emulator
@pytest.mark.parametrize("who", WINNERS)
def test_schedules_change_the_order_of_each_kind_of_group(who: str) -> None:
    """The last to write wins: the first result stays, and other orders give others."""
    body = f"uint i = thread_position_in_grid.x;\n{WINNERS[who]}"
    x = mx.zeros((8,), mx.int32)
    report, y = check(body, {"x": x}, (1,), threads=256, dtype=mx.int32, schedules=6)
    assert Fault.SCHEDULE in {finding.fault for finding in report.findings}
    assert y.item() == {"lanes": 31, "simdgroups": 32, "threadgroups": 192}[who]


@pytest.mark.emulator
def test_a_thousand_threadgroups_on_all_processors() -> None:
    body = (
        "threadgroup int s[64];\nuint i = thread_position_in_grid.x;\n"
        "uint t = thread_index_in_threadgroup;\ns[t] = x[i];\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = s[t ^ 63];"
    )
    x = np.arange(64000, dtype=np.int32)
    y = launch(body, {"x": mx.array(x)}, (64000,), threads=64000, dtype=mx.int32)
    assert np.array_equal(np.array(y), x.reshape(-1, 64)[:, ::-1].reshape(-1))


@pytest.mark.emulator
def test_an_empty_grid_runs_nothing() -> None:
    """F12."""
    y = launch(
        "y[0] = 1;",
        {"x": mx.zeros((8,))},
        (8,),
        grid=(0, 1, 1),
        threadgroup=(8, 1, 1),
        init_value=3,
    )
    assert np.array_equal(np.array(y), np.full(8, 3))


@pytest.mark.emulator
def test_arrays_without_elements() -> None:
    """F12."""
    y = launch("if (x_shape[0] > 0) y[0] = x[0];", {"x": mx.zeros((0,))}, (0,))
    assert np.array(y).size == 0


@pytest.mark.emulator
def test_lanes_in_different_loops_meet_where_they_can() -> None:
    """Trip counts differ by lane: each round has the lanes that are left."""
    body = (
        "uint lane = thread_index_in_simdgroup;\nint sum = 0;\n"
        "for (uint k = 0; k <= lane; ++k) {\nsum += simd_sum(1);\n}\n"
        "y[lane] = sum + 1000 * simd_sum(1);"
    )
    y = launch(body, {"x": mx.zeros((8,))}, (32,), threads=32, dtype=mx.int32)
    rounds = np.cumsum(32 - np.arange(32))
    assert np.array_equal(np.array(y), rounds + 32000)


@pytest.mark.emulator
def test_branches_of_a_simdgroup_meet_again() -> None:
    body = (
        "uint lane = thread_index_in_simdgroup;\nint v = 0;\n"
        "if (lane % 2 == 0) {\nv = simd_sum(1);\n} else {\nv = simd_sum(int(lane));\n}\n"
        "y[lane] = v + 1000 * simd_sum(1);"
    )
    report, y = check(body, {"x": mx.zeros((8,))}, (32,), threads=32, dtype=mx.int32)
    assert {finding.fault for finding in report.findings} == {Fault.DIVERGENT_SIMD}
    assert np.array_equal(np.array(y), 32000 + np.where(np.arange(32) % 2, 256, 16))


@pytest.mark.emulator
def test_a_crash_of_an_unchecked_kernel_does_not_end_the_process() -> None:
    emulator.take()
    mx.eval(launch("int zero = int(x[0]);\ny[0] = 5 / zero;", {"x": mx.zeros((8,))}, (1,)))
    (finding,) = emulator.take().findings
    assert finding.fault is Fault.CRASH
    y = launch("y[0] = x[0] + 1;", {"x": mx.zeros((8,))}, (1,), threads=1)
    assert y.item() == 1


@pytest.mark.emulator
def test_many_threadgroup_variables_stay_apart() -> None:
    names = [f"s{number}" for number in range(60)]
    body = "uint t = thread_index_in_threadgroup;\n" + "\n".join(
        f"threadgroup int {name}[32];\n{name}[t] = x[t] + {number};"
        for number, name in enumerate(names)
    )
    body += f"\ny[t] = {' + '.join(f'{name}[t]' for name in names)};"
    y = launch(body, {"x": mx.zeros((32,), mx.int32)}, (32,), threads=32, dtype=mx.int32)
    assert y.tolist() == [sum(range(60))] * 32


FOREIGN = """
import faulthandler
import mlx.core as mx
from metile_mlx import emulator
from tests.emulator.support import launch

crash = "int zero = int(x[0]);\\ny[0] = 5 / zero;"
for _ in range(2):
    mx.eval(launch(crash, {"x": mx.zeros((8,))}, (1,)))
    (finding,) = emulator.take().findings
    assert finding.fault is emulator.Fault.CRASH
    faulthandler.enable()
print("alive", flush=True)
faulthandler._sigsegv()
"""


@pytest.mark.emulator
def test_crashes_that_are_not_a_kernels_stay_the_process_own() -> None:
    """Handlers of others are kept, before and after the first launch."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN], capture_output=True, text=True, check=False, cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)}, timeout=120,
    )  # fmt: skip
    assert done.stdout == "alive\n", done.stderr
    assert done.returncode < 0
    assert "Fatal Python error: Segmentation fault" in done.stderr
