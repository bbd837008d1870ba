"""Index arithmetic as linear forms over the bits of the thread index.

The idea
--------
Almost every index a kernel computes is a number all threads share plus a sum over the bits of the
thread index:

    v  =  sum of k_i * u_i  +  c  +  sum of c_b * bit_b(thread)          modulo 2**32

with uniform values u_i and integers k_i, c and c_b. `arange` under any layout is of this kind (bit
b of the thread lands at one place, and an XOR constant turns x into 1 - x), and so is what
addition, multiplication by constants, and // and % and << >> & | ^ by powers of two make of it, as
long as no carry mixes bits. The operations in the source are one way to write v, and rarely the
shortest: this module keeps the form, and plans few operations for it where an address needs it.

A worked example
----------------
On 64 threads the kernel reads element (t // 8, t % 8) of an 8 by 8 block:

    t               bits  1  2  4  8 16 32
    t // 8                0  0  0  1  2  4
    t % 8                 1  2  4  0  0  0
    (t // 8) * 8          0  0  0  8 16 32
    the sum               1  2  4  8 16 32      which is t: no operation at all

Its transpose, (t % 8) * 8 + t // 8, has 8 16 32 1 2 4. Bits that move the same distance are one
group: (t & 7) << 3 and t >> 3, where the shift drops the low bits, so that no mask is needed. A
group whose coefficients carry an odd factor is multiplied by it; a group that may be written over
all bits, with the others corrected, saves its mask: a row pitch of 9 costs t + (t >> 3). A negative
coefficient -c is c * (1 - bit) - c: one XOR of the thread index serves all of them.

Why the two halves may be widened apart
---------------------------------------
v is an i32; an offset in 64 bits is wanted, and widening the i32 sum itself would cost every thread
an operation and hide that neighbouring threads have neighbouring offsets. Take the thread part L
with all coefficients turned positive, so 0 <= L < 2**31, and U, the uniform rest as an i32. Where
U + L fits an i32 it equals v, and the widened halves sum to v. Where it doesn't, it can only exceed
2**31 - 1: v has wrapped to a negative number, the bounds check has masked that thread off, and its
offset is never used.

What it cannot do
-----------------
Products of two thread-dependent values, a division by anything but a power of two or of a form with
a uniform part (the carry out of an unknown number is unknown), selections and values from memory
have no form. They are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from metile_mlx.dtypes import i32, u32
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, UnaryKind, element
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.types import ScalarType

LIMIT = 1 << 31
Terms = tuple[tuple[Value, int], ...]


def signed(value: int) -> int:
    """The i32 equal to `value` modulo 2**32."""
    return (value + LIMIT) % (1 << 32) - LIMIT


@dataclass(frozen=True)
class BitForm:
    """A 32-bit value as uniform `terms`, a `constant`, and one coefficient per thread bit."""

    bits: tuple[int, ...]
    constant: int = 0
    terms: Terms = ()

    @classmethod
    def of_map(cls, columns: Sequence[int], constant: int) -> BitForm | None:
        """The XOR-affine map with these columns, None where two columns share a bit."""
        form = cls(tuple(columns))
        return form.xor(constant) if form.carry_free() else None

    def plus(self, other: BitForm, factor: int = 1) -> BitForm:
        """self + factor * other."""
        bits = tuple(signed(a + factor * b) for a, b in zip(self.bits, other.bits, strict=True))
        terms = dict(self.terms)
        for value, k in other.terms:
            terms[value] = signed(terms.get(value, 0) + factor * k)
        kept = tuple((value, k) for value, k in terms.items() if k)
        return BitForm(bits, signed(self.constant + factor * other.constant), kept)

    def times(self, factor: int) -> BitForm:
        """factor * self."""
        return BitForm((0,) * len(self.bits)).plus(self, factor)

    def positive(self) -> tuple[int, tuple[int, ...], int]:
        """(constant, |coefficients|, bits to flip): the same form without negative parts."""
        flip = sum(1 << b for b, c in enumerate(self.bits) if c < 0)
        constant = self.constant + sum(c for c in self.bits if c < 0)
        return signed(constant), tuple(abs(c) for c in self.bits), flip

    @property
    def largest(self) -> int:
        """The largest value of a form without terms; of a carry-free one, every bit it can set."""
        constant, coefficients, _ = self.positive()
        return constant + sum(coefficients)

    def carry_free(self) -> bool:
        """Whether constant and coefficients set different bits of a number in 0..2**31 - 1."""
        constant, masks, _ = self.positive()
        if self.terms or constant < 0 or self.largest >= LIMIT:
            return False
        union = constant
        for mask in masks:
            if union & mask:
                return False
            union |= mask
        return True

    def low_bits(self, count: int) -> BitForm | None:
        """self % 2**count: what is a multiple of it vanishes, the rest must not carry out."""
        size = 1 << count
        constant, coefficients, flip = self.positive()
        rest = [c % size for c in coefficients]
        if any(k % size for _, k in self.terms) or constant % size + sum(rest) >= size:
            return None
        return _restore(constant % size, rest, flip)

    def shifted_right(self, count: int) -> BitForm | None:
        """self >> count: below the cut nothing may carry over it, nothing may straddle it."""
        size = 1 << count
        constant, coefficients, flip = self.positive()
        if self.terms or constant < 0 or self.largest >= LIMIT:
            return None
        low = sum(c for c in coefficients if c % size)
        if constant % size + low >= size:
            return None
        return _restore(constant >> count, [c // size for c in coefficients], flip)

    def masked(self, mask: int) -> BitForm | None:
        """self & mask."""
        if mask >= 0 and mask & (mask + 1) == 0:
            return self.low_bits(mask.bit_length())
        if mask < 0 and ~mask & (~mask + 1) == 0:
            low = self.low_bits((~mask).bit_length())
            return low and self.plus(low, -1)
        if not self.carry_free():
            return None
        constant, coefficients, flip = self.positive()
        return _restore(constant & mask, [c & mask for c in coefficients], flip)

    def xor(self, mask: int) -> BitForm | None:
        """self ^ mask; a coefficient lies wholly inside or outside the mask."""
        if mask == -1:
            return self.times(-1).plus(BitForm((0,) * len(self.bits), -1))
        constant, coefficients, flip = self.positive()
        if not self.carry_free() or mask < 0 or any(c & mask not in (0, c) for c in coefficients):
            return None
        flip ^= sum(1 << b for b, c in enumerate(coefficients) if c & mask)
        return _restore(constant ^ (mask & ~sum(coefficients)), coefficients, flip)


def _restore(constant: int, coefficients: Sequence[int], flip: int) -> BitForm:
    """The form of what `positive` gives."""
    bits = tuple(-c if flip >> b & 1 else c for b, c in enumerate(coefficients))
    return BitForm(bits, signed(constant - sum(c for c in bits if c < 0)))


class Forms:
    """The forms of the values of one kernel of `threads` threads, filled op by op."""

    def __init__(self, threads: int) -> None:
        self.width = threads.bit_length() - 1
        self._known: dict[Value, BitForm] = {}

    def of(self, value: Value) -> BitForm | None:
        """The form of a 32-bit integer; None for a thread-dependent value that has none."""
        known = self._known.get(value)
        if known is not None:
            return known
        return BitForm((0,) * self.width, 0, ((value, 1),)) if _is_uniform(value) else None

    def record(self, item: Op) -> None:
        """Work out the form of what `item` computes, from those of its operands."""
        rule = _RULES.get(type(item))
        if rule is None or element(item.result) not in (i32, u32):
            return
        form = rule(self, item)
        # A uniform value is a term of its own: its operations are not taken apart.
        if form is not None and not (form.terms and _is_uniform(item.result)):
            self._known[item.result] = form

    def number(self, value: int) -> BitForm:
        """A constant."""
        return BitForm((0,) * self.width, signed(value))

    def thread(self) -> BitForm:
        """The thread index itself."""
        return BitForm(tuple(1 << b for b in range(self.width)))


def _is_uniform(value: Value) -> bool:
    return isinstance(value.type, ScalarType) and value.type.uniform


def _as_number(form: BitForm) -> int | None:
    return None if form.terms or any(form.bits) else form.constant


def _binary(forms: Forms, item: metal.Binary) -> BitForm | None:
    a, b = forms.of(item.lhs), forms.of(item.rhs)
    if a is None or b is None:
        return None
    if item.kind is BinaryKind.ADD:
        return a.plus(b)
    if item.kind is BinaryKind.SUB:
        return a.plus(b, -1)
    if item.kind in _COMMUTATIVE and _as_number(a) is not None:
        a, b = b, a
    number = _as_number(b)
    if number is not None:
        return _by_number(item.kind, a, number)
    # Where no bit is set in both, | and ^ add.
    if item.kind in (BinaryKind.OR, BinaryKind.XOR) and a.carry_free() and b.carry_free():
        return None if a.largest & b.largest else a.plus(b)
    return None


_COMMUTATIVE = (BinaryKind.MUL, BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR)


def _by_number(kind: BinaryKind, form: BitForm, number: int) -> BitForm | None:
    match kind:
        case BinaryKind.MUL:
            return form.times(number)
        case BinaryKind.SHL:
            return form.times(1 << number % 32)
        case BinaryKind.SHR:
            return form.shifted_right(number % 32)
        case BinaryKind.AND:
            return form.masked(number)
        case BinaryKind.XOR:
            return form.xor(number)
        case BinaryKind.OR:
            kept = form.masked(~number)
            return kept and kept.plus(BitForm((0,) * len(form.bits), number))
        case _:
            return None


def _unary(forms: Forms, item: metal.Unary) -> BitForm | None:
    form = forms.of(item.src)
    match item.kind:
        case UnaryKind.NEG:
            return form and form.times(-1)
        case UnaryKind.NOT:
            return form and form.xor(-1)
        case _:
            return None


def _cast(forms: Forms, item: metal.Cast) -> BitForm | None:
    return forms.of(item.src) if element(item.src) in (i32, u32) else None


_RULES: dict[type[Op], Callable[[Forms, Any], BitForm | None]] = {
    metal.Constant: lambda forms, item: forms.number(item.value),
    metal.ThreadIndex: lambda forms, _: forms.thread(),
    metal.Unary: _unary,
    metal.Binary: _binary,
    metal.Cast: _cast,
}


@dataclass(frozen=True)
class Part:
    """((thread & mask) shifted left by `shift`) * factor; a negative shift goes right."""

    mask: int
    shift: int
    factor: int

    def needs_mask(self, width: int) -> bool:
        """Whether other bits would get through: a right shift drops the low ones by itself."""
        return self.mask != (1 << width) - (1 << max(0, -self.shift))

    def cost(self, width: int) -> int:
        """Operations."""
        return self.needs_mask(width) + (self.shift != 0) + (self.factor != 1)


@lru_cache(1024)
def plan(coefficients: tuple[int, ...]) -> tuple[Part, ...]:
    """Parts that sum to the form with these coefficients, none negative, in few operations."""
    width = len(coefficients)
    grouped = _groups(coefficients)
    best = grouped
    for (shift, factor), _ in _grouped(coefficients).items():
        # Write one group over every bit its shift lets through, and correct the others.
        first = max(0, -shift)
        cover = [factor * (1 << b + shift) if b >= first else 0 for b in range(width)]
        rest = [c - part for c, part in zip(coefficients, cover, strict=True)]
        if min(rest) >= 0:
            candidate = (*_groups(cover), *_groups(rest))
            if _cost(candidate, width) < _cost(best, width):
                best = candidate
    return best


def diagonals(columns: Sequence[int]) -> tuple[Part, ...]:
    """Parts whose XOR is the linear map over bits with these columns: one per distance moved."""
    masks: dict[int, int] = {}
    for bit, column in enumerate(columns):
        for image in range(column.bit_length()):
            if column >> image & 1:
                masks[image - bit] = masks.get(image - bit, 0) | 1 << bit
    return tuple(Part(mask, shift, 1) for shift, mask in sorted(masks.items()))


def _grouped(coefficients: Sequence[int]) -> dict[tuple[int, int], int]:
    """Mask of the bits that move by the same distance and carry the same odd factor."""
    masks: dict[tuple[int, int], int] = {}
    for bit, coefficient in enumerate(coefficients):
        if coefficient:
            power = (coefficient & -coefficient).bit_length() - 1
            key = (power - bit, coefficient >> power)
            masks[key] = masks.get(key, 0) | 1 << bit
    return masks


def _groups(coefficients: Sequence[int]) -> tuple[Part, ...]:
    parts = []
    for (shift, factor), mask in _grouped(coefficients).items():
        if factor > 1:
            # A multiplication takes a left shift along, so a right shift may drop all low bits.
            lowest = (mask & -mask).bit_length() - 1
            right = 0 if shift >= 0 else lowest
            parts.append(Part(mask, -right, factor << shift + right))
        else:
            parts.append(Part(mask, shift, factor))
    return tuple(parts)


def _cost(parts: Sequence[Part], width: int) -> int:
    return sum(part.cost(width) for part in parts) + len(parts) - 1
