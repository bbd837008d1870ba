"""Verifiers: each re-derives one property of a program and knows no pass (SPEC C4).

A finding is a bug of a pass, never of the user; only resources speak to the user.
"""

from __future__ import annotations

from metile_mlx.context import Context, Stage
from metile_mlx.ir.core import Func
from metile_mlx.verify.axis_reductions import check_axis_reductions
from metile_mlx.verify.communication import check_communication
from metile_mlx.verify.convergence import check_convergence
from metile_mlx.verify.conversions import check_conversions
from metile_mlx.verify.findings import error
from metile_mlx.verify.grouping import check_grouping
from metile_mlx.verify.order import check_order
from metile_mlx.verify.ownership import check_ownership
from metile_mlx.verify.reductions import check_planned_reductions, check_reductions
from metile_mlx.verify.resources import check_resources
from metile_mlx.verify.simplification import check_simplification
from metile_mlx.verify.structure import check_structure

__all__ = ["verify"]


def verify(func: Func, stage: Stage, ctx: Context, before: Func | None = None) -> None:
    """Check that `func` keeps the rules of `stage`. Reads only.

    Args:
        func: the program after a step.
        stage: the stage that the step leaves.
        ctx: target limits.
        before: the program the step began with, verified in its turn. A program with owners is then
            shown to store what that one stores, if that one has owners too, a planned program as
            well, and a per-thread one to communicate as it does;
            an op that both hold, as the same object, is not examined on its own again.

    Raises:
        VerificationError: one error with every finding. What the program does is not asked when
            its structure is too broken to say.
        OutOfResources: more threads or threadgroup memory than the target has.
    """
    findings = check_structure(func, stage, before)
    if stage >= Stage.OWNED and not any(finding.fatal for finding in findings):
        findings += check_ownership(func, stage, before)
        if stage is Stage.OWNED and before is not None and before.threads:
            findings += check_simplification(func, before)
        elif stage is Stage.PLANNED:
            findings += check_conversions(func, before)
            findings += check_planned_reductions(func)
        elif stage is Stage.THREAD:
            findings += check_communication(func, before)
            findings += check_reductions(func, before)
            findings += check_axis_reductions(func, before)
            findings += check_grouping(func, before)
        if stage >= Stage.PLANNED:
            findings += check_convergence(func)
            findings += check_order(func)
    if findings:
        raise error(func, stage, findings)
    if stage >= Stage.PLANNED:
        check_resources(func, ctx)
