"""`metile.add_rms_norm` in the place of `x + r` and `mx.fast.rms_norm` (SPEC B2, F28, F73, X7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from tests.support.functions import close, normal
from tests.support.public import same_bits
from tests.support.rounding import exact, ulps

EPS = 1e-5
DTYPES = (mx.float16, mx.bfloat16, mx.float32)
Pair = tuple[mx.array, mx.array]


def plain(x: mx.array, r: mx.array, w: mx.array | None, eps: float = EPS) -> Pair:
    return mx.fast.rms_norm(x + r, w, eps), x + r


def ours(x: mx.array, r: mx.array, w: mx.array | None, eps: float = EPS) -> Pair:
    return metile.add_rms_norm(x, r, w, eps)


@pytest.mark.parametrize(
    ("width", "dtype"),
    [*((16, dtype) for dtype in DTYPES), *((n, mx.float16) for n in (3072, 3073, 8192))],
)
def test_f73_sum_of_mlxs_bits_and_norm_of_the_rounded_sum(width: int, dtype: mx.Dtype) -> None:
    """Bit-equal to `rms_norm(x + r)`, and as near to MLX's as `rms_norm` is (F66)."""
    x, r, w = normal((4, width), dtype), normal((4, width), dtype, 1), normal((width,), dtype, 2)
    normed, total = ours(x, r, w)
    assert same_bits(total, x + r)
    assert same_bits(normed, metile.rms_norm(x + r, w, EPS))
    whole = mx.round(x * 4), mx.round(r * 4)
    # Where the mean square has one value only, MLX's bits.
    assert same_bits(ours(*whole, w)[0], plain(*whole, w)[0])


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("width", [601, 1009, 1024])
def test_f73_sums_of_squares_are_added_in_the_order_of_rms_norm(
    width: int, dtype: mx.Dtype
) -> None:
    """Many rows: where the orders differ, one element in 50,000 does."""
    x, r, w = normal((2048, width), dtype), normal((2048, width), dtype, 1), normal((width,), dtype)
    assert same_bits(ours(x, r, w)[0], metile.rms_norm(x + r, w, EPS))


def test_f73_the_norm_of_an_unrounded_sum_would_differ() -> None:
    """The distinction that F73 asks for can be seen."""
    x, r = normal((8, 64), mx.float16), normal((8, 64), mx.float16, 1) * 100
    wide = metile.rms_norm(x.astype(mx.float32) + r.astype(mx.float32), None, EPS)
    assert (exact(wide.astype(mx.float16)) != exact(ours(x, r, None)[0])).mean() > 0.05


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_shape_on_every_backend(backend: str, dtype: mx.Dtype) -> None:
    w = normal((40,), dtype, 3)
    for shape, other in (((40,), (40,)), ((2, 3, 40), (2, 3, 40)), ((2, 3, 40), (3, 1))):
        x, r = normal(shape, dtype), normal(other, dtype, 1)
        for weight in (w, None):
            made, expected = ours(x, r, weight), plain(x, r, weight)
            assert same_bits(made[1], expected[1])
            limit = 4 if dtype.size == 4 else 1
            assert ulps(made[0], exact(expected[0])).max() <= limit


def test_f10_x8_views_and_empty_arrays() -> None:
    x, r, w = normal((40, 6, 64)), normal((40, 6, 64), seed=1), normal((128,), seed=2)[::2]
    views: tuple[Callable[[mx.array], mx.array], ...] = (
        lambda a: a.transpose(1, 0, 2),
        lambda a: a[::2],
        lambda a: a[:, :, ::-1],
    )
    for view in views:
        made = ours(view(x), view(r), w)
        whole = ours(mx.contiguous(view(x)), mx.contiguous(view(r)), mx.contiguous(w))
        assert all(same_bits(a, b) for a, b in zip(made, whole, strict=True))
    row = mx.broadcast_to(r[:1, :1], x.shape)
    assert all(same_bits(a, b) for a, b in zip(ours(x, row, w), ours(x, r[0, 0], w), strict=True))
    for shape in ((0, 64), (3, 0, 64), (2, 0)):
        made = ours(mx.zeros(shape), mx.zeros(shape), mx.zeros(shape[-1:]))
        assert [a.shape for a in made] == [shape, shape]


@pytest.mark.parametrize("x_dtype", [*DTYPES, mx.int32])
@pytest.mark.parametrize("r_dtype", DTYPES)
def test_dtypes_meet_as_in_mlx(x_dtype: mx.Dtype, r_dtype: mx.Dtype) -> None:
    x = mx.random.randint(-8, 9, (3, 64), key=mx.random.key(1)).astype(x_dtype)
    r = mx.random.randint(-8, 9, (3, 64), key=mx.random.key(2)).astype(r_dtype)
    for w in (normal((64,), mx.float16), None):
        made, expected = ours(x, r, w), plain(x, r, w)
        assert all(same_bits(a, b) for a, b in zip(made, expected, strict=True))


def test_bad_arguments_are_named() -> None:
    x, w = normal((4, 32)), normal((32,))
    for bad, part in (
        (lambda: ours(x, x, w[:-1]), r"\[add_rms_norm\] weight has shape \(31,\)"),
        (lambda: ours(x.astype(mx.int32), x.astype(mx.int32), None), "would be int32"),
        (lambda: ours(mx.array(1.0), mx.array(1.0), None), "no axis"),
        (lambda: metile.add_rms_norm(x, x, w, EPS, rounding="half"), "rounding is 'half'"),
        (lambda: ours(x, x[:, :5], w), r"\(4, 32\) and \(4, 5\) do not broadcast"),
    ):
        with pytest.raises(metile.LaunchError, match=part):
            bad()


# Gradients


def loss(function: Callable[..., Pair], c: mx.array, t: mx.array) -> Callable[..., mx.array]:
    def of(x: mx.array, r: mx.array, w: mx.array | None = None) -> mx.array:
        normed, total = function(x, r, w)
        return (normed.astype(mx.float32) * c).sum() + (total.astype(mx.float32) * t).sum()

    return of


def same_gradients(made: Any, expected: Any, rtol: float = 1e-5) -> None:
    for a, b in zip(made, expected, strict=True):
        close(a, b, rtol)


@pytest.mark.parametrize("shape", [(5, 1), (2, 3, 1009), (1024, 64), (3, 33_000)])
def test_f28_gradients_equal_mlxs(shape: tuple[int, ...]) -> None:
    """Of rows in registers, of many, and of rows of a width that no register tile has."""
    x, r, w = normal(shape), normal(shape, seed=1), normal(shape[-1:], seed=2)
    c, t = normal(shape, seed=3), normal(shape, seed=4)
    of, expected = loss(ours, c, t), loss(plain, c, t)
    same_gradients(mx.grad(of, (0, 1, 2))(x, r, w), mx.grad(expected, (0, 1, 2))(x, r, w))
    same_gradients(mx.grad(of, (0, 1))(x, r), mx.grad(expected, (0, 1))(x, r))


def test_f28_gradients_where_only_one_result_is_used(backend: str) -> None:
    x, r, w = normal((3, 40)), normal((40,), seed=1), normal((40,), seed=2)
    c, zero = normal((3, 40), seed=3), mx.zeros((3, 40))
    for cotangents in ((c, zero), (zero, c)):
        of, expected = loss(ours, *cotangents), loss(plain, *cotangents)
        same_gradients(mx.grad(of, (0, 1, 2))(x, r, w), mx.grad(expected, (0, 1, 2))(x, r, w))
    for index in (0, 1):
        made, right = (
            mx.grad(lambda x, f=f, i=index: (f(x, r, w)[i] * c).sum())(x) for f in (ours, plain)
        )
        close(made, right)
    compiled = mx.compile(mx.grad(loss(ours, c, zero), (0, 1, 2)))
    for _ in range(2):
        expected_gradients = mx.grad(loss(plain, c, zero), (0, 1, 2))(x, r, w)
        same_gradients(compiled(x, r, w), expected_gradients)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_gradients_have_the_dtypes_of_the_arguments(dtype: mx.Dtype) -> None:
    x, r, w = normal((6, 256), dtype), normal((6, 256), seed=1), normal((256,), dtype, 2)
    c = normal((6, 256), seed=3)
    made = mx.grad(loss(ours, c, c), (0, 1, 2))(x, r, w)
    wide = mx.grad(loss(plain, c, c), (0, 1, 2))(x.astype(mx.float32), r, w.astype(mx.float32))
    assert [g.dtype for g in made] == [dtype, mx.float32, dtype]
    for a, b in zip(made, wide, strict=True):
        assert np.abs(exact(a) - exact(b)).max() <= 1e-2 * np.abs(exact(b)).max()


def test_f28_finite_differences() -> None:
    """Central ones, in f64 of f32 values, along a random direction."""
    x, r, w, d = (normal((4, 33), seed=i) for i in range(4))
    w = w[0]
    of = loss(ours, normal((4, 33), seed=5), normal((4, 33), seed=6))
    slope = (mx.grad(of)(x, r, w) * d).sum().item()
    step = 1e-2
    found = (of(x + step * d, r, w).item() - of(x - step * d, r, w).item()) / (2 * step)
    assert abs(found - slope) <= 2e-3 * abs(slope) + 1e-3


@pytest.mark.parametrize("axes", [(0, None, None), (0, 0, 0), (None, 1, None), (None, None, 0)])
def test_f33_x7_vmap(batchable: str, axes: tuple[int | None, ...]) -> None:
    plain_shapes = ((4, 40), (4, 40), (40,))
    arrays = []
    for i, (shape, axis) in enumerate(zip(plain_shapes, axes, strict=True)):
        array = normal(shape if axis is None else (3, *shape), seed=i)
        arrays.append(array if axis is None else mx.moveaxis(array, 0, axis))
    expected = mx.vmap(plain, in_axes=axes)(*arrays)
    for vmap in (mx.vmap, metile.vmap):
        same_gradients(vmap(ours, in_axes=axes)(*arrays), expected, 1e-6)


@pytest.mark.emulator
def test_x7_metile_vmap_where_mlx_cant(monkeypatch: pytest.MonkeyPatch) -> None:
    x, r, w = normal((3, 2, 40)), normal((2, 40), seed=1), normal((3, 40), seed=2)
    monkeypatch.setenv("METILE_BACKEND", "emulator")
    made = metile.vmap(ours, in_axes=(0, None, 0))(x, r, w)
    same_gradients(made, mx.vmap(plain, in_axes=(0, None, 0))(x, r, w), 1e-6)


def test_f51_two_runs_are_bit_equal() -> None:
    x, w = normal((1030, 48)), normal((48,))
    runs = [mx.grad(loss(ours, x, x), (0, 1, 2))(x, x, w) for _ in range(2)]
    assert all(same_bits(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize(("width", "dtype"), [(32, mx.bfloat16), (64, mx.float16)])
def test_f51_a_row_has_the_same_bits_in_any_company(width: int, dtype: mx.Dtype) -> None:
    """A program takes several narrow rows where it can, and one where it can't."""
    x, r, w = normal((8, width), dtype), normal((8, width), dtype, 1), normal((width,), dtype, 2)
    for together, alone in zip(ours(x, r, w), ours(x[:3], r[:3], w), strict=True):
        assert same_bits(together[:3], alone)
