"""`benchmarks.conversions`: its check can fail, plans add up, the file says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import mlx.core as mx
import pytest

from benchmarks import conversions
from benchmarks.conversions import Case, Tile
from benchmarks.harness import Arm, summarise

SMALL = Tile(8, 8, 2, (1, 4))


def test_every_tile_has_layouts_and_each_is_legal_and_of_its_size() -> None:
    for tile in conversions.TILES:
        found = conversions.layouts(tile)
        assert found
        assert {layout.size for layout in found.values()} == {tile.size}
    assert set(conversions.layouts(SMALL)) == {"striped 1", "striped 4", "fours 4"}


def test_the_plans_state_the_cheapest_of_their_candidates() -> None:
    plans = conversions.planned((SMALL,))
    assert len(plans) == 3 + 5
    for each in plans:
        chosen, candidates = each.conversion["cost"], each.conversion["candidates"]
        assert chosen in candidates
        assert chosen["total"] == min(candidate["total"] for candidate in candidates)
        assert (chosen["barriers"] == 0) == (each.allocations == 0)


@pytest.mark.parametrize("dtype", conversions.DTYPES)
def test_a_wrong_bit_is_found_and_the_copy_is_no_transpose(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversions, "BATCH_BYTES", 1 << 12)
    case = Case(dtype, SMALL)
    bits = conversions.source_bits(case)
    check = conversions.checker(case, bits)
    kind = conversions.DTYPES[dtype][0]
    folded = bits.reshape(-1, 8, 8)
    turned = folded.transpose(0, 2, 1).copy()
    arm, copy = Arm("fours 4", lambda: None), Arm(conversions.COPY, lambda: None)
    assert check(arm, [mx.array(turned).view(kind)]) is None
    assert check(copy, [mx.array(folded).view(kind)]) is None
    assert "differ in their bits" in (check(arm, [mx.array(folded).view(kind)]) or "")
    turned[1, 2, 3] ^= 1
    assert "1 of" in (check(arm, [mx.array(turned).view(kind)]) or "")


def test_goals_can_be_missed() -> None:
    case = Case("f16", SMALL)
    times = {
        "fours 4": summarise([2.0]), "striped 4": summarise([3.0]),
        conversions.MLX: summarise([1.0]), conversions.COPY: summarise([1.0]),
    }  # fmt: skip
    measured = [(case, times), (Case("f32", SMALL), times)]
    slow = conversions.goals(measured, summarise([0.5]))
    assert [goal.is_met for goal in slow] == [False, False, False]
    fast = {**times, "fours 4": summarise([0.5])}
    quick = conversions.goals([(Case(d, SMALL), fast) for d in ("f16", "f32")], summarise([0.1]))
    assert [goal.is_met for goal in quick] == [True, True, True]
    assert conversions.best(times) == "fours 4"


def test_a_run_writes_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(conversions, "QUICK", (Tile(8, 8, 2, (4,)),))
    monkeypatch.setattr(conversions, "BATCH_BYTES", 1 << 12)
    monkeypatch.setattr(conversions, "SECONDS_PER_RUN", 1e-5)
    monkeypatch.setattr(conversions, "keep_freed_memory", lambda: "untouched")
    found = {"doctor": {"missing": "not asked"}, "system": "test", "cores": 1}
    monkeypatch.setattr(conversions, "environment", lambda: dict(found))
    monkeypatch.setattr(conversions, "translations", lambda count: summarise([0.1] * count))
    target, picture = tmp_path / "out.json", tmp_path / "out.svg"
    arguments = ["--quick", "--output-json", str(target), "--chart", str(picture)]
    assert conversions.main(arguments) == 0
    written = json.loads(target.read_text(encoding="utf-8"))
    assert [case["dtype"] for case in written["cases"]] == ["f16", "f32"]
    assert all(case["bitwise_equal"] for case in written["cases"])
    assert {"mlx", "copy", "striped 4", "fours 4"} == set(written["cases"][0]["arms"])
    assert len(written["goals"]) == 3
    assert written["plans"][0]["conversion"]["mechanism"] == "shuffle"
    assert "GB/s, read and written" in picture.read_text(encoding="utf-8").replace("&#x2F;", "/")
    text = capsys.readouterr().out
    assert "conversions, per thread, as planned for Metal" in text
    assert "median time of one batch" in text
