"""Loops as software pipelines: which, what they compute, and what they cost (SPEC P1, P2).

F57 for few steps and none, F58 and F60 for slots filled again, F43 for memory after a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx import emulator
from metile_mlx.compiler import STEPS, lower
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.dtypes import f32
from metile_mlx.ir import planned
from metile_mlx.ir.core import Func, walk
from metile_mlx.ir.loops import For
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.passes.materialise_pipelines import materialise_pipelines
from metile_mlx.passes.pipeline_loops import pipeline_loops
from metile_mlx.runtime.reference import evaluate
from metile_mlx.target import CPU, METAL
from tests.support import simulate
from tests.support.mutate import BARRIER
from tests.support.public import same_bits
from tests.support.samples import Sample, multiplied

BLOCK = {"BM": 16, "BN": 16, "BK": 8}
DTYPES = (mx.float32, mx.float16, mx.bfloat16)


@metile.kernel
def stepwise(x, y, z, M: int, N: int, K: int):
    """What is loaded and what is carried is worked on, and the step counts."""
    a = metile.tensor(x, shape=(M, K), access="read")
    b = metile.tensor(y, shape=(K, N), access="read")
    c = metile.tensor(z, shape=(M, N), access="write")
    total, steps = metile.zeros((16, 16), metile.f32), 0
    for k in metile.tile_range(0, K, 8):
        left = metile.maximum(metile.tile_load(a, (0, k), (16, 8)), 0)
        right = metile.tile_load(b, (k, 0), (8, 16))
        total = metile.dot(left, right, metile.minimum(total * 0.5, 100.0)) + metile.cast(
            k, metile.f32
        )
        steps += 1
    metile.tile_store(c, (0, 0), total + metile.cast(steps, metile.f32))


@metile.kernel
def chained(x, y, z, M: int, N: int, K: int):
    """Two loops, and behind them a product of what they leave, and a sum along an axis."""
    a = metile.tensor(x, shape=(M, K), access="read")
    b = metile.tensor(y, shape=(K, N), access="read")
    c = metile.tensor(z, shape=(M, N), access="write")
    one = metile.zeros((16, 16), metile.f32)
    for k in metile.tile_range(0, K, 8):
        left = metile.tile_load(a, (0, k), (16, 8))
        one = metile.dot(left, metile.tile_load(b, (k, 0), (8, 16)), one)
    two = metile.zeros((16, 16), metile.f32)
    for k in metile.tile_range(8, K, 8):
        left = metile.tile_load(a, (0, k), (16, 8))
        two = metile.dot(left, metile.tile_load(b, (k, 0), (8, 16)), two)
    both = metile.dot(one, two, metile.zeros((16, 16), metile.f32))
    metile.tile_store(c, (0, 0), both + metile.sum(one, axis=1))


@metile.kernel
def nested(x, y, z, M: int, N: int, K: int):
    """A pipeline that runs again and again: its slots are released each time."""
    a = metile.tensor(x, shape=(M, K), access="read")
    b = metile.tensor(y, shape=(K, N), access="read")
    c = metile.tensor(z, shape=(M, N), access="write")
    for row in metile.tile_range(0, M, 16):
        total = metile.zeros((16, 16), metile.f32)
        for k in metile.tile_range(0, K, 8):
            left = metile.tile_load(a, (row, k), (16, 8))
            total = metile.dot(left, metile.tile_load(b, (k, 0), (8, 16)), total)
        metile.tile_store(c, (row, 0), total)


def small(dtype: mx.Dtype, *shape: int) -> mx.array:
    """Integers whose products add up exactly in f32."""
    return mx.random.randint(-3, 4, shape, key=mx.random.key(sum(shape))).astype(dtype)


@dataclass(frozen=True)
class Launch:
    """A kernel and what it is called with."""

    dispatch: metile.Dispatch
    args: tuple[Any, ...]


def prepared(
    kernel: Any, m: int, n: int, k: int, dtype: mx.Dtype = mx.float32, double: bool = True
) -> Launch:
    programs = (-(-n // 16), -(-m // 16)) if kernel is multiplied else (1,)
    out = metile.empty((m, n), dtype if kernel is multiplied else mx.float32)
    blocks = BLOCK if kernel is multiplied else {}
    args = (small(dtype, m, k), small(dtype, k, n), out, m, n, k)
    schedule = metile.Schedule(double_buffer=double)
    made = kernel[programs].prepare(*args, **blocks, backend="emulator", schedule=schedule)
    return Launch(made, args)


def checked(launch: Launch) -> mx.array:
    """What it gives, in several orders of threads; the checker finds nothing."""
    emulator.take()
    with emulator.options(checked=True, schedules=3):
        made: mx.array = launch.dispatch(*launch.args)
        mx.eval(made)
    report = emulator.take()
    assert not report.findings, report
    return made


def wide(dtype: mx.Dtype, *shape: int) -> Any:
    return np.array(small(dtype, *shape).astype(mx.float32)).astype(np.float64)


# Steps of 8: none, one, part of one, two, three, five, and parts of more.
DEPTHS = (0, 8, 5, 16, 24, 40, 19)


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_f57_any_number_of_steps(dtype: mx.Dtype) -> None:
    """Exact, and the same bits with one slot and with two (F58)."""
    for k in DEPTHS:
        m, n = (16, 16) if k == 8 else (23, 33)
        one, two = (
            checked(prepared(multiplied, m, n, k, dtype, double)) for double in (False, True)
        )
        assert same_bits(one, two), k
        wanted = wide(dtype, m, k) @ wide(dtype, k, n)
        assert np.array_equal(np.array(two.astype(mx.float32)), wanted), k


def on_stepwise(a: Any, b: Any) -> Any:
    total = np.zeros((a.shape[0], b.shape[1]))
    starts = range(0, a.shape[1], 8)
    for k in starts:
        part = np.maximum(a[:, k : k + 8], 0) @ b[k : k + 8]
        total = np.minimum(total * 0.5, 100) + part + k
    return total + len(starts)


def on_chained(a: Any, b: Any) -> Any:
    one, two = a @ b, a[:, 8:] @ b[8:]
    whole = np.zeros((16, 16))
    whole[: a.shape[0], : b.shape[1]] = one
    other = np.zeros((16, 16))
    other[: a.shape[0], : b.shape[1]] = two
    return (whole @ other + whole.sum(1, keepdims=True))[: a.shape[0], : b.shape[1]]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("kernel", "meaning", "rows"),
    [(stepwise, on_stepwise, 13), (chained, on_chained, 16), (nested, np.matmul, 40)],
    ids=["stepwise", "chained", "nested"],
)
def test_f60_other_loops(kernel: Any, meaning: Callable[[Any, Any], Any], rows: int) -> None:
    """Work on what is loaded and carried; two pipelines; one that runs again and again."""
    for k in (0, 8, 21, 40):
        made = checked(prepared(kernel, rows, 15, k))
        wanted = meaning(wide(mx.float32, rows, k), wide(mx.float32, k, 15))
        assert np.allclose(np.array(made), wanted, rtol=1e-6, atol=1e-6), k
        plain = checked(prepared(kernel, rows, 15, k, double=False))
        assert same_bits(made, plain), k


def test_p2_barriers_and_memory() -> None:
    """Two slots: one barrier a step after the first copies; one slot: two, and half the memory."""
    for double, barriers, inside in ((True, 1, 1), (False, 2, 2)):
        dispatch = prepared(multiplied, 32, 32, 40, double=double).dispatch
        (fact,) = dispatch.execution_report.pipelines
        assert (fact.slots, fact.barriers, fact.declined) == (1 + double, barriers, "")
        text = dispatch.msl
        loop = text[text.index("for (int") :]
        # The loop ends with the first brace that closes no deeper one.
        loop = loop[: loop.index("\n    }" if double else "\n  }")]
        assert loop.count(BARRIER) == inside
        assert text.count(BARRIER) == (3 if double else 2)
        sizes = [buffer.bytes for buffer in fact.buffers]
        assert sizes == [16 * 8 * 4 * (1 + double)] * 2
        assert [(b.store_conflicts, b.load_conflicts) for b in fact.buffers] == [(1, 1)] * 2
        kept = [(a.scratch, a.bytes) for a in dispatch.execution_report.allocations]
        assert kept == list(zip([b.scratch for b in fact.buffers], sizes, strict=True))
        assert f"{barriers} barrier" in dispatch.explain()
    (fact,) = prepared(multiplied, 32, 32, 40).dispatch.execution_report.pipelines
    phases = [(phase.name, phase.copies, phase.products) for phase in fact.phases]
    assert phases == [("first", 2, 0), ("steady", 2, 1), ("last", 0, 1)]


def owned(kernel: Any, double: bool = True, **constexprs: int) -> tuple[Func, Context]:
    kinds = ("f32*", "f32*", "f32*", "i32", "i32", "i32")
    ctx = Context(METAL, Schedule(double_buffer=double))
    return lower(Sample(kernel, kinds, dict(constexprs)).func(), ctx, Stage.OWNED), ctx


def test_p2_materialising_twice_is_doing_it_once() -> None:
    func, ctx = owned(chained)
    single = pipeline_loops(func, ctx)
    double = materialise_pipelines(single, ctx)
    facts = list(ctx.report.pipelines), list(ctx.report.allocations)
    assert materialise_pipelines(double, ctx) is double
    assert (ctx.report.pipelines, ctx.report.allocations) == facts
    assert [fact.slots for fact in ctx.report.pipelines] == [2, 2]
    plain = Context(METAL)
    assert materialise_pipelines(single, plain) is single


def test_p2_only_the_slots_double() -> None:
    """Memory of the product behind the loops, and of the sum, is as large as before."""
    sizes = []
    for double in (False, True):
        func, ctx = owned(chained, double)
        for step in STEPS[2:]:
            if step.stage is Stage.PLANNED:
                func = step.run(func, ctx)
        found = {i.slot: i.elements for i in walk(func.body) if isinstance(i, planned.Scratch)}
        assert found == {a.scratch: a.elements for a in ctx.report.allocations}
        sizes.append(found)
    one, two = sizes
    assert one.keys() == two.keys()
    assert {slot for slot in one if two[slot] != one[slot]} == {
        slot for slot in one if slot.startswith("pipeline_")
    }
    assert len([slot for slot in one if not slot.startswith("pipeline_")]) >= 1
    assert all(two[slot] == 2 * one[slot] for slot in one if slot.startswith("pipeline_"))


@metile.kernel
def storing(x, y, z, M: int, N: int, K: int):
    a = metile.tensor(x, shape=(M, K), access="read")
    b = metile.tensor(y, shape=(K, N), access="read")
    c = metile.tensor(z, shape=(M, N), access="write")
    total = metile.zeros((16, 16), metile.f32)
    for k in metile.tile_range(0, K, 8):
        left = metile.tile_load(a, (0, k), (16, 8))
        total = metile.dot(left, metile.tile_load(b, (k, 0), (8, 16)), total)
        metile.tile_store(c, (0, 0), total)


@metile.kernel
def branching(x, y, z, M: int, N: int, K: int):
    a = metile.tensor(x, shape=(M, K), access="read")
    b = metile.tensor(y, shape=(K, N), access="read")
    c = metile.tensor(z, shape=(M, N), access="write")
    total = metile.zeros((16, 16), metile.f32)
    for k in metile.tile_range(0, K, 8):
        if k > 8:
            left = metile.tile_load(a, (0, k), (16, 8))
            total = metile.dot(left, metile.tile_load(b, (k, 0), (8, 16)), total)
    metile.tile_store(c, (0, 0), total)


@metile.kernel
def summing(x, y, z, M: int, N: int, K: int):
    a = metile.tensor(x, shape=(M, K), access="read")
    b = metile.tensor(y, shape=(K, N), access="read")
    c = metile.tensor(z, shape=(M, N), access="write")
    total = metile.zeros((16, 16), metile.f32)
    for k in metile.tile_range(0, K, 8):
        left = metile.tile_load(a, (0, k), (16, 8))
        total = metile.dot(left, metile.tile_load(b, (k, 0), (8, 16)), total)
        total = total - metile.max(total, axis=1)
    metile.tile_store(c, (0, 0), total)


@metile.kernel
def following(x, y, z, M: int, N: int, K: int):
    a = metile.tensor(x, shape=(M, K), access="read")
    b = metile.tensor(y, shape=(K, N), access="read")
    c = metile.tensor(z, shape=(M, N), access="write")
    total, at = metile.zeros((16, 16), metile.f32), 0
    for _ in metile.tile_range(0, K, 8):
        left = metile.tile_load(a, (0, at), (16, 8))
        total = metile.dot(left, metile.tile_load(b, (at, 0), (8, 16)), total)
        at += 8
    metile.tile_store(c, (0, 0), total)


@metile.kernel
def once(x, y, z, M: int, N: int, K: int):
    a = metile.tensor(x, shape=(M, K), access="read")
    b = metile.tensor(y, shape=(K, N), access="read")
    c = metile.tensor(z, shape=(M, N), access="write")
    left = metile.tile_load(a, (0, 0), (16, 8))
    total = metile.zeros((16, 16), metile.f32)
    metile.tile_store(c, (0, 0), metile.dot(left, metile.tile_load(b, (0, 0), (8, 16)), total))


DECLINED = {
    "it stores or prints in each step": storing,
    "a branch or a loop stands in it": branching,
    "threads exchange values in each step": summing,
    "what it loads depends on what the loop carries": following,
    "products stand in no loop": once,
}


@pytest.mark.parametrize("reason", DECLINED)
def test_p3_other_loops_stay_as_they_are(reason: str) -> None:
    func, ctx = owned(DECLINED[reason])
    assert pipeline_loops(func, ctx) is func
    (fact,) = ctx.report.pipelines
    assert reason in fact.declined
    assert (fact.slots, fact.barriers) == (0, 0)
    assert "test_pipeline_loops.py:" in fact.loop


@pytest.mark.emulator
def test_p3_a_loop_that_stays_runs() -> None:
    launch = prepared(following, 16, 16, 24)
    wanted = wide(mx.float32, 16, 24) @ wide(mx.float32, 24, 16)
    assert np.array_equal(np.array(checked(launch)), wanted)
    assert "stays as it is" in launch.dispatch.explain()


@pytest.mark.parametrize(
    ("target", "schedule", "reason"),
    [
        (METAL, Schedule(staging="device", double_buffer=True), "with staging='device'"),
        (CPU, Schedule(double_buffer=True), "on a CPU"),
    ],
)
def test_nothing_is_ignored_in_silence(target: Any, schedule: Schedule, reason: str) -> None:
    kinds = ("f32*", "f32*", "f32*", "i32", "i32", "i32")
    ctx = Context(target, schedule)
    func = lower(Sample(multiplied, kinds, dict(BLOCK)).func(), ctx, Stage.PLANNED)
    assert not any(isinstance(item, SoftwarePipeline) for item in walk(func.body))
    assert any(isinstance(item, For) for item in walk(func.body))
    (fact,) = ctx.report.pipelines
    assert fact.declined.startswith(reason)


@pytest.mark.parametrize("double", [False, True])
def test_the_reference_and_the_simulator_take_pipelines(double: bool) -> None:
    """At Stage.PLANNED as MLX operations, phase by phase; at Stage.THREAD thread by thread."""
    func, ctx = owned(multiplied, double, **BLOCK)
    for step in STEPS[2:]:
        func = step.run(func, ctx)
        if step.run is materialise_pipelines:
            made = func
    for k in (0, 8, 19, 24):
        x, y = small(mx.float32, 20, k), small(mx.float32, k, 18)
        scalars = {"M": 20, "N": 18, "K": k}
        wanted = wide(mx.float32, 20, k) @ wide(mx.float32, k, 18)
        flat = {"x": x.reshape(-1), "y": y.reshape(-1)}
        shapes = {"z": ((20, 18), f32)}
        left = evaluate(made, flat, scalars, shapes, (2, 2, 1))["z"]
        assert np.array_equal(np.array(left), wanted), k
        arrays = {name: np.array(array) for name, array in flat.items()}
        empty = np.zeros((20, 18), np.float32)
        results, _ = simulate.run(func, {**arrays, "z": empty}, scalars, (2, 2))
        assert np.array_equal(results["z"], wanted), k
