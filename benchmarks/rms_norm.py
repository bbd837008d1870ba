"""RMSNorm on the backend at hand: our kernel in several layouts against MLX's, and a plain copy.

    python -m benchmarks.rms_norm [--quick] [--output-json FILE] [--chart FILE] [--strict]

Arms, all with resident inputs and one output: `metile.rms_norm`, which picks its own layout; the
same kernel in stated layouts (`benchmarks/rms_norm_arms.py` names them; `x1`: no grouped accesses);
`mx.fast.rms_norm`; the compiled f32 graph of MLX operations with one cast at the end; and a copy of
the rows by a kernel, which is what memory allows. On CUDA also `mx.negative`, which moves as much,
and where they are installed a Triton kernel, PyTorch's `rms_norm`, and PyTorch's `copy_`, which is
the copy that ratios are of there. Each arm is checked against its own float64 reference (rounded
twice, as MLX does, or once) before any is timed; arms alternate in one process.

On CUDA an evaluation holds 50 operations of half a GiB in and half a GiB out, so that the launch
and the wait at its end are a small share, and MLX's graph of them is built before the clock starts:
`benchmarks.compile_latency` measures that part.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

import metile_mlx as metile
from benchmarks.allocator import keep_freed_memory
from benchmarks.charts import draw
from benchmarks.harness import Arm, Goal, Summary, WrongResult, calibrated, measure, ratio
from benchmarks.record import device_line, environment, print_table, verdict, write_json
from benchmarks.rms_norm_arms import (
    COPY,
    DTYPES,
    FAST,
    GRAPH,
    OURS,
    TORCH_COPY,
    TRITON,
    Case,
    Layout,
    Side,
    checker,
    sides,
)

# On two cores, at 4096 rows: how many times as fast as mx.fast.rms_norm.
TARGETS = {"f32": 4.0, "f16": 20.0, "bf16": 8.0}
TARGET_ROWS = 4096
TARGET_WIDTHS = (1009, 1024)
# On an H200, of the bandwidth of another arm: aligned widths of 1024 and more, and 1009.
ALIGNED = {FAST: 0.95, TORCH_COPY: 0.91, TRITON: 0.97}
RAGGED = {"f32": {FAST: 1.85}, "f16": {FAST: 3.2, TRITON: 1.4}, "bf16": {FAST: 3.2}}
# Seconds of one timed run, and the most bytes of results alive in it.
SECONDS_PER_RUN = 0.02
MOST_BYTES = 1 << 28
Measured = list[tuple[Case, dict[str, Summary]]]


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        rows: of each width; or as many as fill `megabytes`.
        operations: in one evaluation on a GPU; None: as many as take SECONDS_PER_RUN.
    """

    widths: tuple[int, ...]
    rows: tuple[int, ...]
    layouts: tuple[Layout, ...]
    rounds: int
    megabytes: int = 0
    operations: int | None = None

    def cases(self) -> list[Case]:
        """Every combination; without `megabytes`, none of more than 64 MiB."""
        if self.megabytes:
            sizes = [(d, w, DTYPES[d].size * w) for d in DTYPES for w in self.widths]
            return [Case(d, w, (self.megabytes << 20) // size) for d, w, size in sizes]
        found = [Case(d, w, r) for d in DTYPES for w in self.widths for r in self.rows]
        return [case for case in found if case.bytes <= 1 << 26]


WIDTHS = (256, 1009, 1024, 2048, 4096, 8192)
STRIPED = tuple(Layout("striped", values) for values in (4, 8, 16, 32))
FULL = Plan(WIDTHS, (1, 64, TARGET_ROWS), (*STRIPED, Layout("adjacent", 4)), 15)
QUICK = Plan(TARGET_WIDTHS, (64, TARGET_ROWS), (STRIPED[0], STRIPED[2]), 7)
GROUPED = tuple(Layout("grouped", values) for values in (8, 16, 32))
TOGETHER = tuple(Layout("grouped", *held) for held in ((8, None, 4), (8, None, 8), (32, None, 4)))
CUDA_LAYOUTS = (STRIPED[1], STRIPED[3], *GROUPED, Layout("grouped", 16, 1), *TOGETHER)
CUDA = Plan(WIDTHS, (), CUDA_LAYOUTS, 3, megabytes=512, operations=50)
CUDA_QUICK = Plan(TARGET_WIDTHS, (), GROUPED[1:], 3, megabytes=512, operations=50)


def run_case(case: Case, plan: Plan) -> dict[str, Summary]:
    """The times of each arm.

    Raises:
        WrongResult: an arm computes something else; nothing was timed.
    """
    is_gpu = plan.operations is not None
    arms: list[Arm] = []
    checks: dict[str, Callable[[Arm, Any], str | None]] = {}
    for side in sides(case, plan.layouts, is_gpu):
        work = side.works()
        if plan.operations is None:
            most = max(1, MOST_BYTES // case.bytes)
            repeats = calibrated(_once(side, work[OURS]), SECONDS_PER_RUN, min(most, 200))
        else:
            repeats = plan.operations
        check = checker(case, side)
        for name, one in work.items():
            arms.append(_arm(name, side, one, repeats, is_gpu))
            checks[name] = check
    return measure(arms, lambda arm, made: checks[arm.name](arm, made), plan.rounds, warmup=1)


def _once(side: Side, work: Callable[[], Any]) -> Callable[[], None]:
    return lambda: side.wait([work()])


def _arm(name: str, side: Side, work: Callable[[], Any], repeats: int, is_gpu: bool) -> Arm:
    """Many of one work and the wait for them; on a GPU MLX's graph is there before."""

    def started() -> list[Any]:
        return [work() for _ in range(repeats)]

    def finished(made: list[Any]) -> list[Any]:
        side.wait(made)
        return made

    if is_gpu and isinstance(work(), mx.array):
        return Arm(name, finished, repeats, started)
    return Arm(name, lambda: finished(started()), repeats)


def goals(measured: Measured) -> list[Goal]:
    """What was promised: for a CPU of two cores, or for an H200 where its copy was measured."""
    found = []
    for case, times in measured:
        wanted: dict[str, float] = {}
        if TORCH_COPY in times:
            if case.width in TARGET_WIDTHS or case.width > max(TARGET_WIDTHS):
                wanted = RAGGED[case.dtype] if case.width % 8 else ALIGNED
        elif case.rows == TARGET_ROWS and case.width in TARGET_WIDTHS:
            wanted = {FAST: TARGETS[case.dtype]}
        for other, factor in wanted.items():
            if other in times:
                name = f"{case.name}: time / time of {other}"
                found.append(Goal(name, ratio(times, OURS, other), 1 / factor, ""))
    return found


def copy_of(times: dict[str, Summary]) -> str:
    """The copy that ratios are of."""
    return TORCH_COPY if TORCH_COPY in times else COPY


def table(measured: Measured) -> None:
    """Medians in microseconds, and how many times as fast as the others ours is."""
    names = list(dict.fromkeys(name for _, times in measured for name in times))
    ratios = ["x mx.fast", "x graph", "of copy"]
    lines = []
    for case, times in measured:
        cells = [f"{times[n].median * 1e6:.1f}" if n in times else "" for n in names]
        others = (FAST, GRAPH, copy_of(times))
        lines.append([case.name, *cells, *(f"{ratio(times, other, OURS):.2f}" for other in others)])
    print_table(
        "median time of one norm, us, and its speed",
        ["case", *names, *ratios],
        lines,
    )
    if any(TORCH_COPY in times for _, times in measured):
        rates = [
            [case.name, *(_rate(case, times.get(n)) for n in names)] for case, times in measured
        ]
        print_table("TB/s, read and written, and the spread in percent", ["case", *names], rates)


def _rate(case: Case, summary: Summary | None) -> str:
    if summary is None:
        return ""
    return f"{2 * case.bytes / summary.median / 1e12:.2f} +-{summary.spread * 50:.0f}"


def chart(path: Path, measured: Measured, title: str) -> None:
    """Bandwidth over width at the most rows, a panel for each dtype.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    panels: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for dtype in DTYPES:
        lines = panels[dtype] = {}
        for case, times in measured:
            if case.dtype != dtype or case.rows != most_rows(measured, case):
                continue
            for name, summary in times.items():
                rate = 2 * case.bytes / summary.median / 1e9
                lines.setdefault(name, []).append((str(case.width), rate))
    draw(path, title, "columns of a row", "GB/s, read and written", panels)


def most_rows(measured: Measured, like: Case) -> int:
    """The most rows measured of a width and dtype."""
    same = (like.dtype, like.width)
    return max(case.rows for case, _ in measured if (case.dtype, case.width) == same)


def content(found: dict[str, Any], measured: Measured, quick: bool) -> dict[str, Any]:
    """What the JSON file holds."""
    return {
        "benchmark": "rms_norm",
        "quick": quick,
        "environment": found,
        "cases": [
            {
                **vars(case),
                "checked": "each arm against its own float64 reference",
                "arms": {name: summary.to_dict() for name, summary in times.items()},
                "times_as_fast_as": {
                    other: ratio(times, other, OURS)
                    for other in (FAST, GRAPH, COPY, TRITON, TORCH_COPY)
                    if other in times
                },
            }
            for case, times in measured
        ],
        "goals": [goal.to_dict() for goal in goals(measured)],
    }


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rms_norm", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two widths, few layouts and rounds")
    parser.add_argument("--output-json", type=Path, help="write the results to this file")
    parser.add_argument("--chart", type=Path, help="draw the results to this file (.png, .svg)")
    parser.add_argument("--strict", action="store_true", help="exit status 1 for a missed target")
    return parser.parse_args(argv)


def chosen_plan(found: dict[str, Any], quick: bool) -> Plan:
    """By the backend that a call runs on which names none."""
    if found["doctor"].get("default", {}).get("name") == "cuda":
        return CUDA_QUICK if quick else CUDA
    return QUICK if quick else FULL


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1: a failure or, with --strict, a missed target."""
    options = parse(argv)
    found = environment()
    found["allocator"] = keep_freed_memory()
    print(device_line(found), flush=True)
    plan = chosen_plan(found, options.quick)
    measured: Measured = []
    try:
        measured += [(case, run_case(case, plan)) for case in plan.cases()]
        table(measured)
        if options.output_json is not None:
            write_json(options.output_json, content(found, measured, options.quick))
            print(f"results: {options.output_json}")
        if options.chart is not None:
            chart(
                options.chart, measured, f"RMSNorm, most rows of each width: {device_line(found)}"
            )
            print(f"chart: {options.chart}")
    except (WrongResult, metile.MetileError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return verdict(goals(measured), options.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
