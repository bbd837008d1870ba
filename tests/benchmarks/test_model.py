"""`benchmarks.model`: its checks can fail, and its file says what was measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import metile_mlx as metile
from benchmarks import model as benchmark
from benchmarks import optional
from benchmarks.architectures import NAMES, Size, build
from benchmarks.harness import WrongResult, summarise
from benchmarks.model import (
    FULL,
    MLX,
    OURS,
    SHARES,
    Measured,
    Plan,
    goals,
    other_step,
    other_tokens,
    run_case,
)

PLAN = Plan(Size(64, 32, 48, 1, 2, 1), ("llama",), ("f32",), 6, 1, 2, 1)


def test_a_case_times_every_phase_of_both_models() -> None:
    made = run_case("llama", "f32", PLAN)
    assert set(made.times) == {"prefill", "decode", "step"}
    assert all(set(times) == {MLX, OURS} for times in made.times.values())
    assert made.patch["swapped"] is True
    assert Measured.from_dict(made.to_dict()) == made
    assert made.label == "llama f32"


def test_a_patch_that_swaps_nothing_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metile, "patch", lambda *_, **__: metile.PatchReport())
    with pytest.raises(WrongResult, match="0 swaps"):
        run_case("llama", "f32", PLAN)


def test_a_spoiled_model_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report may say what it likes: tokens are compared."""
    good = metile.patch

    def spoiled(model: Any, *, sample: mx.array) -> Any:
        report = good(model, sample=sample)
        model.model.norm.weight = -model.model.norm.weight
        return report

    monkeypatch.setattr(metile, "patch", spoiled)
    with pytest.raises(WrongResult, match="tokens differ"):
        run_case("llama", "f32", PLAN)


def test_tokens_that_are_close_may_differ_and_others_not() -> None:
    expected = mx.array([[1.0, 1.001, 0.0], [3.0, 1.0, 2.0]])
    assert other_tokens(expected[:, ::-1][:, ::-1], expected, 0.0) is None
    swapped = mx.array([[1.001, 1.0, 0.0], [3.0, 1.0, 2.0]])
    assert other_tokens(swapped, expected, 0.01) is None
    assert other_tokens(swapped, expected, 1e-5) == "1 of 2 tokens differ"


def test_losses_and_gradients_are_compared() -> None:
    expected = (mx.array(2.0), {"w": mx.array([1.0, -4.0])})
    assert other_step(expected, expected, 1e-3) is None
    assert "the loss is 2.09" in str(other_step((mx.array(2.1), expected[1]), expected, 1e-3))
    bent = (expected[0], {"w": mx.array([1.1, -4.0])})
    assert "gradient of w" in str(other_step(bent, expected, 1e-3))
    lost = (expected[0], {"w": mx.array([float("nan"), -4.0])})
    assert "gradient of w" in str(other_step(lost, expected, 1e-3))


def test_a_gradient_of_half_the_size_is_wrong_in_every_dtype() -> None:
    expected = (mx.array(2.0), {"w": mx.array([1.0, -4.0])})
    half = (expected[0], {"w": expected[1]["w"] / 2})
    assert all("gradient of w" in str(other_step(half, expected, s)) for s in SHARES.values())
    assert set(SHARES) == set(FULL.dtypes)


def test_every_model_runs_in_the_full_size() -> None:
    """Phi turns a part of each head, an even number of values."""
    tokens = mx.array([[1, 2, 3]])
    for name in NAMES:
        small = replace(FULL.size, num_hidden_layers=2, vocab_size=16, intermediate_size=32)
        assert build(name, small, mx.float32)(tokens).shape == (1, 3, 16)


def test_the_goal_is_every_phase_of_a_llama() -> None:
    def timed(name: str, *ours: float) -> Measured:
        times = [{MLX: summarise([1.0]), OURS: summarise([each])} for each in ours]
        phases = dict(zip(benchmark.PHASES, times, strict=True))
        return Measured(name, "f32", metile.PatchReport().to_dict(), phases)

    made = goals([timed("llama", 1.01, 1.1, 0.9), timed("gemma", 9.0, 9.0, 9.0)])
    assert [goal.is_met for goal in made] == [True, False, True]
    assert ["decode" in goal.name for goal in made] == [False, True, False]


def test_the_command_writes_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"doctor": {"missing": "not asked"}, "system": "test", "cores": 1}
    monkeypatch.setattr(benchmark, "environment", lambda: dict(found))
    monkeypatch.setattr(benchmark, "QUICK", PLAN)
    path = tmp_path / "model.json"
    assert benchmark.main(["--quick", "--output-json", str(path)]) == 0
    (case,) = json.loads(path.read_text(encoding="utf-8"))["cases"]
    assert case["patch"]["swapped"] is True
    assert set(case["phases"]) == set(benchmark.PHASES)
    assert case["phases"]["step"]["ratio"] > 0
    assert "llama f32" in capsys.readouterr().out
    more = ["--quick", "--only", "gemma", "--dtypes", "f32", "--output-json", str(path)]
    assert benchmark.main([*more, "--add"]) == 0
    cases = json.loads(path.read_text(encoding="utf-8"))["cases"]
    assert [made["model"] for made in cases] == ["llama", "gemma"]
    assert cases[0] == case
    assert "llama f32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--only", "llama,bert"], "--only bert: expected some of llama"),
        (["--dtypes", "f64"], "--dtypes f64: expected some of f32, f16, bf16"),
        (["--add"], "--add: expected --output-json FILE"),
    ],
)
def test_a_command_that_names_nothing_known(
    words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        benchmark.main(words)
    assert part in capsys.readouterr().err


def test_every_architecture_can_be_built_and_needs_mlx_lm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        model = build(name, Size(64, 32, 48, 2, 2, 1), mx.float32)
        assert model(mx.array([[1, 2]]), cache=None).shape == (1, 2, 64)
    monkeypatch.setattr(optional, "make_prompt_cache", None)
    with pytest.raises(RuntimeError, match="models need mlx-lm"):
        build("llama", PLAN.size, mx.float32)


def test_a_mixture_of_experts_is_left_out_where_mlx_can_not_run_it() -> None:
    plan = Plan(PLAN.size, ("llama", "mixtral"), ("f32", "f16"), 6, 1, 2, 1)
    is_gpu = mx.default_device().type == mx.DeviceType.gpu
    assert (("mixtral", "f16") in plan.cases()) == is_gpu
    assert ("mixtral", "f32") in plan.cases()
