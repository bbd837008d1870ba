"""Conversions: how the compiler carries them out, at what cost, and how long they take.

    python -m benchmarks.conversions [--quick] [--output-json FILE] [--chart FILE] [--strict]

First, for each rearrangement and layout: the lowering that was chosen, every candidate with its
cost, and the time of a translation. Then transposes of f16 and f32 tiles on the backend at hand, in
layouts named `fours N` (groups of four neighbours, N values per thread) and `striped N`, against
MLX's contiguous transpose and a plain copy by a kernel. Each arm is checked bit for bit before any
is timed; arms alternate in one process.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from benchmarks.allocator import keep_freed_memory
from benchmarks.charts import draw
from benchmarks.harness import (
    Arm,
    Goal,
    Summary,
    WrongResult,
    calibrated,
    geometric_mean,
    measure,
    ratio,
    summarise,
)
from benchmarks.record import device_line, environment, print_table, verdict, write_json
from metile_kernels.permutations import bit_reversing, rearranged, transposing

DTYPES = {"f16": (mx.float16, mx.uint16, np.uint16), "f32": (mx.float32, mx.uint32, np.uint32)}
MLX, COPY = "mlx", "copy"
# Seconds that a translation may take: the largest tile, 32 values in each of 1024 threads.
TRANSLATION_LIMIT = 0.3
# Seconds of one timed run, the most bytes of results alive in it, and the bytes of one batch.
SECONDS_PER_RUN = 0.01
MOST_BYTES = 1 << 26
BATCH_BYTES = 1 << 23


@dataclass(frozen=True)
class Tile:
    """`tiles` row-major tiles of rows x columns to a program; values a thread to try."""

    rows: int
    columns: int
    tiles: int
    registers: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements of a program's tile."""
        return self.rows * self.columns * self.tiles

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.rows}x{self.columns}"


TILES = (
    Tile(8, 8, 2, (1, 4)),
    Tile(8, 8, 16, (4, 16)),
    Tile(16, 16, 4, (4, 16)),
    Tile(32, 32, 1, (1, 4, 16)),
    Tile(64, 64, 1, (4, 16, 32)),
    Tile(32, 128, 1, (4, 16)),
    Tile(128, 128, 1, (16, 32)),
)
QUICK = (Tile(8, 8, 2, (4,)), Tile(64, 64, 1, (16,)))


@dataclass(frozen=True)
class Case:
    """A batch of tiles of one dtype to transpose."""

    dtype: str
    tile: Tile

    @property
    def programs(self) -> int:
        """As many as make up one batch."""
        return max(1, BATCH_BYTES // (self.tile.size * DTYPES[self.dtype][0].size))

    @property
    def bytes(self) -> int:
        """Of the input, or the output."""
        return self.programs * self.tile.size * DTYPES[self.dtype][0].size

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.dtype} {self.tile.name}, {self.tile.tiles} to a program"


@dataclass(frozen=True)
class Planned:
    """One conversion and what the report says of it."""

    name: str
    layout: str
    registers: int
    conversion: dict[str, Any]
    allocations: int


def layouts(tile: Tile) -> dict[str, metile.ThreadLayout]:
    """The layouts of a tile by name, legal ones only."""
    found = {}
    for registers in tile.registers:
        if 32 <= tile.size // registers <= 1024:
            striped = metile.ThreadLayout.identity(tile.size, elements_per_thread=registers)
            found[f"striped {registers}"] = striped
            if registers >= 4:
                found[f"fours {registers}"] = metile.ThreadLayout.grouped(tile.size, registers)
    return found


def prepare(
    order: Sequence[int], layout: metile.ThreadLayout, x: mx.array, target: str | None = None
) -> metile.Dispatch:
    """The kernel that puts each tile, a row of `x`, into another order."""
    return rearranged[(x.shape[0],)].prepare(
        x, metile.empty(x.shape, x.dtype), x.shape[0], ORDER=tuple(order), LAYOUT=layout,
        target=target,
    )  # fmt: skip


def planned(tiles: Sequence[Tile]) -> list[Planned]:
    """The plans for Metal; nothing runs."""
    rows: list[tuple[str, Sequence[int], dict[str, metile.ThreadLayout]]] = [
        (f"{t.tiles} x {t.name}", transposing(t.rows, t.columns, t.tiles), layouts(t))
        for t in tiles
    ]
    reversal = Tile(32, 32, 1, (1, 4, 32))
    rows.append(("bit reversal 1024", bit_reversing(1024), layouts(reversal)))
    found = []
    for name, order, named in rows:
        for layout_name, layout in named.items():
            dispatch = prepare(order, layout, mx.zeros((3, layout.size)), "metal")
            (fact,) = dispatch.execution_report.layout_conversions
            bytes_ = sum(a.bytes for a in dispatch.execution_report.allocations)
            registers = layout.elements_per_thread
            found.append(Planned(name, layout_name, registers, asdict(fact), bytes_))
    return found


def translations(count: int) -> Summary:
    """Seconds to translate a random conversion of 32 values in each of 1024 threads, each new."""
    rng = random.Random(1)
    x = mx.zeros((1, 32768))
    times = []
    for _ in range(count):
        orders = [rng.sample(range(15), 15) for _ in range(2)]
        layout = metile.ThreadLayout(orders[0], rng.randrange(32768), 32)
        start = perf_counter()
        prepare(orders[1], layout, x, "metal")
        times.append(perf_counter() - start)
    return summarise(times)


def source_bits(case: Case, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random bit patterns, NaNs with payloads and -0.0 among them, one row per program."""
    rng = np.random.default_rng(seed)
    bits = 8 * DTYPES[case.dtype][0].size
    shape = (case.programs, case.tile.size)
    found = rng.integers(0, 2**bits, shape, dtype=DTYPES[case.dtype][2])
    found[:, 0] = 1 << (bits - 1)
    return found


def works(case: Case, x: mx.array) -> dict[str, Callable[[], mx.array]]:
    """The work of each arm: a function that returns a lazy result."""
    tile = case.tile
    folded = mx.reshape(x, (-1, tile.rows, tile.columns))
    mx.eval(folded)
    named = layouts(tile)
    out = metile.empty(x.shape, x.dtype)
    found: dict[str, Callable[[], mx.array]] = {
        MLX: lambda: mx.contiguous(mx.transpose(folded, (0, 2, 1)))
    }
    order = transposing(tile.rows, tile.columns, tile.tiles)
    for name, layout in named.items():
        found[name] = partial(prepare(order, layout, x), x, out, x.shape[0])
    layout = list(named.values())[-1]
    found[COPY] = partial(prepare(range(len(order)), layout, x), x, out, x.shape[0])
    return found


def checker(case: Case, bits: np.ndarray[Any, Any]) -> Callable[[Arm, Any], str | None]:
    """A check that every result of a run is the transpose, or the copy, bit for bit."""
    tile = case.tile
    turned = bits.reshape(-1, tile.rows, tile.columns).transpose(0, 2, 1).reshape(bits.shape)

    def check(arm: Arm, made: Any) -> str | None:
        expected = bits if arm.name == COPY else turned
        for result in made:
            found = np.asarray(result.view(DTYPES[case.dtype][1])).reshape(bits.shape)
            wrong = int((found != expected).sum())
            if wrong:
                return f"{case.name}: {wrong} of {expected.size} elements differ in their bits"
        return None

    return check


def run_case(case: Case, rounds: int) -> dict[str, Summary]:
    """The times of each arm.

    Raises:
        WrongResult: an arm computes something else; nothing was timed.
    """
    bits = source_bits(case)
    x = mx.array(bits).view(DTYPES[case.dtype][0])
    mx.eval(x)
    work = works(case, x)
    most = max(1, MOST_BYTES // case.bytes)
    repeats = calibrated(lambda: mx.eval(work[MLX]()), SECONDS_PER_RUN, most)
    arms = [Arm(name, _run(one, repeats), repeats) for name, one in work.items()]
    return measure(arms, checker(case, bits), rounds)


def _run(work: Callable[[], mx.array], repeats: int) -> Callable[[], list[mx.array]]:
    def run() -> list[mx.array]:
        made = [work() for _ in range(repeats)]
        mx.eval(made)
        return made

    return run


Measured = list[tuple[Case, dict[str, Summary]]]


def best(times: dict[str, Summary]) -> str:
    """The fastest arm that converts."""
    return min((n for n in times if n not in (MLX, COPY)), key=lambda name: times[name].median)


def goals(measured: Measured, translated: Summary) -> list[Goal]:
    """At least as fast as MLX in the geometric mean, and translation within its limit."""
    found = [
        Goal("32 x 1024 conversion, median translation", translated.median, TRANSLATION_LIMIT, "s")
    ]
    for dtype in DTYPES:
        ratios = [ratio(t, best(t), MLX) for case, t in measured if case.dtype == dtype]
        mean = geometric_mean(ratios)
        found.append(Goal(f"{dtype}: best layout's time / MLX time, geometric mean", mean, 1.0, ""))
    return found


def plan_table(found: Sequence[Planned]) -> None:
    """A line per conversion: what was chosen, its counts, and what each candidate costs."""
    head = ["conversion", "layout", "chosen", "shuffles", "selects", "scratch accesses"]
    head += ["barriers", "bytes", "conflicts", "cost", "candidates"]
    lines = []
    for each in found:
        cost = each.conversion["cost"]
        others = [f"{c['mechanism']} {c['total']}" for c in each.conversion["candidates"]]
        lines.append([
            each.name, each.layout, each.conversion["mechanism"], str(cost["shuffles"]),
            str(cost["selects"]), str(cost["stores"] + cost["loads"]), str(cost["barriers"]),
            str(each.allocations), f"{cost['write_conflicts']}, {cost['read_conflicts']}",
            str(cost["total"]), "; ".join(others),
        ])  # fmt: skip
    print_table("conversions, per thread, as planned for Metal", head, lines)


def time_table(measured: Measured) -> None:
    """Medians in microseconds, the best layout, and its time over that of MLX and of a copy."""
    head = ["batch", "mlx us", "copy us", "best us", "best layout", "best/mlx", "best/copy"]
    lines = []
    for case, times in measured:
        name = best(times)
        medians = [f"{times[arm].median * 1e6:.1f}" for arm in (MLX, COPY, name)]
        ratios = [f"{ratio(times, name, other):.3f}" for other in (MLX, COPY)]
        lines.append([case.name, *medians, name, *ratios])
    print_table("median time of one batch", head, lines)


def chart(path: Path, measured: Measured, title: str) -> None:
    """Bandwidth by tile: the best layout, MLX and the copy, a panel for each dtype.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    panels: dict[str, dict[str, list[tuple[str, float]]]] = {}
    for dtype in DTYPES:
        lines = panels[dtype] = {}
        for case, times in measured:
            if case.dtype == dtype:
                label = f"{case.tile.name}\nx{case.tile.tiles}"
                for line, arm in (("conversion", best(times)), (MLX, MLX), (COPY, COPY)):
                    rate = 2 * case.bytes / times[arm].median / 1e9
                    lines.setdefault(line, []).append((label, rate))
    draw(path, title, "tile", "GB/s, read and written", panels)


def content(
    found: dict[str, Any],
    plans: Sequence[Planned],
    translated: Summary,
    measured: Measured,
    quick: bool,
) -> dict[str, Any]:
    """What the JSON file holds."""
    return {
        "benchmark": "conversions",
        "quick": quick,
        "environment": found,
        "plans": [asdict(each) for each in plans],
        "translation": translated.to_dict(),
        "cases": [
            {
                "dtype": case.dtype,
                **asdict(case.tile),
                "programs": case.programs,
                "bitwise_equal": True,
                "arms": {name: summary.to_dict() for name, summary in times.items()},
                "best": best(times),
                "ratios": {other: ratio(times, best(times), other) for other in (MLX, COPY)},
            }
            for case, times in measured
        ],
        "goals": [goal.to_dict() for goal in goals(measured, translated)],
    }


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.conversions", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two tiles, few layouts and rounds")
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
    tiles = QUICK if options.quick else TILES
    try:
        plans = planned(tiles)
        plan_table(plans)
        translated = translations(3 if options.quick else 9)
        rounds = 5 if options.quick else 15
        cases = [Case(dtype, tile) for dtype in DTYPES for tile in tiles]
        measured = [(case, run_case(case, rounds)) for case in cases]
        time_table(measured)
        if options.output_json is not None:
            result = content(found, plans, translated, measured, options.quick)
            write_json(options.output_json, result)
            print(f"results: {options.output_json}")
        if options.chart is not None:
            chart(options.chart, measured, f"Transposes by conversion: {device_line(found)}")
            print(f"chart: {options.chart}")
    except (WrongResult, metile.MetileError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return verdict(goals(measured, translated), options.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
