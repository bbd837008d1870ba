"""The list of kernels for a GPU is what it says, and its runner sees what is wrong (SPEC X3)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from metile_mlx import emulator
from tests import cuda_corpus, cuda_sanitizer, device_cuda
from tests.support import cuda_cases, cuda_words

ROOT = Path(__file__).resolve().parent.parent


def test_the_list_is_short_and_holds_every_kind() -> None:
    listed = device_cuda.entries()
    assert len(listed) <= device_cuda.LARGEST
    names = Counter((entry.module, entry.name) for entry in listed)
    assert max(names.values()) == 1
    counts = Counter(entry.module for entry in listed)
    for module, least in (
        ("words", 8), ("conversions", 54), ("register conversions", 24), ("rows", 36), ("sums", 37),
        ("loops", 6), ("random tiles", 30), ("random loops", 12), ("operations", 18),
        ("library mechanisms", 60), ("library rmsnorm", 3),
        ("test_arrays", 24), ("test_graphs", 10), ("test_sums", 14),
    ):  # fmt: skip
        assert counts[module] >= least, module


def test_the_library_can_be_listed_whole() -> None:
    """Each module that has kernels, those of the list and the others."""
    options = device_cuda.parse(["--library", "--backend", "emulator"])
    modules = {entry.module for entry in device_cuda.candidates(options)}
    assert modules >= {f"library {name}" for name in (*device_cuda.LIBRARY, "softmax", "rope")}


def test_the_corpus_of_the_checkers_meets_every_mechanism() -> None:
    corpus = cuda_cases.corpus()
    assert len(corpus) >= 60
    text = "\n".join(case.source.body for case in corpus)
    for word in (
        "threadgroup_barrier", "simd_shuffle(", "simd_sum(", "metile_load4", "metile_store4",
        "threadgroup float scratch", "threadgroup ushort scratch", "threadgroup half scratch",
        "threadgroup uint scratch",
    ):  # fmt: skip
        assert word in text, word
    assert {case.source.threads for case in corpus} >= {32, 64, 128, 256, 512, 1024}


def test_a_wrong_result_and_an_exception_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(iter(cuda_words.words()))
    assert case.expected[0] is not None
    right = case.expected[0]
    monkeypatch.setattr(device_cuda, "outputs_of", lambda case, backend: [right + 1])
    monkeypatch.setattr(device_cuda, "to_numpy", lambda x: x)

    def broken() -> str:
        raise ValueError("planted")

    entries = [
        device_cuda.Entry("m", "wrong", lambda: device_cuda.launched(case, "cuda")),
        device_cuda.Entry("m", "raises", broken),
        device_cuda.Entry("m", "fine", lambda: ""),
        device_cuda.Entry("m", "left out", lambda: "not run: no reason"),
    ]
    found = device_cuda.run(entries)
    assert [one.status for one in found] == ["fail", "fail", "pass", "not run"]
    assert "differ, first element 0" in found[0].message
    assert "ValueError: planted" in found[1].message
    report = device_cuda.summary(found, [], 1.0)
    assert not report["ok"]
    assert report["modules"]["m"]["fail"] == 2
    assert device_cuda.summary(found[2:], [], 1.0)["ok"]
    assert not device_cuda.summary(found[2:], ["process 0 of 1 ended with 1"], 1.0)["ok"]
    assert json.loads(json.dumps(report)) == report


def test_without_a_gpu_the_command_says_why() -> None:
    command = [sys.executable, "-m", "tests", "--device", "cuda", "--only", "nothing at all"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert "not run: MLX finds no CUDA device" in done.stdout or "0 entries" in done.stdout


@pytest.mark.emulator
def test_words_mean_in_the_emulator_what_they_should_mean_on_cuda() -> None:
    """The right results of hand-written texts, against another implementation of MSL."""
    found = device_cuda.run(
        [
            device_cuda.Entry(
                "words", case.name, lambda c=case: device_cuda.launched(c, "emulator")
            )
            for case in cuda_words.words()
        ]
    )
    assert [one.message for one in found if one.message] == []


@pytest.mark.emulator
@pytest.mark.faulty
def test_planted_faults_are_faults() -> None:
    """SPEC C2, F43: each kind of barrier, as the emulator's checker sees it."""
    planted = cuda_corpus.planted()
    assert len(planted) == 15
    assert any("sum" in case.name for case in planted)
    for case in planted:
        emulator.take()
        with emulator.options(checked=True, schedules=3):
            device_cuda.outputs_of(case, "emulator")
        assert emulator.take().findings, case.name


@pytest.mark.nvcc
def test_a_written_corpus_has_all_a_launch_needs(tmp_path: Path) -> None:
    cases = [next(iter(cuda_cases.rows())), *list(cuda_words.words())[:2]]
    cuda_corpus.write(tmp_path, "kernels", cases)
    launches = json.loads((tmp_path / "kernels.json").read_text())
    cubin = (tmp_path / "kernels_0.cubin").read_bytes()
    with np.load(tmp_path / "kernels.npz") as arrays:
        for number, (case, launch) in enumerate(zip(cases, launches, strict=True)):
            assert case.source.name in launch["symbol"]
            assert launch["symbol"].encode() in cubin
            for position, right in enumerate(case.expected):
                found = arrays[f"{number}_out{position}"]
                bf16 = launch["outputs"][position]["bf16"]
                assert cuda_sanitizer.same(found, right, bf16, launch["tolerance"])
                assert not cuda_sanitizer.same(found, found + 1, bf16, launch["tolerance"])


def test_findings_of_the_sanitizer_are_read() -> None:
    for line, count in (
        ("========= ERROR SUMMARY: 0 errors", 0),
        ("========= ERROR SUMMARY: 12 errors", 12),
        ("========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)", 3),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0),
    ):
        assert cuda_sanitizer.findings(line) == count
    for output in ("", "Device not supported\n========= ERROR SUMMARY: 0 errors"):
        assert cuda_sanitizer.findings(output) is None


def test_a_planted_fault_differs_from_its_kernel_by_one_barrier() -> None:
    case = cuda_corpus.planted()[0]
    with pytest.raises(AssertionError):
        cuda_corpus.without_barrier(replace(case, name="one too many"), 99)
