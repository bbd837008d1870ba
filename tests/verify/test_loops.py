"""Loops: barriers over the back edge, conditions that threads agree on, what is carried (C2, F43).

Each fault is planted in a sound program and found by a verifier that knows no pass; those which
only running would show are also found by the simulator's race checker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from metile_mlx.compiler import STEPS, lower
from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import bool_, f32, i32
from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.arith import BinaryKind, CombineKind, CompareKind
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.loops import For, ThreadFor
from metile_mlx.ir.types import ScalarType, TileType
from metile_mlx.target import METAL
from metile_mlx.verify import verify
from metile_mlx.verify.convergence import check_convergence
from metile_mlx.verify.ownership import check_ownership
from tests.support import simulate, verified
from tests.support.memory import SimulationError
from tests.support.mutate import edit, ops_of
from tests.support.tile_program import TileProgram


def program(sums: int = 1, size: int = 64, branch: bool = False) -> Func:
    """`sums` reductions in a loop of n iterations; with `branch`, one under a condition on its
    index."""
    p = TileProgram()
    n = p.scalar("n")
    x = p.tensor("x", (n, size), "read")
    y = p.tensor("y", (size,), "write")
    lanes = p.lanes(size)
    total = p.number(0.0, f32)
    index, arg = Value(ScalarType(i32), "i"), Value(ScalarType(f32), "total")
    outer = p.begin()
    found = arg
    for _ in range(sums):
        value = p.load(x, index, lanes)
        if branch:
            condition = p.compare(CompareKind.LT, index, 3)
            inner = p.begin()
            then = p.end(inner, p.add(tile.Reduce(CombineKind.SUM, value), "sum"))
            inner = p.begin()
            otherwise = p.end(inner, p.number(0.0, f32))
            (part,) = p.emit(tile.If(condition, then, otherwise))
        else:
            part = p.add(tile.Reduce(CombineKind.SUM, value), "sum")
        found = p.op(BinaryKind.ADD, found, part)
    body = p.end(outer, found)
    (result,) = p.emit(For(p.number(0), n, p.number(1), (total,), replace(body, args=(index, arg))))
    p.store(y, lanes, value=p.add(tile.Splat(result, (size,))))
    return p.func()


def lowered(stage: Stage = Stage.THREAD, **options: object) -> Func:
    return lower(program(**options), Context(METAL), stage)  # type: ignore[arg-type]


def by_stage() -> tuple[Func, ...]:
    """One program at OWNED, PLANNED and THREAD."""
    func, ctx = program(), Context(METAL)
    found = {}
    for step in STEPS:
        func = step.run(func, ctx)
        found[step.stage] = func
    return tuple(found.values())


def rejected(
    func: Func, stage: Stage = Stage.THREAD, before: Func | None = None, by_default: bool = True
) -> str:
    return verified.rejected(func, stage, before, by_default=by_default).message


def run(func: Func) -> None:
    size = func.threads
    arrays = {"x": np.ones((5, size), np.float32).reshape(-1), "y": np.zeros(size, np.float32)}
    found, _ = simulate.run(func, arrays, {"n": 5}, (1,))
    assert (found["y"] == found["y"][0]).all()


BARRIER = "expected a barrier between them on every path"


def test_f43_a_sum_in_a_loop_is_released_and_two_release_each_other() -> None:
    (alone,) = ops_of(lowered(Stage.PLANNED), planned.Reduce)
    assert alone.attributes()["release"]
    pair = ops_of(lowered(Stage.PLANNED, sums=2), planned.Reduce)
    assert [item.attributes()["release"] for item in pair] == [False, False]
    # A branch may be left out, so what stands in it releases nothing.
    under = ops_of(lowered(Stage.PLANNED, sums=2, branch=True), planned.Reduce)
    assert [item.attributes()["release"] for item in under] == [True, True]
    # One simdgroup needs no memory.
    (single,) = ops_of(lowered(Stage.PLANNED, size=32), planned.Reduce)
    assert not single.attributes()["release"]
    for options in ({}, {"sums": 2}, {"sums": 2, "branch": True}, {"sums": 3, "size": 256}):
        run(lowered(**options))


def test_f43_a_planned_release_that_is_missing_is_found_over_the_back_edge() -> None:
    func = lowered(Stage.PLANNED)
    (item,) = ops_of(func, planned.Reduce)
    faulty = edit(func, {item: (replace(item, release=False),)})  # type: ignore[call-arg]
    assert f"that line {item.loc.line} has read, {BARRIER}" in rejected(faulty, Stage.PLANNED)


@pytest.mark.parametrize(
    "options", [{}, {"sums": 2}, {"sums": 3, "size": 256}, {"sums": 2, "branch": True}]
)
def test_f43_each_barrier_of_a_loop_is_missed(options: dict[str, object]) -> None:
    """By the verifier, and by the simulator when the program runs."""
    func = lowered(**options)
    barriers = ops_of(func, metal.Barrier)
    sums = int(str(options.get("sums", 1)))
    # Publish and release, or one publish each, which releases the other ones.
    assert len(barriers) == (2 * sums if sums == 1 or "branch" in options else sums)
    for item in barriers:
        faulty = edit(func, {item: ()})
        assert BARRIER in rejected(faulty), item
        if "branch" not in options:
            # The two branches have one condition, which the verifier does not see.
            with pytest.raises(SimulationError, match="race"):
                run(faulty)


def test_a_barrier_only_some_iterations_reach_is_no_release() -> None:
    """The release moves under a condition that all threads agree on."""
    func = lowered()
    (loop,) = ops_of(func, ThreadFor)
    assert isinstance(loop, ThreadFor)
    release = ops_of(func, metal.Barrier)[1]
    zero = metal.Constant(3, i32, results=(Value(ScalarType(i32), "three"),), loc=release.loc)
    test = metal.Compare(
        CompareKind.LT, loop.index, zero.result, results=(Value(ScalarType(bool_)),)
    )
    end = metal.Yield()
    guarded = metal.If(test.result, Block((release, end)), Block((end,)), loc=release.loc)
    message = rejected(edit(func, {release: (zero, test, guarded)}))
    assert BARRIER in message
    assert "is not proven" not in message


def conditional(func: Func, loads: bool) -> Func:
    """The first barrier under a condition that differs between threads, or comes from memory."""
    barrier = ops_of(func, metal.Barrier)[0]
    pointer = next(param for param in func.params if param.name == "x")
    zero = metal.Constant(0, i32, results=(Value(ScalarType(i32)),))
    ops: list[Op] = [zero]
    if loads:
        at = metal.Cast(zero.result, metal.u32)
        at = replace(at, results=(Value(ScalarType(metal.u32)),))
        load = metal.Load(pointer, at.result, results=(Value(ScalarType(f32), "flag"),))
        cast = metal.Cast(load.result, i32, results=(Value(ScalarType(i32)),))
        ops += [at, load, cast]
    else:
        thread = metal.ThreadIndex(results=(Value(ScalarType(metal.u32, False)),))
        cast = metal.Cast(thread.result, i32, results=(Value(ScalarType(i32, False)),))
        ops += [thread, cast]
    uniform = loads
    test = metal.Compare(
        CompareKind.GE, cast.result, zero.result, results=(Value(ScalarType(bool_, uniform)),)
    )
    end = metal.Yield()
    branch = metal.If(test.result, Block((barrier, end)), Block((barrier, end)), loc=barrier.loc)
    return edit(func, {barrier: (*ops, test, branch)})


def test_c2_a_barrier_under_a_condition_from_memory() -> None:
    """All threads read one element; still it is not proven, and the hardware is not asked."""
    message = rejected(conditional(lowered(), loads=True))
    assert "which is not proven to be the same in every thread" in message
    assert "metal.barrier" in message


def test_c2_memory_that_is_said_to_be_an_argument() -> None:
    """Then its condition counts as proven; but a pass cannot say so of memory."""
    before = lowered()
    func = conditional(before, loads=True)
    load = next(i for i in walk(func.body) if i.results and i.results[0].name == "flag")
    lie = edit(func, {load: (replace(load, given=True),)})  # type: ignore[call-arg]
    assert check_convergence(lie) == []
    assert "is said to be a scalar argument, which the program before" in rejected(
        lie, before=before
    )


def test_c2_a_barrier_under_a_condition_of_each_thread() -> None:
    message = rejected(conditional(lowered(), loads=False))
    assert "expected a uniform bool" in message


def test_c2_a_sum_in_a_loop_of_loaded_length() -> None:
    func = lowered()
    (loop,) = ops_of(func, ThreadFor)
    assert isinstance(loop, ThreadFor)
    pointer = next(param for param in func.params if param.name == "x")
    at = metal.Constant(3, metal.u32, results=(Value(ScalarType(metal.u32)),))
    load = metal.Load(pointer, at.result, results=(Value(ScalarType(f32), "length"),))
    cast = metal.Cast(load.result, i32, results=(Value(ScalarType(i32), "trips"),))
    other = replace(loop, end=cast.result)
    message = rejected(edit(func, {loop: (at, load, cast, other)}))
    assert f"stands under %trips: i32 of line {loop.loc.line}, which is not proven" in message


Fault = Callable[[For], Op]


def changed(loop: For, **fields: object) -> For:
    return replace(loop, **fields)  # type: ignore[arg-type]


def with_yield(loop: For, *values: Value) -> For:
    return changed(loop, body=Block((*loop.body.ops[:-1], tile.Yield(values)), loop.body.args))


STRUCTURE: dict[str, tuple[Fault, str]] = {
    "one value too many is yielded": (
        lambda loop: with_yield(loop, *loop.yields, *loop.yields),
        "yields (f32, f32), expected (f32)",
    ),
    "nothing is yielded": (lambda loop: with_yield(loop), "yields (), expected (f32)"),
    "another dtype is yielded": (
        lambda loop: with_yield(loop, loop.index),
        "yields (i32), expected (f32)",
    ),
    "another dtype at first": (
        lambda loop: changed(loop, inits=(loop.start,)),
        "starts with (i32), expected (f32)",
    ),
    "no index": (
        lambda loop: changed(loop, body=Block(loop.body.ops, loop.carried)),
        "expected an i32 index first",
    ),
    "no yield": (
        lambda loop: changed(loop, body=Block(loop.body.ops[:-1], loop.body.args)),
        "a nested block doesn't end in a yield",
    ),
    "a bound of another dtype": (
        lambda loop: changed(loop, end=loop.inits[0]),
        "[tile_range] end is f32, expected a uniform i32 scalar",
    ),
    "an argument bound twice": (
        lambda loop: changed(
            loop, body=Block(loop.body.ops, (loop.index, loop.index)), inits=(loop.start,)
        ),
        "is defined twice",
    ),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_structure_of_loops(name: str) -> None:
    plant, expected = STRUCTURE[name]
    func = lowered(Stage.OWNED)
    (loop,) = ops_of(func, For)
    assert isinstance(loop, For)
    broken = plant(loop)
    ops = tuple(broken if item is loop else item for item in func.body.ops)
    assert expected in rejected(func.with_body(Block(ops)), Stage.OWNED)


def test_a_carried_value_is_not_seen_outside() -> None:
    func = lowered(Stage.OWNED)
    (loop,) = ops_of(func, For)
    assert isinstance(loop, For)
    (splat,) = (
        item for item in ops_of(func, tile.Splat) if item.operands()[0].type == ScalarType(f32)
    )
    faulty = edit(func, {splat: (replace(splat, src=loop.carried[0]),)})  # type: ignore[call-arg]
    assert "outside the block that defines it" in rejected(faulty, Stage.OWNED)


def test_o2_a_carried_tile_has_owners() -> None:
    func = lowered(Stage.OWNED)
    (loop,) = ops_of(func, For)
    assert isinstance(loop, For)
    bare = Value(TileType(f32, (64,)), "bare")
    args = (*loop.body.args, bare)
    ops = tuple(
        changed(loop, body=Block(loop.body.ops, args)) if item is loop else item
        for item in func.body.ops
    )
    (finding,) = check_ownership(func.with_body(Block(ops)), Stage.OWNED)
    assert finding.message == "%bare: tile<64xf32> has no layout, expected one"


def test_planning_that_changes_what_a_loop_carries_is_found() -> None:
    """The value yielded, and the bounds, are compared with those of the program before."""
    owned, func, _ = by_stage()
    (loop,) = ops_of(func, For)
    assert isinstance(loop, For)
    verify(func, Stage.PLANNED, Context(METAL), owned)
    faulty = edit(func, {loop: (with_yield(loop, loop.carried[0]),)})
    assert "its yield is another than before" in rejected(faulty, Stage.PLANNED, owned)
    faulty = edit(func, {loop: (changed(loop, end=loop.step),)})
    assert "stores under other conditions than before" in rejected(faulty, Stage.PLANNED, owned)


def test_communication_that_leaves_a_loop_is_found() -> None:
    """The body of the loop runs once, in its place."""
    _, before, func = by_stage()
    (loop,) = ops_of(func, ThreadFor)
    assert isinstance(loop, ThreadFor)
    mapping = {loop.index: loop.start, loop.carried[0]: loop.inits[0]}
    flat = [item.with_operands(mapping) for item in loop.body.ops[:-1]]
    results = dict(zip(loop.results, loop.yields, strict=True))
    ops = [
        part.with_operands(results)
        for item in func.body.ops
        for part in (flat if item is loop else [item])
    ]
    message = rejected(func.with_body(Block(tuple(ops))), Stage.THREAD, before)
    assert "stands where the block" in message
    assert any(isinstance(item, metal.Barrier) for item in walk(func.body))
