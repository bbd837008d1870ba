"""Build hook: gives an editable install a folder in which `kernels/` bears its installed name.

A plain search path, unlike an import hook, is also understood by type checkers and editors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelsUnderTheirInstalledName(BuildHookInterface[Any]):
    """Makes the link `.editable/metile_kernels` that `dev-mode-dirs` in pyproject.toml expects."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            return
        link = Path(self.root) / ".editable" / "metile_kernels"
        link.parent.mkdir(exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(Path("..") / "kernels", target_is_directory=True)
