"""Kernels that hold a row in registers, in the layout of the tables or in a tuned one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from metile_mlx import config
from metile_mlx.autotune import Autotuned, autotune
from metile_mlx.dispatch import Dispatch
from metile_mlx.dtypes import DType
from metile_mlx.kernel import Kernel
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.nn.layouts import row_block, row_layout, row_layouts
from metile_mlx.runtime import export
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx

# Kernels with sets of layouts; a width has one set for each dtype.
_KEPT = 64
# Fewer programs take as long as a launch takes.
_MANY_ROWS = 64


def ready_row(
    kernel: Kernel,
    grid: tuple[int, ...],
    arguments: tuple[Any, ...],
    options: Mapping[str, Any],
    backend: str,
    dtype: DType,
    columns: int,
    stream: Place,
) -> Callable[..., Any]:
    """A launch of the kernel on arguments like these.

    With `METILE_AUTOTUNE=1` the first call with values and many rows measures the layouts that are
    legal for the row, and keeps the fastest for any number of rows (`metile.autotune`); otherwise,
    for few rows, and in an export, the tables of `nn/layouts.py` say which it is.

    Args:
        options: constexprs other than N, BLOCK and LAYOUT.
        dtype: of the row, which has `columns` elements.
    """
    block = row_block(columns)
    held = {**options, "N": columns, "BLOCK": block}
    is_many = grid[0] >= _MANY_ROWS
    if is_many and config.autotune() and export.active_target() is None:
        launcher = _tuned(kernel, row_layouts(backend, dtype, columns, block))[grid]
        return lambda *given: launcher(*given, **held, stream=stream)
    layout = row_layout(backend, dtype, columns, block)
    return kernel[grid].prepare(*arguments, **held, LAYOUT=layout, stream=stream)


def of_arrays(
    launch: Callable[..., Any], parameters: int, more: tuple[Any, ...]
) -> Dispatch | Callable[..., Any]:
    """A tuned launch as a function of the arrays that are read; a dispatch as it is.

    Args:
        launch: of `ready_row`.
        parameters: for arrays, of which the last is any array where it is not read.
        more: the arguments behind them.
    """
    if isinstance(launch, Dispatch):
        return launch

    def tuned(*arrays: mx.array) -> Any:
        return launch(*arrays, *arrays[: parameters - len(arrays)], *more)

    return tuned


@lru_cache(_KEPT)
def _tuned(kernel: Kernel, layouts: tuple[ThreadLayout | None, ...]) -> Autotuned:
    return autotune([{"LAYOUT": layout} for layout in layouts])(kernel)
