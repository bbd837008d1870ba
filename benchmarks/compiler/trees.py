"""The package of another source tree, imported beside this tree's own."""

from __future__ import annotations

import importlib
import sys
import warnings
from pathlib import Path
from types import ModuleType

NAME = "metile_mlx"


def package(root: Path) -> ModuleType:
    """`metile_mlx` of `root`, whatever has been imported before, and nothing of it left behind.

    Each of the two has its own compiler and runtime; both share the process, MLX and its cache.

    Raises:
        ValueError: the tree has no such package.
    """
    folder = root.resolve() / NAME
    if not (folder / "__init__.py").is_file():
        raise ValueError(f"--baseline-root {root}: there is no {NAME} in it")
    own = _taken_out()
    sys.path.insert(0, str(folder.parent))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return importlib.import_module(NAME)
    finally:
        sys.path.remove(str(folder.parent))
        _taken_out()
        sys.modules.update(own)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == NAME or name.startswith(f"{NAME}.")]
    return {name: sys.modules.pop(name) for name in names}
