"""`metile_kernels.top1`: the first of the largest of each row (SPEC B1, F24, F51, F53)."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_kernels.top1 import top1, top1_gradient
from metile_mlx import emulator
from tests.support import emulated
from tests.support.public import compilations, same_bits
from tests.support.rounding import exact
from tests.support.rows import DTYPES, INF, NAN, WIDTHS, normal

BACKENDS = ("cpu", "reference", pytest.param("emulator", marks=pytest.mark.emulator))


def run(x: mx.array, **options: Any) -> tuple[mx.array, mx.array]:
    rows, width = x.shape
    made: tuple[mx.array, mx.array] = top1[rows](
        x, metile.empty(rows, x.dtype), metile.empty(rows, mx.uint32), width, **options
    )
    return made


def check(x: mx.array, what: object, **options: Any) -> None:
    """`numpy.argmax` takes the first of equals and the first NaN too."""
    values, indices = run(x, **options)
    numbers = np.array(x) if mx.issubdtype(x.dtype, mx.integer) else exact(x)
    expected = mx.array(np.argmax(numbers, axis=1).astype(np.uint32))
    assert same_bits(indices, expected), what
    found = mx.take_along_axis(x, expected[:, None], axis=1)[:, 0]
    assert mx.array_equal(values, found, equal_nan=True), what


@pytest.mark.parametrize("dtype", [*DTYPES, mx.int32, mx.uint32])
def test_b1_any_width_with_one_text(dtype: mx.Dtype) -> None:
    """Numbers that are all different and numbers of which most are equal."""
    check(mx.zeros((3, 5), dtype), "first", backend="cpu")
    with compilations() as found:
        for width in WIDTHS:
            some = mx.random.randint(0, 3, (3, width), key=mx.random.key(width)).astype(dtype)
            check(some, width, backend="cpu")
            if dtype in DTYPES:
                check(normal((3, width), dtype), width, backend="cpu")
    assert found == []


@pytest.mark.emulator
def test_b1_any_width_and_dtype_in_the_emulator() -> None:
    """The texts are built together; numbers of which most are equal (F51)."""
    dtypes, options = (*DTYPES, mx.int32, mx.uint32), {"BLOCK": 128, "backend": "emulator"}
    emulated.prebuild(partial(run, mx.zeros((3, 40), dtype), **options) for dtype in dtypes)
    for dtype in dtypes:
        with emulator.checked(schedules=2):
            for width in WIDTHS[:-1]:
                some = mx.random.randint(0, 3, (3, width), key=mx.random.key(width)).astype(dtype)
                check(some, width, **options)


@pytest.mark.parametrize("backend", BACKENDS)
def test_f51_of_equal_elements_the_first(backend: str) -> None:
    """Across lanes, simdgroups and blocks."""
    rows = [mx.array([3, 7, 7, 7])]
    for places in ([0, 1], [31, 32], [63, 64], [5, 69], [64, 127, 128], [130, 2]):
        row = mx.zeros(131)
        row[mx.array(places)] = 7
        rows.append(row)
    with emulator.checked(schedules=2):
        for row in rows:
            check(row[None], row, BLOCK=64, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_f24_nan_is_the_largest_and_rows_of_infinity_have_a_first(backend: str) -> None:
    x = mx.full((5, 70), -INF)
    x[1, 66] = NAN
    x[1, 68] = NAN
    x[2] = NAN
    x[3, 69] = INF
    x[4, 3], x[4, 2] = -0.0, 0.0
    for dtype in (mx.float32, mx.float16):
        check(x.astype(dtype), dtype, BLOCK=32, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_f53_what_is_beyond_a_row_is_never_the_largest(backend: str) -> None:
    lowest = mx.array([[-(2**31)] * 5])
    check(lowest, "i32", BLOCK=32, backend=backend)
    check(mx.zeros((1, 5), mx.uint32), "u32", BLOCK=32, backend=backend)
    check(mx.full((1, 33), -3e38), "f32", BLOCK=32, backend=backend)


def test_f51_a_row_depends_on_nothing_else() -> None:
    x = normal((17, 1009))
    for whole, one in zip(run(x, backend="cpu"), run(x[:1], backend="cpu"), strict=True):
        assert same_bits(one, whole[:1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_f28_the_gradient_is_at_the_index(backend: str) -> None:
    indices, c = mx.array([0, 69, 33], mx.uint32), normal((3,))
    made = top1_gradient[3](
        indices, c, metile.empty((3, 70), mx.float32), 70, BLOCK=32, backend=backend
    )
    assert mx.array_equal(made, mx.where(mx.arange(70) == indices[:, None], c[:, None], 0))


def test_k7_every_element_is_provably_stored() -> None:
    rows, found = metile.empty(3, mx.float32), metile.empty(3, mx.uint32)
    forward = top1[3].prepare(mx.zeros((3, 70)), rows, found, 70)
    backward = top1_gradient[3].prepare(
        mx.zeros(3, mx.uint32), mx.zeros(3), metile.empty((3, 70), mx.float32), 70
    )
    for dispatch in (forward, backward):
        assert all(fact.proven for fact in dispatch.execution_report.coverage)
