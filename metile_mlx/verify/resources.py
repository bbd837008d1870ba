"""What a kernel asks of a threadgroup, against the target's limits (SPEC X9)."""

from __future__ import annotations

from metile_mlx.context import Context
from metile_mlx.errors import OutOfResources
from metile_mlx.ir.core import Func
from metile_mlx.ir.metal import ThreadgroupAlloc
from metile_mlx.ir.planned import Scratch
from metile_mlx.ir.types import ScratchType

_PHASES = "first, steady and last"


def check_resources(func: Func, ctx: Context) -> None:
    """Threads and threadgroup memory; for Stage.PLANNED and Stage.THREAD.

    Raises:
        OutOfResources: more than the target has; states each part of the sum, in bytes.
    """
    target = ctx.target
    if func.threads > target.max_threads:
        raise OutOfResources(
            f"[{func.name}] asks for {func.threads} threads, {target.name} has at most "
            f"{target.max_threads} per threadgroup",
            func.loc,
            "use a smaller tile, or layouts with more elements per thread",
        )
    parts: list[str] = []
    total = 0
    # Allocations stand at the top: the other verifiers reject them under a condition.
    for item in func.body.ops:
        if isinstance(item, Scratch | ThreadgroupAlloc):
            memory = ScratchType(item.dtype, item.elements)
            total += memory.bytes
            slots = "" if item.stages is None else f" ({item.stages} slots, for phases {_PHASES})"
            parts.append(f"{item.slot} {item.elements} x {item.dtype} = {memory.bytes}{slots}")
    if total > target.threadgroup_bytes:
        raise OutOfResources(
            f"[{func.name}] asks for {total} bytes of threadgroup memory, {target.name} has "
            f"{target.threadgroup_bytes}: {', '.join(parts)}",
            func.loc,
            "use a smaller tile or a narrower dtype, or convert fewer dtypes in one kernel",
        )
