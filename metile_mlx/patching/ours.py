"""What a patched method calls: functions of metile_mlx.nn where they are made for the arguments.

A method may call an activation or add with anything, such as a scalar or integers. Where the
kernels are not made for it, MLX's own operations run, as the method has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metile_mlx.nn.add_rms_norm import add_rms_norm
from metile_mlx.nn.rms_norm import rms_norm
from metile_mlx.patching.forms import form_of, is_swapped
from metile_mlx.runtime.optional import mx

_FLOATS = (mx.float16, mx.bfloat16, mx.float32)


def add_norm(a: Any, b: Any, norm: Callable[[Any], Any]) -> tuple[Any, Any]:
    """a + b, and its norm; in one kernel where the norm runs on ours."""
    form = form_of(norm) if is_swapped(norm) and _are_alike(a, b) else None
    if form is None:
        total = a + b
        return total, norm(total)
    weight, eps = form(norm, None)
    normed, total = add_rms_norm(a, b, weight, eps)
    return total, normed


def _are_alike(a: object, b: object) -> bool:
    """Two float arrays of one shape and dtype."""
    return (
        isinstance(a, mx.array)
        and isinstance(b, mx.array)
        and a.shape == b.shape
        and a.dtype == b.dtype
        and a.dtype in _FLOATS
        and a.ndim > 0
    )


FUNCTIONS: dict[str, Callable[..., Any]] = {"rms_norm": rms_norm, "add_norm": add_norm}
