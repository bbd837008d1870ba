"""The kernel library on the backend at hand, each function beside MLX and a plain copy.

    python -m benchmarks.kernels [--quick] [--only NAMES] [--widths NUMBERS] [--dtypes NAMES]
                                 [--output-json FILE [--add]] [--chart FILE] [--strict]

Arms, in one process, alternating: the library's function; the MLX op of the same name, or what one
writes where there is none; the same as a graph given to `mx.compile`; and a copy of the rows by a
kernel. Every arm is checked against float64 before any is timed. `of memory` is the time that the
function's bytes, read and written once, take at the copy's rate, as a share of the function's time:
near 1, nothing but memory limits it. `benchmarks/kernels_cases.py` has the functions.

With `--add` a full run can be made in pieces: what the file has of other cases stays in it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx

import metile_mlx as metile
from benchmarks.allocator import keep_freed_memory
from benchmarks.charts import draw
from benchmarks.harness import Arm, Goal, Summary, WrongResult, calibrated, measure, ratio
from benchmarks.kernels_cases import OPERATIONS, Operation, numbers, results
from benchmarks.record import device_line, environment, print_table, verdict, write_json
from benchmarks.rms_norm_arms import COPY, DTYPES, Case, Layout, copied, thread_layout

OURS, MLX, GRAPH = "metile", "mlx", "mx.compile"
# How many times as fast as the faster of MLX's two, on two cores; or as near to the memory's rate.
TARGETS = {"f32": 3.0, "f16": 8.0, "bf16": 8.0}
OF_MEMORY = 1 / 1.25
SECONDS_PER_RUN = 0.02
MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class Plan:
    """What is measured: `rows` of each width and dtype, in so many rounds."""

    widths: tuple[int, ...]
    rows: int
    rounds: int
    dtypes: tuple[str, ...] = tuple(DTYPES)

    def cases(self) -> list[Case]:
        """Of each function."""
        return [Case(d, w, self.rows) for d in self.dtypes for w in self.widths]


FULL = Plan((1009, 1024, 4096), 4096, 5)
QUICK = Plan((1024,), 4096, 3)


@dataclass(frozen=True)
class Measured:
    """One function in one case.

    Attributes:
        bytes: that the function reads and writes.
        copied: that the copy does.
        source: when it was measured, and the revision.
    """

    name: str
    case: Case
    times: dict[str, Summary]
    bytes: int
    copied: int
    source: tuple[str, str] = ("", "")

    @property
    def title(self) -> str:
        """For tables."""
        return f"{self.name} {self.case.name}"

    @property
    def better(self) -> str:
        """The faster of MLX's arms."""
        return min((MLX, GRAPH), key=lambda name: self.times[name].median)

    @property
    def of_memory(self) -> float:
        """The copy's rate over ours: at 1 both move as many bytes a second."""
        return ratio(self.times, COPY, OURS) * self.bytes / self.copied

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        date, revision = self.source
        return {
            "function": self.name,
            **vars(self.case),
            "date": date,
            "revision": revision,
            "checked": "each arm against float64",
            "arms": {name: summary.to_dict() for name, summary in self.times.items()},
            "times_as_fast_as": {n: ratio(self.times, n, OURS) for n in (MLX, GRAPH, COPY)},
            "bytes": self.bytes,
            "copied": self.copied,
            "of_memory": self.of_memory,
        }

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Measured:
        """What `to_dict` gave."""
        return cls(
            given["function"],
            Case(given["dtype"], given["width"], given["rows"]),
            {name: Summary.from_dict(arm) for name, arm in given["arms"].items()},
            given["bytes"],
            given["copied"],
            (given["date"], given["revision"]),
        )

    def goal(self) -> Goal:
        """A third or an eighth of MLX's time; or, where memory is the limit, what it allows."""
        floor = self.of_memory * ratio(self.times, OURS, self.better) / OF_MEMORY
        limit = max(1 / TARGETS[self.case.dtype], floor)
        name = f"{self.title}: time / time of {self.better}"
        if limit == floor:
            name += " (memory's limit)"
        return Goal(name, ratio(self.times, OURS, self.better), limit, "")


def run_case(name: str, operation: Operation, case: Case, rounds: int) -> Measured:
    """The times of each arm.

    Raises:
        WrongResult: an arm computes something else; nothing was timed.
    """
    inputs = operation.made(case)
    exact = operation.exact(*map(numbers, inputs))
    x = inputs[0]
    copy = _copy(case, x)
    works = {
        OURS: lambda: operation.ours(*inputs),
        MLX: lambda: operation.mlx(*inputs),
        GRAPH: lambda: operation.compiled(*inputs),
        COPY: lambda: copy(x),
    }

    def check(arm: Arm, made: Any) -> str | None:
        if arm.name == COPY:
            return None if mx.array_equal(made[-1], x) else f"{name}: {case.name}: the copy differs"
        steps = operation.steps if arm.name == OURS else operation.mlx_steps
        found = operation.problem(case, made[-1], exact, steps)
        return found and f"{name}: {found}"

    made = results(operation.ours(*inputs))
    moved = sum(array.nbytes for array in (*inputs, *made))
    most = max(1, MOST_BYTES // moved)
    arms = [_arm(arm, work, min(most, 200)) for arm, work in works.items()]
    times = measure(arms, check, rounds, warmup=1)
    return Measured(name, case, times, moved, 2 * x.nbytes)


def _copy(case: Case, x: mx.array) -> Callable[[mx.array], mx.array]:
    out = metile.empty(x.shape, x.dtype)
    held = thread_layout(Layout("striped", max(1, min(16, case.block // 32))), case)
    dispatch = copied[(case.rows,)].prepare(x, out, N=case.width, LAYOUT=held)
    return lambda array: dispatch(array, out)


def _arm(name: str, work: Callable[[], Any], most: int) -> Arm:
    """As many of one work as take SECONDS_PER_RUN, and the wait for them."""

    def run(repeats: int) -> list[Any]:
        made = [work() for _ in range(repeats)]
        mx.eval(made)
        return made

    repeats = calibrated(lambda: run(1), SECONDS_PER_RUN, most)
    return Arm(name, lambda: run(repeats), repeats)


def table(measured: Sequence[Measured]) -> None:
    """Medians in microseconds, their spread, and how many times as fast as the others ours is."""
    arms = (OURS, MLX, GRAPH, COPY)
    lines = []
    for each in measured:
        times = each.times
        cells = [f"{times[a].median * 1e6:.0f} +-{times[a].spread * 50:.0f}%" for a in arms]
        ratios = [f"{ratio(times, other, OURS):.2f}" for other in (MLX, GRAPH)]
        lines.append([each.title, *cells, *ratios, f"{each.of_memory:.2f}"])
    head = ["function and case", *arms, "x mlx", "x mx.compile", "of memory"]
    print_table("median time of one call, us", head, lines)


def chart(path: Path, measured: Sequence[Measured], title: str) -> None:
    """How many times as fast as MLX each function is at the largest width, a panel for each dtype.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    widest = max(each.case.width for each in measured)
    panels: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for dtype in DTYPES:
        lines = panels[dtype] = {}
        for each in measured:
            if each.case.dtype == dtype and each.case.width == widest:
                for other in (MLX, GRAPH):
                    point = (each.name, ratio(each.times, other, OURS))
                    lines.setdefault(f"{other} / metile", []).append(point)
    draw(path, title, "function", "times as fast", panels)


def content(found: dict[str, Any], measured: Sequence[Measured], quick: bool) -> dict[str, Any]:
    """What the JSON file holds."""
    return {
        "benchmark": "kernels",
        "quick": quick,
        "environment": found,
        "cases": [each.to_dict() for each in measured],
        "goals": [each.goal().to_dict() for each in measured],
    }


def with_earlier(path: Path, measured: Sequence[Measured]) -> list[Measured]:
    """What a file has of other functions and cases, and these, in the order of the tables."""
    every = {(each.name, each.case): each for each in measured}
    if path.exists():
        for given in json.loads(path.read_text(encoding="utf-8"))["cases"]:
            earlier = Measured.from_dict(given)
            every.setdefault((earlier.name, earlier.case), earlier)
    names, dtypes = list(OPERATIONS), list(DTYPES)

    def place(each: Measured) -> tuple[int, ...]:
        case = each.case
        return names.index(each.name), dtypes.index(case.dtype), case.width, case.rows

    return sorted(every.values(), key=place)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kernels", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one width and few rounds")
    parser.add_argument(
        "--only", metavar="NAMES", help=f"functions, separated by commas: {', '.join(OPERATIONS)}"
    )
    parser.add_argument("--dtypes", metavar="NAMES", help=f"some of {','.join(DTYPES)}")
    parser.add_argument("--widths", metavar="NUMBERS", help="of the rows, separated by commas")
    parser.add_argument("--output-json", type=Path, help="write the results to this file")
    parser.add_argument("--add", action="store_true", help="and keep what else the file has")
    parser.add_argument("--chart", type=Path, help="draw the results to this file (.png, .svg)")
    parser.add_argument("--strict", action="store_true", help="exit status 1 for a missed target")
    options = parser.parse_args(argv)
    options.names = options.only.split(",") if options.only else list(OPERATIONS)
    unknown = [name for name in options.names if name not in OPERATIONS]
    if unknown:
        parser.error(f"--only {unknown[0]}: expected some of {', '.join(OPERATIONS)}")
    options.plan = QUICK if options.quick else FULL
    if options.widths is not None:
        numbers = options.widths.split(",")
        if not all(number.isdecimal() and int(number) > 1 for number in numbers):
            parser.error(f"--widths {options.widths}: expected numbers of 2 and more")
        options.plan = replace(options.plan, widths=tuple(map(int, numbers)))
    if options.dtypes is not None:
        dtypes = options.dtypes.split(",")
        if not set(dtypes) <= set(DTYPES):
            parser.error(f"--dtypes {options.dtypes}: expected some of {','.join(DTYPES)}")
        options.plan = replace(options.plan, dtypes=tuple(dtypes))
    if options.add and options.output_json is None:
        parser.error("--add: expected --output-json, the file to add to")
    return options


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1: a failure or, with --strict, a missed target."""
    options = parse(argv)
    found = environment()
    found["allocator"] = keep_freed_memory()
    print(device_line(found), flush=True)
    source = found["date"], found["revision"]
    measured: list[Measured] = []
    try:
        for name in options.names:
            operation = OPERATIONS[name]
            for case in options.plan.cases():
                made = run_case(name, operation, case, options.plan.rounds)
                measured.append(replace(made, source=source))
        table(measured)
        every = with_earlier(options.output_json, measured) if options.add else measured
        if options.output_json is not None:
            write_json(options.output_json, content(found, every, options.quick))
            print(f"results: {options.output_json}")
        if options.chart is not None:
            chart(options.chart, every, f"Kernels against MLX: {device_line(found)}")
            print(f"chart: {options.chart}")
    except (WrongResult, metile.MetileError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return verdict([each.goal() for each in measured], options.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
