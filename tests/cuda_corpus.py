"""Writes kernels for `tests/cuda_sanitizer.py`: compiled for one GPU, with data and right results.

    python -m tests.cuda_corpus build/cuda-sanitizer

Needs nvcc and no GPU. The folder holds `<name>_<k>.cubin`, `<name>.npz` and `<name>.json` for two
names: `kernels`, the corpus, and `planted`, texts that lack one barrier, which a race checker must
see.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_mlx.runtime import cuda_compile
from tests.end_to_end import test_conversions_run as conversions
from tests.end_to_end import test_lanes as lanes
from tests.end_to_end import test_loops as loops
from tests.end_to_end import test_sums as sums
from tests.support import cuda_cases, mutate
from tests.support.arithmetic import NUMPY
from tests.support.cuda_cases import Case

# More in one unit, and ptxas 13.0 crashes on the lines they come from.
BATCH = 50


def without_barrier(case: Case, number: int) -> Case:
    """The case with one barrier of its text left out."""
    source = mutate.without_barrier(case.source, number)
    return replace(case, name=f"{case.name} without barrier {number}", source=source)


def planted() -> list[Case]:
    """Each kind of barrier left out once: publish and release, of exchanges and of sums in loops.

    A release orders something only where the same memory is written again: neither the only one of
    the mask's scratch (number 1) nor the last of the kernel is a fault to leave out. Of barriers
    that a kernel declares itself, the one of `tree` before its store orders nothing there.
    """
    x = mx.zeros((3, 128))
    dispatch = conversions.chained[(3,)].prepare(
        x,
        metile.empty(x.shape, x.dtype),
        3,
        SIZE=128,
        A=metile.ThreadLayout((3, 4, 5, 6, 0, 1, 2)),
        B=metile.ThreadLayout((6, 5, 4, 3, 2, 1, 0)),
        backend="reference",
        schedule=metile.Schedule(conversion="scratch"),
    )
    case = cuda_cases.of_dispatch("planted", "exchanges", dispatch)
    last = case.source.body.count(mutate.BARRIER) - 1
    found = [without_barrier(case, number) for number in range(last) if number != 1]
    x, y = mx.zeros((3, 1024)), metile.empty((3,), mx.float32)
    owner = sums.layout(1024, 4)
    dispatch = sums.totals[(3,)].prepare(x, y, N=1024, LAYOUT=owner, backend="reference")
    found.append(without_barrier(cuda_cases.of_dispatch("planted", "sum", dispatch), 0))
    x = mx.zeros((3, 300))
    dispatch = loops.summed[3].prepare(x, y, 300, BLOCK=64, backend="reference")
    case = cuda_cases.of_dispatch("planted", "sum in a loop", dispatch)
    found += [without_barrier(case, number) for number in range(2)]
    dispatch = lanes.tree[3].prepare(mx.zeros((3, 120)), y, 7, BLOCK=128, backend="reference")
    case = cuda_cases.of_dispatch("planted", "shared memory", dispatch)
    found += [without_barrier(case, number) for number in (0, 2)]
    for schedule in ("one slot", "two slots"):
        dispatch = cuda_cases.product(schedule, mx.float32, 33, 20, 40)
        case = cuda_cases.of_dispatch("planted", f"product, {schedule}", dispatch)
        found += [without_barrier(case, number) for number in range(2)]
    return found


def write(folder: Path, name: str, cases: Sequence[Case]) -> None:
    """The compiled kernels, their launches and their arrays."""
    safe = [case for case in cases if case.source.math_mode == "safe"]
    assert len(safe) == len(cases)
    files, names = [], []
    for start in range(0, len(cases), BATCH):
        sources = [case.source for case in cases[start : start + BATCH]]
        text = folder / f"{name}_{start}.cu"
        text.write_text(cuda_compile.batch_text(sources), encoding="ascii")
        cubin = text.with_suffix(".cubin")
        command = [str(cuda_compile.toolkit()), "-cubin", f"-arch={cuda_compile.ARCHITECTURE}"]
        command += ["-std=c++17", "-w", "-lineinfo", str(text), "-o", str(cubin)]
        subprocess.run(command, check=True)
        names += cuda_compile.symbols(cubin, sources)
        files += [cubin.name] * len(sources)
    arrays: dict[str, Any] = {}
    launches = []
    for number, case in enumerate(cases):
        for position, data in enumerate(case.inputs):
            arrays[f"{number}_in{position}"] = data
        for position, right in enumerate(case.expected):
            if right is not None:
                arrays[f"{number}_out{position}"] = right
        launches.append(
            {
                "module": case.module,
                "name": case.name,
                "file": files[number],
                "symbol": names[number],
                "grid": case.grid,
                "threads": case.source.threads,
                "zero": case.zero,
                "inputs": len(case.inputs),
                "outputs": [
                    {
                        "shape": shape,
                        "type": np.dtype(NUMPY[dtype]).name,
                        "bf16": dtype.name == "bf16",
                    }
                    for shape, dtype in case.outputs
                ],
                "tolerance": case.tolerance,
            }
        )
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    (folder / f"{name}.json").write_text(json.dumps(launches), encoding="utf-8")


def main(argv: Sequence[str]) -> int:
    folder = Path(argv[0] if argv else "build/cuda-sanitizer")
    folder.mkdir(parents=True, exist_ok=True)
    corpus, faulty = cuda_cases.corpus(), planted()
    write(folder, "kernels", corpus)
    write(folder, "planted", faulty)
    print(f"{len(corpus)} kernels and {len(faulty)} planted faults in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
