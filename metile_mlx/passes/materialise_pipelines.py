"""Give pipelines their second slot: copy the next tiles while this step's are consumed (P2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from metile_mlx.context import Context
from metile_mlx.ir.arith import CompareKind
from metile_mlx.ir.cloning import cloned
from metile_mlx.ir.core import Block, Builder, Func, Op, Value, walk
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.ir.planned import Barrier, Scratch
from metile_mlx.ir.rewrite import rewrite
from metile_mlx.ir.tile import Compare, Yield
from metile_mlx.passes.pipeline_report import described


def materialise_pipelines(func: Func, ctx: Context) -> Func:
    """With Schedule(double_buffer=True) pipelines of one slot get two. Stage.PLANNED.

    Only their storage doubles; no other allocation is touched. What has two slots stays as it is,
    so doing it twice is doing it once. Replaces the facts of the report.
    """
    single = [i for i in walk(func.body) if isinstance(i, SoftwarePipeline) and i.slots == 1]
    if not ctx.schedule.double_buffer or not single:
        return func
    storage = {value for item in single for value in item.storage}

    def rule(item: Op, b: Builder) -> Sequence[Value] | Value | None:
        if isinstance(item, Scratch) and item.result in storage:
            doubled = Scratch(item.dtype, 2 * item.elements, item.slot, stages=2)
            return b.add(doubled, item.result.name)
        if isinstance(item, SoftwarePipeline) and item.slots == 1:
            made = _doubled(item, b)
            _replace(ctx, item, made)
            b.ops.append(made)
            return item.results
        return None

    return rewrite(func, rule)


def _doubled(item: SoftwarePipeline, b: Builder) -> SoftwarePipeline:
    """The same work in three phases."""
    ops = item.steady.ops
    first, second = (n for n, op in enumerate(ops) if isinstance(op, Barrier))
    copy, consume, end = ops[:first], ops[first + 1 : second], ops[-1]
    k, ahead, slot, free = item.steady.args[:4]
    steady = (*copy, *consume, Barrier("rotate", loc=item.loc), end)
    return replace(
        item,
        guard=b.add(Compare(CompareKind.LT, item.start, item.end)),
        slots=2,
        first=_phase((ahead, free), (*copy, Barrier("publish", loc=item.loc)), Yield(loc=end.loc)),
        steady=Block(steady, item.steady.args),
        last=_phase((k, slot, *item.carried), (*consume, Barrier("release", loc=item.loc)), end),
    )


def _phase(args: Sequence[Value], ops: Sequence[Op], end: Op) -> Block:
    """The ops again, over arguments of their own."""
    bound = tuple(Value(arg.type, arg.name, arg.loc) for arg in args)
    mapping = dict(zip(args, bound, strict=True))
    made = cloned(ops, mapping)
    return Block((*made, end.with_operands(mapping)), bound)


def _replace(ctx: Context, before: SoftwarePipeline, after: SoftwarePipeline) -> None:
    """The report's facts about a pipeline and its storage."""
    facts, old = ctx.report.pipelines, described(before)
    facts[facts.index(old)] = described(after)
    allocations = ctx.report.allocations
    for value in before.storage:
        (at,) = (n for n, fact in enumerate(allocations) if fact.scratch == value.name)
        fact = allocations[at]
        allocations[at] = replace(fact, elements=2 * fact.elements, bytes=2 * fact.bytes)
