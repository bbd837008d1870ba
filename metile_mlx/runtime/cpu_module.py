"""Builds, checks and imports the module that makes generated kernels MLX primitives (SPEC X4).

Built on the user's machine against the headers of the MLX that is installed, about 8 s, once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, cast

from metile_mlx.errors import BackendError, LaunchError, MetileError
from metile_mlx.locks import Lock
from metile_mlx.runtime.extension import MLX_VERSION, Extension
from metile_mlx.runtime.optional import mx, nanobind
from metile_mlx.runtime.toolchain import Toolchain

HERE = Path(__file__).parent
NAME = "metile_cpu_runtime"
SOURCES = (
    "primitive.cpp",
    "primitive.h",
    "launch.h",
    "strided_copy.h",
    "thread_pool.h",
    "metile_cpu.h",
)

# Runs in another process: an MLX or nanobind of another ABI crashes there and not here.
CHECK = """
import importlib.util, sys
import mlx.core as mx
spec = importlib.util.spec_from_file_location(sys.argv[1], sys.argv[2])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
assert module.element_count(mx.zeros((3, 5))) == 15
"""

Call = Callable[[Sequence["mx.array"], Sequence["int | float | bool"]], "list[mx.array]"]


class LoadedKernel(Protocol):
    """A kernel's function inside a loaded shared object."""

    name: str


class CpuModule(Protocol):
    """What primitive.cpp exports."""

    def load(
        self,
        path: str,
        symbol: str,
        name: str,
        array_names: list[str],
        array_dtypes: list[mx.Dtype],
        scalar_names: list[str],
        scalar_dtypes: list[mx.Dtype],
    ) -> LoadedKernel: ...

    def bind(
        self,
        kernel: LoadedKernel,
        shapes: list[list[int]],
        dtypes: list[mx.Dtype],
        grid: list[int],
        init: list[int],
        stream: object,
        transforms: object,
        input_shapes: list[list[int]] | None,
    ) -> Call: ...

    def set_errors(self, gradient: type[Exception], launch: type[Exception]) -> None: ...

    def thread_count(self) -> int: ...


def _check(path: Path) -> None:
    """Imports the module in another process. Raises BackendError where that process fails."""
    folders = [os.path.abspath(p) for p in sys.path if p]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    done = subprocess.run(
        [sys.executable, "-c", CHECK, NAME, str(path.absolute())],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=environment,
        # `-c` looks for modules here first: not where a user may keep an mlx.py.
        cwd=path.parent,
    )
    if not done.returncode:
        return
    how = (
        f"was killed by signal {-done.returncode}"
        if done.returncode < 0
        else f"failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
    )
    raise BackendError(
        f"the module of the cpu backend was built, and a process that imported it {how} "
        f"(mlx {MLX_VERSION}, nanobind {nanobind.__version__})",
        hint="mlx and nanobind must share one ABI: nanobind >= 3.0 for mlx 0.32",
    )


MODULE = Extension(
    NAME,
    "the module of the cpu backend",
    HERE / "primitive.cpp",
    tuple(HERE / name for name in SOURCES),
    tried=CHECK,
    trial=_check,
)

_lock = Lock()
_loaded: list[CpuModule] = []


def load(toolchain: Toolchain) -> CpuModule:
    """The module, built by `toolchain` where this process has none and the cache neither.

    Raises:
        BackendError: why it can't be had.
    """
    with _lock:
        if not _loaded:
            module = cast(CpuModule, MODULE.load(toolchain))
            module.set_errors(MetileError, LaunchError)
            _loaded.append(module)
        return _loaded[0]
