"""Who holds what in the kernels behind `metile_mlx.nn`: one table, and what chose it (SPEC B1)."""

from __future__ import annotations

from metile_mlx.dtypes import DType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import MAX_THREADS, SIMD_WIDTH

_CPU_VALUES = 16


def layout_of(backend: str, dtype: DType, block: int) -> ThreadLayout | None:
    """The layout of a row of `block` elements; None for the kernel's own choice."""
    if backend != "cpu":
        return None
    values = max(min(_CPU_VALUES, block // SIMD_WIDTH), block // MAX_THREADS)
    return ThreadLayout.identity(block, values)


def gradient_rows(rows: int) -> int:
    """Rows per program of the gradient kernel, which adds up their parts of a weight's gradient."""
    return 4 if rows % 4 == 0 and rows >= 1024 else 1
