"""In which order programs take the tiles of a matrix (SPEC P1).

Programs run roughly in the order of their numbers. Neighbours that take neighbouring tiles read the
same rows and columns while these are in a cache. `tile_of` makes of a number a tile (row, column),
for any number of rows and columns of tiles. The tiles lie in bands of 2**LEVELS rows, one after the
other, and a band is taken in blocks of 2**LEVELS columns. WALK is the way through a block:

| WALK | way | with LEVELS = 0 |
|---|---|---|
| `grouped` | column by column, as Triton's tutorial has it | row by row: the linear order |
| `morton` | along the Z-order curve (Morton 1966) | the same |
| `hilbert` | along Hilbert's curve, each tile beside the last one (Hilbert 1891) | the same |

What is left over beside the last whole block, and below the last whole band, is taken column by
column. So every order is a bijection for every size; `check_order` checks one.

The functions hold integer arithmetic alone, so that the text that a kernel inlines also runs on
arrays of NumPy.
"""

from functools import lru_cache, partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile


@metile.inline
def grouped(place, LEVELS):
    """Down each column of a block: the `place` of 4**LEVELS as (row, column)."""
    side = 2**LEVELS
    return place % side, place // side


@metile.inline
def morton(place, LEVELS):
    """Along the Z-order curve: even bits are the column's, odd ones the row's."""
    row, column = 0, 0
    for level in range(LEVELS):
        column = column + (place >> (2 * level) & 1) * 2**level
        row = row + (place >> (2 * level + 1) & 1) * 2**level
    return row, column


@metile.inline
def hilbert(place, LEVELS):
    """Along Hilbert's curve, from the first corner to the next one of the first row."""
    row, column = 0, 0
    for level in range(LEVELS):
        right = place >> (2 * level + 1) & 1
        down = (place >> (2 * level) & 1) ^ right
        # What has been walked becomes a quarter: mirrored where it ends on the far side, and turned
        # in both upper quarters.
        mirror, turn = right * (1 - down), 1 - down
        column = column + mirror * (2**level - 1 - 2 * column)
        row = row + mirror * (2**level - 1 - 2 * row)
        column, row = column + turn * (row - column), row + turn * (column - row)
        column = column + right * 2**level
        row = row + down * 2**level
    return row, column


@metile.inline
def tile_of(index, rows, columns, WALK, LEVELS):
    """The tile (row, column) of program `index` of rows * columns.

    Args:
        index, rows, columns: uniform i32 scalars; rows and columns are 1 or more.
        WALK: `grouped`, `morton`, `hilbert`, or an inline function like them.
        LEVELS: a block is 2**LEVELS rows and columns of tiles.
    """
    side = 2**LEVELS
    band, place = index // (side * columns), index % (side * columns)
    left = rows - band * side
    height = left + (left > side) * (side - left)
    row, column = place % height, place // height
    block = place // (side * side)
    is_whole = (height == side) & (block < columns // side)
    walked_row, walked_column = WALK(place % (side * side), LEVELS)
    row = row + is_whole * (walked_row - row)
    column = column + is_whole * (block * side + walked_column - column)
    return band * side + row, column


@lru_cache(maxsize=256)
def check_order(rows, columns, walk=grouped, levels=3):
    """Whether each tile of a grid is taken by one program, from the text that kernels inline.

    Args:
        rows, columns: of the grid of tiles.
        walk, levels: WALK and LEVELS of `tile_of`.

    Raises:
        metile.LaunchError: a tile is taken twice, or never, or lies outside.
    """
    index = np.arange(rows * columns)
    made = tile_of.python(index, rows, columns, walk.python, levels) if index.size else ([], [])
    row, column = (np.asarray(part, np.int64) for part in made)
    where = f"[program_order] {walk.__name__} with LEVELS={levels} on {rows} x {columns} tiles"
    outside = np.flatnonzero((row < 0) | (row >= rows) | (column < 0) | (column >= columns))
    if outside.size:
        first = int(outside[0])
        raise metile.LaunchError(
            f"{where}: program {first} takes tile ({row[first]}, {column[first]}), outside"
        )
    times = np.bincount(row * columns + column, minlength=rows * columns)
    wrong = np.flatnonzero(times != 1)
    if wrong.size:
        first = int(wrong[0])
        raise metile.LaunchError(
            f"{where}: tile ({first // columns}, {first % columns}) is taken by {times[first]} "
            "programs",
            hint="a walk has to be a bijection of 4**LEVELS places",
        )


def program_order_reference(rows, columns, walk, levels):
    """The number of the tile of each program, row * columns + column, by the same text on NumPy."""
    row, column = tile_of.python(np.arange(rows * columns), rows, columns, walk.python, levels)
    return mx.array((row * columns + column).astype(np.int32))


@metile.kernel
def program_order(out, rows: int, columns: int, WALK: metile.constexpr, LEVELS: metile.constexpr):
    """Each program writes the number of its tile, row * columns + column: an order to look at.

    Args:
        out: rows * columns integers, i32; the grid is their number.
    """
    index = metile.program_id(0)
    row, column = tile_of(index, rows, columns, WALK, LEVELS)
    metile.tensor(out, shape=(metile.num_programs(0),), access="write").store(
        index, row * columns + column
    )


def _selftest(walk, backend):
    """Blocks of four by four on 9 x 11 tiles, which leave a row and three columns over."""
    arguments = (metile.empty(99, mx.int32), 9, 11)
    dispatch = program_order[99].prepare(*arguments, WALK=walk, LEVELS=2, backend=backend)
    return dispatch, arguments, program_order_reference(9, 11, walk, 2), 0


SELFTESTS = [
    (f"program_order, {walk.__name__}", partial(_selftest, walk))
    for walk in (grouped, morton, hilbert)
]
