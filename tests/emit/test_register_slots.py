"""Scratch slots of later registers in C++: neighbours are written as neighbours (SPEC X4)."""

from __future__ import annotations

import re

import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Context
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
