"""Where threads have to meet, all of them or none arrive: what decides is uniform (SPEC C2)."""

from __future__ import annotations

from metile_mlx.analysis.uniformity import proven_uniform
from metile_mlx.ir import metal, tile
from metile_mlx.ir.core import Effect, Func, Op, Value, walk
from metile_mlx.ir.loops import Loop
from metile_mlx.verify.findings import Finding


def check_convergence(func: Func) -> list[Finding]:
    """All barriers, shuffles and reductions that some threads may not reach, or not as often."""
    if not any(item.block_fields for item in func.body.ops):
        return []
    proven = proven_uniform(func)
    findings: list[Finding] = []
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
    if isinstance(item, tile.If | metal.If):
        return (item.condition,)
    return ()
