"""Bank conflicts of threadgroup memory, and the swizzle that avoids them.

Memory is 32 banks of 4-byte words; word w lies in bank w % 32. A simdgroup's access takes as many
turns as the busiest bank has different words to give: lanes that want the same word share it. When
lane l accesses element f(l), f affine over bits, each bank that is asked at all is asked for
equally many words: the words are an affine space of 2**rank(f's word bits) and the banks one of
2**rank(f's low five word bits). The quotient is the degree; 1 is free of conflicts.

A swizzle keeps the high bits of an element's address and XORs some of them into the low ones. Take
an exchange whose lanes write at the positions 0 to 4 of an address and read at five other
positions. Writes are free of conflicts as they are. The positions read that are bank bits already
stay; each other position is XORed into a bank bit that the reading lanes leave alone. Then the five
bits of a reading lane reach five different bank bits, plus possibly each other's, triangularly: the
rank is full. Positions are never lost, since an XOR of higher bits into lower ones can be undone.

Elements of 2 bytes share words in pairs: the bank bits of their address are 1 to 5, so where the
recipe above would take bit 0 it takes bit 5. (Bit 0 of the address only says which half of a word,
and halves of a word never conflict.)

A tile that is stored by some lanes and read by others, once each way or more (`spread`), is a
general case: S and R are the bits that lanes stand for. High bits are taken one after the other,
and each is XORed into the bank bits as a vector v. It frees both sides if v lies neither in the
span of the banks that S reaches so far, nor in that of R. Two proper subspaces never cover a space
of bits, so there is such a v: with one store and one read all conflicts go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metile_mlx.layout.affine import AffineMap
from metile_mlx.target import LANE_BITS

BANKS = 32
"""Banks of one word each."""

WORD_BYTES = 4


def rank(vectors: Iterable[int]) -> int:
    """How many of the bit vectors are independent over GF(2)."""
    basis: list[int] = []
    for vector in vectors:
        for other in basis:
            vector = min(vector, vector ^ other)
        if vector:
            basis.append(vector)
    return len(basis)


def conflicts(addresses: AffineMap, element_bytes: int) -> int:
    """Turns that one access of a simdgroup takes, whose lane is the low bits of the argument.

    Args:
        addresses: slot -> element.
        element_bytes: 2 or 4.
    """
    return _turns(addresses.columns[:LANE_BITS], element_bytes)


def _turns(lanes: Sequence[int], element_bytes: int) -> int:
    """Of the addresses that the lane bits have as images."""
    narrow = (WORD_BYTES // element_bytes).bit_length() - 1
    words = [lane >> narrow for lane in lanes]
    return 1 << rank(words) - rank(word & (BANKS - 1) for word in words)


def spread(bits: int, accesses: Iterable[Sequence[int]], element_bytes: int) -> AffineMap:
    """Where each element of a tile lies, so that accesses of it conflict as little as can be.

    High bits are XORed into the bank bits; an element stays in its row of 32 words. Of two accesses
    none conflicts where lanes stand for bits of the element's number.

    Args:
        bits: of an element's number.
        accesses: of each, the element that each lane bit stands for, as a number (0: for none).
        element_bytes: 2 or 4.
    """
    wanted = [tuple(lanes) for lanes in accesses]
    narrow = (WORD_BYTES // element_bytes).bit_length() - 1
    columns = [1 << bit for bit in range(bits)]
    vectors = sorted(range(BANKS), key=lambda vector: (vector.bit_count(), vector))
    for high in range(LANE_BITS + narrow, bits):
        if not any(lane >> high & 1 for lanes in wanted for lane in lanes):
            continue

        def turns(vector: int, high: int = high) -> int:
            tried = AffineMap((*columns[:high], 1 << high | vector << narrow, *columns[high + 1 :]))
            return sum(_turns([tried(lane) for lane in lanes], element_bytes) for lanes in wanted)

        columns[high] |= min(vectors, key=turns) << narrow
    return AffineMap(tuple(columns))


def swizzle(bits: int, reads: Sequence[int], element_bytes: int) -> AffineMap:
    """The map of addresses that keeps writes at bits 0 to 4 free of conflicts, and makes reads so.

    Args:
        bits: of an address.
        reads: the address bit of each lane bit of the readers.
        element_bytes: 2 or 4.
    """
    columns = [1 << bit for bit in range(bits)]
    if _turns([columns[bit] for bit in reads], element_bytes) == 1:
        return AffineMap(tuple(columns))
    outside = sorted(bit for bit in reads if bit >= LANE_BITS)
    free = [bit for bit in range(LANE_BITS) if bit not in reads]
    if element_bytes < WORD_BYTES and 0 in free:
        free[0] = LANE_BITS
        if LANE_BITS in outside:
            outside.remove(LANE_BITS)
            del free[0]
    for high, low in zip(outside, free, strict=True):
        columns[high] |= 1 << low
    return AffineMap(tuple(columns))
