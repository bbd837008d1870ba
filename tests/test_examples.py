"""Every example runs, and says at its end what it says it would."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import pytest

import metile_mlx as metile

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
# The arguments that keep it short, and what it prints at its end.
RUNS = {
    "check_my_kernel.py": ([], "and the result is right"),
    "gemm_epilogue.py": (["--size", "72"], "right: within"),
    "patch_a_model.py": (["--tokens", "4", "--layers", "1"], "the same 4 tokens"),
    "rearrangements.py": ([], "all equal MLX's operations bit for bit"),
    "rmsnorm_in_a_model.py": (["--steps", "20"], "load it on a Mac"),
    "transpose8.py": ([], "load it on a Mac"),
}
EMULATED = {"check_my_kernel.py"}


def test_every_example_is_here() -> None:
    assert set(RUNS) == {path.name for path in EXAMPLES.glob("*.py")}


@pytest.mark.faulty
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.emulator] if name in EMULATED else []) for name in RUNS],
)
def test_it_runs(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, said = RUNS[name]
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", metile.ExportWarning)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert said in capsys.readouterr().out.splitlines()[-1]
