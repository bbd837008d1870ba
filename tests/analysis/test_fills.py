"""Which loads a maximum or minimum rests on: those need a `fill` (SPEC K2)."""

# ruff: noqa: B007 (an index nobody reads)

from __future__ import annotations

import math

import pytest

import metile_mlx.frontend.language as metile
from metile_mlx.errors import CompileError
from tests.support.kernels import tile_ir


def branches(x, y, n, FIRST: metile.constexpr):
    """A branch gives two values; only one of them has a fill on both sides."""
    view = metile.tensor(x, shape=(n,))
    i = metile.arange(0, 64)
    if n > 3:
        filled, bare = view.load(i, fill=-math.inf), view.load(i)
    else:
        bare, filled = view.load(i + 1), view.load(i + 1, fill=-math.inf)
    most, total = (filled, bare) if FIRST else (bare, filled)
    out = metile.tensor(y, shape=(2,), access="write")
    out.store(0, metile.max(most))
    out.store(1, metile.sum(total))


def loops(x, y, n, FIRST: metile.constexpr):
    """What a loop carries, the same."""
    view = metile.tensor(x, shape=(n,))
    i = metile.arange(0, 64)
    filled, bare = metile.full(64, -math.inf, metile.f32), metile.zeros(64, metile.f32)
    for start in metile.tile_range(0, n, 64):
        filled = metile.maximum(filled, view.load(i, fill=-math.inf))
        bare += view.load(i)
    out = metile.tensor(y, shape=(1,), access="write")
    out.store(0, metile.max(filled if FIRST else bare))


@pytest.mark.parametrize("kernel", [branches, loops])
def test_only_what_is_at_the_place_of_the_result_counts(kernel: object) -> None:
    tile_ir(kernel, "f32*", "f32*", "i32", FIRST=True)
    with pytest.raises(CompileError, match="take part in the maximum of line"):
        tile_ir(kernel, "f32*", "f32*", "i32", FIRST=False)


def of_lanes(x, y, n, FIRST: metile.constexpr):
    """What lanes combine, or hand on through threadgroup memory."""
    memory = metile.shared(64, metile.f32)
    i = metile.arange(0, 64)
    view = metile.tensor(x, shape=(n,))
    memory.store(i, view.load(i, fill=-math.inf) if FIRST else view.load(i))
    metile.barrier()
    out = metile.tensor(y, shape=(64,), access="write")
    out.store(i, metile.simd_sum(view.load(i)) + metile.simd_max(memory.load(i)))


def test_the_maximum_of_a_simdgroup_counts_through_threadgroup_memory_too() -> None:
    tile_ir(of_lanes, "f32*", "f32*", "i32", FIRST=True)
    with pytest.raises(CompileError, match="take part in the maximum of line") as caught:
        tile_ir(of_lanes, "f32*", "f32*", "i32", FIRST=False)
    assert caught.value.loc is not None
    assert "view.load(i, fill=-math.inf) if FIRST else view.load(i)" in caught.value.loc.text


def wrapped_round(x, y, n, COUNT: metile.constexpr):
    """Indices that are data, or each thread's own, and within a constant extent all the same."""
    memory = metile.shared(COUNT, metile.f32)
    i, t = metile.arange(0, 64), metile.thread_id()
    view = metile.tensor(x, shape=(COUNT,))
    at = metile.cast(view.load(i % COUNT), metile.i32)
    memory.store(t, view.load((at + n) % COUNT))
    metile.barrier()
    own = memory.load(63 - t)
    out = metile.tensor(y, shape=(64,), access="write")
    out.store(i, metile.max(own + view.load(at & (COUNT - 1))))


def test_indices_within_a_constant_extent_need_no_fill() -> None:
    tile_ir(wrapped_round, "f32*", "f32*", "i32", COUNT=64)
    with pytest.raises(CompileError, match="take part in the maximum of line"):
        tile_ir(wrapped_round, "f32*", "f32*", "i32", COUNT=60)
