"""The tile ops of Stage.PLANNED: scratch, barriers, shuffles and reductions over whole tiles.

Every op has a meaning in MLX ops too: a permutation of logical elements through layouts and maps.
"""

from __future__ import annotations

from metile_mlx.dtypes import DType
from metile_mlx.errors import CompileError
from metile_mlx.ir.arith import CombineKind, check_reduced, element
from metile_mlx.ir.core import Effect, Op, Value, op
from metile_mlx.ir.types import ScalarType, ScratchType, TileType, Type
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout


@op("tile.scratch")
class Scratch(Op):
    """Threadgroup memory of its own for the whole kernel."""

    dtype: DType
    elements: int
    slot: str  # the report's scratch id; also keeps two allocations apart

    def infer(self) -> tuple[Type, ...]:
        return (ScratchType(self.dtype, self.elements),)


@op("tile.scratch_store", Effect.WRITE)
class ScratchStore(Op):
    """Each physical slot p writes its element of `value` to scratch element `slots(p)`."""

    buffer: Value
    value: Value
    slots: AffineMap


@op("tile.scratch_load", Effect.READ)
class ScratchLoad(Op):
    """Each physical slot p of `layout` reads scratch element `slots(p)`."""

    buffer: Value
    shape: tuple[int, ...]
    layout: ThreadLayout
    slots: AffineMap

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.buffer.type, ScratchType)
        return (TileType(self.buffer.type.dtype, self.shape, self.layout),)


@op("tile.barrier", Effect.CONVERGENT)
class Barrier(Op):
    """All threads of the threadgroup meet; their scratch writes before it are seen after it."""

    role: str  # "publish" or "release"


@op("tile.shuffle", Effect.CONVERGENT)
class Shuffle(Op):
    """Each physical slot p of `layout` takes the element of `src` held by slot `lanes(p)`."""

    src: Value
    layout: ThreadLayout
    lanes: AffineMap

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.src.type, TileType)
        return (self.src.type.with_layout(self.layout),)


@op("tile.planned_reduce", Effect.CONVERGENT)
class Reduce(Op):
    """All elements of an f32 tile combined: registers, lanes, then simdgroups (SPEC R2).

    `scratch` holds one partial result per simdgroup and serves this reduction only; None where the
    threadgroup is one simdgroup. The publication barrier is part of the op.
    """

    kind: CombineKind
    src: Value
    scratch: Value | None = None

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(element(self.src)),)

    def verify(self) -> None:
        check_reduced(self.kind, self.src)
        if self.scratch is not None and not isinstance(self.scratch.type, ScratchType):
            raise CompileError(f"[{self.kind.value}] scratch is {self.scratch.type}")
