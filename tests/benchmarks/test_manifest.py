"""The manifest of `benchmarks.compiler.thread_layouts` (SPEC B3: the 16 cases of the seed)."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.compiler import manifest


@pytest.mark.parametrize("quick", [False, True])
def test_there_are_16_cases_of_two_dtypes_four_tiles_two_batches(quick: bool) -> None:
    cases = manifest.load(quick).cases
    assert len(cases) == len(set(cases)) == 16
    assert {case.dtype for case in cases} == {"f16", "f32"}
    assert len({(case.rows, case.columns) for case in cases}) == 4
    assert len({case.batches for case in cases}) == 2
    assert all(32 <= case.rows * case.columns <= 1024 for case in cases)


def test_quick_is_less_work_on_the_same_tiles() -> None:
    full, quick = manifest.load(), manifest.load(quick=True)
    assert quick.effort.rounds < full.effort.rounds
    assert sum(c.bytes for c in quick.cases) < sum(c.bytes for c in full.cases) / 2


def test_sizes_follow_the_shape() -> None:
    case = manifest.Case("f16", 8, 32, 10)
    assert (case.bits, case.elements, case.bytes) == (16, 2560, 5120)
    assert case.name == "f16 8x32 x 10"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[8, 8]", "[3, 8]", "each side a power of two"),
        ("[8, 8]", "[64, 32]", "32 to 1024 elements"),
        ("[8, 8]", "[4, 4]", "32 to 1024 elements"),
        ("[f16, f32]", "[f16, f64]", "dtype must be one of f16, f32"),
        ("[1024, 4096]", "[0, 4096]", "there must be tiles"),
    ],
)
def test_bad_manifest_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = manifest.PATH.read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        manifest.load(path=path)
