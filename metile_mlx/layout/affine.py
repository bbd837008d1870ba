"""Affine maps on the bits of an index: the algebra under every thread layout (SPEC L5).

The idea
--------
An index below 2**n is a column of n bits. Read those bits as numbers modulo two, where adding is
XOR and multiplying is AND, and a rearrangement of a tile becomes linear algebra:

    f(x) = A x XOR c        A: an n by n matrix of bits, c: a constant

Column b of A is the image of the index 1 << b, so a map is n integers and one more. Applying it is
the XOR of the columns picked out by the bits of x: f(x XOR y) XOR c == f(x) XOR f(y). Two facts
make this worth having. The composition of two such maps is one again, and the inverse of a
bijective one is found by Gaussian elimination. "Which slot feeds which" is then a product of two
matrices, and no pass ever enumerates the elements of a tile.

A worked example
----------------
Transpose the ownership of an 8 by 8 tile on 64 threads, thread t = 8 r + c owning element 8 c + r.
The three low bits of the thread (c) become the high bits of the element, and the reverse, so the
columns are

    thread bit   0   1   2   3   4   5
    element      8  16  32   1   2   4

and thread 11 = 0b001011 owns 8 ^ 16 ^ 1 = 25, which is row 3, column 1. `from_bit_order` says the
same from the side of the result: element bits 0, 1, 2, 3, 4, 5 are thread bits 3, 4, 5, 0, 1, 2.

A tile that thread t holds as element t (the identity I) now goes to those owners (the transpose T).
The thread at slot p must receive element T(p); the one holding it is inverse(I)(T(p)). Hence

    source slot = (inverse(source) @ destination)(destination slot)

Here that is T itself. Bit 5 of the source comes from bit 2 of the destination, so the exchange
crosses simdgroups (bits 5 and up number them), and T.preserves_bits_from(5) is False: the values
travel through threadgroup memory. When it is True every thread finds its value within its own 32
lanes and a shuffle does.

Why physical -> logical
-----------------------
A layout maps the slot (thread, register) to the element it holds, not the reverse. Generated code
runs in a thread that knows its slot and needs the address of its element. A slot holds one element,
so this direction is always a function; were one element held by several slots, the reverse would
not be. It is also the direction in which register bits are plain constants: only the columns of
thread bits cost instructions.

What it cannot do
-----------------
Sizes that are not powers of two, rotations and every other carry between bits (x + 1 is not linear
over bits), and, since the matrices are square, elements held twice or not at all. Ragged tiles are
masked instead: the map covers the next power of two, the bounds check drops the rest. General
matrices are allowed here, because a bank swizzle (low bits XOR high bits) is one; a `ThreadLayout`
builds only bit permutations with a constant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from metile_mlx.errors import LayoutError

Int: TypeAlias = "int | np.integer[Any]"
IntArray: TypeAlias = "NDArray[np.integer[Any]]"
Indices: TypeAlias = "NDArray[np.int64]"


def as_int(value: object, name: str) -> int:
    """`value` as a Python int. A bool or anything else is a `LayoutError` that calls it `name`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise LayoutError(f"{name} must be an integer, got {value!r}")
    return int(value)


@overload
def as_index(value: IntArray, size: int, name: str) -> Indices: ...
@overload
def as_index(value: Int, size: int, name: str) -> int: ...
@overload
def as_index(value: Int | IntArray, size: int, name: str) -> int | Indices: ...
def as_index(value: Int | IntArray, size: int, name: str) -> int | Indices:
    """`value` checked to lie in 0 <= value < size: an int, or an int64 copy of an integer array.

    Raises:
        LayoutError: not an integer (bool included), or out of range; names the first such value.
    """
    if not isinstance(value, np.ndarray):
        index = as_int(value, name)
        if not 0 <= index < size:
            raise LayoutError(f"{name} must be in 0..{size - 1}, got {index}")
        return index
    if value.dtype.kind not in "iu":
        raise LayoutError(f"{name} must be an array of integers, got dtype {value.dtype}")
    outside = value[(value < 0) | (value >= size)]
    if outside.size:
        raise LayoutError(f"{name} must be in 0..{size - 1}, got {outside.flat[0]}")
    return value.astype(np.int64)


@dataclass(frozen=True)
class AffineMap:
    """x -> (XOR of `columns[b]` over the bits b set in x) XOR `constant`; indices of `bits` bits.

    Args:
        columns: image of each index bit under the linear part, lowest bit first.
        constant: image of 0.

    Raises:
        LayoutError: a column or the constant does not fit into `len(columns)` bits.
    """

    columns: tuple[int, ...]
    constant: int = 0

    def __post_init__(self) -> None:
        columns = tuple(
            as_index(column, self.size, f"[AffineMap] column {bit}")
            for bit, column in enumerate(self.columns)
        )
        object.__setattr__(self, "columns", columns)
        constant = as_index(self.constant, self.size, "[AffineMap] constant")
        object.__setattr__(self, "constant", constant)

    @classmethod
    def identity(cls, bits: int) -> AffineMap:
        """The map x -> x on indices of `bits` bits."""
        return cls(tuple(1 << bit for bit in range(bits)))

    @classmethod
    def from_bit_order(cls, bit_order: Iterable[int], constant: int = 0) -> AffineMap:
        """Bit b of the image is bit `bit_order[b]` of the argument; then XOR with `constant`.

        Raises:
            LayoutError: `bit_order` is not a permutation of 0, 1, ..., len(bit_order) - 1.
        """
        order = tuple(bit_order)
        if sorted(order) != list(range(len(order))):
            raise LayoutError(f"[AffineMap] {order} is not a permutation of 0..{len(order) - 1}")
        columns = [0] * len(order)
        for image_bit, argument_bit in enumerate(order):
            columns[argument_bit] = 1 << image_bit
        return cls(tuple(columns), constant)

    @property
    def bits(self) -> int:
        """Number of index bits."""
        return len(self.columns)

    @property
    def size(self) -> int:
        """Number of indices, 2**bits."""
        return 1 << len(self.columns)

    @overload
    def apply(self, x: IntArray) -> Indices: ...
    @overload
    def apply(self, x: Int) -> int: ...
    @overload
    def apply(self, x: Int | IntArray) -> int | Indices: ...
    def apply(self, x: Int | IntArray) -> int | Indices:
        """The image of an integer, or of every element of an integer array (as int64, same shape).

        Raises:
            LayoutError: an argument outside 0 <= x < size.
        """
        index = as_index(x, self.size, "[AffineMap.apply] x")
        if isinstance(index, int):
            return self._linear(index) ^ self.constant
        image = np.full(index.shape, self.constant, np.int64)
        for bit, column in enumerate(self.columns):
            image ^= ((index >> bit) & 1) * column
        return image

    __call__ = apply

    def after(self, first: AffineMap) -> AffineMap:
        """The composition x -> self(first(x)): `first` is applied first. Also `self @ first`.

        Raises:
            LayoutError: the two maps have different numbers of bits.
        """
        if self.bits != first.bits:
            raise LayoutError(
                f"[AffineMap.after] both maps must have one width, got {self.bits} bits after "
                f"{first.bits} bits"
            )
        columns = tuple(self._linear(column) for column in first.columns)
        return AffineMap(columns, self._linear(first.constant) ^ self.constant)

    __matmul__ = after

    def inverse(self) -> AffineMap:
        """The map that undoes this one, by Gaussian elimination over GF(2).

        Raises:
            LayoutError: the map is not bijective.
        """
        # Rows of (image, argument): eliminating the images to unit vectors leaves the inverse.
        rows = [(column, 1 << bit) for bit, column in enumerate(self.columns)]
        for bit in range(self.bits):
            pivot = next((r for r in range(bit, self.bits) if rows[r][0] >> bit & 1), None)
            if pivot is None:
                raise LayoutError(
                    f"[AffineMap.inverse] {self} is singular: its columns are dependent (no pivot "
                    f"for bit {bit}), so two indices share an image"
                )
            rows[bit], rows[pivot] = rows[pivot], rows[bit]
            image, argument = rows[bit]
            for r in range(self.bits):
                if r != bit and rows[r][0] >> bit & 1:
                    rows[r] = (rows[r][0] ^ image, rows[r][1] ^ argument)
        undo = AffineMap(tuple(argument for _, argument in rows))
        return AffineMap(undo.columns, undo._linear(self.constant))

    @property
    def is_identity(self) -> bool:
        """Whether every index maps to itself."""
        return self.preserves_bits_from(0)

    @property
    def is_permutation(self) -> bool:
        """Whether the linear part only moves bits (every column one bit, no two the same)."""
        return sorted(self.columns) == [1 << bit for bit in range(self.bits)]

    @property
    def bit_order(self) -> tuple[int, ...]:
        """The argument of `from_bit_order` that builds this map's linear part.

        Raises:
            LayoutError: the linear part is not a bit permutation.
        """
        if not self.is_permutation:
            raise LayoutError(f"[AffineMap.bit_order] {self} mixes bits, it doesn't permute them")
        return tuple(self.columns.index(1 << bit) for bit in range(self.bits))

    def preserves_bits_from(self, bit: int) -> bool:
        """Whether bits `bit` and up of the image equal those of the argument, for every argument.

        With `bit` = 5 on a transition of one-value layouts: source and destination simdgroup agree.
        """
        return self.constant >> bit == 0 and all(
            column >> bit == (1 << b) >> bit for b, column in enumerate(self.columns)
        )

    def splits_at(self, bit: int) -> bool:
        """Whether the bits below `bit` and those from it on map among themselves only."""
        below = (1 << bit) - 1
        return all(
            column >> bit == 0 if b < bit else column & below == 0
            for b, column in enumerate(self.columns)
        )

    def low(self, bit: int) -> AffineMap:
        """The part of the map on the bits below `bit`: image % 2**bit as a function of x % 2**bit.

        Raises:
            LayoutError: the map doesn't split there (see `splits_at`), or has fewer bits.
        """
        if not 0 <= bit <= self.bits or not self.splits_at(bit):
            raise LayoutError(f"[AffineMap.low] {self} doesn't split at bit {bit}")
        return AffineMap(self.columns[:bit], self.constant & ((1 << bit) - 1))

    def _linear(self, x: int) -> int:
        image = 0
        for bit, column in enumerate(self.columns):
            if x >> bit & 1:
                image ^= column
        return image
