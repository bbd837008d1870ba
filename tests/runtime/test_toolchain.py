"""Which compiler is used, and that it is never one that was not asked for (SPEC X4, X6)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from metile_mlx.errors import BackendError
from metile_mlx.runtime import toolchain
from metile_mlx.runtime.toolchain import KERNEL_FLAGS, CompilerFailed, Toolchain


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_the_default_is_the_fastest_candidate_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    found = toolchain.find()
    assert found.command == (toolchain.CANDIDATES[0],)
    assert found.version == subprocess.getoutput(f"{found.name} --version").splitlines()[0]


def test_cxx_decides_and_may_have_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "g++ -DSOMETHING=1")
    assert toolchain.find().command == ("g++", "-DSOMETHING=1")


def test_candidates_that_do_not_work_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    broken = program(tmp_path / "broken", 'test "$1" = --version && echo broken 1.0')
    monkeypatch.setattr(toolchain, "CANDIDATES", ("/no/such/one", broken, "g++"))
    assert toolchain.find().command == ("g++",)


def test_no_compiler_gives_the_reason_for_each(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    silent = program(tmp_path / "silent", "exit 3")
    monkeypatch.setattr(toolchain, "CANDIDATES", ("/no/such/one", silent))
    with pytest.raises(BackendError) as error:
        toolchain.find()
    assert "no C++ compiler works (/no/such/one: not found; " in error.value.message
    assert f"{silent}: its --version failed:" in error.value.message


def test_cxx_that_can_not_compile_is_not_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    failing = program(
        tmp_path / "failing",
        'test "$1" = --version && echo failing 2.0 && exit; echo ouch >&2; exit 1',
    )
    monkeypatch.setenv("CXX", failing)
    with pytest.raises(BackendError, match="it fails on a small kernel: ouch"):
        toolchain.find()


def test_identity_changes_with_compiler_version_and_arguments() -> None:
    base = Toolchain(("g++",), "1")
    others = [Toolchain(("clang++",), "1"), Toolchain(("g++",), "2"), Toolchain(("g++", "-g"), "1")]
    assert len({each.identity() for each in [base, *others]}) == 4


def test_flags_keep_ieee_arithmetic() -> None:
    assert "-ffp-contract=off" in KERNEL_FLAGS
    assert "-fwrapv" in KERNEL_FLAGS
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations"} & set(KERNEL_FLAGS)


def test_compiler_message_is_carried(tmp_path: Path) -> None:
    with pytest.raises(CompilerFailed, match="not_a_type"):
        Toolchain(("g++",), "").compile_kernel("not_a_type x;", tmp_path)
