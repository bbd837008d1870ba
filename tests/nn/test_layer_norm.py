"""`metile.layer_norm` and `metile.nn.LayerNorm` in the place of MLX's (B2, F28, F33, F69, X7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten

import metile_mlx as metile
from metile_mlx.runtime.export import primitives
from tests.support.functions import close, normal
from tests.support.public import same_bits
from tests.support.rounding import exact, rounded, ulps

EPS = 1e-5
DTYPES = (mx.float16, mx.bfloat16, mx.float32)
Norm = Callable[..., mx.array]


@pytest.mark.parametrize("width", [3, 1009])
@pytest.mark.parametrize("dtype", DTYPES)
def test_b2_mlxs_order_of_rounding(width: int, dtype: mx.Dtype) -> None:
    """Bits of MLX's but where mean or variance differ in their last bit."""
    x, w, b = normal((16, width), dtype), normal((width,), dtype, 1), normal((width,), dtype, 2)
    every = ((w, b), (w, None), (None, b), (None, None))
    for scales in every if width == 3 else every[:1]:
        ours, theirs = metile.layer_norm(x, *scales, EPS), mx.fast.layer_norm(x, *scales, EPS)
        if dtype == mx.float32:
            close(ours, theirs, 3e-6)
            continue
        differing = int((ulps(ours, exact(theirs)) > 0).sum())
        assert differing <= x.size // 50, f"{differing} of {x.size} elements differ"
        close(ours, theirs, 1e-3 if dtype == mx.float16 else 8e-3)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_one_rounding_only_when_asked_for(dtype: mx.Dtype) -> None:
    x, w, b = normal((64, 16), dtype), normal((16,), dtype, 1), normal((16,), dtype, 2)
    wide = exact(x) - exact(x).mean(axis=1, keepdims=True)
    n = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + EPS)
    once = rounded(n * exact(w) + exact(b), dtype)
    steps = rounded(rounded(rounded(n, dtype) * exact(w), dtype) + exact(b), dtype)
    assert (once != steps).mean() > 0.05
    assert (exact(metile.layer_norm(x, w, b, EPS)) == steps).mean() > 0.99
    assert (exact(metile.layer_norm(x, w, b, EPS, rounding="f32")) == once).mean() > 0.99


def test_f69_numbers_far_from_zero() -> None:
    x = mx.array([40000.0, 40001.0, 40002.0, 40003.0])
    right = np.array([-1.34164, -0.44721, 0.44721, 1.34164])
    assert np.abs(exact(metile.layer_norm(x, None, None, EPS)) - right).max() <= 1e-5


@pytest.mark.parametrize(("width", "dtype"), [(32, mx.float16), (128, mx.bfloat16)])
def test_f51_a_row_has_the_same_bits_in_any_company(width: int, dtype: mx.Dtype) -> None:
    """A program takes several narrow rows where it can, and one where it can't."""
    x, w, b = normal((8, width), dtype), normal((width,), dtype, 1), normal((width,), dtype, 2)
    together = metile.layer_norm(x, w, b, EPS)
    assert same_bits(together[:3], metile.layer_norm(x[:3], w, b, EPS))
    right = mx.fast.layer_norm(
        x.astype(mx.float32), w.astype(mx.float32), b.astype(mx.float32), EPS
    )
    close(together, right.astype(dtype), 2e-3 if dtype == mx.float16 else 1.6e-2)


def test_any_shape_on_every_backend(backend: str) -> None:
    w, b = normal((48,), seed=1), normal((48,), seed=2)
    for shape in ((48,), (1, 48), (2, 1, 3, 48)):
        x = normal(shape)
        close(metile.layer_norm(x, w, b, EPS), mx.fast.layer_norm(x, w, b, EPS), 2e-6)
    x, w = normal((2, 48), mx.bfloat16), w.astype(mx.float16)
    ours, theirs = metile.layer_norm(x, w, None, EPS), mx.fast.layer_norm(x, w, None, EPS)
    close(ours, theirs, 2e-6)


def test_f10_f12_views_and_empty_arrays() -> None:
    x, w = normal((40, 6, 64)), normal((128,), seed=1)[::2]
    for view in (x.transpose(1, 0, 2), x[::2], x[:, :, ::-1], mx.broadcast_to(x[:1], x.shape)):
        made = metile.layer_norm(view, w, w, EPS)
        assert same_bits(made, metile.layer_norm(mx.contiguous(view), w, w, EPS))
    for shape in ((0, 64), (3, 0, 64), (2, 0)):
        scale = mx.zeros(shape[-1:])
        assert metile.layer_norm(mx.zeros(shape), scale, scale, EPS).shape == shape


def test_bad_arguments_are_named() -> None:
    x, w = normal((4, 32)), normal((32,))
    for bad, part in (
        (lambda: metile.layer_norm(x, w[:-1], None, EPS), r"\[layer_norm\] weight has shape"),
        (lambda: metile.layer_norm(x, w, w[:-1], EPS), r"bias has shape \(31,\); expected \(32,\)"),
        (lambda: metile.layer_norm(x.astype(mx.int32), None, None, EPS), "would be int32"),
        (lambda: metile.layer_norm(x, w, w, EPS, rounding="half"), "rounding is 'half'"),
    ):
        with pytest.raises(metile.LaunchError, match=part):
            bad()


# Gradients

SCALES = ((True, True), (True, False), (False, True), (False, False))


def loss(norm: Norm, c: mx.array, given: tuple[bool, bool]) -> Norm:
    def of(x: mx.array, *scales: mx.array) -> mx.array:
        rest = list(scales)
        w, b = (rest.pop(0) if is_given else None for is_given in given)
        return (norm(x, w, b, EPS).astype(mx.float32) * c).sum()

    return of


def gradients(norm: Norm, shape: tuple[int, ...], given: tuple[bool, bool]) -> Any:
    arrays = [normal(shape), *[normal(shape[-1:], seed=i + 1) for i in range(2) if given[i]]]
    argnums = tuple(range(len(arrays)))
    made = mx.grad(loss(norm, normal(shape, seed=5), given), argnums)(*arrays)
    return made if isinstance(made, (list, tuple)) else [made]


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        *(((5, 3), given) for given in SCALES),
        *(((3, 32_800), given) for given in SCALES[1:]),
        *((shape, SCALES[0]) for shape in ((2, 3, 127), (1024, 64), (66, 32_800))),
    ],
)
def test_f28_gradients_equal_mlxs(shape: tuple[int, ...], given: tuple[bool, bool]) -> None:
    """Of rows in registers, of many, and of rows of a width that no register tile has."""
    made = gradients(metile.layer_norm, shape, given)
    for a, b in zip(made, gradients(mx.fast.layer_norm, shape, given), strict=True):
        close(a, b, 2e-5)


def test_f28_on_every_backend_and_compiled(backend: str) -> None:
    x, w, b, c = normal((3, 40)), normal((40,), seed=1), normal((40,), seed=2), normal((3, 40))
    expected = mx.grad(loss(mx.fast.layer_norm, c, (True, True)), (0, 1, 2))(x, w, b)
    of = mx.grad(loss(metile.layer_norm, c, (True, True)), (0, 1, 2))
    for made in (of(x, w, b), mx.compile(of)(x, w, b)):
        for a, right in zip(made, expected, strict=True):
            close(a, right)


def test_f28_finite_differences() -> None:
    x, w, b, d = normal((4, 33)), normal((33,), seed=1), normal((33,), seed=2), normal((4, 33))
    of = loss(metile.layer_norm, normal((4, 33), seed=3), (True, True))
    slope = (mx.grad(of)(x + 1, w, b) * d[::-1]).sum().item()
    step = 1e-2
    ends = [of(x + 1 + sign * step * d[::-1], w, b).item() for sign in (1, -1)]
    assert abs((ends[0] - ends[1]) / (2 * step) - slope) <= 2e-3 * abs(slope) + 1e-3


def test_x7_second_derivatives(batchable: str) -> None:
    x, w, b, c = normal((4, 32)), normal((32,), seed=1), normal((32,), seed=2), normal((4, 32))

    def twice(norm: Norm) -> Norm:
        of = loss(norm, c[::-1], (True, True))
        return lambda x, w, b: (mx.grad(of)(x, w, b) ** 2).sum()

    ours, theirs = (
        mx.grad(twice(n), (0, 1))(x, w, b) for n in (metile.layer_norm, mx.fast.layer_norm)
    )
    for a, right in zip(ours, theirs, strict=True):
        close(a, right, 2e-5)


@pytest.mark.parametrize("axes", [(0, None, None), (1, 0, 0), (None, 0, None)])
def test_f33_x7_vmap(batchable: str, axes: tuple[int | None, ...]) -> None:
    arrays = []
    for i, (shape, axis) in enumerate(zip(((4, 40), (40,), (40,)), axes, strict=True)):
        array = normal(shape if axis is None else (3, *shape), seed=i)
        arrays.append(array if axis is None else mx.moveaxis(array, 0, axis))

    def of(norm: Norm) -> Norm:
        return lambda x, w, b: norm(x, w, b, EPS)

    expected = mx.vmap(of(mx.fast.layer_norm), in_axes=axes)(*arrays)
    for vmap in (mx.vmap, metile.vmap):
        close(vmap(of(metile.layer_norm), in_axes=axes)(*arrays), expected, 2e-6)


# The layer


@pytest.mark.parametrize("options", [{}, {"affine": False}, {"bias": False}])
def test_b2_the_layer_is_mlxs(options: dict[str, bool]) -> None:
    ours, theirs = metile.nn.LayerNorm(32, 1e-6, **options), nn.LayerNorm(32, 1e-6, **options)
    assert repr(ours) == repr(theirs)
    theirs.update({name: normal((32,), seed=3) for name in theirs.parameters()})
    ours.load_weights(tree_flatten(theirs.parameters()))
    x = normal((2, 3, 32), mx.float16)
    close(ours(x), theirs(x), 1e-3)
    assert primitives(lambda x: ours(x), x).count("CustomKernel") == 1


def test_the_layer_refuses_what_mlxs_refuses() -> None:
    with pytest.raises(ValueError, match="'eps' must be positive"):
        metile.nn.LayerNorm(8, 0.0)
    with pytest.raises(metile.LaunchError, match="rounding is 'f64'"):
        metile.nn.LayerNorm(8, rounding="f64")
