"""`benchmarks.rms_norm`: its check can fail, and its files say what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from benchmarks import optional, rms_norm, rms_norm_arms
from benchmarks.harness import Arm, WrongResult, summarise
from benchmarks.rms_norm import Plan
from benchmarks.rms_norm_arms import (
    COPY,
    DTYPES,
    FAST,
    GRAPH,
    NEGATIVE,
    OURS,
    TORCH_COPY,
    TRITON,
    Case,
    Layout,
    MlxSide,
    checker,
    thread_layout,
)

LAYOUTS = (
    Layout("striped", 2),
    Layout("adjacent", 2, 1),
    Layout("striped", 32),
    Layout("striped", 2, rows=4),
)
PLAN = Plan((40,), (3,), LAYOUTS, 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three small cases, short runs, and an allocator left as it is."""
    monkeypatch.setattr(rms_norm, "QUICK", PLAN)
    monkeypatch.setattr(rms_norm, "SECONDS_PER_RUN", 1e-5)
    monkeypatch.setattr(rms_norm, "keep_freed_memory", lambda: "untouched")
    found = {"doctor": {"missing": "not asked"}, "system": "test", "cores": 1}
    monkeypatch.setattr(rms_norm, "environment", lambda: dict(found))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_arm_is_right_and_a_spoiled_one_is_not(dtype: str) -> None:
    case = Case(dtype, 40, 3)
    side = MlxSide(case, LAYOUTS, is_gpu=True)
    check = checker(case, side)
    work = side.works()
    ours = {"striped 2", "adjacent 2 x1", "4 rows striped 2"}
    assert set(work) == {OURS, FAST, GRAPH, COPY, NEGATIVE, *ours}
    for name, one in work.items():
        arm = Arm(name, one)
        assert check(arm, [one()]) is None
        assert "relative error" in str(check(arm, [one() * 1.05]))
        assert "shape" in str(check(arm, [one()[:1]]))


def test_of_many_rows_a_sample_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first and the last, of the input and of each result alike."""
    monkeypatch.setattr(rms_norm_arms, "MOST_CHECKED", 5)
    case = Case("f32", 40, 101)
    assert case.checked_rows() == [0, 25, 50, 75, 100]
    side = MlxSide(case, (), is_gpu=False)
    check, made = checker(case, side), side.works()[OURS]()
    assert check(Arm(OURS, list), [made]) is None
    made[100] = 0
    assert "relative error" in str(check(Arm(OURS, list), [made]))


def test_grouped_layouts_hold_16_bytes_of_neighbours() -> None:
    for dtype, near in (("f32", 4), ("f16", 8), ("bf16", 8)):
        held = thread_layout(Layout("grouped", 16), Case(dtype, 1024, 1))
        assert held is not None
        first = [held.logical_index(1, register) for register in range(16)]
        assert first[:near] == list(range(near, 2 * near))
        assert first[near] == near + near * held.thread_count
    assert thread_layout(Layout("grouped", 4), Case("f16", 1024, 1)) is None


def test_several_rows_have_threads_of_their_own() -> None:
    held = thread_layout(Layout("grouped", 8, rows=8), Case("f16", 256, 1))
    assert held is not None
    assert (held.size, held.thread_count) == (2048, 256)
    rows = {held.logical_index(thread, 7) // 256 for thread in range(32, 64)}
    assert rows == {1}
    assert thread_layout(Layout("grouped", 8, rows=16), Case("f16", 1024, 1)) is None


def test_on_a_gpu_the_graph_is_built_before_the_clock_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no arm is left out there, but those whose packages are missing."""
    plan = Plan((40,), (), LAYOUTS, 1, megabytes=1, operations=2)
    (case, *_) = plan.cases()
    assert case.rows == (1 << 20) // 160
    times = rms_norm.run_case(case, plan)
    assert set(times) >= {OURS, FAST, GRAPH, COPY, NEGATIVE, "striped 2"}
    built: list[object] = []
    arm = rms_norm._arm(
        "x", MlxSide(case, (), True), lambda: built.append(1) or mx.zeros(3), 2, True
    )
    (given,) = arm.given()
    assert len(given) == 2
    before = len(built)
    arm.run(given)
    assert len(built) == before


def test_goals_on_a_gpu_are_shares_of_other_arms() -> None:
    """Of every aligned width from 1024 on and of 1009; 256 has none."""
    times = {OURS: summarise([1.0])}
    times |= {FAST: summarise([2.0]), TORCH_COPY: summarise([0.92]), TRITON: summarise([0.96])}
    measured = [(Case("f16", width, 10), times) for width in (256, 1009, 1024, 8192)]
    goals = rms_norm.goals(measured)
    assert [goal.is_met for goal in goals] == [False, False, *[True, True, False] * 2]


def test_a_wrong_arm_stops_the_run(monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    monkeypatch.setattr(rms_norm_arms, "f32_graph", lambda x, w: x)
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
    measured = [(Case(dtype, 1009, 4096), times) for dtype in DTYPES]
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
