"""Models of mlx.nn with our kernels in them (SPEC B2)."""

from metile_mlx.patching.patch import patch
from metile_mlx.patching.report import Agreement, Decline, Measured, PatchReport, Swap

__all__ = ["Agreement", "Decline", "Measured", "PatchReport", "Swap", "patch"]
