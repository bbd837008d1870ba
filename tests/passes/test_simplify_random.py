"""Random programs full of conversions mean the same when simplified, and communicate no more."""

from __future__ import annotations

from collections import Counter

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metile_mlx.compiler import STEPS
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.ir import planned, tile
from metile_mlx.ir.core import Func, walk
from metile_mlx.ir.printer import print_func
from metile_mlx.passes.plan_conversions import plan_conversions
from metile_mlx.passes.simplify_layouts import simplify_layouts
from metile_mlx.runtime.reference import evaluate
from metile_mlx.target import METAL
from metile_mlx.verify import verify
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


@settings(max_examples=count(ci=100, full=5000))
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
