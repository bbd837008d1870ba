"""What can be swapped, as MLX operations in f32 that are rounded once, at the end.

Where MLX rounds after each step, this is another evaluation of the same model by MLX: its distance
from the first is what f16 and bf16 may differ by (agreement.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from metile_mlx.runtime.optional import mx


def rms_norm(x: mx.array, weight: mx.array | None, eps: float, *, stream: Any = None) -> mx.array:
    """As `mx.fast.rms_norm`."""
    with _on(stream):
        wide = _wide(x)
        normed = wide * mx.rsqrt(mx.mean(mx.square(wide), axis=-1, keepdims=True) + eps)
        return _result(normed, x, weight)


def layer_norm(
    x: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    eps: float,
    *,
    stream: Any = None,
) -> mx.array:
    """As `mx.fast.layer_norm`."""
    with _on(stream):
        wide = _wide(x)
        centred = wide - mx.mean(wide, axis=-1, keepdims=True)
        normed = centred * mx.rsqrt(mx.mean(mx.square(centred), axis=-1, keepdims=True) + eps)
        return _result(normed, x, weight, bias)


def linear(x: mx.array, w: mx.array) -> mx.array:
    """As `x @ w.T`."""
    return (_wide(x) @ _wide(w).T).astype(mx.result_type(x, w))


def addmm(bias: mx.array, x: mx.array, w: mx.array) -> mx.array:
    """As `mx.addmm(bias, x, w.T)`."""
    return (_wide(x) @ _wide(w).T + _wide(bias)).astype(mx.result_type(bias, x, w))


def silu(x: mx.array) -> mx.array:
    """As `mlx.nn.silu`."""
    return _silu(_wide(x)).astype(x.dtype)


def gelu(x: mx.array) -> mx.array:
    """As `mlx.nn.gelu`."""
    return _gelu(_wide(x)).astype(x.dtype)


def gelu_approx(x: mx.array) -> mx.array:
    """As `mlx.nn.gelu_approx`."""
    return _gelu_approx(_wide(x)).astype(x.dtype)


def gelu_fast_approx(x: mx.array) -> mx.array:
    """As `mlx.nn.gelu_fast_approx`."""
    return _gelu_fast_approx(_wide(x)).astype(x.dtype)


def gated(activation: Callable[[mx.array], mx.array]) -> Callable[[mx.array, mx.array], mx.array]:
    """activation(gate) * up."""

    def product(gate: mx.array, up: mx.array) -> mx.array:
        return (activation(_wide(gate)) * _wide(up)).astype(mx.result_type(gate, up))

    return product


def add_norm(
    a: mx.array, b: mx.array, norm: Callable[[mx.array], mx.array]
) -> tuple[mx.array, mx.array]:
    """a + b, and its norm."""
    total = a + b
    return total, norm(total)


def _silu(x: mx.array) -> mx.array:
    return x * mx.sigmoid(x)


def _gelu(x: mx.array) -> mx.array:
    return x * (1 + mx.erf(x / math.sqrt(2))) / 2


def _gelu_approx(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _gelu_fast_approx(x: mx.array) -> mx.array:
    return x * mx.sigmoid(1.702 * x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "layer_norm": layer_norm,
    "silu": silu,
    "gelu": gelu,
    "gelu_approx": gelu_approx,
    "gelu_fast_approx": gelu_fast_approx,
    "swiglu": gated(_silu),
    "geglu": gated(_gelu),
    "geglu_approx": gated(_gelu_approx),
    "geglu_fast_approx": gated(_gelu_fast_approx),
    "add_norm": add_norm,
}
LINEAR: dict[str, Callable[..., Any]] = {"linear": linear, "addmm": addmm}


def _on(stream: Any) -> Any:
    return mx.stream(mx.default_stream(mx.default_device()) if stream is None else stream)


def _wide(x: mx.array) -> mx.array:
    return x.astype(mx.float32)


def _result(normed: mx.array, x: mx.array, *parameters: mx.array | None) -> mx.array:
    """normed * weight + bias, in the dtype where they meet."""
    given = [parameter for parameter in parameters if parameter is not None]
    # A bias alone does not count, as in `mx.fast.layer_norm`.
    dtype = mx.result_type(x, *given) if given and given[0] is parameters[0] else x.dtype
    for index, parameter in enumerate(parameters):
        if parameter is not None:
            wide = _wide(parameter)
            normed = normed + wide if index else normed * wide
    return normed.astype(dtype)
