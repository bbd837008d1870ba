"""Rotary position embedding as a layer (SPEC B2)."""

from __future__ import annotations

from metile_mlx.nn.optional import Module
from metile_mlx.nn.rope import rope
from metile_mlx.runtime.optional import mx


class RoPE(Module):
    """`mlx.nn.RoPE` on our kernels: the same arguments, and no parameter.

    Args:
        dims: features that turn; the others stay.
        traditional: pairs are neighbours, not half of `dims` apart.
        base: of the angular frequencies.
        scale: of the positions.
    """

    def __init__(
        self, dims: int, traditional: bool = False, base: float = 10000, scale: float = 1.0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dims = dims
        self.traditional = traditional
        self.base = base
        self.scale = scale

    def _extra_repr(self) -> str:
        return f"{self.dims}, traditional={self.traditional}"

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        return rope(
            x,
            self.dims,
            traditional=self.traditional,
            base=self.base,
            scale=self.scale,
            offset=offset,
        )
