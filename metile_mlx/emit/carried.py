"""Which of what loops carry may be overwritten as soon as the next value is made (SPEC X4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metile_mlx.emit.segments import Part, crosses_lanes, phases_of, reads
from metile_mlx.emit.thread_tables import is_uniform
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.loops import ThreadFor


class Reading:
    """Where ops read, by the number of their segment in the order in which segments run.

    Args:
        parts: of a kernel.
        defined: the op that makes each value.
        begins: of ops that write their results before they make them, the op that does.
    """

    def __init__(
        self, parts: Iterable[Part], defined: Mapping[Value, Op], begins: Mapping[Op, Op]
    ) -> None:
        segments = (segment for phase in phases_of(parts) for segment in phase.segments)
        self._places = {
            item: number for number, segment in enumerate(segments) for item in segment.assigned
        }
        self._defined = defined
        self._begins = begins

    def replace(self, item: Op, others: Iterable[Op]) -> None:
        """`others` stand where `item` stood."""
        place = self._places.pop(item)
        self._places.update((other, place) for other in others)

    def ends_before(self, arg: Value, value: Value, loop: ThreadFor) -> bool:
        """Whether no segment reads `arg` behind the one that makes its next value, in the loop.

        That one writes it at its end. An exchange between lanes reads what lanes before have
        written there: it belongs to an earlier segment. Integer work is computed again, whoever
        knows where.
        """
        maker = self._defined.get(value)
        if maker is None or maker not in loop.body.ops:
            return False
        maker = self._begins.get(maker, maker)
        if maker not in self._places:
            return False
        if is_uniform(value) or not element(arg).is_float:
            return False
        here = self._places[maker]
        return all(
            place < here if crosses_lanes(item) else place <= here
            for item, place in self._places.items()
            if arg in reads(item)
        )
