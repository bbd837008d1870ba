"""Sets of offsets in an array that several views share, and what two of them are together.

A region is every offset base + i_0 * stride_0 + i_1 * stride_1 + ... with 0 <= i_d < extent_d. Two
dimensions are one where the second starts anew no later than the first ends, so views of different
shapes have one form:

    strides (1009, 504, 1), extents (n, 2, 504)  is  strides (1009, 1), extents (n, 1008)
    strides (1009, 1, 2),   extents (n, 2, 504)  is  the same

Two regions that differ along one stride alone, of which the second starts no later there than the
first ends, are together one region: that and the last column are strides (1009, 1), extents
(n, 1009), which is every offset below 1009 * n.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Region:
    """`sides` are pairs (stride, extent), strides rising, extents 2 or more."""

    base: int
    sides: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, base: int, sides: Iterable[tuple[int, int]]) -> Region:
        """The region of sides in any order; extents are at least 1, strides not negative."""
        found: list[tuple[int, int]] = []
        for stride, extent in sorted(side for side in sides if side[0] > 0 and side[1] > 1):
            if found:
                finer, many = found[-1]
                if stride % finer == 0 and stride // finer <= many:
                    found[-1] = finer, stride // finer * (extent - 1) + many
                    continue
            found.append((stride, extent))
        return cls(base, tuple(found))

    def is_all(self, size: int) -> bool:
        """Whether it is exactly 0, 1, ... size - 1."""
        return self == Region.of(0, [(1, size)])

    def joined(self, other: Region) -> Region | None:
        """Exactly the offsets of both; None where these are not seen to be one region."""
        first, second = sorted((self, other), key=lambda region: region.base)
        here, there = dict(first.sides), dict(second.sides)
        apart = second.base - first.base
        differing = [s for s in {**here, **there} if here.get(s, 1) != there.get(s, 1)]
        if len(differing) > 1:
            return None
        # Equal ones may follow each other along any stride, one that neither has included.
        for stride in differing or [*here, apart]:
            many = here.get(stride, 1)
            ahead, rest = divmod(apart, stride) if stride else (0, apart)
            if not rest and ahead <= many:
                here[stride] = max(many, ahead + there.get(stride, 1))
                return Region.of(first.base, here.items())
        return None


def joined(regions: Iterable[Region]) -> tuple[Region, ...]:
    """As few regions as joining them two by two gives."""
    left = list(dict.fromkeys(regions))
    while (pair := _neighbours(left)) is not None:
        one, other, both = pair
        left = [both, *(region for region in left if region not in (one, other, both))]
    return tuple(left)


def _neighbours(regions: Sequence[Region]) -> tuple[Region, Region, Region] | None:
    for number, one in enumerate(regions):
        for other in regions[number + 1 :]:
            both = one.joined(other)
            if both is not None:
                return one, other, both
    return None
