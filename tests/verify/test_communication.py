"""Communication of per-thread programs: each way to break it is rejected (C2, C4, F43)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from metile_mlx.context import Stage
from metile_mlx.dtypes import bool_, f16, f32, u16, u32
from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import Func, Op, Value
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.passes.plan_conversions import plan_conversions
from metile_mlx.target import CPU
from metile_mlx.verify import verify
from tests.support import mutate, verified
from tests.support.build import Program, context
from tests.support.mutate import edit, ops_of

ROWS = ThreadLayout((3, 4, 5, 0, 1, 2))


def planned_program() -> Func:
    """x travels through scratch to the owners of ROWS and back, then by a shuffle lane ^ 3."""
    p = Program()
    x, y = p.array("x", f32, 64, "read"), p.array("y", f32, 64, "write")
    value = p.add(tile.Load(x, (p.arange(64, None, "a"),)), "value")
    there = p.add(tile.Convert(value, ROWS), "there")
    back = p.add(tile.Convert(there, ThreadLayout.identity(64)), "back")
    last = ThreadLayout(range(6), xor_mask=3)
    flipped = p.add(tile.Convert(back, last), "flipped")
    p.emit(tile.Store(y, (p.arange(64, last, "b"),), flipped))
    ctx = context(CPU)
    return plan_conversions(infer_ownership(p.func(), ctx), ctx)


def thread_program() -> Func:
    """The same by hand, one op a line."""
    p = Program()
    x = p.param("x", PointerType(f32))
    y = p.param("y", PointerType(f32, writable=True))
    thread = p.add(metal.ThreadIndex(), "thread")
    buffer = p.add(metal.ThreadgroupAlloc(f32, 64, "scratch_f32"), "scratch_f32")
    value = p.add(metal.Load(x, thread), "value")
    three, seven = p.add(metal.Constant(3, u32), "three"), p.add(metal.Constant(7, u32), "seven")
    high = p.add(metal.Binary(BinaryKind.SHR, thread, three), "high")
    low = p.add(metal.Binary(BinaryKind.AND, thread, seven), "low")
    moved = p.add(metal.Binary(BinaryKind.SHL, low, three), "moved")
    source = p.add(metal.Binary(BinaryKind.OR, moved, high), "source")
    for name in ("there", "back"):
        p.emit(metal.ThreadgroupStore(buffer, thread, value))
        p.emit(metal.Barrier("publish"))
        value = p.add(metal.ThreadgroupLoad(buffer, source), name)
        p.emit(metal.Barrier("release"))
    other = p.add(metal.Binary(BinaryKind.XOR, thread, three), "other")
    mask = p.add(metal.Constant(31, u32), "mask")
    lane = p.add(metal.Cast(p.add(metal.Binary(BinaryKind.AND, other, mask), "low5"), u16), "lane")
    flipped = p.add(metal.Shuffle(value, lane), "flipped")
    p.emit(metal.Store(y, other, flipped))
    return replace(p.func(), threads=64)


PLANNED = planned_program()
THREAD = thread_program()


def rejected(func: Func, before: Func | None = None, by_default: bool = True) -> str:
    return verified.rejected(func, Stage.THREAD, before, by_default=by_default).message


def the(func: Func, kind: type[Op], position: int = 0) -> Op:
    return ops_of(func, kind)[position]


def changed(item: Op, **fields: object) -> Op:
    return replace(item, **fields)  # type: ignore[arg-type]


def test_c4_the_sound_program_passes_alone_beside_its_plan_and_beside_itself() -> None:
    for before in (None, PLANNED, THREAD):
        verify(THREAD, Stage.THREAD, context(), before)


GENERIC = [
    mutate.drop_barrier,
    mutate.condition_barrier,
    mutate.shrink_scratch,
    mutate.reuse_before_release,
    mutate.swap_store_and_load,
]


@pytest.mark.parametrize("fault", GENERIC, ids=lambda fault: str(fault.__name__))
def test_c4_f43_planted_faults_are_rejected_without_the_plan(fault: object) -> None:
    mutants = list(fault(THREAD))  # type: ignore[operator]
    assert mutants
    for mutant in mutants:
        message = rejected(mutant.func)
        assert re.search(r"^  kernel\.py:\d+:5: (%\w+ = )?metal\.\w+ ", message, re.M)


def test_f43_the_messages_of_dropped_barriers() -> None:
    publish, release, _, last = ops_of(THREAD, metal.Barrier)
    assert (
        "kernel.py:12:5: %there = metal.threadgroup_load %scratch_f32, %source : thread<f32>: "
        "reads scratch_f32 before the store of line 10 is published, expected a barrier between"
    ) in rejected(edit(THREAD, {publish: ()}))
    assert (
        "kernel.py:14:5: metal.threadgroup_store %scratch_f32, %thread, %there: overwrites "
        "scratch_f32 while the load of line 12 may still read it, expected a release barrier"
    ) in rejected(edit(THREAD, {release: ()}))
    assert (
        "kernel.py:16:5: %back = metal.threadgroup_load %scratch_f32, %source : thread<f32>: "
        "no release barrier follows its read of scratch_f32"
    ) in rejected(edit(THREAD, {last: ()}))


def test_c2_barriers_shuffles_and_scratch_under_a_condition() -> None:
    kinds = (metal.Barrier, metal.Shuffle, metal.ThreadgroupStore, metal.ThreadgroupLoad)
    for item in ops_of(THREAD, *kinds):
        alone = item
        if item.results:
            alone = changed(item, results=(Value(item.result.type, "lone", item.loc),))
        func = edit(THREAD, {item: (item, *mutate.under_condition(alone))})
        message = rejected(func)
        assert "stands under a condition, expected where every thread takes part" in message
        assert f"kernel.py:{item.loc.line}:5: " in message


def test_a_lane_outside_the_simdgroup() -> None:
    shuffle = the(THREAD, metal.Shuffle)
    other = next(v for i in THREAD.body.ops for v in i.results if v.name == "other")
    wide = metal.Cast(other, u16, loc=shuffle.loc)
    wide = replace(wide, results=(Value(wide.infer()[0], "wide", shuffle.loc),))
    func = edit(THREAD, {shuffle: (wide, changed(shuffle, lane=wide.result))})
    assert "takes from lane 63, expected a u16 below 32" in rejected(func)


def test_a_lane_or_an_address_that_comes_from_memory() -> None:
    load = the(THREAD, metal.Load)
    index = metal.Bitcast(load.result, u32, loc=load.loc)
    index = replace(index, results=(Value(index.infer()[0], "index", load.loc),))
    lane = metal.Cast(index.result, u16, loc=load.loc)
    lane = replace(lane, results=(Value(lane.infer()[0], "lane2", load.loc),))
    shuffle, store = the(THREAD, metal.Shuffle), the(THREAD, metal.ThreadgroupStore)
    func = edit(THREAD, {load: (load, index, lane), shuffle: (changed(shuffle, lane=lane.result),)})
    assert "its lane is no function of the thread index" in rejected(func)
    func = edit(THREAD, {load: (load, index), store: (changed(store, index=index.result),)})
    assert "its index %index: thread<u32> is no u32 function of the thread index" in rejected(func)


def test_c3_dtypes_of_scratch_and_lanes() -> None:
    alloc, shuffle = the(THREAD, metal.ThreadgroupAlloc), the(THREAD, metal.Shuffle)
    wires = "expected one of f16, f32, i32, u32, u16 (bool travels as u32, bf16 as u16)"
    message = rejected(edit(THREAD, {alloc: (changed(alloc, dtype=f16),)}))
    assert (
        "metal.threadgroup_store %scratch_f32, %thread, %value: stores f32 to scratch_f32 of f16"
        in (message)
    )
    message = rejected(edit(THREAD, {alloc: (changed(alloc, dtype=bool_),)}))
    assert f"holds bool, {wires}" in message
    load = the(THREAD, metal.Load)
    flag = metal.Cast(load.result, bool_, loc=load.loc)
    flag = replace(flag, results=(Value(ScalarType(bool_, False), "flag", load.loc),))
    bare = changed(shuffle, src=flag.result)
    message = rejected(edit(THREAD, {shuffle: (flag, bare), the(THREAD, metal.Store): ()}))
    assert f"shuffles bool, {wires}" in message


def test_two_threads_write_one_element() -> None:
    store = the(THREAD, metal.ThreadgroupStore)
    low = next(v for i in THREAD.body.ops for v in i.results if v.name == "low")
    func = edit(THREAD, {store: (changed(store, index=low),)})
    assert "two threads write one element of scratch_f32" in rejected(func)


def test_an_access_to_what_was_not_allocated() -> None:
    alloc = the(THREAD, metal.ThreadgroupAlloc)
    late = edit(THREAD, {alloc: (), the(THREAD, metal.ThreadgroupLoad, 1): (alloc,)})
    assert "uses %scratch_f32: threadgroup<64xf32> before its definition" in rejected(late)
    twin = changed(alloc, results=(Value(alloc.result.type, "twin", alloc.loc),))
    assert "scratch_f32 is allocated twice, expected one allocation per slot id" in (
        rejected(edit(THREAD, {alloc: (alloc, twin)}))
    )


def test_c4_communication_is_what_was_planned() -> None:
    source, thread, low5 = (
        next(v for i in THREAD.body.ops for v in i.results if v.name == name)
        for name in ("source", "thread", "low5")
    )
    load = the(THREAD, metal.ThreadgroupLoad, 1)
    func = edit(THREAD, {load: (changed(load, index=thread),)})
    verify(func, Stage.THREAD, context())  # in order and in bounds, but not what was planned
    for before, line in ((PLANNED, 11), (THREAD, 16)):
        message = rejected(func, before)
        assert "kernel.py:16:5: %back = metal.threadgroup_load %scratch_f32, %thread" in message
        assert (
            f"other threads or elements than in the load scratch_f32 of line {line}, expected the "
            "same"
        ) in message
    lane = next(i for i in ops_of(THREAD, metal.Cast) if low5 in i.operands())
    masked = metal.Binary(BinaryKind.AND, source, low5, loc=lane.loc)
    masked = replace(masked, results=(Value(ScalarType(u32, False), "masked", lane.loc),))
    func = edit(THREAD, {lane: (masked, changed(lane, src=masked.result))})
    assert "other threads or elements than in the shuffle f32 of line 12" in rejected(func, PLANNED)


def test_c4_communication_that_is_missing_or_was_never_planned() -> None:
    shuffle, store = the(THREAD, metal.Shuffle), the(THREAD, metal.Store)
    func = edit(THREAD, {shuffle: (), store: ()})
    message = rejected(func, PLANNED)
    assert "kernel.py:12:5: %flipped = tile.shuffle" in message
    assert message.endswith("is missing in the program after")
    again = changed(shuffle, results=(Value(shuffle.result.type, "again", shuffle.loc),))
    message = rejected(edit(THREAD, {shuffle: (shuffle, again)}), PLANNED)
    assert message.endswith("no such communication in the program before")
    _, second = ops_of(THREAD, metal.ThreadgroupStore)
    release = the(THREAD, metal.Barrier, 1)
    moved = edit(THREAD, {shuffle: (), store: (), release: (release, *_on(second, shuffle))})
    message = rejected(moved, THREAD)
    assert f"stands where the store scratch_f32 of line {second.loc.line} is expected" in message


def _on(store: Op, shuffle: Op) -> tuple[Op, ...]:
    """A lane index and a shuffle of what the store would write, where nothing depends on it."""
    assert isinstance(store, metal.ThreadgroupStore)
    lane = metal.Constant(3, u16, loc=shuffle.loc)
    lane = replace(lane, results=(Value(lane.infer()[0], "three16", shuffle.loc),))
    early = metal.Shuffle(store.value, lane.result, loc=shuffle.loc)
    return lane, replace(early, results=(Value(early.infer()[0], "early", shuffle.loc),))


def test_a_load_that_nobody_uses_may_have_gone() -> None:
    """Dead code elimination drops it; the barriers around it stay."""
    load, shuffle = the(THREAD, metal.ThreadgroupLoad, 1), the(THREAD, metal.Shuffle)
    twice = changed(load, results=(Value(load.result.type, "unused", load.loc),))
    verify(THREAD, Stage.THREAD, context(), edit(THREAD, {load: (load, twice)}))
    # The value of the other load in its place is no such thing.
    there = the(THREAD, metal.ThreadgroupLoad, 0)
    func = edit(THREAD, {load: (), shuffle: (changed(shuffle, src=there.result),)})
    text = "with the values, masks and addresses it had before"
    assert text in rejected(func, THREAD, by_default=False)
