"""RMSNorm on the backend at hand: our kernel in several layouts against MLX's, and a plain copy.

    python -m benchmarks.rms_norm [--quick] [--output-json FILE] [--chart FILE] [--strict]

Arms, all with resident inputs and one output: `metile.rms_norm`, which picks its own layout; the
same kernel in layouts named `striped N` and `adjacent N` (values per thread); `mx.fast.rms_norm`;
the compiled f32 graph of MLX operations with one cast at the end; and a copy of the rows by a
kernel, which is what memory allows. Each arm is checked against its own float64 reference (rounded
twice, as MLX does, or once) before any is timed; arms alternate in one process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from benchmarks.allocator import keep_freed_memory
from benchmarks.charts import draw
from benchmarks.harness import Arm, Goal, Summary, WrongResult, calibrated, measure, ratio
from benchmarks.record import device_line, environment, print_table, verdict, write_json
from metile_kernels.rmsnorm import rmsnorm_register

EPS = 1e-5
DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
# Bits of the mantissa, the hidden one not counted.
MANTISSA = {"f32": 23, "f16": 10, "bf16": 7}
OURS, FAST, GRAPH, COPY = "metile.rms_norm", "mx.fast.rms_norm", "f32 graph", "copy"
# On two cores, at 4096 rows: how many times as fast as mx.fast.rms_norm.
TARGETS = {"f32": 4.0, "f16": 20.0, "bf16": 8.0}
TARGET_ROWS = 4096
TARGET_WIDTHS = (1009, 1024)
# Seconds of one timed run, and the most bytes of results alive in it.
SECONDS_PER_RUN = 0.02
MOST_BYTES = 1 << 28
Layout = tuple[str, int]
Measured = list[tuple["Case", dict[str, Summary]]]


@dataclass(frozen=True)
class Case:
    """Rows of one width and dtype."""

    dtype: str
    width: int
    rows: int

    @property
    def bytes(self) -> int:
        """Of the input, or the output."""
        return self.rows * self.width * DTYPES[self.dtype].size

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.dtype} {self.rows} x {self.width}"


@dataclass(frozen=True)
class Plan:
    """What is measured."""

    widths: tuple[int, ...]
    rows: tuple[int, ...]
    layouts: tuple[Layout, ...]
    rounds: int

    def cases(self) -> list[Case]:
        """Every combination, but none of more than 64 MiB."""
        found = [Case(d, w, r) for d in DTYPES for w in self.widths for r in self.rows]
        return [case for case in found if case.bytes <= 1 << 26]


FULL = Plan(
    (256, 1009, 1024, 2048, 4096, 8192),
    (1, 64, TARGET_ROWS),
    (("striped", 4), ("striped", 8), ("striped", 16), ("striped", 32), ("adjacent", 4)),
    15,
)
QUICK = Plan(TARGET_WIDTHS, (64, TARGET_ROWS), (("striped", 4), ("striped", 16)), 7)


@metile.kernel
def copied(x, y, N: metile.constexpr, LAYOUT: metile.constexpr):
    """y = x, a row per program."""
    shape = (metile.num_programs(0), N)
    source = metile.tensor(x, shape=shape, access="read")
    destination = metile.tensor(y, shape=shape, access="write")
    columns = metile.arange(0, LAYOUT.size, layout=LAYOUT)
    row = metile.program_id(0)
    destination.store((row, columns), source.load((row, columns)))


@mx.compile
def f32_graph(x: mx.array, w: mx.array) -> mx.array:
    """All in f32, one cast at the end."""
    wide = x.astype(mx.float32)
    scale = mx.rsqrt(mx.mean(wide * wide, axis=-1, keepdims=True) + EPS)
    return (wide * scale * w.astype(mx.float32)).astype(x.dtype)


def block_of(width: int) -> int:
    """The power of two, 32 at least, that holds a row."""
    return max(32, 1 << (width - 1).bit_length())


def thread_layout(layout: Layout, block: int) -> metile.ThreadLayout | None:
    """The layout of this name on a block, or None where it is not a legal one."""
    kind, values = layout
    if not 32 <= block // values <= 1024:
        return None
    bits, low = block.bit_length() - 1, values.bit_length() - 1
    order = (*range(bits - low, bits), *range(bits - low)) if kind == "adjacent" else range(bits)
    return metile.ThreadLayout(order, elements_per_thread=values)


def works(case: Case, x: mx.array, w: mx.array, plan: Plan) -> dict[str, Callable[[], mx.array]]:
    """The work of each arm: a function that returns a lazy result."""
    block = block_of(case.width)
    out = metile.empty(x.shape, x.dtype)
    found: dict[str, Callable[[], mx.array]] = {
        OURS: lambda: metile.rms_norm(x, w, EPS),
        FAST: lambda: mx.fast.rms_norm(x, w, EPS),
        GRAPH: lambda: f32_graph(x, w),
    }
    for layout in plan.layouts:
        held = thread_layout(layout, block)
        if held is not None:
            dispatch = rmsnorm_register[(case.rows,)].prepare(
                x, w, out, EPS, N=case.width, BLOCK=block, LAYOUT=held, ROUND_NORMALISED=True
            )
            found[f"{layout[0]} {layout[1]}"] = _call(dispatch, x, w, out, EPS)
    held = thread_layout(("striped", max(1, min(16, block // 32))), block)
    moving = copied[(case.rows,)].prepare(x, out, N=case.width, LAYOUT=held)
    found[COPY] = _call(moving, x, out)
    return found


def _call(dispatch: metile.Dispatch, *arguments: Any) -> Callable[[], mx.array]:
    return lambda: dispatch(*arguments)


def as_float64(x: mx.array) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The values, exactly."""
    return np.array(x.astype(mx.float32)).astype(np.float64)


def rounded(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Float64 values to the nearest of the dtype; exponents beyond its range do not occur here."""
    mantissa, exponent = np.frexp(values)
    scale = 2.0 ** (MANTISSA[dtype] + 1)
    return np.ldexp(np.round(mantissa * scale) / scale, exponent)


def checker(case: Case, x: mx.array, w: mx.array) -> Callable[[Arm, Any], str | None]:
    """Compares what an arm returns with its own reference in float64."""
    wide, weight = as_float64(x), as_float64(w)
    normal = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + EPS)
    once = rounded(normal * weight, case.dtype)
    twice = rounded(rounded(normal, case.dtype) * weight, case.dtype)
    # An f32 result has the rounding of a sum of squares in it, and of three products.
    step = 2.0 ** -MANTISSA[case.dtype]
    allowed = 2e-6 if case.dtype == "f32" else 1.01 * step

    def check(arm: Arm, made: Any) -> str | None:
        expected = {COPY: wide, GRAPH: once}.get(arm.name, twice)
        found = as_float64(made[-1])
        if found.shape != expected.shape:
            return f"{case.name}: the shape is {found.shape}"
        # Rounding twice can move the second result by one step more than the first one's.
        error = np.abs(found - expected) / np.maximum(np.abs(expected), 2.0**-14)
        limit = 0.0 if arm.name == COPY else allowed * (1 + (expected is twice))
        worst = float(error.max())
        return None if worst <= limit else f"{case.name}: relative error {worst:.3g} > {limit:.3g}"

    return check


def run_case(case: Case, plan: Plan, seed: int = 0) -> dict[str, Summary]:
    """The times of each arm.

    Raises:
        WrongResult: an arm computes something else; nothing was timed.
    """
    keys = mx.random.split(mx.random.key(seed), 2)
    x = mx.random.normal((case.rows, case.width), key=keys[0]).astype(DTYPES[case.dtype])
    w = mx.random.uniform(0.5, 2, (case.width,), key=keys[1]).astype(DTYPES[case.dtype])
    mx.eval(x, w)
    work = works(case, x, w, plan)
    most = max(1, MOST_BYTES // case.bytes)
    repeats = calibrated(lambda: mx.eval(work[OURS]()), SECONDS_PER_RUN, min(most, 200))
    arms = [Arm(name, _run(one, repeats), repeats) for name, one in work.items()]
    return measure(arms, checker(case, x, w), plan.rounds, warmup=1)


def _run(work: Callable[[], mx.array], repeats: int) -> Callable[[], list[mx.array]]:
    def run() -> list[mx.array]:
        made = [work() for _ in range(repeats)]
        mx.eval(made)
        return made

    return run


def goals(measured: Measured) -> list[Goal]:
    """What was promised for a CPU of two cores."""
    return [
        Goal(
            f"{case.name}: time / time of mx.fast.rms_norm",
            ratio(times, OURS, FAST),
            1 / TARGETS[case.dtype],
            "",
        )
        for case, times in measured
        if case.rows == TARGET_ROWS and case.width in TARGET_WIDTHS
    ]


def table(measured: Measured) -> None:
    """Medians in microseconds, and how many times as fast as the others ours is."""
    names = list(max((times for _, times in measured), key=len))
    head = ["case", *(f"{name} us" for name in names), "times mx.fast", "times graph", "of copy"]
    lines = []
    for case, times in measured:
        cells = [f"{times[n].median * 1e6:.1f}" if n in times else "" for n in names]
        ratios = [f"{ratio(times, other, OURS):.2f}" for other in (FAST, GRAPH, COPY)]
        lines.append([case.name, *cells, *ratios])
    print_table("median time of one norm", head, lines)


def chart(path: Path, measured: Measured, title: str) -> None:
    """Bandwidth over width at the most rows, a panel for each dtype.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    panels: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for dtype in DTYPES:
        lines = panels[dtype] = {}
        for case, times in measured:
            if case.dtype != dtype or case.rows != max(c.rows for c, _ in measured):
                continue
            for name, summary in times.items():
                rate = 2 * case.bytes / summary.median / 1e9
                lines.setdefault(name, []).append((str(case.width), rate))
    draw(path, title, "columns of a row", "GB/s, read and written", panels)


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
                    other: ratio(times, other, OURS) for other in (FAST, GRAPH, COPY)
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


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1: a failure or, with --strict, a missed target."""
    options = parse(argv)
    found = environment()
    found["allocator"] = keep_freed_memory()
    print(device_line(found), flush=True)
    plan = QUICK if options.quick else FULL
    measured: Measured = []
    try:
        measured += [(case, run_case(case, plan)) for case in plan.cases()]
        table(measured)
        if options.output_json is not None:
            write_json(options.output_json, content(found, measured, options.quick))
            print(f"results: {options.output_json}")
        if options.chart is not None:
            chart(options.chart, measured, f"RMSNorm of {TARGET_ROWS} rows: {device_line(found)}")
            print(f"chart: {options.chart}")
    except (WrongResult, metile.MetileError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return verdict(goals(measured), options.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
