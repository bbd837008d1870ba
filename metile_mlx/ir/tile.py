"""The tile op set: what a kernel means, over whole tiles, before anyone owns anything.

Every op here has a meaning in MLX ops (runtime/reference.py), over all programs at once. The ops
that make communication explicit at Stage.PLANNED are in ir/planned.py.
"""

from __future__ import annotations

import math

from metile_mlx.dtypes import DType, bool_, i32
from metile_mlx.errors import CompileError
from metile_mlx.ir.arith import (
    METAL_ONLY,
    BinaryKind,
    CombineKind,
    CompareKind,
    UnaryKind,
    check_binary,
    check_reduced,
    check_unary,
    element,
    join,
)
from metile_mlx.ir.core import Block, Effect, Op, Value, op
from metile_mlx.ir.types import PointerType, ScalarType, TensorType, TileType, Type
from metile_mlx.layout.operand import Layout
from metile_mlx.layout.thread_layout import ThreadLayout


@op("tile.constant")
class Constant(Op):
    """A compile-time number."""

    value: int | float | bool
    dtype: DType

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(self.dtype),)


@op("tile.program_id")
class ProgramId(Op):
    """This program's position along a grid axis, i32."""

    axis: int

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(i32),)


@op("tile.num_programs")
class NumPrograms(Op):
    """The extent of the grid along an axis, i32."""

    axis: int

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(i32),)


@op("tile.arange")
class Arange(Op):
    """start, start + 1, ... start + size - 1 as i32; `layout` None leaves the owners open."""

    start: Value
    size: int
    layout: Layout | None = None

    def infer(self) -> tuple[Type, ...]:
        return (TileType(i32, (self.size,), self.layout),)

    def verify(self) -> None:
        if self.size < 1 or self.size & (self.size - 1):
            raise CompileError(
                f"[arange] size is {self.size}, expected a power of two",
                hint="use the next power of two and mask the rest: metile.next_power_of_2(n)",
            )
        if self.layout is not None and self.layout.size != self.size:
            raise CompileError(
                f"[arange] size is {self.size}, but {self.layout!r} owns {self.layout.size}",
                hint="give a layout of the tile's size",
            )
        if self.start.type != ScalarType(i32):
            raise CompileError(
                f"[arange] start is {self.start.type}, expected a uniform i32 scalar"
            )


@op("tile.splat")
class Splat(Op):
    """A tile of one repeated uniform scalar."""

    src: Value
    shape: tuple[int, ...]
    layout: Layout | None = None

    def infer(self) -> tuple[Type, ...]:
        return (TileType(element(self.src), self.shape, self.layout),)


@op("tile.unary")
class Unary(Op):
    """Elementwise, one operand."""

    kind: UnaryKind
    src: Value

    def infer(self) -> tuple[Type, ...]:
        return (self.src.type,)

    def verify(self) -> None:
        check_unary(self.kind, element(self.src))


@op("tile.binary")
class Binary(Op):
    """Elementwise, two operands of one dtype; uniform scalars broadcast."""

    kind: BinaryKind
    lhs: Value
    rhs: Value

    def infer(self) -> tuple[Type, ...]:
        return (join((self.lhs, self.rhs), element(self.lhs)),)

    def verify(self) -> None:
        if self.kind in METAL_ONLY:
            raise CompileError(f"{self.kind.value} is not a tile operation")
        check_binary(self.kind, element(self.lhs), element(self.rhs))


@op("tile.compare")
class Compare(Op):
    """Elementwise comparison, bool result."""

    kind: CompareKind
    lhs: Value
    rhs: Value

    def infer(self) -> tuple[Type, ...]:
        return (join((self.lhs, self.rhs), bool_),)

    def verify(self) -> None:
        if element(self.lhs) != element(self.rhs):
            raise CompileError(
                f"comparison takes one dtype, got {element(self.lhs)} and {element(self.rhs)}"
            )


@op("tile.select")
class Select(Op):
    """`on_true` where `condition`, else `on_false`."""

    condition: Value
    on_true: Value
    on_false: Value

    def infer(self) -> tuple[Type, ...]:
        return (join((self.condition, self.on_true, self.on_false), element(self.on_true)),)

    def verify(self) -> None:
        if element(self.condition) != bool_:
            raise CompileError(
                f"[where] condition is {element(self.condition)}, expected bool",
                hint="compare first: metile.where(x != 0, ...)",
            )
        if element(self.on_true) != element(self.on_false):
            raise CompileError(
                f"[where] takes one dtype, got {element(self.on_true)} and {element(self.on_false)}"
            )


@op("tile.cast")
class Cast(Op):
    """Convert the value: floats round to nearest even, float to integer truncates toward zero."""

    src: Value
    dtype: DType

    def infer(self) -> tuple[Type, ...]:
        return (join((self.src,), self.dtype),)

    def verify(self) -> None:
        element(self.src)


@op("tile.bitcast")
class Bitcast(Op):
    """Reinterpret the bits at the same width: how bf16 travels between threads (SPEC C3)."""

    src: Value
    dtype: DType

    def infer(self) -> tuple[Type, ...]:
        return (join((self.src,), self.dtype),)

    def verify(self) -> None:
        if element(self.src).bits != self.dtype.bits:
            raise CompileError(f"[bitcast] {element(self.src)} and {self.dtype} differ in width")


@op("tile.fma")
class Fma(Op):
    """a * b + c with one rounding, floats."""

    a: Value
    b: Value
    c: Value

    def infer(self) -> tuple[Type, ...]:
        return (join((self.a, self.b, self.c), element(self.a)),)

    def verify(self) -> None:
        dtypes = {element(part) for part in (self.a, self.b, self.c)}
        if len(dtypes) != 1 or not element(self.a).is_float:
            names = ", ".join(sorted(str(dtype) for dtype in dtypes))
            raise CompileError(f"[fma] takes floats of one dtype, got {names}")


@op("tile.reshape")
class Reshape(Op):
    """A row-major view of the same elements and owners in another shape (SPEC K3)."""

    src: Value
    shape: tuple[int, ...]

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.src.type, TileType)
        return (TileType(self.src.type.dtype, self.shape, self.src.type.layout),)

    def verify(self) -> None:
        if not isinstance(self.src.type, TileType):
            raise CompileError(f"[reshape] got {self.src.type}, expected a tile")
        if math.prod(self.shape) != self.src.type.size or min(self.shape, default=0) < 1:
            raise CompileError(
                f"[reshape] {self.src.type.shape} has {self.src.type.size} elements, "
                f"{self.shape} has {math.prod(self.shape)}",
                hint="the product of the extents must stay the same",
            )


@op("tile.tensor")
class Tensor(Op):
    """A view of an array argument; shape and strides (in elements) are uniform i32 (SPEC K2).

    `whole`: made for pointer arithmetic, of all elements (SPEC K6).
    """

    param: Value
    shape: tuple[Value, ...]
    strides: tuple[Value, ...]
    access: str
    whole: bool = False

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.param.type, PointerType)
        return (TensorType(self.param.type.dtype, len(self.shape), self.access),)

    def verify(self) -> None:
        if not isinstance(self.param.type, PointerType):
            raise CompileError(
                f"[tensor] {self.param.name} is {self.param.type}, expected an array parameter"
            )
        if len(self.strides) != len(self.shape):
            raise CompileError(
                f"[tensor] {len(self.shape)} extents but {len(self.strides)} strides"
            )


def _access(tensor: Value, indices: tuple[Value, ...], mask: Value | None, what: str) -> TensorType:
    """Check what load and store share."""
    if not isinstance(tensor.type, TensorType):
        raise CompileError(f"[{what}] {tensor.name} is {tensor.type}, expected a tensor")
    if len(indices) != tensor.type.rank:
        raise CompileError(
            f"[{what}] {tensor.name} has {tensor.type.rank} dimensions, got {len(indices)} indices",
            hint="give one index per dimension",
        )
    for index in indices:
        if element(index) != i32:
            raise CompileError(
                f"[{what}] an index of {tensor.name} is {element(index)}, expected i32",
                hint="cast the index: metile.cast(index, metile.i32)",
            )
    if mask is not None and element(mask) != bool_:
        raise CompileError(f"[{what}] mask is {element(mask)}, expected bool")
    return tensor.type


@op("tile.load", Effect.READ)
class Load(Op):
    """Read a tensor. Lanes out of bounds or masked off give `fill` (None: zero by default)."""

    tensor: Value
    indices: tuple[Value, ...]
    mask: Value | None = None
    fill: Value | None = None
    given: bool = False  # A scalar argument that came as an array, which nobody writes.

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.tensor.type, TensorType)
        shaped = (*self.indices, *([self.mask] if self.mask is not None else []))
        uniform = self.tensor.type.access != "shared"
        return (join(shaped, self.tensor.type.dtype, uniform),)

    def verify(self) -> None:
        tensor = _access(self.tensor, self.indices, self.mask, "load")
        if tensor.access == "write":
            raise CompileError(
                f"[load] {self.tensor.name} is declared access='write'",
                hint="declare access='read_write' to load from it",
            )
        if self.fill is not None and self.fill.type != ScalarType(tensor.dtype):
            raise CompileError(
                f"[load] fill is {self.fill.type}, expected a uniform {tensor.dtype} scalar"
            )


@op("tile.store", Effect.WRITE)
class Store(Op):
    """Write a tensor. Lanes out of bounds or masked off write nothing."""

    tensor: Value
    indices: tuple[Value, ...]
    value: Value
    mask: Value | None = None

    def verify(self) -> None:
        tensor = _access(self.tensor, self.indices, self.mask, "store")
        if tensor.access == "read":
            raise CompileError(
                f"[store] {self.tensor.name} is declared access='read'",
                hint="declare access='write' or 'read_write' to store to it",
            )
        if element(self.value) != tensor.dtype:
            raise CompileError(
                f"[store] value is {element(self.value)}, {self.tensor.name} holds {tensor.dtype}",
                hint=f"cast it: metile.cast(value, {tensor.dtype!r})",
            )
        masks = () if self.mask is None else (self.mask,)
        where = join((*self.indices, *masks), bool_)
        join((*self.indices, *masks, self.value), bool_)
        if isinstance(self.value.type, TileType) and where == ScalarType(bool_):
            raise CompileError(
                f"[store] a tile of {self.value.type.size} values goes to one address",
                hint="index with a tile: metile.arange(...)",
            )


@op("tile.print", Effect.WRITE)
class Print(Op):
    """Print a tile or scalar, one line per element, where `mask` (None: always)."""

    value: Value
    label: str
    mask: Value | None = None

    def verify(self) -> None:
        masks = () if self.mask is None else (self.mask,)
        if self.mask is not None and element(self.mask) != bool_:
            raise CompileError(f"[device_print] mask is {element(self.mask)}, expected bool")
        joined = join((self.value, *masks), element(self.value))
        if isinstance(joined, TileType) != isinstance(self.value.type, TileType):
            raise CompileError("[device_print] the mask is a tile and the value is a scalar")


@op("tile.convert")
class Convert(Op):
    """The same logical values with other owners (SPEC C1)."""

    src: Value
    layout: ThreadLayout

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.src.type, TileType)
        return (self.src.type.with_layout(self.layout),)

    def verify(self) -> None:
        if not isinstance(self.src.type, TileType):
            raise CompileError(
                f"[convert_layout] got {self.src.type}, expected a tile",
                hint="a uniform scalar has no owner to convert",
            )
        if self.layout.size != self.src.type.size:
            raise CompileError(
                f"[convert_layout] the tile has {self.src.type.size} elements, "
                f"{self.layout!r} owns {self.layout.size}"
            )


@op("tile.reduce")
class Reduce(Op):
    """A tile combined into one uniform scalar, or along `axis` (SPEC R2).

    Along an axis the result has the shape and owners of `src`: each element holds what its row
    gives, the elements that differ from it in this coordinate only.
    """

    kind: CombineKind
    src: Value
    axis: int | None = None

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(element(self.src)) if self.axis is None else self.src.type,)

    def verify(self) -> None:
        check_reduced(self.kind, self.src, self.axis)


@op("tile.if", Effect.PURE)
class If(Op):
    """A branch on a uniform bool scalar; both blocks end in Yield of the same types.

    Of two scalars one may be each thread's own: so is the result.
    """

    condition: Value
    then: Block
    otherwise: Block

    def infer(self) -> tuple[Type, ...]:
        sides = (block.ops[-1].operands() for block in (self.then, self.otherwise))
        return tuple(_either(a.type, b.type) for a, b in zip(*sides, strict=True))

    def verify(self) -> None:
        if self.condition.type != ScalarType(bool_):
            raise CompileError(
                f"`if` needs a uniform bool scalar, got {self.condition.type}",
                hint="use metile.where(condition, a, b), or mask= of load and store",
            )


def _either(a: Type, b: Type) -> Type:
    """The type of a value that is one of the two."""
    is_own = isinstance(b, ScalarType) and not b.uniform
    return b if is_own and isinstance(a, ScalarType) else a


@op("tile.yield", Effect.TERMINATOR)
class Yield(Op):
    """The values a block hands to its op."""

    values: tuple[Value, ...] = ()
