"""Builds and imports the module that makes emulated kernels MLX primitives."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, cast

from metile_mlx.emulator import toolchain
from metile_mlx.errors import BackendError
from metile_mlx.locks import Lock
from metile_mlx.runtime import cache, cpu_module
from metile_mlx.runtime.optional import mx, nanobind
from metile_mlx.runtime.toolchain import CompilerFailed, Toolchain

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


_lock = Lock()
_loaded: list[HostModule] = []


def load() -> HostModule:
    """The module; built where the cache has none, which takes seconds.

    Raises:
        BackendError: why it can't be had.
    """
    with _lock:
        if not _loaded:
            _loaded.append(_import(_built(toolchain.find())))
        return _loaded[0]


def _import(path: Path) -> HostModule:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    if spec is None:
        raise BackendError(f"{path} is not a Python module")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise BackendError(f"the emulator's module can't be imported: {error}") from error
    return cast(HostModule, module)


def _built(chain: Toolchain) -> Path:
    root = cpu_module._mlx_root()
    parts = [path.read_text(encoding="utf-8") for path in SOURCES]
    key = cache.key(
        *parts, cpu_module.FLAGS, chain.identity(), sys.version, cpu_module.MLX_VERSION,
        nanobind.__version__, str(root),
    )  # fmt: skip
    with cache.locked(NAME):
        return cache.publish(
            f"{NAME}-{key}{sysconfig.get_config_var('EXT_SUFFIX')}",
            functools.partial(_build, chain, root),
        )


def _build(chain: Toolchain, root: Path, folder: Path) -> Path:
    binding = Path(nanobind.include_dir())
    includes = (
        sysconfig.get_paths()["include"],
        str(binding),
        str(binding.parent / "ext/robin_map/include"),
        str(root / "include"),
        str(RUNTIME),
        str(HERE / "headers/msl"),
    )
    flags = [*cpu_module.FLAGS.split(), *(f"-I{path}" for path in includes)]
    sources = (HERE / "runtime/host.cpp", cpu_module._nanobind_source())
    objects = [str(folder / f"{source.stem}.o") for source in sources]
    shared = folder / f"{NAME}.so"

    def compile_one(source: Path, target: str) -> None:
        chain.run([*flags, "-c", str(source), "-o", target])

    library = root / "lib"
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(compile_one, sources, objects))
        chain.run(
            ["-shared", *objects, f"-L{library}", "-lmlx", f"-Wl,-rpath,{library}", "-ldl",
             "-o", str(shared)]
        )  # fmt: skip
    except CompilerFailed as error:
        text = "\n".join(str(error).splitlines()[:20])
        raise BackendError(f"{chain.name} can't build the emulator's module:\n{text}") from error
    return shared
