"""`rms_norm`: RMS normalisation of MLX arrays, with gradients by kernels (SPEC B2, F28)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from metile_kernels.rmsnorm import (
    rmsnorm_register,
    rmsnorm_register_gradients,
    rmsnorm_rows,
)
from metile_mlx.backends import BACKENDS
from metile_mlx.dispatch import Dispatch, empty, own_dtype
from metile_mlx.errors import LaunchError, UnsupportedError
from metile_mlx.nn.layouts import gradient_rows, row_layout, rows_layout, rows_together
from metile_mlx.runtime import export
from metile_mlx.runtime.backend import Place, choose
from metile_mlx.runtime.optional import mx
from metile_mlx.target import MAX_TILE, SIMD_WIDTH

Rounding = Literal["mlx", "f32"]
_ROUNDINGS = ("mlx", "f32")
# A kernel made ready, and the scalars it takes beside the arguments all of them take.
_Prepared: TypeAlias = "tuple[Dispatch, tuple[int, ...]]"
# Dispatches kept per set of options, one for each shape and dtype; dropped all at once (F04).
_KEPT = 256
_KEPT_NORMS = 64


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
    norm = _norm(float(eps), rounded, dtype, stream)
    # MLX can't write a custom_function to a file.
    function: Any = norm.differentiable if export.active_target() is None else norm.forward
    arrays = [_as_float(x, dtype).reshape(-1, x.shape[-1], stream=stream)]
    if weight is not None:
        arrays.append(_as_float(weight, dtype))
    return mx.reshape(function(*arrays), x.shape, stream=stream)


def checked_rounding(rounding: Rounding) -> Rounding:
    """The rounding, if it is one.

    Raises:
        LaunchError: it isn't.
    """
    if rounding not in _ROUNDINGS:
        raise LaunchError(f"[rms_norm] rounding is {rounding!r}; expected 'mlx' or 'f32'")
    return rounding


class _Norm:
    """The norm of the rows of a matrix, and its gradients, for one set of options."""

    def __init__(self, eps: float, rounded: bool, dtype: mx.Dtype, stream: Place) -> None:
        self._eps = eps
        self._rounded = rounded
        self._dtype = dtype
        self._stream = stream
        self._dispatches: dict[object, _Prepared] = {}
        self.differentiable = mx.custom_function(self.forward)
        self.differentiable.vjp(self.backward)

    def forward(self, x: mx.array, weight: mx.array | None = None) -> mx.array:
        """(rows, N), (N,) -> (rows, N) of the result's dtype."""
        arguments = (x, x if weight is None else weight, empty(x.shape, self._dtype), self._eps)

        def prepare(backend: str) -> _Prepared:
            rows, columns = x.shape
            block, dtype = _block(columns), own_dtype(x.dtype, "rms_norm")
            options: dict[str, Any] = {
                "N": columns,
                "BLOCK": block,
                "ROUND_NORMALISED": self._rounded,
                "WEIGHTED": weight is not None,
            }
            together = rows_together(backend, dtype, rows, columns)
            if together == 1:
                layout = row_layout(backend, dtype, columns, block)
                made = rmsnorm_register[(rows,)].prepare(
                    *arguments, **options, LAYOUT=layout, stream=self._stream
                )
                return made, ()
            layout = rows_layout(backend, dtype, together * block)
            made = rmsnorm_rows[(rows // together,)].prepare(
                *arguments, rows, **options, ROWS=together, WHOLE=True, LAYOUT=layout,
                stream=self._stream,
            )  # fmt: skip
            return made, (rows,)

        dispatch, more = self._dispatch("forward", x, weight, prepare)
        made: mx.array = dispatch(*arguments, *more)
        return made

    def backward(self, primals: object, cotangent: mx.array, _: object) -> object:
        """Gradients for x, and for the weight where there is one, in the form of `primals`."""
        # MLX hands a single argument over bare.
        x, weight = primals if isinstance(primals, (list, tuple)) else (primals, None)
        together = gradient_rows(x.shape[0])
        programs, columns = x.shape[0] // together, x.shape[-1]
        arguments = (
            x,
            x if weight is None else weight,
            cotangent,
            empty(x.shape, x.dtype),
            empty((programs, columns), mx.float32),
            self._eps,
        )

        def prepare(_: str) -> _Prepared:
            dispatch = rmsnorm_register_gradients[(programs,)].prepare(
                *arguments,
                N=columns,
                BLOCK=_block(columns),
                ROWS=together,
                WEIGHTED=weight is not None,
                stream=self._stream,
            )
            return dispatch, ()

        dispatch, _ = self._dispatch("backward", x, weight, prepare)
        made = dispatch(*arguments)
        if weight is None:
            return made
        total = mx.sum(made[1], axis=0, stream=self._stream)
        return made[0], total.astype(weight.dtype, stream=self._stream)

    def _dispatch(
        self,
        direction: str,
        x: mx.array,
        weight: mx.array | None,
        prepare: Callable[[str], _Prepared],
    ) -> _Prepared:
        """The kernel made ready for arrays like these, which saves most of a call's time."""
        backend = export.active_target() or choose(None, self._stream, BACKENDS).name
        key = (direction, backend, x.shape, x.dtype, None if weight is None else weight.dtype)
        found = self._dispatches.get(key)
        if found is None:
            if len(self._dispatches) >= _KEPT:
                self._dispatches.clear()
            found = self._dispatches[key] = prepare(backend)
        return found


def _block(columns: int) -> int:
    """The power of two that holds a row."""
    return max(SIMD_WIDTH, 1 << (columns - 1).bit_length())


_norms: dict[object, _Norm] = {}


def _norm(eps: float, rounded: bool, dtype: mx.Dtype, stream: Place) -> _Norm:
    # MLX's streams are equal by value and hash by identity: each `mx.default_stream` is another.
    key = (eps, rounded, dtype, None if stream is None else repr(stream))
    found = _norms.get(key)
    if found is None:
        if len(_norms) >= _KEPT_NORMS:
            _norms.clear()
        found = _norms[key] = _Norm(eps, rounded, dtype, stream)
    return found


def _as_float(x: mx.array, dtype: mx.Dtype) -> mx.array:
    """Floats as they are: the kernel widens them itself."""
    return x if mx.issubdtype(x.dtype, mx.floating) else x.astype(dtype)


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
    dtype = x.dtype if weight is None else mx.result_type(x, weight)
    if dtype not in (mx.float16, mx.bfloat16, mx.float32):
        raise LaunchError(
            f"[rms_norm] the result would be {str(dtype).rpartition('.')[2]}; expected float16, "
            "bfloat16 or float32"
        )
    if columns > MAX_TILE:
        raise UnsupportedError(
            f"[rms_norm] rows of {columns} elements; a row is held in registers, {MAX_TILE} "
            "elements at most, and the kernel that loops over wider rows is not there yet",
            hint="use mx.fast.rms_norm for these",
        )
    return dtype
