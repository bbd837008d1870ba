"""How fast the emulator builds and runs kernels, with and without its checker.

    python -m benchmarks.emulator

Measures three kernels on one processor, threads per second beside a loop of bare fiber switches,
and the build of a kernel that no cache has. Exits with 1 where a figure misses its target.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from benchmarks.harness import Arm, Goal, Summary, measure
from metile_mlx import emulator

MOST_BUILD_SECONDS = 3.0
# Of one thread with one barrier: 5 million threads per second.
MOST_SECONDS_PER_THREAD = 1 / 5e6
MOST_SLOWDOWN = 40.0
GROUP = 256

IDS = "uint i = thread_position_in_grid.x, t = thread_index_in_threadgroup;\n"
KERNELS = {
    "elementwise": "y[i] = x[i] + 1;",
    "one barrier": (
        f"threadgroup float s[{GROUP}];\ns[t] = x[i];\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup);\ny[i] = s[t ^ 1] + (t & 1 ? 2 : 0);"
    ),
    "one simd_sum": "y[i] = simd_sum(1.0f / 32) + x[i];",
}


@dataclass(frozen=True)
class Figures:
    """Seconds of one thread of a kernel, unchecked and checked."""

    name: str
    unchecked: Summary
    checked: Summary

    @property
    def slowdown(self) -> float:
        return self.checked.median / self.unchecked.median


def launcher(name: str, x: mx.array, checked: bool) -> Callable[[], mx.array]:
    """A function that runs the kernel on one OS thread and waits for it."""
    kernel = emulator.metal_kernel(
        name=f"bench_{name.replace(' ', '_')}",
        input_names=["x"],
        output_names=["y"],
        source=IDS + KERNELS[name],
    )

    def run() -> mx.array:
        with emulator.options(checked=checked, threads=1):
            (y,) = kernel(
                inputs=[x],
                output_shapes=[x.shape],
                output_dtypes=[x.dtype],
                grid=(x.size, 1, 1),
                threadgroup=(GROUP, 1, 1),
            )
        mx.eval(y)
        return y

    return run


def threads_of(name: str, threads: int, rounds: int) -> Figures:
    """Times a kernel after checking that each arm computes x + 1."""
    x = mx.arange(threads).astype(mx.float32)
    mx.eval(x)
    arms = [
        Arm("unchecked", launcher(name, x, False), threads),
        Arm("checked", launcher(name, x, True), threads),
    ]

    def check(arm: Arm, y: mx.array) -> str | None:
        return None if mx.allclose(y, x + 1).item() else f"{name} computes something else"

    times = measure(arms, check, rounds)
    report = emulator.take()
    if report:
        raise SystemExit(str(report))
    return Figures(name, times["unchecked"], times["checked"])


def build_seconds(checked: bool) -> float:
    """Of a kernel that is in no cache; compilers and headers are warm."""
    kernel = emulator.metal_kernel(
        name="bench_build",
        input_names=["x"],
        output_names=["y"],
        source=f"{IDS}y[i] = x[i] + {time.time_ns() % 10**9}.0f;",
    )
    x = mx.zeros((64,))
    start = time.perf_counter()
    with emulator.options(checked=checked):
        mx.eval(
            kernel(
                inputs=[x],
                output_shapes=[x.shape],
                output_dtypes=[x.dtype],
                grid=(64, 1, 1),
                threadgroup=(64, 1, 1),
            )
        )
    return time.perf_counter() - start


def show(figures: list[Figures], switch: float) -> None:
    print(
        f"{'kernel':<14}{'unchecked':>20}{'checked':>20}{'slower':>9}   threads per second, one CPU"
    )
    for each in figures:
        rates = (1 / each.unchecked.median / 1e6, 1 / each.checked.median / 1e6)
        print(f"{each.name:<14}{rates[0]:>16.1f} M/s{rates[1]:>16.1f} M/s{each.slowdown:>8.1f}x")
    print(f"{'bare switches':<14}{1 / switch / 1e6:>16.1f} M/s   (a fiber entered and left again)")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=1 << 20, help="of a launch")
    parser.add_argument("--rounds", type=int, default=7, help="timed runs of each kernel")
    given = parser.parse_args(arguments)
    reason = emulator.available()
    if reason is not None:
        raise SystemExit(reason)
    figures = [threads_of(name, given.threads, given.rounds) for name in KERNELS]
    switch = emulator.fiber_switches()
    show(figures, switch)
    barrier = next(each for each in figures if each.name == "one barrier")
    goals = [
        Goal("build, unchecked", build_seconds(False), MOST_BUILD_SECONDS, "s"),
        Goal("build, checked", build_seconds(True), MOST_BUILD_SECONDS, "s"),
        Goal(
            "a thread with one barrier",
            barrier.unchecked.median * 1e9,
            MOST_SECONDS_PER_THREAD * 1e9,
            "ns",
        ),
        *(
            Goal(f"checker's slowdown, {each.name}", each.slowdown, MOST_SLOWDOWN, "x")
            for each in figures
        ),
    ]
    for goal in goals:
        print(goal.line())
    return 0 if all(goal.is_met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
