"""The types a kernel's values have for a type checker and an editor (SPEC K9).

No instance exists: a kernel is translated, never run. `Tile` and `Scalar` share their operators; a
scalar meeting a tile broadcasts, and Python numbers take the dtype of what they meet (SPEC K4).
"""

from __future__ import annotations

from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from metile_mlx.dtypes import DType
from metile_mlx.frontend.rules import outside

Operand = TypeVar("Operand", contravariant=True)
Result = TypeVar("Result", covariant=True)


class Operators(Generic[Operand, Result]):
    """Python's operators on tiles and scalars; comparisons give bool elements.

    `//` and `%` on integers round toward minus infinity, as in Python; `/` on integers gives f32.
    Shift counts are taken modulo the width. `and`, `or`, `not` are for uniform scalars; masks use
    `& | ^ ~`.
    """

    def __add__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __radd__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __sub__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rsub__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __mul__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rmul__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __truediv__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rtruediv__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __floordiv__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rfloordiv__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __mod__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rmod__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __pow__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rpow__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __lshift__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rlshift__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rshift__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rrshift__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __and__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rand__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __or__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __ror__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __xor__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __rxor__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __neg__(self) -> Result:
        raise outside("Tile")

    def __pos__(self) -> Result:
        raise outside("Tile")

    def __invert__(self) -> Result:
        raise outside("Tile")

    def __lt__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __le__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __gt__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __ge__(self, other: Operand) -> Result:
        raise outside("Tile")

    def __eq__(self, other: Operand) -> Result:  # type: ignore[override]
        raise outside("Tile")

    def __ne__(self, other: Operand) -> Result:  # type: ignore[override]
        raise outside("Tile")

    __hash__ = None  # type: ignore[assignment]

    @property
    def dtype(self) -> DType:
        """The dtype of the elements, a compile-time constant."""
        raise outside("Tile")


class Scalar(Operators["ScalarLike", "Scalar"]):
    """One runtime value: a parameter, `program_id`, a load at uniform indices, or made of them."""


class Tile(Operators["TileLike", "Tile"]):
    """A tile of values, owned element by element by the threads of a threadgroup (SPEC O1)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, compile-time constants."""
        raise outside("Tile")


ScalarLike: TypeAlias = Scalar | int | float
TileLike: TypeAlias = Tile | Scalar | int | float
IndexLike: TypeAlias = Tile | Scalar | int
MaskLike: TypeAlias = Tile | Scalar | bool
Access: TypeAlias = Literal["read", "write", "read_write"]
Extents: TypeAlias = Scalar | int | tuple[Scalar | int, ...]
Shape: TypeAlias = int | tuple[int, ...]
# An operation that gives a tile for a tile and a scalar for a scalar.
TileOrScalar = TypeVar("TileOrScalar", Tile, Scalar)


class ArrayLike(Protocol):
    """An array parameter of a kernel: annotate it `metile.Array` or `mx.array`."""

    @property
    def dtype(self) -> object: ...

    @property
    def size(self) -> int: ...


class MlxDtype(Protocol):
    """`mx.float32` and the like, without importing mlx."""

    @property
    def size(self) -> int: ...


DTypeLike: TypeAlias = DType | MlxDtype
