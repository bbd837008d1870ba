"""Reductions along an axis: whatever is left out, counted twice or taken from another row is found.

SPEC R2, R3, F43, F49. Every fault is planted in a program that passes, in each layout where it can
be; what the verifier rejects is also wrong, or a race, when the simulator runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import f16, f32, i32, u16, u32
from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.arith import BinaryKind, CombineKind
from metile_mlx.ir.core import Block, Func, Op, Value
from metile_mlx.ir.stated import AxisReduction
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import METAL
from metile_mlx.verify import verify
from tests.support import simulate, verified
from tests.support.memory import SimulationError
from tests.support.mutate import edit, ops_of, under_condition
from tests.support.tile_program import TileProgram

LAYOUTS = {
    "registers": ThreadLayout.identity(256, 8),
    "simdgroup": ThreadLayout.identity(256),
    "lanes": ThreadLayout((0, 6, 1, 7, 2, 3, 4, 5), elements_per_thread=4),
    "groups": ThreadLayout((5, 6, 7, 0, 1, 2, 3, 4), 77),
    "all": ThreadLayout((7, 0, 5, 3, 2, 6, 1, 4), 200, 2),
    "few lanes": ThreadLayout((5, 6, 7, 0, 8, 1, 2, 3, 4), 5, 2),
}
KINDS = list(CombineKind)


def program(layout: ThreadLayout, kind: CombineKind = CombineKind.SUM) -> Func:
    """y = x combined along the second axis, then the result along it once more."""
    p = TileProgram()
    x, y = p.tensor("x", (layout.size,), "read"), p.tensor("y", (layout.size,), "write")
    i = p.lanes(layout.size, layout=layout)
    view = p.add(tile.Reshape(p.load(x, i), (layout.size // 32, 32)))
    first = p.add(tile.Reduce(kind, view, 1), "first")
    other = p.op(BinaryKind.SUB, view, first)
    second = p.add(tile.Reduce(CombineKind.MAX, other, 1), "second")
    p.store(y, i, value=p.add(tile.Reshape(second, (layout.size,))))
    return p.func()


PROGRAMS = {name: lower(program(layout), Context(METAL)) for name, layout in LAYOUTS.items()}
PLANS = {
    name: lower(program(layout), Context(METAL), Stage.PLANNED) for name, layout in LAYOUTS.items()
}


def rejected(
    func: Func, stage: Stage = Stage.THREAD, before: Func | None = None, by_default: bool = True
) -> str:
    return verified.rejected(func, stage, before, by_default=by_default).message


def changed(item: Op, **fields: object) -> Op:
    return replace(item, **fields)  # type: ignore[arg-type]


def named(item: Op) -> Op:
    return replace(item, results=tuple(Value(t, "made", item.loc) for t in item.infer()))


def number(value: int, like: Op) -> Op:
    return named(metal.Constant(value, u32, loc=like.loc))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_sound_programs_pass(name: str, kind: CombineKind) -> None:
    planned_ = lower(program(LAYOUTS[name], kind), Context(METAL), Stage.PLANNED)
    func = lower(program(LAYOUTS[name], kind), Context(METAL))
    for before in (None, planned_, func):
        verify(func, Stage.THREAD, Context(METAL), before)


def test_the_layouts_use_every_mechanism() -> None:
    def kinds(name: str) -> set[type[Op]]:
        return {type(item) for item in PROGRAMS[name].body.ops}

    exchange = {metal.Shuffle, metal.SimdReduce, metal.ThreadgroupLoad}
    assert {name: kinds(name) & exchange for name in LAYOUTS} == {
        "registers": {metal.SimdReduce},
        "simdgroup": {metal.SimdReduce},
        "lanes": {metal.Shuffle},
        "groups": {metal.Shuffle, metal.ThreadgroupLoad},
        "all": {metal.Shuffle, metal.ThreadgroupLoad},
        "few lanes": {metal.Shuffle, metal.ThreadgroupLoad},
    }


# What is done to a program, and the part of the message that has to come.
Fault = Callable[[Func], Iterator[tuple[Func, str]]]


def _steps(func: Func) -> list[metal.Binary]:
    """The combinations of values that the sum consists of."""
    (first, _) = ops_of(func, AxisReduction)
    assert isinstance(first, AxisReduction)
    end = func.body.ops.index(first)
    return [
        item
        for item in func.body.ops[:end]
        if isinstance(item, metal.Binary)
        and item.kind is BinaryKind.ADD
        and item.result.name.startswith("first")
    ]


def missing_part(func: Func) -> Iterator[tuple[Func, str]]:
    """One side of a combination is left out: a register slot, a lane or a partial."""
    for item in _steps(func):
        ops = tuple(other.with_operands({item.result: item.rhs}) for other in func.body.ops)
        # A load that nothing uses any more is one too many.
        yield func.with_body(Block(ops)), "values, expected 32|uses partials_0, expected only"


def counted_twice(func: Func) -> Iterator[tuple[Func, str]]:
    for item in _steps(func):
        again = named(metal.Binary(BinaryKind.ADD, item.result, item.lhs, loc=item.loc))
        position = func.body.ops.index(item)
        rest = tuple(
            o.with_operands({item.result: again.result}) for o in func.body.ops[position + 1 :]
        )
        yield (
            func.with_body(Block((*func.body.ops[: position + 1], again, *rest))),
            "values, expected",
        )


def another_operation(func: Func) -> Iterator[tuple[Func, str]]:
    for item in _steps(func):
        yield edit(func, {item: (changed(item, kind=BinaryKind.MAXIMUM),)}), "combines by maximum"
    for item in ops_of(func, metal.SimdReduce)[:1]:
        yield edit(func, {item: (changed(item, kind=CombineKind.MIN),)}), "combines by min"


def wrong_lanes(func: Func) -> Iterator[tuple[Func, str]]:
    """The partner of a lane bit that is no bit of the row, or is one that is done already."""
    for item in ops_of(func, metal.Shuffle):
        assert isinstance(item, metal.Shuffle)
        flipped = next(o for o in func.body.ops if item.lane in o.results)
        assert isinstance(flipped, metal.Cast)
        xor = next(o for o in func.body.ops if flipped.src in o.results)
        assert isinstance(xor, metal.Binary)
        bit = next(o for o in func.body.ops if xor.rhs in o.results)
        assert isinstance(bit, metal.Constant)
        for wrong in {1, 2, 4, 8, 16, 0} - {int(bit.value)}:
            mask = number(wrong, item)
            lane = named(metal.Binary(BinaryKind.XOR, xor.lhs, mask.result, loc=item.loc))
            cast = named(metal.Cast(lane.result, u16, loc=item.loc))
            other = changed(item, lane=cast.result)
            yield edit(func, {item: (mask, lane, cast, other)}), "the total in slot"


def other_row(func: Func) -> Iterator[tuple[Func, str]]:
    """Totals of two register slots change places."""
    item = ops_of(func, AxisReduction)[0]
    assert isinstance(item, AxisReduction)
    totals = item.totals
    if len(set(totals)) > 1:
        swapped = changed(item, totals=(totals[-1], *totals[1:]))
        yield edit(func, {item: (swapped,)}), "combines other elements than those of its row"


def other_sources(func: Func) -> Iterator[tuple[Func, str]]:
    """Two slots of what is reduced change places: in rows of registers that is another row."""
    item = ops_of(func, AxisReduction)[0]
    assert isinstance(item, AxisReduction)
    if len(set(item.totals)) > 1:
        first, *rest = item.sources
        swapped = changed(item, sources=(rest[-1], *rest[:-1], first))
        yield edit(func, {item: (swapped,)}), "combines other elements than those of its row"


def other_axis(func: Func) -> Iterator[tuple[Func, str]]:
    item = ops_of(func, AxisReduction)[0]
    yield edit(func, {item: (changed(item, axis=0),)}), "the total in slot"


def alias(func: Func) -> Iterator[tuple[Func, str]]:
    """Both reductions keep their parts in the memory of the first."""
    memory = ops_of(func, metal.ThreadgroupAlloc)
    if memory:
        own, other = (item.results[0] for item in memory)
        accesses = [
            item
            for item in ops_of(func, metal.ThreadgroupStore, metal.ThreadgroupLoad)
            if other in item.operands()
        ]
        shared = {item: (changed(item, buffer=own),) for item in accesses}
        yield edit(func, shared), "uses partials_0, expected only the accesses of the reduction"


def write_after_publication(func: Func) -> Iterator[tuple[Func, str]]:
    loads = ops_of(func, metal.ThreadgroupLoad)
    for store in ops_of(func, metal.ThreadgroupStore)[:1]:
        yield edit(func, {loads[0]: (changed(store), loads[0])}), "no barrier stands between"


def publication(func: Func) -> Iterator[tuple[Func, str]]:
    for barrier in ops_of(func, metal.Barrier):
        yield edit(func, {barrier: ()}), "no barrier stands between"
        yield edit(func, {barrier: under_condition(barrier)}), "stands under a condition"


def memory(func: Func) -> Iterator[tuple[Func, str]]:
    for item in ops_of(func, metal.ThreadgroupAlloc):
        assert isinstance(item, metal.ThreadgroupAlloc)
        yield edit(func, {item: (changed(item, elements=item.elements // 2),)}), "accesses element"
        more = changed(item, elements=item.elements + 1)
        yield edit(func, {item: (more,)}), "is written 0 times, expected once"
        yield edit(func, {item: (changed(item, dtype=f16),)}), "stores f32 to partials_"


def partial_stores(func: Func) -> Iterator[tuple[Func, str]]:
    """A store is dropped, loses its mask, or writes where another has written."""
    stores = ops_of(func, metal.ThreadgroupStore)
    for store in stores[:1]:
        assert isinstance(store, metal.ThreadgroupStore)
        if store.mask is not None:
            yield edit(func, {store: (changed(store, mask=None),)}), "times, expected once"
        zero = number(0, store)
        yield edit(func, {store: (zero, changed(store, index=zero.result))}), "times, expected once"
        yield edit(func, {store: ()}), "is written 0 times, expected once"


def partial_loads(func: Func) -> Iterator[tuple[Func, str]]:
    """Every thread reads the first part."""
    for load in ops_of(func, metal.ThreadgroupLoad)[:1]:
        zero = number(0, load)
        yield edit(func, {load: (zero, changed(load, index=zero.result))}), "the total in slot"


def foreign_reader(func: Func) -> Iterator[tuple[Func, str]]:
    for load in ops_of(func, metal.ThreadgroupLoad)[:1]:
        yield edit(func, {load: (load, named(load))}), "uses partials_0, expected only"


def a_part_that_escapes(func: Func) -> Iterator[tuple[Func, str]]:
    """What a lane or a simdgroup knows of a row is stored for the whole row."""
    (store,) = ops_of(func, metal.Store)[:1]
    for item in ops_of(func, metal.Shuffle, metal.ThreadgroupLoad)[:1]:
        order = func.body.ops
        assert order.index(item) < order.index(store)
        yield (
            edit(func, {store: (changed(store, value=item.results[0]),)}),
            "which is a part of the row only, expected its total",
        )


def too_uniform(func: Func) -> Iterator[tuple[Func, str]]:
    """F49: what one simdgroup has combined is taken for the same everywhere."""
    if func.threads > 32:
        for item in ops_of(func, metal.SimdReduce)[:1]:
            lie = edit(func, {item: (changed(item, uniform=True),)})
            yield lie, "is typed uniform, but simdgroups combine different values"


FAULTS: tuple[Fault, ...] = (
    missing_part,
    counted_twice,
    another_operation,
    wrong_lanes,
    other_row,
    other_sources,
    other_axis,
    alias,
    write_after_publication,
    publication,
    memory,
    partial_stores,
    partial_loads,
    foreign_reader,
    a_part_that_escapes,
    too_uniform,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: str(fault.__name__))
def test_r3_f43_f49_planted_faults_are_rejected_without_the_plan(fault: Fault) -> None:
    planted = 0
    for name, func in PROGRAMS.items():
        for mutant, expected in fault(func):
            planted += 1
            assert re.search(expected, rejected(mutant)), name
    assert planted


def test_faults_that_only_the_plan_shows() -> None:
    """A statement left out or of another reduction; one done in the memory of another."""
    for name, func in PROGRAMS.items():
        before = PLANS[name]
        first, second = ops_of(func, AxisReduction)
        rejected(edit(func, {first: ()}), before=before)
        rejected(edit(func, {second: (second, second)}), before=before)
        rejected(edit(func, {first: (), second: (second, first)}), before=before)
        allocs = ops_of(func, metal.ThreadgroupAlloc)
        if allocs:
            one, two = allocs
            swapped = {
                one: (changed(one, slot="partials_1"),),
                two: (changed(two, slot="partials_0"),),
            }
            assert "reduce partials_0" in rejected(edit(func, swapped), before=before)


@pytest.mark.parametrize("name", ["groups", "all", "few lanes"])
def test_planned_scratch(name: str) -> None:
    func = PLANS[name]
    first = ops_of(func, planned.Scratch)[0]
    one, two = ops_of(func, planned.Reduce)
    fewer = edit(func, {first: (changed(first, elements=8),)})
    assert "has scratch of 8 f32, expected" in rejected(fewer, Stage.PLANNED)
    other = edit(func, {first: (changed(first, dtype=i32),)})
    assert "i32, expected" in rejected(other, Stage.PLANNED)
    none = edit(func, {one: (changed(one, scratch=None),)})
    assert "has no scratch, expected" in rejected(none, Stage.PLANNED)
    shared = edit(func, {two: (changed(two, scratch=first.results[0]),)})
    assert "expected it to serve that one only" in rejected(shared, Stage.PLANNED)


def test_scratch_that_nobody_needs() -> None:
    func = PLANS["lanes"]
    (one, _) = ops_of(func, planned.Reduce)
    memory = named(planned.Scratch(f32, 64, "extra", loc=one.loc))
    message = rejected(
        edit(func, {one: (memory, changed(one, scratch=memory.results[0]))}), Stage.PLANNED
    )
    assert "has scratch, expected none where each row lies in one simdgroup" in message


def test_another_axis_is_another_value() -> None:
    owned = lower(program(LAYOUTS["lanes"]), Context(METAL), Stage.OWNED)
    func = lower(owned, Context(METAL), Stage.PLANNED)
    (one, _) = ops_of(func, planned.Reduce)
    mutant = edit(func, {one: (changed(one, axis=0),)})
    assert "its value is another than before" in rejected(mutant, Stage.PLANNED, owned)


@pytest.mark.parametrize(
    "fault",
    [missing_part, counted_twice, wrong_lanes, partial_loads, alias, write_after_publication],
    ids=lambda fault: str(fault.__name__),
)
def test_f43_the_simulator_sees_them_too(fault: Fault) -> None:
    """The oracle of the rule: what is rejected gives wrong totals or races when it runs."""
    for name, func in PROGRAMS.items():
        size = LAYOUTS[name].size
        x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
        for mutant, _ in fault(func):
            with pytest.raises(SimulationError):
                simulate.run(mutant, {"x": x, "y": x}, {}, (1,))
