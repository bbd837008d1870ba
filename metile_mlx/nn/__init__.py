"""Modules and functions that stand for those of `mlx.nn` and `mx.fast`, on kernels (SPEC B2)."""

from metile_mlx.nn.activation_layers import GELU, LogSoftmax, SiLU, Softmax
from metile_mlx.nn.activations import geglu, gelu, silu, swiglu
from metile_mlx.nn.add_rms_norm import add_rms_norm
from metile_mlx.nn.cross_entropy import cross_entropy
from metile_mlx.nn.embedding_layer import Embedding
from metile_mlx.nn.layer_norm import layer_norm
from metile_mlx.nn.matmul import matmul
from metile_mlx.nn.normalization import LayerNorm, RMSNorm
from metile_mlx.nn.reduce import reduce
from metile_mlx.nn.rms_norm import rms_norm
from metile_mlx.nn.rope import rope
from metile_mlx.nn.rope_layer import RoPE
from metile_mlx.nn.softmax import log_softmax, softmax
from metile_mlx.nn.take import take
from metile_mlx.nn.top1 import top1
from metile_mlx.nn.using import using

__all__ = [
    "GELU",
    "Embedding",
    "LayerNorm",
    "LogSoftmax",
    "RMSNorm",
    "RoPE",
    "SiLU",
    "Softmax",
    "add_rms_norm",
    "cross_entropy",
    "geglu",
    "gelu",
    "layer_norm",
    "log_softmax",
    "matmul",
    "reduce",
    "rms_norm",
    "rope",
    "silu",
    "softmax",
    "swiglu",
    "take",
    "top1",
    "using",
]
