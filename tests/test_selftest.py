"""`python -m metile_mlx selftest`: it runs everything and finds a fault of any kind (X6, X9)."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx import selftest
from metile_mlx.__main__ import main
from metile_mlx.backends import BACKENDS
from metile_mlx.runtime import metal_prelude
from tests.support import profile, simulated_metal
from tests.support.fake_metal import FakeMetal, installed

REPOSITORY = "kernels"
MODULE = """
import mlx.core as mx
import numpy as np

import metile_mlx as metile


@metile.kernel
def doubled(x, out, n):
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    value = metile.tensor(x, shape=n).load(i)
    metile.tensor(out, shape=n, access="write").store(i, value * 2)


def check(backend, expected, ulps=0, out=mx.float32):
    arguments = (mx.arange(40).astype(mx.float32), metile.empty((40,), mx.float32), 40)
    return doubled[2].prepare(*arguments, backend=backend), arguments, expected, ulps


RIGHT = mx.arange(40).astype(mx.float32) * 2


def right(backend):
    return check(backend, RIGHT)


def wrong(backend):
    return check(backend, mx.where(mx.arange(40) == 7, 15, RIGHT))


def near(backend):
    return check(backend, np.arange(40) * 2 * (1 + 2**-24), ulps=1.5)


def far(backend):
    return check(backend, np.arange(40) * 2 * (1 + 2**-20), ulps=1.5)


def other_shape(backend):
    return check(backend, RIGHT[:39])


def other_dtype(backend):
    return check(backend, RIGHT.astype(mx.float16))


def too_many(backend):
    return check(backend, (RIGHT, RIGHT))


def broken(backend):
    raise ZeroDivisionError("planted")


def not_yet(backend):
    raise metile.UnsupportedError("planted")


SELFTESTS = [(f.__name__, f) for f in (
    right, wrong, near, far, other_shape, other_dtype, too_many, broken, not_yet
)]
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty library, which the selftest takes for the installed one."""
    folder = tmp_path / "planted_kernels"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(selftest, "LIBRARY", "planted_kernels")
    yield folder
    for name in [n for n in sys.modules if n.startswith("planted_kernels")]:
        del sys.modules[name]


def outcomes(found: selftest.Findings) -> dict[str, selftest.Outcome]:
    return {outcome.name: outcome for outcome in found.outcomes}


def test_every_kind_of_fault_is_a_failure(library: Path) -> None:
    (library / "doubling.py").write_text(MODULE)
    found = selftest.run("reference")
    by_name = outcomes(found)
    assert {name: outcome.status for name, outcome in by_name.items()} == {
        "right": "pass", "wrong": "fail", "near": "pass", "far": "fail", "other_shape": "fail",
        "other_dtype": "fail", "too_many": "fail", "broken": "fail", "not_yet": "not run",
    }  # fmt: skip
    assert not found.ok
    expected = "the output is wrong in 1 of 40 elements, first at (7,): 14.0, expected 15.0"
    assert by_name["wrong"].message == expected
    assert (by_name["wrong"].elements, by_name["wrong"].differing) == (40, 1)
    assert by_name["near"].worst_ulp is not None
    assert 0.5 <= by_name["near"].worst_ulp <= 1
    assert by_name["far"].differing > 30
    assert by_name["other_shape"].message == "the output has shape (40,), not (39,)"
    assert "float32, not mlx.core.float16" in by_name["other_dtype"].message
    assert by_name["broken"].message.startswith("ZeroDivisionError at doubling.py:")
    assert "custom_kernel_doubled" in by_name["wrong"].msl
    assert by_name["right"].msl == ""
    assert len({o.msl_sha256 for o in found.outcomes if o.msl_sha256}) == 1


def test_what_does_not_run_is_named(library: Path) -> None:
    (library / "empty.py").write_text("")
    (library / "right.py").write_text(MODULE.split("SELFTESTS")[0] + 'SELFTESTS = [("r", right)]')
    found = selftest.run("reference")
    assert found.ok
    (entry,) = found.to_dict()["not_run"]  # type: ignore[misc]
    assert entry == {
        "module": "empty",
        "name": "all",
        "reason": "the module declares no SELFTESTS",
    }


def test_a_module_that_can_not_be_imported_fails(library: Path) -> None:
    (library / "bad.py").write_text("import no_such_module_at_all\n")
    (outcome,) = selftest.run("reference").outcomes
    assert (outcome.module, outcome.status) == ("bad", "fail")
    assert outcome.message.startswith("ModuleNotFoundError at bad.py:1")


def test_nothing_that_ran_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "LIBRARY", "no_such_library_at_all")
    found = selftest.run("reference")
    assert not found.ok
    assert "no_such_library_at_all can't be imported" in found.outcomes[0].message


def test_command_prints_a_table_and_writes_the_findings(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (library / "doubling.py").write_text(MODULE)
    path = tmp_path / "findings.json"
    assert main(["selftest", "--backend", "reference", "--json", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "fail: doubling: wrong\n  the output is wrong in 1 of 40 elements" in printed
    assert "2 passed, 6 failed, 1 not run" in printed
    found = json.loads(path.read_text())
    assert (found["ok"], found["backend"], found["format"]) == (False, "reference", 1)
    assert found["versions"]["mlx"] == mx.__version__
    assert found["device"] == mx.device_info()
    assert [check["status"] for check in found["checks"]].count("fail") == found["failed"] == 6
    assert "environment" not in found
    assert str(Path.home()) not in path.read_text()


def test_success_is_status_0(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (library / "right.py").write_text(MODULE.split("SELFTESTS")[0] + 'SELFTESTS = [("r", right)]')
    assert main(["selftest", "--backend", "reference"]) == 0
    assert "1 passed, 0 failed, 0 not run" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--backend", "cuda"], "backend 'cuda' can't run here"),
        (["--backend", "gpu"], "backend 'gpu' does not exist"),
        (["--json", "/no/such/folder/a.json"], "[selftest] can't write the findings to"),
    ],
)
def test_bad_arguments_are_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selftest", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"error: {message}")
    assert printed.out == ""


def run_repository(monkeypatch: pytest.MonkeyPatch, backend: str) -> selftest.Findings:
    """The repository's own kernels, imported anew: nothing of them is compiled yet."""
    for name in [n for n in sys.modules if n.split(".")[0] == REPOSITORY]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(selftest, "LIBRARY", REPOSITORY)
    return selftest.run(backend)


ON = ["reference", "cpu"] if profile.name() == "full" else ["reference"]


def test_the_library_passes_as_on_a_mac_and_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registration, arguments and limits are the metal backend's; the shaders are simulated."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libmlx.dylib").write_bytes(
        f"\0// Auto generated source for {metal_prelude.ENTRY}\n\0".encode()
    )
    fake = FakeMetal()
    with simulated_metal.device() as device, installed(fake, mlx=tmp_path):
        found = run_repository(monkeypatch, "metal")
    assert found.ok, selftest.render(found)
    assert len(fake.compiled) == len(device.sources) > 50
    limits = [limit for outcome in found.outcomes for limit in outcome.limits]
    assert limits
    assert all(limit.checked for limit in limits)
    # The Metal texts are made already.
    for backend in ON:
        assert BACKENDS[backend].available() is None
        here = selftest.run(backend)
        assert here.ok, selftest.render(here)
        assert here.count(selftest.PASS) > 50
        made, same = ([each.msl_sha256 for each in run.outcomes] for run in (found, here))
        assert made == same
    for name in [n for n in sys.modules if n.split(".")[0] == REPOSITORY]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["mechanisms", "rmsnorm"])
def test_names_are_unique(name: str) -> None:
    names = [check for check, _ in importlib.import_module(f"{REPOSITORY}.{name}").SELFTESTS]
    assert len(set(names)) == len(names)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("got", "expected", "dtype", "ulps"),
    [
        (1.0, 1.0, mx.float32, 0),
        (1 + 2**-23, 1.0, mx.float32, 1),
        (1 - 2**-24, 1.0, mx.float32, 0.5),
        (2.0, 2 - 2**-10, mx.float16, 1),
        (1.0, 1 + 2**-7, mx.bfloat16, 1),
        (-4.0, 4.0, mx.float32, 2**24),
        (0.0, 2**-24, mx.float16, 1),
        (2**-149, 0.0, mx.float32, 1),
        (NAN, NAN, mx.float32, 0),
        (INF, INF, mx.float32, 0),
        (INF, -INF, mx.float32, INF),
        (NAN, 1.0, mx.float32, INF),
        (1.0, NAN, mx.float32, INF),
        (INF, 1.0, mx.float16, INF),
    ],
)
def test_distance_in_ulps(got: float, expected: float, dtype: Any, ulps: float) -> None:
    given = mx.array([got], dtype)
    assert selftest.ulps_between(given, np.array([expected])) == ulps
