"""Builds and imports the module that makes emulated kernels MLX primitives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from metile_mlx.emulator import toolchain
from metile_mlx.locks import Lock
from metile_mlx.runtime.extension import Extension
from metile_mlx.runtime.optional import mx

NAME = "metile_emulator_host"
HERE = Path(__file__).parent
RUNTIME = HERE.parent / "runtime"
SOURCES = (
    HERE / "runtime/host.cpp",
    HERE / "runtime/emulation.h",
    HERE / "runtime/orders.h",
    HERE / "headers/msl/abi.h",
    RUNTIME / "strided_copy.h",
    RUNTIME / "thread_pool.h",
)


class Emulation(Protocol):
    """A kernel with all that one launch fixes."""

    name: str


class HostModule(Protocol):
    """What host.cpp exports."""

    def make(
        self,
        path: str,
        symbol: str,
        name: str,
        bindings: list[tuple[int, int, str]],
        shapes: list[list[int]],
        dtypes: list[mx.Dtype],
        grid: list[int],
        threadgroup: list[int],
        ensure_row_contiguous: bool,
        init_value: float | None,
        is_checked: bool,
        schedules: int,
        threads: int,
        key: str,
    ) -> Emulation: ...

    def launch(
        self, emulation: Emulation, inputs: Sequence[mx.array], stream: mx.Stream | None
    ) -> list[mx.array]: ...

    def completed_runs(self) -> int: ...

    def take_results(self) -> list[tuple[str, list[dict[str, Any]]]]: ...


MODULE = Extension(
    NAME,
    "the emulator's module",
    HERE / "runtime/host.cpp",
    SOURCES,
    (RUNTIME, HERE / "headers/msl"),
    ("-ldl",),
)

_lock = Lock()
_loaded: list[HostModule] = []


def load() -> HostModule:
    """The module; built where the cache has none, which takes seconds.

    Raises:
        BackendError: why it can't be had.
    """
    with _lock:
        if not _loaded:
            _loaded.append(cast(HostModule, MODULE.load(toolchain.find())))
        return _loaded[0]
