"""Kernels that move a row of register tiles: contiguous, strided, shifted, masked."""

from __future__ import annotations

from metile_mlx.dtypes import DType, f32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CompareKind
from metile_mlx.ir.core import Func, Value
from metile_mlx.layout.thread_layout import ThreadLayout
from tests.support.tile_program import TileProgram


def adjacent(size: int, registers: int = 4, xor_mask: int = 0) -> ThreadLayout:
    """Thread t holds elements registers * t, registers * t + 1, ..."""
    bits, low = size.bit_length() - 1, registers.bit_length() - 1
    return ThreadLayout((*range(bits - low, bits), *range(bits - low)), xor_mask, registers)


def striped(size: int, registers: int = 4) -> ThreadLayout:
    """Thread t holds elements t, t + T, ..."""
    return ThreadLayout.identity(size, registers)


def row(
    layout: ThreadLayout,
    dtype: DType = f32,
    extent: int | None = None,
    stride: int = 1,
    thirds: bool = False,
) -> TileProgram:
    """y[at] = x[at] + x[at] for at = start + program * size + lane below n.

    `start` and `n` are scalars of the call; an `extent` replaces n and leaves out start and
    program. `thirds`: only where at % 3 != 0; there the fill is 5.
    """
    p = TileProgram("row")
    n: Value | int = p.scalar("n") if extent is None else extent
    x = p.tensor("x", (n,), "read", (stride,), dtype)
    y = p.tensor("y", (n,), "write", (stride,), dtype)
    at = p.lanes(layout.size, 0, layout)
    if extent is None:
        tiles = p.op(BinaryKind.MUL, p.program_id(), layout.size)
        at = p.op(BinaryKind.ADD, at, p.op(BinaryKind.ADD, tiles, p.scalar("start")))
    mask = p.compare(CompareKind.NE, p.op(BinaryKind.MOD, at, 3), 0) if thirds else None
    fill = p.number(5.0, dtype) if thirds else None
    value = p.load(x, at, mask=mask, fill=fill)
    p.store(y, at, value=p.add(tile.Binary(BinaryKind.ADD, value, value)), mask=mask)
    return p


def row_func(layout: ThreadLayout, dtype: DType = f32, **options: object) -> Func:
    """`row` as a kernel."""
    return row(layout, dtype, **options).func()  # type: ignore[arg-type]
