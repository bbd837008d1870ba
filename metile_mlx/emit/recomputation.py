"""Work on the thread index that each loop over threads does again sooner than keep it (X4)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping

from metile_mlx.emit.segments import crosses_lanes, reads
from metile_mlx.emit.thread_tables import ThreadTables, is_cheap, is_uniform
from metile_mlx.ir.core import Func, Op, Value, walk
from metile_mlx.ir.metal import Load, Shuffle, ThreadgroupLoad
from metile_mlx.ir.types import ScalarType
from metile_mlx.layout.affine import AffineMap


class Recomputation:
    """What of a kernel is computed again where it is used, and what below it is not.

    Args:
        func: the kernel at Stage.THREAD.
        defined: the op that makes each value.
        order: the place of each op in the program; may be filled in later.
    """

    def __init__(self, func: Func, defined: Mapping[Value, Op], order: Mapping[Op, int]) -> None:
        self.tables = ThreadTables(func.threads, defined)
        self._defined = defined
        self._order = order
        every = list(walk(func.body))
        across = [item for item in every if crosses_lanes(item)]
        self._moved = {item.src for item in across if not is_uniform(item.src)}
        self._lanes = {item.lane for item in every if isinstance(item, Shuffle)}

    def covers(self, item: Op) -> bool:
        """Whether the op is computed again."""
        return is_cheap(item) and not is_uniform(item.result) and item.result not in self._moved

    def leaves(self, values: Iterable[Value]) -> Iterator[Value]:
        """Permutations of the thread index, and values that are not computed again, below
        `values`."""
        for value in values:
            item = self._defined.get(value)
            if is_uniform(value):
                continue
            # A value that a loop carries comes from no op.
            moves = item is None or self.permutation(value) is not None
            if item is None or moves or not self.covers(item):
                yield value
            else:
                yield from self.leaves(item.operands())

    def permutation(self, value: Value) -> AffineMap | None:
        """The value as a permutation of the thread index that is not the identity."""
        if not isinstance(value.type, ScalarType) or value in self._moved:
            return None
        made = self.tables.permutation(value, value in self._lanes)
        return None if made is None or made.is_identity else made

    def is_gather(self, item: Op) -> bool:
        """Reads memory at a permutation of the thread index, and needs nothing computed in a
        loop."""
        if not isinstance(item, Load | ThreadgroupLoad | Shuffle):
            return False
        found = list(self.leaves(item.operands()))
        moved = [value for value in found if self.permutation(value) is None]
        own = item.src if isinstance(item, Shuffle) else None
        return len(moved) < len(found) and all(value is own for value in moved)

    def is_known(self, value: Value) -> bool:
        """Uniform, or computed again from uniform values and the thread index alone."""
        return not list(self.leaves([value]))

    def used(self, item: Op, inside: Container[Op]) -> set[Op]:
        """What an op needs, directly or through cheap ops: those, and ops of `inside`."""
        found: set[Op] = set()
        pending = list(reads(item))
        while pending:
            value = pending.pop()
            source = self._defined.get(value)
            if source is None or is_uniform(value) or source in found:
                continue
            if self.covers(source):
                found.add(source)
                pending += source.operands()
            elif source in inside:
                found.add(source)
        return found

    def ops(self, values: Iterable[Value]) -> list[Op]:
        """The cheap ops, in order, that compute `values` from uniform ones and the thread index."""
        needed: set[Op] = set()
        pending = [value for value in values if not is_uniform(value)]
        while pending:
            item = self._defined[pending.pop()]
            needed.add(item)
            pending += [value for value in item.operands() if not is_uniform(value)]
        return sorted(needed, key=self._order.__getitem__)
