"""Ragged ends: masked accesses that the first threads make are loops of their own, without a mask.

Where a mask follows from the thread index alone and holds in exactly the threads 0 to n - 1, a loop
over those needs no test, so that a compiler vectorises it; it would give up on the whole segment
for one guarded access, of f16 above all. Such loads come before their phase and such stores after
it, which moves no access past another of the same memory: inputs are never written, and the stores
moved are the last ones to their output.
"""

from __future__ import annotations

from collections.abc import Callable

from metile_mlx.emit.thread_tables import ThreadTables
from metile_mlx.ir.core import Op, Value, walk
from metile_mlx.ir.metal import Store, StoreGroup


def span(mask: Value | None, tables: ThreadTables) -> int | None:
    """How many first threads a mask holds in, if it is known to hold in no other; None if not.

    None also for a mask that holds everywhere.
    """
    held = None if mask is None else tables.holds(mask)
    if held is None:
        return None
    count = int(held.sum())
    return count if count < len(held) and bool(held[:count].all()) else None


def last_stores(ops: list[Op], is_ragged: Callable[[Store], bool]) -> set[Op]:
    """The ragged stores no other store to the same output follows, blocks looked into."""
    found: set[Op] = set()
    closed: set[Value] = set()
    for item in reversed(ops):
        if isinstance(item, Store) and item.buffer not in closed and is_ragged(item):
            found.add(item)
            continue
        parts = (item, *(inner for block in item.blocks() for inner in walk(block)))
        closed.update(part.buffer for part in parts if isinstance(part, Store | StoreGroup))
    return found
