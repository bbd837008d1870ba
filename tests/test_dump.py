"""METILE_DUMP prints the steps it names and nothing else, and takes no word it does not know."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.compiler import DUMPS, STEPS

DOCUMENTED = Path(__file__).resolve().parents[1] / "docs" / "backends.md"


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
        ("tile, owned", {"tile.ir", "infer_ownership.ir"}),
        ("msl", {"msl"}),
        ("all", {"tile.ir", "msl", *(f"{step.name}.ir" for step in STEPS)}),
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
        f"METILE_DUMP names {word!r}; expected, separated by commas, any of all, tile, owned, "
        "planned, thread, infer_ownership, plan_conversions, plan_reductions, scalarise, clean_up, "
        "group_memory, msl, cpp"
    )


def test_every_word_is_documented() -> None:
    text = DOCUMENTED.read_text(encoding="utf-8").partition("## Dumps")[2].partition("```")[0]
    assert [word for word in DUMPS if f"`{word}`" not in text] == []
