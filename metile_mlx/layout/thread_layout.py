"""`ThreadLayout`: which thread and register slot holds each element of a tile (SPEC L1-L6)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import SupportsIndex, overload

from metile_mlx.errors import LayoutError
from metile_mlx.layout import show
from metile_mlx.layout.affine import AffineMap, Indices, Int, IntArray, as_index, as_int
from metile_mlx.target import MAX_THREADS, MAX_TILE, SIMD_WIDTH

ELEMENTS_PER_THREAD = (1, 2, 4, 8, 16, 32)
"""How many elements one thread may hold (SPEC L4)."""

LARGER_RANGE = "cover a larger range with more programs (a larger grid)"


@dataclass(frozen=True, init=False, repr=False)
class ThreadLayout:
    """A bijection from (thread, register slot) to the elements of a one-dimensional tile.

    With T threads, the physical slot of a value is p = thread + register * T: thread bits first,
    register bits above. Bit b of the element is bit `bit_order[b]` of p; the whole is then XORed
    with `xor_mask`. Immutable, hashable, equal by value (SPEC L1).

        >>> transposed = ThreadLayout((3, 4, 5, 0, 1, 2))     # an 8 by 8 tile by columns
        >>> transposed.logical_index(1), transposed.owner(8)
        (8, 1)

    Args:
        bit_order: a permutation of the slot's bits; 2**len(bit_order) elements in all.
        xor_mask: constant XORed to the element index, 0 <= xor_mask < size.
        elements_per_thread: register slots of a thread: 1, 2, 4, 8, 16 or 32.

    Raises:
        LayoutError: a rule of SPEC L4 is broken; names the value and the rule.
    """

    bit_order: tuple[int, ...]
    xor_mask: int
    elements_per_thread: int

    def __init__(
        self,
        bit_order: Iterable[SupportsIndex],
        xor_mask: SupportsIndex = 0,
        elements_per_thread: SupportsIndex = 1,
    ) -> None:
        order = _checked_order(bit_order)
        registers = _checked_registers(elements_per_thread)
        _check_threads(1 << len(order), registers)
        mask = as_int(xor_mask, "[ThreadLayout] xor_mask")
        if not 0 <= mask < 1 << len(order):
            raise LayoutError(
                f"[ThreadLayout] xor_mask must be in 0..{(1 << len(order)) - 1} for "
                f"{1 << len(order)} elements, got {mask}",
                hint="the mask flips bits of the element index; it has no bits above them",
            )
        object.__setattr__(self, "bit_order", order)
        object.__setattr__(self, "xor_mask", mask)
        object.__setattr__(self, "elements_per_thread", registers)

    @classmethod
    def identity(cls, size: SupportsIndex, elements_per_thread: SupportsIndex = 1) -> ThreadLayout:
        """Thread t holds elements t, t + T, t + 2T, ... of `size` elements (SPEC L3).

        Raises:
            LayoutError: `size` is not a power of two, or another rule of SPEC L4 is broken.
        """
        count = as_int(size, "[ThreadLayout.identity] size")
        if count < 1 or count & (count - 1):
            above = max(1 << max(count, 1).bit_length(), SIMD_WIDTH)
            use = f"use {above} and let bounds or a mask drop what is not needed"
            raise LayoutError(
                f"[ThreadLayout.identity] size must be a power of two, got {count}",
                hint=use if above <= MAX_TILE else LARGER_RANGE,
            )
        return cls(range(count.bit_length() - 1), 0, elements_per_thread)

    @classmethod
    def of_loop(cls, size: int, elements_per_thread: int) -> ThreadLayout:
        """As `identity`, on as many threads as that takes: on a CPU they are turns of a loop."""
        made: ThreadLayout = object.__new__(cls)
        object.__setattr__(made, "bit_order", tuple(range(size.bit_length() - 1)))
        object.__setattr__(made, "xor_mask", 0)
        object.__setattr__(made, "elements_per_thread", elements_per_thread)
        return made

    @classmethod
    def grouped(
        cls, columns: int, elements_per_thread: int, neighbours: int = 4, rows: int = 1
    ) -> ThreadLayout:
        """Each thread holds groups of neighbours; the groups of a row lie side by side (SPEC V1).

        Args:
            columns: elements of a row, a power of two.
            elements_per_thread: of one row; each row has threads of its own.
            neighbours: elements of a group: 1 is the layout of `identity`.
            rows: how many follow each other in the tile.

        Raises:
            LayoutError: not powers of two, groups larger than what a thread holds, or another rule
                of SPEC L4 is broken.
        """
        given = {
            "columns": as_int(columns, "[ThreadLayout.grouped] columns"),
            "elements_per_thread": as_int(elements_per_thread, "[ThreadLayout.grouped] elements"),
            "neighbours": as_int(neighbours, "[ThreadLayout.grouped] neighbours"),
            "rows": as_int(rows, "[ThreadLayout.grouped] rows"),
        }
        for name, count in given.items():
            if count < 1 or count & (count - 1):
                raise LayoutError(
                    f"[ThreadLayout.grouped] {name} must be a power of two, got {count}"
                )
        if not neighbours <= elements_per_thread <= columns:
            raise LayoutError(
                f"[ThreadLayout.grouped] {neighbours} neighbours, {elements_per_thread} elements "
                f"per thread and {columns} columns: expected none larger than the next",
                hint="a thread holds whole groups, and a row has a thread at least",
            )
        bits, group, own, many = (
            number.bit_length() - 1
            for number in (columns, neighbours, columns // elements_per_thread, rows)
        )
        threads = own + many
        inner = range(threads, threads + group)
        row = (*inner, *range(own), *range(inner.stop, bits + many))
        return cls((*row, *range(own, threads)), 0, elements_per_thread)

    @property
    def size(self) -> int:
        """Number of elements of the tile."""
        return 1 << len(self.bit_order)

    @property
    def thread_count(self) -> int:
        """Number of threads that hold the tile."""
        return self.size // self.elements_per_thread

    @cached_property
    def map(self) -> AffineMap:
        """Physical slot (thread + register * thread_count) -> element, as algebra (SPEC L5)."""
        return AffineMap.from_bit_order(self.bit_order, self.xor_mask)

    @cached_property
    def slot_map(self) -> AffineMap:
        """Element -> physical slot: the inverse of `map`."""
        return self.map.inverse()

    @overload
    def logical_index(self, thread: Int, register: Int = 0) -> int: ...
    @overload
    def logical_index(self, thread: IntArray, register: Int | IntArray = 0) -> Indices: ...
    @overload
    def logical_index(self, thread: Int | IntArray, register: IntArray) -> Indices: ...
    def logical_index(self, thread: Int | IntArray, register: Int | IntArray = 0) -> int | Indices:
        """The element held by `thread` in slot `register`; integers or integer arrays (SPEC L2).

        Raises:
            LayoutError: a thread or register outside its range.
        """
        t = as_index(thread, self.thread_count, "[ThreadLayout.logical_index] thread")
        r = as_index(register, self.elements_per_thread, "[ThreadLayout.logical_index] register")
        return self.map.apply(t + r * self.thread_count)

    @overload
    def owner(self, index: IntArray) -> Indices: ...
    @overload
    def owner(self, index: Int) -> int: ...
    def owner(self, index: Int | IntArray) -> int | Indices:
        """The thread that holds element `index`; an integer or an integer array (SPEC L2).

        Raises:
            LayoutError: an index outside 0 <= index < size.
        """
        element = as_index(index, self.size, "[ThreadLayout.owner] index")
        return self.slot_map.apply(element) % self.thread_count

    @overload
    def register(self, index: IntArray) -> Indices: ...
    @overload
    def register(self, index: Int) -> int: ...
    def register(self, index: Int | IntArray) -> int | Indices:
        """The register slot in which its owner holds element `index` (SPEC L2).

        Raises:
            LayoutError: an index outside 0 <= index < size.
        """
        element = as_index(index, self.size, "[ThreadLayout.register] index")
        return self.slot_map.apply(element) // self.thread_count

    def table(self, width: int | None = None) -> str:
        """Ownership as text, `thread.register` per element, in lines of at most `width` columns.

        Args:
            width: columns, at least 20; the terminal's when None.

        Raises:
            LayoutError: a width below 20.
        """
        return show.table(self, width)

    def svg(self) -> str:
        """Ownership as a standalone SVG drawing: a cell per element, coloured by simdgroup."""
        return show.svg(self)

    def __repr__(self) -> str:
        extra = f", xor_mask={self.xor_mask}" if self.xor_mask else ""
        if self.elements_per_thread != 1:
            extra += f", elements_per_thread={self.elements_per_thread}"
        return f"ThreadLayout({self.bit_order}{extra})"


def transition(source: ThreadLayout, destination: ThreadLayout) -> AffineMap:
    """Destination slot -> the source slot that holds the same element (SPEC C1, L5).

    The algebra behind every conversion: the thread that is to hold an element asks this map where
    the element is now.

    Raises:
        LayoutError: the layouts differ in size or in thread count.
    """
    if (source.size, source.thread_count) != (destination.size, destination.thread_count):
        raise LayoutError(
            f"[transition] both layouts must have the same elements and threads, got "
            f"{source} with {source.size} on {source.thread_count} and "
            f"{destination} with {destination.size} on {destination.thread_count}",
            hint="one kernel has one tile size and one elements_per_thread",
        )
    return source.slot_map.after(destination.map)


def parse(text: str) -> ThreadLayout:
    """A layout from a command line: `"3,4,5,0,1,2"`, `"8,9,0,1,2,3,4,5,6,7 xor=5 registers=4"`.

    The bit order comes first; `xor=` (decimal or 0x...) and `registers=` (elements per thread) may
    follow, separated by spaces.

    Raises:
        LayoutError: text of another form, or a layout that breaks a rule of SPEC L4.
    """
    match = re.fullmatch(
        r"\s*(\d+(?:\s*,\s*\d+)*)(?:\s+xor=(0[xX][0-9a-fA-F]+|\d+))?(?:\s+registers=(\d+))?\s*",
        text,
        re.ASCII,
    )
    if match is None:
        raise LayoutError(
            f"[layout] cannot read {text!r} as a layout",
            hint='write the bit order, then options: "3,4,5,0,1,2 xor=5 registers=2"',
        )
    order, mask, registers = match.groups(default="")
    return ThreadLayout(
        [int(bit) for bit in order.split(",")],
        int(mask, 16 if mask[:2].lower() == "0x" else 10) if mask else 0,
        int(registers) if registers else 1,
    )


def _checked_order(bit_order: Iterable[SupportsIndex]) -> tuple[int, ...]:
    if isinstance(bit_order, (str, bytes)) or not isinstance(bit_order, Iterable):
        raise LayoutError(
            f"[ThreadLayout] bit_order must be a sequence of integers, got {bit_order!r}",
            hint="ThreadLayout((0, 1, 2, 3, 4)) is the identity on 32 threads; for a size, use "
            "ThreadLayout.identity(32)",
        )
    order = tuple(
        as_int(bit, f"[ThreadLayout] bit_order[{position}]")
        for position, bit in enumerate(bit_order)
    )
    if 1 << len(order) > MAX_TILE:
        raise LayoutError(
            f"[ThreadLayout] a tile has at most {MAX_TILE} elements "
            f"({MAX_TILE.bit_length() - 1} bits), got a bit_order of {len(order)} bits",
            hint=LARGER_RANGE,
        )
    if sorted(order) != list(range(len(order))):
        raise LayoutError(
            f"[ThreadLayout] bit_order must be a permutation of 0..{len(order) - 1}, got {order}: "
            + _faults(order),
            hint=f"name each of the {len(order)} slot bits exactly once",
        )
    return order


def _faults(order: tuple[int, ...]) -> str:
    """What keeps `order` from being a permutation, for its error."""
    count = Counter(order)
    faults = {
        "missing": [bit for bit in range(len(order)) if bit not in count],
        "repeated": [bit for bit in sorted(count) if count[bit] > 1],
        "out of range": [bit for bit in sorted(count) if not 0 <= bit < len(order)],
    }
    return ", ".join(
        f"{' and '.join(map(str, bits))} {fault}" for fault, bits in faults.items() if bits
    )


def _checked_registers(elements_per_thread: SupportsIndex) -> int:
    registers = as_int(elements_per_thread, "[ThreadLayout] elements_per_thread")
    if registers not in ELEMENTS_PER_THREAD:
        raise LayoutError(
            f"[ThreadLayout] elements_per_thread must be 1, 2, 4, 8, 16 or 32, got {registers}",
            hint="a thread holds a power of two of elements, 32 at most",
        )
    return registers


def _check_threads(size: int, registers: int) -> None:
    threads = size // registers
    if threads < SIMD_WIDTH:
        raise LayoutError(
            f"[ThreadLayout] a layout has {SIMD_WIDTH} to {MAX_THREADS} threads, got {threads} "
            f"({size} elements, {registers} per thread)",
            hint=f"use at least {SIMD_WIDTH * registers} elements, or fewer per thread",
        )
    if threads > MAX_THREADS:
        raise LayoutError(
            f"[ThreadLayout] a layout has {SIMD_WIDTH} to {MAX_THREADS} threads, got {threads} "
            f"({size} elements, {registers} per thread)",
            hint=f"use elements_per_thread={size // MAX_THREADS} or more",
        )
