"""Random straight-line programs over register tiles whose every result is exact in any order.

Floats are multiples of a power of two with few bits, and the generator follows how many: a sum is
taken only where 24 bits hold it. So a reference that adds in another order gives the same bits, and
comparisons need no tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from metile_mlx.compiler import lower
from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u32
from metile_mlx.errors import OutOfResources
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CombineKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Func, Value
from metile_mlx.ir.printer import print_func
from metile_mlx.ir.types import TileType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import METAL, THREADGROUP_BYTES
from tests.support.arithmetic import Array, to_bf16
from tests.support.tile_program import TileProgram

T = TypeVar("T")

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


@dataclass(frozen=True)
class Along:
    """A reduction along an axis of `extent` elements."""

    kind: CombineKind
    extent: int


def tiles_of(pool: Sequence[T]) -> list[T]:
    """Those that are tiles, of values that know bounds."""
    return [held for held in pool if isinstance(held.value.type, TileType)]  # type: ignore[attr-defined]


@dataclass(repr=False)
class RandomTiles:
    """One program, its arrays, and what it writes.

    Attributes:
        layout: of all its tiles.
        extent: of the rows it reads.
        index_bits: to compile it with.
        func: the kernel at Stage.TILE.
        seed: of the contents of its inputs.
        arrays: contents of its inputs; bf16 as bits.
        outputs: shape and dtype of what it writes.
        masked: the outputs that keep elements nobody stores.
        errors: how far a run may be from the real result, for outputs that are not exact.
    """

    draw: st.DrawFn
    layout: ThreadLayout
    extent: int
    index_bits: int
    p: TileProgram = field(default_factory=TileProgram)
    floats: list[Held] = field(default_factory=list)
    integers: list[Value] = field(default_factory=list)
    masks: list[Value] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, tuple[tuple[int, ...], DType]] = field(default_factory=dict)
    masked: set[str] = field(default_factory=set)
    errors: dict[str, float] = field(default_factory=dict)
    sums: int = 0
    axes: list[Along] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.begin()
        # The text of a step grows with the registers.
        longest = max(3, 10 - self.layout.elements_per_thread)
        for _ in range(self.draw(st.integers(2, longest))):
            self.one(self.steps())()
        for k in range(self.draw(st.integers(1, 2))):
            self.store(f"out{k}")
        self.func: Func = self.p.func()

    def __repr__(self) -> str:
        """All there is to it: equal texts are equal cases."""
        return (
            f"rows of {self.extent} from default_rng({self.seed}), {self.index_bits}-bit indices\n"
            f"{print_func(self.func)}"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Hypothesis would print the fields."""
        printer.text(repr(self))

    @property
    def size(self) -> int:
        return self.layout.size

    def one(self, choices: Sequence[T]) -> T:
        return self.draw(st.sampled_from(choices))

    def often(self, times: int, of: int) -> bool:
        """True `times` times of `of`; shrinks to False."""
        return self.draw(st.integers(1, of)) > of - times

    def begin(self) -> None:
        """Owners, a mask, and the two arrays."""
        p = self.p
        self.row = p.program_id()
        rows = p.add(tile.NumPrograms(0), "rows")
        self.lanes = p.lanes(self.size, layout=self.layout)
        self.integers += [self.lanes, p.op(BinaryKind.ADD, self.lanes, self.row)]
        self.masks.append(
            p.compare(CompareKind.LT, self.lanes, self.draw(st.integers(0, self.size - 1)))
        )
        self.views = {
            name: (p.tensor(name, (rows, self.extent), "read", dtype=dtype), dtype)
            for name, dtype in (("x", f32), ("h", self.one((f16, bf16))))
        }
        self.seed = self.draw(st.integers(0, 1000))
        numbers = np.random.default_rng(self.seed)
        for name, (_, dtype) in self.views.items():
            small = numbers.integers(-8, 9, (PROGRAMS, self.extent)).astype(np.float32)
            self.arrays[name] = {f16: small.astype(np.float16), bf16: to_bf16(small)}.get(
                dtype, small
            )
        self.load()

    def steps(self) -> tuple[Callable[[], None], ...]:
        return (
            self.load, self.arithmetic, self.arithmetic, self.fma, self.compare, self.select,
            *[self.sum] * 4, self.narrow, self.integer, self.logic, self.extreme, self.along,
            self.along, self.along_integers, self.count,
        )  # fmt: skip

    def tile_float(self) -> Held:
        return self.one(tiles_of(self.floats))

    def constant(self, value: float) -> Value:
        return self.p.number(value, f32)

    def load(self) -> None:
        p = self.p
        view, dtype = self.views[self.one(("x", "h"))]
        at = self.lanes
        if self.often(2, of=5):
            at = p.op(BinaryKind.ADD, at, self.draw(st.integers(-40, 40)))
        mask = self.one((None, None, *self.masks))
        fill = self.one((None, 1.0, -3.0))
        filling = None if fill is None else p.number(fill, dtype)
        value = p.load(view, self.row, at, mask=mask, fill=filling)
        self.floats.append(Held(value if dtype == f32 else p.add(tile.Cast(value, f32)), 8, 0))

    def arithmetic(self) -> None:
        a, b = self.one(self.floats), self.tile_float()
        kind = self.one(FLOAT)
        unit = a.unit + b.unit if kind is BinaryKind.MUL else min(a.unit, b.unit)
        if kind is BinaryKind.MUL:
            bound = a.bound * b.bound
        else:
            bound = (a.bound << a.unit - unit) + (b.bound << b.unit - unit)
        if bound < 1 << BITS - 2 and unit > -60:
            self.floats.append(Held(self.p.op(kind, a.value, b.value), bound, unit))

    def fma(self) -> None:
        a, b, c = self.one(self.floats), self.tile_float(), self.one(self.floats)
        unit = min(a.unit + b.unit, c.unit)
        bound = (a.bound * b.bound << a.unit + b.unit - unit) + (c.bound << c.unit - unit)
        if bound < 1 << BITS - 2 and unit > -60:
            self.floats.append(Held(self.p.add(tile.Fma(a.value, b.value, c.value)), bound, unit))

    def compare(self) -> None:
        kind = self.one(list(CompareKind))
        a, b = self.one(self.floats), self.tile_float()
        self.masks.append(self.p.compare(kind, a.value, b.value))

    def logic(self) -> None:
        kind = self.one((BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR))
        self.masks.append(self.p.op(kind, self.one(self.masks), self.one(self.masks)))

    def select(self) -> None:
        a, b = self.one(self.floats), self.tile_float()
        unit = min(a.unit, b.unit)
        bound = max(a.bound << a.unit - unit, b.bound << b.unit - unit)
        if bound < 1 << BITS - 2:
            chosen = self.p.add(tile.Select(self.one(self.masks), a.value, b.value))
            self.floats.append(Held(chosen, bound, unit))

    def integer(self) -> None:
        kind = self.one(INTEGER)
        rhs = self.one((3, 8, -2, 31, *self.integers[-4:]))
        value = self.p.op(kind, self.one(self.integers), rhs)
        self.integers.append(value)
        low = self.p.op(BinaryKind.AND, value, 15)
        self.floats.append(Held(self.p.add(tile.Cast(low, f32)), 15, 0))
        self.masks.append(self.p.compare(CompareKind.LT, value, self.one((0, 5, 100))))

    def narrow(self) -> None:
        """Through a smaller float, where the rounding is the same everywhere."""
        held = self.tile_float()
        dtype = self.one((f16, bf16))
        if held.bound << max(held.unit, 0) < 30_000 and held.unit >= -14:
            small = self.p.add(tile.Cast(held.value, dtype))
            negative = self.p.unary(UnaryKind.NEG, small)
            wide = self.p.add(tile.Cast(negative, f32))
            # Rounding up may pass the bound by half a unit of the last place.
            self.floats.append(Held(wide, held.bound + (held.bound >> SMALL[dtype]) + 1, held.unit))

    def sum(self) -> None:
        held = self.tile_float()
        if held.bound * self.size >= 1 << BITS:
            return
        total = self.total(held.value)
        # Scaled back to few bits: floor(total / 2**k).
        shift = (held.bound * self.size).bit_length() - 4
        scaled = self.p.op(BinaryKind.MUL, total, self.constant(2.0 ** -(shift + held.unit)))
        self.floats.append(Held(self.p.unary(UnaryKind.FLOOR, scaled), 17, 0))

    def total(self, value: Value) -> Value:
        self.sums += 1
        return self.p.add(tile.Reduce(CombineKind.SUM, value), f"total{self.sums}")

    def extreme(self) -> None:
        held = self.tile_float()
        kind = self.one((CombineKind.MAX, CombineKind.MIN))
        found = self.p.add(tile.Reduce(kind, held.value), f"{kind.value}{len(self.floats)}")
        self.floats.append(Held(found, held.bound, held.unit))

    def along(self) -> None:
        """A reduction along one axis of a view."""
        held = self.tile_float()
        shape, axis, kind = self.reduction()
        bound = held.bound * (shape[axis] if kind is CombineKind.SUM else 1)
        if bound < 1 << BITS - 2:
            found = self.reduced(held.value, shape, axis, kind)
            self.floats.append(Held(found, bound, held.unit))

    def along_integers(self) -> None:
        """The same of i32, where sums wrap."""
        source = self.one(self.integers)
        if isinstance(source.type, TileType):
            self.integers.append(self.reduced(source, *self.reduction()))

    def reduction(self) -> tuple[tuple[int, ...], int, CombineKind]:
        """Two or three extents whose product is the size, some of them 1; one of the axes."""
        bits = self.size.bit_length() - 1
        cuts = self.draw(st.lists(st.integers(0, bits), min_size=1, max_size=2))
        ends = [0, *sorted(cuts), bits]
        shape = tuple(1 << b - a for a, b in pairwise(ends))
        return shape, self.one(range(len(shape))), self.one(tuple(CombineKind))

    def reduced(self, source: Value, shape: tuple[int, ...], axis: int, kind: CombineKind) -> Value:
        """What each row gives, in the shape of all other tiles."""
        view = self.p.add(tile.Reshape(source, shape))
        self.axes.append(Along(kind, shape[axis]))
        found = self.p.add(tile.Reduce(kind, view, axis), f"along{len(self.axes)}")
        return self.p.add(tile.Reshape(found, (self.size,)))

    def count(self) -> None:
        """Sums and extremes of all i32 or u32 elements."""
        source = self.one(self.integers)
        if not isinstance(source.type, TileType):
            return
        kind = self.one(tuple(CombineKind))
        if self.often(1, of=2):
            source = self.p.add(tile.Cast(source, u32))
        found = self.p.add(tile.Reduce(kind, source))
        self.integers.append(self.p.add(tile.Cast(found, i32)))

    def store(self, name: str) -> None:
        dtype = self.one((f32, f32, f16, bf16, bool_, i32))
        if dtype == bool_:
            value = self.one(self.masks)
        elif dtype == i32:
            # Uniform ones too: as a tile they are stored by all lanes.
            value = self.p.op(BinaryKind.ADD, self.lanes, self.one(self.integers))
        else:
            held = self.tile_float()
            exact = held.bound << max(held.unit, 0) < 30_000
            dtype = dtype if exact else f32
            value = held.value if dtype == f32 else self.p.add(tile.Cast(held.value, dtype))
        self.write(name, dtype, value)

    def write(self, name: str, dtype: DType, value: Value) -> None:
        """Every element of the output is some lane's; a mask may leave some out."""
        width = self.one((self.extent, self.size))
        mask = self.one((None, None, None, *self.masks[-2:]))
        out = self.p.tensor(name, (PROGRAMS, width), "write", dtype=dtype)
        self.p.store(out, self.row, self.lanes, value=value, mask=mask)
        self.outputs[name] = ((PROGRAMS, width), dtype)
        if mask is not None:
            self.masked.add(name)


@st.composite
def layouts(draw: st.DrawFn) -> ThreadLayout:
    """Any permutation and XOR constant; mostly few registers, sometimes the largest tiles."""
    registers = draw(st.sampled_from((1, 2, 4, 8, 16, 32, 1, 2, 2, 4, 4, 4, 8)))
    threads = draw(st.sampled_from((32, 64, 128, 256, 32, 64)))
    if draw(st.integers(1, 50)) == 50:
        threads = 1024
    bits = (registers * threads).bit_length() - 1
    orders = st.one_of(st.just(list(range(bits))), *[st.permutations(range(bits))] * 2)
    xor_masks = st.one_of(st.just(0), st.integers(0, (1 << bits) - 1))
    return ThreadLayout(draw(orders), draw(xor_masks), registers)


@st.composite
def programs(draw: st.DrawFn, kind: Callable[..., RandomTiles] = RandomTiles) -> RandomTiles:
    """Programs of a kind."""
    layout = draw(layouts())
    extents = st.sampled_from((1, layout.size, layout.size - 1))
    extent = draw(st.one_of(extents, st.integers(1, layout.size)))
    made = kind(draw, layout, extent, draw(st.sampled_from((32, 64))))
    assume(fits(made))
    return made


def fits(made: RandomTiles) -> bool:
    """Whether its reductions along axes find room, which no kernel is owed."""
    # At most an f32 for each element, and a value of each simdgroup for each other reduction.
    if len(made.axes) * made.size * 4 + 4096 <= THREADGROUP_BYTES:
        return True
    try:
        lower(made.func, Context(METAL, index_bits=made.index_bits), Stage.PLANNED)
    except OutOfResources:
        return False
    return True
