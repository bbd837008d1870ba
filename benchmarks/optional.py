"""Packages the benchmarks can live without, or need a word about: tried once, here.

`Console` and `Table` (rich) are None where it is missing: tables are plain then. `yaml` is None
where PyYAML is missing: `read_yaml` says how to get it.
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


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        RuntimeError: PyYAML is not installed.
    """
    if yaml is None:
        raise RuntimeError(f"{path.name} needs PyYAML: pip install 'metile-mlx[bench]'")
    return yaml.safe_load(path.read_text(encoding="utf-8"))
