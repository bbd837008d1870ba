"""Builds, checks and imports the module that makes generated kernels MLX primitives (SPEC X4).

Built on the user's machine against the headers of the MLX that is installed, about 8 s, once.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, cast

from metile_mlx.errors import BackendError, LaunchError, MetileError
from metile_mlx.locks import Lock
from metile_mlx.runtime import cache
from metile_mlx.runtime.optional import MLX_MISSING, NANOBIND_MISSING, mx, nanobind
from metile_mlx.runtime.toolchain import CompilerFailed, Toolchain

MLX_VERSION = "" if MLX_MISSING else str(vars(mx)["__version__"])
NAME = "metile_cpu_runtime"
SOURCES = ("primitive.cpp", "primitive.h", "launch.h", "strided_copy.h", "thread_pool.h")
FLAGS = "-std=c++20 -O2 -fPIC -fvisibility=hidden -fno-strict-aliasing -DNDEBUG -DNB_DOMAIN=mlx -w"

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


_lock = Lock()
_loaded: list[CpuModule] = []


def load(toolchain: Toolchain) -> CpuModule:
    """The module, built by `toolchain` where this process has none and the cache neither.

    Raises:
        BackendError: why it can't be had.
    """
    with _lock:
        if not _loaded:
            module = _import(_built(toolchain))
            module.set_errors(MetileError, LaunchError)
            _loaded.append(module)
        return _loaded[0]


def _import(path: Path) -> CpuModule:
    loader = importlib.machinery.ExtensionFileLoader(NAME, str(path))
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    if spec is None:
        raise BackendError(f"{path} is not a Python module")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise BackendError(
            f"the module of the cpu backend can't be imported: {error}",
            hint=f"if {path} is damaged or on a file system without execution, remove it or set "
            "METILE_CACHE_DIR",
        ) from error
    return cast(CpuModule, module)


def _built(toolchain: Toolchain) -> Path:
    """The module's file in the cache; built, and tried in another process, where it is missing."""
    mlx_root = _mlx_root()
    here = Path(__file__).parent
    texts = [(here / name).read_text(encoding="utf-8") for name in (*SOURCES, "metile_cpu.h")]
    key = cache.key(
        *texts, FLAGS, toolchain.identity(), sys.version, MLX_VERSION, nanobind.__version__,
        str(mlx_root), CHECK,
    )  # fmt: skip
    filename = f"{NAME}-{key}{sysconfig.get_config_var('EXT_SUFFIX')}"
    with cache.locked(NAME):
        return cache.publish(filename, functools.partial(_build, toolchain, mlx_root))


def _mlx_root() -> Path:
    """MLX's folder. Raises BackendError where something to build against is missing."""
    if MLX_MISSING:
        raise BackendError(f"mlx is not installed: {MLX_MISSING}", hint="pip install 'mlx[cpu]'")
    if NANOBIND_MISSING:
        raise BackendError(
            f"nanobind is not installed: {NANOBIND_MISSING}", hint="pip install nanobind"
        )
    root = Path(str(mx.__file__)).parent
    python_headers = Path(sysconfig.get_paths()["include"])
    for needed, hint in (
        (root / "include/mlx/backend/cpu/encoder.h", "pip install 'mlx[cpu]'"),
        (root / "lib/libmlx.so", "the cpu backend is for Linux; install 'mlx[cpu]' there"),
        (python_headers / "Python.h", "install Python's headers (python3-dev)"),
    ):
        if not needed.exists():
            raise BackendError(f"{needed} is missing", hint=hint)
    return root


def _build(toolchain: Toolchain, mlx_root: Path, folder: Path) -> Path:
    binding = Path(nanobind.include_dir())
    includes = (
        sysconfig.get_paths()["include"],
        str(binding),
        str(binding.parent / "ext/robin_map/include"),
        str(mlx_root / "include"),
    )
    flags = [*FLAGS.split(), *(f"-I{path}" for path in includes)]
    sources = (Path(__file__).with_name("primitive.cpp"), _nanobind_source())
    objects = [str(folder / f"{source.stem}.o") for source in sources]
    shared = folder / f"{NAME}.so"

    def compile_one(source: Path, target: str) -> None:
        toolchain.run([*flags, "-c", str(source), "-o", target])

    library = mlx_root / "lib"
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(compile_one, sources, objects))
        toolchain.run(
            ["-shared", *objects, f"-L{library}", "-lmlx", f"-Wl,-rpath,{library}", "-o",
             str(shared)]
        )  # fmt: skip
    except CompilerFailed as error:
        text = "\n".join(str(error).splitlines()[:20])
        raise BackendError(
            f"{toolchain.name} can't build the module of the cpu backend:\n{text}"
        ) from error
    _check(shared)
    return shared


def _nanobind_source() -> Path:
    return Path(nanobind.source_dir()) / "nb_combined.cpp"


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
