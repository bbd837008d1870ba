"""`benchmarks.rms_norm`: its check can fail, and its files say what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from benchmarks import optional, rms_norm
from benchmarks.harness import Arm, WrongResult, summarise
from benchmarks.rms_norm import COPY, FAST, GRAPH, OURS, Case, Plan

PLAN = Plan((40,), (3,), (("striped", 2), ("adjacent", 2), ("striped", 32)), 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three small cases, short runs, and an allocator left as it is."""
    monkeypatch.setattr(rms_norm, "QUICK", PLAN)
    monkeypatch.setattr(rms_norm, "SECONDS_PER_RUN", 1e-5)
    monkeypatch.setattr(rms_norm, "keep_freed_memory", lambda: "untouched")
    found = {"doctor": {"missing": "not asked"}, "system": "test", "cores": 1}
    monkeypatch.setattr(rms_norm, "environment", lambda: dict(found))


def arrays(case: Case) -> tuple[mx.array, mx.array]:
    x = mx.random.normal((case.rows, case.width), key=mx.random.key(0))
    w = mx.random.uniform(0.5, 2, (case.width,), key=mx.random.key(1))
    return tuple(a.astype(rms_norm.DTYPES[case.dtype]) for a in (x, w))


@pytest.mark.parametrize("dtype", rms_norm.DTYPES)
def test_every_arm_is_right_and_a_spoiled_one_is_not(dtype: str) -> None:
    case = Case(dtype, 40, 3)
    x, w = arrays(case)
    check = rms_norm.checker(case, x, w)
    work = rms_norm.works(case, x, w, PLAN)
    assert set(work) == {OURS, FAST, GRAPH, COPY, "striped 2", "adjacent 2"}
    for name, one in work.items():
        arm = Arm(name, one)
        assert check(arm, [one()]) is None
        assert "relative error" in str(check(arm, [one() * 1.05]))
        assert "shape" in str(check(arm, [one()[:1]]))


def test_a_wrong_arm_stops_the_run(monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    monkeypatch.setattr(rms_norm, "f32_graph", lambda x, w: x)
    with pytest.raises(WrongResult, match="f32 graph"):
        rms_norm.run_case(Case("f32", 40, 3), PLAN)
    assert rms_norm.main(["--quick"]) == 1


def test_files_say_what_was_measured(
    small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, picture = tmp_path / "out.json", tmp_path / "out.png"
    code = rms_norm.main(["--quick", "--output-json", str(target), "--chart", str(picture)])
    assert code == 0
    found: dict[str, Any] = json.loads(target.read_text())
    assert found["benchmark"] == "rms_norm"
    assert found["environment"]["allocator"] == "untouched"
    assert [(c["dtype"], c["width"], c["rows"]) for c in found["cases"]] == [
        (dtype, 40, 3) for dtype in ("f32", "f16", "bf16")
    ]
    for case in found["cases"]:
        assert case["arms"][OURS]["median_s"] > 0
        assert set(case["times_as_fast_as"]) == {FAST, GRAPH, COPY}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "f16 3 x 40" in capsys.readouterr().out


def test_goals_are_those_of_4096_rows_and_can_be_missed() -> None:
    times = {OURS: summarise([1.0]), FAST: summarise([5.0])}
    measured = [(Case(dtype, 1009, 4096), times) for dtype in rms_norm.DTYPES]
    measured.append((Case("f32", 256, 4096), times))
    assert [goal.is_met for goal in rms_norm.goals(measured)] == [True, False, False]


def test_no_case_is_larger_than_64_mib() -> None:
    cases = rms_norm.FULL.cases()
    assert max(case.bytes for case in cases) <= 1 << 26
    assert {case.width for case in cases} == {256, 1009, 1024, 2048, 4096, 8192}
    assert len(cases) == len(set(cases))


def test_without_matplotlib_a_chart_is_a_message(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(optional, "Figure", None)
    assert rms_norm.main(["--quick", "--chart", str(tmp_path / "a.png")]) == 1
    assert "pip install 'metile-mlx[bench]'" in capsys.readouterr().err
