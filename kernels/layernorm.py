"""Layer normalisation of rows, `(x - mean) / sqrt(variance + eps) * w + b`, and its gradients (B1).

`layernorm_register` holds rows of constant width in registers; `layernorm` takes one row of any
width per program, which it learns when it runs. The variance is the mean of the squares of what is
left of the mean, never a difference of two large sums (F69). All arithmetic is f32. With
`ROUND_STEPS` the normalised value, its product with the weight and the sum with the bias are each
rounded to the dtype of the output, the order of `mx.fast.layer_norm`; else there is one rounding,
at the store.
"""

from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_kernels.rmsnorm import columns_of, held_rows, row_sum


def layernorm_reference(
    x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float
) -> mx.array:
    """The norm of the last axis in MLX's operations, f32."""
    wide = x.astype(mx.float32)
    centred = wide - mx.mean(wide, axis=-1, keepdims=True)
    made = centred * mx.rsqrt(mx.mean(centred * centred, axis=-1, keepdims=True) + eps)
    made = made if weight is None else made * weight.astype(mx.float32)
    return made if bias is None else made + bias.astype(mx.float32)


@metile.inline
def centred_row(values, columns, N, ROWS=1):
    """f32 values of rows less their mean; 0 beyond N, where values are 0."""
    mean = row_sum(values, ROWS) / N
    return metile.where(columns < N, values - mean, 0.0)


@metile.inline
def transformed(made, scales, shifts, columns, dtype, ROUND_STEPS, WEIGHTED, BIASED):
    """Times the weight, plus the bias, in f32 or step by step in the dtype of the output."""
    steps = dtype if ROUND_STEPS else metile.f32
    made = metile.cast(made, steps)
    if WEIGHTED:
        made = made * metile.cast(scales.load(columns), steps)
    if BIASED:
        made = made + metile.cast(shifts.load(columns), steps)
    return made


@metile.kernel(relaxed="RELAXED_PRECISION")
def layernorm(
    inputs,
    weights,
    biases,
    output,
    width: int,
    eps: float,
    BLOCK: metile.constexpr = 1024,
    RELAXED_PRECISION: metile.constexpr = False,
    ROUND_STEPS: metile.constexpr = False,
    WEIGHTED: metile.constexpr = True,
    BIASED: metile.constexpr = True,
):
    """Normalise rows of any `width`, in three loops over the row.

    Args:
        inputs, output: rows * width elements.
        weights, biases: `width` elements; any array where WEIGHTED or BIASED is False.
        width: columns, any number; a new one compiles nothing.
        eps: added to the variance, f32.
        BLOCK: columns at a time, one per thread: a power of two of 32 to 1024.
    """
    shape = (metile.num_programs(0), width)
    source = metile.tensor(inputs, shape=shape, access="read")
    result = metile.tensor(output, shape=shape, access="write")
    scales = metile.tensor(weights, shape=(width,)) if WEIGHTED else None
    shifts = metile.tensor(biases, shape=(width,)) if BIASED else None
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    count = metile.cast(width, metile.f32)
    total = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        total = total + metile.cast(source.load((row, start + lanes)), metile.f32)
    mean = metile.sum(total) / count
    squares = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        values = metile.cast(source.load((row, start + lanes)), metile.f32)
        rest = metile.where(start + lanes < width, values - mean, 0.0)
        squares = squares + rest * rest
    root = metile.rsqrt(metile.sum(squares) / count + eps)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        made = (metile.cast(source.load((row, columns)), metile.f32) - mean) * root
        made = transformed(
            made, scales, shifts, columns, output.dtype, ROUND_STEPS, WEIGHTED, BIASED
        )
        result.store((row, columns), made)


@metile.kernel(relaxed="RELAXED_PRECISION")
def layernorm_register(
    inputs,
    weights,
    biases,
    output,
    eps: float,
    N: metile.constexpr,
    BLOCK: metile.constexpr,
    RELAXED_PRECISION: metile.constexpr = False,
    LAYOUT: metile.constexpr = None,
    ROUND_STEPS: metile.constexpr = False,
    WEIGHTED: metile.constexpr = True,
    BIASED: metile.constexpr = True,
    ROWS: metile.constexpr = 1,
):
    """Normalise rows of N columns, each read once.

    Args:
        inputs, weights, biases, output, eps: as of `layernorm`, with N for the width.
        N, BLOCK, LAYOUT, RELAXED_PRECISION: as of `metile_kernels.rmsnorm.rmsnorm_register`.
        ROWS: rows of a program, a power of two that divides their number; the layout is of
            ROWS * BLOCK elements.
    """
    shape, at, columns = held_rows(N, BLOCK, LAYOUT, ROWS)
    source = metile.tensor(inputs, shape=shape, access="read")
    result = metile.tensor(output, shape=shape, access="write")
    scales = metile.tensor(weights, shape=(N,)) if WEIGHTED else None
    shifts = metile.tensor(biases, shape=(N,)) if BIASED else None
    rest = centred_row(metile.cast(source.load(at), metile.f32), columns, N, ROWS)
    made = rest * metile.rsqrt(row_sum(rest * rest, ROWS) / N + eps)
    made = transformed(made, scales, shifts, columns, output.dtype, ROUND_STEPS, WEIGHTED, BIASED)
    result.store(at, made)


@metile.kernel(relaxed="RELAXED_PRECISION")
def layernorm_register_gradients(
    inputs,
    weights,
    cotangents,
    input_gradient,
    weight_gradients,
    bias_gradients,
    eps: float,
    N: metile.constexpr,
    BLOCK: metile.constexpr,
    ROWS: metile.constexpr = 1,
    RELAXED_PRECISION: metile.constexpr = False,
    LAYOUT: metile.constexpr = None,
    WEIGHTED: metile.constexpr = True,
    BIASED: metile.constexpr = True,
):
    """Gradients of `layernorm_register` for the cotangents of its output: ROWS rows per program.

    With n = (x - mean(x)) * r, r = 1 / sqrt(var(x) + eps) and g = cotangent * w:
    input_gradient = r * (g - mean(g) - n * mean(g * n)); each program's part of the weight gradient
    is the sum of cotangent * n over its rows, of the bias gradient that of the cotangents.

    Args:
        inputs, cotangents, input_gradient: programs * ROWS * N elements.
        weights: N elements.
        weight_gradients, bias_gradients: programs * N elements, f32; their sums over programs are
            the gradients. Not written where WEIGHTED or BIASED is False.
    """
    programs = metile.num_programs(0)
    source = metile.tensor(inputs, shape=(programs, ROWS, N), access="read")
    given = metile.tensor(cotangents, shape=(programs, ROWS, N), access="read")
    result = metile.tensor(input_gradient, shape=(programs, ROWS, N), access="write")
    columns = columns_of(N, BLOCK, LAYOUT)
    if WEIGHTED:
        weight = metile.cast(metile.tensor(weights, shape=(N,)).load(columns), metile.f32)
    weight_total = 0.0
    bias_total = 0.0
    for row in range(ROWS):
        at = (metile.program_id(0), row, columns)
        rest = centred_row(metile.cast(source.load(at), metile.f32), columns, N)
        cotangent = metile.cast(given.load(at), metile.f32)
        root = metile.rsqrt(metile.sum(rest * rest) / N + eps)
        normalised = rest * root
        bias_total = bias_total + cotangent
        if WEIGHTED:
            weight_total = weight_total + cotangent * normalised
            cotangent = cotangent * weight
        along = metile.sum(cotangent * normalised) / N
        mean = metile.sum(cotangent) / N
        result.store(at, root * (cotangent - mean - normalised * along))
    if WEIGHTED:
        parts = metile.tensor(weight_gradients, shape=(programs, N), access="write")
        parts.store((metile.program_id(0), columns), weight_total)
    if BIASED:
        parts = metile.tensor(bias_gradients, shape=(programs, N), access="write")
        parts.store((metile.program_id(0), columns), bias_total)


@metile.kernel(relaxed="RELAXED_PRECISION")
def layernorm_gradients(
    inputs,
    weights,
    cotangents,
    input_gradient,
    means,
    roots,
    width: int,
    eps: float,
    BLOCK: metile.constexpr = 1024,
    RELAXED_PRECISION: metile.constexpr = False,
    WEIGHTED: metile.constexpr = True,
):
    """Gradient of `layernorm` for its inputs, in three loops over each row.

    Those of the weight and the bias are `metile_kernels.norm_weights`, from means and roots.

    Args:
        inputs, cotangents, input_gradient: rows * width elements.
        weights: `width` elements.
        means, roots: mean(x) and 1 / sqrt(var(x) + eps) of each row, f32, outputs.
    """
    rows = metile.num_programs(0)
    source = metile.tensor(inputs, shape=(rows, width), access="read")
    given = metile.tensor(cotangents, shape=(rows, width), access="read")
    result = metile.tensor(input_gradient, shape=(rows, width), access="write")
    scales = metile.tensor(weights, shape=(width,)) if WEIGHTED else None
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    count = metile.cast(width, metile.f32)
    total = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        total = total + metile.cast(source.load((row, start + lanes)), metile.f32)
    mean = metile.sum(total) / count
    squares = metile.zeros(BLOCK, metile.f32)
    slopes = metile.zeros(BLOCK, metile.f32)
    products = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        values = metile.cast(source.load((row, columns)), metile.f32)
        rest = metile.where(columns < width, values - mean, 0.0)
        slope = metile.cast(given.load((row, columns)), metile.f32)
        if WEIGHTED:
            slope = slope * metile.cast(scales.load(columns), metile.f32)
        squares = squares + rest * rest
        slopes = slopes + slope
        products = products + slope * rest
    root = metile.rsqrt(metile.sum(squares) / count + eps)
    along = metile.sum(products) / count * root
    slope_mean = metile.sum(slopes) / count
    metile.tensor(means, shape=(rows,), access="write").store(row, mean)
    metile.tensor(roots, shape=(rows,), access="write").store(row, root)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        normalised = (metile.cast(source.load((row, columns)), metile.f32) - mean) * root
        slope = metile.cast(given.load((row, columns)), metile.f32)
        if WEIGHTED:
            slope = slope * metile.cast(scales.load(columns), metile.f32)
        result.store((row, columns), root * (slope - slope_mean - normalised * along))


def _selftest(dtype, width, is_register, backend):
    """Numbers far from zero, whose variance is small beside their mean (F69)."""
    generator = np.random.default_rng(width)
    x = mx.array((generator.standard_normal((5, width)) + 30).astype(np.float32)).astype(dtype)
    w, b = (
        mx.array(generator.uniform(0.5, 2, width).astype(np.float32)).astype(dtype)
        for _ in range(2)
    )
    wide, weight, bias = (np.array(a.astype(mx.float32)).astype(np.float64) for a in (x, w, b))
    rest = wide - wide.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((rest**2).mean(axis=1, keepdims=True) + 1e-5)
    # So that none is near 0, where a unit is nothing: n lies between -4 and 4.
    bias = bias + 8
    b = mx.array(bias.astype(np.float32)).astype(dtype)
    expected = rest * scale * weight + np.array(b.astype(mx.float32)).astype(np.float64)
    empty = metile.empty(x.shape, dtype)
    if is_register:
        arguments = (x, w, b, empty, 1e-5)
        block = metile.next_power_of_2(max(width, 32))
        dispatch = layernorm_register[5].prepare(*arguments, N=width, BLOCK=block, backend=backend)
    else:
        arguments = (x, w, b, empty, width, 1e-5)
        dispatch = layernorm[5].prepare(*arguments, backend=backend)
    return dispatch, arguments, expected, 64 if dtype == mx.float32 else 2.5


SELFTESTS = [
    (f"{kind}, {width} columns, {name}", partial(_selftest, dtype, width, kind != "layernorm"))
    for kind, widths in (("layernorm_register", (31, 1009)), ("layernorm", (33, 4097)))
    for width in widths
    for name, dtype in (("f32", mx.float32), ("f16", mx.float16), ("bf16", mx.bfloat16))
]
