"""Packages the benchmarks can live without, or need a word about: tried once, here.

`Console` and `Table` (rich) are None where it is missing: tables are plain then. `yaml` is None
where PyYAML is missing: `read_yaml` says how to get it; `plot_axes` does so for matplotlib. Where
`torch` or `triton` is missing both are None, and a benchmark on a GPU leaves their arms out.
"""

from __future__ import annotations

from pathlib import Path
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
