"""Which slot bits number the elements of a row: where a reduction along an axis takes place.

A tile has a power of two of elements, so each extent is one and the coordinate along an axis is a
field of bits of the flattened index. A layout permutes bits (and flips some), so that field is a
set of slot bits: register bits, lane bits and simdgroup bits, each reduced in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import LANE_BITS


@dataclass(frozen=True)
class AxisBits:
    """The bits of register, lane and simdgroup that the axis has, and those it has not.

    Each numbers the bits of its own part: lane bit 0 is thread bit 0, simdgroup bit 0 thread bit 5.
    """

    registers: tuple[int, ...]
    lanes: tuple[int, ...]
    groups: tuple[int, ...]
    other_registers: tuple[int, ...]
    other_lanes: tuple[int, ...]
    other_groups: tuple[int, ...]

    @property
    def partials(self) -> int:
        """Elements of scratch: one for each row in each simdgroup that has part of it, else 0."""
        if not self.groups:
            return 0
        others = (self.other_registers, self.other_lanes, self.other_groups)
        return 1 << len(self.groups) + sum(map(len, others))

    @property
    def exchanges(self) -> int:
        """Lane exchanges of one value, not counting what a whole simdgroup combines at once."""
        return 0 if len(self.lanes) == LANE_BITS else len(self.lanes)


def axis_bits(layout: ThreadLayout, shape: tuple[int, ...], axis: int) -> AxisBits:
    """Where the elements along `axis` of a tile of `shape` lie."""
    first = prod(shape[axis + 1 :]).bit_length() - 1
    count = shape[axis].bit_length() - 1
    held = {layout.bit_order[bit] for bit in range(first, first + count)}
    threads = layout.thread_count.bit_length() - 1
    ends = (0, LANE_BITS, threads, layout.size.bit_length() - 1)

    def part(index: int, taken: bool) -> tuple[int, ...]:
        start, end = ends[index], ends[index + 1]
        return tuple(bit - start for bit in range(start, end) if (bit in held) is taken)

    lanes, groups, registers = (part(index, True) for index in range(3))
    others = [part(index, False) for index in range(3)]
    return AxisBits(registers, lanes, groups, others[2], others[0], others[1])
