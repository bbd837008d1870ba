"""Random straight-line programs full of conversions: chains, diamonds, shared intermediates, loops.

Few layouts and many conversions, so that pairs undo each other and intermediates are shared. Data
moves and integers wrap, so results are exact on every backend and comparisons are bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import mlx.core as mx
import numpy as np

from metile_mlx.context import Context
from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CombineKind, CompareKind
from metile_mlx.ir.core import Func, Value
from metile_mlx.ir.types import TileType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.target import METAL
from tests.support.arithmetic import Array
from tests.support.execute import random_bits
from tests.support.tile_program import TileProgram

DTYPES = (f32, f16, bf16, i32, u32, bool_)
PROGRAMS = 2


@dataclass
class RandomConversions:
    """One program, its arrays, and what it writes.

    Attributes:
        owned: the kernel at Stage.OWNED.
        arrays: contents of its inputs; bf16 as bits.
        outputs: shape and dtype of what it writes.
        known: facts about what the program has in it, for tests that want to have seen them.
    """

    rng: Random
    layouts: list[ThreadLayout]
    p: TileProgram = field(default_factory=TileProgram)
    tiles: list[Value] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, tuple[tuple[int, ...], DType]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.layouts[0].size

    def build(self) -> Func:
        rng, p = self.rng, self.p
        self.row = p.program_id()
        self.where = {layout: p.lanes(self.size, layout=layout) for layout in self.layouts}
        for _ in range(rng.randrange(1, 3)):
            self.load()
        steps = (self.convert,) * 8 + (
            self.load,
            self.splat,
            self.combine,
            self.combine,
            self.total,
        )
        for _ in range(rng.randrange(1, 16)):
            rng.choice(steps)()
        for k in range(rng.randrange(1, 5)):
            self.store(f"out{k}")
        return infer_ownership(p.func(), Context(METAL))

    def load(self) -> None:
        """A tile of its own array; sometimes at converted indices, under a converted mask."""
        rng, p = self.rng, self.p
        dtype, layout = rng.choice(DTYPES), rng.choice(self.layouts)
        name = f"x{len(self.arrays)}"
        self.arrays[name] = random_bits(dtype, PROGRAMS * self.size, rng.getrandbits(32))
        view = p.tensor(name, (PROGRAMS, self.size), "read", dtype=dtype)
        at, mask = self.where[layout], None
        if rng.random() < 0.4:
            source = self.where[rng.choice(self.layouts)]
            at = p.op(BinaryKind.XOR, p.add(tile.Convert(source, layout)), rng.randrange(self.size))
        masks = [v for v in self.tiles if dtype_of(v) == bool_ and layout_of(v) == layout]
        if masks and rng.random() < 0.6:
            mask = rng.choice(masks)
        self.tiles.append(p.load(view, self.row, at, mask=mask))

    def convert(self) -> None:
        """Of the newest tiles mostly, so that chains come up."""
        source = self.rng.choice([*self.tiles[-4:], self.rng.choice(self.tiles)])
        self.tiles.append(self.p.add(tile.Convert(source, self.rng.choice(self.layouts))))

    def splat(self) -> None:
        number = self.p.op(BinaryKind.MUL, self.row, self.rng.randrange(-5, 6))
        layout = self.rng.choice(self.layouts)
        self.tiles.append(self.p.add(tile.Splat(number, (self.size,), layout)))

    def combine(self) -> None:
        """Two tiles of the same owners, or a tile and its own comparison."""
        rng, p = self.rng, self.p
        a = rng.choice(self.tiles)
        same = [v for v in self.tiles if v.type == a.type]
        b = rng.choice(same)
        if dtype_of(a) == i32:
            self.tiles.append(p.op(rng.choice((BinaryKind.ADD, BinaryKind.XOR)), a, b))
            self.tiles.append(p.compare(CompareKind.LT, a, rng.choice((b, 7))))
        elif dtype_of(a) == bool_:
            self.tiles.append(p.op(rng.choice((BinaryKind.XOR, BinaryKind.AND)), a, b))
        else:
            odd = p.op(BinaryKind.AND, self.where[layout_of(a)], rng.choice((1, 4, 32)))
            self.tiles.append(p.add(tile.Select(p.compare(CompareKind.EQ, odd, 0), a, b)))

    def total(self) -> None:
        """The sum of few small whole numbers, exact in f32, joins an integer tile."""
        rng, p = self.rng, self.p
        numbers = [v for v in self.tiles if dtype_of(v) == i32]
        if numbers:
            source = rng.choice(numbers)
            small = p.add(tile.Cast(p.op(BinaryKind.AND, source, 7), f32))
            moved = p.add(tile.Convert(small, rng.choice(self.layouts)))
            total = p.add(tile.Cast(p.add(tile.Reduce(CombineKind.SUM, moved)), i32))
            self.tiles.append(p.op(BinaryKind.ADD, source, total))

    def store(self, name: str) -> None:
        value = self.rng.choice(self.tiles[-6:])
        dtype = dtype_of(value)
        out = self.p.tensor(name, (PROGRAMS, self.size), "write", dtype=dtype)
        self.p.store(out, self.row, self.where[layout_of(value)], value=value)
        self.outputs[name] = ((PROGRAMS, self.size), dtype)


def dtype_of(value: Value) -> DType:
    assert isinstance(value.type, TileType)
    return value.type.dtype


def layout_of(value: Value) -> ThreadLayout:
    assert isinstance(value.type, TileType)
    assert value.type.layout is not None
    return value.type.layout


def random_layouts(rng: Random, threads: int, registers: int) -> list[ThreadLayout]:
    """Three to five; one of them differs from another within simdgroups only."""
    bits = (threads * registers).bit_length() - 1
    found = [ThreadLayout.identity(threads * registers, registers)]
    for _ in range(rng.randrange(1, 4)):
        order = rng.sample(range(bits), bits)
        found.append(ThreadLayout(order, rng.randrange(1 << bits), registers))
    base = rng.choice(found)
    flip = base.logical_index(rng.randrange(1, 32)) ^ base.logical_index(0) ^ base.xor_mask
    found.append(ThreadLayout(base.bit_order, flip, registers))
    return found


def random_conversions(
    seed: int, registers: tuple[int, ...] = (1,)
) -> tuple[RandomConversions, Func]:
    """The program of a seed, and its Func at Stage.OWNED."""
    rng = Random(seed)
    layouts = random_layouts(rng, rng.choice((32, 64, 64, 128)), rng.choice(registers))
    made = RandomConversions(rng, layouts)
    return made, made.build()


def as_mlx(array: Array, dtype: DType) -> mx.array:
    """An input of the reference."""
    return mx.array(array).view(mx.bfloat16) if dtype == bf16 else mx.array(array)


def bits_of(array: mx.array) -> Array:
    """A result of the reference, as the simulator has it."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
