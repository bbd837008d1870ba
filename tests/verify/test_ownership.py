"""Geometry and agreement of owners, as the verifier derives them from the types alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metile_mlx.context import Stage
from metile_mlx.dtypes import f32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import Func
from metile_mlx.ir.lanes import ThreadId
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.verify import verify
from tests.support import verified
from tests.support.build import Program, chain_program, context

IDENTITY = ThreadLayout.identity(64)
ROWS = ThreadLayout((3, 4, 5, 0, 1, 2))


def message(func: Func, stage: Stage = Stage.OWNED) -> str:
    return verified.rejected(func, stage).message


def owned(lhs: ThreadLayout | None, rhs: ThreadLayout | None, threads: int = 64) -> Func:
    p = Program()
    a, b = p.arange(64, lhs, "a"), p.arange(64, rhs, "b")
    p.add(tile.Binary(BinaryKind.ADD, a, b), "c")
    return replace(p.func(), threads=threads)


def test_agreeing_owners_and_conversions_pass() -> None:
    verify(owned(ROWS, ROWS), Stage.OWNED, context())
    func = chain_program(IDENTITY, [(ROWS, f32), (IDENTITY, f32)])
    verify(replace(func, threads=64), Stage.OWNED, context())


@pytest.mark.parametrize("threads", [0, 16, 48, 65536])
@pytest.mark.parametrize("stage", [Stage.OWNED, Stage.PLANNED, Stage.THREAD])
def test_a_threadgroup_that_does_not_exist(threads: int, stage: Stage) -> None:
    func = replace(Program().func(), threads=threads)
    assert message(func, stage).endswith(
        f"kernel @kernel: has {threads} threads, expected a power of two from 32 to 32768"
    )


def test_o2_two_owners_in_one_op() -> None:
    text = message(owned(IDENTITY, ROWS))
    assert "kernel.py:5:5: %c = tile.binary add, %a, %b" in text
    assert (
        "%a: tile<64xi32, ThreadLayout((0, 1, 2, 3, 4, 5))> and %b: tile<64xi32, "
        "ThreadLayout((3, 4, 5, 0, 1, 2))> have different owners in one op, expected one layout"
    ) in text


def test_a_tile_without_a_layout() -> None:
    text = message(owned(None, None))
    assert "kernel.py:2:5: %a = tile.arange" in text
    assert "%a: tile<64xi32> has no layout, expected one" in text


def test_a_tile_on_another_number_of_threads() -> None:
    text = message(owned(ROWS, ROWS, threads=128))
    assert "lives on 64 threads, expected the kernel's 128" in text


def test_a_layout_of_another_size_than_its_tile() -> None:
    p = Program()
    p.add(tile.Splat(p.number(0), (64,), ThreadLayout.identity(32)), "a")
    text = message(replace(p.func(), threads=64))
    assert "kernel.py:2:5: %a = tile.splat" in text
    assert "has 64 elements but its layout owns 32" in text


def test_o4_a_value_of_each_threads_own_that_is_no_tile() -> None:
    p = Program()
    lane = p.add(ThreadId("thread_id()"), "lane")
    p.add(tile.Binary(BinaryKind.ADD, lane, lane), "twice")
    # Without the op that made it, the type alone is enough.
    without = replace(p.func(), params=(lane,), threads=64)
    body = replace(without.body, ops=without.body.ops[1:])
    text = message(without.with_body(body))
    assert "parameter lane is thread<i32>, expected an array or a uniform scalar" in text
