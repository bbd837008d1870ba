"""Which outputs no rounding can have touched: what is stored, where, whether, how often."""

from __future__ import annotations

import pytest

import metile_mlx.frontend.language as metile
from metile_mlx.analysis.exact import exact_outputs
from tests.support.kernels import tile_ir


def looped(x, y, z, n, FROM: metile.constexpr):
    """The index of a loop, stored; where it starts is loaded or computed."""
    first = metile.tensor(x, shape=(n,)).load(0)
    out = metile.tensor(y, shape=(n,), access="write")
    bound = metile.cast(first * 1.5 if FROM == "computed" else first, metile.i32)
    for i in metile.tile_range(bound, n):
        out.store(0, i)
    metile.tensor(z, shape=(n,), access="write").store(0, first)


def counted(x, y, z, n, FROM: metile.constexpr):
    """What is stored in a loop is a constant; how often, is loaded or computed."""
    first = metile.tensor(x, shape=(n,)).load(0)
    out = metile.tensor(y, shape=(n,), access="write")
    end = metile.cast(first * 1.5 if FROM == "computed" else first, metile.i32)
    for _i in metile.tile_range(0, end):
        out.store(0, 1)
    metile.tensor(z, shape=(n,), access="write").store(0, first)


def branched(x, y, z, n, FROM: metile.constexpr):
    """Whether it is stored."""
    first = metile.tensor(x, shape=(n,)).load(0)
    out = metile.tensor(y, shape=(n,), access="write")
    if (first * 1.5 if FROM == "computed" else first) > 3.0:
        out.store(0, 1)
    metile.tensor(z, shape=(n,), access="write").store(0, first)


@pytest.mark.parametrize("kernel", [looped, counted, branched])
def test_what_decides_about_a_store_counts(kernel: object) -> None:
    kinds = ("f32*", "i32*", "f32*", "i32")
    assert exact_outputs(tile_ir(kernel, *kinds, FROM="loaded")) == {"y", "z"}
    assert exact_outputs(tile_ir(kernel, *kinds, FROM="computed")) == {"z"}
