"""Matrix products and two-dimensional tiles, in both op sets (SPEC K6, P1, P4)."""

from __future__ import annotations

from math import prod

from metile_mlx.dtypes import bf16, f16, f32, i32
from metile_mlx.errors import CompileError
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Effect, Op, Value, op
from metile_mlx.ir.types import ScalarType, TileType, Type
from metile_mlx.layout.fragments import EDGE, MAX_EDGE
from metile_mlx.layout.operand import Layout, OperandLayout

OPERANDS = (f16, bf16, f32)
"""Dtypes of the operands of a product; both have one, and it is accumulated in f32."""


@op("tile.coordinate")
class Coordinate(Op):
    """Of each element of a tile, where it stands along `axis`, i32; `layout` None is open."""

    shape: tuple[int, ...]
    axis: int
    layout: Layout | None = None

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32, self.shape, self.layout),)

    def verify(self) -> None:
        if not 0 <= self.axis < len(self.shape):
            raise CompileError(f"[coordinate] a tile of shape {self.shape} has no axis {self.axis}")
        if any(extent < 1 or extent & (extent - 1) for extent in self.shape):
            raise CompileError(
                f"[coordinate] shape is {self.shape}, expected powers of two",
                hint="use the next power of two: what is outside the tensor's bounds is left out",
            )
        if self.layout is not None and self.layout.size != prod(self.shape):
            raise CompileError(
                f"[coordinate] shape {self.shape}, but {self.layout!r} owns {self.layout.size}"
            )


@op("tile.operand")
class Operand(Op):
    """The same tile where products need it: each simdgroup has what it multiplies."""

    src: Value
    layout: OperandLayout

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.src.type, TileType)
        return (self.src.type.with_layout(self.layout),)

    def verify(self) -> None:
        if not isinstance(self.src.type, TileType) or self.src.type.size != self.layout.size:
            raise CompileError(f"[operand] {self.src.type} has no owners of {self.layout!r}")


@op("tile.dot")
class Dot(Op):
    """acc + a @ b in f32: a is M by K, b is K by N, acc and the result M by N.

    K goes up in steps of 8, and each step adds to the sum of those before; in which order the eight
    products of a step are added is the hardware's choice.
    """

    a: Value
    b: Value
    acc: Value

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and K."""
        a, b = self.a.type, self.b.type
        assert isinstance(a, TileType)
        assert isinstance(b, TileType)
        return (a.shape[0], b.shape[1], a.shape[1])

    def infer(self) -> tuple[Type, ...]:
        return (self.acc.type,)

    def verify(self) -> None:
        shapes = [_matrix(value, name) for name, value in (("a", self.a), ("b", self.b))]
        (rows, depth), (other, columns) = shapes
        if depth != other:
            raise CompileError(
                f"[dot] a is {rows} x {depth} and b {other} x {columns}: a has {depth} columns, "
                f"b {other} rows",
                hint="a tile of (M, K) times one of (K, N) gives one of (M, N)",
            )
        if _matrix(self.acc, "acc") != (rows, columns):
            raise CompileError(
                f"[dot] acc is {self.acc.type}, expected a tile of shape {(rows, columns)}",
                hint=f"start with metile.zeros({(rows, columns)}, metile.f32)",
            )
        dtypes = element(self.a), element(self.b)
        if dtypes[0] != dtypes[1] or dtypes[0] not in OPERANDS:
            allowed = ", ".join(map(str, OPERANDS))
            raise CompileError(
                f"[dot] a is {dtypes[0]} and b is {dtypes[1]}, expected one dtype of {allowed}",
                hint=f"cast one of them: metile.cast(b, metile.{dtypes[0]})"
                if dtypes[0] in OPERANDS
                else "cast both: metile.cast(a, metile.f32)",
            )
        if element(self.acc) != f32:
            raise CompileError(
                f"[dot] acc is {element(self.acc)}, expected f32",
                hint="accumulate in f32 and cast the result",
            )


def _matrix(value: Value, name: str) -> tuple[int, int]:
    shape = value.type.shape if isinstance(value.type, TileType) else ()
    if len(shape) != 2:
        raise CompileError(
            f"[dot] {name} is {value.type}, expected a tile of two dimensions",
            hint="start with metile.zeros((M, N), metile.f32)"
            if name == "acc"
            else "load it with metile.tile_load(tensor, (row, column), (rows, columns))",
        )
    for extent in shape:
        if not EDGE <= extent <= MAX_EDGE or extent & (extent - 1):
            raise CompileError(
                f"[dot] {name} is {shape[0]} x {shape[1]}, expected powers of two from {EDGE} to "
                f"{MAX_EDGE}",
                hint=f"use tiles of at most {MAX_EDGE}, and more programs or steps of K"
                if extent > MAX_EDGE
                else "use a larger tile; what is outside the tensor's bounds is loaded as 0",
            )
    return (shape[0], shape[1])


@op("metal.fragment_multiply", Effect.CONVERGENT)
class FragmentMultiply(Op):
    """acc + a @ b of 8 by 8 matrices: two neighbours of a row in each lane of a simdgroup.

    layout/fragments.py says which. The results are f32, the operands f16, bf16 or f32.
    """

    a: tuple[Value, Value]
    b: tuple[Value, Value]
    acc: tuple[Value, Value]

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(f32, uniform=False),) * 2

    def verify(self) -> None:
        _same(self, (*self.a, *self.b), self.acc)


@op("metal.block_multiply", Effect.CONVERGENT)
class BlockMultiply(Op):
    """acc + a @ b of whole tiles by all threads of a threadgroup, on a CPU.

    `shape` is M, N and K. Each tile is row-major over its slots: value r of thread t is element
    t + r * threads.
    """

    a: tuple[Value, ...]
    b: tuple[Value, ...]
    acc: tuple[Value, ...]
    shape: tuple[int, int, int]

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(f32, uniform=False),) * len(self.acc)

    def verify(self) -> None:
        _same(self, (*self.a, *self.b), self.acc)
        rows, columns, depth = self.shape
        sizes = (rows * depth, depth * columns, rows * columns)
        counts = (len(self.a), len(self.b), len(self.acc))
        if len({size / count for size, count in zip(sizes, counts, strict=True)}) != 1:
            raise CompileError(f"{self.opcode} of {self.shape} from {counts} values per thread")


def _same(item: Op, operands: tuple[Value, ...], acc: tuple[Value, ...]) -> None:
    dtypes = {element(value) for value in operands}
    sums = {element(value) for value in acc}
    if len(dtypes) != 1 or not dtypes <= set(OPERANDS) or sums != {f32}:
        raise CompileError(f"{item.opcode} of {sorted(map(str, dtypes))} with {acc[0].type}")
