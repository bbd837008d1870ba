"""What loops over threads in C++ address: permuted slots, offsets, and where masks hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metile_mlx.emit.phases import Segment
from metile_mlx.emit.thread_tables import ThreadTables
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Func, Value, walk
from metile_mlx.ir.metal import Load, LoadGroup, Store, StoreGroup, ThreadgroupLoad
from metile_mlx.layout.affine import AffineMap


def leading(tables: ThreadTables, masks: Sequence[Value]) -> int | None:
    """In how many of the first threads all masks hold; None where that isn't known yet."""
    found = [tables.holds(mask) for mask in masks]
    known = [table for table in found if table is not None]
    if not masks or len(known) < len(masks):
        return None
    everywhere = np.logical_and.reduce(known)
    return len(everywhere) if everywhere.all() else int(np.argmin(everywhere))


def offsets(func: Func) -> frozenset[Value]:
    """Values that only say where an array is accessed."""
    places: set[Value] = set()
    others: set[Value] = set()
    for item in walk(func.body):
        match item:
            case Load() | Store():
                here: tuple[Value, ...] = (item.index,)
            case LoadGroup() | StoreGroup():
                here = item.indices
            case _:
                here = ()
        places.update(here)
        others.update(value for value in item.operands() if value not in here)
    return frozenset(places - others)


def is_small(segment: Segment) -> bool:
    """Whether a loop reads no element of more than 16 bits."""
    reads = (item for item in segment.ops if isinstance(item, Load | ThreadgroupLoad))
    return all(element(item.result).bits <= 16 for item in reads)


def permuted(moves: AffineMap, index: str, step: int, high: bool) -> str:
    """The image of the bits of `index`: those from `step` on (`high`) or those below it.

    The two images share no bit, so they add up. The constant is shared out among them.
    """
    shifts: dict[int, int] = {}
    image = 0
    for bit, column in enumerate(moves.columns):
        if (1 << bit >= step) == high:
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
    return f"({text}) ^ {constant}u" if constant else text
