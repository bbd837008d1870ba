"""`metile_mlx.doctor`: what runs here, and the reason for what does not (SPEC X6)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from metile_mlx import doctor
from metile_mlx.emulator import toolchain as emulator_toolchain
from metile_mlx.runtime.backend import Backend, Launch, Request
from metile_mlx.target import Target


class Fake:
    """A backend that runs, or has a reason not to."""

    target: Target | None = None

    def __init__(self, name: str, reason: str | None) -> None:
        self.name = name
        self._reason = reason

    def available(self) -> str | None:
        return self._reason

    def bind(self, request: Request) -> Launch:
        raise AssertionError("the doctor launches nothing")


def fakes(**reasons: str | None) -> dict[str, Backend]:
    return {name: Fake(name, reason) for name, reason in reasons.items()}


ABSENT = "no such device"
ONLY_REFERENCE = fakes(metal=ABSENT, cpu="no compiler", emulator="no clang", reference=None)


def test_every_backend_is_listed_with_its_reason() -> None:
    found = doctor.examine(ONLY_REFERENCE)
    assert [(b.name, b.available, b.reason) for b in found.backends] == [
        ("metal", False, ABSENT),
        ("cuda", False, "the cuda backend is not supported yet"),
        ("cpu", False, "no compiler"),
        ("emulator", False, "no clang"),
        ("reference", True, ""),
    ]
    text = doctor.render(found)
    assert f"metal      no: {ABSENT}" in text
    assert "reference  available" in text


def test_absent_backends_are_no_failure_and_reference_takes_over() -> None:
    """X6: without its own backend a device's calls run on `reference`, and the reason is said."""
    found = doctor.examine(ONLY_REFERENCE)
    assert found.ok
    assert found.default.name == "reference"
    assert "cpu can't run here" in found.default.reason


def test_machine_without_any_backend_says_why() -> None:
    """F29: without mlx nothing runs, and the doctor still does."""
    missing = "mlx is not installed"
    found = doctor.examine(fakes(metal=missing, cpu=missing, reference=missing))
    assert found.ok
    assert found.default.name == ""
    assert f"default backend: none, because no backend can run here: {missing}" in doctor.render(
        found
    )


def test_backend_of_the_environment_that_cannot_run_is_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("METILE_BACKEND", "metal")
    found = doctor.examine(ONLY_REFERENCE)
    assert not found.ok
    assert found.default.error == f"METILE_BACKEND=metal, which can't run here: {ABSENT}"
    assert "default backend: none: METILE_BACKEND=metal" in doctor.render(found)


def test_backend_of_the_environment_that_runs_is_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("METILE_BACKEND", "reference")
    found = doctor.examine(ONLY_REFERENCE)
    assert found.ok
    assert (found.default.name, found.default.reason) == ("reference", "METILE_BACKEND=reference")


def test_unknown_backend_in_the_environment_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METILE_BACKEND", "vulkan")
    found = doctor.examine(ONLY_REFERENCE)
    assert not found.ok
    assert found.default.error == (
        "METILE_BACKEND='vulkan' names no backend; expected one of metal, cuda, cpu, "
        "emulator, reference"
    )


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    (compiler,) = doctor.examine(ONLY_REFERENCE).compilers
    assert (compiler.command, compiler.path, compiler.used) == ("no-such-compiler -O1", "", False)
    assert compiler.note == "the C++ compiler CXX=no-such-compiler -O1 can't be used: not found"


@pytest.mark.parametrize("command", ["c++ '", "''", "c++ \\"])
def test_unreadable_compiler_command_is_a_finding(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("CXX", command)
    (compiler,) = doctor.examine(ONLY_REFERENCE).compilers
    assert not compiler.used
    assert "can't be used: " in compiler.note


def test_broken_compiler_shows_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    (compiler,) = doctor.examine(ONLY_REFERENCE).compilers
    assert compiler.path
    assert "the C++ compiler CXX=false can't be used" in compiler.note


def test_one_working_compiler_is_used_with_its_version() -> None:
    used = [c for c in doctor.examine(ONLY_REFERENCE).compilers if c.used]
    assert len(used) == 1
    assert used[0].version
    assert "compiled a small kernel" in used[0].note


@pytest.mark.emulator
def test_the_clang_of_the_emulator_is_shown_with_its_version() -> None:
    found = doctor.examine(ONLY_REFERENCE)
    clang = found.emulator_compiler
    assert clang.used
    assert "clang version" in clang.version
    assert Path(clang.path).is_file()
    line = f"clang of the emulator:\n  {clang.command}  used; {clang.version}"
    assert line in doctor.render(found)


def test_a_missing_clang_of_the_emulator_is_said_with_what_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An older clang and another compiler named by CXX are not enough."""
    old = tmp_path / "clang++"
    old.write_text("#!/bin/sh\necho 'Debian clang version 14.0.6'\n")
    old.chmod(0o755)
    monkeypatch.setattr(emulator_toolchain, "CANDIDATES", (str(old),))
    monkeypatch.setenv("CXX", "g++")
    found = doctor.examine(ONLY_REFERENCE)
    assert not found.emulator_compiler.used
    text = doctor.render(found)
    assert "  none  the emulator needs clang 16 or newer: none found" in text
    assert "clang 14 is older than 16" in text
    assert "hint: apt-get install clang-19" in text
    assert found.to_dict()["emulator_compiler"]


def test_cache_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    (folder / "a").write_bytes(b"12345")
    (folder / "b").write_bytes(b"123")
    (folder / "failed").mkdir()
    monkeypatch.setenv("METILE_CACHE_DIR", str(folder))
    # A compiler is probed into the cache, which would add to the count.
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = doctor.examine(ONLY_REFERENCE).cache
    assert (found.path, found.mode, found.entries, found.bytes, found.problem) == (
        str(folder),
        "0700",
        2,
        8,
        "",
    )


def test_cache_that_others_may_write_to_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """X4: code that someone else can replace is never loaded."""
    tmp_path.chmod(0o777)
    monkeypatch.setenv("METILE_CACHE_DIR", str(tmp_path))
    found = doctor.examine(ONLY_REFERENCE)
    assert "other users may write" in found.cache.problem
    assert found.cache.mode == "0777"
    assert "problem" in doctor.render(found)


def test_cache_that_cannot_be_made_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("METILE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    found = doctor.examine(ONLY_REFERENCE).cache
    assert "can't be made" in found.problem
    assert found.mode == ""


def test_variables_in_force_are_shown_and_a_misspelt_one_stands_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [n for n in os.environ if n.startswith("METILE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("METILE_DUMP", "msl")
    monkeypatch.setenv("METILE_VERFIY", "0")
    found = doctor.examine(ONLY_REFERENCE).environment
    assert found["METILE_DUMP"] == ("msl", "steps to print")
    assert found["METILE_VERFIY"] == ("0", "unknown: nothing reads it")
    assert "METILE_BACKEND" not in found


def test_limits_are_those_of_the_targets() -> None:
    limits = doctor.examine(ONLY_REFERENCE).limits
    assert set(limits) == {"metal", "cuda", "cpu", "emulator"}
    assert limits["metal"] == {
        "threads per threadgroup": 1024,
        "bytes of threadgroup memory": 32768,
        "buffers": 31,
        "threads per simdgroup": 32,
        "elements per tile": 32768,
    }
    assert limits["cpu"]["buffers"] is None
    text = doctor.render(doctor.examine(ONLY_REFERENCE))
    assert "1024 threads per threadgroup, 32768 bytes of threadgroup memory, 31 buffers" in text


def test_json_holds_all_that_was_found() -> None:
    found = doctor.examine(ONLY_REFERENCE)
    read = json.loads(doctor.to_json(found))
    assert read["ok"] is True
    assert read["default"]["name"] == "reference"
    assert read["versions"].keys() == {"metile-mlx", "python", "mlx", "nanobind", "numpy"}
    assert len(read["backends"]) == 5
    assert read["machine"]["cores"] == os.cpu_count()


def test_this_machine_reports_its_default_as_a_call_would_choose_it() -> None:
    found = doctor.examine()
    available = {b.name for b in found.backends if b.available}
    assert found.default.name in available
    assert ("threads of the cpu backend" in found.machine) == ("cpu" in available)
