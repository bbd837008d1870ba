"""Reductions: each way to share, overwrite or miscount their memory is rejected (SPEC R2, R3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import f16, f32, u32
from metile_mlx.ir import metal, planned
from metile_mlx.ir.arith import BinaryKind, CombineKind
from metile_mlx.ir.core import Func, Op, Value
from metile_mlx.target import METAL
from metile_mlx.verify import verify
from tests.passes.test_plan_reductions import sums
from tests.support import simulate, verified
from tests.support.memory import SimulationError
from tests.support.mutate import edit, ops_of, under_condition

PLANNED = lower(sums(256, 1, count=2), Context(METAL), Stage.PLANNED)
THREAD = lower(sums(256, 1, count=2), Context(METAL))
REGISTERS_PLANNED = lower(sums(256, 4), Context(METAL), Stage.PLANNED)
REGISTERS = lower(sums(256, 4), Context(METAL))


def rejected(
    func: Func, stage: Stage = Stage.THREAD, before: Func | None = None, by_default: bool = True
) -> str:
    return verified.rejected(func, stage, before, by_default=by_default).message


def the(func: Func, kind: type[Op], position: int = 0) -> Op:
    return ops_of(func, kind)[position]


def changed(item: Op, **fields: object) -> Op:
    return replace(item, **fields)  # type: ignore[arg-type]


def named(item: Op, name: str) -> Op:
    """The op with results of its own."""
    return replace(item, results=tuple(Value(t, name, item.loc) for t in item.infer()))


def constant(number: float, like: Op) -> Op:
    kind = f32 if isinstance(number, float) else u32
    return named(metal.Constant(number, kind, loc=like.loc), "number")


def test_sound_programs_pass_alone_and_beside_what_they_were_made_from() -> None:
    for before in (None, PLANNED, THREAD):
        verify(THREAD, Stage.THREAD, Context(METAL), before)
    verify(REGISTERS, Stage.THREAD, Context(METAL), REGISTERS_PLANNED)
    verify(PLANNED, Stage.PLANNED, Context(METAL))


# Planned programs


def test_r3_two_planned_reductions_with_one_scratch() -> None:
    first, second = ops_of(PLANNED, planned.Reduce)
    shared = changed(second, scratch=first.operands()[1])
    message = rejected(edit(PLANNED, {second: (shared,)}), Stage.PLANNED)
    assert f"uses partials_0 of the reduction in line {first.loc.line}" in message


def test_a_planned_scratch_of_another_size_or_dtype() -> None:
    item = the(PLANNED, planned.Scratch)
    message = rejected(edit(PLANNED, {item: (changed(item, elements=4),)}), Stage.PLANNED)
    assert "partials_0 has 4 elements, expected one for each of 8 simdgroups" in message
    message = rejected(edit(PLANNED, {item: (changed(item, dtype=f16),)}), Stage.PLANNED)
    assert "partials_0 holds f16, expected f32" in message


def test_a_planned_reduction_without_scratch() -> None:
    item = the(PLANNED, planned.Reduce)
    message = rejected(edit(PLANNED, {item: (changed(item, scratch=None),)}), Stage.PLANNED)
    assert "has no scratch, expected one f32 for each of 8 simdgroups" in message


def test_a_planned_reduction_of_another_tile() -> None:
    """What a total means is numbered like every other value: planning must not change it."""
    owned = lower(sums(256, 1, count=2), Context(METAL), Stage.OWNED)
    func = lower(owned, Context(METAL), Stage.PLANNED)
    first, second = ops_of(func, planned.Reduce)
    other = changed(second, src=first.operands()[0])
    message = rejected(edit(func, {second: (other,)}), Stage.PLANNED, owned)
    assert "its value is another than before" in message


# Per-thread programs: what may be done to the memory of a reduction

Fault = Callable[[], tuple[Func, str]]


def alias_of_scratch() -> tuple[Func, str]:
    """Both reductions keep their partials in the memory of the first."""
    first = the(THREAD, metal.ThreadgroupAlloc)
    store, load = the(THREAD, metal.ThreadgroupStore, 1), the(THREAD, metal.ThreadgroupLoad, 1)
    func = edit(
        THREAD,
        {
            store: (changed(store, buffer=first.result),),
            load: (changed(load, buffer=first.result),),
        },
    )
    line = the(THREAD, metal.ThreadgroupStore).loc.line
    return func, f"writes partials_0 after the store of line {line}, expected it to be immutable"


def alias_by_name() -> tuple[Func, str]:
    """Two allocations that an emitter would give one name."""
    item = the(THREAD, metal.ThreadgroupAlloc, 1)
    func = edit(THREAD, {item: (changed(item, slot="partials_0"),)})
    return func, "partials_0 is allocated twice, expected one allocation per slot id"


def write_after_publication() -> tuple[Func, str]:
    store, load = the(THREAD, metal.ThreadgroupStore), the(THREAD, metal.ThreadgroupLoad)
    func = edit(THREAD, {load: (changed(store), load)})
    return func, f"writes partials_0 after the store of line {store.loc.line}"


def foreign_reader() -> tuple[Func, str]:
    load = the(THREAD, metal.ThreadgroupLoad)
    func = edit(THREAD, {load: (load, named(changed(load), "again"))})
    return func, "reads partials_0, expected it to serve the reduction of line"


def too_few_partials() -> tuple[Func, str]:
    """Only the simdgroups 0..3 are read: F49, the scope of a stage taken for another."""
    load = the(THREAD, metal.ThreadgroupLoad)
    mask = next(i for i in THREAD.body.ops if load.operands()[2] in i.results)
    four = constant(4, mask)
    func = edit(THREAD, {mask: (four, changed(mask, rhs=four.result))})
    return func, "simdgroup 0 reads elements 0, 1, 2, 3 of partials_0, expected 0, 1, 2, 3, ... 7"


def too_many_partials() -> tuple[Func, str]:
    load = the(THREAD, metal.ThreadgroupLoad)
    mask = next(i for i in THREAD.body.ops if load.operands()[2] in i.results)
    more = constant(9, mask)
    func = edit(THREAD, {mask: (more, changed(mask, rhs=more.result))})
    return func, "simdgroup 0 reads elements 0, 1, 2, 3, ... 8 of partials_0"


def other_fill() -> tuple[Func, str]:
    load = the(THREAD, metal.ThreadgroupLoad)
    one = constant(1.0, load)
    return edit(THREAD, {load: (one, changed(load, fill=one.result))}), "expected 0.0"


def every_lane_writes() -> tuple[Func, str]:
    store = the(THREAD, metal.ThreadgroupStore)
    func = edit(THREAD, {store: (changed(store, mask=None),)})
    return func, "256 threads write to elements 0, 0, 0, 0, ... 7 of partials_0"


def one_simdgroup_writes() -> tuple[Func, str]:
    """The mask of lane 0 compares the thread index instead: one partial is written."""
    store = the(THREAD, metal.ThreadgroupStore)
    mask = next(i for i in THREAD.body.ops if store.operands()[3] in i.results)
    thread = the(THREAD, metal.ThreadIndex).result
    func = edit(THREAD, {mask: (changed(mask, lhs=thread),)})
    return func, "1 threads write to elements 0 of partials_0, expected one of each of 8"


def publication_dropped() -> tuple[Func, str]:
    barrier, store = the(THREAD, metal.Barrier), the(THREAD, metal.ThreadgroupStore)
    func = edit(THREAD, {barrier: ()})
    return func, f"reads partials_0 before the store of line {store.loc.line} is published"


def conditional_publication() -> tuple[Func, str]:
    barrier = the(THREAD, metal.Barrier)
    func = edit(THREAD, {barrier: under_condition(barrier)})
    return func, "stands under a condition, expected where every thread takes part"


def conditional_reduction() -> tuple[Func, str]:
    item = named(the(THREAD, metal.SimdReduce), "lone")
    func = edit(THREAD, {the(THREAD, metal.Barrier): (*under_condition(item),)})
    return func, "has written, expected a barrier between them on every path"


def smaller_scratch() -> tuple[Func, str]:
    item = the(THREAD, metal.ThreadgroupAlloc)
    func = edit(THREAD, {item: (changed(item, elements=4),)})
    return func, "partials_0 has 4 elements, expected one for each of 8 simdgroups"


def a_simdgroup_for_the_whole() -> tuple[Func, str]:
    """F49: the sum of one simdgroup is taken for that of the threadgroup."""
    local = the(THREAD, metal.SimdReduce)
    func = edit(THREAD, {local: (local, named(changed(local, uniform=True), "wrong"))})
    return func, "combines the values of its own simdgroup and is typed uniform"


def a_partial_that_escapes() -> tuple[Func, str]:
    local, store = the(THREAD, metal.SimdReduce), the(THREAD, metal.Store)
    func = edit(THREAD, {store: (changed(store, value=local.result),)})
    return func, "uses what one simdgroup has combined, expected the uniform total"


def something_else_published() -> tuple[Func, str]:
    local, store = the(THREAD, metal.SimdReduce), the(THREAD, metal.ThreadgroupStore)
    func = edit(THREAD, {store: (changed(store, value=local.operands()[0]),)})
    return func, "expected what a simdgroup has combined"


def half_precision() -> tuple[Func, str]:
    """R4: sums accumulate in f32."""
    local = the(THREAD, metal.SimdReduce)
    half = named(metal.Cast(local.operands()[0], f16, loc=local.loc), "half")
    func = edit(THREAD, {local: (half, changed(local, src=half.result))})
    return func, "metal.simd_reduce of f16, which nothing combines"


def never_read() -> tuple[Func, str]:
    load, total = the(THREAD, metal.ThreadgroupLoad), the(THREAD, metal.SimdReduce, 1)
    func = edit(THREAD, {load: (), total: (changed(total, src=load.operands()[3]),)})
    return func, "partials_0 is only written, expected the partials of a reduction"


FAULTS: tuple[Fault, ...] = (
    alias_of_scratch,
    alias_by_name,
    write_after_publication,
    foreign_reader,
    too_few_partials,
    too_many_partials,
    other_fill,
    every_lane_writes,
    one_simdgroup_writes,
    publication_dropped,
    conditional_publication,
    conditional_reduction,
    smaller_scratch,
    a_simdgroup_for_the_whole,
    a_partial_that_escapes,
    something_else_published,
    half_precision,
    never_read,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.__name__))
def test_r3_f43_f49_planted_faults_are_rejected_without_the_plan(fault: Fault) -> None:
    func, expected = fault()
    assert expected in rejected(func)


def test_memory_that_no_plan_asked_for() -> None:
    item = the(THREAD, metal.ThreadgroupAlloc)
    extra = named(changed(item, slot="extra"), "extra")
    message = rejected(edit(THREAD, {item: (item, extra)}), before=PLANNED)
    assert "extra is no threadgroup memory that was planned" in message


def test_a_reduction_left_out_or_done_in_the_memory_of_another() -> None:
    first, second = ops_of(THREAD, metal.ThreadgroupAlloc)
    swapped = edit(
        THREAD,
        {
            first: (changed(first, slot="partials_1"),),
            second: (changed(second, slot="partials_0"),),
        },
    )
    assert "where the reduce partials_0 of line" in rejected(swapped, before=PLANNED)


def test_a_register_slot_left_out() -> None:
    """The tree over registers has as many leaves as a thread has elements."""
    local = the(REGISTERS, metal.SimdReduce)
    root = next(i for i in REGISTERS.body.ops if local.operands()[0] in i.results)
    assert isinstance(root, metal.Binary)
    assert root.kind is BinaryKind.ADD
    func = edit(REGISTERS, {local: (changed(local, src=root.lhs),)})
    message = rejected(func, before=REGISTERS_PLANNED)
    assert "combines another number of values than 4 per thread" in message


def test_f43_the_simulator_sees_the_races_too() -> None:
    """The oracle of the rule: a dropped barrier and shared memory are races when run."""
    x = np.ones(256, np.float32)
    for fault in (publication_dropped, alias_of_scratch, write_after_publication):
        func, _ = fault()
        with pytest.raises(SimulationError, match="race"):
            simulate.run(func, {"x": x, "y": x}, {}, (1,))


def test_one_simdgroup_needs_nothing() -> None:
    func = lower(sums(1024, 32), Context(METAL))
    assert not ops_of(func, metal.ThreadgroupAlloc, metal.Barrier)
    verify(func, Stage.THREAD, Context(METAL))
    item = the(func, metal.SimdReduce)
    assert isinstance(item, metal.SimdReduce)
    assert (item.kind, item.uniform) == (CombineKind.SUM, True)
