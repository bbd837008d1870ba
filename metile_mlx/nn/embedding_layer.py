"""Rows of a table as a layer (SPEC B2)."""

from __future__ import annotations

from typing import Any

from metile_mlx.nn import optional
from metile_mlx.nn.take import take
from metile_mlx.runtime.optional import mx


class Embedding(optional.Embedding):
    """`mlx.nn.Embedding` on our kernels, and a subclass of it.

    Arguments, the parameter `weight`, `as_linear` and `to_quantized` are MLX's, so weights of
    either load into the other. Rows are those of `metile.take`: an id outside of the table gives
    NaN and has no gradient, where MLX promises nothing.

    Args:
        num_embeddings: rows of the table.
        dims: elements of a row.

    Raises:
        LaunchError: when called: a weight whose dtype kernels don't load, or that is no matrix.
    """

    def __call__(self, x: mx.array) -> mx.array:
        return embedded(self["weight"], x)


def embedded(table: mx.array, x: Any) -> mx.array:
    """Rows of a table by an array of integers; by another index, an int for example, MLX's."""
    if isinstance(x, mx.array) and mx.issubdtype(x.dtype, mx.integer):
        return take(table, x)
    return table[x]
