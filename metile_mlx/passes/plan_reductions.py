"""Give each reduction the threadgroup memory it needs, and say so in the report (SPEC R2, R3)."""

from __future__ import annotations

from metile_mlx.context import Context
from metile_mlx.ir import planned
from metile_mlx.ir.core import Block, Builder, Func, Op, Value, walk
from metile_mlx.ir.loops import For
from metile_mlx.ir.rewrite import rewrite
from metile_mlx.ir.tile import If, Reduce
from metile_mlx.ir.types import TileType
from metile_mlx.passes.axis_bits import axis_bits
from metile_mlx.report import Allocation, RegisterReduction
from metile_mlx.target import SIMD_WIDTH


def plan_reductions(func: Func, ctx: Context) -> Func:
    """Replace every tile.reduce by its planned form. Stage.PLANNED to Stage.PLANNED.

    Rows that lie in one simdgroup each need no memory. Otherwise a reduction has a scratch of its
    own, one element for each row (or the tile) and simdgroup: no other reduction ever writes there.
    It writes there again itself in a loop; then the barrier of another reduction that stands
    between, or else one of its own, releases it (F43). Along an axis of extent 1 there is nothing
    to combine, and the tile itself is the result. Appends a RegisterReduction, and an Allocation
    per scratch, to the report.
    """
    count = 0
    top = set(func.body.ops)
    alone = _alone(func)
    # Threadgroup memory is allocated at the top level.
    hoisted = Builder()

    def rule(item: Op, b: Builder) -> Value | None:
        nonlocal count
        if not isinstance(item, Reduce):
            return None
        assert isinstance(item.src.type, TileType)
        dtype, layout = item.src.type.dtype, item.src.type.owners
        if item.axis is not None and item.src.type.shape[item.axis] == 1:
            return item.src
        elements, shuffles = _needed(item, func.threads)
        scratch = None
        slot = f"partials_{count}" if elements else None
        if slot is not None:
            hoisted.loc = item.loc
            place = b if item.result in results else hoisted
            scratch = place.add(planned.Scratch(dtype, elements, slot), slot)
            size = elements * dtype.bytes
            ctx.report.allocations.append(Allocation(slot, str(dtype), elements, size))
        count += 1
        fact = RegisterReduction(
            item.kind.value, str(dtype), func.threads, layout.elements_per_thread, slot,
            item.axis, shuffles,
        )  # fmt: skip
        ctx.report.register_reductions.append(fact)
        release = slot is not None and item.result in alone
        return b.add(planned.Reduce(item.kind, item.src, scratch, item.axis, release))

    results = {value for item in top for value in item.results}
    made = rewrite(func, rule)
    if not hoisted.ops:
        return made
    return made.with_body(Block((*hoisted.ops, *made.body.ops), made.body.args))


def _alone(func: Func) -> set[Value]:
    """Results of reductions in loops that no other barrier stands between for sure.

    From one run of a reduction to the next, in its innermost loop, lies all that its own block and
    those around it within the loop hold. It then lies between in loops further out as well.
    """
    found: set[Value] = set()

    def visit(block: Block, inside: bool, orders: bool) -> None:
        """`orders`: whether the blocks around, within the loop, have a barrier beside this one."""
        for item in block.ops:
            others = (other for other in block.ops if other is not item)
            beside = orders or any(_meets(other, func.threads) for other in others)
            if isinstance(item, Reduce) and inside and not beside:
                found.add(item.result)
            is_loop = isinstance(item, For)
            for inner in item.blocks():
                visit(inner, inside or is_loop, beside and not is_loop)

    if any(isinstance(item, For) for item in walk(func.body)):
        visit(func.body, False, False)
    return found


def _meets(item: Op, threads: int) -> bool:
    """Whether all threads meet at a barrier whenever the op runs."""
    if isinstance(item, If):
        return all(any(_meets(i, threads) for i in block.ops) for block in item.blocks())
    return isinstance(item, Reduce) and _needed(item, threads)[0] > 0


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
    if item.axis is not None and item.src.type.shape[item.axis] == 1:
        return 0, 0
    if item.axis is None:
        groups = threads // SIMD_WIDTH
        return (groups if groups > 1 else 0), 0
    bits = axis_bits(item.src.type.owners, item.src.type.shape, item.axis)
    return bits.partials, bits.exchanges << len(bits.other_registers)
