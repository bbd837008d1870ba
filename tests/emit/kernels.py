"""Kernels built by hand at Stage.THREAD, as the passes before emission leave them."""

from __future__ import annotations

from metile_mlx.context import Context
from metile_mlx.dtypes import DType, bf16, bool_, f32, i32, u16, u32, u64
from metile_mlx.ir.arith import BinaryKind, CompareKind
from metile_mlx.ir.core import Builder, Func, Value
from metile_mlx.ir.metal import (
    Barrier,
    Binary,
    Bitcast,
    Cast,
    Compare,
    Constant,
    Load,
    ProgramId,
    Shuffle,
    Store,
    ThreadgroupAlloc,
    ThreadgroupLoad,
    ThreadgroupStore,
    ThreadIndex,
)
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.layout.affine import AffineMap
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


class Tile(Maker):
    """A kernel of one value per thread: programs of `threads` elements of `source`, bounds
    checked."""

    def __init__(self, threads: int, dtype: DType = f32) -> None:
        super().__init__()
        self.threads = threads
        self.dtype = dtype
        self.source = source_pointer(dtype)
        self.destination = output_pointer(dtype)
        self.batches = Value(ScalarType(i32), "batches")
        self.scratch: dict[DType, Value] = {}
        self.thread = self.b.add(ThreadIndex())
        batch = self.b.add(ProgramId(0), "batch")
        below = Compare(CompareKind.LT, self.cast(batch, u32), self.cast(self.batches, u32))
        self.in_bounds = self.b.add(below, "in_bounds")
        base = self.op(BinaryKind.MUL, self.cast(batch, u64), self.const(threads, u64), "base")
        self.offset = self.op(BinaryKind.ADD, base, self.cast(self.thread, u64), "offset")
        self.values = self.b.add(
            Load(self.source, self.offset, self.in_bounds, self.const(0, dtype)), "values"
        )

    def slot(self, moves: AffineMap) -> Value:
        """The image of the thread index, u32, as shifts and masks."""
        by_shift: dict[int, int] = {}
        for bit, column in enumerate(moves.columns):
            shift = column.bit_length() - 1 - bit
            by_shift[shift] = by_shift.get(shift, 0) | 1 << bit
        total: Value | None = None
        for shift, mask in by_shift.items():
            part = self.op(BinaryKind.AND, self.thread, self.const(mask, u32))
            if shift:
                kind = BinaryKind.SHL if shift > 0 else BinaryKind.SHR
                part = self.op(kind, part, self.const(abs(shift), u32))
            total = part if total is None else self.op(BinaryKind.OR, total, part)
        assert total is not None
        if moves.constant:
            total = self.op(BinaryKind.XOR, total, self.const(moves.constant, u32))
        return total

    def wired(self, value: Value) -> Value:
        """As it travels: bool as u32, bf16 as u16 (SPEC C3)."""
        if self.dtype == bool_:
            return self.cast(value, u32)
        return self.b.add(Bitcast(value, u16)) if self.dtype == bf16 else value

    def received(self, value: Value, name: str) -> Value:
        """Back from the wire."""
        if self.dtype == bool_:
            return self.cast(value, bool_, name)
        return self.b.add(Bitcast(value, bf16), name) if self.dtype == bf16 else value

    def exchange(self, value: Value, moves: AffineMap, name: str = "converted") -> Value:
        """Through threadgroup scratch, with both barriers."""
        wired = self.wired(value)
        wire: DType = wired.type.dtype  # type: ignore[union-attr]
        if wire not in self.scratch:
            alloc = ThreadgroupAlloc(wire, self.threads, f"scratch_{wire}")
            self.scratch[wire] = self.b.add(alloc)
        scratch = self.scratch[wire]
        self.b.emit(ThreadgroupStore(scratch, self.thread, wired))
        self.b.emit(Barrier("publish"))
        moved = self.b.add(ThreadgroupLoad(scratch, self.slot(moves)), name)
        self.b.emit(Barrier("release"))
        return self.received(moved, name)

    def shuffle(self, value: Value, moves: AffineMap, name: str = "shuffled") -> Value:
        """Within each simdgroup; `moves` is a map of 5 bits."""
        lane = self.cast(self.slot(moves), u16, "source_lane")
        return self.received(self.b.add(Shuffle(self.wired(value), lane), name), name)

    def store(self, value: Value, pointer: Value | None = None) -> None:
        """To this program's part of an output."""
        self.b.emit(Store(pointer or self.destination, self.offset, value, self.in_bounds))

    def func(self, name: str = "tile", extra: tuple[Value, ...] = ()) -> Func:
        """The kernel; `extra` are its other parameters, outputs last."""
        params = (self.source, self.batches, *extra, self.destination)
        ordered = sorted(params, key=lambda param: getattr(param.type, "writable", False))
        return Func(name, tuple(ordered), self.b.block(), threads=self.threads)
