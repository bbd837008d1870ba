"""Packages the benchmarks can live without, or need a word about: tried once, here.

`Console` and `Table` (rich) are None where it is missing: tables are plain then. `yaml` is None
where PyYAML is missing: `read_yaml` says how to get it; `plot_axes` does so for matplotlib. Where
`torch` or `triton` is missing both are None, and a benchmark on a GPU leaves their arms out.
`mlx_lm_model` and `prompt_cache_maker` say how to get mlx-lm.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    from rich.console import Console
    from rich.table import Table
except ImportError:
    Console = Table = None  # type: ignore[assignment,misc]

try:
    import yaml
except ImportError:
    yaml = None  # type: ignore[assignment]

try:
    from matplotlib.figure import Figure
except ImportError:
    Figure = None  # type: ignore[assignment,misc]

try:
    import torch
    import triton
    import triton.language
except ImportError:
    torch = triton = None


try:
    from mlx_lm.models.cache import make_prompt_cache
except ImportError:
    make_prompt_cache = None


def mlx_lm_model(name: str) -> ModuleType:
    """The module of mlx-lm that has a model.

    Raises:
        RuntimeError: mlx-lm is not installed.
    """
    prompt_cache_maker()
    return import_module(f"mlx_lm.models.{name}")


def prompt_cache_maker() -> Any:
    """`mlx_lm.models.cache.make_prompt_cache`: a key-value cache for a model.

    Raises:
        RuntimeError: mlx-lm is not installed.
    """
    if make_prompt_cache is None:
        raise RuntimeError("models need mlx-lm: pip install 'metile-mlx[bench]'")
    return make_prompt_cache


def plot_axes(count: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure of `size` inches and its `count` axes side by side.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    if Figure is None:
        raise RuntimeError("a chart needs matplotlib: pip install 'metile-mlx[bench]'")
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(1, count, squeeze=False)[0]


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        RuntimeError: PyYAML is not installed.
    """
    if yaml is None:
        raise RuntimeError(f"{path.name} needs PyYAML: pip install 'metile-mlx[bench]'")
    return yaml.safe_load(path.read_text(encoding="utf-8"))
