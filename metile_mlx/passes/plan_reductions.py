"""Give each reduction the threadgroup memory it needs, and say so in the report (SPEC R2, R3)."""

from __future__ import annotations

from metile_mlx.context import Context
from metile_mlx.dtypes import f32
from metile_mlx.ir import planned
from metile_mlx.ir.core import Builder, Func, Op, Value, walk
from metile_mlx.ir.rewrite import rewrite
from metile_mlx.ir.tile import Reduce
from metile_mlx.ir.types import TileType
from metile_mlx.report import Allocation, RegisterReduction
from metile_mlx.target import SIMD_WIDTH


def plan_reductions(func: Func, ctx: Context) -> Func:
    """Replace every tile.reduce by its planned form. Stage.PLANNED to Stage.PLANNED.

    One simdgroup needs no memory. Otherwise a reduction has a scratch of its own, one f32 for each
    simdgroup: no other reduction ever writes there, so no barrier has to release it. Appends a
    RegisterReduction, and an Allocation per scratch, to the report.
    """
    count = 0

    def rule(item: Op, b: Builder) -> Value | None:
        nonlocal count
        if not isinstance(item, Reduce):
            return None
        assert isinstance(item.src.type, TileType)
        assert item.src.type.layout is not None
        groups = func.threads // SIMD_WIDTH
        scratch = None
        slot = f"partials_{count}" if groups > 1 else None
        if slot is not None:
            scratch = b.add(planned.Scratch(f32, groups, slot), slot)
            ctx.report.allocations.append(Allocation(slot, str(f32), groups, groups * f32.bytes))
        count += 1
        registers = item.src.type.layout.elements_per_thread
        fact = RegisterReduction(item.kind.value, str(f32), func.threads, registers, slot)
        ctx.report.register_reductions.append(fact)
        return b.add(planned.Reduce(item.kind, item.src, scratch))

    return rewrite(func, rule)


def partial_bytes(func: Func) -> int:
    """Threadgroup memory that the reductions of a kernel will ask for."""
    groups = func.threads // SIMD_WIDTH
    count = sum(isinstance(item, Reduce) for item in walk(func.body))
    return count * groups * f32.bytes if groups > 1 else 0
