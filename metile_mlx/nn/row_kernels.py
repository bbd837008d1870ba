"""Kernels of rows, each held as the tables of `nn/layouts.py` say or as measuring chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from metile_mlx import config
from metile_mlx.autotune import Autotuned, autotune
from metile_mlx.dispatch import Dispatch
from metile_mlx.dtypes import DType
from metile_mlx.kernel import Kernel
from metile_mlx.nn.layouts import (
    row_block,
    row_blocks,
    row_lanes,
    row_layout,
    row_layouts,
    rows_layout,
)
from metile_mlx.runtime import export
from metile_mlx.runtime.backend import Place

# Kernels with sets of choices; a width has one set of layouts for each dtype.
_KEPT = 64
# Fewer programs take as long as a launch takes.
_MANY_ROWS = 64
Ready = Dispatch | Callable[..., Any]


def ready_row(
    kernel: Kernel,
    rows: int,
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    backend: str,
    dtype: DType,
    columns: int,
    stream: Place,
    together: int = 1,
    in_lines: bool = False,
) -> Ready:
    """A launch of a kernel that holds a row in registers, on arguments like these.

    With `METILE_AUTOTUNE=1` the first call with values and many rows measures the layouts that are
    legal for the row, and keeps the fastest for any number of rows (`metile.autotune`); otherwise,
    for few rows, and in an export, the tables of `nn/layouts.py` say which it is.

    Args:
        options: constexprs other than N, BLOCK, LAYOUT and ROWS.
        dtype: of the row, which has `columns` elements.
        together: rows that a program takes as ROWS, in the layout of the tables; or 1.
        in_lines: see `row_layout`.
    """
    block = row_block(columns)
    held = {**options, "N": columns, "BLOCK": block, "stream": stream}
    if together > 1:
        several = rows_layout(backend, dtype, together, block)
        return kernel[rows // together].prepare(*arguments, **held, ROWS=together, LAYOUT=several)
    if _measures(rows):
        layouts = row_layouts(backend, dtype, columns, block, in_lines)
        return _call(_tuned(kernel, "LAYOUT", layouts)[rows], held)
    layout = row_layout(backend, dtype, columns, block, in_lines)
    return kernel[rows].prepare(*arguments, **held, LAYOUT=layout)


def ready_lanes(
    kernel: Kernel,
    rows: int,
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    backend: str,
    stream: Place,
) -> Ready:
    """A launch of a kernel that goes along rows of any `width`, BLOCK elements at a time.

    As `ready_row`; what is measured is BLOCK, once for a width.

    Args:
        options: constexprs other than BLOCK.
    """
    held = {**options, "stream": stream}
    if _measures(rows):
        return _call(_tuned(kernel, "BLOCK", row_blocks(backend), ("width",))[rows], held)
    return kernel[rows].prepare(*arguments, **held, BLOCK=row_lanes(backend))


def of_arrays(ready: Ready, full: Callable[..., tuple[Any, ...]]) -> Ready:
    """A tuned launch as a function of the arrays that are read; a dispatch as it is.

    Args:
        full: from these arrays to all arguments of the kernel.
    """
    return ready if isinstance(ready, Dispatch) else lambda *arrays: ready(*full(*arrays))


def _measures(rows: int) -> bool:
    return rows >= _MANY_ROWS and config.autotune() and export.active_target() is None


def _call(launcher: Any, held: Mapping[str, Any]) -> Callable[..., Any]:
    return lambda *arguments: launcher(*arguments, **held)


@lru_cache(_KEPT)
def _tuned(
    kernel: Kernel, name: str, choices: tuple[Any, ...], key: tuple[str, ...] = ()
) -> Autotuned:
    return autotune([{name: choice} for choice in choices], key=key)(kernel)
