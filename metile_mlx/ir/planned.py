"""The tile ops of Stage.PLANNED: scratch, barriers and shuffles, still over whole tiles.

Every op has a meaning in MLX ops too: a permutation of logical elements through layouts and maps.
"""

from __future__ import annotations

from metile_mlx.dtypes import DType
from metile_mlx.ir.core import Effect, Op, Value, op
from metile_mlx.ir.types import ScratchType, TileType, Type
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
