"""`benchmarks.compiler.staged_gemm`: its check can fail, and files say what was measured."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

import metile_mlx as metile
from benchmarks.compiler import products, staged_gemm, trees
from benchmarks.compiler.manifest import Effort
from benchmarks.compiler.products import Case, Plan
from benchmarks.harness import Arm

ROOT = Path(__file__).resolve().parent.parent.parent
PLAN = Plan(7, (Case("f16", 9, 40, 17), Case("f32", 16, 8, 0)), (16, 32, 8), Effort(2, 1, 1e-5))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small cases on any machine, and an allocator left as it is."""
    monkeypatch.setenv("METILE_BACKEND", "reference")
    monkeypatch.setattr(products, "load", lambda quick=False: PLAN)
    monkeypatch.setattr(staged_gemm, "keep_freed_memory", lambda: "untouched")
    found = {"doctor": {"missing": "not asked"}, "system": "test", "cores": 1}
    monkeypatch.setattr(staged_gemm, "environment", lambda root: dict(found))


def test_manifest_has_eight_cases_in_one_tile_size() -> None:
    for quick in (False, True):
        plan = products.load(quick)
        assert len(plan.cases) == 8
        assert plan.tile == (64, 64, 16)
    assert products.load().cases[3] == Case("f16", 500, 1000, 300)


def test_manifest_with_another_dtype_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(products.PATH.read_text().replace("[f16, f32]", "[i8]"))
    with pytest.raises(ValueError, match="dtypes are f16, bf16, f32"):
        products.load(path=path)


def test_a_result_that_is_off_is_found() -> None:
    given = products.operands(PLAN.cases[0], 1)
    check = products.checker(given)
    arm = Arm("arm", lambda: None)
    right = mx.matmul(given.left.astype(mx.float32), given.right.astype(mx.float32))
    assert check(arm, [right.astype(mx.float16)]) is None
    wrong = right + mx.where(mx.arange(40)[None] == 3, 0.02, 0.0)
    said = check(arm, [wrong.astype(mx.float16)])
    assert said is not None
    assert "the first at (0, 3)" in said
    assert "a result is" in (check(arm, [right]) or "")
    assert check(arm, []) == "0 results, expected 1"
    poisoned = mx.where(mx.arange(40)[None] == 5, mx.nan, right).astype(mx.float16)
    assert "(0, 5)" in (check(arm, [poisoned]) or "")


@pytest.mark.usefixtures("small")
def test_schedules_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.json"
    assert staged_gemm.main(["--output", str(path)]) == 0
    read = json.loads(path.read_text(encoding="utf-8"))
    assert read["geometric_means"].keys() == {"double/staged", "double/device", "double/mlx"}
    assert read["tile"] == [16, 32, 8]
    for case in read["cases"]:
        assert case["arms"].keys() == {"device", "staged", "double", "mlx"}
        assert case["pipelines"].keys() == {"device", "staged", "double"}
        assert all(arm["samples"] == 2 for arm in case["arms"].values())
    assert "geometric mean of double/staged" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_revisions_are_compared_in_one_process(tmp_path: Path) -> None:
    """The other tree's package runs beside ours, and leaves nothing of itself in sys.modules."""
    tree = tmp_path / "tree"
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "metile_mlx", tree / "metile_mlx", ignore=skipped)
    path = tmp_path / "out.json"
    assert staged_gemm.main(["--baseline-root", str(tree), "--output", str(path)]) == 0
    read = json.loads(path.read_text(encoding="utf-8"))
    assert read["cases"][0]["arms"].keys() == {"baseline", "current", "mlx"}
    assert [goal["name"] for goal in read["goals"]] == ["time of this revision / of the baseline"]
    assert sys.modules["metile_mlx"] is metile
    other = trees.package(tree)
    assert other is not metile
    assert other.Schedule is not metile.Schedule
    assert Path(str(other.__file__)).is_relative_to(tree)
    assert str(tree) not in sys.path


def test_tree_without_the_package_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert staged_gemm.main(["--baseline-root", str(tmp_path)]) == 2
    assert "there is no metile_mlx in it" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_a_wrong_arm_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = products.operands

    def other(case: Case, seed: int) -> products.Operands:
        made = given(case, seed)
        return replace(made, expected=made.expected + 1.0)

    monkeypatch.setattr(products, "operands", other)
    path = tmp_path / "out.json"
    assert staged_gemm.main(["--output", str(path)]) == 1
    assert not path.exists()
    assert "error: nothing is reported: device: f16 9x40x17" in capsys.readouterr().err
