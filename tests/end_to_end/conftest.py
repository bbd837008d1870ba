"""Kernels of the end-to-end tests run on three backends; Metal's shader is simulated."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import simulated_metal


@pytest.fixture(scope="module")
def gpu() -> Iterator[simulated_metal.Device]:
    """A simulated Metal device, for all kernels of one test file."""
    with simulated_metal.device() as device:
        yield device


BACKENDS = ("cpu", "reference", "metal")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of each backend that a kernel runs on."""
    name: str = request.param
    return name
