"""Python modules in C++ against the installed MLX: built on the user's machine, once (SPEC X4)."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from metile_mlx.errors import BackendError
from metile_mlx.runtime import cache
from metile_mlx.runtime.optional import MLX_MISSING, NANOBIND_MISSING, mx, nanobind
from metile_mlx.runtime.toolchain import CompilerFailed, Toolchain

MLX_VERSION = "" if MLX_MISSING else str(vars(mx)["__version__"])
FLAGS = "-std=c++20 -O2 -fPIC -fvisibility=hidden -fno-strict-aliasing -DNDEBUG -DNB_DOMAIN=mlx -w"


@dataclass(frozen=True)
class Extension:
    """A module of one source.

    Attributes:
        name: of the module.
        title: what messages call it.
        source: its C++.
        read: all files that it is made of.
        includes: folders of headers, beside those of Python, nanobind and MLX.
        libraries: linked to, beside MLX.
        tried: part of the key: what `trial` does.
        trial: raises BackendError for a file that does not work.
    """

    name: str
    title: str
    source: Path
    read: tuple[Path, ...]
    includes: tuple[Path, ...] = ()
    libraries: tuple[str, ...] = ()
    tried: str = ""
    trial: Callable[[Path], None] | None = None

    def load(self, chain: Toolchain) -> ModuleType:
        """The module, built by `chain` where the cache has none.

        Raises:
            BackendError: why it can't be had.
        """
        path = self.built(chain)
        loader = importlib.machinery.ExtensionFileLoader(self.name, str(path))
        spec = importlib.util.spec_from_file_location(self.name, path, loader=loader)
        if spec is None:
            raise BackendError(f"{path} is not a Python module")
        try:
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
        except ImportError as error:
            raise BackendError(
                f"{self.title} can't be imported: {error}",
                hint=f"if {path} is damaged or on a file system without execution, remove it or "
                "set METILE_CACHE_DIR",
            ) from error
        return module

    def built(self, chain: Toolchain) -> Path:
        """Its file in the cache; built and tried where it is missing."""
        root = _mlx_root()
        key = cache.key(
            *(path.read_text(encoding="utf-8") for path in self.read), FLAGS, chain.identity(),
            sys.version, MLX_VERSION, nanobind.__version__, str(root), self.tried,
        )  # fmt: skip
        filename = f"{self.name}-{key}{sysconfig.get_config_var('EXT_SUFFIX')}"
        with cache.locked(self.name):
            return cache.publish(filename, functools.partial(self._build, chain, root))

    def _build(self, chain: Toolchain, mlx_root: Path, folder: Path) -> Path:
        binding = Path(nanobind.include_dir())
        includes = (
            sysconfig.get_paths()["include"],
            binding,
            binding.parent / "ext/robin_map/include",
            mlx_root / "include",
            *self.includes,
        )
        flags = [*FLAGS.split(), *(f"-I{path}" for path in includes)]
        sources = (self.source, Path(nanobind.source_dir()) / "nb_combined.cpp")
        objects = [str(folder / f"{source.stem}.o") for source in sources]
        shared = folder / f"{self.name}.so"

        def compile_one(source: Path, target: str) -> None:
            chain.run([*flags, "-c", str(source), "-o", target])

        library = mlx_root / "lib"
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(compile_one, sources, objects))
            chain.run(
                ["-shared", *objects, f"-L{library}", "-lmlx", f"-Wl,-rpath,{library}",
                 *self.libraries, "-o", str(shared)]
            )  # fmt: skip
        except CompilerFailed as error:
            text = "\n".join(str(error).splitlines()[:20])
            raise BackendError(f"{chain.name} can't build {self.title}:\n{text}") from error
        if self.trial is not None:
            self.trial(shared)
        return shared


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
