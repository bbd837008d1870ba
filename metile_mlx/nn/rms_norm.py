"""`rms_norm`: RMS normalisation of MLX arrays, with gradients by kernels (SPEC B2, F28)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from metile_kernels.rmsnorm import (
    rmsnorm_register,
    rmsnorm_register_gradients,
    rmsnorm_rows,
)
from metile_mlx.dispatch import Dispatch, empty, own_dtype
from metile_mlx.errors import LaunchError, UnsupportedError
from metile_mlx.nn.arrays import as_float, result_dtype
from metile_mlx.nn.kernel_function import KernelFunction
from metile_mlx.nn.layouts import (
    gradient_rows,
    row_block,
    row_layout,
    rows_layout,
    rows_together,
)
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx
from metile_mlx.target import MAX_TILE

Rounding = Literal["mlx", "f32"]
_ROUNDINGS = ("mlx", "f32")
_Forward: TypeAlias = "Callable[[mx.array, mx.array | None], mx.array]"


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
        x: f16, bf16 or f32, of shape (..., N) with N from 1 to 32768.
        weight: one value for each of the N columns, or None.
        eps: added to the mean square.
        rounding: "mlx": the normalised value is rounded to the dtype of the result, then multiplied
            by the weight in it, as `mx.fast.rms_norm` does; "f32": one rounding, at the end (F66).
        stream: an MLX stream or device.

    Raises:
        LaunchError: shapes or dtypes that don't fit, or an unknown rounding.
        UnsupportedError: rows of more than 32768 elements.
    """
    dtype = _checked(x, weight)
    rounded = checked_rounding(rounding) == "mlx"
    if x.size == 0:
        return mx.zeros(x.shape, dtype)
    norm = RmsNorm.of(float(eps), rounded, dtype, stream=stream)
    arrays = [as_float(x, dtype).reshape(-1, x.shape[-1], stream=stream)]
    if weight is not None:
        arrays.append(as_float(weight, dtype))
    return mx.reshape(norm(*arrays), x.shape, stream=stream)


def checked_rounding(rounding: Rounding) -> Rounding:
    """The rounding, if it is one.

    Raises:
        LaunchError: it isn't.
    """
    if rounding not in _ROUNDINGS:
        raise LaunchError(f"[rms_norm] rounding is {rounding!r}; expected 'mlx' or 'f32'")
    return rounding


class RmsNorm(KernelFunction):
    """The norm of the rows of a matrix, and its gradients."""

    def __init__(self, eps: float, rounded: bool, dtype: mx.Dtype, *, stream: Place) -> None:
        super().__init__(stream=stream)
        self._eps = eps
        self._rounded = rounded
        self._dtype = dtype

    def forward(self, x: mx.array, weight: mx.array | None = None) -> mx.array:
        """(rows, N), (N,) -> (rows, N) of the result's dtype."""
        facts = ("forward", x.shape, x.dtype, None if weight is None else weight.dtype)
        launch = self.ready(facts, lambda backend: self._forward(backend, x, weight))
        return launch(x, weight)

    def _forward(self, backend: str, x: mx.array, weight: mx.array | None) -> _Forward:
        rows, columns = x.shape
        block, dtype = row_block(columns), own_dtype(x.dtype, "rms_norm")
        output, eps, stream = empty(x.shape, self._dtype), self._eps, self.stream
        options: dict[str, Any] = {
            "N": columns,
            "BLOCK": block,
            "ROUND_NORMALISED": self._rounded,
            "WEIGHTED": weight is not None,
        }
        arguments = (x, x if weight is None else weight, output, eps)
        together = rows_together(backend, dtype, rows, columns)
        if together == 1:
            layout = row_layout(backend, dtype, columns, block)
            one = rmsnorm_register[(rows,)].prepare(
                *arguments, **options, LAYOUT=layout, stream=stream
            )
            return lambda x, w: one(x, x if w is None else w, output, eps)
        several = rmsnorm_rows[(rows // together,)].prepare(
            *arguments, rows, **options, ROWS=together, WHOLE=True, stream=stream,
            LAYOUT=rows_layout(backend, dtype, together, block),
        )  # fmt: skip
        return lambda x, w: several(x, x if w is None else w, output, eps, rows)

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """Gradients for x, and for the weight where there is one."""
        x, weight = primals if len(primals) == 2 else (primals[0], None)
        together = gradient_rows(x.shape[0])
        programs, columns = x.shape[0] // together, x.shape[-1]
        arguments = (
            x,
            x if weight is None else weight,
            cotangents[0],
            empty(x.shape, x.dtype),
            empty((programs, columns), mx.float32),
            self._eps,
        )

        def make(_: str) -> Dispatch:
            return rmsnorm_register_gradients[(programs,)].prepare(
                *arguments,
                N=columns,
                BLOCK=row_block(columns),
                ROWS=together,
                WEIGHTED=weight is not None,
                stream=self.stream,
            )

        facts = ("backward", x.shape, x.dtype, None if weight is None else weight.dtype)
        made = self.ready(facts, make)(*arguments)
        if weight is None:
            return (made,)
        total = mx.sum(made[1], axis=0, stream=self.stream)
        return made[0], total.astype(weight.dtype, stream=self.stream)


def _checked(x: mx.array, weight: mx.array | None) -> mx.Dtype:
    """The dtype of the result. Raises LaunchError and UnsupportedError as `rms_norm`."""
    if x.ndim == 0:
        raise LaunchError("[rms_norm] x has no axis to normalise over; expected at least one")
    columns = x.shape[-1]
    if weight is not None and tuple(weight.shape) != (columns,):
        raise LaunchError(
            f"[rms_norm] weight has shape {tuple(weight.shape)}; expected ({columns},), one value "
            f"for each element of the last axis of x, which is {tuple(x.shape)}"
        )
    dtype = result_dtype("rms_norm", *([x] if weight is None else [x, weight]))
    if columns > MAX_TILE:
        raise UnsupportedError(
            f"[rms_norm] rows of {columns} elements; a row is held in registers, {MAX_TILE} "
            "elements at most, and the kernel that loops over wider rows is not there yet",
            hint="use mx.fast.rms_norm for these",
        )
    return dtype
