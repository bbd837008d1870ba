"""`metile_kernels.reductions`: rows and columns against float64 (SPEC B1, F48, F51, F53, F67)."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

import metile_mlx as metile
from metile_kernels.reductions import (
    GROUP,
    extreme_columns_gradient,
    extreme_rows_gradient,
    reduce_columns,
    reduce_rows,
)
from metile_mlx import emulator
from tests.support import emulated
from tests.support.public import compilations, same_bits
from tests.support.rounding import exact
from tests.support.rows import DTYPES, INF, NAN, WIDTHS, near, normal

BACKENDS = ("cpu", "reference", pytest.param("emulator", marks=pytest.mark.emulator))
OPERATIONS = ("sum", "mean", "max", "min")
SHAPES = ((3, 300), (5, 33), (1, 128))
INTEGERS = (mx.int32, mx.uint32)


def rows_of(x: mx.array, operation: str, **options: Any) -> mx.array:
    rows, width = x.shape
    made: mx.array = reduce_rows[rows](
        x, metile.empty(rows, x.dtype), width, OPERATION=operation, **options
    )
    return made


def columns_of(x: mx.array, operation: str, block: int = 256, **options: Any) -> mx.array:
    rows, columns = x.shape
    made: mx.array = reduce_columns[metile.cdiv(columns, block), 1](
        x, metile.empty((1, columns), x.dtype), rows, columns, rows // GROUP, rows // GROUP + 1,
        float(rows), OPERATION=operation, BLOCK=block, **options,
    )  # fmt: skip
    return made.reshape(columns)


REDUCE = {0: columns_of, 1: rows_of}


def right(x: mx.array, operation: str, axis: int) -> NDArray[np.float64]:
    made: NDArray[np.float64] = getattr(np, operation)(exact(x), axis=axis)
    return made


def check(x: mx.array, axis: int, what: object, **options: Any) -> None:
    """Sums against the sum of magnitudes, since they cancel; extremes exactly."""
    for operation in OPERATIONS:
        made, expected = REDUCE[axis](x, operation, **options), right(x, operation, axis)
        if operation in ("max", "min"):
            assert np.array_equal(exact(made), expected), (what, operation)
            continue
        size = getattr(np, operation)(np.abs(exact(x)), axis=axis)
        near(made, expected, (what, operation), size, 2e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_b1_rows_of_any_width_with_one_text(dtype: mx.Dtype) -> None:
    check(normal((3, 5), dtype), 1, "first", backend="cpu")
    with compilations() as found:
        for width in WIDTHS:
            check(normal((3, width), dtype), 1, width, backend="cpu")
    assert found == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_b1_columns_of_any_size_with_one_text(dtype: mx.Dtype) -> None:
    check(normal((3, 5), dtype), 0, "first", backend="cpu")
    with compilations() as found:
        for shape in ((1, 1), (3, 1), (7, 3), (64, 257), (127, 1009), (1009, 33), (2, 32_768)):
            check(normal(shape, dtype), 0, shape, backend="cpu")
    assert found == []


@pytest.mark.parametrize("axis", [0, 1])
def test_integers_wrap_and_have_the_ends_of_their_range(axis: int) -> None:
    for dtype in INTEGERS:
        numbers = mx.random.randint(0, 2**31 - 1, (9, 70), key=mx.random.key(1)).astype(dtype)
        x = numbers * 3 + (2**31 if dtype == mx.uint32 else 0)
        for operation in ("sum", "max", "min"):
            made = REDUCE[axis](x, operation, backend="cpu")
            assert same_bits(made, getattr(mx, operation)(x, axis=axis))
    ends = mx.array([[-(2**31)] * 2, [2**31 - 1] * 2])
    if axis == 1:
        for operation in ("max", "min"):
            made = rows_of(ends, operation, BLOCK=32, backend="cpu")
            assert made.tolist() == [-(2**31), 2**31 - 1]


@pytest.mark.parametrize("axis", [0, 1])
def test_b1_on_the_reference(axis: int) -> None:
    for dtype, shape in zip(DTYPES, SHAPES, strict=True):
        check(normal(shape, dtype), axis, shape, backend="reference")


@pytest.mark.emulator
@pytest.mark.parametrize("axis", [0, 1])
def test_b1_any_dtype_in_the_emulator(axis: int) -> None:
    """The texts are built together."""
    options: dict[str, Any] = {"backend": "emulator", ("block", "BLOCK")[axis]: 64}
    emulated.prebuild(
        partial(REDUCE[axis], mx.zeros((3, 40), dtype), operation, **options)
        for dtype in DTYPES
        for operation in OPERATIONS
    )
    for dtype in DTYPES:
        with emulator.checked(schedules=2):
            for shape in (*SHAPES, (1, 1), (130, 3), (2, 4096)):
                check(normal(shape, dtype), axis, shape, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_f53_what_is_beyond_a_row_or_column_counts_for_nothing(backend: str) -> None:
    """Negative numbers in a block that they do not fill; the minimum of positive ones (F48)."""
    for width in (5, 31, 33, 48, 96):
        x = mx.full((3, width), -2.0)
        for axis, reduce in REDUCE.items():
            assert reduce(x, "max", backend=backend).tolist() == [-2] * x.shape[1 - axis]
            assert reduce(-x, "min", backend=backend).tolist() == [2] * x.shape[1 - axis]


@pytest.mark.parametrize("backend", BACKENDS)
def test_f24_nan_wins_and_infinities_are_numbers(backend: str) -> None:
    x = mx.array([[1, NAN, 2], [INF, 0, -INF], [-INF] * 3])
    made = [rows_of(x, operation, BLOCK=32, backend=backend) for operation in OPERATIONS]
    expected = [[NAN, NAN, -INF], [NAN, NAN, -INF], [NAN, INF, -INF], [NAN, -INF, -INF]]
    assert np.array_equal(np.stack([np.array(m) for m in made]), expected, equal_nan=True)
    columns = columns_of(x, "max", backend=backend)
    assert np.array_equal(np.array(columns), [INF, NAN, 2], equal_nan=True)


def test_f48_f67_sums_of_ones() -> None:
    """A sum of f16 ends at 65504, one of bf16 stalls at 256; every lane takes part."""
    for dtype in DTYPES:
        for number in (3, 31, 33, 48, 96, 4096):
            ones = mx.ones((2, number), dtype)
            for axis, x in ((1, ones), (0, ones.T)):
                assert REDUCE[axis](x, "sum", backend="cpu").tolist() == [number] * 2
        large = mx.full((1, 4096), 300, dtype)
        assert rows_of(large, "mean", backend="cpu").tolist() == [300]
    assert rows_of(mx.arange(1, 49)[None], "sum", backend="cpu").tolist() == [1176]


@pytest.mark.parametrize("dtype", DTYPES)
def test_f51_a_result_depends_on_its_row_or_column_alone(dtype: mx.Dtype) -> None:
    x = normal((17, 1009), dtype)
    for operation in OPERATIONS:
        rows, columns = (REDUCE[axis](x, operation, backend="cpu") for axis in (1, 0))
        assert same_bits(rows_of(x[:1], operation, backend="cpu"), rows[:1])
        assert same_bits(columns_of(x[:, 5:6], operation, backend="cpu"), columns[5:6])


def test_chunks_of_columns_and_a_last_one_of_fewer_rows() -> None:
    """Whole groups, one row more or less, and no group at all in the last chunk."""
    chunk = 2 * GROUP
    for rows in (1, GROUP - 1, GROUP, chunk - 1, chunk, chunk + 1, 2 * chunk + GROUP + 3):
        x, chunks = normal((rows, 70)), metile.cdiv(rows, chunk)
        made = reduce_columns[2, chunks](
            x, metile.empty((chunks, 70), mx.float32), rows, 70, rows // GROUP, 2, 1.0,
            OPERATION="sum", BLOCK=64,
        )  # fmt: skip
        wide = exact(x)
        parts = [wide[start : start + chunk].sum(axis=0) for start in range(0, rows, chunk)]
        near(made, np.stack(parts), rows, 8)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_sum_of_negative_zeros_is_zero(axis: int) -> None:
    """What fills a block counts for nothing, the sign of a zero neither: MLX's sum has it so."""
    for shape in ((3, 5), (GROUP, 40), (GROUP + 1, 300)):
        x = mx.full(shape, -0.0)
        assert same_bits(REDUCE[axis](x, "sum", backend="cpu"), mx.sum(x, axis=axis))


@pytest.mark.parametrize("backend", BACKENDS)
def test_f28_an_extreme_shares_its_cotangent(backend: str) -> None:
    """Equal parts for all that are the largest, to the last element of a row or column."""
    x = mx.random.randint(0, 3, (9, 40), key=mx.random.key(3)).astype(mx.float32)
    x[:, -1] = 2
    x[-1] = 2
    for axis in (1, 0):
        largest = x.max(axis=axis)
        c, out = normal(largest.shape), metile.empty(x.shape, x.dtype)
        if axis == 1:
            made = extreme_rows_gradient[9](x, largest, c, out, 40, BLOCK=32, backend=backend)
        else:
            made = extreme_columns_gradient[2](x, largest, c, out, 9, 40, BLOCK=32, backend=backend)
        is_largest = x == mx.expand_dims(largest, axis)
        number = is_largest.sum(axis=axis, keepdims=True)
        expected = mx.where(is_largest, mx.expand_dims(c, axis) / number, 0)
        assert mx.array_equal(made, expected)


def test_k7_every_element_is_provably_stored() -> None:
    x, out = normal((3, 70)), metile.empty((3, 70), mx.float32)
    row, column = mx.zeros(3), mx.zeros(70)
    for dispatch in (
        reduce_rows[3].prepare(x, metile.empty(3, mx.float32), 70, OPERATION="sum"),
        reduce_columns[1, 2].prepare(
            x, metile.empty((2, 70), mx.float32), 3, 70, 0, 0, 1.0, OPERATION="sum"
        ),
        extreme_rows_gradient[3].prepare(x, row, row, out, 70),
        extreme_columns_gradient[1].prepare(x, column, column, out, 3, 70),
    ):
        (fact,) = dispatch.execution_report.coverage
        assert fact.proven, dispatch


def test_an_operation_of_another_name() -> None:
    with pytest.raises(metile.CompileError, match="sum, mean, max or min"):
        rows_of(mx.zeros((1, 3)), "prod", backend="cpu")
