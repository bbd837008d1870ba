"""What a rewritten method calls: our functions, or others of the same names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from metile_mlx.nn.optional import mlx_nn
from metile_mlx.nn.rms_norm import rms_norm
from metile_mlx.patching import rounded_once
from metile_mlx.runtime.optional import mx

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Operations:
    """Functions by name. What is not there is not swapped.

    `rms_norm`, `layer_norm`, `silu`, `gelu` and `gelu_approx` stand for MLX's of these names;
    `swiglu`, `geglu` and `geglu_approx` take `gate` and `up`; `add_norm` takes two terms and a norm
    module, and returns the sum and its norm.
    """

    functions: Mapping[str, Function]


def known() -> list[tuple[object, str]]:
    """The functions of MLX that a method may call, and our names for them."""
    return [
        (mx.fast.rms_norm, "rms_norm"),
        (mx.fast.layer_norm, "layer_norm"),
        (mlx_nn.silu, "silu"),
        (mlx_nn.gelu, "gelu"),
        (mlx_nn.gelu_approx, "gelu_approx"),
    ]


OURS = Operations({"rms_norm": rms_norm})
ROUNDED_ONCE = Operations(rounded_once.FUNCTIONS)
