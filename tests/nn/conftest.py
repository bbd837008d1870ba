"""The backends that tests of functions of MLX arrays run on."""

from __future__ import annotations

import pytest

BACKENDS = ("cpu", "reference", pytest.param("emulator", marks=pytest.mark.emulator))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each backend that computes here, by the variable: the functions take no `backend=`."""
    monkeypatch.setenv("METILE_BACKEND", request.param)
    return str(request.param)


@pytest.fixture(params=("cpu", "reference"))
def batchable(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Backends whose kernels MLX itself can batch."""
    monkeypatch.setenv("METILE_BACKEND", request.param)
    return str(request.param)
