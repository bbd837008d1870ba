"""The only file that knows the order of the passes.

    TILE -> infer_ownership, simplify_layouts -> OWNED
    -> plan_conversions, pipeline_loops, materialise_pipelines, plan_operands, plan_reductions
    -> PLANNED
    -> scalarise, clean_up, group_memory -> THREAD

Every step starts from valid IR and ends in valid IR: `verify` runs after each and trusts none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from metile_mlx import config
from metile_mlx.context import Context, Stage
from metile_mlx.emit.cpp import emit_cpp
from metile_mlx.emit.msl import emit_msl
from metile_mlx.emit.source import KernelSource
from metile_mlx.errors import MetileError
from metile_mlx.ir.core import Func
from metile_mlx.ir.printer import print_func
from metile_mlx.passes.clean_up import clean_up
from metile_mlx.passes.group_memory import group_memory
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.passes.materialise_pipelines import materialise_pipelines
from metile_mlx.passes.pipeline_loops import pipeline_loops
from metile_mlx.passes.plan_conversions import plan_conversions
from metile_mlx.passes.plan_operands import plan_operands
from metile_mlx.passes.plan_reductions import plan_reductions
from metile_mlx.passes.scalarise import scalarise
from metile_mlx.passes.simplify_layouts import simplify_layouts
from metile_mlx.report import Timing
from metile_mlx.verify import verify


@dataclass(frozen=True)
class Step:
    """One pass and the stage its result must satisfy."""

    run: Callable[[Func, Context], Func]
    stage: Stage

    @property
    def name(self) -> str:
        return self.run.__name__


STEPS = (
    Step(infer_ownership, Stage.OWNED),
    Step(simplify_layouts, Stage.OWNED),
    Step(plan_conversions, Stage.PLANNED),
    Step(pipeline_loops, Stage.PLANNED),
    Step(materialise_pipelines, Stage.PLANNED),
    Step(plan_operands, Stage.PLANNED),
    Step(plan_reductions, Stage.PLANNED),
    Step(scalarise, Stage.THREAD),
    Step(clean_up, Stage.THREAD),
    Step(group_memory, Stage.THREAD),
)
EMITTERS: dict[str, Callable[[Func, Context], KernelSource]] = {"msl": emit_msl, "cpp": emit_cpp}
# What METILE_DUMP takes: a stage means each step that leaves it.
DUMPS = ("all", *(stage.name.lower() for stage in Stage), *(s.name for s in STEPS), *EMITTERS)


def lower(func: Func, ctx: Context, until: Stage = Stage.THREAD) -> Func:
    """Run the passes up to the end of stage `until`.

    Args:
        func: a kernel at Stage.TILE.
        ctx: target, schedule and report; facts and timings are appended to the report.

    Raises:
        CompileError: the program breaks a rule of the language (its subclasses say which).
        VerificationError: a pass broke its contract.
        OutOfResources: threadgroup memory or threads beyond the target's limits.
        MetileError: METILE_DUMP or METILE_VERIFY holds a word that is none of theirs.
    """
    _verify(func, Stage.TILE, ctx, None)
    _dump(func, "tile", "tile", changed=True)
    for step in STEPS:
        if step.stage > until:
            break
        before = func
        start = perf_counter()
        func = step.run(func, ctx)
        ctx.report.timings.append(Timing(step.name, "pass", perf_counter() - start))
        if func is not before:
            _verify(func, step.stage, ctx, before)
        _dump(func, step.name, step.stage.name.lower(), changed=func is not before)
    return func


def compile_kernel(func: Func, ctx: Context) -> KernelSource:
    """Lower a Stage.TILE kernel to the text of `ctx.target`.

    Raises:
        As `lower`.
    """
    lowered = lower(func, ctx)
    start = perf_counter()
    source = EMITTERS[ctx.target.language](lowered, ctx)
    ctx.report.timings.append(Timing(f"emit_{source.language}", "emit", perf_counter() - start))
    if _wanted(source.language):
        _write(f"{source.name}.{source.language}", f"{source.header}\n{source.body}")
    return source


def _verify(func: Func, stage: Stage, ctx: Context, before: Func | None) -> None:
    level = config.verify()
    if level == "0":
        return
    start = perf_counter()
    verify(func, stage, ctx, before, full=level == "full")
    ctx.report.timings.append(Timing(stage.name.lower(), "verifier", perf_counter() - start))


def _wanted(*names: str) -> bool:
    asked = config.dump()
    unknown = sorted(asked.difference(DUMPS))
    if unknown:
        raise MetileError(
            f"METILE_DUMP names {', '.join(map(repr, unknown))}; expected, separated by commas, "
            f"any of {', '.join(DUMPS)}"
        )
    return bool(asked) and ("all" in asked or not asked.isdisjoint(names))


def _dump(func: Func, step: str, stage: str, changed: bool) -> None:
    if _wanted(step, stage):
        text = print_func(func) if changed else f"kernel @{func.name} (unchanged)"
        _write(f"{func.name}.{step}.ir", f"// after {step}\n{text}")


def _write(name: str, text: str) -> None:
    folder: Path | None = config.dump_dir()
    if folder is None:
        print(text, file=sys.stderr)
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text + "\n", encoding="utf-8")
