"""`reduce`: sums, means, maxima and minima along the last or the first axis (SPEC B2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import metile_kernels.reductions as kernels
from metile_mlx.dispatch import Dispatch, empty
from metile_mlx.errors import LaunchError
from metile_mlx.nn.arrays import check_arrays
from metile_mlx.nn.kernel_function import KernelFunction
from metile_mlx.nn.layouts import column_lanes, row_lanes
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx

Operation = Literal["sum", "mean", "max", "min"]
_OPERATIONS = ("sum", "mean", "max", "min")
# Columns of a program of the gradient.
_COLUMNS = 256
# Groups of rows that a program of a column reduction takes one after the other.
_CHUNK = 32


def reduce(
    x: mx.array,
    operation: Operation,
    *,
    axis: int = -1,
    keepdims: bool = False,
    stream: Place = None,
) -> mx.array:
    """`mx.sum`, `mx.mean`, `mx.max` or `mx.min` along the last axis or the first.

    Floats are added in f32 whatever the dtype, with one rounding at the end; i32 and u32 wrap. A
    NaN makes a maximum or minimum NaN. A result depends on its own row or column alone, to the bit.
    The gradient of a maximum is shared by all elements that are the largest, as in MLX.
    Lazy; works in mx.compile, mx.vmap on the cpu and reference backends, metile.vmap everywhere,
    and metile.export.

    Args:
        x: f16, bf16 or f32; i32 and u32 too where `operation` is not "mean".
        operation: "sum", "mean", "max" or "min".
        axis: the last axis, -1, or the first, 0.
        keepdims: leave an axis of one element in its place.
        stream: an MLX stream or device.

    Returns:
        An array of x's dtype.

    Raises:
        LaunchError: another dtype, operation or axis, or the maximum or minimum of nothing.
    """
    if operation not in _OPERATIONS:
        raise LaunchError(
            f"[reduce] operation is {operation!r}; expected 'sum', 'mean', 'max' or 'min'"
        )
    check_arrays("reduce", x)
    floats, integers = (mx.float16, mx.bfloat16, mx.float32), (mx.int32, mx.uint32)
    if x.dtype not in floats and (operation == "mean" or x.dtype not in integers):
        expected = "float16, bfloat16 or float32"
        raise LaunchError(
            f"[reduce] x is {str(x.dtype).rpartition('.')[2]}; expected {expected}"
            + ("" if operation == "mean" else ", int32 or uint32")
        )
    last = x.ndim - 1
    if x.ndim == 0 or axis not in (-1, last, 0, -x.ndim):
        raise LaunchError(
            f"[reduce] axis is {axis} of an array of shape {tuple(x.shape)}; expected the last "
            "axis, -1, or the first, 0"
        )
    of_rows = axis in (-1, last)
    number = x.shape[-1] if of_rows else x.shape[0]
    rest = tuple(x.shape[:-1] if of_rows else x.shape[1:])
    kept = (*rest, 1) if of_rows else (1, *rest)
    if number == 0 and operation in ("max", "min"):
        raise LaunchError(f"[reduce] no {operation} of nothing: x has shape {tuple(x.shape)}")
    shape = kept if keepdims else rest
    if x.size == 0:
        nothing = float("nan") if operation == "mean" else 0
        return mx.full(shape, nothing, x.dtype, stream=stream)
    other = x.size // number
    matrix = mx.reshape(x, (other, number) if of_rows else (number, other), stream=stream)
    made: mx.array = Reduce.of(operation, of_rows, stream=stream)(matrix)
    return mx.reshape(made, shape, stream=stream)


class Reduce(KernelFunction):
    """One operation along the rows or the columns of a matrix."""

    def __init__(self, operation: Operation, of_rows: bool, *, stream: Place) -> None:
        super().__init__(stream=stream)
        self._operation = operation
        self._of_rows = of_rows

    def forward(self, x: mx.array) -> mx.array:
        """(rows, columns) -> (rows,) or (columns,)."""
        rows, columns = x.shape
        if not self._of_rows:
            return self._columns(x)
        made: mx.array = self.launch(
            kernels.reduce_rows,
            rows,
            x,
            empty(rows, x.dtype),
            columns,
            block=row_lanes,
            OPERATION=self._operation,
        )
        return made

    def _columns(self, x: mx.array) -> mx.array:
        """Chunks first, then what they gave, until one is left."""
        dtype, divisor = x.dtype, float(x.shape[0])
        is_sum = self._operation in ("sum", "mean")
        between = mx.float32 if is_sum and mx.issubdtype(dtype, mx.floating) else dtype
        while x.shape[0] > _CHUNK * kernels.GROUP:
            x = self._chunks(x, between, "sum" if is_sum else self._operation, divisor)
        made = self._chunks(x, dtype, self._operation, divisor)
        return made.reshape(x.shape[1], stream=self.stream)

    def _chunks(
        self, x: mx.array, dtype: mx.Dtype, operation: Operation, divisor: float
    ) -> mx.array:
        """(rows, columns) -> (chunks, columns) of a dtype."""
        rows, columns = x.shape
        groups, chunks = rows // kernels.GROUP, -(-rows // (_CHUNK * kernels.GROUP))
        output = empty((chunks, columns), dtype)
        arguments = (x, output, rows, columns, groups, min(groups, _CHUNK), divisor)

        def make(backend: str) -> Dispatch:
            block = column_lanes(backend)
            return kernels.reduce_columns[-(-columns // block), chunks].prepare(
                *arguments, OPERATION=operation, BLOCK=block, stream=self.stream
            )

        made: mx.array = self.ready((x.shape, x.dtype, dtype, operation), make)(*arguments)
        return made

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """A sum's cotangent goes to every element, that of a maximum to the largest ones."""
        (x,) = primals
        rows, columns = x.shape
        if not mx.issubdtype(x.dtype, mx.floating):
            return (mx.zeros_like(x, stream=self.stream),)
        if self._operation in ("max", "min"):
            return (self._extreme_gradient(x, outputs[0], cotangents[0]),)
        given = cotangents[0]
        if self._operation == "mean":
            number = columns if self._of_rows else rows
            given = (given.astype(mx.float32, stream=self.stream) / number).astype(x.dtype)
        given = given.reshape((rows, 1) if self._of_rows else (1, columns), stream=self.stream)
        return (mx.broadcast_to(given, x.shape, stream=self.stream),)

    def _extreme_gradient(self, x: mx.array, extremes: mx.array, cotangents: mx.array) -> mx.array:
        rows, columns = x.shape
        arguments = (x, extremes, cotangents, empty(x.shape, x.dtype))
        made: mx.array
        if self._of_rows:
            made = self.launch(
                kernels.extreme_rows_gradient, rows, *arguments, columns, block=row_lanes
            )
        else:
            made = self.launch(
                kernels.extreme_columns_gradient,
                -(-columns // _COLUMNS),
                *arguments,
                rows,
                columns,
                BLOCK=_COLUMNS,
            )
        return made
