"""The simulator rejects what a device leaves undefined, and computes what the metal ops say.

Everything else relies on it: a fault that it lets pass is one no test of a pass would see.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i8, i32, u16, u32
from metile_mlx.errors import Loc
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, CombineKind, CompareKind, element
from metile_mlx.ir.core import Builder, Func, Op, Value
from metile_mlx.ir.types import PointerType, ScalarType
from tests.support.arithmetic import NUMPY, Array, cast, from_bf16, to_bf16
from tests.support.simulate import SimulationError, run

THREADS = 64
LOC = Loc("kernel.py", 7, 5, 9, "    x = y")


class Lane:
    """A per-thread program by hand, with an output `out` of one element per thread."""

    def __init__(self, dtype: DType = u32) -> None:
        self.builder = Builder(LOC)
        self.out = Value(PointerType(dtype, True), "out")
        self.thread = self.add(metal.ThreadIndex())

    def add(self, item: Op) -> Value:
        return self.builder.add(item)

    def number(self, value: float, dtype: DType = u32) -> Value:
        return self.add(metal.Constant(value, dtype))

    def op(self, kind: BinaryKind, lhs: Value, rhs: Value | int, nowrap: bool = False) -> Value:
        other = rhs if isinstance(rhs, Value) else self.number(rhs, element(lhs))
        return self.add(metal.Binary(kind, lhs, other, nowrap))

    def is_lane(self, lane: Value, number: int) -> Value:
        return self.add(metal.Compare(CompareKind.EQ, lane, self.number(number)))

    def thread_is(self, kind: CompareKind, number: int) -> Value:
        return self.add(metal.Compare(kind, self.thread, self.number(number)))

    def scratch(self, elements: int = THREADS) -> Value:
        return self.add(metal.ThreadgroupAlloc(u32, elements, "s"))

    def put(self, buffer: Value, index: Value, value: Value | None = None) -> None:
        self.builder.emit(metal.ThreadgroupStore(buffer, index, value or self.thread))

    def get(self, buffer: Value, index: Value) -> Value:
        return self.add(metal.ThreadgroupLoad(buffer, index))

    def barrier(self) -> None:
        self.builder.emit(metal.Barrier("publish"))

    def store(self, value: Value, index: Value | None = None) -> None:
        self.builder.emit(metal.Store(self.out, index or self.thread, value))

    def branch(self, condition: Value, build: Callable[[], None]) -> None:
        """Ops of `build` where `condition` holds."""
        outer, self.builder = self.builder, Builder(LOC)
        build()
        self.builder.emit(metal.Yield())
        then, otherwise = self.builder.block(), Builder()
        otherwise.emit(metal.Yield())
        self.builder = outer
        self.builder.emit(metal.If(condition, then, otherwise.block()))

    def func(self) -> Func:
        return Func("lane", (self.out,), self.builder.block(), threads=THREADS)

    def run(self, grid: tuple[int, ...] = (1,), size: int = THREADS) -> Array:
        assert isinstance(self.out.type, PointerType)
        found, _ = run(self.func(), {"out": np.zeros(size, NUMPY[self.out.type.dtype])}, {}, grid)
        return found["out"]

    def fails(self, message: str, grid: tuple[int, ...] = (1,)) -> None:
        with pytest.raises(SimulationError, match=message) as caught:
            self.run(grid)
        assert caught.value.op is not None
        assert str(caught.value).endswith("at kernel.py:7:5")


def neighbour(p: Lane) -> Value:
    return p.op(BinaryKind.XOR, p.thread, 1)


def test_an_exchange_with_its_barrier_is_right() -> None:
    p = Lane()
    s = p.scratch()
    p.put(s, p.thread)
    p.barrier()
    p.store(p.get(s, neighbour(p)))
    assert p.run().tolist() == [t ^ 1 for t in range(THREADS)]


def test_a_threads_own_element_needs_no_barrier() -> None:
    p = Lane()
    s = p.scratch()
    p.put(s, p.thread)
    p.put(s, p.thread)
    p.store(p.get(s, p.thread))
    assert p.run().tolist() == list(range(THREADS))


def test_reading_what_another_thread_wrote_is_a_race() -> None:
    """Also within one simdgroup: its order does not order memory."""
    p = Lane()
    s = p.scratch()
    p.put(s, p.thread)
    p.get(s, neighbour(p))
    p.fails("race: read after a write with no barrier between, by thread 0 and thread 1")


def test_overwriting_what_another_thread_read_is_a_race() -> None:
    p = Lane()
    s = p.scratch()
    p.put(s, p.thread)
    p.barrier()
    p.get(s, neighbour(p))
    p.put(s, p.thread)
    p.fails("race: write after a read")


def test_an_element_many_threads_read_is_no_threads_own() -> None:
    """Thread 0 read element 0 itself, and so did the others."""
    p = Lane()
    s = p.scratch()
    p.put(s, p.thread)
    p.barrier()
    p.get(s, p.op(BinaryKind.MUL, p.thread, 0))
    p.put(s, p.thread)
    p.fails("race: write after a read with no barrier between, by thread 0 and other threads")


def test_two_writes_of_one_element_are_a_race() -> None:
    p = Lane()
    p.put(p.scratch(), p.op(BinaryKind.SHR, p.thread, 1))
    p.fails("race: two threads write one element")
    q = Lane()
    s = q.scratch()
    q.put(s, q.thread)
    q.put(s, neighbour(q))
    q.fails("race: write after a write")


def test_scratch_nobody_wrote_cannot_be_read() -> None:
    """A barrier doesn't make it known, and scratch starts unknown in every threadgroup (F53)."""
    p = Lane()
    s = p.scratch()
    p.branch(p.thread_is(CompareKind.NE, 5), lambda: p.put(s, p.thread))
    p.barrier()
    p.get(s, p.thread)
    p.fails("reads threadgroup memory nobody wrote")


def test_threadgroups_do_not_share_scratch() -> None:
    p = Lane()
    s = p.scratch()
    first = p.add(metal.Compare(CompareKind.EQ, p.add(metal.ProgramId(0)), p.number(0, i32)))
    p.branch(first, lambda: p.put(s, p.thread))
    p.get(s, p.thread)
    assert p.run((1,)).size == THREADS
    p.fails("reads threadgroup memory nobody wrote", (2,))


def test_scratch_has_an_end() -> None:
    p = Lane()
    p.put(p.scratch(THREADS - 1), p.thread)
    p.fails("thread 63 accesses 63 of 63 elements")


def test_scratch_keeps_its_dtype() -> None:
    p = Lane()
    p.put(p.scratch(), p.thread, p.add(metal.Cast(p.thread, f32)))
    p.fails("stores float32 to uint32")


@pytest.mark.parametrize("convergent", ["barrier", "shuffle"])
def test_all_threads_have_to_reach_barriers_and_shuffles(convergent: str) -> None:
    """SPEC C2; under a condition that holds for all of them they do."""

    def build(p: Lane) -> None:
        if convergent == "barrier":
            p.barrier()
        else:
            p.add(metal.Shuffle(p.thread, p.number(0, u16)))

    p = Lane()
    p.branch(p.thread_is(CompareKind.LT, 63), lambda: build(p))
    p.fails("not every thread of the threadgroup reaches it")
    q = Lane()
    q.branch(q.thread_is(CompareKind.LT, 64), lambda: build(q))
    q.run()


def test_simdgroups_combine_their_lanes() -> None:
    """By halves, each simdgroup its own; `uniform` is checked, not believed."""
    p = Lane(f32)
    value = p.add(metal.Cast(p.thread, f32))
    p.store(p.add(metal.SimdReduce(CombineKind.SUM, value)))
    assert p.run().tolist() == [496.0] * 32 + [1520.0] * 32
    p = Lane(f32)
    value = p.add(metal.Cast(p.op(BinaryKind.AND, p.thread, 31), f32))
    p.store(p.add(metal.SimdReduce(CombineKind.SUM, value, uniform=True)))
    assert p.run().tolist() == [496.0] * 64
    p = Lane(f32)
    p.add(metal.SimdReduce(CombineKind.SUM, p.add(metal.Cast(p.thread, f32)), uniform=True))
    p.fails("typed uniform, but simdgroups differ")


def test_the_order_of_a_combination_is_by_halves() -> None:
    """2**24 + 1 - 2**24 is 1 where the large ones meet first, as lanes 0 and 16 do."""
    p = Lane(f32)
    lane = p.op(BinaryKind.AND, p.thread, 31)
    big, small = p.number(2.0**24, f32), p.number(1.0, f32)
    zero, minus = p.number(0.0, f32), p.number(-(2.0**24), f32)
    value = p.add(metal.Select(p.is_lane(lane, 1), small, zero))
    value = p.add(metal.Select(p.is_lane(lane, 16), minus, value))
    value = p.add(metal.Select(p.is_lane(lane, 0), big, value))
    p.store(p.add(metal.SimdReduce(CombineKind.SUM, value)))
    assert p.run().tolist() == [1.0] * 64


def test_threadgroup_memory_under_a_mask() -> None:
    """Lanes left out write nothing, read nothing, and get the fill."""
    p = Lane()
    s = p.scratch(2)
    lane, group = p.op(BinaryKind.AND, p.thread, 31), p.op(BinaryKind.SHR, p.thread, 5)
    p.builder.emit(metal.ThreadgroupStore(s, group, p.thread, p.is_lane(lane, 3)))
    p.barrier()
    few = p.add(metal.Compare(CompareKind.LT, lane, p.number(2)))
    p.store(p.add(metal.ThreadgroupLoad(s, lane, few, p.number(7))))
    assert p.run().tolist() == ([3, 35] + [7] * 30) * 2


def test_a_shuffle_reads_a_lane_of_its_own_simdgroup() -> None:
    p = Lane()
    lane = p.add(metal.Cast(p.op(BinaryKind.AND, p.op(BinaryKind.ADD, p.thread, 1), 31), u16))
    p.store(p.add(metal.Shuffle(p.thread, lane)))
    assert p.run().tolist() == [t // 32 * 32 + (t + 1) % 32 for t in range(THREADS)]
    q = Lane()
    q.add(metal.Shuffle(q.thread, q.add(metal.Cast(q.thread, u16))))
    q.fails("lane 63 of 32")


def test_arrays_have_an_end_and_masked_lanes_touch_nothing() -> None:
    """F55: a guard on the store alone leaves the load out of bounds."""
    source = Value(PointerType(u32), "source")
    for mask in (True, False):
        p = Lane()
        inside = p.thread_is(CompareKind.LT, 10)
        fill = p.number(7)
        load = metal.Load(source, p.thread, inside, fill) if mask else metal.Load(source, p.thread)
        value = p.add(load)
        p.builder.emit(metal.Store(p.out, p.thread, value, inside))
        func = replace(p.func(), params=(source, p.out))
        arrays = {"source": np.arange(10, dtype=np.uint32), "out": np.zeros(10, np.uint32)}
        if mask:
            found, written = run(func, arrays, {}, (1,))
            assert found["out"].tolist() == list(range(10))
            assert written["out"].all()
        else:
            with pytest.raises(SimulationError, match="thread 10 accesses 10 of 10 elements"):
                run(func, arrays, {}, (1,))


def test_two_threads_of_a_launch_may_not_store_one_element() -> None:
    """SPEC K7: undefined, in one threadgroup or in two."""
    p = Lane()
    p.store(p.thread, p.op(BinaryKind.SHR, p.thread, 1))
    p.fails("two threads store one element")
    q = Lane()
    q.store(q.thread)
    assert q.run((1,)).tolist() == list(range(THREADS))
    q.fails("two threads store one element", (2,))


def test_a_false_nowrap_is_found() -> None:
    p = Lane(i32)
    x = p.op(BinaryKind.MUL, p.add(metal.Cast(p.thread, i32)), 2**26)
    p.store(x)
    assert p.run()[63] == np.int32(63 * 2**26 - 2**32)
    q = Lane(i32)
    q.op(BinaryKind.MUL, q.add(metal.Cast(q.thread, i32)), 2**26, nowrap=True)
    q.fails("nowrap, but it wraps")


@pytest.mark.parametrize("divisor", [0, -1])
@pytest.mark.parametrize("kind", [BinaryKind.DIV, BinaryKind.REM])
def test_machine_division_has_divisors_it_cannot_take(kind: BinaryKind, divisor: int) -> None:
    p = Lane(i32)
    p.op(kind, p.add(metal.Cast(p.thread, i32)), divisor)
    p.fails("the divisor is 0 or -1")


def test_integer_division_truncates() -> None:
    p = Lane(i32)
    x = p.op(BinaryKind.SUB, p.add(metal.Cast(p.thread, i32)), 32)
    p.store(
        p.op(
            BinaryKind.ADD,
            p.op(BinaryKind.MUL, p.op(BinaryKind.DIV, x, 7), 100),
            p.op(BinaryKind.REM, x, 7),
        )
    )
    expected = [int(x / 7) * 100 + (x - int(x / 7) * 7) for x in range(-32, 32)]
    assert p.run().tolist() == expected


def test_a_value_typed_uniform_has_to_be() -> None:
    p = Lane()
    item = metal.Cast(p.thread, i32)
    item = replace(item, results=(Value(ScalarType(i32), "x"),), loc=LOC)
    p.builder.ops.append(item)
    p.fails("typed uniform, computed per thread")


def test_a_branch_runs_where_its_condition_holds() -> None:
    p = Lane()
    outer = p.builder
    blocks = []
    for factor in (10, 100):
        p.builder = Builder(LOC)
        p.builder.emit(metal.Yield((p.op(BinaryKind.MUL, p.thread, factor),)))
        blocks.append(p.builder.block())
    p.builder = outer
    (value,) = p.builder.emit(metal.If(p.thread_is(CompareKind.LT, 3), *blocks))
    p.store(value)
    assert p.run().tolist() == [t * (10 if t < 3 else 100) for t in range(THREADS)]


def test_the_observer_sees_each_result() -> None:
    p = Lane()
    p.store(p.op(BinaryKind.ADD, p.thread, 1))
    seen: list[tuple[str, int]] = []
    arrays = {"out": np.zeros(THREADS, np.uint32)}
    run(p.func(), arrays, {}, (1,), lambda op, found: seen.append((op.opcode, len(found))))
    assert seen == [
        ("metal.thread_index", 1),
        ("metal.constant", 1),
        ("metal.binary", 1),
        ("metal.store", 0),
    ]


def test_bf16_rounds_to_nearest_even_and_keeps_nan() -> None:
    """All 65536 patterns survive the way through f32; ties and overflow round as f32 does."""
    patterns = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    nan = np.isnan(from_bf16(patterns))
    assert np.array_equal(to_bf16(from_bf16(patterns))[~nan], patterns[~nan])
    assert np.isnan(from_bf16(to_bf16(from_bf16(patterns[nan])))).all()
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.4e38, -0.0], np.float32)
    assert to_bf16(x).tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7F80, 0x8000]


@pytest.mark.parametrize(
    ("x", "source", "target", "expected"),
    [
        (-1.9, f32, i32, -1),
        (1.9, f16, i32, 1),
        (-1, i32, u32, 2**32 - 1),
        (300, i32, i8, 44),
        (2, i32, bool_, True),
        (True, bool_, f32, 1.0),
        (65520.0, f32, f16, np.inf),
        (float("nan"), f32, i32, 0),
        (1e20, f32, i32, 2**31 - 1),
        (-1.0, f32, u32, 0),
        (2**24 + 1, i32, f32, 2**24),
    ],
)
def test_casts(x: float, source: DType, target: DType, expected: float) -> None:
    with np.errstate(over="ignore"):
        found = cast(np.array([x], NUMPY[source]), source, target)
    assert found.dtype == NUMPY[target]
    assert found.tolist() == [expected]


def test_casts_from_and_to_bf16_go_through_its_value() -> None:
    bits = to_bf16(np.array([2.5], np.float32))
    assert cast(bits, bf16, i32).tolist() == [2]
    assert cast(bits, bf16, f32).tolist() == [2.5]
    assert cast(np.array([3], np.int32), i32, bf16).tolist() == [0x4040]
    assert cast(bits, bf16, bool_).tolist() == [True]
