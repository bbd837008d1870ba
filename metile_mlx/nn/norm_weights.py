"""Gradients of a norm's weight and bias from the statistics of the rows, for rows of any width."""

from __future__ import annotations

from metile_kernels.norm_weights import norm_weight_gradients
from metile_mlx.dispatch import empty
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx

# Rows that a program adds up: parts are a 64th of the inputs, and many rows are many programs.
_CHUNK = 64
_BLOCK = 256


def weight_gradients(
    x: mx.array,
    cotangent: mx.array,
    means: mx.array | None,
    roots: mx.array,
    *,
    weighted: bool,
    biased: bool,
    stream: Place,
) -> tuple[mx.array, ...]:
    """The f32 gradients, that of the weight first, each where it is asked for.

    Args:
        x, cotangent: (rows, width).
        means: (rows,), f32; None where nothing is subtracted.
        roots: (rows,), f32: what the rows are multiplied by.
    """
    rows, width = x.shape
    chunk = min(_CHUNK, rows)
    grid = (-(-width // _BLOCK), -(-rows // chunk))
    parts = empty((grid[1], width), mx.float32)
    made = norm_weight_gradients[grid](
        x, cotangent, roots if means is None else means, roots, parts, parts, rows, width, chunk,
        BLOCK=_BLOCK, CENTRED=means is not None, WEIGHTED=weighted, BIASED=biased, stream=stream,
    )  # fmt: skip
    every = made if isinstance(made, tuple) else (made,)
    return tuple(mx.sum(part, axis=0, stream=stream) for part in every)
