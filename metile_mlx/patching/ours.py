"""What a patched method calls: functions of metile_mlx.nn where they are made for the arguments.

A method may call these with anything, such as a scalar, integers or float64. Where the
kernels are not made for it, MLX's own operations run, as the method has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from metile_mlx.nn.activations import Approximation, geglu, gelu, silu, swiglu
from metile_mlx.nn.add_rms_norm import add_rms_norm
from metile_mlx.nn.arrays import FLOATS, are_floats
from metile_mlx.nn.layer_norm import layer_norm
from metile_mlx.nn.optional import mlx_nn
from metile_mlx.nn.rms_norm import rms_norm
from metile_mlx.patching.forms import form_of, is_swapped
from metile_mlx.runtime.optional import mx

Function: TypeAlias = Callable[..., Any]


def add_norm(a: Any, b: Any, norm: Function) -> tuple[Any, Any]:
    """a + b, and its norm; in one kernel where the norm runs on ours."""
    form = form_of(norm) if is_swapped(norm) and _are_alike(a, b) else None
    if form is not None:
        weight, eps = form(norm, None)
        if are_floats(a, weight):
            normed, total = add_rms_norm(a, b, weight, eps)
            return total, normed
    total = a + b
    return total, norm(total)


def _normed(name: str, ours: Function) -> Function:
    """A norm, `name` in mx.fast."""

    def call(*arguments: Any, **named: Any) -> Any:
        is_ours = are_floats(*arguments, *named.values())
        return (ours if is_ours else getattr(mx.fast, name))(*arguments, **named)

    return call


def _activated(name: str, ours: Function) -> Function:
    """An activation, `name` in mlx.nn."""

    def call(x: Any) -> Any:
        if isinstance(x, mx.array) and x.dtype in FLOATS:
            return ours(x)
        return getattr(mlx_nn, name)(x)

    return call


def _gated(name: str, ours: Function) -> Function:
    """activation(gate) * up, with the activation `name` in mlx.nn."""

    def call(gate: Any, up: Any) -> Any:
        if _are_alike(gate, up):
            return ours(gate, up)
        return getattr(mlx_nn, name)(gate) * up

    return call


def _are_alike(a: object, b: object) -> bool:
    """Two float arrays of one shape and dtype."""
    return (
        isinstance(a, mx.array)
        and isinstance(b, mx.array)
        and a.shape == b.shape
        and a.dtype == b.dtype
        and a.dtype in FLOATS
        and a.ndim > 0
    )


_GELUS: dict[str, Approximation] = {
    "gelu": "none",
    "gelu_approx": "tanh",
    "gelu_fast_approx": "fast",
}
FUNCTIONS: dict[str, Function] = {
    "rms_norm": _normed("rms_norm", rms_norm),
    "layer_norm": _normed("layer_norm", layer_norm),
    "add_norm": add_norm,
    "silu": _activated("silu", silu),
    "swiglu": _gated("silu", swiglu),
}
for _name, _approx in _GELUS.items():
    FUNCTIONS[_name] = _activated(_name, partial(gelu, approx=_approx))
    FUNCTIONS[_name.replace("gelu", "geglu")] = _gated(_name, partial(geglu, approx=_approx))
