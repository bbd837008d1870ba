"""What comparisons give that no program knows, and turns that change them.

A comparison holds as the hash of its operands says. What stands under several would be read only
where all happen to hold, so both programs are read in a few turns. In each turn some comparisons
are inverted: where a bit of the turn, and an odd number of the bits that it has in common with the
column of the comparison, say so. That is an orthogonal array of strength three: over all turns any
three columns take all eight combinations equally often, in every trial and at every element.

Integers are exact, and one that memory holds is rarely the one number that it is compared with. So
where such a comparison guards something, all turns are taken once more with memory that holds what
its arrays are compared with: where that is one number, everywhere; one of several by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from metile_mlx.dtypes import DType, bool_, u32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import CompareKind, element
from metile_mlx.ir.core import Func, Op, Value, definitions, walk
from metile_mlx.ir.loops import For
from metile_mlx.ir.permute import Permute
from metile_mlx.verify import numbers
from metile_mlx.verify.numbers import Compares, Numbers

# Of more comparisons, eight that follow one another are told apart.
COLUMNS = 8
# From a literal to the number next to it for which a comparison with it holds (or fails: NE).
_EDGES = {CompareKind.LT: -1, CompareKind.GT: 1}


class Decisions:
    """The comparisons of floats of a planned program and of those made from it, in one turn.

    Equal comparisons have one column wherever they stand: that of the op of the planned program
    that compared these operands first. So that program is read first.

    Args:
        planned: the program that says which comparisons guard something.
        turn: below `turns(planned)`.
    """

    def __init__(self, planned: Func, turn: int = 0) -> None:
        count = _float_turns(planned)
        self.turn = turn % count
        self.columns = {item: at % COLUMNS for at, item in enumerate(guards(planned))}
        self.seen: dict[int, int] = {}
        self.held = compared_with(planned) if turn >= count else {}

    def memory(self, array: str, dtype: DType, offset: Numbers) -> Numbers:
        """What the parameter of this name holds there."""
        found = numbers.unknown(array, dtype, offset)
        chosen = self.held.get(array)
        if chosen is None or not dtype.is_integer:
            return found
        values = np.concatenate([numbers.constant(value, dtype)[0] for value in chosen])
        return values[numbers.unknown(f"which of {array}", u32, offset) % len(values)]

    def of(self, item: Op) -> Compares:
        """How the op `item` compares."""
        return partial(self.compare, self.columns.get(item, 0))

    def compare(
        self, column: int, kind: CompareKind, a: Numbers, b: Numbers, dtype: DType
    ) -> Numbers:
        """a `kind` b, as 0 and 1; `column` is that of operands that were not compared before."""
        found = numbers.compare(kind, a, b, dtype)
        if not dtype.is_float or self.turn == 0:
            return found
        if len(self.columns) < 2:
            return found ^ self._turned(0)
        values, places = np.unique(numbers.compared(kind, a, b, dtype), return_inverse=True)
        turned = [self._turned(self.seen.setdefault(v, column)) for v in values.tolist()]
        return found ^ np.array(turned, np.int64)[places].reshape(found.shape)

    def _turned(self, column: int) -> int:
        return (self.turn & (column << 1 | 1)).bit_count() & 1


def turns(planned: Func) -> int:
    """In how many turns any three comparisons of floats that guard something are told apart, and
    integers of memory are those that they are compared with."""
    return _float_turns(planned) * (2 if compared_with(planned) else 1)


def _float_turns(planned: Func) -> int:
    count = min(len(guards(planned)), COLUMNS)
    return 2 << (count - 1).bit_length() if count else 1


def guards(func: Func) -> list[Op]:
    """The comparisons of floats that decide on an access: on its place, its mask, its branch or
    its loop."""
    return [item for item in _deciding(func) if element(item.lhs).is_float]


def compared_with(func: Func) -> dict[str, tuple[int, ...]]:
    """The literals that integers of each array are compared with where that decides, or what is
    next to them."""
    defined = definitions(func)
    found: dict[str, dict[int, None]] = {}
    for item in _deciding(func):
        sides = _origin(item.lhs, defined), _origin(item.rhs, defined)
        for number, (load, literal) in enumerate((sides, sides[::-1])):
            if not isinstance(load, tile.Load) or not isinstance(literal, tile.Constant):
                continue
            view = defined.get(load.tensor)
            if isinstance(view, tile.Tensor) and isinstance(literal.value, int):
                edge = _EDGES.get(item.kind, 0) * (-1 if number else 1)
                found.setdefault(view.param.name, {})[literal.value + edge] = None
    return {name: tuple(values) for name, values in found.items()}


def _origin(value: Value, defined: Mapping[Value, Op]) -> Op | None:
    """What made the elements of a value, whatever their shape and owners are since."""
    item = defined.get(value)
    while isinstance(item, tile.Splat | tile.Reshape | Permute):
        item = defined.get(item.src)
    return item


def _deciding(func: Func) -> list[tile.Compare]:
    """All comparisons that decide on an access, in order."""
    deciding: set[Value] = set()
    found: list[tile.Compare] = []
    for item in reversed(list(walk(func.body))):
        match item:
            case tile.If():
                deciding.add(item.condition)
            case For():
                deciding |= {item.start, item.end, item.step}
            case tile.Load() | tile.Store() | tile.Print():
                places = () if isinstance(item, tile.Print) else item.indices
                deciding.update(places if item.mask is None else (*places, item.mask))
            case tile.Yield():
                # What a block hands out may decide later.
                deciding.update(value for value in item.values if element(value) == bool_)
            case _:
                pass
        if not deciding.isdisjoint(item.results):
            deciding.update(item.operands())
            if isinstance(item, tile.Compare):
                found.append(item)
    return found[::-1]
