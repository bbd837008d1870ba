"""`rope`: rotary position embedding of MLX arrays, with gradients by kernels (SPEC B2, F28)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from contextlib import nullcontext

from metile_kernels.rope import rope as rope_kernel
from metile_mlx.dispatch import Dispatch, empty
from metile_mlx.errors import LaunchError
from metile_mlx.nn.arrays import check_arrays, result_dtype
from metile_mlx.nn.kernel_function import OneKernel
from metile_mlx.nn.layouts import heads_together, row_block
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx
from metile_mlx.target import MAX_THREADS


def rope(
    x: mx.array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None = None,
    stream: Place = None,
) -> mx.array:
    """Rotary position embedding: takes what `mx.fast.rope` takes and gives what it gives.

    Pair i of position t turns by `scale * (t + offset) * base ** (-2 i / dims)`, or by
    `scale * (t + offset) / freqs[i]`. Angles and turns are f32, rounded once at the end, as on
    Metal. Lazy; `x` and `freqs` have gradients.

    Args:
        x: f16, bf16 or f32, of shape (B, ..., T, D).
        dims: features that turn, even, D at most; the others stay.
        traditional: pairs are neighbours, not half of `dims` apart.
        base: of the angular frequencies; None where `freqs` are given.
        scale: of the positions.
        offset: where positions start: an int, or integers of shape (), (1,) or (B,).
        freqs: dims / 2 periods.
        stream: an MLX stream or device.

    Raises:
        LaunchError: shapes, dtypes or options that don't fit.
    """
    dtype = result_dtype("rope", x)
    _check(x, dims, base, freqs)
    offsets = _offsets(x, offset, stream)
    if x.size == 0:
        return mx.zeros(x.shape, dtype)
    octaves = 0.0 if base is None else math.log2(base)
    turn = Turn.of(int(dims), bool(traditional), octaves, float(scale), 1.0, stream=stream)
    positions, width = x.shape[-2:]
    # What turns by the same angles is one array, whose heads share sines and cosines.
    batch = x.shape[0] if offsets.size > 1 else 1
    arrays = [mx.reshape(x, (batch, -1, positions, width), stream=stream), offsets]
    if freqs is not None:
        arrays.append(freqs.astype(mx.float32, stream=stream))
    return mx.reshape(turn(*arrays), x.shape, stream=stream)


def _check(x: mx.array, dims: int, base: float | None, freqs: mx.array | None) -> None:
    if x.ndim < 3:
        raise LaunchError(f"[rope] x has shape {tuple(x.shape)}; expected (B, ..., T, D)")
    if not 0 < dims <= x.shape[-1] or dims % 2:
        raise LaunchError(
            f"[rope] dims is {dims}; expected an even number of 2 to {x.shape[-1]}, the features "
            "of x"
        )
    if (base is None) == (freqs is None):
        raise LaunchError("[rope] expected one of base and freqs; the other has to be None")
    if base is not None and not base > 0:
        raise LaunchError(f"[rope] base is {base}; expected a positive number")
    if freqs is None:
        return
    check_arrays("rope", freqs)
    if tuple(freqs.shape) != (dims // 2,):
        raise LaunchError(
            f"[rope] freqs has shape {tuple(freqs.shape)}; expected ({dims // 2},), half of dims"
        )


def _offsets(x: mx.array, offset: int | mx.array, stream: Place) -> mx.array:
    """(1,) or (B,) of i32."""
    if not isinstance(offset, mx.array):
        try:
            return mx.array([operator.index(offset)], mx.int32)
        except (TypeError, RuntimeError):
            # MLX says std::bad_cast of what 32 bits do not hold.
            raise LaunchError(
                f"[rope] offset is {offset!r}; expected an int of 32 bits, or an array of integers"
            ) from None
    if not mx.issubdtype(offset.dtype, mx.integer) or offset.size not in (1, x.shape[0]):
        raise LaunchError(
            f"[rope] offset is {str(offset.dtype).rpartition('.')[2]} of shape "
            f"{tuple(offset.shape)}; expected integers, one or {x.shape[0]} of them, one for each "
            "entry of the first axis of x"
        )
    return offset.reshape(-1, stream=stream).astype(mx.int32, stream=stream)


class Turn(OneKernel):
    """The embedding of an array of (batch, heads, positions, features)."""

    def __init__(
        self,
        dims: int,
        traditional: bool,
        octaves: float,
        scale: float,
        sign: float,
        *,
        stream: Place,
    ) -> None:
        super().__init__(stream=stream)
        self._dims = dims
        self._traditional = traditional
        self._octaves = octaves
        self._scale = scale
        self._sign = sign

    def prepared(
        self, backend: str, x: mx.array, offsets: mx.array, freqs: mx.array | None = None
    ) -> Dispatch:
        """(B, N, T, D), (1,) or (B,), (dims / 2,) -> (B, N, T, D)."""
        batch, heads, positions, width = x.shape
        together = heads_together(backend, heads)
        plane = positions * width
        numbers = (
            empty(x.shape, x.dtype), width, heads * plane, together * plane, plane,
            self._dims // 2, int(offsets.size > 1), together,
            self._scale, self._octaves, self._sign,
        )  # fmt: skip
        return rope_kernel[(positions, batch, heads // together)].prepare(
            x, offsets, offsets if freqs is None else freqs, *numbers,
            BLOCK=min(row_block(self._dims // 2), MAX_THREADS), TRADITIONAL=self._traditional,
            GIVEN=freqs is not None, stream=self.stream,
        )  # fmt: skip

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """Turned back for the array, none for the offsets, and that of the periods if given."""
        back = Turn.of(
            self._dims, self._traditional, self._octaves, self._scale, -self._sign,
            stream=self.stream,
        )  # fmt: skip
        offsets = primals[1]
        of_x = back(cotangents[0], *primals[1:])
        if len(primals) == 2:
            return of_x, mx.zeros_like(offsets)
        return of_x, mx.zeros_like(offsets), self._of_periods(primals, cotangents[0], outputs[0])

    def _of_periods(
        self, primals: Sequence[mx.array], cotangent: mx.array, output: mx.array
    ) -> mx.array:
        """Of angle = place / period the slope is -place / period^2; seldom asked for: MLX's ops."""
        x, offsets, freqs = primals
        with mx.stream(self.stream) if self.stream is not None else nullcontext():
            (c, d), (a, b) = (self._pairs(array) for array in (cotangent, output))
            by_angle = (d * a - c * b).sum(axis=1)
            places = self._scale * (mx.arange(x.shape[2]) + offsets[:, None])
            return -self._sign * (by_angle * places[..., None]).sum(axis=(0, 1)) / (freqs * freqs)

    def _pairs(self, x: mx.array) -> tuple[mx.array, mx.array]:
        wide = x[..., : self._dims].astype(mx.float32)
        if self._traditional:
            return wide[..., ::2], wide[..., 1::2]
        half = self._dims // 2
        return wide[..., :half], wide[..., half:]
