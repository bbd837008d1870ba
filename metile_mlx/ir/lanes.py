"""Raw lanes, threads and threadgroup memory of the automatic path, in both op sets (SPEC K6).

The user says here what threads do and where they meet; the compiler only checks it. `construct` is
how the user has written an op. Threadgroup memory that was declared is a tensor: it is loaded and
stored by the ops of tensors.
"""

from __future__ import annotations

from math import prod

from metile_mlx.dtypes import DType, i32
from metile_mlx.errors import CompileError
from metile_mlx.ir import metal
from metile_mlx.ir.arith import REDUCED, CombineKind, element
from metile_mlx.ir.core import Effect, Func, Op, Value, op, walk
from metile_mlx.ir.types import ScalarType, TensorType, TileType, Type
from metile_mlx.target import SIMD_WIDTH


def threads_of(func: Func) -> int:
    """Of a kernel without stated layouts: one for each element of a tile, else one simdgroup."""
    types = (value.type for item in walk(func.body) for value in item.results)
    return next((type_.size for type_ in types if isinstance(type_, TileType)), SIMD_WIDTH)


def _own(src: Value, dtype: DType) -> Type:
    """A value of each thread's own, a tile where `src` is one."""
    if isinstance(src.type, TileType):
        return src.type.with_dtype(dtype)
    return ScalarType(dtype, uniform=False)


@op("tile.thread_id")
class ThreadId(Op):
    """The thread's number in its threadgroup."""

    construct: str

    def infer(self) -> tuple[Type, ...]:
        return (ScalarType(i32, uniform=False),)


@op("tile.lane_reduce", Effect.CONVERGENT)
class LaneReduce(Op):
    """The values of all 32 lanes of the simdgroup combined, in each of them."""

    kind: CombineKind
    src: Value
    construct: str

    def infer(self) -> tuple[Type, ...]:
        return (_own(self.src, element(self.src)),)

    def verify(self) -> None:
        if element(self.src) not in REDUCED:
            names = ", ".join(str(dtype) for dtype in REDUCED)
            raise CompileError(
                f"[{self.construct}] value is {element(self.src)}, expected one of {names}",
                hint="cast it first: metile.cast(value, metile.f32)",
            )


@op("tile.lane_shuffle", Effect.CONVERGENT)
class LaneShuffle(Op):
    """The value that lane `lane` of the same simdgroup has; `lane` is i32, 0 to 31."""

    src: Value
    lane: Value
    construct: str

    def infer(self) -> tuple[Type, ...]:
        return (_own(self.src, element(self.src)),)

    def verify(self) -> None:
        if element(self.src).bits < 16:
            raise CompileError(
                f"[{self.construct}] value is {element(self.src)}, expected 16 bits or more",
                hint="cast it first: metile.cast(value, metile.i32)",
            )


@op("tile.shared")
class Shared(Op):
    """Threadgroup memory of the whole kernel, row-major."""

    dtype: DType
    shape: tuple[int, ...]
    slot: str
    construct: str

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def infer(self) -> tuple[Type, ...]:
        return (TensorType(self.dtype, len(self.shape), "shared"),)


@op("tile.sync", Effect.CONVERGENT)
class Sync(Op):
    """All threads of the threadgroup meet; threadgroup memory is ordered across it."""

    construct: str


DECLARED = (ThreadId, LaneReduce, LaneShuffle, Shared, Sync)
"""What only programs without stated layouts may hold (SPEC O4, O5)."""


@op("metal.lane_reduce", Effect.CONVERGENT)
class ThreadLaneReduce(metal.SimdReduce):
    """A SimdReduce that the user has asked for: the result stays a value of each thread's own."""


@op("metal.lane_shuffle", Effect.CONVERGENT)
class ThreadLaneShuffle(metal.Shuffle):
    """A Shuffle that the user has asked for."""


@op("metal.shared")
class SharedAlloc(metal.ThreadgroupAlloc):
    """Threadgroup memory that the user has declared: verify/order.py looks for races."""


@op("metal.sync", Effect.CONVERGENT)
class ThreadSync(metal.Barrier):
    """A barrier that the user has declared."""


RAW = (ThreadLaneReduce, ThreadLaneShuffle, SharedAlloc, ThreadSync)
"""What of threads' communication the user has asked for."""
