"""The same kernel has the same texts and names in every process (SPEC X1, X4)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from metile_mlx.compiler import compile_kernel
from metile_mlx.context import Context
from metile_mlx.ir.printer import print_func
from metile_mlx.target import CPU, METAL
from tests.support.samples import SAMPLES

ROOT = Path(__file__).resolve().parent.parent


def texts() -> dict[str, list[str]]:
    """Everything that is written of each sample: IR, names, headers and bodies."""
    found = {}
    for name, sample in SAMPLES.items():
        func = sample.func()
        found[name] = [print_func(func)]
        for target in (METAL, CPU):
            for bits in (32, 64):
                masked = sample.masked if target is METAL else frozenset[str]()
                ctx = Context(target, index_bits=bits, masked_outputs=masked)
                source = compile_kernel(func, ctx)
                found[name] += [source.name, source.header, source.body]
                found[name].append(repr((source.inputs, source.outputs)))
                report = ctx.report.to_dict()
                del report["timings"]
                found[name].append(json.dumps(report))
    return found


@pytest.mark.parametrize("seed", ["0", "4242"])
def test_two_processes_with_two_hash_seeds_write_the_same(seed: str) -> None:
    script = "import json; from tests.test_determinism import texts; print(json.dumps(texts()))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == texts()


def test_translating_again_writes_the_same() -> None:
    assert texts() == texts()


def test_what_differs_has_another_name() -> None:
    """F01: names of all samples, targets and widths, by the text they stand for."""
    by_name: dict[str, str] = {}
    for written in texts().values():
        for name, header, body in zip(written[1::5], written[2::5], written[3::5], strict=True):
            assert by_name.setdefault(name, header + body) == header + body
    assert len(by_name) >= 2 * len(SAMPLES)
    assert len(set(by_name.values())) == len(by_name)
