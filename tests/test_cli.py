"""`python -m metile_mlx`: commands, exit status, and errors without a traceback (SPEC D, L6)."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from metile_mlx.__main__ import main
from metile_mlx.layout import ThreadLayout

ROOT = Path(__file__).resolve().parent.parent


def test_layout_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", "3,4,5,0,1,2", "--width", "80"]) == 0
    assert capsys.readouterr().out == ThreadLayout((3, 4, 5, 0, 1, 2)).table(80) + "\n"


def test_layout_takes_mask_and_registers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["layout", "1,0,2,3,4,5,6 xor=0x21 registers=4", "--width", "60"]) == 0
    layout = ThreadLayout((1, 0, 2, 3, 4, 5, 6), 0x21, 4)
    assert capsys.readouterr().out == layout.table(60) + "\n"


def test_layout_writes_the_drawing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "layout.svg"
    assert main(["layout", "3,4,5,0,1,2", "--svg", str(target)]) == 0
    assert ET.fromstring(target.read_text(encoding="utf-8")).tag.endswith("svg")
    assert target.read_text(encoding="utf-8") == ThreadLayout((3, 4, 5, 0, 1, 2)).svg()
    assert f"drawing: {target}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["3,4"], "error: [ThreadLayout] bit_order must be a permutation"),
        (["0,1,2"], "error: [ThreadLayout] a layout has 32 to 1024 threads"),
        (["square"], "error: [layout] cannot read 'square' as a layout"),
        (["3,4,5,0,1,2", "--width", "8"], "error: [ThreadLayout.table] width must be at least"),
        (["3,4,5,0,1,2", "--svg", "/no/such/folder/a.svg"], "error: [layout] can't write"),
    ],
)
def test_bad_layout_is_a_message_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["layout", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(message)
    assert "Traceback" not in printed.err


@pytest.mark.parametrize("arguments", [[], ["heal"], ["layout"], ["doctor", "--yaml"]])
def test_bad_command_line_is_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert "usage: python -m metile_mlx" in capsys.readouterr().err


def test_doctor_passes_without_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for title in ("versions:", "backends:", "default backend:", "C++ compilers:", "cache:"):
        assert title in printed


def test_doctor_fails_when_the_environment_asks_for_what_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METILE_BACKEND", "cuda")
    assert main(["doctor", "--json"]) == 1
    read = json.loads(capsys.readouterr().out)
    assert read["ok"] is False
    assert "METILE_BACKEND=cuda" in read["default"]["error"]


def test_module_runs_and_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m metile_mlx layout 9,8,7,6,5,4,3,2,1,0 | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ThreadLayout((9, 8, 7")
