"""Types of IR values. A tile's type carries its layout: its owners are part of it (SPEC O1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from metile_mlx.dtypes import DType
from metile_mlx.layout.operand import Layout
from metile_mlx.layout.thread_layout import ThreadLayout


@dataclass(frozen=True)
class ScalarType:
    """One value: the same in every thread of the threadgroup (`uniform`) or one per thread."""

    dtype: DType
    uniform: bool = True

    def __str__(self) -> str:
        return f"{self.dtype}" if self.uniform else f"thread<{self.dtype}>"


@dataclass(frozen=True)
class TileType:
    """A tile of `shape`; `layout` owns its row-major flattened index, None while not decided."""

    dtype: DType
    shape: tuple[int, ...]
    layout: Layout | None = None

    @property
    def size(self) -> int:
        """Number of logical elements."""
        return math.prod(self.shape)

    @property
    def owners(self) -> ThreadLayout:
        """The layout, where it is decided and each element has one owner."""
        assert isinstance(self.layout, ThreadLayout)
        return self.layout

    def with_dtype(self, dtype: DType) -> TileType:
        return replace(self, dtype=dtype)

    def with_layout(self, layout: Layout | None) -> TileType:
        return replace(self, layout=layout)

    def __str__(self) -> str:
        extents = "x".join(str(extent) for extent in self.shape)
        owner = f", {self.layout!r}" if self.layout is not None else ""
        return f"tile<{extents}x{self.dtype}{owner}>"


@dataclass(frozen=True)
class SlotsType:
    """What the threads hold of a tile of `shape` in the middle of a conversion: no layout.

    Slot p is register p // T of thread p % T; what lies there is known to the conversion only.
    """

    dtype: DType
    shape: tuple[int, ...]
    registers: int

    @property
    def size(self) -> int:
        """Number of slots."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        extents = "x".join(str(extent) for extent in self.shape)
        return f"slots<{extents}x{self.dtype}, {self.registers} registers>"


@dataclass(frozen=True)
class PointerType:
    """An array argument: device memory of `dtype` elements.

    `writable` splits roles at Stage.THREAD: an input is read only, an output is written only. A
    read_write parameter has become two pointers there, so loads see the array as given (SPEC K7).
    """

    dtype: DType
    writable: bool = False

    def __str__(self) -> str:
        return f"ptr<{'mut ' if self.writable else ''}{self.dtype}>"


@dataclass(frozen=True)
class TensorType:
    """A declared view of an array argument (SPEC K2); `access` is read, write or read_write.

    Of threadgroup memory it is `shared`: each thread loads for itself (SPEC K6).
    """

    dtype: DType
    rank: int
    access: str

    def __str__(self) -> str:
        return f"tensor<{self.rank}d {self.dtype}, {self.access}>"


@dataclass(frozen=True)
class ScratchType:
    """Threadgroup memory: `elements` of `dtype`, in `stages` parts of one size."""

    dtype: DType
    elements: int
    stages: int = 1

    @property
    def bytes(self) -> int:
        return self.elements * self.dtype.bytes

    @property
    def pitch(self) -> int:
        """Elements of one stage."""
        return self.elements // self.stages

    def __str__(self) -> str:
        stages = f"{self.stages} x " if self.stages > 1 else ""
        return f"threadgroup<{stages}{self.pitch}x{self.dtype}>"


@dataclass(frozen=True)
class VectorType:
    """`width` neighbours of an array, loaded at once: one vector per thread (SPEC V2)."""

    dtype: DType
    width: int

    def __str__(self) -> str:
        return f"thread<{self.width}x{self.dtype}>"


Type = ScalarType | TileType | SlotsType | PointerType | TensorType | ScratchType | VectorType
