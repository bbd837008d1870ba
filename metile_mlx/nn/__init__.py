"""Modules and functions that stand for those of `mlx.nn` and `mx.fast`, on kernels (SPEC B2)."""

from metile_mlx.nn.activation_layers import GELU, SiLU
from metile_mlx.nn.activations import geglu, gelu, silu, swiglu
from metile_mlx.nn.add_rms_norm import add_rms_norm
from metile_mlx.nn.normalization import RMSNorm
from metile_mlx.nn.rms_norm import rms_norm
from metile_mlx.nn.using import using

__all__ = [
    "GELU",
    "RMSNorm",
    "SiLU",
    "add_rms_norm",
    "geglu",
    "gelu",
    "rms_norm",
    "silu",
    "swiglu",
    "using",
]
