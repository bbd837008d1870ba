"""meTile for MLX: kernels over tiles, with checked thread ownership, as lazy MLX arrays.

import metile_mlx as metile

@metile.kernel
def double(x, y, n, BLOCK: metile.constexpr):
    source = metile.tensor(x, shape=(n,), access="read")
    result = metile.tensor(y, shape=(n,), access="write")
    i = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    result.store(i, source.load(i) * 2)

y = double[(metile.cdiv(n, 256),)](x, metile.empty((n,), mx.float32), n, BLOCK=256)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from metile_mlx import emulator, testing
from metile_mlx.autotune import Autotuned, autotune
from metile_mlx.context import Schedule
from metile_mlx.dispatch import Dispatch, Empty, empty
from metile_mlx.errors import (
    BackendError,
    CompileError,
    LaunchError,
    LayoutError,
    MetileError,
    OutOfResources,
    OwnershipError,
    UnsupportedError,
    VerificationError,
)
from metile_mlx.frontend.language import (
    Array,
    DType,
    Pointer,
    Scalar,
    Tensor,
    ThreadLayout,
    Tile,
    abs,
    arange,
    argmax,
    barrier,
    bf16,
    bool_,
    cast,
    cdiv,
    ceil,
    constexpr,
    convert_layout,
    cos,
    device_print,
    dot,
    erf,
    exp,
    exp2,
    f16,
    f32,
    floor,
    fma,
    full,
    i8,
    i16,
    i32,
    i64,
    inline,
    load,
    log,
    log2,
    max,
    maximum,
    min,
    minimum,
    next_power_of_2,
    num_programs,
    permute,
    program_id,
    reshape,
    rsqrt,
    shared,
    sigmoid,
    simd_broadcast,
    simd_lane_id,
    simd_max,
    simd_shuffle_xor,
    simd_sum,
    sin,
    sqrt,
    store,
    sum,
    tanh,
    tensor,
    thread_id,
    tile_load,
    tile_range,
    tile_store,
    u8,
    u16,
    u32,
    u64,
    where,
    zeros,
)
from metile_mlx.kernel import Kernel, Launcher, kernel
from metile_mlx.report import ExecutionReport
from metile_mlx.runtime.export import ExportWarning, export
from metile_mlx.tuning import TuningReport
from metile_mlx.vmap import vmap

if TYPE_CHECKING:
    from metile_mlx import nn
    from metile_mlx.nn.activations import geglu, gelu, silu, swiglu
    from metile_mlx.nn.add_rms_norm import add_rms_norm
    from metile_mlx.nn.cross_entropy import cross_entropy
    from metile_mlx.nn.layer_norm import layer_norm
    from metile_mlx.nn.matmul import matmul
    from metile_mlx.nn.reduce import reduce
    from metile_mlx.nn.rms_norm import rms_norm
    from metile_mlx.nn.rope import rope
    from metile_mlx.nn.softmax import log_softmax, softmax
    from metile_mlx.nn.take import take
    from metile_mlx.nn.top1 import top1
    from metile_mlx.patching.patch import patch
    from metile_mlx.patching.report import PatchReport

__version__ = "0.1.0.dev0"

__all__ = [
    "Array",
    "Autotuned",
    "BackendError",
    "CompileError",
    "DType",
    "Dispatch",
    "Empty",
    "ExecutionReport",
    "ExportWarning",
    "Kernel",
    "LaunchError",
    "Launcher",
    "LayoutError",
    "MetileError",
    "OutOfResources",
    "OwnershipError",
    "PatchReport",
    "Pointer",
    "Scalar",
    "Schedule",
    "Tensor",
    "ThreadLayout",
    "Tile",
    "TuningReport",
    "UnsupportedError",
    "VerificationError",
    "abs",
    "add_rms_norm",
    "arange",
    "argmax",
    "autotune",
    "barrier",
    "bf16",
    "bool_",
    "cast",
    "cdiv",
    "ceil",
    "constexpr",
    "convert_layout",
    "cos",
    "cross_entropy",
    "device_print",
    "dot",
    "empty",
    "emulator",
    "erf",
    "exp",
    "exp2",
    "export",
    "f16",
    "f32",
    "floor",
    "fma",
    "full",
    "geglu",
    "gelu",
    "i8",
    "i16",
    "i32",
    "i64",
    "inline",
    "kernel",
    "layer_norm",
    "load",
    "log",
    "log2",
    "log_softmax",
    "matmul",
    "max",
    "maximum",
    "min",
    "minimum",
    "next_power_of_2",
    "nn",
    "num_programs",
    "patch",
    "permute",
    "program_id",
    "reduce",
    "reshape",
    "rms_norm",
    "rope",
    "rsqrt",
    "shared",
    "sigmoid",
    "silu",
    "simd_broadcast",
    "simd_lane_id",
    "simd_max",
    "simd_shuffle_xor",
    "simd_sum",
    "sin",
    "softmax",
    "sqrt",
    "store",
    "sum",
    "swiglu",
    "take",
    "tanh",
    "tensor",
    "testing",
    "thread_id",
    "tile_load",
    "tile_range",
    "tile_store",
    "top1",
    "u8",
    "u16",
    "u32",
    "u64",
    "vmap",
    "where",
    "zeros",
]


_OF_PATCHING = ("PatchReport", "patch")
_LAZY = frozenset(
    {
        *_OF_PATCHING,
        "add_rms_norm",
        "cross_entropy",
        "geglu",
        "gelu",
        "layer_norm",
        "log_softmax",
        "matmul",
        "nn",
        "reduce",
        "rms_norm",
        "rope",
        "silu",
        "softmax",
        "swiglu",
        "take",
        "top1",
    }
)


def __getattr__(name: str) -> Any:
    """`nn` and what uses it, at first use: its kernels are written with this package."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module("metile_mlx.patching" if name in _OF_PATCHING else "metile_mlx.nn")
    found = globals()[name] = module if name == "nn" else getattr(module, name)
    return found
