"""Short forms on top of `Program` for kernels at Stage.TILE with views of any rank."""

from __future__ import annotations

from metile_mlx.dtypes import DType, f32, i32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Block, Builder, Value
from metile_mlx.ir.types import PointerType
from metile_mlx.layout.thread_layout import ThreadLayout
from tests.support.build import Program


class TileProgram(Program):
    """Numbers may stand for constants wherever a uniform i32 value is taken."""

    def uniform(self, value: Value | int) -> Value:
        """`value`, or a constant."""
        return value if isinstance(value, Value) else self.number(value)

    def tensor(
        self,
        name: str,
        shape: tuple[Value | int, ...],
        access: str,
        strides: tuple[Value | int, ...] | None = None,
        dtype: DType = f32,
    ) -> Value:
        """A view of the array parameter `name`, made at first use; strides default to row-major."""
        param = next((p for p in self.params if p.name == name), None)
        if param is None:
            param = self.param(name, PointerType(dtype))
        extents = tuple(self.uniform(extent) for extent in shape)
        if strides is None:
            step = self.number(1)
            found = [step]
            for extent in reversed(extents[1:]):
                step = self.op(BinaryKind.MUL, extent, step) if len(found) > 1 else extent
                found.append(step)
            steps = tuple(reversed(found))[: len(shape)]
        else:
            steps = tuple(self.uniform(stride) for stride in strides)
        return self.add(tile.Tensor(param, extents, steps, access), f"{name}_tensor")

    def program_id(self, axis: int = 0) -> Value:
        return self.add(tile.ProgramId(axis))

    def op(self, kind: BinaryKind, lhs: Value, rhs: Value | int) -> Value:
        return self.add(tile.Binary(kind, lhs, self.uniform(rhs)))

    def compare(self, kind: CompareKind, lhs: Value, rhs: Value | int) -> Value:
        return self.add(tile.Compare(kind, lhs, self.uniform(rhs)))

    def unary(self, kind: UnaryKind, src: Value) -> Value:
        return self.add(tile.Unary(kind, src))

    def load(
        self,
        tensor: Value,
        *indices: Value | int,
        mask: Value | None = None,
        fill: Value | None = None,
    ) -> Value:
        return self.add(tile.Load(tensor, tuple(map(self.uniform, indices)), mask, fill))

    def store(
        self, tensor: Value, *indices: Value | int, value: Value, mask: Value | None = None
    ) -> None:
        self.emit(tile.Store(tensor, tuple(map(self.uniform, indices)), value, mask))

    def lanes(self, size: int, start: Value | int = 0, layout: ThreadLayout | None = None) -> Value:
        """start, start + 1, ..."""
        return self.add(tile.Arange(self.uniform(start), size, layout))

    def begin(self) -> Builder:
        """Ops go to a new block from here; returns the builder to go back to."""
        outer, self.builder = self.builder, Builder()
        return outer

    def end(self, outer: Builder, *values: Value) -> Block:
        """Close the block with a yield of `values`."""
        self.emit(tile.Yield(values))
        block, self.builder = self.builder.block(), outer
        return block


def transpose8(
    batches: Value | int | None = None, dtype: DType = f32, scalar: bool = False
) -> TileProgram:
    """result[p] = source[p] transposed, for 8 by 8 blocks; `batches` is the scalar n by default."""
    p = TileProgram("transpose8")
    count = p.scalar("n", i32) if scalar or batches is None else batches
    source = p.tensor("source", (count, 8, 8), "read", dtype=dtype)
    result = p.tensor("result", (count, 8, 8), "write", dtype=dtype)
    rows, columns = ThreadLayout.identity(64), ThreadLayout((3, 4, 5, 0, 1, 2))
    block = p.program_id()
    read = p.lanes(64, 0, rows)
    value = p.load(source, block, p.op(BinaryKind.FLOORDIV, read, 8), p.op(BinaryKind.MOD, read, 8))
    moved = p.add(tile.Convert(value, columns), "moved")
    written = p.lanes(64, 0, columns)
    p.store(
        result,
        block,
        p.op(BinaryKind.MOD, written, 8),
        p.op(BinaryKind.FLOORDIV, written, 8),
        value=moved,
    )
    return p
