"""What loops over threads in C++ address: permuted slots, offsets, and where masks hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from metile_mlx.analysis.consecutive import Sums, Terms
from metile_mlx.analysis.ranges import Ranges
from metile_mlx.dtypes import u64
from metile_mlx.emit.segments import Segment
from metile_mlx.emit.thread_tables import ThreadTables, is_uniform
from metile_mlx.ir.arith import BinaryKind, element
from metile_mlx.ir.core import Func, Op, Value, definitions, walk
from metile_mlx.ir.metal import Binary, Load, LoadGroup, Store, StoreGroup, ThreadgroupLoad
from metile_mlx.layout.affine import AffineMap


def leading(tables: ThreadTables, masks: Sequence[Value]) -> int | None:
    """In how many of the first threads all masks hold; None where that isn't known yet."""
    found = [tables.holds(mask) for mask in masks]
    known = [table for table in found if table is not None]
    if not masks or len(known) < len(masks):
        return None
    everywhere = np.logical_and.reduce(known)
    return len(everywhere) if everywhere.all() else int(np.argmin(everywhere))


@dataclass(frozen=True)
class Relation:
    """`base` is `first` + `behind`, which has to be seen when the kernel runs."""

    base: Value
    first: Value
    behind: int


class Offsets:
    """Offsets of an array, written so that compilers can follow loops over them.

    `passes/addresses.py` makes an offset of a base, which all threads share, and what the thread
    adds. A sum of 32 bits may wrap for all a compiler knows, and then no loop over it is
    vectorised; nor where each register slot has a base of its own, so that two stores may meet.
    So the slots of an access are written as distances from the first base.

    With 32 bits, an offset in bounds is below 2**31: it is a signed base, the distance and the
    rest, exactly. With 64 bits the base may come from indices that have wrapped: the relation is
    compared before the loop.
    """

    def __init__(self, func: Func, tables: ThreadTables) -> None:
        self._tables = tables
        self._top = {value for item in func.body.ops for value in item.results}
        defined = definitions(func)
        self._sums = Sums(defined)
        self._exact = Sums(defined, Ranges(func.threads))
        self._first: dict[Terms, Value] = {}
        places: set[Value] = set()
        others: set[Value] = set()
        self._slots: set[Value] = set()
        for item in walk(func.body):
            here = _places(item)
            places.update(here)
            others.update(value for value in item.operands() if value not in here)
            if here and getattr(item, "access", None) is not None:
                self._slots.update(here)
        # Used for nothing but to say where an array is accessed.
        self._only_places = places - others

    def is_offset(self, item: Op) -> TypeGuard[Binary]:
        """Whether it is base + what the thread adds."""
        return (
            isinstance(item, Binary)
            and item.kind is BinaryKind.ADD
            and item.result in self._only_places
            and is_uniform(item.lhs)
            and self._tables.table(item.rhs) is not None
        )

    def relation(self, item: Binary) -> Relation | None:
        """How the base of a slot lies to that of another one that was asked for before."""
        base = item.lhs
        if item.result not in self._slots or base not in self._top:
            return None
        first = self._first.setdefault(self._sums.of(base).terms, base)
        (behind,) = self._sums.distances(first, [base])
        # Neither distance nor what a thread adds makes the sum reach 2**32.
        if first is base or behind is None or not 0 <= behind < 1 << 30:
            return None
        return Relation(base, first, behind)

    def assumed(self, ops: Sequence[Op]) -> tuple[Relation, ...]:
        """Relations of the offsets of 64 bits that no compiler would see."""
        found: dict[Value, Relation] = {}
        for item in ops:
            if self.is_offset(item) and element(item.result) == u64:
                made = self.relation(item)
                if made and self._exact.distances(made.first, [made.base]) == [None]:
                    found[made.base] = made
        return tuple(found.values())


def _places(item: Op) -> tuple[Value, ...]:
    match item:
        case Load() | Store():
            return (item.index,)
        case LoadGroup() | StoreGroup():
            return item.indices
        case _:
            return ()


def is_small(segment: Segment) -> bool:
    """Whether a loop reads no element of more than 16 bits."""
    reads = (item for item in segment.ops if isinstance(item, Load | ThreadgroupLoad))
    return all(element(item.result).bits <= 16 for item in reads)


def permuted(moves: AffineMap, index: str, step: int, high: bool) -> str:
    """The image of the bits of `index`: those from `step` on (`high`) or those below it.

    The two images share no bit, so they add up. The constant is shared out among them; what lies
    outside of both goes to the lower one.
    """
    shifts: dict[int, int] = {}
    image = 0
    for bit, column in enumerate(moves.columns):
        if (1 << bit >= step) == high and column:
            image |= column
            shift = column.bit_length() - 1 - bit
            shifts[shift] = shifts.get(shift, 0) | 1 << bit
    terms = []
    for shift, mask in shifts.items():
        move = f" {'<<' if shift > 0 else '>>'} {abs(shift)}" if shift else ""
        terms.append(f"(({index} & {mask}u){move})" if move else f"({index} & {mask}u)")
    if not terms:
        return "0u"
    text = " | ".join(terms)
    constant = moves.constant & image
    text = f"({text}) ^ {constant}u" if constant else text
    outside = 0 if high else moves.constant & ~sum(moves.columns)
    return f"({text}) + {outside}u" if outside else text
