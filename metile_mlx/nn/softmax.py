"""`softmax` and `log_softmax` over the last axis, with gradients by kernels (SPEC B2, F24)."""

from __future__ import annotations

from collections.abc import Sequence

import metile_kernels.softmax as kernels
from metile_mlx.dispatch import empty
from metile_mlx.nn.arrays import as_float, as_rows, check_arrays, result_dtype
from metile_mlx.nn.kernel_function import OneKernel
from metile_mlx.nn.layouts import row_lanes
from metile_mlx.nn.row_kernels import Ready, of_arrays, ready_lanes
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx


def softmax(x: mx.array, *, stream: Place = None) -> mx.array:
    """`exp(x) / sum(exp(x))` over the last axis: `mx.softmax(x, axis=-1, precise=True)`.

    The row is read twice, whatever its width. Arithmetic is f32, with one rounding at the end. A
    row's result depends on nothing but the row. `-inf` gives 0; a row of nothing else, or with NaN
    or +inf in it, gives NaN throughout, as in MLX.
    Lazy; has a gradient of its own, and works in mx.compile, mx.vmap on the cpu and reference
    backends, metile.vmap everywhere, and metile.export.

    Args:
        x: f16, bf16 or f32, of shape (..., N); integers give f32.
        stream: an MLX stream or device.

    Returns:
        An array of the same shape.

    Raises:
        LaunchError: x has no axis, or is of another dtype.
    """
    return _of_rows("softmax", False, x, stream)


def log_softmax(x: mx.array, *, stream: Place = None) -> mx.array:
    """`x - log(sum(exp(x)))` over the last axis: `mlx.nn.log_softmax(x, axis=-1)`.

    As `softmax`, whose arguments it has; `-inf` gives `-inf`.

    Raises:
        LaunchError: as `softmax`.
    """
    return _of_rows("log_softmax", True, x, stream)


def _of_rows(name: str, log: bool, x: mx.array, stream: Place) -> mx.array:
    check_arrays(name, x)
    is_integer = mx.issubdtype(x.dtype, mx.integer) or x.dtype == mx.bool_
    dtype = mx.float32 if is_integer else result_dtype(name, x)
    rows = as_rows(name, as_float(x, dtype), stream)
    if x.size == 0:
        return mx.zeros(x.shape, dtype)
    made: mx.array = Softmax.of(log, stream=stream)(rows)
    return mx.reshape(made, x.shape, stream=stream)


class Softmax(OneKernel):
    """Softmax of the rows of a matrix, or its logarithm."""

    def __init__(self, log: bool, *, stream: Place) -> None:
        super().__init__(stream=stream)
        self._log = log

    def prepared(self, backend: str, x: mx.array) -> Ready:
        """(rows, N) -> (rows, N)."""
        rows, width = x.shape
        more = (empty(x.shape, x.dtype), width)
        ready = ready_lanes(
            kernels.softmax, rows, (x, *more), {"LOG": self._log}, backend, self.stream
        )
        return of_arrays(ready, lambda x: (x, *more))

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """From the outputs; of a logarithm from the inputs."""
        kernel = kernels.log_softmax_gradient if self._log else kernels.softmax_gradient
        (x,) = primals if self._log else outputs
        rows, width = x.shape
        arguments = (x, cotangents[0], empty(x.shape, x.dtype), width)
        return (self.launch(kernel, rows, *arguments, block=row_lanes),)
