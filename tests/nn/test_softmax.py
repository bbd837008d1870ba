"""`metile.softmax` and `metile.log_softmax`: dtypes, nothing, masks, errors (SPEC B2, F12, F24)."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx import nn

import metile_mlx as metile
from metile_mlx.runtime.export import primitives
from tests.support.functions import close
from tests.support.rows import DTYPES, INF, NAN, WIDTHS, check_softmax, normal

BOTH = pytest.mark.parametrize("function", [metile.softmax, metile.log_softmax])


def test_f24_masked_elements() -> None:
    x = mx.array([[-INF, -INF, 0.0], [-INF] * 3])
    assert mx.array_equal(metile.softmax(x), mx.softmax(x, axis=-1), equal_nan=True)
    expected = mx.array([[-INF, -INF, 0.0], [NAN] * 3])
    assert mx.array_equal(metile.log_softmax(x), expected, equal_nan=True)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_f24_the_gradient_of_a_masked_row_is_a_number(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masked elements have none, and take nothing from their neighbours, to the last one."""
    monkeypatch.setenv("METILE_BACKEND", backend)
    x = normal((3, 40))
    masked = mx.where(mx.arange(40) % 3 == 1, x, -INF)
    c = normal((3, 40), seed=1)
    made = mx.grad(lambda x: (metile.softmax(x) * c).sum())(masked)
    expected = mx.grad(lambda x: (mx.softmax(x, axis=-1) * c).sum())(masked)
    assert mx.allclose(made, expected, rtol=1e-5, atol=1e-7)
    finite = mx.where(masked > -INF, c, 0)

    def logarithms(x: mx.array) -> mx.array:
        return (mx.where(x > -INF, metile.log_softmax(x), 0) * finite).sum()

    made = mx.grad(logarithms)(masked)
    expected = finite - mx.softmax(masked, axis=-1) * finite.sum(axis=-1, keepdims=True)
    assert mx.allclose(made, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_b2_every_width_and_dtype(dtype: mx.Dtype) -> None:
    """1 to 151,936 elements a row, of both signs; a row of views too."""
    for width in WIDTHS:
        x = normal((3, width), dtype, width, 3)
        for rows in (x, mx.repeat(x, 2, axis=1)[1:, ::2]):
            made, logarithm = metile.softmax(rows), metile.log_softmax(rows)
            assert made.dtype == logarithm.dtype == dtype
            check_softmax(rows, made, logarithm, width)


@BOTH
def test_f12_nothing_is_computed_of_nothing(function: object) -> None:
    for shape in ((0, 64), (3, 0), (0,), (2, 0, 5)):
        for dtype in DTYPES:
            made = function(mx.zeros(shape, dtype))  # type: ignore[operator]
            assert (made.shape, made.dtype) == (shape, dtype)


@BOTH
def test_integers_and_masks_give_f32(function: object) -> None:
    x = mx.array([[1, 2, 3], [0, 0, 1]])
    for dtype in (mx.int32, mx.uint8, mx.bool_, mx.int64):
        given = x.astype(dtype)
        made = function(given)  # type: ignore[operator]
        assert made.dtype == mx.float32
        assert mx.array_equal(made, function(given.astype(mx.float32)))  # type: ignore[operator]


@BOTH
def test_bad_arguments_are_named(function: object) -> None:
    for x, part in (
        (mx.array(1.0), "has no axis"),
        (mx.zeros((2, 3), mx.float64, stream=mx.cpu), "would be float64"),
        (mx.zeros((2, 3), mx.complex64), "would be complex64"),
    ):
        with pytest.raises(metile.LaunchError, match=part):
            function(x)  # type: ignore[operator]


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_b2_the_layers_are_mlxs(name: str) -> None:
    """Of MLX's sums in f16 no more is asked than that they are near."""
    ours, theirs = getattr(metile.nn, name)(), getattr(nn, name)()
    assert repr(ours) == repr(theirs)
    assert ours.parameters() == {}
    for shape in ((33,), (2, 3, 40)):
        for dtype, rtol in ((mx.float32, 1e-5), (mx.float16, 4e-3), (mx.bfloat16, 3e-2)):
            close(ours(normal(shape, dtype)), theirs(normal(shape, dtype)), rtol)
    c = normal((5, 33), seed=1)
    slopes = [mx.grad(lambda x, f=f: (f(x) * c).sum())(normal((5, 33))) for f in (ours, theirs)]
    close(*slopes)
    assert primitives(lambda x: ours(x), c).count("CustomKernel") == 1
