"""Normalisation layers (SPEC B2)."""

from __future__ import annotations

from metile_mlx.nn.arrays import Rounding, checked_rounding
from metile_mlx.nn.layer_norm import layer_norm
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


class LayerNorm(Module):
    """Layer normalisation over the last axis: `mlx.nn.LayerNorm` on our kernels.

    Arguments and parameters are those of mlx.nn, so weights of either load into the other.

    Args:
        dims: size of the last axis.
        eps: added to the variance.
        affine: multiply by a weight, of ones at first.
        bias: with `affine`, add a bias, of zeros at first.
        rounding: as of `metile.layer_norm`.

    Raises:
        ValueError: eps is not positive, as in mlx.nn.
        LaunchError: a rounding of another name.
    """

    def __init__(
        self,
        dims: int,
        eps: float = 1e-5,
        affine: bool = True,
        bias: bool = True,
        rounding: Rounding = "mlx",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if eps <= 0:
            raise ValueError(f"[LayerNorm] 'eps' must be positive but got {eps}.")
        if affine:
            self.weight = mx.ones((dims,))
            if bias:
                self.bias = mx.zeros((dims,))
        self.eps = eps
        self.dims = dims
        self.rounding = checked_rounding("LayerNorm", rounding)

    def _extra_repr(self) -> str:
        return f"{self.dims}, eps={self.eps}, affine={'weight' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        weight = self.get("weight")
        bias = self.get("bias")
        return layer_norm(x, weight, bias, self.eps, rounding=self.rounding)
