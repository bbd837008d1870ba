"""How far compilers optimise the CPU texts of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from metile_mlx.runtime import toolchain
from tests.support import profile


@contextmanager
def cpu_level(*, shipped: bool) -> Iterator[None]:
    """Texts built and launched inside: as users get them, or without optimisation.

    For texts of which others like them are compiled as shipped: what they mean is tested, and an
    optimiser takes up to ten times as long as all else. The full profile optimises all.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not shipped and profile.name() != "full":
            flags = ["-O0" if flag == "-O3" else flag for flag in toolchain.KERNEL_FLAGS]
            assert flags != toolchain.KERNEL_FLAGS
            patch.setattr(toolchain, "KERNEL_FLAGS", flags)
        yield
