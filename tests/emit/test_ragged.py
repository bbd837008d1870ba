"""Ragged ends on the CPU: the accesses of the first threads are loops without masks (SPEC X4)."""

from __future__ import annotations

import re

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from tests.support.public import DTYPES, payload, same_bits, source


@metile.kernel
def moved(x, y, N: metile.constexpr, LAYOUT: metile.constexpr):
    inputs = metile.tensor(x, shape=(metile.num_programs(0), N), access="read")
    outputs = metile.tensor(y, shape=(metile.num_programs(0), N), access="write")
    columns = metile.arange(0, LAYOUT.size, layout=LAYOUT)
    outputs.store((metile.program_id(0), columns), inputs.load((metile.program_id(0), columns)))


@metile.kernel
def filled(x, y, N: metile.constexpr, LAYOUT: metile.constexpr):
    """What masked loads give, stored everywhere."""
    inputs = metile.tensor(x, shape=(N,), access="read")
    outputs = metile.tensor(y, shape=(LAYOUT.size,), access="write")
    columns = metile.arange(0, LAYOUT.size, layout=LAYOUT)
    outputs.store(columns, inputs.load(columns, fill=7))


@metile.kernel
def twice(x, y, N: metile.constexpr, LAYOUT: metile.constexpr):
    """A ragged store that a whole one follows, to the same places."""
    inputs = metile.tensor(x, shape=(LAYOUT.size,), access="read")
    first = metile.tensor(y, shape=(N,), access="write")
    second = metile.tensor(y, shape=(LAYOUT.size,), access="write")
    columns = metile.arange(0, LAYOUT.size, layout=LAYOUT)
    values = inputs.load(columns)
    first.store(columns, values + 1)
    second.store(columns, values)


def adjacent(size: int, values: int) -> metile.ThreadLayout:
    bits, low = size.bit_length() - 1, values.bit_length() - 1
    order = (*range(bits - low, bits), *range(bits - low))
    return metile.ThreadLayout(order, elements_per_thread=values)


def striped(size: int, values: int) -> metile.ThreadLayout:
    return metile.ThreadLayout.identity(size, elements_per_thread=values)


def text(kernel: metile.Kernel, x: mx.array, y: object, layout: metile.ThreadLayout, n: int) -> str:
    return source(kernel[(1,)].prepare(x, y, N=n, LAYOUT=layout, backend="cpu")).body


@pytest.mark.parametrize("n", [1, 31, 100, 128, 129, 255])
@pytest.mark.parametrize("layout", [striped(256, 1), striped(256, 4), striped(256, 8)])
def test_no_access_of_a_ragged_row_is_masked(layout: metile.ThreadLayout, n: int) -> None:
    x = payload("f16", (3, n))
    body = text(moved, x[:1], metile.empty((1, n), mx.float16), layout, n)
    assert "if (" not in body.replace("if (++program_x", "")
    assert "?" not in body
    y = moved[(3,)](x, metile.empty(x.shape, x.dtype), N=n, LAYOUT=layout, backend="cpu")
    assert same_bits(y, x)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("layout", [striped(128, 2), adjacent(128, 4)])
def test_threads_past_the_end_load_the_fill(layout: metile.ThreadLayout, name: str) -> None:
    x = payload(name, (70,))
    y = filled[(1,)](x, metile.empty((128,), x.dtype), N=70, LAYOUT=layout, backend="cpu")
    assert same_bits(y[:70], x)
    assert np.array_equal(
        np.array(y[70:].astype(mx.float32)), np.full(58, 1 if name == "bool" else 7)
    )


def test_a_ragged_store_is_not_moved_past_a_later_one() -> None:
    x = mx.arange(256, dtype=mx.float32)
    y = twice[(1,)](
        x, metile.empty((256,), mx.float32), N=100, LAYOUT=striped(256, 4), backend="cpu"
    )
    assert same_bits(y, x)


def test_a_mask_that_does_not_hold_in_the_first_threads_stays() -> None:
    layout = metile.ThreadLayout(range(8), xor_mask=255, elements_per_thread=4)
    x = payload("f32", (2, 100))
    assert "?" in text(moved, x[:1], metile.empty((1, 100), mx.float32), layout, 100)
    y = moved[(2,)](x, metile.empty(x.shape, x.dtype), N=100, LAYOUT=layout, backend="cpu")
    assert same_bits(y, x)


def test_a_loop_ends_where_the_row_does() -> None:
    x = payload("f32", (1, 100))
    body = text(moved, x, metile.empty((1, 100), mx.float32), striped(256, 4), 100)
    # Slot 0 whole, 36 threads of slot 1, none of slots 2 and 3.
    assert sorted(map(int, re.findall(r"thread = 0; thread < (\d+)", body))) == [36, 36, 64]
