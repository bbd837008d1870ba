"""Time to translate a kernel to MSL text, and to call a kernel that is already compiled.

    python -m benchmarks.compile_latency [--output-json FILE] [--quick] [--strict]

Translation is of the 8x8 transpose and of `rmsnorm_register` with 4 and with 32 values per thread,
each time with a new kernel object, so that no specialisation is found again; it needs no Metal
device. Calls build the lazy graph and drop it unevaluated; the
kernel has two array inputs, one output and one scalar, and all checks of a call are on.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import mlx.core as mx

import metile_mlx as metile
from benchmarks.harness import Arm, Goal, Summary, WrongResult, measure, summarise
from benchmarks.record import device_line, environment, print_table, verdict, write_json
from metile_kernels.rmsnorm import rmsnorm_register

BATCHES = 4096
TILE = 64
COUNT = 64 * TILE

TRANSLATION_MS = 10.0
REGISTER_MS = {4: 25.0, 32: 120.0}
VERIFICATION_PERCENT = 20.0
REGISTER_VERIFICATION_PERCENT = 25.0
DISPATCH_US = 8.0
CALL_US = 20.0


def transpose8(source, destination, batches, OUTPUT_LAYOUT: metile.constexpr):
    inputs = metile.tensor(source, shape=(batches, 8, 8), access="read")
    outputs = metile.tensor(destination, shape=(batches, 8, 8), access="write")
    batch = metile.program_id(0)
    positions = metile.arange(0, 64)
    values = inputs.load((batch, positions // 8, positions % 8))
    converted = metile.convert_layout(values, OUTPUT_LAYOUT)
    owned = metile.arange(0, 64, layout=OUTPUT_LAYOUT)
    outputs.store((batch, owned % 8, owned // 8), converted)


@metile.kernel
def add(left, right, out, count):
    lefts = metile.tensor(left, shape=(count,), access="read")
    rights = metile.tensor(right, shape=(count,), access="read")
    outputs = metile.tensor(out, shape=(count,), access="write")
    index = metile.program_id(0) * TILE + metile.arange(0, TILE)
    outputs.store((index,), lefts.load((index,)) + rights.load((index,)))


@dataclass(frozen=True)
class Translation:
    """Seconds of cold translations.

    Attributes:
        first: of the first one of this process, which also warms Python up.
        total: from the Python function to the MSL text.
        reading: the part that reads and parses the source (`metile.kernel`).
        steps: (step, kind) -> each compiler step, as the execution report has it.
        verification: share of all verifiers in the total, of each translation.
    """

    first: float
    total: Summary
    reading: Summary
    steps: Mapping[tuple[str, str], Summary]
    verification: float


@dataclass(frozen=True)
class Case:
    """A kernel to translate.

    Attributes:
        name: in results.
        function: its Python function.
        prepare: from a new kernel of it to its dispatch.
        needed: parts its text must have.
    """

    name: str
    function: Callable[..., Any]
    prepare: Callable[[metile.Kernel], metile.Dispatch]
    needed: tuple[str, ...]


def _prepare_transpose(kernel: metile.Kernel) -> metile.Dispatch:
    source = mx.zeros((BATCHES, 8, 8), mx.float32)
    return kernel[(BATCHES,)].prepare(
        source,
        metile.empty(source.shape, source.dtype),
        BATCHES,
        OUTPUT_LAYOUT=metile.ThreadLayout((3, 4, 5, 0, 1, 2)),
        target="metal",
    )


TRANSPOSE = Case(
    "transpose8", transpose8, _prepare_transpose, ("threadgroup float", "threadgroup_barrier")
)


def registers_case(registers: int) -> Case:
    """`rmsnorm_register` in f16, N = 1009, with this many values per thread."""

    def prepare(kernel: metile.Kernel) -> metile.Dispatch:
        x = mx.zeros((BATCHES, 1009), mx.float16)
        return kernel[(BATCHES,)].prepare(
            x,
            mx.zeros((1009,), mx.float16),
            metile.empty(x.shape, x.dtype),
            1e-5,
            N=1009,
            BLOCK=1024,
            LAYOUT=metile.ThreadLayout.identity(1024, elements_per_thread=registers),
            target="metal",
        )

    name = f"rmsnorm_register, {registers} values per thread"
    return Case(name, rmsnorm_register.__wrapped__, prepare, ("simd_sum", f"_{registers - 1} ="))


def translate_once(case: Case) -> tuple[float, float, metile.Dispatch]:
    """Seconds to read the kernel's source, seconds for all, and what came of it."""
    start = perf_counter()
    kernel = metile.kernel(case.function)
    read = perf_counter()
    dispatch = case.prepare(kernel)
    return read - start, perf_counter() - start, dispatch


def check_text(case: Case, text: str) -> None:
    """Refuse to time the translation of something else, such as a kernel without its exchange.

    Raises:
        WrongResult: the text lacks a part that this kernel must have.
    """
    for needed in case.needed:
        if needed not in text:
            raise WrongResult(f"translation: the MSL text of {case.name} has no {needed!r}")


def translations(samples: int, case: Case = TRANSPOSE) -> Translation:
    """Translate `samples` times from nothing.

    Raises:
        WrongResult: the first text is not that of the kernel.
    """
    _, first, dispatch = translate_once(case)
    check_text(case, dispatch.msl)
    reading, total, shares = [], [], []
    steps: dict[tuple[str, str], list[float]] = {}
    for _ in range(samples):
        # A collection of earlier samples' garbage is not a cost of this one.
        gc.collect()
        seconds_reading, seconds, dispatch = translate_once(case)
        reading.append(seconds_reading)
        total.append(seconds)
        own: dict[tuple[str, str], float] = {}
        for timing in dispatch.execution_report.timings:
            key = (timing.step, timing.kind)
            own[key] = own.get(key, 0.0) + timing.seconds
        for key, value in own.items():
            steps.setdefault(key, []).append(value)
        shares.append(sum(s for (_, kind), s in own.items() if kind == "verifier") / seconds)
    return Translation(
        first,
        summarise(total),
        summarise(reading),
        {key: summarise(values) for key, values in steps.items()},
        summarise(shares).median,
    )


def call_arms(calls: int) -> tuple[list[Arm], dict[str, mx.array]]:
    """Ways to put one node into a lazy graph, each `calls` times a run, and what each computes."""
    left = mx.random.normal((COUNT,), key=mx.random.key(1))
    right = mx.random.normal((COUNT,), key=mx.random.key(2))
    weight = mx.ones((COUNT,))
    total = left + right
    normal = left * mx.rsqrt(mx.mean(left * left) + 1e-5)
    mx.eval(left, right, weight, total, normal)
    output = metile.empty((COUNT,), mx.float32)
    grid = (COUNT // TILE,)
    dispatch = add[grid].prepare(left, right, output, COUNT)
    primitive = dispatch.unchecked()
    inputs = [left, right]

    @mx.custom_function
    def wrapped(*arrays: mx.array) -> mx.array:
        return primitive(arrays)[0]

    @wrapped.vjp
    def wrapped_vjp(primals: Any, cotangent: Any, outputs: Any) -> Any:
        return cotangent, cotangent

    ways: dict[str, Callable[[], mx.array]] = {
        "primitive": lambda: primitive(inputs)[0],
        "primitive in custom_function": lambda: wrapped(left, right),
        "Dispatch": lambda: dispatch(left, right, output, COUNT),
        "kernel[grid](...)": lambda: add[grid](left, right, output, COUNT),
        "mx.add": lambda: mx.add(left, right),
        "mx.fast.rms_norm": lambda: mx.fast.rms_norm(left, weight, 1e-5),
    }
    expected = {name: normal if name == "mx.fast.rms_norm" else total for name in ways}
    return [Arm(name, _repeated(way, calls), calls) for name, way in ways.items()], expected


def _repeated(way: Callable[[], mx.array], calls: int) -> Callable[[], mx.array]:
    def run() -> mx.array:
        for _ in range(calls - 1):
            way()
        return way()

    return run


def call_costs(rounds: int, calls: int) -> dict[str, Summary]:
    """Seconds of one call of each arm.

    Raises:
        WrongResult: an arm computes something else.
    """
    arms, expected = call_arms(calls)

    def check(arm: Arm, result: mx.array) -> str | None:
        close = mx.allclose(result, expected[arm.name], rtol=1e-5, atol=1e-5).item()
        return None if close else "a result differs from what MLX's operations give"

    return measure(arms, check, rounds)


Registers = Mapping[int, Translation]
"""Translations of `rmsnorm_register` by values per thread."""


def goals(
    translation: Translation, registers: Registers, calls: Mapping[str, Summary]
) -> list[Goal]:
    """What was promised."""
    found = []
    for values, made in registers.items():
        name = f"rmsnorm_register, {values} values per thread"
        share, limit = made.verification * 100, REGISTER_VERIFICATION_PERCENT
        found.append(Goal(name, made.total.median * 1e3, REGISTER_MS[values], "ms"))
        found.append(Goal(f"{name}: verification share", share, limit, "%"))
    return [
        Goal("translation to MSL", translation.total.median * 1e3, TRANSLATION_MS, "ms"),
        Goal("verification share", translation.verification * 100, VERIFICATION_PERCENT, "%"),
        Goal("warm Dispatch call", calls["Dispatch"].median * 1e6, DISPATCH_US, "us"),
        Goal("warm kernel call", calls["kernel[grid](...)"].median * 1e6, CALL_US, "us"),
        *found,
    ]


def report(translation: Translation, registers: Registers, calls: Mapping[str, Summary]) -> None:
    """The results on the terminal."""
    _print_translation(TRANSPOSE.name, translation)
    for values, made in registers.items():
        _print_translation(f"rmsnorm_register, {values} values per thread", made)
    least = calls["primitive"].median
    print_table(
        "one call: two arrays in, one out, one scalar; graph building only",
        ["call", "median us", "q1", "q3", "of the primitive"],
        [
            [name, *_figures(summary), f"{summary.median / least:.2f}x"]
            for name, summary in calls.items()
        ],
    )


def _print_translation(name: str, translation: Translation) -> None:
    named = {
        ("read the source", "frontend"): translation.reading,
        **translation.steps,
        ("all, from function to text", ""): translation.total,
    }
    print_table(
        f"translation of {name}, {translation.total.samples} times, the first "
        f"{translation.first * 1e3:.2f} ms",
        ["step", "kind", "median us", "q1", "q3"],
        [[step, kind, *_figures(summary)] for (step, kind), summary in named.items()],
    )


def _figures(summary: Summary) -> list[str]:
    return [f"{value * 1e6:.2f}" for value in (summary.median, summary.q1, summary.q3)]


def content(
    quick: bool, translation: Translation, registers: Registers, calls: Mapping[str, Summary]
) -> dict[str, object]:
    """What the JSON file holds, but for the environment."""
    return {
        "benchmark": "compile_latency",
        "quick": quick,
        "translation": _translation_content("transpose8", translation),
        "register_translations": [
            {"values_per_thread": values, **_translation_content("rmsnorm_register", made)}
            for values, made in registers.items()
        ],
        "calls": {name: summary.to_dict() for name, summary in calls.items()},
        "goals": [goal.to_dict() for goal in goals(translation, registers, calls)],
    }


def _translation_content(kernel: str, translation: Translation) -> dict[str, object]:
    return {
        "kernel": kernel,
        "first_s": translation.first,
        "total": translation.total.to_dict(),
        "reading": translation.reading.to_dict(),
        "steps": [
            {"step": step, "kind": kind, **summary.to_dict()}
            for (step, kind), summary in translation.steps.items()
        ],
        "verification_share": translation.verification,
    }


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line, read."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compile_latency",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="where results go")
    parser.add_argument("--quick", action="store_true", help="few samples")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a target is missed")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1 for a failure or, with --strict, a missed target."""
    options = parse(argv)
    found = environment()
    print(device_line(found), flush=True)
    try:
        translation = translations(20 if options.quick else 300)
        samples = 10 if options.quick else 50
        registers = {values: translations(samples, registers_case(values)) for values in (4, 32)}
        calls = call_costs(*((5, 500) if options.quick else (31, 5000)))
    except (WrongResult, metile.MetileError) as error:
        print(f"error: nothing is reported: {error}", file=sys.stderr)
        return 1
    report(translation, registers, calls)
    if options.output_json is not None:
        write_json(
            options.output_json,
            {"environment": found, **content(options.quick, translation, registers, calls)},
        )
        print(f"results: {options.output_json}")
    return verdict(goals(translation, registers, calls), options.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
