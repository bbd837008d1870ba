"""Kernels built by hand at Stage.THREAD, as the passes before emission leave them."""

from __future__ import annotations

from metile_mlx.context import Context
from metile_mlx.dtypes import DType, f32, i32, u32
from metile_mlx.ir.arith import BinaryKind, CompareKind
from metile_mlx.ir.core import Builder, Func, Value
from metile_mlx.ir.metal import (
    Barrier,
    Binary,
    Cast,
    Compare,
    Constant,
    Load,
    ProgramId,
    Store,
    ThreadgroupAlloc,
    ThreadgroupLoad,
    ThreadgroupStore,
    ThreadIndex,
)
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.target import CPU, METAL

MSL_CONTEXT = Context(METAL)


def cpu_context() -> Context:
    return Context(CPU, index_bits=64)


def metal_context(math_mode: str = "safe") -> Context:
    return Context(METAL, math_mode=math_mode)


class Maker:
    """Short forms for building a body."""

    def __init__(self) -> None:
        self.b = Builder()

    def const(self, value: float, dtype: DType) -> Value:
        return self.b.add(Constant(value, dtype))

    def op(self, kind: BinaryKind, lhs: Value, rhs: Value, name: str = "") -> Value:
        return self.b.add(Binary(kind, lhs, rhs), name)

    def cast(self, src: Value, dtype: DType, name: str = "") -> Value:
        return self.b.add(Cast(src, dtype), name)


def source_pointer(dtype: DType, name: str = "source") -> Value:
    return Value(PointerType(dtype), name)


def output_pointer(dtype: DType, name: str = "destination") -> Value:
    return Value(PointerType(dtype, writable=True), name)


def transpose8(dtype: DType = f32, index: DType = u32) -> Func:
    """The exchange of an 8 by 8 tile: 64 threads, threadgroup scratch, one uniform bounds check."""
    source, destination = source_pointer(dtype), output_pointer(dtype)
    batches = Value(ScalarType(i32), "batches")
    m = Maker()
    scratch = m.b.add(ThreadgroupAlloc(dtype, 64, f"scratch_{dtype}"))
    thread = m.b.add(ThreadIndex())
    batch = m.b.add(ProgramId(0), "batch")
    in_bounds = m.b.add(
        Compare(CompareKind.LT, m.cast(batch, u32), m.cast(batches, u32)), "in_bounds"
    )
    base = m.op(BinaryKind.MUL, m.cast(batch, index), m.const(64, index), "base")
    wide = thread if index == u32 else m.cast(thread, index)
    offset = m.op(BinaryKind.ADD, base, wide)
    values = m.b.add(Load(source, offset, in_bounds, m.const(0, dtype)), "values")
    m.b.emit(ThreadgroupStore(scratch, thread, values))
    m.b.emit(Barrier("publish"))
    column = m.op(BinaryKind.SHL, m.op(BinaryKind.AND, thread, m.const(7, u32)), m.const(3, u32))
    slot = m.op(BinaryKind.OR, column, m.op(BinaryKind.SHR, thread, m.const(3, u32)), "source_slot")
    converted = m.b.add(ThreadgroupLoad(scratch, slot), "converted")
    m.b.emit(Barrier("release"))
    m.b.emit(Store(destination, offset, converted, in_bounds))
    return Func("transpose8", (source, batches, destination), m.b.block(), threads=64)
