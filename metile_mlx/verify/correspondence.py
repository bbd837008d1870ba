"""That a per-thread program sends and uses what the program before it does (SPEC C4, F38).

See `contents` for places and rows. A row of the planned program becomes one SSA value of the
per-thread program. The first time it travels says which, and from then on it has to be that one;
the values of a tile's registers are made in the order of the registers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

import numpy as np

from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Func, Op, Value, walk
from metile_mlx.ir.lanes import RAW
from metile_mlx.ir.matrix import BlockMultiply, Dot, FragmentMultiply
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.types import ScalarType, TileType
from metile_mlx.layout.affine import Indices
from metile_mlx.verify.axis_reductions import cones
from metile_mlx.verify.contents import NOTHING, PlannedContents, Rows, ThreadContents, rows
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.reductions import partials
from metile_mlx.verify.thread_values import ThreadValues


class Correspondence:
    """Which row of the one program is which row of the other.

    Args:
        before, after: the rows of the two.
        values: of the program after.
        made: what made the tiles of a planned program.
    """

    def __init__(
        self, before: Rows, after: Rows, values: ThreadValues, made: Mapping[Value, Op]
    ) -> None:
        self.before = before
        self.after = after
        self.values = values
        self.made = made
        self._order = {value: number for number, value in enumerate(values.made_by)}
        self._known: dict[int, int] = {}
        # By tile: what is known of its registers.
        self._registers: dict[Hashable, dict[int, int]] = {}

    def check(self, expected: Indices, found: Indices) -> str:
        """What is wrong with the places found where others were expected, or nothing."""
        threads = self.before.threads
        if (expected < 0).any() or (found < 0).any():
            return "moves what nobody has stored"
        if (expected % threads != found % threads).any():
            return "moves the value of another thread than planned"
        pairs = expected // threads * len(self.after.names) + found // threads
        for pair in dict.fromkeys(pairs.tolist()):
            row, value = divmod(pair, len(self.after.names))
            if not self._may_be(row, value):
                return self._another(row, value)
            if self._known.setdefault(row, value) != value:
                return self._another(row, value)
        return ""

    def translated(self, expected: Indices) -> Indices | None:
        """The places of the other program, once each row has travelled."""
        threads = self.before.threads
        table = np.array([self._known.get(row, NOTHING) for row in range(len(self.before.names))])
        values = table[expected // threads]
        return None if (values < 0).any() else values * threads + expected % threads

    def _may_be(self, row: int, value: int) -> bool:
        """A value that both programs have stands for itself; registers have their order."""
        (source, register), (name, _) = self.before.names[row], self.after.names[value]
        if source in self.values.made_by:
            return source is name
        if not isinstance(name, Value) or self._is_free(name):
            return True
        others = self._registers.setdefault(source, {})
        position = others[register] = self._order.get(name, NOTHING)
        if not self._is_in_order(source):
            return others.setdefault(register, position) == position and all(
                place != position for other, place in others.items() if other != register
            )
        return all(
            (place < position) == (other < register)
            for other, place in others.items()
            if other != register
        )

    def _is_in_order(self, source: Hashable) -> bool:
        """Whether each register has an op of its own: none of its values is an operand as it is."""
        item = self.made.get(source) if isinstance(source, Value) else None
        return isinstance(item, tile.Load | tile.Unary | tile.Bitcast | tile.Fma) or (
            isinstance(item, tile.Binary) and element(item.result).is_float
        )

    def _another(self, row: int, value: int) -> str:
        source, register = self.before.names[row]
        return (
            f"moves {self.after.names[value][0]!r}, expected what register {register} of "
            f"{source!r} has become"
        )

    def _is_free(self, name: Value) -> bool:
        """Whether several registers may well hold this one value."""
        uniform = isinstance(name.type, ScalarType) and name.type.uniform
        return uniform or self.values.evaluate(name) is not None


def check_contents(func: Func, values: ThreadValues, before: Func) -> list[Finding]:
    """That what each thread of `func` sends is what `before`, a planned program, has it send.

    The two communicate at the same places in the same order: another check has seen to that.
    """
    sends = [item for item in func.body.ops if type(item) in _SENDS]
    # The partial results of a reduction are no values that move.
    private = partials(func) if sends else frozenset()
    if all(isinstance(i, metal.ThreadgroupStore) and i.buffer in private for i in sends):
        return []
    # Where the user says what threads do, nothing is planned: no layouts are stated.
    if any(isinstance(item, RAW) for item in walk(func.body)):
        return []
    plan = PlannedContents(before)
    locs = frozenset(i.loc for i in before.body.ops if isinstance(i, planned.Choose))
    new = ThreadContents(func, values, locs)
    made = {value: item for item in before.body.ops for value in item.results}
    match = Correspondence(plan.rows, new.rows, values, made)
    found = _sent(match, _planned_sends(before, plan), _thread_sends(func, new))
    return found or check_uses(func, before, plan, new, match)


Sent = tuple[Op, Indices]
_SENDS = frozenset({metal.ThreadgroupStore, metal.Shuffle})


def _sent(match: Correspondence, old: Iterable[Sent], new: Iterable[Sent]) -> list[Finding]:
    # All of it first: rows get their numbers on the way.
    before, after = list(old), list(new)
    for (_, expected), (item, found) in zip(before, after, strict=False):
        message = match.check(expected, found)
        if message:
            return [Finding(item, message)]
    return []


def _planned_sends(func: Func, contents: PlannedContents) -> Iterator[Sent]:
    threads = np.arange(func.threads)
    for item in func.body.ops:
        if isinstance(item, planned.ScratchStore):
            for register, _ in rows(item.slots, item.registers, func.threads):
                yield item, contents.of(item.value)[register]
        elif isinstance(item, planned.Shuffle):
            for _, source in rows(item.lanes, item.registers, func.threads):
                if (source % func.threads != threads).any():
                    yield item, contents.of(item.src)[source[0] // func.threads]
        contents.record(item)


def _stated(func: Func) -> frozenset[Op]:
    """What verify/axis_reductions.py looks at."""
    found = cones(func)
    return frozenset([*(op for cone in found for op in cone.ops), *(cone.item for cone in found)])


def _thread_sends(func: Func, contents: ThreadContents) -> Iterator[Sent]:
    private, stated = partials(func), _stated(func)
    accesses = (metal.ThreadgroupStore, metal.ThreadgroupLoad)
    for item in func.body.ops:
        # The partial results of a reduction are no values that move.
        if item in stated or (isinstance(item, accesses) and item.buffer in private):
            continue
        if isinstance(item, metal.ThreadgroupStore):
            yield item, contents.of(item.value)
        elif isinstance(item, metal.Shuffle):
            yield item, contents.of(item.src)
        contents.record(item)


def _thread_uses(func: Func, contents: ThreadContents) -> Iterator[Sent]:
    """What has moved, where an op that is no move uses it."""
    stated = _stated(func)
    for item in func.body.ops:
        if type(item) in _THREAD_MOVES or contents.is_choice(item) or item in stated:
            continue
        if isinstance(item, _PRODUCTS):
            continue
        for value in item.operands():
            if contents.has_moved(value):
                yield item, contents.held[value]


def check_uses(
    func: Func,
    before: Func,
    plan: PlannedContents,
    contents: ThreadContents,
    match: Correspondence,
) -> list[Finding]:
    """That what has been moved is used register by register, as in the planned program.

    Each op of that one uses what its operands hold in register 0, then 1, and so on, and so do the
    ops it has become. An operand stands for what it was computed from, too: an op that changes
    nothing is not there any more. Programs with branches are left out, and products: they use many
    registers at once (verify/products.py).
    """
    if any(item.blocks() for item in before.body.ops):
        return []
    groups = _planned_uses(before, plan, match)
    if groups is None:
        return []
    position = 0
    stores: dict[tuple[Value, int | None], int] = {}
    for item, places in _thread_uses(func, contents):
        key, first = places.tobytes(), position
        if isinstance(item, metal.Store) and places is contents.held.get(item.value):
            # Each register has one store to an array.
            first = max(first, stores.get((item.buffer, item.access), NOTHING) + 1)
        ahead = (number for number in range(first, len(groups)) if key in groups[number])
        here = next(ahead, None)
        if here is None:
            return [Finding(item, "uses another register's value than planned, or a wrong one")]
        position = here
        if isinstance(item, metal.Store) and places is contents.held.get(item.value):
            stores[item.buffer, item.access] = here
    return []


_PLANNED_MOVES = frozenset({
    planned.ScratchStore, planned.ScratchLoad, planned.Shuffle, planned.Choose, tile.Cast,
    tile.Bitcast, tile.Reshape, Permute,
})  # fmt: skip
_RENAMES = frozenset({tile.Cast, tile.Bitcast, tile.Reshape, Permute})
_THREAD_MOVES = frozenset({
    metal.ThreadgroupStore, metal.ThreadgroupLoad, metal.Shuffle, metal.Cast, metal.Bitcast,
})  # fmt: skip
_PRODUCTS = (FragmentMultiply, BlockMultiply)


def _planned_uses(
    func: Func, plan: PlannedContents, match: Correspondence
) -> list[frozenset[bytes]] | None:
    """What the moved operands of each op hold, a group per register; None: it can't be said."""
    moved: dict[Value, list[frozenset[bytes]]] = {}
    groups: list[frozenset[bytes]] = []
    for item in func.body.ops:
        parts = [moved[value] for value in item.operands() if value in moved]
        if type(item) in _PLANNED_MOVES:
            for value in item.results:
                if not isinstance(value.type, TileType):
                    continue
                keys = [_key(places, plan, match) for places in plan.of(value)]
                if None in keys:
                    return None
                known = [key for key in keys if key is not None]
                # What stays in its row may still be the operand's by another name.
                same = parts[0] if parts and type(item) in _RENAMES else [frozenset()] * len(keys)
                moved[value] = [a or b for a, b in zip(known, same, strict=True)]
            continue
        if not parts or isinstance(item, Dot):
            continue
        used = [frozenset[bytes]().union(*row) for row in zip(*parts, strict=True)]
        groups += used
        for value in item.results:
            if isinstance(value.type, TileType) and not isinstance(item, planned.Reduce):
                moved[value] = used
    return groups


def _key(places: Indices, plan: PlannedContents, match: Correspondence) -> frozenset[bytes] | None:
    if (places < 0).any():
        return None
    if not plan.rows.is_moved(places):
        return frozenset()
    made = match.translated(places)
    return None if made is None else frozenset({made.tobytes()})
