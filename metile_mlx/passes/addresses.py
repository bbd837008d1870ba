"""Where a tile's element lies in an array: the bounds check and the offset of one register slot.

Every index is compared with its extent (SPEC K2), unless ranges show that it can't be outside. An
offset is the sum of index * stride in u32, or u64 where offsets can pass 2**31 - 1 (SPEC X8). What
all threads share is summed apart from what the thread index adds; analysis/bits.py says why each
half may be widened on its own, and plans few operations for the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metile_mlx.analysis.bits import LIMIT
from metile_mlx.context import Context
from metile_mlx.dtypes import DType, bool_, i32, u32, u64
from metile_mlx.ir.arith import BinaryKind, CompareKind
from metile_mlx.ir.core import Value
from metile_mlx.passes.lane_builder import LaneBuilder


@dataclass(frozen=True)
class View:
    """A declared tensor in one thread's program.

    Attributes:
        source: pointer loads go through, None when the parameter is only written.
        target: pointer stores go through, None when it is only read.
        written: pointer of the written mask, None without one (SPEC K7).
        shape: extents, uniform i32.
        strides: in elements, uniform i32.
        bounded: whether indices are compared with the extents.
    """

    source: Value | None
    target: Value | None
    written: Value | None
    shape: tuple[Value, ...]
    strides: tuple[Value, ...]
    bounded: bool = True


def bounds(b: LaneBuilder, view: View, indices: Sequence[Value], ctx: Context) -> Value | None:
    """Whether the element exists, None when it always does; uniform conditions are joined first."""
    if not view.bounded:
        return None
    checks = [_check(b, i, n, ctx) for i, n in zip(indices, view.shape, strict=True)]
    kept = [check for check in checks if check is not None]
    mask: Value | None = None
    for check in sorted(kept, key=lambda check: not b.is_uniform(check)):
        mask = b.both(mask, check)
    return mask


def _check(b: LaneBuilder, index: Value, extent: Value, ctx: Context) -> Value | None:
    at, size = b.ranges.of(index), b.ranges.of(extent)
    if (at.lo >= 0 and at.hi < size.lo) or b.is_own_program(index, extent):
        ctx.report.bounds_checks_removed += 1
        return None
    if at.hi < 0 or at.lo >= size.hi:
        return b.constant(False, bool_)
    if at.lo >= 0:
        return b.compare(CompareKind.LT, index, extent)
    # As unsigned numbers the negative ones are the largest. No extent given at run time may be
    # one of those.
    if size.lo < 0:
        extent = b.with_number(BinaryKind.MAXIMUM, extent, 0)
    return b.compare(CompareKind.LT, b.cast(index, u32), b.cast(extent, u32))


def offset(b: LaneBuilder, view: View, indices: Sequence[Value], ctx: Context) -> Value:
    """The element's position in the array, u32 or u64. Meaningless out of bounds."""
    wide = u64 if ctx.index_bits == 64 else u32
    total = _Offset(b, wide)
    for index, stride in zip(indices, view.strides, strict=True):
        total.add(index, stride)
    return total.finish()


class _Offset:
    """A sum of index * stride: a constant, uniform values, thread bits, and all other values."""

    def __init__(self, b: LaneBuilder, wide: DType) -> None:
        self.b = b
        self.wide = wide
        self.constant = 0
        self.bits = [0] * b.forms.width
        self.uniform: list[Value] = []
        self.other: list[Value] = []

    def add(self, index: Value, stride: Value) -> None:
        """Add index * stride."""
        b = self.b
        form = b.forms.of(index)
        if form is None or sum(map(abs, form.bits)) >= LIMIT:
            self.other.append(self._times(index, stride))
            return
        constant, coefficients, flip = form.positive()
        if form.terms:
            self.uniform.append(self._times(b.uniform_part(form), stride))
            constant = 0
        factor = b.number(stride)
        if factor is None:
            if constant:
                self.uniform.append(self._times(b.constant(constant, i32), stride))
            if any(coefficients):
                moved = b.thread_sum(coefficients, flip, self.wide)
                self.other.append(b.binary(BinaryKind.MUL, moved, b.cast(stride, self.wide)))
            return
        # The positive thread part as signed coefficients and a constant: what XOR flips may cancel
        # against another dimension.
        negative = sum(c for c in form.bits if c < 0)
        self.constant += factor * (constant - negative)
        self.bits = [a + factor * c for a, c in zip(self.bits, form.bits, strict=True)]

    def _times(self, index: Value, stride: Value) -> Value:
        wide = self.b.cast(index, self.wide)
        return self.b.binary(BinaryKind.MUL, wide, self.b.cast(stride, self.wide))

    def finish(self) -> Value:
        """The sum, what is uniform first."""
        b, modulus = self.b, 1 << self.wide.bits
        flip = sum(1 << bit for bit, c in enumerate(self.bits) if c < 0)
        constant = (self.constant + sum(c for c in self.bits if c < 0)) % modulus
        coefficients = [abs(c) % modulus for c in self.bits]
        uniform = b.total([*self.uniform, b.constant(constant, self.wide)], self.wide)
        if not uniform.name and b.number(uniform) is None:
            uniform.name = "base"
        moved = b.thread_sum(coefficients, flip, self.wide)
        return b.total([uniform, moved, *self.other], self.wide)
