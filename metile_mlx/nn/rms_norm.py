"""`rms_norm`: RMS normalisation of MLX arrays, with gradients by kernels (SPEC B2, F28)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metile_kernels.rmsnorm import (
    rmsnorm,
    rmsnorm_gradients,
    rmsnorm_register,
    rmsnorm_register_gradients,
    rmsnorm_rows,
)
from metile_mlx.dispatch import Dispatch, empty, own_dtype
from metile_mlx.nn.arrays import Rounding, as_float, check_columns, checked_rounding, result_dtype
from metile_mlx.nn.kernel_function import OneKernel
from metile_mlx.nn.layouts import (
    gradient_rows,
    row_block,
    rows_layout,
    rows_together,
)
from metile_mlx.nn.norm_weights import weight_gradients
from metile_mlx.nn.row_kernels import Ready, of_arrays, ready_row
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx
from metile_mlx.target import MAX_TILE


def rms_norm(
    x: mx.array,
    weight: mx.array | None,
    eps: float,
    *,
    rounding: Rounding = "mlx",
    stream: Place = None,
) -> mx.array:
    """Root mean square normalisation over the last axis: `x / sqrt(mean(x^2) + eps) * weight`.

    Takes what `mx.fast.rms_norm` takes and returns an array of the same shape and dtype: that of
    `x`, or the one in which `x` and `weight` meet. Squares, their sum and eps are f32 always.
    Lazy; has gradients of its own for `x` and `weight`, and works in mx.compile, mx.vmap on the cpu
    and reference backends, metile.vmap everywhere, and metile.export.

    Args:
        x: f16, bf16 or f32, of shape (..., N). Rows of up to 32768 elements are held in registers,
            wider ones are read twice.
        weight: one value for each of the N columns, or None.
        eps: added to the mean square.
        rounding: "mlx": the normalised value is rounded to the dtype of the result, then multiplied
            by the weight in it, as `mx.fast.rms_norm` does; "f32": one rounding, at the end (F66).
        stream: an MLX stream or device.

    Raises:
        LaunchError: shapes or dtypes that don't fit, or an unknown rounding.
    """
    dtype = result_dtype("rms_norm", x, optional=(weight,))
    check_columns("rms_norm", x, weight=weight)
    rounded = checked_rounding("rms_norm", rounding) == "mlx"
    if x.size == 0:
        return mx.zeros(x.shape, dtype)
    norm = RmsNorm.of(float(eps), rounded, dtype, stream=stream)
    arrays = [as_float(x, dtype).reshape(-1, x.shape[-1], stream=stream)]
    if weight is not None:
        arrays.append(as_float(weight, dtype))
    return mx.reshape(norm(*arrays), x.shape, stream=stream)


class RmsGradients(OneKernel):
    """What the norm of a matrix's rows and that of a sum of two share: options and gradients."""

    def __init__(self, eps: float, rounded: bool, dtype: mx.Dtype, *, stream: Place) -> None:
        super().__init__(stream=stream)
        self._eps = eps
        self._rounded = rounded
        self._dtype = dtype

    def gradients(
        self,
        x: mx.array,
        weight: mx.array | None,
        cotangent: mx.array,
        passed: mx.array | None = None,
    ) -> tuple[mx.array, ...]:
        """Of the norm for x, with `passed` added to it, and for the weight where there is one."""
        rows, columns = x.shape
        is_wide = columns > MAX_TILE
        together = 1 if is_wide else gradient_rows(rows)
        # Of the weight: its parts, or what they are made from.
        other = (rows,) if is_wide else (rows // together, columns)
        arguments: tuple[Any, ...] = (
            x,
            x if weight is None else weight,
            cotangent,
            x if passed is None else passed,
            empty(x.shape, x.dtype),
            empty(other, mx.float32),
            *((columns,) if is_wide else ()),
            self._eps,
        )

        def make(_: str) -> Dispatch:
            options: dict[str, Any] = {"WEIGHTED": weight is not None, "PASSED": passed is not None}
            if is_wide:
                return rmsnorm_gradients[(rows,)].prepare(*arguments, **options, stream=self.stream)
            return rmsnorm_register_gradients[(rows // together,)].prepare(
                *arguments, **options, N=columns, BLOCK=row_block(columns), ROWS=together,
                stream=self.stream,
            )  # fmt: skip

        dtypes = [None if a is None else a.dtype for a in (weight, cotangent, passed)]
        made = self.ready(("backward", x.shape, x.dtype, *dtypes), make)(*arguments)
        if weight is None:
            return (made[0] if is_wide else made,)
        if is_wide:
            (total,) = weight_gradients(
                x, cotangent, None, made[1], weighted=True, biased=False, stream=self.stream
            )
        else:
            total = mx.sum(made[1], axis=0, stream=self.stream)
        return made[0], total.astype(weight.dtype, stream=self.stream)


class RmsNorm(RmsGradients):
    """The norm of the rows of a matrix."""

    def prepared(self, backend: str, x: mx.array, weight: mx.array | None = None) -> Ready:
        """(rows, N), (N,) -> (rows, N) of the result's dtype."""
        rows, columns = x.shape
        output, eps, stream = empty(x.shape, self._dtype), self._eps, self.stream
        options: dict[str, Any] = {
            "ROUND_NORMALISED": self._rounded,
            "WEIGHTED": weight is not None,
        }
        arguments = (x, x if weight is None else weight, output)
        if columns > MAX_TILE:
            return rmsnorm[(rows,)].prepare(*arguments, columns, eps, **options, stream=stream)
        block, dtype = row_block(columns), own_dtype(x.dtype, "rms_norm")
        together = rows_together(backend, dtype, rows, columns)
        if together == 1:
            # In lines as `add_rms_norm`: the squares of a sum are added up in the same order (F73).
            one = ready_row(
                rmsnorm_register, rows, (*arguments, eps), options, backend, dtype, columns, stream,
                in_lines=True,
            )  # fmt: skip
            return of_arrays(one, lambda x, w=None: (x, x if w is None else w, output, eps))
        return rmsnorm_rows[(rows // together,)].prepare(
            *arguments, eps, rows, **options, N=columns, BLOCK=block, ROWS=together, WHOLE=True,
            LAYOUT=rows_layout(backend, dtype, together, block), stream=stream,
        )  # fmt: skip

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """Gradients for x, and for the weight where there is one."""
        x, weight = primals if len(primals) == 2 else (primals[0], None)
        return self.gradients(x, weight, cotangents[0])
