"""`metile.reduce`: axes, chunks of tall matrices, nothing, errors (SPEC B2, F12, F51)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from tests.support.public import same_bits
from tests.support.rounding import exact
from tests.support.rows import DTYPES, NAN, near, normal

OPERATIONS: tuple[Any, ...] = ("sum", "mean", "max", "min")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_axes_and_kept_dimensions(operation: Any) -> None:
    for shape in ((7,), (3, 5), (2, 3, 4)):
        x = normal(shape)
        for axis in (-1, len(shape) - 1, 0, -len(shape)):
            for keepdims in (False, True):
                made = metile.reduce(x, operation, axis=axis, keepdims=keepdims)
                expected = getattr(mx, operation)(x, axis=axis, keepdims=keepdims)
                assert made.shape == expected.shape
                assert mx.allclose(made, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tall_matrices_are_reduced_in_chunks(dtype: mx.Dtype) -> None:
    """512 rows at a time: a chunk, one row more, and chunks of chunks; sums stay f32 between."""
    for rows, columns in ((511, 3), (512, 3), (513, 3), (513 * 512, 1)):
        x = normal((rows, columns), dtype)
        wide = exact(x)
        for operation in OPERATIONS:
            made = metile.reduce(x, operation, axis=0)
            expected = getattr(np, operation)(wide, axis=0)
            size = getattr(np, operation)(np.abs(wide), axis=0)
            near(made, expected, (rows, operation), size, 1e-6)


@pytest.mark.parametrize("operation", ["sum", "max", "min"])
def test_integers_as_in_mlx(operation: Any) -> None:
    for dtype in (mx.int32, mx.uint32):
        x = (mx.random.randint(0, 2**31 - 1, (600, 5)) * 5).astype(dtype)
        for axis in (0, -1):
            expected = getattr(mx, operation)(x, axis=axis)
            assert same_bits(metile.reduce(x, operation, axis=axis), expected)


def test_f51_a_column_does_not_depend_on_its_neighbours() -> None:
    x = normal((1000, 300), mx.float16)
    for operation in OPERATIONS:
        whole = metile.reduce(x, operation, axis=0)
        assert same_bits(metile.reduce(x[:, 17:18], operation, axis=0), whole[17:18])


def test_f12_nothing() -> None:
    for shape, axis in (((0, 3), 0), ((3, 0), -1), ((3, 0), 0), ((0, 3), -1)):
        x = mx.zeros(shape, mx.bfloat16)
        for operation in ("sum", "mean"):
            made = metile.reduce(x, operation, axis=axis)  # type: ignore[arg-type]
            assert mx.array_equal(made, getattr(mx, operation)(x, axis=axis), equal_nan=True)
    assert metile.reduce(mx.zeros((0, 3)), "max").shape == (0,)
    with pytest.raises(metile.LaunchError, match="no max of nothing"):
        metile.reduce(mx.zeros((3, 0)), "max")


def test_a_nan_takes_the_whole_gradient_of_its_row() -> None:
    x = mx.array([[1.0, NAN, 2.0], [1.0, 3.0, 3.0]])
    made = mx.grad(lambda x: metile.reduce(x, "max").sum())(x)
    expected = mx.grad(lambda x: mx.max(x, axis=-1).sum())(x)
    assert mx.array_equal(made, expected, equal_nan=True)


def test_bad_arguments_are_named() -> None:
    x = normal((2, 3, 4))
    calls: tuple[tuple[mx.array, Any, int, str], ...] = (
        (x, "prod", -1, "operation is 'prod'"),
        (x, "sum", 1, r"axis is 1 of an array of shape \(2, 3, 4\)"),
        (mx.array(1.0), "sum", -1, "axis is -1"),
        (x.astype(mx.int8), "sum", -1, "x is int8; expected float16, bfloat16 or float32, int32"),
        (x.astype(mx.int32), "mean", -1, "x is int32; expected float16, bfloat16 or float32$"),
    )
    for array, operation, axis, part in calls:
        with pytest.raises(metile.LaunchError, match=part):
            metile.reduce(array, operation, axis=axis)
