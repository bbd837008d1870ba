"""Rotary position embedding of (batch, heads, positions, features) arrays (SPEC B1).

Pairs of features turn by an angle: position times frequency. A program takes one position of one
array of the batch and some of its heads, so that sines and cosines are made once for all of them.
All shapes are arguments: one text serves them all. Arithmetic is f32 with one rounding at the
store, as in MLX's Metal kernel. The gradient is the turn the other way: `sign=-1`.
"""

from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile


def rope_reference(
    x: mx.array,
    dims: int,
    *,
    traditional: bool,
    offsets: mx.array,
    periods: mx.array,
    scale: float = 1.0,
) -> mx.array:
    """Pairs of features turned in MLX's operations, f32.

    Args:
        x: (batch, heads, positions, D).
        dims: features that turn; the others stay.
        offsets: added to the positions: one for each array of the batch, or one.
        periods: dims / 2 numbers, base ** (2 i / dims) for pair i of the common embedding.
        traditional, scale: as of `rope`.
    """
    half = dims // 2
    places = scale * (mx.arange(x.shape[-2]) + offsets[:, None]).astype(mx.float32)
    angles = places[:, None, :, None] * (1 / periods)
    c, s = mx.cos(angles), mx.sin(angles)
    wide = x[..., :dims].astype(mx.float32)
    if traditional:
        a, b = wide[..., ::2], wide[..., 1::2]
        turned = mx.stack([a * c - b * s, a * s + b * c], axis=-1).reshape(wide.shape)
    else:
        a, b = wide[..., :half], wide[..., half:]
        turned = mx.concatenate([a * c - b * s, a * s + b * c], axis=-1)
    return mx.concatenate([turned, x[..., dims:].astype(mx.float32)], axis=-1)


@metile.inline
def pairs(array, shape, strides, half, TRADITIONAL, access):
    """A view (batch, groups, heads, positions, 2, half) of the features that turn."""
    within = (1, 2) if TRADITIONAL else (half, 1)
    return metile.tensor(array, shape=(*shape, 2, half), strides=(*strides, *within), access=access)


@metile.kernel
def rope(
    inputs,
    offsets,
    periods,
    output,
    width: int,
    batch_stride: int,
    group_stride: int,
    head_stride: int,
    half: int,
    offset_stride: int,
    together: int,
    scale: float,
    octaves: float,
    sign: float,
    BLOCK: metile.constexpr,
    TRADITIONAL: metile.constexpr = False,
    GIVEN: metile.constexpr = False,
):
    """Turn the first 2 * half features of each position; the rest is copied.

    The grid is (positions, batch, heads / together).

    Args:
        inputs, output: batch * heads * positions * width elements.
        offsets: i32, added to the positions: one for each array of the batch, or one.
        periods: `half` f32 numbers by whose inverses pairs turn; any array if not GIVEN.
        width: features.
        batch_stride, group_stride, head_stride: positions * width, times heads, together and 1.
        offset_stride: 1 if there is an offset for each array of the batch, else 0.
        together: heads of a program, a divisor of their number.
        scale: of the positions.
        octaves: log2 of the base: pair i turns by 2 ** (-octaves * i / half).
        sign: 1, or -1 to turn back.
        BLOCK: pairs at a time: a power of two of 32 to 1024.
        TRADITIONAL: pairs are neighbours, not `half` apart.
    """
    positions, batches = metile.num_programs(0), metile.num_programs(1)
    shape = (batches, metile.num_programs(2), together, positions)
    strides = (batch_stride, group_stride, head_stride, width)
    source = pairs(inputs, shape, strides, half, TRADITIONAL, "read")
    result = pairs(output, shape, strides, half, TRADITIONAL, "write")
    whole = metile.tensor(inputs, shape=(*shape, width), access="read")
    copied = metile.tensor(output, shape=(*shape, width), access="write")
    starts = metile.tensor(offsets, shape=(batches,), strides=(offset_stride,), access="read")
    if GIVEN:
        given = metile.tensor(periods, shape=(half,), access="read")
    position, batch, group = metile.program_id(0), metile.program_id(1), metile.program_id(2)
    lanes = metile.arange(0, BLOCK)
    place = scale * metile.cast(position + starts.load(batch), metile.f32)
    for start in metile.tile_range(0, half, BLOCK):
        pair = start + lanes
        if GIVEN:
            angle = place * (1.0 / given.load(pair, fill=1.0))
        else:
            exponent = metile.cast(pair, metile.f32) / metile.cast(half, metile.f32)
            angle = place * metile.exp2(-octaves * exponent)
        c, s = metile.cos(angle), sign * metile.sin(angle)
        for head in metile.tile_range(together):
            a = metile.cast(source.load((batch, group, head, position, 0, pair)), metile.f32)
            b = metile.cast(source.load((batch, group, head, position, 1, pair)), metile.f32)
            result.store((batch, group, head, position, 0, pair), a * c - b * s)
            result.store((batch, group, head, position, 1, pair), a * s + b * c)
    for start in metile.tile_range(2 * half, width, BLOCK):
        for head in metile.tile_range(together):
            at = (batch, group, head, position, start + lanes)
            copied.store(at, whole.load(at))


def _selftest(dtype, traditional, backend):
    """Two arrays of six heads, three at a time, ten features of sixteen, from position 7 on."""
    generator = np.random.default_rng(0)
    x = mx.array(generator.standard_normal((2, 6, 3, 16)).astype(np.float32)).astype(dtype)
    wide = np.array(x.astype(mx.float32)).astype(np.float64)
    angles = np.arange(7, 10)[:, None] * 10000.0 ** (-np.arange(5) / 5)
    c, s = np.cos(angles), np.sin(angles)
    expected = wide.copy()
    left, right = (slice(0, 10, 2), slice(1, 10, 2)) if traditional else (slice(5), slice(5, 10))
    expected[..., left] = wide[..., left] * c - wide[..., right] * s
    expected[..., right] = wide[..., left] * s + wide[..., right] * c
    arguments = (
        x, mx.array([7]), x, metile.empty(x.shape, dtype),
        16, 288, 144, 48, 5, 0, 3, 1.0, float(np.log2(10000)), 1.0,
    )  # fmt: skip
    dispatch = rope[3, 2, 2].prepare(*arguments, BLOCK=32, TRADITIONAL=traditional, backend=backend)
    # Where two products cancel, what is left has their error.
    return dispatch, arguments, expected, 512 if dtype == mx.float32 else 2.5


SELFTESTS = [
    (
        f"rope, {'neighbours' if traditional else 'halves'}, {name}",
        partial(_selftest, dtype, traditional),
    )
    for traditional in (False, True)
    for name, dtype in (("f32", mx.float32), ("f16", mx.float16), ("bf16", mx.bfloat16))
]
