"""`benchmarks.matmul`: arms are checked, and figures missed are said to be missed."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from benchmarks import matmul
from benchmarks.compiler import products
from benchmarks.compiler.products import Case
from benchmarks.harness import Arm, summarise


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small size on any machine, and an allocator left as it is."""
    monkeypatch.setenv("METILE_BACKEND", "reference")
    monkeypatch.setattr(matmul, "SIZES", (24, 24))
    monkeypatch.setattr(matmul, "keep_freed_memory", lambda: "untouched")
    found = {"doctor": {"missing": "not asked"}, "system": "test", "cores": 1}
    monkeypatch.setattr(matmul, "environment", lambda root: dict(found))


@pytest.mark.usefixtures("small")
def test_every_dtype_is_measured_and_f32_against_a_tuned_blas_too(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert matmul.main(["--quick", "--output", str(path)]) == 0
    read = json.loads(path.read_text(encoding="utf-8"))
    arms = {case["dtype"]: set(case["arms"]) for case in read["cases"]}
    both = {"metile", "mx.matmul"}
    assert arms == {"f32": both | {"numpy"}, "f16": both, "bf16": both}
    assert len(read["goals"]) == len(read["cases"])


@pytest.mark.usefixtures("small")
def test_a_wrong_product_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metile, "matmul", lambda a, b: mx.matmul(a, b) + 1)
    assert matmul.main(["--quick"]) == 1
    assert "error: nothing is reported: metile: f32 24x24x24" in capsys.readouterr().err


def test_results_of_numpy_are_checked_too() -> None:
    given = products.operands(Case("f32", 3, 4, 5), 1)
    check = matmul.checker(given)
    arm = Arm("numpy", lambda: None)
    right = given.expected.astype(np.float32)
    assert check(arm, [right]) is None
    assert "elements are off" in (check(arm, [right + 1]) or "")


def test_half_of_a_tuned_blas_is_the_target_in_f32() -> None:
    times = {"metile": summarise([3.0]), "mx.matmul": summarise([9.0]), "numpy": summarise([1.0])}
    (goal,) = matmul.goals([(Case("f32", 8, 8, 8), {}, times)])
    assert (goal.value, goal.limit, goal.is_met) == (3.0, 2.0, False)
    (goal,) = matmul.goals([(Case("bf16", 8, 8, 8), {}, times)])
    assert goal.is_met
