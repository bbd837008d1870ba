"""Random programs with arithmetic that backends round differently, and how far they may differ.

The generator follows, for each value, a bound of its magnitude and of how far any run may be from
the real number: what the operands' errors become, plus the rounding allowed to the operation below.
Comparisons, masks and integers are made of exact values only, so all runs take the same elements.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from metile_mlx.dtypes import DType, bf16, f16, f32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, UnaryKind
from metile_mlx.ir.core import Value
from tests.support.random_tiles import PROGRAMS, RandomTiles, tiles_of

# Half a unit of the last place of 1.0: what rounding to nearest may change, relative.
ROUNDING = {f32: 2.0**-24, f16: 2.0**-11, bf16: 2.0**-8}
# What a device that flushes subnormal numbers loses.
SUBNORMAL = {f32: 2.0**-126, f16: 2.0**-24, bf16: 2.0**-126}
LARGEST = 2.0**14  # fits into f16
# Values that keep less than four good bits say nothing.
USEFUL = 2.0**-4


@dataclass(frozen=True)
class Function:
    """A function on [low, high], where |f| <= bound and |f'| <= slope.

    `units` of the last place in f32, at the bound, are allowed to each run.
    """

    low: float
    high: float
    bound: float
    slope: float
    units: float


FUNCTIONS = {
    UnaryKind.EXP: Function(-3, 3, 20.1, 20.1, 4),
    UnaryKind.EXP2: Function(-4, 4, 16, 11.1, 4),
    UnaryKind.LOG: Function(0.25, 32, 3.5, 4, 4),
    UnaryKind.LOG2: Function(0.25, 32, 5, 5.8, 4),
    UnaryKind.SQRT: Function(0.0625, 64, 8, 2, 1),
    UnaryKind.RSQRT: Function(0.25, 64, 2, 4, 4),
    UnaryKind.SIN: Function(-8, 8, 1, 1, 4),
    UnaryKind.COS: Function(-8, 8, 1, 1, 4),
    UnaryKind.TANH: Function(-8, 8, 1, 1, 8),
    UnaryKind.SIGMOID: Function(-8, 8, 1, 0.25, 8),
    UnaryKind.ERF: Function(-4, 4, 1, 1.13, 8),
}
DIVISOR = Function(0.5, 16, 2, 4, 1)  # 1/x
POWER = Function(0.5, 2, 4, 16, 16)  # x**y for |y| <= 2; by y the slope is below 4


@dataclass(frozen=True)
class Near:
    """A float: |value| <= bound, and every run is within `error` of the real number."""

    value: Value
    bound: float
    error: float


@dataclass(repr=False)
class InexactTiles(RandomTiles):
    """As its base, with some outputs that are compared within `errors`."""

    near: list[Near] = field(default_factory=list)

    def begin(self) -> None:
        """And an array of any numbers."""
        super().begin()
        rows = self.p.add(tile.NumPrograms(0))
        view = self.p.tensor("reals", (rows, self.extent), "read")
        numbers = np.random.default_rng(self.seed).uniform(-4, 4, (PROGRAMS, self.extent))
        self.arrays["reals"] = numbers.astype(np.float32)
        self.near.append(Near(self.p.load(view, self.row, self.lanes), 4, 0))

    def steps(self) -> tuple[Callable[[], None], ...]:
        return (
            self.function, self.divide, self.mean, self.combine, self.blend, self.small,
            self.function, self.power, self.mean, self.combine, self.exact,
        )  # fmt: skip

    def any_tile(self) -> Near:
        return self.one(tiles_of(self.near)[-4:])

    def any_float(self) -> Near:
        return self.one(self.near[-4:])

    def exact(self) -> None:
        """A step of the base, and one of its values from then on."""
        self.one(super().steps())()
        held = self.tile_float()
        if held.bound * 2.0**held.unit <= LARGEST:
            self.near.append(Near(held.value, held.bound * 2.0**held.unit, 0))

    def keep(self, value: Value, bound: float, error: float, dtype: DType = f32) -> None:
        """An f32 value whose last operation was rounded to `dtype`."""
        error += 2 * ROUNDING[dtype] * bound + SUBNORMAL[dtype]
        if bound <= LARGEST and error <= USEFUL * bound:
            self.near.append(Near(value, bound, error))

    def within(self, of: Near, low: float, high: float) -> Value:
        at_least = self.p.op(BinaryKind.MAXIMUM, of.value, self.constant(low))
        return self.p.op(BinaryKind.MINIMUM, at_least, self.constant(high))

    def function(self) -> None:
        of, kind = self.any_tile(), self.one(list(FUNCTIONS))
        about = FUNCTIONS[kind]
        made = self.p.unary(kind, self.within(of, about.low, about.high))
        self.keep(made, about.bound, self.allowed(about, of.error))

    def allowed(self, about: Function, error: float) -> float:
        return about.slope * error + 2 * about.units * ROUNDING[f32] * about.bound

    def small(self) -> None:
        """A function in a smaller dtype: rounded before and after."""
        of, dtype, kind = self.any_tile(), self.one((f16, bf16)), self.one(list(FUNCTIONS))
        about = FUNCTIONS[kind]
        largest = max(-about.low, about.high)
        given = self.p.add(tile.Cast(self.within(of, about.low, about.high), dtype))
        made = self.p.add(tile.Cast(self.p.unary(kind, given), f32))
        error = of.error + 2 * ROUNDING[dtype] * largest + SUBNORMAL[dtype]
        self.keep(made, about.bound, self.allowed(about, error), dtype)

    def divide(self) -> None:
        a, b = self.any_float(), self.any_tile()
        made = self.p.op(BinaryKind.DIV, a.value, self.within(b, DIVISOR.low, DIVISOR.high))
        bound = a.bound * DIVISOR.bound
        error = a.error * DIVISOR.bound + a.bound * self.allowed(DIVISOR, b.error)
        self.keep(made, bound, error)

    def power(self) -> None:
        x, y = self.any_tile(), self.any_float()
        base, exponent = self.within(x, POWER.low, POWER.high), self.within(y, -2, 2)
        made = self.p.op(BinaryKind.POW, base, exponent)
        self.keep(made, POWER.bound, self.allowed(POWER, x.error) + 4 * y.error)

    def mean(self) -> None:
        """A sum in any order: each of its additions rounds a part of the total."""
        of = self.any_tile()
        total = self.total(of.value)
        scaled = self.p.op(BinaryKind.MUL, total, self.constant(1 / self.size))
        self.keep(scaled, of.bound, of.error + self.size * ROUNDING[f32] * of.bound)

    def combine(self) -> None:
        a, b, c = self.any_float(), self.any_tile(), self.any_float()
        kind = self.one((BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL, BinaryKind.MAXIMUM, None))
        product = a.bound * b.error + b.bound * a.error + a.error * b.error
        if kind is None:
            made = self.p.add(tile.Fma(a.value, b.value, c.value))
            # It may be rounded after the product too.
            error = product + c.error + 2 * ROUNDING[f32] * a.bound * b.bound
            self.keep(made, a.bound * b.bound + c.bound, error)
        elif kind is BinaryKind.MUL:
            self.keep(self.p.op(kind, a.value, b.value), a.bound * b.bound, product)
        else:
            made = self.p.op(kind, a.value, b.value)
            self.keep(made, a.bound + b.bound, a.error + b.error)

    def blend(self) -> None:
        a, b = self.any_float(), self.any_tile()
        made = self.p.add(tile.Select(self.one(self.masks), a.value, b.value))
        self.keep(made, max(a.bound, b.bound), max(a.error, b.error))

    def store(self, name: str) -> None:
        if name != "out0" and self.often(1, of=3):
            super().store(name)
            return
        of = self.any_tile()
        dtype = self.one((f32, f32, f16, bf16))
        value = of.value if dtype == f32 else self.p.add(tile.Cast(of.value, dtype))
        self.errors[name] = of.error + 2 * ROUNDING[dtype] * of.bound + SUBNORMAL[dtype]
        self.write(name, dtype, value)
