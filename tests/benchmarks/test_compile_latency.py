"""`benchmarks.compile_latency`: what it times is what it says, and its targets can be missed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import compile_latency
from benchmarks.compile_latency import Translation
from benchmarks.harness import Summary, WrongResult, summarise

CALLS = {
    "primitive",
    "primitive in custom_function",
    "Dispatch",
    "kernel[grid](...)",
    "mx.add",
    "mx.fast.rms_norm",
}


def translation(seconds: float, verification: float) -> Translation:
    time = summarise([seconds])
    return Translation(seconds, time, time, {("tile", "verifier"): time}, verification)


def calls(dispatch: float, kernel: float) -> dict[str, Summary]:
    times = {"primitive": 1e-6, "Dispatch": dispatch, "kernel[grid](...)": kernel}
    return {name: summarise([seconds]) for name, seconds in times.items()}


@pytest.mark.parametrize(
    ("seconds", "share", "dispatch", "kernel", "met"),
    [
        (9e-3, 0.19, 7e-6, 19e-6, [True, True, True, True]),
        (11e-3, 0.21, 9e-6, 21e-6, [False, False, False, False]),
        (11e-3, 0.19, 7e-6, 19e-6, [False, True, True, True]),
    ],
)
def test_goals_can_be_missed(
    seconds: float, share: float, dispatch: float, kernel: float, met: list[bool]
) -> None:
    found = compile_latency.goals(translation(seconds, share), {}, calls(dispatch, kernel))
    assert [goal.is_met for goal in found] == met
    assert [goal.limit for goal in found] == [10, 20, 8, 20]


@pytest.mark.parametrize(
    ("values", "seconds", "share", "met"),
    [
        (4, 24e-3, 0.24, [True, True]),
        (4, 26e-3, 0.26, [False, False]),
        (32, 0.121, 0.1, [False, True]),
    ],
)
def test_goals_of_register_tiles(
    values: int, seconds: float, share: float, met: list[bool]
) -> None:
    registers = {values: translation(seconds, share)}
    found = compile_latency.goals(translation(1e-3, 0.1), registers, calls(1e-6, 1e-6))
    assert [goal.is_met for goal in found[4:]] == met


def test_register_tiles_are_translated() -> None:
    found = compile_latency.translations(2, compile_latency.registers_case(32))
    assert {"plan_reductions", "scalarise"} <= {step for step, _ in found.steps}


def test_every_translation_runs_every_step_again() -> None:
    found = compile_latency.translations(3)
    assert found.total.samples == found.reading.samples == 3
    names = {step for step, _ in found.steps}
    assert {"translate", "infer_ownership", "plan_conversions", "scalarise", "emit_msl"} <= names
    assert all(summary.samples == 3 for summary in found.steps.values())
    assert 0 < found.verification < 1
    assert sum(summary.least for summary in found.steps.values()) < found.total.q3 * 1.5


def test_text_without_the_exchange_is_not_timed() -> None:
    with pytest.raises(WrongResult, match="threadgroup_barrier"):
        compile_latency.check_text(compile_latency.TRANSPOSE, "threadgroup float scratch[64];")


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_every_way_to_call_computes_the_right_thing(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METILE_BACKEND", backend)
    found = compile_latency.call_costs(rounds=1, calls=2)
    assert found.keys() == CALLS
    assert all(summary.median > 0 for summary in found.values())


def test_run_writes_all_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"doctor": {"missing": "not asked"}, "system": "test", "cores": 1}
    monkeypatch.setattr(compile_latency, "environment", lambda: found)
    monkeypatch.setattr(
        compile_latency, "translations", lambda samples, case=None: translation(2e-3, 0.5)
    )
    monkeypatch.setattr(compile_latency, "call_costs", lambda rounds, n: calls(1e-6, 30e-6))
    path = tmp_path / "out.json"
    assert compile_latency.main(["--output-json", str(path)]) == 0
    assert compile_latency.main(["--strict"]) == 1
    read = json.loads(path.read_text(encoding="utf-8"))
    assert read["translation"]["total"]["median_s"] == 2e-3
    assert read["translation"]["steps"][0]["step"] == "tile"
    assert read["calls"]["Dispatch"]["median_s"] == 1e-6
    met = [goal["met"] for goal in read["goals"]]
    assert met == [True, False, True, False, True, False, True, False]
    assert [made["values_per_thread"] for made in read["register_translations"]] == [4, 32]
    printed = capsys.readouterr().out
    assert "MISS  verification share: 50.000 % (target <= 20 %)" in printed
    assert "PASS  warm Dispatch call: 1.000 us (target <= 8 us)" in printed
