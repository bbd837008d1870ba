"""`benchmarks.compiler.thread_layouts`: the check can fail, and the files say what was measured."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from benchmarks import optional
from benchmarks.compiler import manifest, thread_layouts, transposes
from benchmarks.compiler.manifest import Case, Effort, Manifest
from benchmarks.harness import Arm, summarise

ROOT = Path(__file__).resolve().parent.parent.parent
CASE = Case("f16", 8, 32, 3)
PLAN = Manifest(7, (CASE, Case("f32", 8, 8, 5)), Effort(2, 1, 1e-5))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small cases, and an allocator left as it is."""
    monkeypatch.setattr(manifest, "load", lambda quick=False: PLAN)
    monkeypatch.setattr(thread_layouts, "keep_freed_memory", lambda: "untouched")
    # The tree may have changes; asking another process for its findings takes a second.
    found = {"doctor": {"missing": "not asked"}, "system": "test", "cores": 1}
    monkeypatch.setattr(thread_layouts, "environment", lambda root: dict(found))


@pytest.mark.parametrize("case", manifest.load().cases[::2], ids=lambda case: case.name)
def test_layout_gives_each_thread_the_element_stored_at_its_place(case: Case) -> None:
    """L2: thread p of the layout owns what row-major place p of the transposed tile holds."""
    layout = transposes.transposing_layout(case.rows, case.columns)
    tile = np.arange(case.rows * case.columns).reshape(case.rows, case.columns)
    owned = [layout.logical_index(thread) for thread in range(layout.thread_count)]
    assert owned == tile.T.ravel().tolist()


@pytest.mark.parametrize("case", PLAN.cases, ids=lambda case: case.name)
def test_data_holds_signed_zeros_infinities_and_signalling_nans_in_each_tile(case: Case) -> None:
    bits = transposes.source_bits(case, 1)
    sign = 1 << (case.bits - 1)
    exponent = {16: 0x7C00, 32: 0x7F800000}[case.bits]
    quiet = {16: 0x0200, 32: 0x00400000}[case.bits]
    for tile in bits.reshape(case.batches, -1).astype(np.uint64):
        magnitude = tile & np.uint64(sign - 1)
        assert {0, sign, exponent, sign | exponent} <= set(tile.tolist())
        assert ((magnitude > exponent) & (tile & np.uint64(quiet) == 0)).any()
    assert (transposes.source_bits(case, 1) == bits).all()


def spoiled(change: Callable[[np.ndarray[Any, Any]], None]) -> str | None:
    """What the check says of a transpose whose bits were changed."""
    bits = transposes.source_bits(CASE, 1)
    result = np.ascontiguousarray(bits.transpose(0, 2, 1))
    change(result)
    made = mx.array(result).view(mx.float16)
    return transposes.checker(CASE, bits)(Arm("arm", lambda: None), [made])


def test_right_result_passes() -> None:
    assert spoiled(lambda result: None) is None


def test_lost_sign_of_a_zero_is_found() -> None:
    def lose(result: np.ndarray[Any, Any]) -> None:
        result[result == 0x8000] = 0

    assert "elements differ in their bits" in (spoiled(lose) or "")


def test_quieted_nan_is_found() -> None:
    def quieten(result: np.ndarray[Any, Any]) -> None:
        result[result == 0x7D55] |= 0x0200

    assert "of 768 elements differ in their bits" in (spoiled(quieten) or "")


def test_missing_results_wrong_shapes_and_dtypes_are_found() -> None:
    bits = transposes.source_bits(CASE, 1)
    check = transposes.checker(CASE, bits)
    arm = Arm("arm", lambda: None)
    right = mx.array(np.ascontiguousarray(bits.transpose(0, 2, 1)))
    assert check(arm, []) == "0 results, expected 1"
    assert "a result is" in (check(arm, [mx.array(bits).view(mx.float16)]) or "")
    assert "uint16" in (check(arm, [right]) or "")


@pytest.mark.usefixtures("small")
def test_run_writes_medians_ratios_and_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    assert thread_layouts.main(["--output-json", str(path)]) == 0
    read = json.loads(path.read_text(encoding="utf-8"))
    assert read["geometric_means"].keys() == {"ownership/scatter", "ownership/mlx"}
    assert [case["dtype"] for case in read["cases"]] == ["f16", "f32"]
    for case in read["cases"]:
        arms = case["arms"]
        assert arms.keys() == {"ownership", "scatter", "mlx"}
        expected = arms["ownership"]["median_s"] / arms["mlx"]["median_s"]
        assert case["ratios"]["ownership/mlx"] == pytest.approx(expected)
        assert all(arm["samples"] == 2 and arm["median_s"] > 0 for arm in arms.values())
    assert read["environment"]["allocator"] == "untouched"
    assert [goal["limit"] for goal in read["goals"]] == [1.0]
    assert "geometric mean of ownership time / mlx time" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_scatter_alone_has_no_ratio_and_no_goal(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert thread_layouts.main(["--scatter-only", "--strict", "--output-json", str(path)]) == 0
    read = json.loads(path.read_text(encoding="utf-8"))
    assert [list(case["arms"]) for case in read["cases"]] == [["scatter"], ["scatter"]]
    assert (read["geometric_means"], read["goals"]) == ({}, [])


@pytest.mark.usefixtures("small")
def test_wrong_arm_ends_the_run_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = transposes.as_array
    monkeypatch.setattr(transposes, "as_array", lambda case, bits: given(case, bits ^ 1))
    path = tmp_path / "out.json"
    assert thread_layouts.main(["--output-json", str(path)]) == 1
    assert not path.exists()
    assert "error: nothing is reported: ownership: f16 8x32 x 3:" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_backend_that_cannot_run_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """X6: a backend asked for by name fails clearly."""
    monkeypatch.setenv("METILE_BACKEND", "cuda")
    assert thread_layouts.main([]) == 1
    assert "backend 'cuda' can't run here" in capsys.readouterr().err


def test_missing_yaml_is_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(optional, "yaml", None)
    assert thread_layouts.main([]) == 2
    assert "pip install 'metile-mlx[bench]'" in capsys.readouterr().err


@pytest.mark.usefixtures("small")
def test_missed_target_fails_only_when_strict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"ownership": 2.0, "scatter": 1.0, "mlx": 1.0}
    slow = {name: summarise([seconds]) for name, seconds in times.items()}
    monkeypatch.setattr(thread_layouts, "run_case", lambda *_: (1, slow))
    assert thread_layouts.main([]) == 0
    assert thread_layouts.main(["--strict"]) == 1
    assert "MISS  ownership time / MLX time, geometric mean: 2.000" in capsys.readouterr().out


def test_tree_without_the_package_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert thread_layouts.main(["--metile-root", str(tmp_path)]) == 2
    assert "there is no metile_mlx in it" in capsys.readouterr().err


def test_package_of_another_tree_is_never_mistaken_for_the_one_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metile_mlx").mkdir()
    (tmp_path / "metile_mlx" / "__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ValueError, match="metile_mlx was imported from"):
        thread_layouts.transposes(tmp_path)


def test_another_tree_is_measured_in_its_own_process(tmp_path: Path) -> None:
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "metile_mlx", tmp_path / "metile_mlx", ignore=skipped)
    command = [sys.executable, "-m", "benchmarks.compiler.thread_layouts", "--quick"]
    command += ["--scatter-only", "--metile-root", str(tmp_path)]
    command += ["--output-json", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert read["environment"]["root"] == str(tmp_path)
    assert len(read["cases"]) == 16
