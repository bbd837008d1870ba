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
from metile_mlx.ir.types import ScratchType
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


def communication(func: Func) -> Counter[str]:
    """What a planned program communicates: barriers, shuffles and bytes of exchange scratch."""
    found: Counter[str] = Counter()
    for item in walk(func.body):
        found["barriers"] += isinstance(item, planned.Barrier)
        found["shuffles"] += isinstance(item, planned.Shuffle)
        if isinstance(item, planned.Scratch):
            assert isinstance(item.result.type, ScratchType)
            found["bytes"] += item.elements * item.dtype.bytes
    return found


def conversions(func: Func) -> int:
    return sum(isinstance(item, tile.Convert) for item in walk(func.body))


@settings(max_examples=count(ci=80, full=5000))
@given(SEEDS, CONVERSION)
def test_s1_s3_random_programs_give_the_same_bits_with_no_more_communication(
    seed: int, conversion: str
) -> None:
    made, func = random_conversions(seed)
    ctx = context(conversion)
    result = simplified(func, ctx)
    expected = reference(made, func)
    for name, array in reference(made, result).items():
        assert same_bits(array, expected[name])
    for program in {func: None, result: None}:
        for name, array in simulated(made, program, context(conversion)).items():
            assert same_bits(array, expected[name].reshape(array.shape)), name

    before = communication(plan_conversions(func, context(conversion)))
    after = communication(plan_conversions(result, context(conversion)))
    assert after["barriers"] <= before["barriers"]
    assert after["bytes"] <= before["bytes"]
    assert after["barriers"] < before["barriers"] or after["shuffles"] <= before["shuffles"]
    removed = sum(fact.barriers_removed for fact in ctx.report.layout_optimizations)
    assert removed == before["barriers"] - after["barriers"]


@settings(max_examples=count(ci=80, full=5000))
@given(SEEDS)
def test_s1_s2_register_tiles_keep_their_meaning(seed: int) -> None:
    made, func = random_conversions(seed, registers=(2, 4, 8, 32))
    result = simplified(func, context())
    assert conversions(result) <= conversions(func)
    expected = reference(made, func)
    for name, array in reference(made, result).items():
        assert same_bits(array, expected[name])


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
