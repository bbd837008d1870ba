"""Square products of matrices against `mx.matmul`, and against a tuned BLAS on the CPU.

    python -m benchmarks.matmul [--quick] [--output FILE] [--strict]

MLX's matmul on Linux calls whatever BLAS its wheel holds, which may be the untuned reference. So
f32 on a CPU is measured against NumPy's too (OpenBLAS in its wheels). Results are checked against
float64 before anything is timed; the arms alternate in one process.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from benchmarks.allocator import keep_freed_memory
from benchmarks.compiler import products
from benchmarks.compiler.products import Case
from benchmarks.harness import Arm, Goal, Summary, WrongResult, calibrated, measure, ratio
from benchmarks.record import ROOT, device_line, environment, print_table, verdict, write_json

OURS, MLX, BLAS = "metile", "mx.matmul", "numpy"
SIZES = (256, 512, 1024)
DTYPES = ("f32", "f16", "bf16")
# Times of ours over those of the other: half as fast as a tuned BLAS, faster than MLX in 16 bits.
LIMITS = {("f32", BLAS): 2.0, ("f16", MLX): 1.0, ("bf16", MLX): 1.0}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line, read."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.matmul",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="where results go, as JSON")
    parser.add_argument("--quick", action="store_true", help="few rounds, no 1024")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(argv)


def launches(given: products.Operands) -> dict[str, Callable[[], Any]]:
    """One product by each arm."""
    left, right = given.left, given.right
    found: dict[str, Callable[[], Any]] = {
        OURS: lambda: metile.matmul(left, right),
        MLX: lambda: mx.matmul(left, right),
    }
    if given.case.dtype == "f32" and mx.default_device() == mx.Device(mx.cpu):
        a, b = np.array(left), np.array(right)
        found[BLAS] = lambda: a @ b
    return found


def arm(name: str, launch: Callable[[], Any], repeats: int) -> Arm:
    """One run makes `repeats` products and waits for all of them."""

    def run() -> list[Any]:
        made = [launch() for _ in range(repeats)]
        mx.eval([each for each in made if isinstance(each, mx.array)])
        return made

    return Arm(name, run, repeats)


def checker(given: products.Operands) -> Callable[[Arm, Any], str | None]:
    """As `products.checker`, of NumPy's arrays too."""
    check = products.checker(given)

    def both(arm: Arm, results: Any) -> str | None:
        return check(
            arm, [each if isinstance(each, mx.array) else mx.array(each) for each in results]
        )

    return both


Measured = tuple[Case, dict[str, int], dict[str, Summary]]


def run_case(case: Case, rounds: int, seconds: float) -> tuple[dict[str, int], dict[str, Summary]]:
    """By arm, launches of a run and times.

    Raises:
        WrongResult: an arm does not compute the product.
    """
    given = products.operands(case, 3)
    made = launches(given)
    repeats = {name: calibrated(arm(name, run, 1).run, seconds, 64) for name, run in made.items()}
    arms = [arm(name, run, repeats[name]) for name, run in made.items()]
    return repeats, measure(arms, checker(given), rounds)


def goals(measured: Sequence[Measured]) -> list[Goal]:
    """What was promised, where it was measured."""
    found = []
    for case, _, times in measured:
        for (dtype, other), limit in LIMITS.items():
            if case.dtype == dtype and other in times:
                value = ratio(times, OURS, other)
                found.append(Goal(f"{case.name}: time / {other}'s", value, limit, ""))
    return found


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1: a wrong result or, with --strict, a missed target."""
    options = parse(argv)
    where = environment(ROOT)
    where["allocator"] = keep_freed_memory()
    print(device_line(where), flush=True)
    rounds, seconds = (3, 0.01) if options.quick else (15, 0.05)
    sizes = SIZES[:2] if options.quick else SIZES
    measured: list[Measured] = []
    for dtype in DTYPES:
        for size in sizes:
            case = Case(dtype, size, size, size)
            try:
                measured.append((case, *run_case(case, rounds, seconds)))
            except (WrongResult, metile.MetileError) as error:
                print(f"error: nothing is reported: {error}", file=sys.stderr)
                return 1
    lines = []
    for case, _, times in measured:
        rates = [
            f"{case.operations / times[n].median / 1e9:.1f}" if n in times else ""
            for n in (OURS, MLX, BLAS)
        ]
        against = [f"{1 / ratio(times, OURS, n):.2f}" if n in times else "" for n in (MLX, BLAS)]
        lines.append([case.name, *rates, *against])
    head = ["product", *(f"{n} GFLOP/s" for n in (OURS, MLX, BLAS))]
    print_table("by medians", [*head, f"times {MLX}", f"times {BLAS}"], lines)
    if options.output is not None:
        content = {
            "benchmark": "matmul",
            "quick": options.quick,
            "environment": where,
            "cases": [
                {
                    **vars(case),
                    "launches_per_run": repeats,
                    "arms": {name: summary.to_dict() for name, summary in times.items()},
                }
                for case, repeats, times in measured
            ],
            "goals": [goal.to_dict() for goal in goals(measured)],
        }
        write_json(options.output, content)
        print(f"results: {options.output}")
    return verdict(goals(measured), options.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
