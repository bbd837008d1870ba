"""Batched transposes by ownership conversion, by scalar scatter, and by MLX.

    python -m benchmarks.compiler.thread_layouts --output-json FILE
        [--quick] [--strict] [--scatter-only] [--metile-root TREE]

Each case is checked bit for bit before anything is timed; the arms then alternate in one process.
Ratios are of times: below 1, ownership conversion is the faster. `--metile-root` measures the
package of another source tree; `--scatter-only` times that arm alone, for such a baseline.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.allocator import keep_freed_memory
from benchmarks.compiler import manifest
from benchmarks.compiler.manifest import Case, Manifest
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

Measured = list[tuple[Case, int, dict[str, Summary]]]
BASELINES = ("scatter", "mlx")
LIMIT = 1.0


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line, read."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compiler.thread_layouts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="where results go")
    parser.add_argument("--scatter-only", action="store_true", help="only the scatter arm")
    parser.add_argument("--metile-root", type=Path, metavar="TREE", help="tree to measure")
    parser.add_argument("--quick", action="store_true", help="small batches, few rounds")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(argv)


def transposes(root: Path | None) -> ModuleType:
    """The arms, on the package of `root`, or of this tree where it is None.

    Raises:
        ValueError: the tree has no package, or another one is already imported.
    """
    if root is None:
        return importlib.import_module("benchmarks.compiler.transposes")
    package = root.resolve() / "metile_mlx"
    if not (package / "__init__.py").is_file():
        raise ValueError(f"--metile-root {root}: there is no metile_mlx in it")
    sys.path.insert(0, str(package.parent))
    found = importlib.import_module("benchmarks.compiler.transposes")
    imported = Path(str(sys.modules["metile_mlx"].__file__)).resolve().parent
    if imported != package:
        raise ValueError(f"--metile-root {root}: metile_mlx was imported from {imported}")
    return found


def run_case(code: ModuleType, case: Case, plan: Manifest, names: Sequence[str]) -> tuple[
    int, dict[str, Summary]
]:  # fmt: skip
    """Launches of a run, and the times of each arm.

    Raises:
        WrongResult: an arm does not compute the transpose.
    """
    bits = code.source_bits(case, plan.seed)
    source = code.as_array(case, bits)
    (yardstick,) = code.arms(case, source, 1, [code.MLX])
    most = max(1, code.MOST_BYTES // case.bytes)
    repeats = calibrated(yardstick.run, plan.effort.seconds_per_run, most)
    arms = code.arms(case, source, repeats, names)
    return repeats, measure(arms, code.checker(case, bits), plan.effort.rounds, plan.effort.warmup)


def geometric_means(measured: Measured) -> dict[str, float]:
    """Geometric mean over the cases of ownership's time over that of each baseline measured."""
    return {
        baseline: geometric_mean([ratio(times, "ownership", baseline) for _, _, times in measured])
        for baseline in BASELINES
        if all({"ownership", baseline} <= times.keys() for _, _, times in measured)
    }


def goals(means: Mapping[str, float]) -> list[Goal]:
    """What was promised, where it was measured: at least as fast as MLX."""
    if "mlx" not in means:
        return []
    return [Goal("ownership time / MLX time, geometric mean", means["mlx"], LIMIT, "")]


def rows(measured: Measured) -> list[list[str]]:
    """A line per case: launches, medians with spread, ratios, bandwidth of the first arm."""
    lines = []
    for case, repeats, times in measured:
        medians = [f"{s.median * 1e6:.1f} ±{s.spread * 50:.0f}%" for s in times.values()]
        ratios = [
            f"{ratio(times, 'ownership', baseline):.3f}"
            for baseline in BASELINES
            if {"ownership", baseline} <= times.keys()
        ]
        rate = 2 * case.bytes / next(iter(times.values())).median / 1e9
        lines.append([case.name, str(repeats), *medians, *ratios, f"{rate:.1f}"])
    return lines


def report(measured: Measured, names: Sequence[str], means: Mapping[str, float]) -> None:
    """The results on the terminal."""
    head = ["case", "launches", *(f"{name} us" for name in names)]
    head += [f"ownership/{baseline}" for baseline in means]
    print_table("median time of a launch", [*head, f"{names[0]} GB/s"], rows(measured))
    for baseline, mean in means.items():
        print(f"geometric mean of ownership time / {baseline} time: {mean:.3f}")


def content(
    options: argparse.Namespace,
    plan: Manifest,
    found: dict[str, Any],
    measured: Measured,
    means: Mapping[str, float],
) -> dict[str, Any]:
    """What the JSON file holds."""
    return {
        "benchmark": "compiler.thread_layouts",
        "quick": options.quick,
        "target": "at least as fast as MLX in the geometric mean",
        "environment": found,
        "effort": vars(plan.effort),
        "seed": plan.seed,
        "cases": [
            {
                **vars(case),
                "launches_per_run": repeats,
                "bitwise_equal": True,
                "arms": {name: summary.to_dict() for name, summary in times.items()},
                "ratios": {
                    f"ownership/{baseline}": ratio(times, "ownership", baseline)
                    for baseline in BASELINES
                    if {"ownership", baseline} <= times.keys()
                },
            }
            for case, repeats, times in measured
        ],
        "geometric_means": {f"ownership/{name}": mean for name, mean in means.items()},
        "goals": [goal.to_dict() for goal in goals(means)],
    }


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1: a failure or, with --strict, a missed target; 2: bad input."""
    options = parse(argv)
    try:
        code = transposes(options.metile_root)
        plan = manifest.load(options.quick)
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    names = [code.SCATTER] if options.scatter_only else [code.OWNERSHIP, code.SCATTER, code.MLX]
    found = environment(options.metile_root or ROOT)
    found["allocator"] = keep_freed_memory()
    print(device_line(found), flush=True)
    measured: Measured = []
    for case in plan.cases:
        try:
            measured.append((case, *run_case(code, case, plan, names)))
        except (WrongResult, code.metile.MetileError) as error:
            print(f"error: nothing is reported: {error}", file=sys.stderr)
            return 1
    means = geometric_means(measured)
    report(measured, names, means)
    if options.output_json is not None:
        write_json(options.output_json, content(options, plan, found, measured, means))
        print(f"results: {options.output_json}")
    return verdict(goals(means), options.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
