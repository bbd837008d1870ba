"""Give each reduction the threadgroup memory it needs, and say so in the report (SPEC R2, R3)."""

from __future__ import annotations

from metile_mlx.context import Context
from metile_mlx.ir import planned
from metile_mlx.ir.core import Builder, Func, Op, Value, walk
from metile_mlx.ir.rewrite import rewrite
from metile_mlx.ir.tile import Reduce
from metile_mlx.ir.types import TileType
from metile_mlx.passes.axis_bits import axis_bits
from metile_mlx.report import Allocation, RegisterReduction
from metile_mlx.target import SIMD_WIDTH


def plan_reductions(func: Func, ctx: Context) -> Func:
    """Replace every tile.reduce by its planned form. Stage.PLANNED to Stage.PLANNED.

    Rows that lie in one simdgroup each need no memory. Otherwise a reduction has a scratch of its
    own, one element for each row (or the tile) and simdgroup: no other reduction ever writes there,
    so no barrier has to release it. Along an axis of extent 1 there is nothing to combine, and the
    tile itself is the result. Appends a RegisterReduction, and an Allocation per scratch, to the
    report.
    """
    count = 0

    def rule(item: Op, b: Builder) -> Value | None:
        nonlocal count
        if not isinstance(item, Reduce):
            return None
        assert isinstance(item.src.type, TileType)
        assert item.src.type.layout is not None
        dtype, layout = item.src.type.dtype, item.src.type.layout
        if item.axis is not None and item.src.type.shape[item.axis] == 1:
            return item.src
        elements, shuffles = _needed(item, func.threads)
        scratch = None
        slot = f"partials_{count}" if elements else None
        if slot is not None:
            scratch = b.add(planned.Scratch(dtype, elements, slot), slot)
            size = elements * dtype.bytes
            ctx.report.allocations.append(Allocation(slot, str(dtype), elements, size))
        count += 1
        fact = RegisterReduction(
            item.kind.value, str(dtype), func.threads, layout.elements_per_thread, slot,
            item.axis, shuffles,
        )  # fmt: skip
        ctx.report.register_reductions.append(fact)
        return b.add(planned.Reduce(item.kind, item.src, scratch, item.axis))

    return rewrite(func, rule)


def partial_bytes(func: Func) -> int:
    """Threadgroup memory that the reductions of a kernel at Stage.OWNED will ask for."""
    return sum(
        _needed(item, func.threads)[0] * item.src.type.dtype.bytes
        for item in walk(func.body)
        if isinstance(item, Reduce) and isinstance(item.src.type, TileType)
    )


def _needed(item: Reduce, threads: int) -> tuple[int, int]:
    """Elements of scratch, and values exchanged between lanes before it."""
    assert isinstance(item.src.type, TileType)
    assert item.src.type.layout is not None
    if item.axis is None:
        groups = threads // SIMD_WIDTH
        return (groups if groups > 1 else 0), 0
    bits = axis_bits(item.src.type.layout, item.src.type.shape, item.axis)
    return bits.partials, bits.exchanges << len(bits.other_registers)
