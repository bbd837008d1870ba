"""Every tile has owners, and the owners in one op agree (SPEC O2, O3, O5)."""

from __future__ import annotations

from metile_mlx.context import Stage
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.matrix import Dot, Operand
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.planned import Choose, ScratchLoad, Shuffle
from metile_mlx.ir.tile import Convert
from metile_mlx.ir.types import ScalarType, SlotsType, TileType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import MAX_TILE, SIMD_WIDTH
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.products import product_fault

# The ops whose purpose is that the result has other owners than the operand, element for element.
_MOVES = (Convert, Permute, Shuffle, Choose, ScratchLoad, Operand)


def check_ownership(func: Func, stage: Stage, before: Func | None = None) -> list[Finding]:
    """Geometry and agreement of all owners; for Stage.OWNED and later.

    What holds of an op follows from the op and the number of threads, so a planned program's ops
    that `before` held already, on as many threads, are not asked again.
    """
    threads = func.threads
    findings: list[Finding] = []
    if not SIMD_WIDTH <= threads <= MAX_TILE or threads & (threads - 1):
        findings.append(
            Finding(
                None,
                f"has {threads} threads, expected a power of two from {SIMD_WIDTH} to {MAX_TILE}",
            )
        )
    if stage is Stage.THREAD:
        return findings
    own = any(_is_own(value) for item in walk(func.body) for value in item.results)
    known: frozenset[Op] = frozenset()
    if stage is Stage.PLANNED and before is not None and before.threads == threads:
        known = frozenset(before.body.ops)
    for item in walk(Block(tuple(item for item in func.body.ops if item not in known))):
        bound = [arg for inner in item.blocks() for arg in inner.args]
        for value in (*item.results, *bound):
            message = _geometry(value, threads) or (_alignment(value) if own else "")
            if message:
                findings.append(Finding(item, message))
        message = _agreement(item, threads)
        if message:
            findings.append(Finding(item, message))
    return findings


def _geometry(value: Value, threads: int) -> str:
    type_ = value.type
    if isinstance(type_, SlotsType) and type_.size != threads * type_.registers:
        return f"{value!r} has {type_.size} slots, expected {threads} threads' registers"
    if not isinstance(type_, TileType):
        return ""
    if type_.layout is None:
        return f"{value!r} has no layout, expected one"
    if type_.layout.size != type_.size:
        return f"{value!r} has {type_.size} elements but its layout owns {type_.layout.size}"
    if type_.layout.thread_count != threads:
        return (
            f"{value!r} lives on {type_.layout.thread_count} threads, expected the kernel's "
            f"{threads}"
        )
    return ""


def _is_own(value: Value) -> bool:
    return isinstance(value.type, ScalarType) and not value.type.uniform


def _alignment(value: Value) -> str:
    """A scalar of each thread's own meets tiles whose element t is thread t's (SPEC O4)."""
    layout = value.type.layout if isinstance(value.type, TileType) else None
    if layout is None or layout == ThreadLayout.identity(layout.size):
        return ""
    return f"{value!r} stands beside values of each thread's own, expected no layout but identity"


def _agreement(item: Op, threads: int) -> str:
    """Expected: all tiles an op reads or makes have one layout."""
    if isinstance(item, _MOVES):
        return ""
    if isinstance(item, Dot):
        return product_fault(item, threads)
    tiles = [v for v in (*item.operands(), *item.results) if isinstance(v.type, TileType)]
    for other in tiles[1:]:
        if _layout(other) != _layout(tiles[0]):
            return (
                f"{tiles[0]!r} and {other!r} have different owners in one op, expected one layout"
            )
    return ""


def _layout(value: Value) -> object:
    return value.type.layout if isinstance(value.type, TileType) else None
