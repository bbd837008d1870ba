"""`benchmarks.record`: where a benchmark ran, its JSON file, its table and its verdict."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.harness import Goal

MET, MISSED = Goal("a", 1.0, 2.0, "ms"), Goal("b", 3.0, 2.0, "ms")


def test_file_appears_complete_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "result.json"
    record.write_json(path, {"a": 1})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1}
    for bad in ({"a": object()}, {"a": math.nan}):
        with pytest.raises((TypeError, ValueError)):
            record.write_json(path, bad)
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1}
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]


def test_verdict_fails_only_when_strict(capsys: pytest.CaptureFixture[str]) -> None:
    assert record.verdict([MET, MISSED], strict=False) == 0
    assert record.verdict([MET, MISSED], strict=True) == 1
    assert record.verdict([MET], strict=True) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in printed] == ["PASS", "MISS", "PASS", "MISS", "PASS"]


def test_plain_table_aligns_its_columns() -> None:
    lines = record.plain_table("times", ["arm", "us"], [["a", "1.0"], ["longer", "100.0"]])
    assert lines == ["times", "arm        us", "------  -----", "a         1.0", "longer  100.0"]


def test_table_that_is_no_terminal_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    record.print_table("t", ["x", "y"], [["1", "2"]])
    assert capsys.readouterr().out == "t\nx  y\n-  -\n1  2\n"


def test_environment_names_device_compiler_versions_and_date() -> None:
    found = record.environment()
    assert found["cores"] == os.cpu_count()
    assert found["root"] == "."
    assert found["date"].startswith("20")
    doctor = found["doctor"]
    assert doctor["versions"]["mlx"]
    assert doctor["machine"]["processor"]
    assert doctor["machine"]["processor"] in record.device_line(found)
    json.dumps(found)


def test_tree_without_a_doctor_is_recorded_as_such(tmp_path: Path) -> None:
    found = record.environment(tmp_path / "..")
    assert found["root"] == str(tmp_path / "..")
    assert found["revision"] is None
