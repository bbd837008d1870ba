"""Products of matrices in one tile size, by how operands are staged, and by revision.

    python -m benchmarks.compiler.staged_gemm --output FILE
        [--baseline-root TREE] [--quick] [--strict]

Without a baseline the arms are the schedules: operands loaded by each simdgroup (device), handed
over through threadgroup memory (staged), the same with two slots (double), and mx.matmul. With
`--baseline-root` they are `double` of that tree and of this one, each with its own compiler, in one
process. Every execution is checked against float64 before anything is timed; the arms then
alternate. Ratios are of times. What an arm does about staging its report says, and this prints it:
a CPU has no simdgroups, so there the schedules are one text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx

import metile_mlx as metile
from benchmarks.allocator import keep_freed_memory
from benchmarks.compiler import products
from benchmarks.compiler.products import Case, Plan
from benchmarks.compiler.trees import package
from benchmarks.harness import (
    Goal,
    Summary,
    WrongResult,
    calibrated,
    geometric_mean,
    measure,
    ratio,
)
from benchmarks.record import ROOT, device_line, environment, print_table, verdict, write_json

MLX = "mlx"
SCHEDULES: dict[str, dict[str, Any]] = {
    "device": {"backend": "simdgroup", "staging": "device"},
    "staged": {"backend": "simdgroup", "staging": "threadgroup"},
    "double": {"backend": "simdgroup", "staging": "threadgroup", "double_buffer": True},
}
BASELINE, CURRENT = "baseline", "current"
LIMIT = 1.05
"""A revision is not slower than its baseline, but for noise (geometric mean)."""


@dataclass(frozen=True)
class Measured:
    """One case: launches of a run, times of each arm, and what each arm's report says."""

    case: Case
    repeats: int
    times: dict[str, Summary]
    pipelines: dict[str, list[str]]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line, read."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compiler.staged_gemm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="where results go, as JSON")
    parser.add_argument("--baseline-root", type=Path, metavar="TREE", help="tree to compare with")
    parser.add_argument("--quick", action="store_true", help="small matrices, few rounds")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(argv)


def run_case(case: Case, plan: Plan, baseline: ModuleType | None) -> Measured:
    """Compile, check and time the arms of a case.

    Raises:
        WrongResult: an arm does not compute the product.
    """
    given = products.operands(case, plan.seed)
    launches: dict[str, Callable[[], mx.array]] = {}
    said: dict[str, list[str]] = {}
    for name, (package_, schedule) in _arms(baseline).items():
        found = products.dispatch(package_, given, plan.tile, **schedule)
        launches[name] = products.launcher(package_, found, given)
        said[name] = _pipelines(found)
    launches[MLX] = lambda: mx.matmul(given.left, given.right)
    repeats = calibrated(_once(launches[MLX]), plan.effort.seconds_per_run, 256)
    arms = [products.arm(name, launch, repeats) for name, launch in launches.items()]
    times = measure(arms, products.checker(given), plan.effort.rounds, plan.effort.warmup)
    return Measured(case, repeats, times, said)


def _arms(baseline: ModuleType | None) -> dict[str, tuple[ModuleType, dict[str, Any]]]:
    if baseline is None:
        return {name: (metile, schedule) for name, schedule in SCHEDULES.items()}
    return {BASELINE: (baseline, SCHEDULES["double"]), CURRENT: (metile, SCHEDULES["double"])}


def _once(launch: Callable[[], mx.array]) -> Callable[[], None]:
    return lambda: mx.eval(launch())


def _pipelines(found: Any) -> list[str]:
    """What the report says of the loop: its pipeline, or why there is none."""
    facts = found.execution_report.to_dict()
    return [str(fact) for fact in facts["pipelines"]]


def pairs(measured: Sequence[Measured]) -> list[tuple[str, str]]:
    """The ratios of interest: which arm's time over which other's."""
    names = measured[0].times
    if CURRENT in names:
        return [(CURRENT, BASELINE), (CURRENT, MLX)]
    return [("double", "staged"), ("double", "device"), ("double", MLX)]


def means(measured: Sequence[Measured]) -> dict[str, float]:
    """Geometric means of those ratios over the cases."""
    return {
        f"{over}/{under}": geometric_mean([ratio(each.times, over, under) for each in measured])
        for over, under in pairs(measured)
    }


def goals(found: dict[str, float]) -> list[Goal]:
    """What was promised, where it was measured."""
    name = f"{CURRENT}/{BASELINE}"
    if name not in found:
        return []
    return [Goal("time of this revision / of the baseline", found[name], LIMIT, "")]


def report(measured: Sequence[Measured], found: dict[str, float]) -> None:
    """The results on the terminal."""
    names = list(measured[0].times)
    lines = []
    for each in measured:
        medians = [f"{s.median * 1e6:.1f} ±{s.spread * 50:.0f}%" for s in each.times.values()]
        ratios = [f"{ratio(each.times, *pair):.3f}" for pair in pairs(measured)]
        rates = [
            f"{each.case.operations / each.times[n].median / 1e9:.0f}" for n in (names[-2], MLX)
        ]
        lines.append([each.case.name, str(each.repeats), *medians, *ratios, *rates])
    head = ["case", "launches", *(f"{name} us" for name in names)]
    head += [f"{over}/{under}" for over, under in pairs(measured)]
    head += [f"{names[-2]} GFLOP/s", f"{MLX} GFLOP/s"]
    print_table("median time of a product", head, lines)
    for name, mean in found.items():
        print(f"geometric mean of {name}: {mean:.3f}")
    for name, said in measured[0].pipelines.items():
        print(f"{name}: {'; '.join(said) or 'no pipeline'}")


def content(
    options: argparse.Namespace,
    plan: Plan,
    where: dict[str, Any],
    measured: Sequence[Measured],
    found: dict[str, float],
) -> dict[str, Any]:
    """What the JSON file holds."""
    return {
        "benchmark": "compiler.staged_gemm",
        "quick": options.quick,
        "baseline_root": None if options.baseline_root is None else str(options.baseline_root),
        "tolerance": "rounding * |C| + K * 2^-24 * (|A| @ |B|) against float64",
        "environment": where,
        "effort": vars(plan.effort),
        "seed": plan.seed,
        "tile": list(plan.tile),
        "cases": [
            {
                **vars(each.case),
                "launches_per_run": each.repeats,
                "arms": {name: summary.to_dict() for name, summary in each.times.items()},
                "pipelines": each.pipelines,
                "ratios": {
                    f"{over}/{under}": ratio(each.times, over, under)
                    for over, under in pairs(measured)
                },
            }
            for each in measured
        ],
        "geometric_means": found,
        "goals": [goal.to_dict() for goal in goals(found)],
    }


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1: a failure or, with --strict, a missed target; 2: bad input."""
    options = parse(argv)
    try:
        plan = products.load(options.quick)
        baseline = None if options.baseline_root is None else package(options.baseline_root)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    where = environment(ROOT)
    where["allocator"] = keep_freed_memory()
    print(device_line(where), flush=True)
    measured: list[Measured] = []
    for case in plan.cases:
        try:
            measured.append(run_case(case, plan, baseline))
        except (WrongResult, metile.MetileError) as error:
            print(f"error: nothing is reported: {error}", file=sys.stderr)
            return 1
    found = means(measured)
    report(measured, found)
    if options.output is not None:
        write_json(options.output, content(options, plan, where, measured, found))
        print(f"results: {options.output}")
    return verdict(goals(found), options.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
