"""`top1`: the largest element of each row and its place (SPEC B2, F51)."""

from __future__ import annotations

from collections.abc import Sequence

import metile_kernels.top1 as kernels
from metile_mlx.dispatch import empty
from metile_mlx.errors import LaunchError
from metile_mlx.nn.arrays import as_rows, check_arrays
from metile_mlx.nn.kernel_function import OneKernel
from metile_mlx.nn.layouts import row_lanes
from metile_mlx.nn.row_kernels import Ready, of_arrays, ready_lanes
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx


def top1(x: mx.array, *, stream: Place = None) -> tuple[mx.array, mx.array]:
    """The largest element along the last axis and its index, in one pass over x.

    `mx.max(x, axis=-1)` and `mx.argmax(x, axis=-1)`: of equal elements the first, whatever the
    order in which threads come together. A row with a NaN gives NaN and the index of the first one,
    as `metile.argmax` does. The gradient of a value goes to the element at its index.
    Lazy; works in mx.compile, mx.vmap on the cpu and reference backends, metile.vmap everywhere,
    and metile.export.

    Args:
        x: f16, bf16, f32, i32 or u32, of shape (..., N).
        stream: an MLX stream or device.

    Returns:
        Values of x's dtype and indices, uint32, both of shape (...).

    Raises:
        LaunchError: another dtype, or rows of no elements.
    """
    check_arrays("top1", x)
    if x.dtype not in (mx.float16, mx.bfloat16, mx.float32, mx.int32, mx.uint32):
        raise LaunchError(
            f"[top1] x is {str(x.dtype).rpartition('.')[2]}; expected float16, bfloat16, float32, "
            "int32 or uint32"
        )
    rows = as_rows("top1", x, stream)
    if x.shape[-1] == 0:
        raise LaunchError(f"[top1] nothing is the largest of nothing: x has shape {tuple(x.shape)}")
    shape = x.shape[:-1]
    if x.size == 0:
        return mx.zeros(shape, x.dtype), mx.zeros(shape, mx.uint32)
    values, indices = Top1.of(stream=stream)(rows)
    return mx.reshape(values, shape, stream=stream), mx.reshape(indices, shape, stream=stream)


class Top1(OneKernel):
    """The largest of each row of a matrix."""

    def prepared(self, backend: str, x: mx.array) -> Ready:
        """(rows, N) -> values (rows,), indices (rows,)."""
        rows, width = x.shape
        more = (empty(rows, x.dtype), empty(rows, mx.uint32), width)
        ready = ready_lanes(kernels.top1, rows, (x, *more), {}, backend, self.stream)
        return of_arrays(ready, lambda x: (x, *more))

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """The values' cotangents at their indices."""
        (x,) = primals
        rows, width = x.shape
        if not mx.issubdtype(x.dtype, mx.floating):
            return (mx.zeros_like(x, stream=self.stream),)
        arguments = (outputs[1], cotangents[0], empty(x.shape, x.dtype), width)
        return (self.launch(kernels.top1_gradient, rows, *arguments, block=row_lanes),)
