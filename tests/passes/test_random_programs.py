"""Random tile programs mean the same after every pass: the simulator against the reference (X5)."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metile_mlx.compiler import lower
from metile_mlx.dtypes import DType, bool_, f16, f32, i32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Func, Value
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.runtime.reference import evaluate
from tests.support import simulate
from tests.support.execute import context
from tests.support.profile import count
from tests.support.tile_program import TileProgram

PROGRAMS = 3
NUMBERS = (-64, -7, -2, -1, 0, 1, 2, 3, 4, 5, 8, 16, 31, 63, 64, 100, 2**31 - 1, -(2**31))
INTEGER = [k for k in BinaryKind if k not in (BinaryKind.DIV, BinaryKind.REM, BinaryKind.POW)]
FLOAT = (
    BinaryKind.ADD,
    BinaryKind.SUB,
    BinaryKind.MUL,
    BinaryKind.MINIMUM,
    BinaryKind.MAXIMUM,
)
LOGIC = (BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR)


@dataclass
class Random:
    """A program under construction: the values at hand by dtype, all of one layout."""

    draw: st.DrawFn
    size: int
    layout: ThreadLayout | None
    p: TileProgram = field(default_factory=TileProgram)
    pools: dict[DType, list[Value]] = field(default_factory=dict)
    outputs: dict[str, DType] = field(default_factory=dict)

    def one(self, dtype: DType) -> Value:
        return self.draw(st.sampled_from(self.pools[dtype]))

    def keep(self, dtype: DType, value: Value) -> None:
        self.pools.setdefault(dtype, []).append(value)

    def start(self) -> None:
        p = self.p
        lanes = p.lanes(self.size, layout=self.layout)
        self.keep(i32, lanes)
        self.keep(i32, p.scalar("n"))
        self.keep(i32, p.program_id())
        self.keep(i32, p.op(BinaryKind.ADD, p.op(BinaryKind.MUL, p.program_id(), 64), lanes))
        self.keep(bool_, p.compare(CompareKind.LT, lanes, 40))
        for dtype in (f32, f16):
            self.keep(dtype, p.add(tile.Cast(lanes, dtype)))
        extent = self.draw(st.sampled_from([1, 50, 64, 300]))
        self.ints = p.tensor("ints", (extent,), "read", (1,), i32)
        pitch = self.draw(st.sampled_from([10, 13]))
        shape = (p.scalar("rows"), 10)
        self.table = p.tensor("table", shape, "read", (pitch, 1), f32)

    def step(self) -> None:
        choice = self.draw(st.integers(0, 11))
        if choice < 4:
            kind = self.draw(st.sampled_from(INTEGER))
            self.keep(i32, self.p.op(kind, self.one(i32), self.number()))
        elif choice == 4:
            kind = self.draw(st.sampled_from([UnaryKind.NEG, UnaryKind.NOT, UnaryKind.ABS]))
            self.keep(i32, self.p.unary(kind, self.one(i32)))
        elif choice == 5:
            kind = self.draw(st.sampled_from(list(CompareKind)))
            dtype = self.draw(st.sampled_from([i32, f32]))
            self.keep(bool_, self.p.compare(kind, self.one(dtype), self.one(dtype)))
        elif choice == 6:
            kind = self.draw(st.sampled_from(LOGIC))
            self.keep(bool_, self.p.op(kind, self.one(bool_), self.one(bool_)))
        elif choice == 7:
            dtype = self.draw(st.sampled_from([i32, f32, f16]))
            mask = self.one(bool_)
            self.keep(dtype, self.p.add(tile.Select(mask, self.one(dtype), self.one(dtype))))
        elif choice == 8:
            dtype = self.draw(st.sampled_from([f32, f16]))
            kind = self.draw(st.sampled_from(FLOAT))
            self.keep(dtype, self.p.op(kind, self.one(dtype), self.one(dtype)))
        else:
            self.load()

    def number(self) -> Value:
        if self.draw(st.booleans()):
            return self.p.number(self.draw(st.sampled_from(NUMBERS)))
        return self.one(i32)

    def load(self) -> None:
        mask = self.draw(st.sampled_from([None, *self.pools[bool_]]))
        if self.draw(st.booleans()):
            fill = self.draw(st.sampled_from([None, self.p.number(-5)]))
            self.keep(i32, self.p.load(self.ints, self.one(i32), mask=mask, fill=fill))
        else:
            fill = self.draw(st.sampled_from([None, self.p.number(0.5, f32)]))
            row, column = self.one(i32), self.one(i32)
            self.keep(f32, self.p.load(self.table, row, column, mask=mask, fill=fill))

    def finish(self, target: ThreadLayout | None) -> Func:
        """Store a few tiles, each element once, by the owners of `target`."""
        for k in range(self.draw(st.integers(1, 3))):
            dtype = self.draw(st.sampled_from([i32, f32, f16, bool_]))
            name = f"out{k}"
            value, first = self.one(dtype), self.pools[i32][0]
            # A tile of the layout at hand, whatever `value` is.
            zero = self.p.compare(CompareKind.LT, first, 0)
            value = self.p.add(tile.Select(zero, value, value))
            if target is not None:
                value = self.p.add(tile.Convert(value, target))
            out = self.p.tensor(name, (PROGRAMS, self.size), "write", dtype=dtype)
            at = self.p.lanes(self.size, layout=target or self.layout)
            self.p.store(out, self.p.program_id(), at, value=value)
            self.outputs[name] = dtype
        return self.p.func()


@st.composite
def programs(draw: st.DrawFn) -> tuple[Random, Func]:
    bits = draw(st.sampled_from([5, 6]))
    layouts = st.builds(ThreadLayout, st.permutations(range(bits)), st.integers(0, 2**bits - 1))
    source = draw(st.one_of(st.none(), layouts))
    program = Random(draw, 1 << bits, source)
    program.start()
    for _ in range(draw(st.integers(1, 14))):
        program.step()
    return program, program.finish(draw(layouts) if source is not None else None)


@settings(max_examples=count(ci=150, full=10_000))
@given(programs(), st.sampled_from(NUMBERS), st.sampled_from([32, 64]), st.integers(0, 8))
def test_random_programs_agree_with_the_reference(
    made: tuple[Random, Func], n: int, index_bits: int, rows: int
) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "ints": rng.integers(-100, 100, 300).astype(np.int32),
        "table": rng.standard_normal(8 * 13).astype(np.float32),
    }
    scalars = {"n": n, "rows": rows}
    program, func = made
    shape = (PROGRAMS, program.size)
    outputs = {name: (shape, dtype) for name, dtype in program.outputs.items()}
    given = {name: mx.array(array) for name, array in arrays.items()}
    expected = evaluate(func, given, scalars, outputs, (PROGRAMS, 1, 1))
    templates = {name: np.array(expected[name]) for name in outputs}
    lowered = lower(func, context(index_bits))
    found, written = simulate.run(lowered, arrays | templates, scalars, (PROGRAMS,))
    for name in outputs:
        assert written[name].all()
        np.testing.assert_array_equal(found[name], templates[name])
