"""The metal op set: one thread's program. Every value is a scalar, uniform or one per thread.

i32 and u32 arithmetic wraps. `nowrap` on a Binary says that a range proof excludes overflow, so
that an emitter may write plain signed arithmetic, which is undefined on overflow in both languages.
"""

from __future__ import annotations

from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u16, u32, u64
from metile_mlx.errors import CompileError
from metile_mlx.ir.arith import (
    REDUCED,
    TILE_ONLY,
    BinaryKind,
    CombineKind,
    CompareKind,
    UnaryKind,
    check_unary,
    element,
)
from metile_mlx.ir.core import Block, Effect, Op, Value, op
from metile_mlx.ir.types import PointerType, ScalarType, ScratchType, Type, VectorType


def scalar(dtype: DType, *values: Value | None) -> ScalarType:
    """A scalar type, uniform exactly when all `values` are."""
    types = [value.type for value in values if value is not None]
    return ScalarType(dtype, all(isinstance(t, ScalarType) and t.uniform for t in types))


@op("metal.constant")
class Constant(Op):
    """A literal."""

    value: int | float | bool
    dtype: DType

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(self.dtype),)


@op("metal.thread_index")
class ThreadIndex(Op):
    """This thread's index in its threadgroup, u32, 0 <= index < Func.threads."""

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(u32, uniform=False),)


@op("metal.program_id")
class ProgramId(Op):
    """The threadgroup's position in the grid, i32."""

    axis: int

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(i32),)


@op("metal.num_programs")
class NumPrograms(Op):
    """The grid's extent in threadgroups, i32."""

    axis: int

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(i32),)


@op("metal.unary")
class Unary(Op):
    """One operand; f16 and bf16 results are rounded to their dtype."""

    kind: UnaryKind
    src: Value

    def infer(self) -> tuple[Type, ...]:
        return (self.src.type,)

    def verify(self) -> None:
        check_unary(self.kind, element(self.src))


@op("metal.binary")
class Binary(Op):
    """Two operands of one dtype. Integer DIV and REM truncate; the divisor is never zero or -1.

    SHR is arithmetic on i32. Shift counts are taken modulo the width.
    """

    kind: BinaryKind
    lhs: Value
    rhs: Value
    nowrap: bool = False

    def infer(self) -> tuple[Type, ...]:
        return (scalar(element(self.lhs), self.lhs, self.rhs),)

    def verify(self) -> None:
        # Memory offsets are u64 and wire types u16: wider than the language's own arithmetic.
        if element(self.lhs) != element(self.rhs) or self.kind in TILE_ONLY:
            raise CompileError(
                f"metal.binary {self.kind.value} on {element(self.lhs)} and {element(self.rhs)}"
            )


@op("metal.compare")
class Compare(Op):
    """Comparison, bool result."""

    kind: CompareKind
    lhs: Value
    rhs: Value

    def infer(self) -> tuple[Type, ...]:
        return (scalar(bool_, self.lhs, self.rhs),)

    def verify(self) -> None:
        if element(self.lhs) != element(self.rhs):
            raise CompileError(f"metal.compare on {element(self.lhs)} and {element(self.rhs)}")


@op("metal.select")
class Select(Op):
    """`on_true` where `condition`, else `on_false`; both are evaluated."""

    condition: Value
    on_true: Value
    on_false: Value

    def infer(self) -> tuple[Type, ...]:
        return (scalar(element(self.on_true), self.condition, self.on_true, self.on_false),)

    def verify(self) -> None:
        if element(self.condition) != bool_ or element(self.on_true) != element(self.on_false):
            raise CompileError("metal.select takes a bool and two values of one dtype")


@op("metal.cast")
class Cast(Op):
    """Convert the value: floats round to nearest even, float to integer truncates toward zero."""

    src: Value
    dtype: DType

    def infer(self) -> tuple[Type, ...]:
        return (scalar(self.dtype, self.src),)


@op("metal.bitcast")
class Bitcast(Op):
    """Reinterpret the bits at the same width."""

    src: Value
    dtype: DType

    def infer(self) -> tuple[Type, ...]:
        return (scalar(self.dtype, self.src),)

    def verify(self) -> None:
        if element(self.src).bits != self.dtype.bits:
            raise CompileError(f"metal.bitcast from {element(self.src)} to {self.dtype}")


@op("metal.fma")
class Fma(Op):
    """a * b + c with one rounding."""

    a: Value
    b: Value
    c: Value

    def infer(self) -> tuple[Type, ...]:
        return (scalar(element(self.a), self.a, self.b, self.c),)


@op("metal.load", Effect.READ)
class Load(Op):
    """buffer[index] where `mask` (None: always), else `fill`; no access where masked off.

    The register slots of one tensor load have one number, `access`, that no other access has.
    `bounded`: whoever accesses does so within a declared view whose offsets all fit 31 bits, so
    that the index is the element's number, never that number wrapped (SPEC K2, X8). `given` as in
    tile.Load.
    """

    buffer: Value
    index: Value
    mask: Value | None = None
    fill: Value | None = None
    access: int | None = None
    bounded: bool = False
    given: bool = False

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.buffer.type, PointerType)
        return (scalar(self.buffer.type.dtype, self.index, self.mask, self.fill),)

    def verify(self) -> None:
        _address(self.buffer, self.index)
        if (self.mask is None) != (self.fill is None):
            raise CompileError("metal.load needs a mask and a fill, or neither")


@op("metal.store", Effect.WRITE)
class Store(Op):
    """buffer[index] = value where `mask` (None: always); `access` and `bounded` as in Load."""

    buffer: Value
    index: Value
    value: Value
    mask: Value | None = None
    access: int | None = None
    bounded: bool = False

    def verify(self) -> None:
        _address(self.buffer, self.index)
        assert isinstance(self.buffer.type, PointerType)
        if element(self.value) != self.buffer.type.dtype:
            raise CompileError(f"metal.store of {element(self.value)} to {self.buffer.type.dtype}")


@op("metal.print", Effect.WRITE)
class Print(Op):
    """A line with the value and its `place`: program x, y, z and thread, where `mask`."""

    value: Value
    place: tuple[Value, ...]
    register: int
    label: str
    mask: Value | None = None


def _address(buffer: Value, index: Value) -> None:
    if not isinstance(buffer.type, PointerType) or element(index) not in (u32, u64):
        raise CompileError(f"metal memory op on {buffer.type} at an index of {element(index)}")


GROUP_WIDTH = 4
"""Elements of a vector."""

GROUP_WIDTHS = (GROUP_WIDTH, 2 * GROUP_WIDTH)
"""Accesses that make a group: eight, two vectors, only of 16 bits each."""

GROUPED_DTYPES = (f16, bf16, f32)
"""What groups hold."""


@op("metal.load_group", Effect.READ)
class LoadGroup(Op):
    """Four or eight loads of one tensor load, four to a vector: part k is what its Load would give.

    The indices are consecutive in every thread, modulo 2**32. `checked`: whether some number may
    have wrapped, so that they have to be compared when the kernel runs (SPEC V1, V2). `bounded` as
    in Load.
    """

    buffer: Value
    indices: tuple[Value, ...]
    masks: tuple[Value | None, ...]
    fills: tuple[Value | None, ...]
    checked: bool = True
    access: int | None = None
    bounded: bool = False

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.buffer.type, PointerType)
        vector = VectorType(self.buffer.type.dtype, GROUP_WIDTH)
        return (vector,) * -(-len(self.indices) // GROUP_WIDTH)

    def part_of(self, vector: Value, lane: int) -> int:
        """Which part lane `lane` of a vector is."""
        return self.results.index(vector) * GROUP_WIDTH + lane

    def verify(self) -> None:
        _group(self, self.fills)
        for mask, fill in zip(self.masks, self.fills, strict=True):
            if (mask is None) != (fill is None):
                raise CompileError("metal.load_group needs a mask and a fill, or neither")

    def parts(self) -> tuple[tuple[Value, Value | None, Value | None], ...]:
        """Index, mask and fill of each lane."""
        return tuple(zip(self.indices, self.masks, self.fills, strict=True))


@op("metal.extract")
class Extract(Op):
    """Lane `lane` of a vector."""

    vector: Value
    lane: int

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.vector.type, VectorType)
        return (ScalarType(self.vector.type.dtype, uniform=False),)

    def verify(self) -> None:
        type_ = self.vector.type
        if not isinstance(type_, VectorType) or not 0 <= self.lane < type_.width:
            raise CompileError(f"metal.extract of lane {self.lane} from {type_}")


@op("metal.store_group", Effect.WRITE)
class StoreGroup(Op):
    """Stores of one tensor store; `values` aside, all as in LoadGroup."""

    buffer: Value
    indices: tuple[Value, ...]
    values: tuple[Value, ...]
    masks: tuple[Value | None, ...]
    checked: bool = True
    access: int | None = None
    bounded: bool = False

    def verify(self) -> None:
        _group(self, self.values)

    def parts(self) -> tuple[tuple[Value, Value, Value | None], ...]:
        """Index, value and mask of each lane."""
        return tuple(zip(self.indices, self.values, self.masks, strict=True))


def _group(item: LoadGroup | StoreGroup, others: tuple[Value | None, ...]) -> None:
    """Four or eight parts, consistent with the buffer.

    Raises:
        CompileError: another number of parts, or a dtype that doesn't fit.
    """
    counts = {len(part) for part in (item.indices, item.masks, others)}
    if len(counts) > 1 or not counts <= set(GROUP_WIDTHS):
        raise CompileError(f"{item.opcode} takes 4 or 8 of each of its operands")
    for index in item.indices:
        _address(item.buffer, index)
    if len({element(index) for index in item.indices}) > 1:
        raise CompileError(f"{item.opcode} takes indices of one dtype")
    assert isinstance(item.buffer.type, PointerType)
    dtype = item.buffer.type.dtype
    given = {element(value) for value in others if value is not None}
    if len(item.indices) * dtype.bytes > 16:
        raise CompileError(f"{item.opcode} of {len(item.indices)} {dtype}; 16 bytes are allowed")
    if dtype not in GROUPED_DTYPES or given - {dtype}:
        found = " and ".join(sorted(map(str, given))) or "nothing"
        raise CompileError(f"{item.opcode} of {found} in an array of {dtype}")
    if any(mask is not None and element(mask) != bool_ for mask in item.masks):
        raise CompileError(f"{item.opcode} takes bool masks")


@op("metal.threadgroup_alloc")
class ThreadgroupAlloc(Op):
    """Threadgroup memory, declared at kernel scope; `stages` as in tile.scratch."""

    dtype: DType
    elements: int
    slot: str
    stages: int | None = None

    def infer(self) -> tuple[Type, ...]:
        return (ScratchType(self.dtype, self.elements, self.stages or 1),)


@op("metal.threadgroup_store", Effect.WRITE)
class ThreadgroupStore(Op):
    """Write one element of threadgroup memory where `mask` (None: always); index is u32."""

    buffer: Value
    index: Value
    value: Value
    mask: Value | None = None


@op("metal.threadgroup_load", Effect.READ)
class ThreadgroupLoad(Op):
    """One element of threadgroup memory where `mask` (None: always), else `fill`; index is u32."""

    buffer: Value
    index: Value
    mask: Value | None = None
    fill: Value | None = None

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.buffer.type, ScratchType)
        return (ScalarType(self.buffer.type.dtype, uniform=False),)

    def verify(self) -> None:
        if (self.mask is None) != (self.fill is None):
            raise CompileError("metal.threadgroup_load needs a mask and a fill, or neither")


@op("metal.barrier", Effect.CONVERGENT)
class Barrier(Op):
    """All threads of the threadgroup meet; threadgroup memory is ordered across it."""

    role: str


@op("metal.shuffle", Effect.CONVERGENT)
class Shuffle(Op):
    """The value of `src` in lane `lane` (u16) of the same simdgroup."""

    src: Value
    lane: Value

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(element(self.src), uniform=False),)

    def verify(self) -> None:
        if element(self.lane) != u16:
            raise CompileError(f"metal.shuffle takes a u16 lane, got {element(self.lane)}")


@op("metal.simd_reduce", Effect.CONVERGENT)
class SimdReduce(Op):
    """The values of `src` in all 32 lanes of the simdgroup combined, the same in each of them.

    `uniform` states that every simdgroup combines the same values, or that there is only one:
    verify/reductions.py proves it.
    """

    kind: CombineKind
    src: Value
    uniform: bool = False

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(element(self.src), self.uniform),)

    def verify(self) -> None:
        if element(self.src) not in REDUCED:
            raise CompileError(f"metal.simd_reduce of {element(self.src)}, which nothing combines")


@op("metal.if")
class If(Op):
    """A branch on a uniform bool; a result is uniform where both blocks yield uniform values."""

    condition: Value
    then: Block
    otherwise: Block

    def infer(self) -> tuple[Type, ...]:
        sides = zip(self.then.ops[-1].operands(), self.otherwise.ops[-1].operands(), strict=True)
        return tuple(scalar(element(value), value, other) for value, other in sides)


@op("metal.yield", Effect.TERMINATOR)
class Yield(Op):
    """The values a block hands to its op."""

    values: tuple[Value, ...] = ()
