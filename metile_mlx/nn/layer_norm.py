"""`layer_norm`: layer normalisation of MLX arrays, with gradients by kernels (B2, F28, F69)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metile_kernels.layernorm import (
    layernorm,
    layernorm_gradients,
    layernorm_register,
    layernorm_register_gradients,
)
from metile_mlx.dispatch import Dispatch, empty, own_dtype
from metile_mlx.nn.arrays import (
    Rounding,
    as_float,
    check_columns,
    checked_rounding,
    result_dtype,
)
from metile_mlx.nn.kernel_function import OneKernel
from metile_mlx.nn.layouts import gradient_rows, narrow_rows, row_block
from metile_mlx.nn.norm_weights import weight_gradients
from metile_mlx.nn.row_kernels import Ready, of_arrays, ready_row
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx
from metile_mlx.target import MAX_TILE


def layer_norm(
    x: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    eps: float,
    *,
    rounding: Rounding = "mlx",
    stream: Place = None,
) -> mx.array:
    """`(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last axis.

    Takes what `mx.fast.layer_norm` takes and returns an array of the same shape and dtype: the one
    in which `x`, `weight` and `bias` meet, or that of `x` where there is no weight. Mean, variance
    and eps are f32 always; the variance is taken from the differences to the mean. Lazy, with
    gradients of its own, as `rms_norm`.

    Args:
        x: f16, bf16 or f32, of shape (..., N). Rows of up to 32768 elements are held in registers,
            wider ones are read three times.
        weight, bias: one value for each of the N columns, or None.
        eps: added to the variance.
        rounding: "mlx": the normalised value, its product with the weight and the sum with the bias
            are each rounded to the dtype of the result, as `mx.fast.layer_norm` does; "f32": one
            rounding, at the end.
        stream: an MLX stream or device.

    Raises:
        LaunchError: shapes or dtypes that don't fit, or an unknown rounding.
    """
    dtype = result_dtype("layer_norm", x, optional=(weight, bias))
    check_columns("layer_norm", x, weight=weight, bias=bias)
    if weight is None and bias is not None:
        # As MLX has it: a bias alone is rounded to the dtype of x.
        dtype = result_dtype("layer_norm", x)
    rounded = checked_rounding("layer_norm", rounding) == "mlx"
    if x.size == 0:
        return mx.zeros(x.shape, dtype)
    norm = LayerNormRows.of(
        float(eps), rounded, dtype, weight is not None, bias is not None, stream=stream
    )
    arrays = [as_float(x, dtype).reshape(-1, x.shape[-1], stream=stream)]
    arrays += [as_float(scale, dtype) for scale in (weight, bias) if scale is not None]
    return mx.reshape(norm(*arrays), x.shape, stream=stream)


class LayerNormRows(OneKernel):
    """The layer norm of the rows of a matrix."""

    def __init__(
        self,
        eps: float,
        rounded: bool,
        dtype: mx.Dtype,
        weighted: bool,
        biased: bool,
        *,
        stream: Place,
    ) -> None:
        super().__init__(stream=stream)
        self._eps = eps
        self._rounded = rounded
        self._dtype = dtype
        self._weighted = weighted
        self._biased = biased

    def _scales(self, x: mx.array, scales: Sequence[mx.array]) -> tuple[mx.array, mx.array]:
        """Weight and bias; `x` stands for what there is not."""
        weight = scales[0] if self._weighted else x
        return weight, scales[-1] if self._biased else x

    def prepared(self, backend: str, x: mx.array, *scales: mx.array) -> Ready:
        """(rows, N), and (N,) for the weight and the bias -> (rows, N) of the result's dtype."""
        rows, columns = x.shape
        weight, bias = self._scales(x, scales)
        output, eps = empty(x.shape, self._dtype), self._eps
        options: dict[str, Any] = {
            "ROUND_STEPS": self._rounded,
            "WEIGHTED": self._weighted,
            "BIASED": self._biased,
        }
        if columns > MAX_TILE:
            return layernorm[(rows,)].prepare(
                x, weight, bias, output, columns, eps, **options, stream=self.stream
            )
        dtype = own_dtype(x.dtype, "layer_norm")
        one = ready_row(
            layernorm_register, rows, (x, weight, bias, output, eps), options, backend, dtype,
            columns, self.stream, narrow_rows(backend, dtype, rows, columns),
        )  # fmt: skip
        return of_arrays(one, lambda x, *scales: (x, *self._scales(x, scales), output, eps))

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """Gradients for x, and for the weight and the bias where they are given."""
        x, scales = primals[0], primals[1:]
        weight, _ = self._scales(x, scales)
        if x.shape[-1] > MAX_TILE:
            made = self._wide(x, weight, cotangents[0])
        else:
            made = self._in_registers(x, weight, cotangents[0])
        totals = [
            total.astype(scale.dtype, stream=self.stream)
            for total, scale in zip(made[1:], scales, strict=True)
        ]
        return made[0], *totals

    def _in_registers(self, x: mx.array, weight: mx.array, cotangent: mx.array) -> list[mx.array]:
        rows, columns = x.shape
        together = gradient_rows(rows)
        parts = empty((rows // together, columns), mx.float32)
        arguments = (x, weight, cotangent, empty(x.shape, x.dtype), parts, parts, self._eps)

        def make(_: str) -> Dispatch:
            return layernorm_register_gradients[(rows // together,)].prepare(
                *arguments, N=columns, BLOCK=row_block(columns), ROWS=together,
                WEIGHTED=self._weighted, BIASED=self._biased, stream=self.stream,
            )  # fmt: skip

        facts = ("backward", x.shape, x.dtype, weight.dtype, cotangent.dtype)
        made = self.ready(facts, make)(*arguments)
        every = made if isinstance(made, tuple) else (made,)
        return [every[0], *(mx.sum(part, axis=0, stream=self.stream) for part in every[1:])]

    def _wide(self, x: mx.array, weight: mx.array, cotangent: mx.array) -> list[mx.array]:
        rows, columns = x.shape
        statistic = empty((rows,), mx.float32)
        gradient, means, roots = layernorm_gradients[(rows,)](
            x, weight, cotangent, empty(x.shape, x.dtype), statistic, statistic, columns,
            self._eps, WEIGHTED=self._weighted, stream=self.stream,
        )  # fmt: skip
        if not (self._weighted or self._biased):
            return [gradient]
        totals = weight_gradients(
            x, cotangent, means, roots, weighted=self._weighted, biased=self._biased,
            stream=self.stream,
        )  # fmt: skip
        return [gradient, *totals]
