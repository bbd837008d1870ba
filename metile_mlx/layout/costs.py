"""What a lowering of a conversion costs: the one place with weights (SPEC C6).

The unit is one instruction of a simdgroup that does nothing special, a select. The weights are
estimates for a GPU, not fitted to a measurement: they are about the order of lowerings, which the
ratios decide, and each ratio has one reason.

- SHUFFLE, ACCESS: of a simdgroup's 32 lanes the unit for shuffles and threadgroup memory takes some
  8 at a time, that for arithmetic all at once; so 4 each. A bank conflict is another such turn, so
  conflicts multiply.
- BARRIER: the time until the slowest simdgroup arrives, which depends on the kernel. With 96 the
  dearest move of 32 registers within their simdgroups still costs less (97 %) than two barriers and
  32 stores and loads, so what need not cross never takes a barrier: removing conversions counts on
  that.
- KIBIBYTE: memory costs occupancy. All 32 KiB weigh less than a barrier, so that of two lowerings
  the one with fewer rounds wins, and of equal rounds the one with less memory.
- GROUP: four accesses of device memory become one; three instructions fewer.

The same weights rank lowerings for the C++ of a CPU, where a barrier ends a loop over threads. They
decide between legal lowerings only, never whether one is legal; a test states each consequence that
matters.
"""

from __future__ import annotations

from dataclasses import dataclass

from metile_mlx.layout.thread_layout import ThreadLayout

SELECT = 1
SHUFFLE = 4
ACCESS = 4
"""Each turn of a store or load of threadgroup memory; see `banks.conflicts`."""
BARRIER = 96
KIBIBYTE = 2
GROUP = 3
"""Device accesses saved where four neighbours of a thread move as one group."""
NEIGHBOURS = 4


@dataclass(frozen=True)
class Cost:
    """What each simdgroup executes for one conversion, and what the threadgroup needs for it.

    Attributes:
        shuffles, selects: instructions.
        stores, loads: accesses of threadgroup memory.
        barriers: of the threadgroup.
        bytes: of threadgroup memory.
        write_conflicts, read_conflicts: turns that a store and a load take; 1 is conflict-free.
        grouped: groups of four neighbours that a thread holds after the conversion and did not
            before: what it is done for, where it is done for memory. The same for all lowerings.
    """

    shuffles: int = 0
    selects: int = 0
    stores: int = 0
    loads: int = 0
    barriers: int = 0
    bytes: int = 0
    write_conflicts: int = 1
    read_conflicts: int = 1
    grouped: int = 0

    @property
    def total(self) -> int:
        """The weighted sum."""
        turns = self.stores * self.write_conflicts + self.loads * self.read_conflicts
        return (
            SHUFFLE * self.shuffles
            + SELECT * self.selects
            + ACCESS * turns
            + BARRIER * self.barriers
            + KIBIBYTE * -(-self.bytes // 1024)
            - GROUP * self.grouped
        )


def groups_gained(source: ThreadLayout, destination: ThreadLayout) -> int:
    """Groups of four neighbours in a thread's registers, after less before (SPEC V1)."""
    return _groups(destination) - _groups(source)


def _groups(layout: ThreadLayout) -> int:
    first = layout.thread_count.bit_length() - 1
    whole = layout.elements_per_thread >= NEIGHBOURS and min(layout.bit_order[:2]) >= first
    return layout.elements_per_thread // NEIGHBOURS if whole else 0
