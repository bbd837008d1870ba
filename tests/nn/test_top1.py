"""`metile.top1`: values, indices, gradients of values alone (SPEC B2, F12, F24, F51)."""

from __future__ import annotations

import mlx.core as mx
import pytest

import metile_mlx as metile
from tests.support.public import same_bits
from tests.support.rows import DTYPES, NAN, normal


@pytest.mark.parametrize("dtype", [*DTYPES, mx.int32, mx.uint32])
def test_f51_as_mlx_has_it(dtype: mx.Dtype) -> None:
    """Many equal numbers; shapes of the results."""
    for shape in ((9,), (4, 33), (2, 3, 1009)):
        x = mx.random.randint(0, 5, shape, key=mx.random.key(1)).astype(dtype)
        values, indices = metile.top1(x)
        assert same_bits(values, mx.max(x, axis=-1))
        assert same_bits(indices, mx.argmax(x, axis=-1))


def test_f24_the_first_nan() -> None:
    values, indices = metile.top1(mx.array([[1.0, NAN, 9.0, NAN]]))
    assert mx.isnan(values).item()
    assert indices.item() == 1


def test_f28_the_gradient_goes_to_one_element() -> None:
    """MLX's maximum shares it among equals, but there is one index here."""
    x = mx.array([[3.0, 7.0, 7.0], [1.0, 0.0, 1.0]])
    made = mx.grad(lambda x: (metile.top1(x)[0] * mx.array([2.0, 3.0])).sum())(x)
    assert made.tolist() == [[0, 2, 0], [3, 0, 0]]


def test_a_model_that_uses_both_trains() -> None:
    """Indices in a graph of gradients: they have none."""
    x = normal((4, 21))

    def loss(x: mx.array) -> mx.array:
        values, indices = metile.top1(x)
        return (values * metile.take(x.T, indices)[:, 0]).sum()

    assert mx.all(mx.isfinite(mx.grad(loss)(x)))


def test_f12_no_rows() -> None:
    values, indices = metile.top1(mx.zeros((0, 3), mx.float16))
    assert (values.shape, values.dtype) == ((0,), mx.float16)
    assert (indices.shape, indices.dtype) == ((0,), mx.uint32)


def test_bad_arguments_are_named() -> None:
    for x, part in (
        (mx.array(1.0), "has no axis"),
        (mx.zeros((2, 0)), "nothing is the largest of nothing"),
        (mx.zeros((2, 3), mx.int64), "x is int64"),
    ):
        with pytest.raises(metile.LaunchError, match=part):
            metile.top1(x)
