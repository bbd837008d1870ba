"""Random straight-line programs over register tiles whose every result is exact in any order.

Floats are multiples of a power of two with few bits, and the generator follows how many: a sum is
taken only where 24 bits hold it. So a reference that adds in another order gives the same bits, and
comparisons need no tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np

from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CombineKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Func, Value
from metile_mlx.layout.thread_layout import ThreadLayout
from tests.support.arithmetic import Array, to_bf16
from tests.support.tile_program import TileProgram

PROGRAMS = 3
BITS = 24
FLOAT = (BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL, BinaryKind.MINIMUM, BinaryKind.MAXIMUM)
INTEGER = (
    BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL, BinaryKind.XOR, BinaryKind.AND,
    BinaryKind.FLOORDIV, BinaryKind.MOD,
)  # fmt: skip
SMALL = {f16: 11, bf16: 8}


@dataclass(frozen=True)
class Held:
    """A float: |value| <= bound * 2**unit, a multiple of 2**unit."""

    value: Value
    bound: int
    unit: int

    @property
    def is_tile(self) -> bool:
        return hasattr(self.value.type, "shape")


@dataclass
class RandomTiles:
    """One program, its arrays, and what it writes.

    Attributes:
        func: the kernel at Stage.TILE.
        arrays: contents of its inputs; bf16 as bits.
        outputs: shape and dtype of what it writes.
    """

    rng: Random
    layout: ThreadLayout
    extent: int
    p: TileProgram = field(default_factory=TileProgram)
    floats: list[Held] = field(default_factory=list)
    integers: list[Value] = field(default_factory=list)
    masks: list[Value] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, tuple[tuple[int, ...], DType]] = field(default_factory=dict)
    sums: int = 0
    func: Func | None = None

    @property
    def size(self) -> int:
        return self.layout.size

    def build(self) -> None:
        """Loads, steps, stores."""
        p, rng = self.p, self.rng
        self.row = p.program_id()
        rows = p.add(tile.NumPrograms(0), "rows")
        self.lanes = p.lanes(self.size, layout=self.layout)
        p.lanes_name = "lanes"  # type: ignore[attr-defined]
        self.integers += [self.lanes, p.op(BinaryKind.ADD, self.lanes, self.row)]
        self.masks.append(p.compare(CompareKind.LT, self.lanes, rng.randrange(self.size)))
        self.views = {
            name: (p.tensor(name, (rows, self.extent), "read", dtype=dtype), dtype)
            for name, dtype in (("x", f32), ("h", rng.choice((f16, bf16))))
        }
        numbers = np.random.default_rng(rng.getrandbits(32))
        for name, (_, dtype) in self.views.items():
            small = numbers.integers(-8, 9, (PROGRAMS, self.extent)).astype(np.float32)
            self.arrays[name] = {f16: small.astype(np.float16), bf16: to_bf16(small)}.get(
                dtype, small
            )
        self.load()
        for _ in range(rng.randrange(2, 9)):
            rng.choice(
                (self.load, self.arithmetic, self.arithmetic, self.compare, self.select, self.sum,
                 self.sum, self.narrow, self.integer, self.logic)
            )()  # fmt: skip
        for k in range(rng.randrange(1, 3)):
            self.store(f"out{k}")
        self.func = p.func()

    def tile_float(self) -> Held:
        return self.rng.choice([held for held in self.floats if held.is_tile])

    def keep(self, value: Value, bound: int, unit: int) -> None:
        while bound > 1 << BITS - 2 and value.type.dtype == f32:  # type: ignore[union-attr]
            # Too many bits for the next operation: forget the value instead.
            return
        self.floats.append(Held(value, bound, unit))

    def load(self) -> None:
        rng, p = self.rng, self.p
        view, dtype = self.views[rng.choice(("x", "h"))]
        at = self.lanes
        if rng.random() < 0.4:
            at = p.op(BinaryKind.ADD, at, rng.randrange(-40, 41))
        mask = rng.choice((None, None, *self.masks))
        fill = rng.choice((None, 1.0, -3.0))
        filling = None if fill is None else p.number(fill, dtype)
        value = p.load(view, self.row, at, mask=mask, fill=filling)
        self.floats.append(Held(value if dtype == f32 else p.add(tile.Cast(value, f32)), 8, 0))

    def arithmetic(self) -> None:
        a, b = self.rng.choice(self.floats), self.tile_float()
        kind = self.rng.choice(FLOAT)
        unit = a.unit + b.unit if kind is BinaryKind.MUL else min(a.unit, b.unit)
        if kind is BinaryKind.MUL:
            bound = a.bound * b.bound
        else:
            bound = (a.bound << a.unit - unit) + (b.bound << b.unit - unit)
        if bound < 1 << BITS - 2 and unit > -60:
            self.floats.append(Held(self.p.op(kind, a.value, b.value), bound, unit))

    def compare(self) -> None:
        kind = self.rng.choice(list(CompareKind))
        a, b = self.rng.choice(self.floats), self.tile_float()
        self.masks.append(self.p.compare(kind, a.value, b.value))

    def logic(self) -> None:
        a = self.rng.choice(self.masks)
        kind = self.rng.choice((BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR))
        self.masks.append(self.p.op(kind, a, self.rng.choice(self.masks)))

    def select(self) -> None:
        a, b = self.rng.choice(self.floats), self.tile_float()
        unit = min(a.unit, b.unit)
        bound = max(a.bound << a.unit - unit, b.bound << b.unit - unit)
        if bound < 1 << BITS - 2:
            chosen = self.p.add(tile.Select(self.rng.choice(self.masks), a.value, b.value))
            self.floats.append(Held(chosen, bound, unit))

    def integer(self) -> None:
        kind = self.rng.choice(INTEGER)
        rhs = self.rng.choice((self.rng.choice(self.integers), 3, 8, -2, 31))
        value = self.p.op(kind, self.rng.choice(self.integers), rhs)
        self.integers.append(value)
        low = self.p.op(BinaryKind.AND, value, 15)
        self.floats.append(Held(self.p.add(tile.Cast(low, f32)), 15, 0))
        self.masks.append(self.p.compare(CompareKind.LT, value, self.rng.choice((0, 5, 100))))

    def narrow(self) -> None:
        """Through a smaller float, where the rounding is the same everywhere."""
        held = self.tile_float()
        dtype = self.rng.choice((f16, bf16))
        if held.bound << max(held.unit, 0) < 30_000 and held.unit >= -14:
            small = self.p.add(tile.Cast(held.value, dtype))
            doubled = self.p.unary(UnaryKind.NEG, small)
            wide = self.p.add(tile.Cast(doubled, f32))
            # Rounding up may pass the bound by half a unit of the last place.
            self.floats.append(Held(wide, held.bound + (held.bound >> SMALL[dtype]) + 1, held.unit))

    def sum(self) -> None:
        held = self.tile_float()
        if held.bound * self.size >= 1 << BITS:
            return
        self.sums += 1
        total = self.p.add(tile.Reduce(CombineKind.SUM, held.value), f"total{self.sums}")
        # Scaled back to few bits: floor(total / 2**k).
        shift = (held.bound * self.size).bit_length() - 4
        scaled = self.p.op(BinaryKind.MUL, total, self.p.number(2.0 ** -(shift + held.unit), f32))
        self.floats.append(Held(self.p.unary(UnaryKind.FLOOR, scaled), 17, 0))

    def store(self, name: str) -> None:
        p, rng = self.p, self.rng
        dtype = rng.choice((f32, f32, f16, bf16, bool_, i32))
        if dtype == bool_:
            value = rng.choice(self.masks)
        elif dtype == i32:
            value = rng.choice(self.integers)
        else:
            held = self.tile_float()
            exact = held.bound << max(held.unit, 0) < 30_000
            dtype = dtype if exact else f32
            value = held.value if dtype == f32 else p.add(tile.Cast(held.value, dtype))
        width = rng.choice((self.extent, self.size))
        out = p.tensor(name, (PROGRAMS, width), "write", dtype=dtype)
        p.store(out, self.row, self.lanes, value=value)
        self.outputs[name] = ((PROGRAMS, width), dtype)


def random_layout(rng: Random) -> ThreadLayout:
    """Any permutation and XOR constant; mostly few registers, sometimes the largest tiles."""
    registers = rng.choice((1, 1, 2, 2, 2, 4, 4, 4, 4, 8, 8, 16, 32))
    threads = rng.choice((32, 32, 64, 64, 128, 256))
    if rng.random() < 0.02:
        threads = 1024
    bits = (registers * threads).bit_length() - 1
    order = list(range(bits)) if rng.random() < 0.3 else rng.sample(range(bits), bits)
    return ThreadLayout(order, rng.choice((0, rng.randrange(1 << bits))), registers)


def random_tiles(seed: int) -> RandomTiles:
    """The program of a seed."""
    rng = Random(seed)
    layout = random_layout(rng)
    extent = rng.choice((layout.size, layout.size - 1, 1, rng.randrange(1, layout.size + 1)))
    made = RandomTiles(rng, layout, extent)
    made.build()
    return made
