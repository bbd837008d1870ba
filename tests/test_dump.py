"""METILE_DUMP prints the steps it names and nothing else, and takes no word it does not know."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx import verify
from metile_mlx.compiler import DUMPS, STEPS
from metile_mlx.context import Stage
from metile_mlx.verify.structure import check_structure
from metile_mlx.verify.thread_reader import check_lowering

DOCUMENTED = Path(__file__).resolve().parents[1] / "docs" / "backends.md"


def steps(*stages: Stage) -> list[str]:
    """Endings of the files of the passes that leave these stages."""
    return [f"{step.name}.ir" for step in STEPS if step.stage in stages]


def compile_one() -> None:
    """A kernel that no earlier test compiled."""

    @metile.kernel
    def copied(x, y):
        i = metile.arange(0, 32)
        metile.tensor(y, shape=32, access="write").store(i, metile.tensor(x, shape=32).load(i))

    copied[1].prepare(mx.zeros(32), metile.empty(32, mx.float32), target="metal")


@pytest.mark.parametrize(
    ("asked", "files"),
    [
        ("scalarise", {"scalarise.ir"}),
        ("tile, owned", {"tile.ir", *steps(Stage.OWNED)}),
        ("msl", {"msl"}),
        ("all", {"tile.ir", "msl", *steps(*Stage)}),
        ("cpp", set()),
        ("", set()),
    ],
)
def test_the_named_steps_are_written(
    asked: str, files: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METILE_DUMP", asked)
    monkeypatch.setenv("METILE_DUMP_DIR", str(tmp_path))
    compile_one()
    written = {path.name.partition(".")[2] for path in tmp_path.iterdir()}
    assert written == files


@pytest.mark.parametrize("word", ["metal", "ALL", "scalarize"])
def test_a_word_that_means_nothing_is_an_error(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METILE_DUMP", f"msl,{word}")
    with pytest.raises(metile.MetileError) as caught:
        compile_one()
    assert str(caught.value) == (
        f"METILE_DUMP names {word!r}; expected, separated by commas, any of {', '.join(DUMPS)}"
    )
    assert {"all", "tile", "thread", "scalarise", "msl", "cpp"} <= set(DUMPS)


@pytest.mark.parametrize("value", ["fulll", "FULL", "2", "on"])
def test_an_unknown_metile_verify_is_an_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would otherwise mean less than whoever set it believes."""
    monkeypatch.setenv("METILE_VERIFY", value)
    with pytest.raises(metile.MetileError) as caught:
        compile_one()
    assert str(caught.value) == f"METILE_VERIFY={value!r}; expected one of 0, 1, full"


@pytest.mark.parametrize(
    ("value", "asks", "reads"), [("0", 0, 0), ("1", 1, 0), ("", 1, 0), ("full", 1, 1)]
)
def test_what_metile_verify_asks(
    value: str, asks: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether anything is verified, and whether the lowering is read thread by thread."""
    asked: list[object] = []
    monkeypatch.setattr(verify, "check_structure", partial(_counted, asked, check_structure))
    monkeypatch.setattr(verify, "check_lowering", partial(_counted, asked, check_lowering))
    monkeypatch.setenv("METILE_VERIFY", value)
    compile_one()
    assert asked.count(check_lowering) == reads
    assert min(1, asked.count(check_structure)) == asks


def _counted(asked: list[object], function: Callable[..., object], *args: object) -> object:
    asked.append(function)
    return function(*args)


def test_every_word_is_documented() -> None:
    text = DOCUMENTED.read_text(encoding="utf-8").partition("## Dumps")[2].partition("```")[0]
    assert [word for word in DUMPS if f"`{word}`" not in text] == []
