"""Third-party code that makes metal kernels runs on a machine without Metal."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

from metile_mlx.emulator.kernel import metal_kernel
from metile_mlx.runtime.optional import mx


class _Overlay(ModuleType):
    """A module with some attributes replaced; all others are read from it."""

    def __init__(self, base: Any, **replaced: Any) -> None:
        super().__init__(base.__name__)
        self.__dict__.update(replaced)
        self.__dict__["_base"] = base

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_base"], name)


def _gpu() -> Any:
    return mx.Device(mx.DeviceType.gpu, 0)


def _has_metal() -> bool:
    return True


@contextlib.contextmanager
def patched(*modules: str) -> Iterator[tuple[ModuleType, ...]]:
    """`mx.fast.metal_kernel` is the emulator's inside the block.

    Modules that make their kernels when they are imported, and only where MLX has Metal, are named:
    they are imported anew, in the order given, and for them alone `mx.metal.is_available()` is true
    and `mx.default_device()` a GPU, as on a Mac. Arrays stay on the CPU. Who imported one of their
    functions earlier keeps the old one: name that module too.

    Args:
        modules: full names of modules or packages; a package comes with its loaded submodules.

    Yields:
        The modules, imported anew; on leaving, the former ones are put back.

    Raises:
        ImportError: a module is not installed.
    """
    fast: Any = mx.fast
    before = fast.metal_kernel
    saved = _take_out(modules)
    fast.metal_kernel = metal_kernel
    try:
        yield _import_as_on_a_mac(modules, saved)
    finally:
        fast.metal_kernel = before
        _take_out(modules)
        for name, module in saved.items():
            _install(name, module)


def _belongs(name: str, modules: Sequence[str]) -> bool:
    return any(name == each or name.startswith(each + ".") for each in modules)


def _take_out(modules: Sequence[str]) -> dict[str, ModuleType]:
    """Forgets the modules, and hands back what was loaded of them."""
    saved = {name: sys.modules[name] for name in list(sys.modules) if _belongs(name, modules)}
    for name in saved:
        del sys.modules[name]
        parent, _, leaf = name.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(leaf, None)
    return saved


def _install(name: str, module: ModuleType) -> None:
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, module)


def _import_as_on_a_mac(modules: Sequence[str], loaded: Iterable[str]) -> tuple[ModuleType, ...]:
    """Imports the modules, then gives them an `mx` of their own that answers as on a Mac.

    `loaded` are the submodules that were there before.
    """
    metal: Any = mx.metal
    core: Any = mx
    is_available, default_device = metal.is_available, core.default_device
    metal.is_available, core.default_device = _has_metal, _gpu
    try:
        imported = tuple(importlib.import_module(name) for name in modules)
        for name in loaded:
            importlib.import_module(name)
    finally:
        metal.is_available, core.default_device = is_available, default_device
    overlay = _Overlay(
        mx,
        metal=_Overlay(metal, is_available=_has_metal),
        default_device=_gpu,
    )
    for name, module in list(sys.modules.items()):
        if _belongs(name, modules):
            for key, value in list(vars(module).items()):
                if value is mx:
                    setattr(module, key, overlay)
    return imported
