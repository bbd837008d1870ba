"""Verifiers: each re-derives one property of a program and knows no pass (SPEC C4).

A finding is a bug of a pass, never of the user; only resources speak to the user.
"""

from __future__ import annotations

from metile_mlx.context import Context, Stage
from metile_mlx.ir.core import Func
from metile_mlx.target import Target
from metile_mlx.verify.axis_reductions import check_axis_reductions
from metile_mlx.verify.communication import check_communication
from metile_mlx.verify.convergence import check_convergence
from metile_mlx.verify.conversions import check_conversions
from metile_mlx.verify.decided import check_decided
from metile_mlx.verify.findings import Finding, error
from metile_mlx.verify.grouping import check_grouping
from metile_mlx.verify.kept import check_kept, holds_registers
from metile_mlx.verify.order import check_order
from metile_mlx.verify.ownership import check_ownership
from metile_mlx.verify.pipelines import check_lowered_pipelines, check_pipelines
from metile_mlx.verify.products import check_products
from metile_mlx.verify.reductions import check_planned_reductions, check_reductions
from metile_mlx.verify.resources import check_resources
from metile_mlx.verify.simplification import check_simplification
from metile_mlx.verify.structure import check_structure, is_threaded
from metile_mlx.verify.thread_reader import check_lowering

__all__ = ["examine", "verify"]


def verify(
    func: Func,
    stage: Stage,
    ctx: Context,
    before: Func | None = None,
    full: bool = True,
) -> None:
    """Check that `func` keeps the rules of `stage`. Reads only.

    Args:
        func: the program after a step.
        stage: the stage that the step leaves.
        ctx: target and its limits.
        before: the program the step began with, verified in its turn. The program is then shown to
            do what that one does: to store the same, and to communicate as it does once that has
            been planned. An op that both hold, as the same object, is not examined on its own.
        full: whether to read both programs of the lowering to threads, thread by thread, which
            takes longer than all else; and where threads hold one value each, to follow what is
            sent and what passes over threads keep.

    Raises:
        VerificationError: one error with every finding. What the program does is not asked when
            its structure is too broken to say.
        OutOfResources: more threads or threadgroup memory than the target has.
    """
    properties = examine(func, stage, before, ctx.target, full)
    findings = [finding for found in properties.values() for finding in found]
    if findings:
        raise error(func, stage, findings)
    if stage >= Stage.PLANNED:
        check_resources(func, ctx)


def examine(
    func: Func, stage: Stage, before: Func | None, target: Target, full: bool = True
) -> dict[str, list[Finding]]:
    """The findings of `verify` by property, all but resources."""
    found = {"structure": check_structure(func, stage, before)}
    if stage < Stage.OWNED or any(finding.fatal for finding in found["structure"]):
        return found
    found["ownership"] = check_ownership(func, stage, before)
    if stage is Stage.OWNED and before is not None and before.threads:
        found["conversions"] = check_simplification(func, before)
    elif stage is Stage.PLANNED:
        found["conversions"] = check_conversions(func, before)
        found["reductions"] = check_planned_reductions(func)
        found["pipelines"] = check_pipelines(func)
    elif stage is Stage.THREAD:
        found["communication"] = check_communication(func, before, full)
        found["reductions"] = [
            *check_reductions(func, before),
            *check_axis_reductions(func, before),
        ]
        found["grouping"] = check_grouping(func, before)
        if before is not None and not is_threaded(before):
            found["products"] = check_products(func, before)
            found["pipelines"] = check_lowered_pipelines(func, before)
    if stage >= Stage.PLANNED:
        found["convergence"] = check_convergence(func, before)
        found["order"] = check_order(func)
    if before is None or any(found.values()):
        return found
    # What a program without other faults does otherwise than the one it was made from. Of planned
    # programs, and of those that had owners before, `conversions` has asked it.
    if stage is Stage.OWNED and before.threads == 0:
        found["meaning"] = check_decided(func, before)
    elif stage is Stage.THREAD and is_threaded(before):
        if full or holds_registers(before):
            found["meaning"] = check_kept(func, before)
    elif stage is Stage.THREAD and full:
        found["lowering"] = check_lowering(func, before, target)
    return found
