"""Elements in another order, and butterflies: `permute` says which, `convert_layout` who (SPEC B1).

A permutation of index bits names the elements of a tile anew where they are; the conversion behind
it brings them to the threads that store neighbours. So loads and stores are both contiguous, and
the compiler finds the cheapest way between.

    from metile_kernels.permutations import rearranged, transposing

    blocks = mx.random.normal((1000, 8, 8))   # two blocks to a program, four elements a thread
    dispatch = rearranged[(500,)].prepare(
        blocks, metile.empty(blocks.shape, blocks.dtype), 500,
        ORDER=transposing(8, 8, 2), LAYOUT=metile.ThreadLayout.grouped(128, 4),
    )
"""

from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile


def transposing(rows, columns, tiles=1):
    """The order of index bits that transposes `tiles` row-major tiles of rows x columns at once."""
    low, high, rest = (number.bit_length() - 1 for number in (columns, rows, tiles))
    inner = (*range(high, high + low), *range(high))
    return (*inner, *range(low + high, low + high + rest))


def bit_reversing(size):
    """The order of index bits that reverses them: the input order of an FFT in place."""
    return tuple(range(size.bit_length() - 2, -1, -1))


@metile.kernel
def rearranged(
    x,
    out,
    tiles,
    ORDER: metile.constexpr,
    LAYOUT: metile.constexpr,
    XOR: metile.constexpr = 0,
):
    """Each tile of LAYOUT.size elements in another order: out[t, i] = x[t, j].

    Bit b of j is bit ORDER[b] of i; then j is XORed with XOR. One program per tile.

    Args:
        x, out: tiles * LAYOUT.size elements; the last tiles may be partly or wholly missing where
            `tiles` says more than there are programs, never less.
        ORDER: a permutation of the bits of an index into a tile.
        LAYOUT: who loads and who stores which element; groups make both contiguous.
    """
    source = metile.tensor(x, shape=(tiles, LAYOUT.size), access="read")
    result = metile.tensor(out, shape=(tiles, LAYOUT.size), access="write")
    tile, i = metile.program_id(0), metile.arange(0, LAYOUT.size, layout=LAYOUT)
    values = metile.permute(source.load((tile, i)), ORDER, xor_mask=XOR)
    result.store((tile, i), metile.convert_layout(values, LAYOUT))


@metile.kernel
def transposed(
    x,
    out,
    batches,
    rows,
    columns,
    ORDER: metile.constexpr,
    TILE: metile.constexpr,
    LAYOUT: metile.constexpr,
):
    """out[b, c, r] = x[b, r, c] by tiles of TILE x TILE, in a grid of (columns, rows, batches).

    Args:
        x, out: (batches, rows, columns) and (batches, columns, rows), of any extents; the grid is
            cdiv(columns, TILE), cdiv(rows, TILE), batches.
        ORDER: `transposing(TILE, TILE)`.
        LAYOUT: owners of the TILE * TILE elements.
    """
    source = metile.tensor(x, shape=(batches, rows, columns), access="read")
    result = metile.tensor(out, shape=(batches, columns, rows), access="write")
    left, top = metile.program_id(0) * TILE, metile.program_id(1) * TILE
    batch, i = metile.program_id(2), metile.arange(0, TILE * TILE, layout=LAYOUT)
    values = metile.permute(source.load((batch, top + i // TILE, left + i % TILE)), ORDER)
    moved = metile.convert_layout(values, LAYOUT)
    result.store((batch, left + i // TILE, top + i % TILE), moved)


@metile.kernel
def hadamard(
    x,
    out,
    rows,
    BITS: metile.constexpr,
    LAYOUT: metile.constexpr,
    SPLIT: metile.constexpr = None,
    SECOND: metile.constexpr = None,
):
    """The Walsh-Hadamard transform of each row of 2**BITS elements, not scaled.

    Stage k takes x[i] and x[i ^ 2**k] to their sum and difference: an FFT's pattern. A partner in
    another register costs nothing, in another lane a shuffle, in another simdgroup an exchange
    through threadgroup memory. SECOND, from stage SPLIT on, can make later partners near ones.

    Args:
        x, out: rows * 2**BITS elements; every operation rounds to their dtype.
        LAYOUT, SECOND: owners of the elements of a row.
    """
    source = metile.tensor(x, shape=(rows, LAYOUT.size), access="read")
    result = metile.tensor(out, shape=(rows, LAYOUT.size), access="write")
    row, owners = metile.program_id(0), LAYOUT
    i = metile.arange(0, LAYOUT.size, layout=owners)
    values = source.load((row, i))
    for k in range(BITS):
        if k == SPLIT:
            owners = SECOND
            i = metile.arange(0, LAYOUT.size, layout=owners)
            values = metile.convert_layout(values, owners)
        partners = metile.convert_layout(metile.permute(values, xor_mask=1 << k), owners)
        values = metile.where(i & (1 << k) == 0, values + partners, partners - values)
    result.store((row, i), values)


def rearranged_reference(x, order, mask=0):
    """What `rearranged` computes for x of shape (tiles, size), as MLX operations."""
    # MLX on CUDA transposes ten axes at most: elements are taken by number instead.
    size = 1 << len(order)
    place = mx.arange(size)
    there = mx.zeros_like(place)
    for bit, other in enumerate(order):
        there = mx.bitwise_or(there, mx.left_shift(mx.bitwise_and(place >> other, 1), bit))
    there = mx.bitwise_xor(there, mask)
    return mx.reshape(mx.take(mx.reshape(x, (-1, size)), there, axis=1), x.shape)


def transposed_reference(x):
    """What `transposed` computes for x of shape (batches, rows, columns), as MLX operations."""
    return mx.contiguous(mx.swapaxes(x, 1, 2))


def hadamard_reference(x):
    """What `hadamard` computes for x of shape (rows, 2**bits), rounded after each operation."""
    rows, size = x.shape
    for k in range(size.bit_length() - 1):
        low, high = mx.split(mx.reshape(x, (rows, -1, 2, 1 << k)), 2, axis=2)
        x = mx.reshape(mx.concatenate([low + high, low - high], axis=2), (rows, size))
    return x


FOURS = metile.ThreadLayout.grouped(1024, 4)
NEAR = metile.ThreadLayout((2, 3, 4, 5, 6, 7, 0, 8, 9, 1), elements_per_thread=4)
"""Bits 7 and 8 of the element are registers, 0, 1, 2, 6 and 9 lanes, 3, 4 and 5 simdgroups."""


def _bits(dtype, shape):
    """Any bits: NaN with payloads, infinities, -0.0 and subnormal numbers are among them."""
    generator = np.random.default_rng(7)
    if dtype == mx.bool_:
        return mx.array(generator.integers(0, 2, shape).astype(np.bool_))
    unsigned = {2: np.uint16, 4: np.uint32}[dtype.size]
    return mx.array(generator.integers(0, 2 ** (8 * dtype.size), shape, unsigned)).view(dtype)


def _selftest_rearranged(order, registers, dtype, backend):
    x = _bits(dtype, (3, 1 << len(order)))
    arguments = (x, metile.empty(x.shape, dtype), 3)
    layout = metile.ThreadLayout.grouped(1 << len(order), registers)
    dispatch = rearranged[3].prepare(*arguments, ORDER=order, LAYOUT=layout, backend=backend)
    return dispatch, arguments, rearranged_reference(x, order), 0


def _selftest_transposed(dtype, backend):
    x = _bits(dtype, (2, 70, 100))
    arguments = (x, metile.empty((2, 100, 70), dtype), 2, 70, 100)
    dispatch = transposed[2, 2, 2].prepare(
        *arguments,
        ORDER=transposing(64, 64),
        TILE=64,
        LAYOUT=metile.ThreadLayout.grouped(4096, 16),
        backend=backend,
    )
    return dispatch, arguments, transposed_reference(x), 0


def _selftest_hadamard(dtype, second, backend):
    numbers = np.random.default_rng(3).integers(-8, 9, (3, 1024))
    x = mx.array(numbers.astype(np.int32)).astype(dtype)
    arguments = (x, metile.empty(x.shape, dtype), 3)
    dispatch = hadamard[3].prepare(
        *arguments, BITS=10, LAYOUT=FOURS, SPLIT=7 if second else None, SECOND=second,
        backend=backend,
    )  # fmt: skip
    return dispatch, arguments, hadamard_reference(x), 0


DTYPES = {
    "f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16,
    "i32": mx.int32, "u32": mx.uint32, "bool": mx.bool_,
}  # fmt: skip
SELFTESTS = [
    *(
        (f"{what}, {name}", partial(_selftest_rearranged, order, registers, dtype))
        for what, order, registers in (
            ("two 8x8 transposes, 4 a thread", transposing(8, 8, 2), 4),
            ("64x64 transpose, 16 a thread", transposing(64, 64), 16),
            ("bit reversal of 1024", bit_reversing(1024), 4),
        )
        for name, dtype in DTYPES.items()
        if name in ("f32", "bf16", "bool")
    ),
    *((f"70x100 transpose, {name}", partial(_selftest_transposed, DTYPES[name]))
      for name in ("f16", "f32")),
    *((f"Hadamard transform of 1024, {name}", partial(_selftest_hadamard, DTYPES[name], None))
      for name in ("f32", "bf16")),
    *((f"Hadamard transform of 1024, two layouts, {name}",
       partial(_selftest_hadamard, DTYPES[name], NEAR)) for name in ("f32", "f16", "u32")),
]  # fmt: skip
