"""Modules and functions that stand for those of `mlx.nn` and `mx.fast`, on kernels (SPEC B2)."""

from metile_mlx.nn.add_rms_norm import add_rms_norm
from metile_mlx.nn.normalization import RMSNorm
from metile_mlx.nn.rms_norm import rms_norm
from metile_mlx.nn.using import using

__all__ = [
    "RMSNorm",
    "add_rms_norm",
    "rms_norm",
    "using",
]
