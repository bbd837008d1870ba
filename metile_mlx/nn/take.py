"""`take`: rows of a table by their numbers, as an embedding takes them (SPEC B2)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import metile_kernels.gather as kernels
from metile_mlx.dispatch import Dispatch, empty
from metile_mlx.errors import LaunchError
from metile_mlx.nn.arrays import as_indices, check_arrays
from metile_mlx.nn.kernel_function import OneKernel
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx


def take(table: mx.array, ids: mx.array, *, stream: Place = None) -> mx.array:
    """Rows of a table: `mx.take(table, ids, axis=0)`, bit for bit.

    The gradient adds up the cotangents of each row in f32, by MLX's scatter.
    Lazy; works in mx.compile, mx.vmap over ids on the cpu and reference backends, metile.vmap
    everywhere, and metile.export.

    Args:
        table: of shape (size, N) and any dtype that kernels load.
        ids: integers of any shape. -size to -1 count from the end, as MLX's indices. Any other
            outside of 0 to size - 1 reads nothing, which MLX does not promise: its row is NaN, or
            0 in a table of integers, and has no gradient.
        stream: an MLX stream or device.

    Returns:
        An array of shape (*ids.shape, N) and the table's dtype.

    Raises:
        LaunchError: shapes or dtypes that don't fit.
    """
    check_arrays("take", table)
    if table.ndim != 2:
        raise LaunchError(
            f"[take] table has shape {tuple(table.shape)}; expected (size, N), rows to take"
        )
    rows = as_indices("take", ids, "ids").reshape(-1, stream=stream)
    shape = (*ids.shape, table.shape[1])
    if ids.size == 0 or table.shape[1] == 0:
        return mx.zeros(shape, table.dtype, stream=stream)
    made: mx.array = Take.of(stream=stream)(table, rows)
    return mx.reshape(made, shape, stream=stream)


class Take(OneKernel):
    """Rows of a matrix by a vector of their numbers."""

    def prepared(self, backend: str, table: mx.array, ids: mx.array) -> Dispatch:
        """(size, N), (number,) -> (number, N)."""
        size, width = table.shape
        output = empty((ids.size, width), table.dtype)
        return kernels.gather[ids.size].prepare(table, ids, output, size, width, stream=self.stream)

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """For the table; ids have none. What lies outside is added to row 0 as nothing."""
        table, ids = primals
        none = mx.zeros_like(ids, stream=self.stream)
        if not mx.issubdtype(table.dtype, mx.floating):
            return mx.zeros_like(table, stream=self.stream), none
        with nullcontext() if self.stream is None else mx.stream(self.stream):
            size = table.shape[0]
            inside = (ids >= -size) & (ids < size)
            given = mx.where(inside[:, None], cotangents[0].astype(mx.float32), 0)
            places = mx.where(inside, mx.where(ids < 0, ids + size, ids), 0)
            gradient = mx.zeros(table.shape, mx.float32).at[places].add(given)
            return gradient.astype(table.dtype), none
