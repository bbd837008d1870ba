"""Scratch slots of later registers in C++: neighbours are written as neighbours (SPEC X4)."""

from __future__ import annotations

import re

import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Context, Schedule
from metile_mlx.dtypes import DType, f16, f32, u16, u32
from metile_mlx.emit.cpp import emit_cpp
from metile_mlx.emit.thread_tables import ThreadTables
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import Builder, Value
from metile_mlx.ir.metal import Binary, Cast, Constant, ThreadIndex
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import CPU
from tests.support.build import conversion_program


@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
@pytest.mark.parametrize("registers", [2, 4, 8])
def test_stores_of_all_registers_are_contiguous(registers: int, dtype: DType) -> None:
    """t ^ 256 of 256 threads is t + 256, which a compiler takes for neighbours."""
    size = 256 * registers
    bits = range(size.bit_length() - 1)
    source = ThreadLayout.identity(size, registers)
    turned = ThreadLayout([*bits[3:], *bits[:3]], 0, registers)
    ctx = Context(CPU)
    body = emit_cpp(lower(conversion_program(source, turned, dtype), ctx), ctx).body
    stored = re.findall(rf"scratch_{dtype}\[(.*)\] = ", body)
    assert set(stored) == {"thread", *[f"(thread + {256 * r}u)" for r in range(1, registers)]}


class Values:
    """Index work of 64 threads."""

    def __init__(self) -> None:
        self.builder = Builder()
        self.thread = self.builder.add(ThreadIndex())

    def op(self, kind: BinaryKind, lhs: Value, number: int) -> Value:
        return self.builder.add(Binary(kind, lhs, self.builder.add(Constant(number, u32))))

    def behind(self, value: Value) -> int | None:
        made = {value: item for item in self.builder.ops for value in item.results}
        return ThreadTables(64, made).behind(value)


def test_how_far_a_value_lies_behind_the_thread_index() -> None:
    v = Values()
    assert v.behind(v.thread) == 0
    assert v.behind(v.op(BinaryKind.ADD, v.thread, 7)) == 7
    for kind in (BinaryKind.XOR, BinaryKind.OR, BinaryKind.ADD):
        assert v.behind(v.op(kind, v.thread, 192)) == 192
    # Not where a bit of the thread index takes part, and not of another order.
    assert v.behind(v.op(BinaryKind.XOR, v.thread, 32)) is None
    assert v.behind(v.op(BinaryKind.AND, v.thread, 31)) is None
    assert v.behind(v.op(BinaryKind.AND, v.thread, 63)) == 0
    assert v.behind(v.op(BinaryKind.SHL, v.thread, 1)) is None
    assert v.behind(v.builder.add(Cast(v.op(BinaryKind.ADD, v.thread, 64), u16))) == 64
    assert v.behind(v.builder.add(Constant(3, u32))) is None


@pytest.mark.parametrize("dtype", [f16, f32], ids=str)
def test_reads_of_whole_simdgroups_are_contiguous_and_not_unrolled(dtype: DType) -> None:
    """Lanes stay side by side where simdgroups and registers change places."""
    source = ThreadLayout.identity(1024, 4)
    turned = ThreadLayout((0, 1, 2, 3, 4, 8, 5, 9, 6, 7), 0, 4)
    ctx = Context(CPU, Schedule(conversion="scratch"))
    body = emit_cpp(lower(conversion_program(source, turned, dtype), ctx), ctx).body
    assert "METILE_UNROLL" not in body
    found = re.findall(r" = \w+_high \+ \((.*)\);", body)
    near = [f"((low & 31u)) + {distance}u" for distance in (32, 128, 160)]
    assert set(found) == {"(low & 31u)", *near}


@pytest.mark.parametrize(
    ("columns", "constant", "expected"),
    [
        ((1, 2, 4, 8, 16, 256), 0, True),
        ((1, 2, 4, 8, 16, 256), 64, True),
        # In order, which is no permutation but a distance; and lanes that are not side by side.
        ((1, 2, 4, 8, 16, 32), 64, False),
        ((2, 1, 4, 8, 16, 256), 0, False),
        ((1, 2, 4, 8, 256, 256), 0, False),
    ],
)
def test_bits_of_the_thread_index_in_other_places(
    columns: tuple[int, ...], constant: int, expected: bool
) -> None:
    v = Values()
    value = v.op(BinaryKind.AND, v.thread, 0)
    for bit, column in enumerate(columns):
        there = v.op(BinaryKind.AND, v.thread, 1 << bit)
        there = v.op(BinaryKind.MUL, there, column >> bit) if column >> bit else there
        value = v.builder.add(Binary(BinaryKind.XOR, value, there))
    value = v.op(BinaryKind.XOR, value, constant)
    made = {value: item for item in v.builder.ops for value in item.results}
    found = ThreadTables(64, made).permutation(value)
    assert (found is not None) == expected
    if found is not None:
        assert (found.columns[:6], found.constant) == (columns, constant)
