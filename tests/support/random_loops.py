"""Random programs of loops, branches, reductions and lanes: every result is exact in any order.

Floats are integers of few bits: what a loop carries is clamped, so that 24 bits hold every sum. A
bound that depends on the program has no meaning on the reference; such programs say so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from metile_mlx.dtypes import DType, f32, i32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CombineKind, CompareKind, element
from metile_mlx.ir.core import Func, Value
from metile_mlx.ir.lanes import LaneReduce, LaneShuffle, ThreadId
from metile_mlx.ir.loops import For
from metile_mlx.ir.types import ScalarType
from tests.support.arithmetic import Array
from tests.support.tile_program import TileProgram

PROGRAMS = 3
LARGEST = 512
"""No float is larger: a sum of 1024 of them fits 24 bits."""
FLOAT = (
    BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL, BinaryKind.MINIMUM, BinaryKind.MAXIMUM,
)  # fmt: skip
CARRIED = ("float tile", "float", "int", "int tile")
INTEGER = (BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL, BinaryKind.XOR, BinaryKind.AND)


@dataclass
class RandomLoops:
    """One program, its arrays, and what it writes.

    Attributes:
        func: the kernel at Stage.TILE.
        arrays: contents of its inputs.
        scalars: its runtime scalars.
        outputs: shape and dtype of what it writes.
        by_program: whether a loop runs another number of times in each program.
        reduced: how often a loop has each kind of reduction.
    """

    rng: Random
    size: int
    extent: int
    p: TileProgram = field(default_factory=TileProgram)
    pools: dict[str, list[Value]] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    scalars: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, tuple[tuple[int, ...], DType]] = field(default_factory=dict)
    by_program: bool = False
    reductions_in_loops: int = 0
    reduced: Counter[str] = field(default_factory=Counter)
    exchanges_in_loops: int = 0
    loops: int = 0
    branches: int = 0
    depth: int = 0
    in_loops: int = 0
    proven: bool = True
    func: Func | None = None

    def build(self) -> None:
        """Loads, statements, stores."""
        p, rng = self.p, self.rng
        self.row = p.program_id()
        self.lanes = p.lanes(self.size)
        rows = p.add(tile.NumPrograms(0), "rows")
        shape = (rows, self.extent)
        self.view = p.tensor("x", shape, "read")
        numbers = np.random.default_rng(rng.getrandbits(32))
        self.arrays["x"] = numbers.integers(-8, 9, (PROGRAMS, self.extent)).astype(np.float32)
        for k in range(rng.randrange(1, 3)):
            name = f"n{k}"
            self.keep("count", p.scalar(name, i32))
            self.scalars[name] = rng.choice((-3, 0, 1, 2, 3, 5))
        self.outs = {}
        for k, dtype in enumerate((f32, i32)):
            name = f"out{k}"
            self.outs[dtype] = p.tensor(name, (PROGRAMS, self.size), "write", dtype=dtype)
            self.outputs[name] = ((PROGRAMS, self.size), dtype)
        self.keep("int tile", self.lanes)
        self.keep("int", p.number(rng.randrange(-3, 4)))
        self.keep("float", p.number(float(rng.randrange(-3, 4)), f32))
        self.load()
        for _ in range(rng.randrange(3, 7)):
            self.statement()
        self.store()
        self.func = p.func()

    def keep(self, kind: str, value: Value) -> None:
        self.pools.setdefault(kind, []).append(value)

    def one(self, *kinds: str) -> Value:
        return self.rng.choice([value for kind in kinds for value in self.pools.get(kind, [])])

    def statement(self) -> None:
        steps: list[Callable[[], None]] = [
            self.load, self.arithmetic, self.arithmetic, self.integer, self.reduction,
            self.reduction, self.store, self.select, self.exchange,
        ]  # fmt: skip
        if self.depth < 3:
            steps += [self.loop, self.loop, self.loop, self.branch, self.branch]
        self.rng.choice(steps)()

    def clamp(self, value: Value) -> Value:
        """No float passes LARGEST, whatever was computed."""
        low, high = (self.p.number(float(end), f32) for end in (-LARGEST, LARGEST))
        kept = self.p.op(BinaryKind.MAXIMUM, value, low)
        return self.p.op(BinaryKind.MINIMUM, kept, high)

    def load(self) -> None:
        at = self.lanes
        if self.rng.random() < 0.6:
            at = self.p.op(BinaryKind.ADD, at, self.one("int", "count"))
        mask = self.rng.choice((None, *self.pools.get("mask", ())))
        fill = self.rng.choice((None, self.p.number(2.0, f32)))
        self.keep("float tile", self.p.load(self.view, self.row, at, mask=mask, fill=fill))

    def arithmetic(self) -> None:
        a, b = self.one("float", "float tile"), self.one("float tile")
        self.keep("float tile", self.clamp(self.p.op(self.rng.choice(FLOAT), a, b)))

    def select(self) -> None:
        a, b = self.one("float tile"), self.one("float tile")
        kind = self.rng.choice(list(CompareKind))
        mask = self.p.compare(kind, self.one("float", "float tile"), self.one("float tile"))
        self.keep("mask", mask)
        self.keep("float tile", self.p.add(tile.Select(mask, a, b)))

    def integer(self) -> None:
        kind = self.rng.choice(INTEGER)
        self.keep("int", self.p.op(kind, self.one("int", "count"), self.one("int", "count")))
        a, b = self.one("int tile"), self.one("int", "int tile", "count")
        value = self.p.op(self.rng.choice(INTEGER), a, b)
        self.keep("int tile", value)
        self.keep("mask", self.p.compare(CompareKind.LT, value, self.one("int", "count")))

    def reduction(self) -> None:
        """Of floats or integers: the sum, an extreme, one of these along an axis, or an argmax."""
        if not self.proven:
            return
        rng, p = self.rng, self.p
        name = rng.choice(("float", "float", "int"))
        src = self.one(f"{name} tile")
        combine = rng.choice((CombineKind.SUM, CombineKind.SUM, CombineKind.MAX, CombineKind.MIN))
        how = rng.choice(("whole", "whole", "axis", "argmax"))
        self.count(f"{how} {combine.value}" if how == "whole" else how)
        if name == "float" and (combine is not CombineKind.SUM or how == "argmax"):
            # Which zero is the largest is not said.
            src = p.op(BinaryKind.ADD, src, p.number(0.0, f32))
        if how == "argmax":
            largest = p.add(tile.Reduce(CombineKind.MAX, src))
            is_largest = p.compare(CompareKind.EQ, src, largest)
            behind = p.number(self.size)
            place = p.add(tile.Select(is_largest, self.lanes, behind))
            self.keep("int", p.add(tile.Reduce(CombineKind.MIN, place)))
        elif how == "axis":
            rows = rng.choice((2, 8, 32))
            plane = p.add(tile.Reshape(src, (rows, self.size // rows)))
            made = p.add(tile.Reduce(combine, plane, rng.randrange(2)))
            value = p.add(tile.Reshape(made, (self.size,)))
            self.keep(f"{name} tile", self.clamp(value) if name == "float" else value)
        else:
            value = p.add(tile.Reduce(combine, src))
            self.keep(name, self.clamp(value) if name == "float" else value)

    def count(self, what: str) -> None:
        self.reductions_in_loops += self.in_loops > 0
        if self.in_loops:
            self.reduced[what] += 1

    def exchange(self) -> None:
        if self.proven:
            kind = self.rng.choice(("float tile", "float tile", "int tile"))
            self.keep(kind, self.exchanged(self.one(kind)))

    def exchanged(self, src: Value) -> Value:
        """What another lane of the simdgroup has, or all of them combined; perhaps added to."""
        p, rng = self.p, self.rng
        self.exchanges_in_loops += self.in_loops > 0
        number = p.number(rng.randrange(32))
        made: LaneReduce | LaneShuffle
        if rng.random() < 0.3:
            made = LaneReduce(rng.choice((CombineKind.SUM, CombineKind.MAX)), src, "reduce")
        elif rng.random() < 0.5:
            made = LaneShuffle(src, number, "broadcast")
        else:
            lane = p.op(BinaryKind.AND, p.add(ThreadId("lane")), 31)
            made = LaneShuffle(src, p.op(BinaryKind.XOR, lane, number), "xor")
        value = p.add(made)
        if rng.random() < 0.5 and isinstance(made, LaneShuffle):
            return value
        value = p.op(rng.choice((BinaryKind.ADD, BinaryKind.MAXIMUM)), value, src)
        return value if element(src) == i32 else self.clamp(value)

    def store(self) -> None:
        kind, dtype = self.rng.choice((("float tile", f32), ("int tile", i32)))
        mask = self.rng.choice((None, *self.pools.get("mask", ())))
        self.p.store(self.outs[dtype], self.row, self.lanes, value=self.one(kind), mask=mask)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Values made inside are not seen outside."""
        outer = {kind: list(values) for kind, values in self.pools.items()}
        proven, self.depth = self.proven, self.depth + 1
        yield
        self.pools, self.proven, self.depth = outer, proven, self.depth - 1

    def body(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.statement()

    def loop(self) -> None:
        """A loop that carries some of the values at hand; they all change, or some only move."""
        p, rng = self.p, self.rng
        self.loops += 1
        end = self.one("count") if rng.random() < 0.7 else p.number(rng.randrange(0, 4))
        if self.in_loops == 0 and rng.random() < 0.15:
            self.by_program = True
            end = p.op(BinaryKind.ADD, self.row, rng.randrange(-1, 3))
        start = p.number(rng.choice((0, 0, -2, 1)))
        step = p.number(rng.choice((1, 1, 2, 3)))
        kinds = rng.choices(CARRIED, (2, 1, 1, 1), k=rng.randrange(0, 4))
        inits = tuple(self.one(kind) for kind in kinds)
        args = tuple(Value(init.type, f"carried{self.loops}_{k}") for k, init in enumerate(inits))
        index = Value(ScalarType(i32), "i")
        with self.inside():
            outer = p.begin()
            self.in_loops += 1
            self.keep("int", index)
            for kind, arg in zip(kinds, args, strict=True):
                for _ in range(3):
                    self.keep(kind, arg)
            self.body()
            block = p.end(outer, *map(self.next, kinds, args))
            self.in_loops -= 1
        made = p.emit(For(start, end, step, inits, replace(block, args=(index, *args))))
        for kind, value in zip(kinds, made, strict=True):
            self.keep(kind, value)

    def next(self, kind: str, arg: Value) -> Value:
        """What a carried value becomes; often what the lanes have exchanged of the last one."""
        if self.proven and kind.endswith("tile") and self.rng.random() < 0.4:
            return self.exchanged(arg)
        return self.one(kind)

    def branch(self) -> None:
        """A branch on a runtime scalar, a loop's index, the program, or on what was computed."""
        p, rng = self.p, self.rng
        self.branches += 1
        kind = rng.choice(list(CompareKind))
        is_read = rng.random() < 0.3
        left = self.one("float") if is_read else rng.choice((self.one("int", "count"), self.row))
        right = p.number(1.0, f32) if is_read else p.number(rng.randrange(-1, 3))
        condition = p.compare(kind, left, right)
        kinds = rng.choices(CARRIED, k=rng.randrange(0, 3))
        blocks = []
        for _ in range(2):
            with self.inside():
                self.proven = self.proven and not is_read and not self.is_doubtful(left)
                outer = p.begin()
                if rng.random() < 0.8:
                    self.body()
                blocks.append(p.end(outer, *(self.one(kind) for kind in kinds)))
        made = p.emit(tile.If(condition, *blocks))
        for kind, value in zip(kinds, made, strict=True):
            self.keep(kind, value)

    def is_doubtful(self, value: Value) -> bool:
        """Whether an integer may follow from a branch on what was computed."""
        return value is not self.row and value not in self.pools["count"]


def random_loops(seed: int) -> RandomLoops:
    """The program of a seed."""
    rng = Random(seed)
    size = rng.choice((32, 64, 64, 128, 256))
    extent = rng.choice((size, size - 1, 1, rng.randrange(1, size + 1), size + 9))
    made = RandomLoops(rng, size, extent)
    made.build()
    return made
