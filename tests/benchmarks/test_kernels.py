"""`benchmarks.kernels`: its checks can fail, goals say what was promised, files what ran."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from benchmarks import kernels, kernels_cases
from benchmarks.harness import WrongResult, summarise
from benchmarks.kernels import GRAPH, MLX, OURS, Measured, Plan
from benchmarks.kernels_cases import OPERATIONS, numbers, problem, results
from benchmarks.rms_norm_arms import COPY, DTYPES, Case
from tests.support.profile import count

NORM = OPERATIONS["rms_norm"]


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels have tests of their own; here nothing is compiled."""
    monkeypatch.setenv("METILE_BACKEND", "reference")


def spoiled(x: mx.array) -> mx.array:
    """One element that is far from what it was, the last."""
    made = np.array(x.astype(mx.float32))
    made.reshape(-1)[-1] += 20 * (1 + np.abs(made).max())
    return mx.array(made).astype(x.dtype)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_arm_is_right_and_a_spoiled_one_is_not(name: str) -> None:
    operation = OPERATIONS[name]
    for dtype in ("f16", "bf16", "f32")[: count(ci=1, full=3)]:
        case = Case(dtype, 40, 7)
        inputs = operation.made(case)
        exact = operation.exact(*map(numbers, inputs))
        for arm in (operation.ours, operation.mlx, operation.compiled):
            made = results(arm(*inputs))
            assert operation.problem(case, made, exact, operation.mlx_steps) is None
            for at, one in enumerate(made):
                wrong = [*made[:at], spoiled(one), *made[at + 1 :]]
                assert operation.problem(case, wrong, exact, operation.steps) is not None
        assert (
            operation.problem(case, results(operation.ours(*inputs)), exact, operation.steps)
            is None
        )


def test_problems_of_form_are_named() -> None:
    case = Case("f32", 40, 7)
    inputs = NORM.made(case)
    exact = NORM.exact(*map(numbers, inputs))
    made = NORM.ours(*inputs)
    assert problem(case, (made, made), exact, 4) == "f32 7 x 40: 2 outputs, expected 1"
    assert "has shape (6, 40), expected (7, 40)" in (problem(case, made[1:], exact, 4) or "")
    off = problem(case, mx.full(made.shape, mx.nan), exact, 4)
    assert off is not None
    assert off.endswith("units off, allowed are 4")


def test_the_table_of_erf_is_exact() -> None:
    x = np.concatenate([np.linspace(-7, 7, 999), [0.0, 5.9999, -6.0]])
    exact = [kernels_cases.math.erf(value) for value in x]
    assert np.abs(kernels_cases._erf(x) - exact).max() < 1e-12


def measured(ours: float, mlx: float, graph: float, copy: float, share: float = 1) -> Measured:
    times = {OURS: ours, MLX: mlx, GRAPH: graph, COPY: copy}
    return Measured(
        "f", Case("f32", 8, 8), {n: summarise([t]) for n, t in times.items()}, int(512 * share), 512
    )


def test_goals_are_a_share_of_the_faster_or_what_memory_allows() -> None:
    """Issue 7: a third of MLX's time in f32, against its op and its compiled graph."""
    far = measured(1.0, 4.0, 2.0, 0.1).goal()
    assert (far.value, far.limit, far.is_met) == (0.5, 1 / 3, False)
    assert far.name == "f f32 8 x 8: time / time of mx.compile"
    assert measured(1.0, 3.5, 4.0, 0.1).goal().is_met
    near = measured(1.0, 2.0, 4.0, 0.9)
    assert near.of_memory == pytest.approx(0.9)
    assert near.goal().limit == pytest.approx(0.5625)
    assert near.goal().name.endswith("(memory's limit)")
    # It reads and writes half of what the copy does.
    assert measured(1.0, 2.0, 4.0, 0.9, 0.5).of_memory == pytest.approx(0.45)
    assert not measured(1.0, 2.0, 4.0, 0.9, 0.5).goal().is_met


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small cases, short runs, and an allocator left as it is."""
    monkeypatch.setattr(kernels, "QUICK", Plan((40,), 3, 1))
    monkeypatch.setattr(kernels, "SECONDS_PER_RUN", 1e-5)
    monkeypatch.setattr(kernels, "keep_freed_memory", lambda: "untouched")
    found = {"doctor": {"missing": "not asked"}, "system": "test", "cores": 1}
    found.update(date="today", revision="this")
    monkeypatch.setattr(kernels, "environment", lambda: dict(found))


def test_files_say_what_was_measured(
    small: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, drawn = tmp_path / "made.json", tmp_path / "made.svg"
    argv = ["--quick", "--only", "rms_norm", "--output-json", str(made), "--chart", str(drawn)]
    assert kernels.main(argv) == 0
    content: dict[str, Any] = json.loads(made.read_text(encoding="utf-8"))
    assert [(c["function"], c["dtype"]) for c in content["cases"]] == [
        ("rms_norm", dtype) for dtype in DTYPES
    ]
    assert set(content["cases"][0]["arms"]) == {OURS, MLX, GRAPH, COPY}
    assert len(content["goals"]) == 3
    assert content["environment"]["allocator"] == "untouched"
    assert drawn.stat().st_size > 1000
    shown = capsys.readouterr().out
    assert "rms_norm bf16 3 x 40" in shown
    assert shown.count("time / time of") == 3


def test_a_run_in_pieces_is_one_file(small: None, tmp_path: Path) -> None:
    """A case that is measured again takes the place of the earlier one; the others stay."""
    path = tmp_path / "made.json"
    for only, widths, dtypes in (
        ("top1", "40", "bf16"), ("rms_norm", "33,2", "f16,f32"), ("top1", "40", "bf16"),
    ):  # fmt: skip
        argv = ["--quick", "--only", only, "--widths", widths, "--dtypes", dtypes]
        argv += ["--output-json", str(path), "--add"]
        before = path.read_text(encoding="utf-8") if path.exists() else '{"cases": []}'
        assert kernels.main(argv) == 0
    earlier, content = (json.loads(t)["cases"] for t in (before, path.read_text(encoding="utf-8")))
    assert [(c["function"], c["dtype"], c["width"]) for c in content] == [
        *(("rms_norm", dtype, width) for dtype in ("f32", "f16") for width in (2, 33)),
        ("top1", "bf16", 40),
    ]
    assert content[:4] == earlier[:4]
    assert content[4] != earlier[4]
    assert [Measured.from_dict(case).to_dict() for case in content] == content


def test_a_wrong_arm_ends_the_run_before_anything_is_timed(
    small: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = replace(NORM, mlx=lambda x, w: spoiled(NORM.mlx(x, w)))
    monkeypatch.setitem(kernels.OPERATIONS, "rms_norm", wrong)
    with pytest.raises(WrongResult, match="mlx: rms_norm: f32 3 x 40: output 0 is"):
        kernels.run_case("rms_norm", wrong, Case("f32", 40, 3), 1)
    assert kernels.main(["--quick", "--only", "rms_norm"]) == 1
    captured = capsys.readouterr()
    assert "output 0 is" in captured.err
    assert "PASS" not in captured.out


def test_only_known_functions_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        kernels.parse(["--only", "rms_norm,nothing"])
    assert "--only nothing: expected some of rms_norm" in capsys.readouterr().err
    assert kernels.parse(["--only", "rms_norm"]).names == ["rms_norm"]


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--widths", "64,x"], "--widths 64,x: expected numbers of 2 and more"),
        (["--widths", "1"], "--widths 1: expected numbers of 2 and more"),
        (["--dtypes", "f32,f64"], "--dtypes f32,f64: expected some of f32,f16,bf16"),
        (["--add"], "--add: expected --output-json"),
    ],
)
def test_options_that_mean_nothing(
    argv: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        kernels.parse(argv)
    assert part in capsys.readouterr().err
