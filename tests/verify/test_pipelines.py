"""check_pipelines: planted faults of each phase, rejected when the program is compiled (SPEC P3).

F43 and F58 for barriers and slots, F57 for a loop without a step, F18 for memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.compiler import lower
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.dtypes import bool_, f32
from metile_mlx.errors import OutOfResources
from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.layout.affine import AffineMap
from metile_mlx.passes.materialise_pipelines import materialise_pipelines
from metile_mlx.passes.pipeline_loops import pipeline_loops
from metile_mlx.passes.scalarise import scalarise
from metile_mlx.target import METAL
from metile_mlx.verify import verify
from metile_mlx.verify.pipelines import check_pipelines
from tests.support.mutate import edit, ops_of
from tests.support.samples import Sample, multiplied
from tests.support.verified import rejected

PHASES = ("first", "steady", "last")
SCALARS = ("f32*", "f32*", "f32*", "i32", "i32", "i32")
SHAPE = {"BM": 32, "BN": 16, "BK": 8}


def context(double: bool) -> Context:
    return Context(METAL, Schedule(double_buffer=double))


@cache
def owned() -> Func:
    func = Sample(multiplied, SCALARS, SHAPE).func()
    return lower(func, context(True), Stage.OWNED)


@cache
def pipelined(double: bool = True) -> Func:
    ctx = context(double)
    return materialise_pipelines(pipeline_loops(owned(), ctx), ctx)


def pipeline(func: Func) -> SoftwarePipeline:
    (item,) = ops_of(func, SoftwarePipeline)
    assert isinstance(item, SoftwarePipeline)
    return item


def with_phase(func: Func, name: str, change: Callable[[Block], Sequence[Op]]) -> Func:
    """The program in which a phase of its pipeline holds other ops."""
    item = pipeline(func)
    block = item.phases[name]
    fields: dict[str, Any] = {name: Block(tuple(change(block)), block.args)}
    return edit(func, {item: (replace(item, **fields),)})


def without(kind: type[Op], number: int = 0) -> Callable[[Block], Sequence[Op]]:
    """A phase without one of its ops of a kind."""

    def change(block: Block) -> Sequence[Op]:
        gone = [op for op in block.ops if isinstance(op, kind)][number]
        return [op for op in block.ops if op is not gone]

    return change


def changed(kind: type[Op], **fields: Any) -> Callable[[Block], Sequence[Op]]:
    """A phase whose first op of a kind has other fields."""

    def change(block: Block) -> Sequence[Op]:
        first = next(op for op in block.ops if isinstance(op, kind))
        return [replace(op, **fields) if op is first else op for op in block.ops]

    return change


def messages(func: Func) -> str:
    """What the verifier says, which every compilation asks."""
    return rejected(func, Stage.PLANNED, owned()).message


def store(name: str = "steady") -> planned.ScratchStore:
    return next(
        op for op in pipeline(pipelined()).phases[name].ops if isinstance(op, planned.ScratchStore)
    )


@pytest.mark.parametrize("double", [False, True])
def test_pipelines_are_accepted(double: bool) -> None:
    for full in (False, True):
        verify(pipelined(double), Stage.PLANNED, context(double), owned(), full)
    assert check_pipelines(pipelined(double)) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("first", "phase first: no barrier behind it publishes what it copies into pipeline_0"),
        ("steady", "phase steady: no barrier behind it publishes what it copies into pipeline_0"),
        ("last", "phase last: no barrier behind it releases what it reads of pipeline_0"),
    ],
)
def test_f58_a_barrier_removed(name: str, message: str) -> None:
    """Publication in phases first and steady, release in steady and last."""
    found = messages(with_phase(pipelined(), name, without(planned.Barrier)))
    assert message in found
    if name == "steady":
        assert "phase steady: no barrier behind it releases what it reads of pipeline_0" in found


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("publish", "phase steady: no barrier behind it releases what it reads of pipeline_0"),
        ("release", "phase steady: no barrier behind it publishes what it copies into pipeline_1"),
    ],
)
def test_f58_half_of_a_barrier(role: str, message: str) -> None:
    assert message in messages(
        with_phase(pipelined(), "steady", changed(planned.Barrier, role=role))
    )


def test_f58_a_barrier_too_early() -> None:
    def early(block: Block) -> Sequence[Op]:
        barrier = next(op for op in block.ops if isinstance(op, planned.Barrier))
        load = next(op for op in block.ops if isinstance(op, planned.ScratchLoad))
        rest = [op for op in block.ops if op is not barrier]
        return [*rest[: rest.index(load)], barrier, *rest[rest.index(load) :]]

    found = messages(with_phase(pipelined(), "steady", early))
    assert "phase steady: no barrier behind it releases what it reads of pipeline_0" in found


def test_f43_one_slot_has_both_barriers() -> None:
    first = with_phase(pipelined(False), "steady", without(planned.Barrier, 0))
    assert "phase steady: reads pipeline_0 before it is published" in messages(first)
    second = with_phase(pipelined(False), "steady", without(planned.Barrier, 1))
    assert "phase steady: no barrier behind it releases what it reads" in messages(second)


def test_f58_slots_swapped() -> None:
    slot, free = pipeline(pipelined()).steady.args[2:4]
    copies = with_phase(pipelined(), "steady", changed(planned.ScratchStore, stage=slot))
    assert "phase steady: copies into slot %slot: i32 of pipeline_0, expected only %free" in (
        messages(copies)
    )
    reads = with_phase(pipelined(), "steady", changed(planned.ScratchLoad, stage=free))
    assert "phase steady: reads slot %free: i32 of pipeline_0, expected only %slot" in (
        messages(reads)
    )


@pytest.mark.parametrize("name", ["first", "steady"])
def test_a_copy_owner_duplicated_and_an_element_uncopied(name: str) -> None:
    """Two slots of the tile go to one element: it has two owners, and another one has none."""
    slots = store(name).slots
    twice = AffineMap((slots.columns[1], *slots.columns[1:]), slots.constant)
    found = messages(with_phase(pipelined(), name, changed(planned.ScratchStore, slots=twice)))
    assert f"phase {name}: element 0 of pipeline_0 is copied 2 times, expected once" in found
    assert f"phase {name}: element " in found
    assert "is not copied" in found


@pytest.mark.parametrize("name", ["first", "steady"])
def test_an_element_uncopied(name: str) -> None:
    """Of one register, and of the whole tile."""
    some = with_phase(pipelined(), name, changed(planned.ScratchStore, registers=(0,)))
    assert f"phase {name}: element 1 of pipeline_0 is not copied" in messages(some)
    none = with_phase(pipelined(), name, without(planned.ScratchStore))
    assert f"phase {name}: element 0 of pipeline_0 is not copied, nor are 255 others" in (
        messages(none)
    )


@pytest.mark.parametrize("name", ["steady", "last"])
def test_a_fragment_read_out_of_bounds(name: str) -> None:
    found = messages(with_phase(pipelined(), name, changed(planned.ScratchLoad, skip=1)))
    assert f"phase {name}: reads element -1 of pipeline_0, whose slots have 256" in found


@pytest.mark.parametrize("name", ["steady", "last"])
def test_a_fragment_of_other_elements(name: str) -> None:
    load = next(op for op in pipeline(pipelined()).last.ops if isinstance(op, planned.ScratchLoad))
    other = AffineMap(load.slots.columns, load.slots.constant ^ 8)
    found = messages(with_phase(pipelined(), name, changed(planned.ScratchLoad, slots=other)))
    assert f"phase {name}: reads pipeline_0 in another order than its tile lies in there" in found


def test_f57_the_first_phase_at_k_0() -> None:
    """The guard is another condition, in the planned program and in that of a thread."""
    item = pipeline(pipelined())
    always = tile.Constant(True, bool_, loc=item.loc)
    always = replace(always, results=(Value(always.infer()[0], "always", item.loc),))
    planted = edit(pipelined(), {item: (always, replace(item, guard=always.result))})
    text = "phase first: runs where there is no step, expected only where start < end"
    assert text in messages(planted)


def test_f57_the_branch_of_a_thread_at_k_0() -> None:
    func = scalarise(pipelined(), context(True))
    (branch,) = (item for item in func.body.ops if isinstance(item, metal.If))
    always = metal.Constant(True, bool_, loc=branch.loc)
    always = replace(always, results=(Value(always.infer()[0], "always", branch.loc),))
    other = edit(func, {branch: (always, replace(branch, condition=always.result))})
    found = rejected(other, Stage.THREAD, pipelined()).message
    assert "phase first: runs under another condition than that there is a step" in found
    test = next(op for op in func.body.ops if branch.condition in op.results)
    assert isinstance(test, metal.Compare)
    turned = replace(test, lhs=test.rhs, rhs=test.lhs)
    found = rejected(edit(func, {test: (turned,)}), Stage.THREAD, pipelined()).message
    assert "phase first: runs under another condition than that there is a step" in found
    # No branch: what stood in it stands in its place.
    at = func.body.ops.index(branch)
    *inside, end = branch.then.ops
    left = dict(zip(branch.results, end.operands(), strict=True))
    behind = [op.with_operands(left) for op in func.body.ops[at + 1 :]]
    bare = func.with_body(Block((*func.body.ops[:at], *inside, *behind)))
    found = rejected(bare, Stage.THREAD, pipelined()).message
    assert "phase first: stands in no branch, expected one: start < end" in found
    assert "in phase first is expected" in found


def test_f58_every_barrier_of_a_thread_is_missed() -> None:
    """Over the back edge too: races of the lowered loop are found without the planned program."""
    func = scalarise(pipelined(), context(True))
    barriers = ops_of(func, metal.Barrier)
    assert [item.attributes()["role"] for item in barriers] == ["publish", "rotate", "release"]
    for item in barriers[:2]:
        alone = rejected(edit(func, {item: ()}), Stage.THREAD).message
        assert "expected a barrier between them on every path" in alone
    for item, phase in zip(barriers, PHASES, strict=True):
        found = rejected(edit(func, {item: ()}), Stage.THREAD, pipelined()).message
        assert f"in phase {phase}" in found


def test_slots_of_a_thread_that_do_not_change() -> None:
    """The loop keeps copying into the slot that it reads."""
    func = scalarise(pipelined(), context(True))
    (loop,) = ops_of(func, ThreadFor)
    assert isinstance(loop, ThreadFor)
    end = loop.body.ops[-1]
    slot = next(arg for arg in loop.carried if arg.name == "slot")
    at = loop.carried.index(slot)
    kept = metal.Yield((*loop.yields[:at], slot, *loop.yields[at + 1 :]), loc=end.loc)
    assert rejected(edit(func, {end: (kept,)}), Stage.THREAD, pipelined())


def test_f18_memory_is_counted_together() -> None:
    """32768 bytes are accepted, 32772 are not; the slots and their phases are in the breakdown."""
    whole = {"BM": 128, "BN": 128, "BK": 16}
    func = Sample(multiplied, SCALARS, whole).func()
    planned_ = lower(func, context(True), Stage.PLANNED)
    total = sum(op.elements for op in walk(planned_.body) if isinstance(op, planned.Scratch)) * 4
    assert total == METAL.threadgroup_bytes == 32768
    more = planned.Scratch(f32, 1, "one_more")
    more = replace(more, results=(Value(more.infer()[0], "one_more"),))
    larger = planned_.with_body(Block((more, *planned_.body.ops), planned_.body.args))
    with pytest.raises(OutOfResources, match="32772 bytes") as caught:
        verify(larger, Stage.PLANNED, context(True))
    assert "(2 slots, for phases first, steady and last)" in str(caught.value)


def test_f18_two_slots_that_do_not_fit() -> None:
    """Two tiles of 8192 f32, two slots each: 128 KiB; one slot stays with the loop as it is."""
    func = Sample(multiplied, SCALARS, {"BM": 128, "BN": 128, "BK": 64}).func()
    with pytest.raises(OutOfResources) as caught:
        lower(func, context(True), Stage.PLANNED)
    message = str(caught.value)
    assert "needs 131072 bytes of threadgroup memory, metal has 32768" in message
    assert "'left' of line" in message
    assert "2 slots of 8192 x f32 = 65536 (slot 0 filled by phase first" in message
    ctx = context(False)
    verify(lower(func, ctx, Stage.PLANNED), Stage.PLANNED, ctx)
    assert "more than is left" in ctx.report.pipelines[0].declined


@metile.kernel
def in_turns(x, y, times: int, ORDERED: metile.constexpr, TURNS: metile.constexpr):
    """Memory of the user's own, of which a loop reads one part and writes another, in turns."""
    memory = metile.shared(256, metile.f32)
    t, i = metile.thread_id(), metile.arange(0, 64)
    memory.store(t, metile.tensor(x, shape=64).load(i))
    metile.barrier()
    slot = 0
    for _ in metile.tile_range(times):
        after = (slot + 1) % TURNS
        memory.store(after * 64 + t, memory.load(slot * 64 + (63 - t)) + 1.0)
        if ORDERED:
            metile.barrier()
        slot = after
    metile.barrier()
    metile.tensor(y, shape=64, access="write").store(i, memory.load(slot * 64 + t))


@pytest.mark.emulator
@pytest.mark.parametrize("turns", [2, 4])
def test_f58_turns_of_the_user_are_followed_over_back_edges(turns: int) -> None:
    """One barrier a step orders parts in turns; without it the next step reads what is written."""
    x = mx.arange(64).astype(mx.float32)
    out = metile.empty(64, mx.float32)
    for times in (0, 1, 3):
        made = in_turns[1](x, out, times, ORDERED=True, TURNS=turns, backend="emulator")
        assert mx.array_equal(made, (x[::-1] if times % 2 else x) + times)
    with pytest.raises(metile.CompileError, match="no barrier"):
        in_turns[1].prepare(x, out, 3, ORDERED=False, TURNS=turns, backend="emulator")


def test_f58_one_part_needs_two_barriers() -> None:
    """The same memory in each step: what is read there, others have not left yet."""
    x, out = mx.zeros(64), metile.empty(64, mx.float32)
    with pytest.raises(metile.CompileError, match="no barrier"):
        in_turns[1].prepare(x, out, 3, ORDERED=True, TURNS=1, backend="emulator")
