"""Packages this one can live without, tried once: `mx` (mlx.core), `nanobind` and `pyobjc_metal`
(the `Metal` module of pyobjc-framework-Metal) (SPEC D, F29).

A missing package becomes a stand-in whose every attribute raises, so that importing, compiling and
printing kernels work without it; `MLX_MISSING`, `NANOBIND_MISSING` and `METAL_MISSING` hold the
reason, or None.
"""

from __future__ import annotations

from typing import Any, NoReturn

from metile_mlx.errors import BackendError


class Missing:
    """Stands for a package that could not be imported.

    Raises:
        BackendError: on any attribute access, naming the package and the import's own message.
    """

    def __init__(self, package: str, reason: str, hint: str) -> None:
        self.__dict__["_message"] = f"{package} is not installed: {reason}"
        self.__dict__["_hint"] = hint

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") and name.endswith("__"):
            # Introspection (copy, inspect, pytest) probes dunder names and expects this answer.
            raise AttributeError(name)
        raise BackendError(self.__dict__["_message"], hint=self.__dict__["_hint"])


MLX_MISSING: str | None = None
NANOBIND_MISSING: str | None = None
METAL_MISSING: str | None = None

try:
    import mlx.core as mx
except ImportError as error:
    MLX_MISSING = str(error)
    _mlx: Any = Missing("mlx", MLX_MISSING, "pip install 'metile-mlx[cpu]'")
    mx = _mlx

try:
    import nanobind  # type: ignore[import-untyped]
except ImportError as error:
    NANOBIND_MISSING = str(error)
    _nanobind: Any = Missing("nanobind", NANOBIND_MISSING, "pip install nanobind")
    nanobind = _nanobind

try:
    import Metal as pyobjc_metal  # type: ignore[import-not-found]
except ImportError as error:
    METAL_MISSING = str(error)
    _metal: Any = Missing("Metal", METAL_MISSING, "pip install pyobjc-framework-Metal")
    pyobjc_metal = _metal

__all__ = [
    "METAL_MISSING",
    "MLX_MISSING",
    "NANOBIND_MISSING",
    "Missing",
    "mx",
    "nanobind",
    "pyobjc_metal",
]
