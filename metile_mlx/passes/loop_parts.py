"""A loop in two parts: what loads the tiles of products, and what uses them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metile_mlx.dtypes import DType
from metile_mlx.ir.core import Block, Effect, Func, Op, Value, definitions, walk
from metile_mlx.ir.loops import For
from metile_mlx.ir.matrix import Dot, Operand
from metile_mlx.ir.tile import Load, Reduce, Tensor
from metile_mlx.ir.types import TensorType, TileType
from metile_mlx.passes.plan_operands import wire_dtype


@dataclass(frozen=True)
class Parts:
    """The parts of a loop's body, each in its order; the yield is in neither.

    Attributes:
        copies: what loads the tiles that are handed over, and its arithmetic.
        shared: the arithmetic of `copies` that `uses` needs as well.
        uses: all else: operands, products, work on what is carried.
    """

    copies: tuple[Op, ...]
    shared: tuple[Op, ...]
    uses: tuple[Op, ...]

    @property
    def tiles(self) -> tuple[Value, ...]:
        """The tiles handed over, each once."""
        return tuple(dict.fromkeys(i.src for i in self.uses if isinstance(i, Operand)))

    @property
    def wires(self) -> tuple[tuple[DType, int], ...]:
        """Of each tile, its dtype in memory and its elements."""
        types = (value.type for value in self.tiles)
        return tuple((wire_dtype(t.dtype), t.size) for t in types if isinstance(t, TileType))


def candidates(func: Func) -> dict[For, Parts | str]:
    """The loops that hand operands to products in their own body, or in branches there.

    Each with its parts, or why it can't be taken apart.
    """
    made_by = definitions(func)
    loops = [item for item in walk(func.body) if isinstance(item, For)]
    return {loop: _parts(loop, made_by) for loop in loops if _hands_over(loop.body)}


def _hands_over(block: Block) -> bool:
    """Whether an operand stands in the block, in no loop within it."""
    return any(
        isinstance(item, Operand)
        or (not isinstance(item, For) and any(map(_hands_over, item.blocks())))
        for item in block.ops
    )


def _parts(loop: For, made_by: Mapping[Value, Op]) -> Parts | str:
    body = loop.body.ops[:-1]
    for item in body:
        reason = _obstacle(item, made_by)
        if reason:
            return f"line {item.loc.line}: {reason}"
    inside = {value: item for item in body for value in item.results}
    tiles = {item.src for item in body if isinstance(item, Operand)}
    behind = _behind(tiles, inside)
    copies = tuple(item for item in body if item in behind)
    for item in copies:
        if isinstance(item, Dot | Operand):
            return f"line {item.loc.line}: what it multiplies is made of another product"
        if any(value in loop.carried for value in item.operands()):
            return f"line {item.loc.line}: what it loads depends on what the loop carries"
    if not tiles.isdisjoint(loop.carried):
        return "what it multiplies is carried from step to step"
    uses = tuple(item for item in body if item not in behind)
    wanted = {v for item in uses if not isinstance(item, Operand) for v in item.operands()}
    direct = {v: item for v, item in inside.items() if not isinstance(item, Operand)}
    used = _behind(wanted | set(loop.yields), direct)
    shared = tuple(item for item in copies if item in used)
    for item in shared:
        if isinstance(item, Load):
            return f"line {item.loc.line}: what it loads for a product is used otherwise, too"
    if _loads_before(body, copies):
        return "it loads something else before the tiles of its products"
    return Parts(copies, shared, uses)


def _obstacle(item: Op, made_by: Mapping[Value, Op]) -> str:
    """Why a loop with this op stays as it is, or nothing."""
    if item.blocks():
        return "a branch or a loop stands in it"
    if item.effect & Effect.WRITE:
        return "it stores or prints in each step"
    if item.effect & Effect.CONVERGENT or isinstance(item, Reduce):
        return "threads exchange values in each step"
    if item.effect & Effect.READ and not _only_reads(item, made_by):
        return "it loads from an array that the kernel writes"
    return ""


def _only_reads(item: Op, made_by: Mapping[Value, Op]) -> bool:
    """Whether it loads from an array that the kernel never writes."""
    if not isinstance(item, Load):
        return False
    view = made_by[item.tensor]
    views = (other for other in made_by.values() if isinstance(other, Tensor))
    same = [other for other in views if isinstance(view, Tensor) and other.param is view.param]
    types = [other.result.type for other in same]
    return bool(types) and all(isinstance(t, TensorType) and t.access == "read" for t in types)


def _behind(values: Iterable[Value], inside: Mapping[Value, Op]) -> set[Op]:
    """The ops of the body that these values come from."""
    found: set[Op] = set()
    pending = list(values)
    while pending:
        item = inside.get(pending.pop())
        if item is not None and item not in found:
            found.add(item)
            pending += item.operands()
    return found


def _loads_before(body: tuple[Op, ...], copies: tuple[Op, ...]) -> bool:
    """Whether a load of its own precedes one of the copies: accesses keep their order."""
    kinds = [item in copies for item in body if isinstance(item, Load)]
    return kinds != sorted(kinds, reverse=True)
