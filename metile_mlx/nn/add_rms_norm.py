"""`add_rms_norm`: residual sum and its RMS norm in one kernel, with gradients (SPEC B2, F73)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metile_kernels.add_rmsnorm import add_rmsnorm, add_rmsnorm_register
from metile_mlx.dispatch import empty, own_dtype
from metile_mlx.nn.arrays import (
    Rounding,
    as_float,
    broadcast,
    check_columns,
    checked_rounding,
    result_dtype,
)
from metile_mlx.nn.layouts import narrow_rows
from metile_mlx.nn.rms_norm import RmsGradients
from metile_mlx.nn.row_kernels import Ready, of_arrays, ready_row
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx
from metile_mlx.target import MAX_TILE


def add_rms_norm(
    x: mx.array,
    residual: mx.array,
    weight: mx.array | None,
    eps: float,
    *,
    rounding: Rounding = "mlx",
    stream: Place = None,
) -> tuple[mx.array, mx.array]:
    """`(rms_norm(x + residual, weight, eps), x + residual)` with one pass over the arrays.

    The sum has the bits of MLX's `x + residual`, and the norm is that of the sum as it is rounded
    (F73). Gradients, transforms and rounding are those of `rms_norm`.

    Args:
        x, residual: f16, bf16 or f32, of shapes that broadcast to (..., N).
        weight: one value for each of the N columns, or None.
        eps: added to the mean square.
        rounding: of the norm, as of `rms_norm`.
        stream: an MLX stream or device.

    Returns:
        The norm, in the dtype in which the sum and `weight` meet, and the sum.

    Raises:
        LaunchError: shapes or dtypes that don't fit, or an unknown rounding.
    """
    rounded = checked_rounding("add_rms_norm", rounding) == "mlx"
    sum_dtype = result_dtype("add_rms_norm", x, residual)
    dtype = result_dtype("add_rms_norm", x, residual, optional=(weight,))
    x, residual = broadcast("add_rms_norm", x, residual, stream)
    check_columns("add_rms_norm", x, weight=weight)
    shape = x.shape
    if x.size == 0:
        return mx.zeros(shape, dtype), mx.zeros(shape, sum_dtype)
    arrays = [as_float(a, sum_dtype).reshape(-1, shape[-1], stream=stream) for a in (x, residual)]
    if weight is not None:
        arrays.append(as_float(weight, dtype))
    norm = AddRmsNorm.of(float(eps), rounded, dtype, sum_dtype, stream=stream)
    made, total = norm(*arrays)
    return mx.reshape(made, shape, stream=stream), mx.reshape(total, shape, stream=stream)


class AddRmsNorm(RmsGradients):
    """The norm of the rows of a sum of matrices, the sum, and their gradients."""

    def __init__(
        self, eps: float, rounded: bool, dtype: mx.Dtype, sum_dtype: mx.Dtype, *, stream: Place
    ) -> None:
        super().__init__(eps, rounded, dtype, stream=stream)
        self._sum_dtype = sum_dtype

    def prepared(
        self, backend: str, x: mx.array, residual: mx.array, weight: mx.array | None = None
    ) -> Ready:
        """(rows, N) twice, (N,) -> the norm and the sum, (rows, N)."""
        rows, columns = x.shape
        outputs = empty(x.shape, self._dtype), empty(x.shape, self._sum_dtype)
        options: dict[str, Any] = {
            "ROUND_NORMALISED": self._rounded,
            "WEIGHTED": weight is not None,
        }
        arguments = (x, residual, x if weight is None else weight, *outputs)
        if columns > MAX_TILE:
            return add_rmsnorm[(rows,)].prepare(
                *arguments, columns, self._eps, **options, stream=self.stream
            )
        dtype = own_dtype(self._sum_dtype, "add_rms_norm")
        one = ready_row(
            add_rmsnorm_register, rows, (*arguments, self._eps), options, backend, dtype, columns,
            self.stream, narrow_rows(backend, dtype, rows, columns), in_lines=True,
        )  # fmt: skip
        more = (*outputs, self._eps)
        return of_arrays(one, lambda x, r, w=None: (x, r, x if w is None else w, *more))

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """Gradients for x, the residual, and for the weight where there is one."""
        x, residual = primals[:2]
        weight = primals[2] if len(primals) == 3 else None
        of_sum, *others = self.gradients(outputs[1], weight, cotangents[0], cotangents[1])
        return (
            of_sum.astype(x.dtype, stream=self.stream),
            of_sum.astype(residual.dtype, stream=self.stream),
            *others,
        )
