"""Where threads have to meet, all of them or none arrive: what decides is uniform (SPEC C2)."""

from __future__ import annotations

from collections.abc import Iterator

from metile_mlx.analysis.uniformity import proven_uniform
from metile_mlx.ir import metal, tile
from metile_mlx.ir.core import Effect, Func, Op, Value, walk
from metile_mlx.ir.loops import Loop
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.verify.findings import Finding


def check_convergence(func: Func, before: Func | None = None) -> list[Finding]:
    """All barriers, shuffles and reductions that some threads may not reach, or not as often.

    With `before`, also what is said to be given as an argument and was memory there.
    """
    findings = _made_given(func, before)
    if not any(item.block_fields for item in func.body.ops):
        return findings
    proven = proven_uniform(func)
    for item in walk(func.body):
        unproven = [value for value in _deciding(item) if value not in proven]
        if not unproven:
            continue
        for inner in (other for block in item.blocks() for other in walk(block)):
            if inner.effect & Effect.CONVERGENT:
                text = (
                    f"stands under {unproven[0]!r} of line {item.loc.line}, which is not proven to "
                    "be the same in every thread"
                )
                findings.append(Finding(inner, text))
    return findings


def _deciding(item: Op) -> tuple[Value, ...]:
    """The values that decide whether, or how often, the blocks of an op run."""
    if isinstance(item, Loop):
        return item.start, item.end, item.step
    if isinstance(item, SoftwarePipeline):
        guard = () if item.guard is None else (item.guard,)
        return item.start, item.end, item.step, *guard
    if isinstance(item, tile.If | metal.If):
        return (item.condition,)
    return ()


def _made_given(func: Func, before: Func | None) -> list[Finding]:
    if before is None:
        return []
    had = {param for _, param in _given(before)}
    text = "is said to be a scalar argument, which the program before does not say"
    return [Finding(item, text) for item, param in _given(func) if param not in had]


def _given(func: Func) -> Iterator[tuple[Op, str]]:
    """Each load of a scalar argument, and the parameter that it loads."""
    views: dict[Value, Value] = {}
    for item in walk(func.body):
        match item:
            case tile.Tensor():
                views[item.result] = item.param
            case tile.Load(given=True) if item.tensor in views:
                yield item, views[item.tensor].name
            case metal.Load(given=True):
                yield item, item.buffer.name
            case _:
                pass
