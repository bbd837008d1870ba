"""The tile ops of Stage.PLANNED: scratch, barriers, shuffles and reductions over whole tiles.

A conversion of several steps holds `slots` between them: values of the threads' register slots that
no layout describes. Its last step says which layout has come of it. Every op has a meaning in MLX
ops too: a permutation of logical elements through layouts and maps.
"""

from __future__ import annotations

from metile_mlx.dtypes import DType, i32
from metile_mlx.errors import CompileError
from metile_mlx.ir.arith import CombineKind, check_reduced, element
from metile_mlx.ir.core import Effect, Op, Value, op
from metile_mlx.ir.types import ScalarType, ScratchType, SlotsType, TileType, Type
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.operand import Layout
from metile_mlx.layout.thread_layout import ThreadLayout


@op("tile.scratch")
class Scratch(Op):
    """Threadgroup memory of its own for the whole kernel.

    It is made of `stages` of one size, one behind the other; None is one.
    """

    dtype: DType
    elements: int
    slot: str  # the report's scratch id; also keeps two allocations apart
    stages: int | None = None

    def infer(self) -> tuple[Type, ...]:
        return (ScratchType(self.dtype, self.elements, self.stages or 1),)


@op("tile.scratch_store", Effect.WRITE)
class ScratchStore(Op):
    """Slot p of `value`, a tile or slots, goes to scratch element `slots(p) - skip`.

    Only the slots of `registers` do; None is all of them. The element is one of `stage`, a uniform
    i32, where the scratch has stages.
    """

    buffer: Value
    value: Value
    slots: AffineMap
    registers: tuple[int, ...] | None = None
    skip: int = 0
    stage: Value | None = None

    def verify(self) -> None:
        held(self.value)
        check_stage(self.stage)


@op("tile.scratch_load", Effect.READ)
class ScratchLoad(Op):
    """Slot p reads scratch element `slots(p) - skip`, of `stage`: a tile of `layout`, or slots.

    Only the slots of `registers` do (None: all); in the others is what `base` holds there.
    """

    buffer: Value
    shape: tuple[int, ...]
    layout: Layout | None
    slots: AffineMap
    registers: tuple[int, ...] | None = None
    skip: int = 0
    base: Value | None = None
    stage: Value | None = None

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.buffer.type, ScratchType)
        dtype = self.buffer.type.dtype
        if self.layout is not None:
            return (TileType(dtype, self.shape, self.layout),)
        assert self.base is not None
        return (SlotsType(dtype, self.shape, held(self.base).registers),)

    def verify(self) -> None:
        check_stage(self.stage)
        if self.base is None and (self.layout is None or self.registers is not None):
            raise CompileError("tile.scratch_load of some slots needs what the others hold")
        if self.base is not None:
            assert isinstance(self.buffer.type, ScratchType)
            made = held(self.base)
            if (made.dtype, made.shape) != (self.buffer.type.dtype, self.shape):
                raise CompileError(f"tile.scratch_load into {made}")


@op("tile.barrier", Effect.CONVERGENT)
class Barrier(Op):
    """All threads of the threadgroup meet; their scratch writes before it are seen after it."""

    role: str  # "publish", "release", or "rotate": publish one stage and release another


@op("tile.shuffle", Effect.CONVERGENT)
class Shuffle(Op):
    """Slot p takes what slot `lanes(p)` of `src` holds, in its simdgroup: a tile, or slots.

    Only the slots of `registers` do (None: all); the others keep what `src` holds there. Which
    register a slot takes from depends on its register alone.
    """

    src: Value
    layout: ThreadLayout | None
    lanes: AffineMap
    registers: tuple[int, ...] | None = None

    def infer(self) -> tuple[Type, ...]:
        return (moved(self.src, self.layout),)


@op("tile.choose")
class Choose(Op):
    """Register r takes register `registers[r][b]` of its thread, b being bit `bit` of the thread.

    Of `src`, a tile or slots; makes a tile of `layout`, or slots. Renames where the two agree.
    """

    src: Value
    layout: ThreadLayout | None
    bit: int
    registers: tuple[tuple[int, int], ...]

    def infer(self) -> tuple[Type, ...]:
        return (moved(self.src, self.layout),)

    def verify(self) -> None:
        count = held(self.src).registers
        named = [r for pair in self.registers for r in pair]
        if len(self.registers) != count or any(not 0 <= r < count for r in named):
            raise CompileError(f"tile.choose names other registers than the {count} of {self.src}")


def check_stage(stage: Value | None) -> None:
    """Which stage is accessed is a number that all threads agree on."""
    if stage is not None and stage.type != ScalarType(i32):
        raise CompileError(f"the stage is {stage.type}, expected a uniform i32 scalar")


def held(value: Value) -> SlotsType:
    """What the threads hold of a tile or of slots."""
    type_ = value.type
    if isinstance(type_, TileType) and type_.layout is not None:
        return SlotsType(type_.dtype, type_.shape, type_.layout.elements_per_thread)
    if not isinstance(type_, SlotsType):
        raise CompileError(f"{value!r} is no tile with a layout and no slots")
    return type_


def moved(src: Value, layout: ThreadLayout | None) -> Type:
    """The type of what `src` becomes: a tile where a layout is given."""
    made = held(src)
    return made if layout is None else TileType(made.dtype, made.shape, layout)


@op("tile.planned_reduce", Effect.CONVERGENT)
class Reduce(Op):
    """A tile combined, whole or along an axis: registers, lanes, then simdgroups (SPEC R2).

    `scratch` holds one partial result per simdgroup, or per simdgroup and row, and serves this
    reduction only; None where no row spans two simdgroups. The publication barrier is part of it.
    So is, with `release`, a barrier behind its reads: in a loop, where the next iteration writes
    there again.
    """

    kind: CombineKind
    src: Value
    scratch: Value | None = None
    axis: int | None = None
    release: bool = False

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(element(self.src)) if self.axis is None else self.src.type,)

    def verify(self) -> None:
        check_reduced(self.kind, self.src, self.axis)
        if self.scratch is not None and not isinstance(self.scratch.type, ScratchType):
            raise CompileError(f"[{self.kind.value}] scratch is {self.scratch.type}")
