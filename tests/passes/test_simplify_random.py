"""Random programs full of conversions mean the same when simplified, and communicate no more."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from metile_mlx.compiler import STEPS
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.dtypes import DType, bf16, f32
from metile_mlx.errors import OutOfResources
from metile_mlx.ir import planned, tile
from metile_mlx.ir.core import Func, walk
from metile_mlx.ir.printer import print_func
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.conversion_prices import Prices
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.passes.plan_conversions import plan_conversions
from metile_mlx.passes.simplify_layouts import simplify_layouts
from metile_mlx.runtime.reference import evaluate
from metile_mlx.target import METAL, Target
from metile_mlx.verify import verify
from metile_mlx.verify.resources import check_resources
from tests.support import simulate
from tests.support.arithmetic import NUMPY, Array
from tests.support.execute import same_bits
from tests.support.profile import count
from tests.support.random_conversions import (
    PROGRAMS,
    RandomConversions,
    as_mlx,
    bits_of,
    random_conversions,
)
from tests.support.tile_program import TileProgram

SEEDS = st.integers(0, 2**32 - 1)
CONVERSION = st.sampled_from(["auto", "scratch"])


def context(conversion: str = "auto") -> Context:
    return Context(METAL, Schedule(conversion=conversion))


def simplified(func: Func, ctx: Context) -> Func:
    """The pass and the verifier of what it leaves; the input stays as it is, a second run idle."""
    text = print_func(func)
    result = simplify_layouts(func, ctx)
    assert print_func(func) == text, "the input changed"
    verify(result, Stage.OWNED, ctx, func)
    facts = list(ctx.report.layout_optimizations)
    assert simplify_layouts(result, ctx) is result
    assert ctx.report.layout_optimizations == facts
    assert bool(facts) == (result is not func)
    return result


def reference(made: RandomConversions, func: Func) -> dict[str, Array]:
    inputs = {p.name: p.type for p in func.params if p.name in made.arrays}
    given = {n: as_mlx(made.arrays[n], t.dtype) for n, t in inputs.items()}  # type: ignore[union-attr]
    found = evaluate(func, given, {}, made.outputs, (PROGRAMS, 1, 1))
    mx.eval(list(found.values()))
    return {name: bits_of(array) for name, array in found.items()}


def lowered(func: Func, ctx: Context) -> Func:
    """From Stage.OWNED on, as the compiler does it, with the conversions as they are."""
    for step in STEPS:
        if step.stage > Stage.OWNED:
            before, func = func, step.run(func, ctx)
            verify(func, step.stage, ctx, before if func is not before else None)
    return func


def simulated(made: RandomConversions, func: Func, ctx: Context) -> dict[str, Array]:
    outputs = {n: np.zeros(shape, NUMPY[dtype]) for n, (shape, dtype) in made.outputs.items()}
    found, written = simulate.run(lowered(func, ctx), made.arrays | outputs, {}, (PROGRAMS,))
    assert all(mask.all() for mask in written.values())
    return found


def communication(func: Func, conversion: str) -> Counter[str]:
    """What planning makes of it: barriers, bytes of scratch, the cost of all conversions."""
    ctx = context(conversion)
    result = plan_conversions(func, ctx)
    barriers = sum(isinstance(item, planned.Barrier) for item in walk(result.body))
    costs = [fact.cost.total for fact in ctx.report.layout_conversions if fact.cost is not None]
    # What a conversion gains for memory is not what it costs.
    costs += [3 * f.cost.groups_gained for f in ctx.report.layout_conversions if f.cost is not None]
    bytes_ = sum(fact.bytes for fact in ctx.report.allocations)
    return Counter(barriers=barriers, bytes=bytes_, cost=sum(costs))


def conversions(func: Func) -> int:
    return sum(isinstance(item, tile.Convert) for item in walk(func.body))


@settings(max_examples=count(ci=60, full=5000))
@given(SEEDS, CONVERSION, st.sampled_from([(1,), (2, 4, 8)]))
def test_s1_s3_random_programs_give_the_same_bits_with_no_more_communication(
    seed: int, conversion: str, registers: tuple[int, ...]
) -> None:
    made, func = random_conversions(seed, registers)
    ctx = context(conversion)
    result = simplified(func, ctx)
    expected = reference(made, func)
    for name, array in reference(made, result).items():
        assert same_bits(array, expected[name])
    for program in {func: None, result: None}:
        for name, array in simulated(made, program, context(conversion)).items():
            assert same_bits(array, expected[name].reshape(array.shape)), name

    before, after = communication(func, conversion), communication(result, conversion)
    assert conversions(result) <= conversions(func)
    assert after["barriers"] <= before["barriers"]
    assert (after["barriers"], after["cost"]) <= (before["barriers"], before["cost"])
    removed = sum(fact.barriers_removed for fact in ctx.report.layout_optimizations)
    fewer = before["barriers"] - after["barriers"]
    # Where memory is short, what goes may leave more of it to the rest, which takes fewer rounds.
    assert removed == fewer or (registers != (1,) and 0 <= removed < fewer)
    assert after["bytes"] <= before["bytes"] or removed < fewer


@pytest.mark.parametrize(
    "kind",
    ["identity", "inverse", "repeated", "composed", "intermediate", "uniform", "unused"],
)
def test_every_kind_of_simplification_comes_up_in_the_random_programs(kind: str) -> None:
    """So the tests above have something to find; a few seeds are enough."""
    for seed in range(60):
        ctx = context()
        simplify_layouts(random_conversions(seed)[1], ctx)
        if any(fact.kind == kind for fact in ctx.report.layout_optimizations):
            return
    pytest.fail(f"no {kind} in 60 programs")


def test_some_random_programs_have_nothing_to_simplify_and_come_back_as_they_are() -> None:
    same = 0
    for seed in range(200):
        _, func = random_conversions(seed)
        has_some = conversions(func) > 0
        same += has_some and simplify_layouts(func, context()) is func
    assert same >= 5


def planned_barriers(func: Func, target: Target) -> int:
    planned_func = plan_conversions(func, Context(target))
    return sum(isinstance(item, planned.Barrier) for item in walk(planned_func.body))


@settings(max_examples=count(ci=40, full=3000))
@given(SEEDS, st.sampled_from([2, 3, 4, 6]))
def test_s3_never_more_barriers_where_scratch_is_short(seed: int, registers: int) -> None:
    """Rounds count: scratch holds `registers` of 8, and dtypes share it."""
    _, func = random_conversions(seed, (8,))
    target = replace(METAL, threadgroup_bytes=4 * func.threads * registers + 1024)
    ctx = Context(target)
    assume(plans(func, target))
    result = simplified(func, ctx)
    assert planned_barriers(result, target) <= planned_barriers(func, target)


def plans(func: Func, target: Target) -> bool:
    """Whether what is left over for scratch by reductions is enough for a register each."""
    try:
        check_resources(plan_conversions(func, Context(target)), Context(target))
    except OutOfResources:
        return False
    return True


def test_s3_scratch_that_would_be_divided_otherwise() -> None:
    """Two dtypes share three and a half registers of four. With the f32 conversions that come
    first gone, it is the many of bf16 that would have to make do with one register a round."""
    here = ThreadLayout((7, 8, 0, 1, 2, 3, 4, 5, 6), elements_per_thread=4)
    there = ThreadLayout((0, 1, 7, 8, 5, 6, 2, 3, 4), elements_per_thread=4)
    p = TileProgram()
    where = {layout: p.lanes(512, layout=layout) for layout in (here, there)}

    def passed(name: str, dtype: DType, *steps: ThreadLayout) -> None:
        value = p.load(p.tensor(name, (512,), "read", dtype=dtype), where[here])
        for layout in steps:
            value = p.add(tile.Convert(value, layout))
        out = p.tensor(f"{name}_out", (512,), "write", dtype=dtype)
        p.store(out, where[steps[-1]], value=value)

    passed("pair", f32, there, here)
    for number in range(12):
        passed(f"half{number}", bf16, there)
    passed("single", f32, there)
    short = replace(METAL, threadgroup_bytes=1792)
    func = infer_ownership(p.func(), Context(short))
    prices = Prices(func, Context(short))
    without = eliminate_pair(func)
    assert planned_barriers(without, short) > planned_barriers(func, short)
    assert not prices.hold(without)
    ctx = Context(short)
    assert simplify_layouts(func, ctx) is func
    assert ctx.report.layout_optimizations == []
    # With all of the memory the pair goes.
    result = simplified(func, Context(METAL))
    assert planned_barriers(result, METAL) == planned_barriers(func, METAL) - 4


def eliminate_pair(func: Func) -> Func:
    """The same without the conversions of `pair`."""
    first, second = [item for item in walk(func.body) if isinstance(item, tile.Convert)][:2]
    kept = {second.result: first.src}
    ops = [item.with_operands(kept) for item in func.body.ops if item not in (first, second)]
    return func.with_body(replace(func.body, ops=tuple(ops)))
