"""`OperandLayout`: owners of a matrix operand, of which several threads hold the same elements.

A `ThreadLayout` is a bijection. Of the operands of a product it can't be: each simdgroup multiplies
rows of one matrix by columns of the other, so the simdgroups that share rows all hold these. The
map is linear all the same, from slot to element; bits of the thread that choose nothing map to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from metile_mlx.errors import LayoutError
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout


@dataclass(frozen=True, repr=False)
class OperandLayout:
    """Slot p = thread + register * T holds element `map(p)`; every element has an owner at least.

    Args:
        columns: the element bit that each bit of the slot stands for, as a number (1 << bit), and 0
            for a bit that chooses nothing; thread bits first, register bits above.
        elements_per_thread: register slots of a thread.

    Raises:
        LayoutError: an element bit that no bit of the slot stands for, or two do.
    """

    columns: tuple[int, ...]
    elements_per_thread: int

    def __post_init__(self) -> None:
        chosen = sorted(column for column in self.columns if column)
        if chosen != [1 << bit for bit in range(len(chosen))]:
            raise LayoutError(
                f"[OperandLayout] columns are {self.columns}, expected each bit of an element once "
                "and zeros"
            )

    @cached_property
    def map(self) -> AffineMap:
        """From slot to element; several slots have one image."""
        return AffineMap(self.columns)

    @property
    def size(self) -> int:
        """Number of elements."""
        return 1 << sum(column != 0 for column in self.columns)

    @property
    def thread_count(self) -> int:
        """Number of threads."""
        return (1 << len(self.columns)) // self.elements_per_thread

    @property
    def copies(self) -> int:
        """How many slots hold each element."""
        return (1 << len(self.columns)) // self.size

    def __repr__(self) -> str:
        return f"OperandLayout({self.columns}, elements_per_thread={self.elements_per_thread})"


Layout: TypeAlias = ThreadLayout | OperandLayout
"""The owners of a tile."""
