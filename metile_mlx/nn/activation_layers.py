"""Activations as layers (SPEC B2)."""

from __future__ import annotations

from metile_mlx.nn.activations import Approximation, gelu, gelu_of, silu
from metile_mlx.nn.arrays import Rounding, checked_rounding
from metile_mlx.nn.optional import Module
from metile_mlx.nn.softmax import log_softmax, softmax
from metile_mlx.runtime.optional import mx


class SiLU(Module):
    """`mlx.nn.SiLU` on our kernels; arguments as of `metile.silu`."""

    def __init__(self, rounding: Rounding = "mlx") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rounding = checked_rounding("SiLU", rounding)

    def __call__(self, x: mx.array) -> mx.array:
        return silu(x, rounding=self.rounding)


class GELU(Module):
    """`mlx.nn.GELU` on our kernels; arguments as of `metile.gelu`."""

    def __init__(self, approx: Approximation = "none", rounding: Rounding = "mlx") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        gelu_of("GELU", approx)
        self._approx = approx
        self.rounding = checked_rounding("GELU", rounding)

    def __call__(self, x: mx.array) -> mx.array:
        return gelu(x, self._approx, rounding=self.rounding)


class Softmax(Module):
    """`mlx.nn.Softmax` on our kernels: over the last axis, in f32, rounded once (`metile.softmax`).

    MLX's sums f16 and bf16 in f32 only where it is told to; ours always does.
    """

    def __call__(self, x: mx.array) -> mx.array:
        return softmax(x)


class LogSoftmax(Module):
    """`mlx.nn.LogSoftmax` on our kernels: over the last axis, as `metile.log_softmax`."""

    def __call__(self, x: mx.array) -> mx.array:
        return log_softmax(x)
