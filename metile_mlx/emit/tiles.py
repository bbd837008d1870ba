"""Where the tiles of products lie on a CPU: each whole, in order, in one array (SPEC X4, P1).

A product reads two tiles and adds to a third, all of f32. Value r of thread t is element
t + r * threads of its tile, so the values of a tile stand in slots, one behind the other. An
operand has slots of its own, written where its values are made; only what a product has made is
read where it is. A product adds to its results, which take the accumulator before; where that is
not read again, both are in the same place and nothing moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from metile_mlx.dtypes import f32
from metile_mlx.emit.segments import Copy, Multiply, Targets
from metile_mlx.emit.thread_tables import is_uniform
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Func, Op, Value, walk
from metile_mlx.ir.matrix import BlockMultiply
from metile_mlx.ir.types import ScalarType

Tile = tuple[Value, ...]
"""Slots in order."""


@dataclass(frozen=True)
class Cut:
    """A product as a CPU does it: what is written before, and the product of the tiles."""

    copies: list[Copy]
    multiply: Multiply


class Tiles:
    """The tiles of one kernel.

    Args:
        func: the kernel at Stage.THREAD.
        defined: the op that makes each value.
        shared: of values that lie where another one does, that one; operands are added.
    """

    def __init__(self, func: Func, defined: Mapping[Value, Op], shared: dict[Value, Value]) -> None:
        self._defined = defined
        self._uses = Counter(value for item in walk(func.body) for value in item.operands())
        inner = (block for item in walk(func.body) for block in item.blocks())
        self._block = {item: block for block in (func.body, *inner) for item in block.ops}
        self._shared = shared
        self._products: list[BlockMultiply] = []
        self._operands: list[Tile] = []
        # Operands that are written where their values are made.
        self._made: dict[Tile, Tile] = {}
        # The slots that a value is written to where it is made, beside its own place.
        self.slots: dict[Value, list[Value]] = {}
        self._lies: dict[Value, tuple[Tile, int]] = {}

    def cut(self, item: BlockMultiply, in_loop: Callable[[Value], bool]) -> Cut:
        """The product in steps; `in_loop`: whether a loop over threads makes a value."""
        copies: list[Copy] = []
        a, b = (self._operand(item, values, in_loop, copies) for values in (item.a, item.b))
        self._products.append(item)
        made = Multiply(a, b, Targets(item.results), item.shape, loc=item.loc)
        return Cut(copies, made)

    def before(self, item: BlockMultiply) -> BlockMultiply | None:
        """The product that a product only adds to: then both add in one place."""
        first = self._defined.get(item.acc[0])
        if not isinstance(first, BlockMultiply) or first.results != item.acc:
            return None
        if self._block[first] is not self._block[item] or any(self._uses[v] > 1 for v in item.acc):
            return None
        self._shared.update(zip(first.results, item.results, strict=True))
        return first

    def _operand(
        self,
        item: BlockMultiply,
        values: Tile,
        in_loop: Callable[[Value], bool],
        copies: list[Copy],
    ) -> Tile:
        maker = self._defined.get(values[0])
        if isinstance(maker, BlockMultiply) and maker.results == values:
            return values
        if values in self._made:
            return self._made[values]
        tile = tuple(Value(ScalarType(f32, uniform=False), v.name, item.loc) for v in values)
        self._operands.append(tile)
        # What is copied is there for this product only.
        if not any(is_uniform(value) or not in_loop(value) for value in values):
            self._made[values] = tile
        for value, slot in zip(values, tile, strict=True):
            if is_uniform(value) or not in_loop(value):
                copies.append(Copy(Targets([slot]), value))
                continue
            if element(value) == f32 and value not in self._shared:
                self._shared[value] = slot
            else:
                self.slots.setdefault(value, []).append(slot)
        return tile

    def agree(self, taken: dict[Value, Value]) -> None:
        """Drop from `taken`, values and where they would lie, products that would not be whole."""
        for item in self._products:
            places = tuple(taken[value] for value in item.results if value in taken)
            if not places:
                continue
            whole = len(places) == len(item.results) == len(set(places))
            lies = {place: (places, number) for number, place in enumerate(places)}
            if whole and all(self._lies.get(place, at) == at for place, at in lies.items()):
                self._lies.update(lies)
            else:
                for value in item.results:
                    taken.pop(value, None)

    def place(self, value: Value) -> Value:
        """The value in whose place a value lies."""
        while value in self._shared:
            value = self._shared[value]
        return value

    def __iter__(self) -> Iterator[Tile]:
        """All tiles, each once."""
        yield from self._operands
        found = (tuple(map(self.place, item.results)) for item in self._products)
        yield from dict.fromkeys(found)
