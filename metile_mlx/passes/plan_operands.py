"""Hand operands of products to the simdgroups through threadgroup memory (SPEC C1, P4)."""

from __future__ import annotations

from collections.abc import Sequence

from metile_mlx.context import Context
from metile_mlx.dtypes import DType, bf16, u16
from metile_mlx.errors import OutOfResources
from metile_mlx.ir.core import Block, Builder, Func, Op, Value, walk
from metile_mlx.ir.matrix import Operand
from metile_mlx.ir.planned import Barrier, Scratch, ScratchLoad, ScratchStore
from metile_mlx.ir.rewrite import rewrite
from metile_mlx.ir.tile import Bitcast
from metile_mlx.ir.types import TileType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.report import Allocation, LayoutConversion, place


def plan_operands(func: Func, ctx: Context) -> Func:
    """Replace every tile.operand by a store, a barrier, a load and a barrier. To Stage.PLANNED.

    The elements lie in memory row by row. All operands of one dtype use one allocation in turn.
    Those of pipelines are no operands any more (passes/pipeline_loops.py). Appends a
    LayoutConversion per operand and an Allocation per dtype to the report.

    Raises:
        OutOfResources: a tile is larger than threadgroup memory.
    """
    operands = [item for item in walk(func.body) if isinstance(item, Operand)]
    if not operands:
        return func
    hoisted = Builder(func.loc)
    buffers: dict[DType, Value] = {}
    for wire in dict.fromkeys(wire_dtype(_tile(item.src).dtype) for item in operands):
        sizes = [_tile(i.src).size for i in operands if wire_dtype(_tile(i.src).dtype) == wire]
        buffers[wire] = allocate(hoisted, wire, max(sizes), f"operands_{wire}", ctx)

    def rule(item: Op, b: Builder) -> Value | None:
        if not isinstance(item, Operand):
            return None
        type_ = _tile(item.src)
        buffer = buffers[wire_dtype(type_.dtype)]
        handed_over(item, ctx, buffer.name, 2)
        store_operand(b, buffer, item.src)
        b.emit(Barrier("publish"))
        loaded = load_operand(b, buffer, item)
        b.emit(Barrier("release"))
        return decode(b, loaded, type_.dtype)

    made = rewrite(func, rule)
    return made.with_body(Block((*hoisted.ops, *made.body.ops), made.body.args))


def wire_dtype(dtype: DType) -> DType:
    """How an operand's dtype travels (SPEC C3)."""
    return u16 if dtype == bf16 else dtype


def allocate(b: Builder, wire: DType, elements: int, slot: str, ctx: Context) -> Value:
    """Threadgroup memory, and its entry in the report.

    Raises:
        OutOfResources: it is larger than what a threadgroup has.
    """
    size = elements * wire.bytes
    if size > ctx.target.threadgroup_bytes:
        raise OutOfResources(
            f"[dot] {slot} needs {size} bytes of threadgroup memory; {ctx.target.name} has "
            f"{ctx.target.threadgroup_bytes}",
            b.loc,
            "use smaller tiles, or Schedule(staging='device')",
        )
    ctx.report.allocations.append(Allocation(slot, str(wire), elements, size))
    return b.add(Scratch(wire, elements, slot), slot)


def in_turn_bytes(operands: Sequence[Operand]) -> int:
    """Threadgroup memory of operands that are handed over one after the other."""
    sizes: dict[DType, int] = {}
    for item in operands:
        type_ = _tile(item.src)
        wire = wire_dtype(type_.dtype)
        sizes[wire] = max(sizes.get(wire, 0), type_.size * wire.bytes)
    return sum(sizes.values())


def store_operand(
    b: Builder,
    buffer: Value,
    src: Value,
    order: AffineMap | None = None,
    stage: Value | None = None,
) -> None:
    """All elements of a tile, element i to `order(i)` (None: row by row) of a stage."""
    type_ = _tile(src)
    value = src if type_.dtype != bf16 else b.add(Bitcast(src, u16), f"{src.name}_wire")
    slots = _placed(type_.owners.map, order)
    b.emit(ScratchStore(buffer, value, slots, stage=stage))


def load_operand(
    b: Builder,
    buffer: Value,
    item: Operand,
    order: AffineMap | None = None,
    stage: Value | None = None,
) -> Value:
    """What each simdgroup needs of them."""
    shape, slots = _tile(item.src).shape, _placed(item.layout.map, order)
    return b.add(ScratchLoad(buffer, shape, item.layout, slots, stage=stage), item.result.name)


def _placed(owned: AffineMap, order: AffineMap | None) -> AffineMap:
    """Where the element of each slot lies; several slots may own one."""
    if order is None:
        return owned
    columns = tuple(order.apply(column) ^ order.constant for column in owned.columns)
    return AffineMap(columns, order.apply(owned.constant))


def decode(b: Builder, loaded: Value, dtype: DType) -> Value:
    """The operand's own dtype again."""
    return b.add(Bitcast(loaded, bf16)) if dtype == bf16 else loaded


def handed_over(item: Operand, ctx: Context, scratch: str, barriers: int) -> None:
    """Say in the report that an operand is; `barriers` of its own."""
    ctx.report.layout_conversions.append(
        LayoutConversion(
            item.src.name,
            item.result.name,
            str(_tile(item.src).dtype),
            repr(_tile(item.src).owners),
            repr(item.layout),
            "threadgroup",
            place(item.loc),
            scratch,
            barriers=barriers,
            reason="each simdgroup needs rows or columns that others have loaded too",
        )
    )


def _tile(value: Value) -> TileType:
    assert isinstance(value.type, TileType)
    return value.type
