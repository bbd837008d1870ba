"""The layouts of matrix products: fragments of 8 by 8, and tiles made of them (SPEC K6, P1).

A simdgroup multiplies matrices of 8 by 8 elements, two neighbours of a row in each lane. Which lane
holds which is the order that MLX's own kernels (steel/gemm/mma.h, BaseMMAFrag) assume of
`thread_elements()`:

    row     = bits (lane 1, lane 2, lane 4), lowest first
    column  = bits (register 0, lane 0, lane 3)

That is a permutation of bits, so a tile of fragments has an ordinary layout: bits of the simdgroup
choose blocks of fragments, bits of the register fragments within a block. The left operand of a
product needs the rows of its simdgroup and every column, whatever the columns of the simdgroup:
bits that choose those choose nothing in it. The right operand, likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

from metile_mlx.errors import UnsupportedError
from metile_mlx.layout.operand import OperandLayout
from metile_mlx.layout.thread_layout import ELEMENTS_PER_THREAD, ThreadLayout
from metile_mlx.target import LANE_BITS, MAX_THREADS, SIMD_WIDTH

EDGE = 8
"""Rows and columns of a fragment."""

MAX_EDGE = 128
"""Rows or columns of a tile of a product (SPEC K6)."""

MAX_REGISTERS = ELEMENTS_PER_THREAD[-1]
"""Values of one tile in one thread (SPEC L4)."""

_COLUMN_LANES, _ROW_LANES = (0, 3), (1, 2, 4)
_EDGE_BITS = 3


@dataclass(frozen=True)
class Product:
    """A product of an M by K and a K by N tile on so many simdgroups.

    Attributes:
        rows, columns, depth: M, N and K, powers of two.
        simdgroups_m, simdgroups_n: blocks of rows and of columns, one simdgroup for each pair.
    """

    rows: int
    columns: int
    depth: int
    simdgroups_m: int
    simdgroups_n: int

    @property
    def threads(self) -> int:
        return self.simdgroups_m * self.simdgroups_n * SIMD_WIDTH

    @property
    def accumulator(self) -> ThreadLayout:
        """Owners of the M by N result: each element once."""
        found = self._tile(self.rows, self.columns, self.simdgroups_m, self.simdgroups_n, 0)
        order = [0] * len(found.columns)
        for bit, column in enumerate(found.columns):
            order[column.bit_length() - 1] = bit
        return ThreadLayout(order, elements_per_thread=found.elements_per_thread)

    @property
    def left(self) -> OperandLayout:
        """Owners of the M by K operand."""
        return self._tile(self.rows, self.depth, self.simdgroups_m, 1, _bits(self.simdgroups_n))

    @property
    def right(self) -> OperandLayout:
        """Owners of the K by N operand."""
        return self._tile(self.depth, self.columns, 1, self.simdgroups_n, 0)

    def _tile(
        self, rows: int, columns: int, groups_m: int, groups_n: int, below: int
    ) -> OperandLayout:
        """Fragments of rows by columns; simdgroup bits choose rows and columns, n below m.

        `below`: bits of the simdgroup, lowest first, that choose nothing.
        """
        width, height = _bits(columns), _bits(rows)
        lanes = [0] * LANE_BITS
        for bit, lane in enumerate(_COLUMN_LANES, start=1):
            lanes[lane] = 1 << bit
        for bit, lane in enumerate(_ROW_LANES):
            lanes[lane] = 1 << (width + bit)
        top_n = range(width - _bits(groups_n), width)
        top_m = range(height - _bits(groups_m), height)
        groups = [0] * below + [1 << b for b in top_n] + [1 << (width + b) for b in top_m]
        groups += [0] * (_bits(self.threads) - LANE_BITS - len(groups))
        registers = [1]
        registers += [1 << b for b in range(_EDGE_BITS, top_n.start)]
        registers += [1 << (width + b) for b in range(_EDGE_BITS, top_m.start)]
        return OperandLayout((*lanes, *groups, *registers), 1 << len(registers))

    def fragment(self, operand: str, row: int, column: int) -> int:
        """The first register slot of a fragment: of `left`, `right` or `accumulator`.

        `row` and `column` count the fragments of one simdgroup. The second slot is the next one.
        """
        across = {
            "left": self.depth // EDGE,
            "right": self.columns // EDGE // self.simdgroups_n,
            "accumulator": self.columns // EDGE // self.simdgroups_n,
        }[operand]
        return 2 * (row * across + column)


def product_of(shape: tuple[int, int, int], threads: int) -> Product:
    """How so many threads share a product of shape (M, N, K)."""
    return _split(*shape, threads // SIMD_WIDTH)


def products(
    shapes: list[tuple[int, int, int]], smallest: int, preferred: int | None = None
) -> list[Product]:
    """How the simdgroups of a kernel share each of its products (M, N, K).

    As many as keep all accumulators in 32 registers, at least 4 where there is work for them; never
    more threads than the smallest tile has elements.

    Args:
        shapes: of the products of one kernel.
        smallest: elements of the smallest tile in the kernel.
        preferred: simdgroups, where that is possible.

    Raises:
        UnsupportedError: no number of threads serves all products.
    """
    least = max(-(-rows * columns // (MAX_REGISTERS * SIMD_WIDTH)) for rows, columns, _ in shapes)
    most = min(
        MAX_THREADS // SIMD_WIDTH,
        smallest // SIMD_WIDTH,
        *(rows * columns // (EDGE * EDGE) for rows, columns, _ in shapes),
    )
    if least > most:
        raise UnsupportedError(
            f"[dot] tiles of {shapes} need {least} simdgroups for their accumulators, and the "
            f"smallest tile, of {smallest} elements, has work for {most}",
            hint="use a larger depth (K) of the tiles, or fewer rows and columns",
        )
    simdgroups = max(least, min(most, preferred or 4))
    return [_split(*shape, simdgroups) for shape in shapes]


def _split(rows: int, columns: int, depth: int, simdgroups: int) -> Product:
    """Blocks as square as possible."""
    found = []
    for m in (1 << bit for bit in range(_bits(simdgroups) + 1)):
        n = simdgroups // m
        if m <= rows // EDGE and n <= columns // EDGE:
            found.append((abs(rows // m - columns // n), m, n))
    _, m, n = min(found)
    return Product(rows, columns, depth, m, n)


def copy_layout(shape: tuple[int, int], threads: int, along: int) -> ThreadLayout:
    """Owners of a tile that all threads copy together: up to four neighbours along an axis each.

    Args:
        shape: rows and columns.
        threads: at most as many as the tile has elements.
        along: the axis along which neighbours lie side by side in memory.
    """
    width = _bits(shape[1])
    bits = list(range(width + _bits(shape[0])))
    if along == 0:
        bits = bits[width:] + bits[:width]
    own = len(bits) - _bits(threads)
    near = min(own, 2, _bits(shape[along]))
    logical = [*bits[near : near + _bits(threads)], *bits[:near], *bits[near + _bits(threads) :]]
    order = [0] * len(bits)
    for physical, bit in enumerate(logical):
        order[bit] = physical
    return ThreadLayout(order, elements_per_thread=1 << own)


def _bits(count: int) -> int:
    return count.bit_length() - 1
