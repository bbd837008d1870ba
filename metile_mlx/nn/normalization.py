"""Normalisation layers (SPEC B2)."""

from __future__ import annotations

from metile_mlx.nn.arrays import Rounding, checked_rounding
from metile_mlx.nn.optional import Module
from metile_mlx.nn.rms_norm import rms_norm
from metile_mlx.runtime.optional import mx


class RMSNorm(Module):
    """RMS normalisation over the last axis: `mlx.nn.RMSNorm` on our kernels.

    y = x / sqrt(mean(x^2) + eps) * weight, with weight initialised to ones. The parameter has the
    same name as in mlx.nn, so weights of either load into the other.

        norm = metile.nn.RMSNorm(dims)
        y = norm(x)                        # x: (..., dims), f16, bf16 or f32

    Args:
        dims: size of the last axis.
        eps: added to the mean square.
        rounding: "mlx" as `mx.fast.rms_norm` rounds, "f32" once at the end.

    Raises:
        LaunchError: a rounding of another name.
    """

    def __init__(self, dims: int, eps: float = 1e-5, rounding: Rounding = "mlx") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.weight = mx.ones((dims,))
        self.eps = eps
        self.rounding = checked_rounding("RMSNorm", rounding)

    def _extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"

    def __call__(self, x: mx.array) -> mx.array:
        return rms_norm(x, self["weight"], self.eps, rounding=self.rounding)
