"""A listed set of kernels on an NVIDIA GPU through MLX: `python -m tests --device cuda`.

Four sources: kernels with data and right results (`support/cuda_cases.py`, `cuda_words.py`), the
checks that the kernel library declares, and the suite's own tests that take the name of a backend.
MLX compiles each kernel when it is evaluated, so several processes share the list.

Prints a line per module and what failed or was not run; `--json` writes all of it. `--backend
emulator` runs the same list on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_mlx import doctor, dtypes, emulator, selftest
from metile_mlx.backends import BACKENDS
from metile_mlx.runtime import cuda, metal
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.target import MAX_BUFFERS
from tests.emit import operations as ops
from tests.emit import test_operations as arithmetic
from tests.end_to_end import test_sums as sums
from tests.support import cuda_cases, cuda_words, simulate
from tests.support.arithmetic import NUMPY, to_bf16
from tests.support.cuda_cases import Case
from tests.support.public import DTYPES, same_bits
from tests.support.simulated_metal import to_mlx, to_numpy

ROOT = Path(__file__).resolve().parent.parent
LARGEST = 400
FLOATS = ("f32", "f16", "bf16")
# Parameter sets taken of each test of the suite.
PER_TEST = 2
# What the list takes of the kernel library: all checks, or so many. `--library` runs all of it.
LIBRARY = {"mechanisms": 1000, "permutations": 3, "rmsnorm": 3}
SUITE = ("test_arrays", "test_graphs", "test_sums")
# Where a test is for some backends only, this is one whose place a GPU can take.
BACKEND = "reference"
# These look into one backend, or need a fixture.
_FOREIGN = ('"metal"', '"cpu"', "counts:", "gpu:", "monkeypatch", "capsys", "mx.vmap", "mx.jvp")


@dataclass
class Outcome:
    """What became of one entry: `pass`, `fail` or `not run`."""

    module: str
    name: str
    status: str
    seconds: float
    message: str


@dataclass(frozen=True)
class Entry:
    """One thing to run; `run` returns what is wrong, and an empty text where nothing is."""

    module: str
    name: str
    run: Callable[[], str]


def outputs_of(case: Case, backend: str) -> list[mx.array]:
    """A kernel with data, registered as the backend does, launched once."""
    if backend == "cuda":
        source = cuda.named(case.source)
        kernel: metal.MetalKernel = cuda.build(source, mx.fast.cuda_kernel)
    else:
        source = case.source
        kernel = metal.build(source, emulator.metal_kernel)
    kinds = mlx_dtypes()
    made = kernel.launch(
        [to_mlx(x, kinds[a.dtype]) for x, a in zip(case.inputs, source.inputs, strict=True)],
        [shape for shape, _ in case.outputs],
        [kinds[dtype] for _, dtype in case.outputs],
        case.grid,
        [metal.ZERO if case.zero else metal.UNINITIALISED] * len(case.outputs),
    )
    mx.eval(*made)
    return made


def launched(case: Case, backend: str) -> str:
    """What is wrong with the outputs of a kernel with data."""
    made = outputs_of(case, backend)
    wrong = [cuda_cases.difference(case, i, to_numpy(x)) for i, x in enumerate(made)]
    return "; ".join(filter(None, wrong))


def checked(module: str, name: str, make: Any, backend: str) -> str:
    """A check of the kernel library."""
    outcome = selftest._checked(module, name, make, backend)
    return "" if outcome.status == selftest.PASS else f"{outcome.status}: {outcome.message}"


def called(function: Callable[..., Any], arguments: dict[str, Any], backend: str) -> str:
    """A test of the suite, which asserts."""
    function(**arguments, backend=backend)
    return ""


def computed(name: str, backend: str) -> str:
    """Every operation on a dtype, or its casts, by the suite's own bounds."""
    func = arithmetic.KERNELS[name]
    is_cast = name.startswith("casts_")
    dtype = dtypes.BY_NAME[name.rpartition("_")[2]]
    given = ops.operands(dtype, seed=int(is_cast))
    if is_cast and dtype.is_float:
        # Only what fits an integer has a defined conversion.
        fits = np.random.default_rng(2).integers(0, 120, ops.SIZE) + np.float32(0.5)
        given["x"] = to_bf16(fits) if dtype == dtypes.bf16 else fits.astype(NUMPY[dtype])
    arrays = arithmetic.arrays_of(func, given)
    expected, _ = simulate.run(func, arrays, {}, (ops.PROGRAMS,))
    source = arithmetic.SOURCES[f"msl_{name}"]
    case = Case(
        "operations",
        name,
        source,
        tuple(arrays[a.param] for a in source.inputs),
        tuple(((ops.SIZE,), a.dtype) for a in source.outputs),
        tuple(expected[a.param] for a in source.outputs),
        None,
        (ops.PROGRAMS, 1, 1),
        False,
    )
    if backend != "cuda" and metal.buffer_count(source) > MAX_BUFFERS:
        return f"{selftest.NOT_RUN}: more buffers than Metal has"
    made = outputs_of(case, backend)
    got = {a.param: to_numpy(x) for a, x in zip(source.outputs, made, strict=True)}
    for output in expected:
        arithmetic.check(func, got, expected, output)
    return ""


def shifted(dtype: str, backend: str) -> str:
    """Rows that begin one element past an aligned address: the same bits as from an aligned one."""
    base = mx.random.normal((1 + 3 * 1024,), key=mx.random.key(2)).astype(DTYPES[dtype])
    w = mx.random.normal((1024,), key=mx.random.key(3)).astype(DTYPES[dtype])
    view, copy = base[1:].reshape(3, 1024), mx.array(np.array(base[1:].astype(mx.float32)))
    aligned = copy.astype(DTYPES[dtype]).reshape(3, 1024)
    found = []
    for x in (view, aligned):
        owner = sums.layout(1024, 4, adjacent=True)
        out = metile.empty(x.shape, x.dtype)
        norm = sums.rmsnorm[(3,)]
        found.append(norm(x, w, out, 1e-5, N=1024, BLOCK=1024, LAYOUT=owner, backend=backend))
    return "" if same_bits(*found) else "a view and its copy give different bits"


def suite(backend: str) -> Iterator[Entry]:
    """The tests that take the name of a backend and nothing else but parameters."""
    for module in SUITE:
        found = importlib.import_module(f"tests.end_to_end.{module}")
        for name, function in vars(found).items():
            if not name.startswith("test_") or not callable(function):
                continue
            text = inspect.getsource(function)
            if "backend: str" not in text or any(word in text for word in _FOREIGN):
                continue
            sets = [a for a in parameter_sets(function) if a.pop("backend", BACKEND) == BACKEND]
            step = max(1, len(sets) // PER_TEST)
            for arguments in sets[::step][:PER_TEST]:
                shown = ", ".join(f"{k}={v}" for k, v in arguments.items())
                run = partial(called, function, arguments, backend)
                yield Entry(module, f"{name}({shown})"[:120], run)


def parameter_sets(function: Any) -> Iterator[dict[str, Any]]:
    """What pytest's `parametrize` marks of a test stand for."""
    axes = []
    for mark in getattr(function, "pytestmark", []):
        if mark.name == "parametrize":
            names = mark.args[0]
            names = [n.strip() for n in names.split(",")] if isinstance(names, str) else names
            axes.append([_named(names, value) for value in mark.args[1]])
    for chosen in itertools.product(*axes):
        yield {name: value for part in chosen for name, value in part.items()}


def _named(names: Sequence[str], value: Any) -> dict[str, Any]:
    value = getattr(value, "values", value) if type(value).__name__ == "ParameterSet" else value
    if len(names) == 1:
        is_set = isinstance(value, tuple) and len(value) == 1
        return {names[0]: value[0] if is_set else value}
    return dict(zip(names, value, strict=True))


def library(backend: str) -> dict[str, list[Entry]]:
    """The checks that the modules of the kernel library declare."""
    # Its installed name; in a source tree it is the folder `kernels`.
    sys.modules.setdefault(selftest.LIBRARY, importlib.import_module("kernels"))
    found = {}
    for module, declared in selftest.modules(selftest.LIBRARY):
        if isinstance(declared, selftest.Outcome):
            raise RuntimeError(f"{module}: {declared.message}")
        found[module] = [
            Entry(f"library {module}", name, partial(checked, module, name, make, backend))
            for name, make in declared
        ]
    return found


def entries(backend: str = "cuda") -> list[Entry]:
    """The list, the same in every process."""
    # Right results are made where the suite makes them.
    with mx.stream(mx.cpu):
        cases = [*cuda_words.words(), *cuda_cases.all_cases()]
    found = [Entry(case.module, case.name, partial(launched, case, backend)) for case in cases]
    found += [Entry("views", dtype, partial(shifted, dtype, backend)) for dtype in FLOATS]
    checks = library(backend)
    for module, most in LIBRARY.items():
        found += checks[module][:: -(-len(checks[module]) // most)]
    found += [Entry("operations", n, partial(computed, n, backend)) for n in arithmetic.KERNELS]
    found += suite(backend)
    if len(found) > LARGEST:
        raise RuntimeError(f"{len(found)} entries; at most {LARGEST} are run")
    return found


def candidates(options: argparse.Namespace) -> list[Entry]:
    """The list, or the library's checks."""
    if options.of_library:
        return [entry for checks in library(options.backend).values() for entry in checks]
    return entries(options.backend)


def run(chosen: Sequence[Entry]) -> list[Outcome]:
    """All of them, whatever they do."""
    outcomes = []
    for entry in chosen:
        start = time.perf_counter()
        try:
            message = entry.run()
        except Exception:
            message = traceback.format_exc(limit=-4)
        status = "fail" if message else "pass"
        if message.startswith(selftest.NOT_RUN):
            status = selftest.NOT_RUN
        seconds = time.perf_counter() - start
        outcomes.append(Outcome(entry.module, entry.name, status, round(seconds, 3), message))
    return outcomes


def share(options: argparse.Namespace, number: int, folder: str) -> subprocess.Popen[bytes]:
    """A process that runs every so many-th entry."""
    command = [sys.executable, "-m", "tests.device_cuda", "--backend", options.backend]
    command += ["--share", f"{number}/{options.workers}", "--json", f"{folder}/{number}.json"]
    if options.only:
        command += ["--only", options.only]
    if options.of_library:
        command.append("--library")
    return subprocess.Popen(command, cwd=ROOT)


def collect(options: argparse.Namespace) -> tuple[list[Outcome], list[str]]:
    """The outcomes of all processes, and what became of those that died."""
    outcomes, lost = [], []
    with tempfile.TemporaryDirectory() as folder:
        processes = [share(options, number, folder) for number in range(options.workers)]
        for number, process in enumerate(processes):
            code = process.wait()
            path = Path(folder, f"{number}.json")
            if path.is_file():
                outcomes += [Outcome(**one) for one in json.loads(path.read_text())["outcomes"]]
            else:
                lost.append(f"process {number} of {options.workers} ended with {code}")
    return outcomes, lost


def summary(outcomes: Sequence[Outcome], lost: Sequence[str], seconds: float) -> dict[str, Any]:
    """What `--json` writes."""
    modules: dict[str, dict[str, float]] = {}
    for one in outcomes:
        row = modules.setdefault(one.module, {"pass": 0, "fail": 0, "not run": 0, "seconds": 0.0})
        row[one.status] += 1
        row["seconds"] = round(row["seconds"] + one.seconds, 2)
    return {
        "format": 1,
        "ok": bool(outcomes) and not lost and all(o.status != "fail" for o in outcomes),
        "device": {k: str(v) for k, v in mx.device_info().items()},
        "versions": dict(doctor.versions()),
        "seconds": round(seconds, 1),
        "lost": list(lost),
        "modules": modules,
        "outcomes": [asdict(one) for one in outcomes],
    }


def show(report: dict[str, Any]) -> None:
    """The summary as text."""
    for one in report["outcomes"]:
        if one["status"] != "pass":
            print(f"{one['status']}: {one['module']}: {one['name']}\n  {one['message']}")
    print(f"{'module':<24}{'pass':>6}{'fail':>6}{'not run':>9}{'seconds':>9}")
    for name, row in report["modules"].items():
        counts = f"{row['pass']:>6}{row['fail']:>6}{row['not run']:>9}"
        print(f"{name:<24}{counts}{row['seconds']:>9.1f}")
    for line in report["lost"]:
        print("LOST:", line)
    total = len(report["outcomes"])
    print(f"{'ok' if report['ok'] else 'FAILED'}: {total} entries in {report['seconds']} s")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests --device cuda", description=__doc__)
    parser.add_argument("--backend", choices=("cuda", "emulator"), default="cuda")
    parser.add_argument("--json", type=Path, help="where to write the findings")
    parser.add_argument("--only", help="entries whose module and name hold this text")
    parser.add_argument(
        "--library",
        dest="of_library",
        action="store_true",
        help="every check of the kernel library instead",
    )
    parser.add_argument("--list", action="store_true", help="print the list and run nothing")
    parser.add_argument("--share", help=argparse.SUPPRESS)
    parser.add_argument("--workers", type=int, default=max(1, min(12, (os.cpu_count() or 2) - 2)))
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    reason = BACKENDS[options.backend].available()
    if reason is not None and not options.list:
        print(f"not run: {reason}")
        return 2
    start = time.perf_counter()
    if options.share is None and not options.list:
        outcomes, lost = collect(options)
        report = summary(outcomes, lost, time.perf_counter() - start)
        if options.json:
            options.json.write_text(json.dumps(report, indent=2))
        show(report)
        return int(not report["ok"])
    chosen = [e for e in candidates(options) if (options.only or "") in f"{e.module} {e.name}"]
    if options.list:
        print("\n".join(f"{entry.module}: {entry.name}" for entry in chosen))
        return 0
    number, count = map(int, options.share.split("/"))
    outcomes = run(chosen[number::count])
    options.json.write_text(json.dumps({"outcomes": [asdict(one) for one in outcomes]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
