"""Loops over rows of any width on the CPU: what compilers make of them, and where they end (X4)."""

from __future__ import annotations

import math
import re

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.emit.source import KernelSource
from tests.emit.compiled import COMPILERS, remarks, text_of
from tests.support.public import DTYPES, source

WIDTH, BLOCK = 300, 256
HEAD = re.compile(r"for \(uint32_t thread = (\w+); thread < (\w+); \+\+thread\) \{")


@metile.kernel
def rows(x, y, width: int):
    """A maximum, a sum under a mask of its own, a scalar per block, and a store."""
    shape = (metile.num_programs(0), width)
    source = metile.tensor(x, shape=shape)
    result = metile.tensor(y, shape=shape, access="write")
    row, lanes = metile.program_id(0), metile.arange(0, BLOCK)
    most = metile.full(BLOCK, -math.inf, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        value = metile.cast(source.load((row, start + lanes), fill=-math.inf), metile.f32)
        most = metile.maximum(most, value)
    top = metile.max(most)
    total = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        value = metile.cast(source.load((row, columns)), metile.f32)
        total = total + metile.where(columns < width, metile.exp(value - top), 0.0)
    by = 1 / metile.sum(total)
    for start in metile.tile_range(0, width, BLOCK):
        value = metile.cast(source.load((row, start + lanes)), metile.f32)
        result.store((row, start + lanes), metile.exp(value - top) * by)


def text(dtype: str) -> KernelSource:
    x = mx.zeros((2, WIDTH), DTYPES[dtype])
    return source(rows[2].prepare(x, metile.empty(x.shape, x.dtype), WIDTH, backend="cpu"))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_loops_over_rows_vectorise(compiler: str) -> None:
    """Each loop within the bounds of a row, and each one behind them, in every dtype."""
    unit = text_of({name: text(name) for name in ("f32", "f16", "bf16")})
    said, _ = remarks(compiler, unit)
    vectorised = {int(n) for n in re.findall(r"<stdin>:(\d+):\d+: .*vectorized", said)}
    loops = [
        number
        for number, line in enumerate(unit.splitlines(), 1)
        if (found := HEAD.search(line)) and "whole" in found[1] + found[2]
    ]
    # Two of the three loops in a row's bounds have one behind them: what is stored has none.
    assert len(loops) == 3 * 5
    assert vectorised.issuperset(loops), sorted(set(loops) - vectorised)


def test_totals_come_from_the_first_lanes() -> None:
    """A simdgroup's first lane publishes, the lanes of the first simdgroup read: no loop is longer,
    and no lane is asked."""
    body = text("f32").body
    publishing = re.findall(r"for \(uint32_t lane = 0; lane < (\d+);", body)
    assert publishing == ["1", "1"]
    reading = re.findall(HEAD.pattern + r"\s*const uint32_t lane_2 = thread & 31u;", body)
    assert reading == [("0", "32"), ("0", "32")]
    assert "is_first_lane" not in body
