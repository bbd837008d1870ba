"""Kernels of the package mlx-lm run in the emulator, match a reference, and pass the front."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx import emulator
from metile_mlx.emulator import Fault, front, patch
from metile_mlx.emulator import kernel as emulated
from tests.support import third_party
from tests.support.third_party import CASES, MODULES, Modules

# What the checker reports truly of these kernels: docs/emulator.md gives the reasoning.
TRUE_REPORTS: dict[str, set[Fault]] = {
    "gated delta masked": {Fault.RACE},
    "gated delta vector masked": {Fault.RACE},
    "kl loss": {Fault.RACE},
    "kl gradient": {Fault.RACE},
    "js loss": {Fault.RACE},
    "js gradient": {Fault.RACE},
}


@pytest.fixture(scope="module")
def modules() -> Iterator[Modules]:
    with patch.patched(*MODULES) as loaded:
        yield {module.__name__.rpartition(".")[2]: module for module in loaded}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Each kernel that was launched, by name, with the text MLX recorded."""
    seen: dict[str, Any] = {}
    real = emulated.EmulatedKernel._launch

    def launch(self: Any, captured: Any, *rest: Any) -> Any:
        seen[self.name] = captured
        return real(self, captured, *rest)

    monkeypatch.setattr(emulated.EmulatedKernel, "_launch", launch)
    return seen


@pytest.mark.emulator
@pytest.mark.parametrize("case", CASES)
def test_kernel_matches_its_reference(
    case: str, modules: Modules, launched: dict[str, Any]
) -> None:
    it = CASES[case]
    runs = emulator.completed_runs()
    outputs = list(it.run(modules))
    mx.eval(outputs)
    assert set(it.kernels) <= set(launched)
    assert emulator.completed_runs() - runs >= len(it.kernels)
    for output, expected in zip(outputs, it.reference(modules), strict=True):
        np.testing.assert_allclose(
            third_party.f64(output),
            np.array(expected, dtype=np.float64),
            atol=it.tolerance,
            rtol=it.tolerance,
        )


@pytest.mark.emulator
@pytest.mark.parametrize("case", CASES)
def test_kernel_under_the_checker(case: str, modules: Modules, launched: dict[str, Any]) -> None:
    emulator.take()
    with emulator.options(checked=True):
        mx.eval(list(CASES[case].run(modules)))
    report = emulator.take()
    assert {finding.fault for finding in report.findings} == TRUE_REPORTS.get(case, set()), str(
        report
    )


def test_every_kernel_of_the_package_is_covered(modules: Modules) -> None:
    made = {
        value.name
        for name, module in list(sys.modules.items())
        if name.startswith("mlx_lm.")
        for value in vars(module).values()
        if isinstance(value, emulated.EmulatedKernel)
    }
    assert made == {name for case in CASES.values() for name in case.kernels}


def test_every_file_of_the_package_that_makes_kernels_was_imported(modules: Modules) -> None:
    """Found by reading the files, so that a kernel of a new version is not overlooked."""
    root = Path(str(sys.modules["mlx_lm.utils"].__file__)).parent
    making = {path for path in root.rglob("*.py") if "metal_kernel(" in path.read_text("utf-8")}
    assert len(making) >= 6
    owners = {
        Path(str(module.__file__))
        for name, module in list(sys.modules.items())
        if name.startswith("mlx_lm.")
        and any(isinstance(value, emulated.EmulatedKernel) for value in vars(module).values())
    }
    assert making <= owners


@pytest.mark.emulator
@pytest.mark.parametrize("case", CASES)
def test_text_passes_the_strict_front(
    case: str, modules: Modules, launched: dict[str, Any]
) -> None:
    outputs = CASES[case].run(modules)
    assert len(outputs) > 0
    for captured in launched.values():
        result = front.examine(captured.text)
        assert not result.findings, f"{result}\n{captured.text}"
        assert not result.unchecked
