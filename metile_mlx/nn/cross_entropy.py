"""`cross_entropy` of logits and integer targets, with its gradient by a kernel (SPEC B2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import metile_kernels.cross_entropy as kernels
from metile_mlx.dispatch import empty
from metile_mlx.errors import LaunchError
from metile_mlx.nn.arrays import as_indices, as_rows, check_arrays, result_dtype
from metile_mlx.nn.kernel_function import OneKernel
from metile_mlx.nn.layouts import row_lanes
from metile_mlx.nn.row_kernels import Ready, of_arrays, ready_lanes
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx

Reduction = Literal["none", "mean", "sum"]
_REDUCTIONS = ("none", "mean", "sum")


def cross_entropy(
    logits: mx.array, targets: mx.array, *, reduction: Reduction = "none", stream: Place = None
) -> mx.array:
    """`log(sum(exp(x))) - x[target]` over the last axis: `mlx.nn.losses.cross_entropy`.

    One pass over the logits, and one more for the gradient; neither makes another array of their
    size but the gradient. Arithmetic is f32 whatever the dtype, with one rounding at the end, after
    the mean or sum where there is one. A mean of no losses is NaN.
    Lazy; works in mx.compile, mx.vmap on the cpu and reference backends, metile.vmap everywhere,
    and metile.export.

    Args:
        logits: f16, bf16 or f32, of shape (..., N).
        targets: integers of the shape (...), from 0 to N - 1. Any other, -1 and a padding of -100
            too, reads nothing, and its loss and gradient are NaN: mask such losses with mx.where,
            and give those rows a target inside.
        reduction: "none" for one loss for each row; "mean" or "sum" of all.
        stream: an MLX stream or device.

    Returns:
        The losses, of the shape of targets, or their mean or sum, in the dtype of logits.

    Raises:
        LaunchError: shapes or dtypes that don't fit, no logits in a row, or an unknown reduction.
    """
    dtype = result_dtype("cross_entropy", logits)
    if reduction not in _REDUCTIONS:
        raise LaunchError(
            f"[cross_entropy] reduction is {reduction!r}; expected 'none', 'mean' or 'sum'"
        )
    rows = as_rows("cross_entropy", logits, stream)
    check_arrays("cross_entropy", targets)
    if targets.shape != logits.shape[:-1]:
        raise LaunchError(
            f"[cross_entropy] targets have shape {tuple(targets.shape)}; expected "
            f"{tuple(logits.shape[:-1])}, one for each row of logits, which are "
            f"{tuple(logits.shape)}"
        )
    if logits.shape[-1] == 0:
        raise LaunchError(f"[cross_entropy] rows without logits, of shape {tuple(logits.shape)}")
    indices = as_indices("cross_entropy", targets, "targets").reshape(-1, stream=stream)
    losses = mx.zeros((0,), mx.float32)
    if targets.size:
        wide = dtype if reduction == "none" else mx.float32
        losses = CrossEntropy.of(wide, stream=stream)(rows, indices)[0]
    if reduction == "none":
        return mx.reshape(losses.astype(dtype), targets.shape, stream=stream)
    reduced = (mx.mean if reduction == "mean" else mx.sum)(losses, stream=stream)
    return reduced.astype(dtype, stream=stream)


class CrossEntropy(OneKernel):
    """Losses of a matrix of logits in one dtype, and what the gradient needs of each row."""

    def __init__(self, dtype: mx.Dtype, *, stream: Place) -> None:
        super().__init__(stream=stream)
        self._dtype = dtype

    def prepared(self, backend: str, logits: mx.array, targets: mx.array) -> Ready:
        """(rows, N), (rows,) -> losses, largest logits, sums of exp(logit - largest)."""
        rows, width = logits.shape
        found = empty(rows, mx.float32)
        more = (empty(rows, self._dtype), found, found, width)
        ready = ready_lanes(
            kernels.cross_entropy, rows, (logits, targets, *more), {}, backend, self.stream
        )
        return of_arrays(ready, lambda logits, targets: (logits, targets, *more))

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """For the logits; targets have none.

        The sums have cotangents in second derivatives. Those of the largest logits are left out:
        what they would add is taken away by the sums, in which the largest stand too. Forward mode
        follows both.
        """
        logits, targets = primals
        rows, width = logits.shape
        gradient = self.launch(
            kernels.cross_entropy_gradient,
            rows,
            logits,
            targets,
            outputs[1],
            outputs[2],
            cotangents[0],
            cotangents[2],
            empty(logits.shape, logits.dtype),
            width,
            block=row_lanes,
        )
        return gradient, mx.zeros_like(targets)
