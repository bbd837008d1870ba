"""`metile.cross_entropy`: reductions, targets of any kind, errors (SPEC B2, F12)."""

from __future__ import annotations

import math

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

import metile_mlx as metile
from tests.support.rounding import exact
from tests.support.rows import DTYPES, normal


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_are_rounded_once(reduction: str, dtype: mx.Dtype) -> None:
    """And their gradient is MLX's in f32."""
    x, targets = normal((4, 50, 30), dtype), mx.random.randint(0, 30, (4, 50))
    losses = nn.losses.cross_entropy(x.astype(mx.float32), targets)
    expected = float(getattr(np, reduction)(exact(losses)))
    made = metile.cross_entropy(x, targets, reduction=reduction)  # type: ignore[arg-type]
    assert (made.shape, made.dtype) == ((), dtype)
    unit = {mx.float32: 1e-6, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}[dtype]
    assert abs(float(made) - expected) <= 1.01 * unit * expected

    def ours(x: mx.array) -> mx.array:
        return metile.cross_entropy(x, targets, reduction=reduction)  # type: ignore[arg-type]

    def theirs(x: mx.array) -> mx.array:
        return nn.losses.cross_entropy(x, targets, reduction=reduction)  # type: ignore[arg-type]

    slope, right = mx.grad(ours)(x), mx.grad(theirs)(x.astype(mx.float32))
    assert slope.dtype == dtype
    bound = (2 * unit + 1e-6) * np.abs(exact(right)).max()
    assert np.abs(exact(slope) - exact(right)).max() <= bound


@pytest.mark.parametrize(
    "dtype", [mx.int8, mx.int16, mx.int32, mx.int64, mx.uint8, mx.uint16, mx.uint32, mx.uint64]
)
def test_targets_of_any_integer_dtype(dtype: mx.Dtype) -> None:
    """The highest of each is outside, and does not wrap to one inside."""
    x = normal((3, 20))
    highest = {1: 127, 2: 32767, 4: 2**31 - 1, 8: 2**32 + 5}[dtype.size]
    made = metile.cross_entropy(x, mx.array([19, 0, highest], dtype))
    expected = nn.losses.cross_entropy(x[:2], mx.array([19, 0]))
    assert mx.allclose(made[:2], expected, rtol=1e-6)
    assert math.isnan(made[2].item())


def test_losses_that_are_masked() -> None:
    """As the docstring says: a target inside, and mx.where."""
    x, targets = normal((5, 9)), mx.array([0, -100, 3, -100, 8])
    keep = targets != -100

    def loss(x: mx.array) -> mx.array:
        losses = metile.cross_entropy(x, mx.where(keep, targets, 0))
        return mx.where(keep, losses, 0).sum() / keep.sum()

    value, slope = mx.value_and_grad(loss)(x)
    kept = mx.array([0, 2, 4])
    expected = nn.losses.cross_entropy(x[kept], targets[kept], reduction="mean")
    assert abs(value.item() - expected.item()) <= 1e-6
    assert mx.all(slope[mx.array([1, 3])] == 0)
    assert mx.all(mx.isfinite(slope))


def test_f12_no_rows() -> None:
    x, targets = mx.zeros((0, 7), mx.float16), mx.zeros((0,), mx.int32)
    made = metile.cross_entropy(x, targets)
    assert (made.shape, made.dtype) == ((0,), mx.float16)
    assert metile.cross_entropy(x, targets, reduction="sum").item() == 0
    assert math.isnan(metile.cross_entropy(x, targets, reduction="mean").item())


def test_bad_arguments_are_named() -> None:
    x, targets = normal((4, 3)), mx.array([0, 1, 2, 0])
    for logits, given, reduction, part in (
        (x, targets[:3], "none", r"targets have shape \(3,\); expected \(4,\)"),
        (x, mx.zeros((4, 3)), "none", r"targets have shape \(4, 3\)"),
        (x, mx.zeros((4,)), "none", "targets are float32; expected integers"),
        (x, targets, "max", "reduction is 'max'"),
        (x.astype(mx.int32), targets, "none", "would be int32"),
        (mx.array(1.0), targets, "none", "has no axis"),
        (x[:, :0], targets, "none", "rows without logits"),
    ):
        with pytest.raises(metile.LaunchError, match=part):
            metile.cross_entropy(logits, given, reduction=reduction)  # type: ignore[arg-type]
