"""RMS normalisation of rows, `x / sqrt(mean(x^2) + eps) * w`, and its gradients (SPEC B1).

One program per row. `rmsnorm` takes any width, which it learns when it runs: two loops over the
row. `rmsnorm_register` holds a row of constant width in registers, read once and used twice. All
arithmetic is f32.
With `ROUND_NORMALISED` the normalised value is rounded to the dtype of the output before it is
multiplied by the weight in that dtype, which is the order of `mx.fast.rms_norm` (F66); otherwise
there is one rounding, at the store. In f32 the two are the same.

    from metile_kernels.rmsnorm import rmsnorm_register

    dispatch = rmsnorm_register[(rows,)].prepare(
        inputs, weights, output, 1e-5, N=1009, BLOCK=1024, RELAXED_PRECISION=False,
    )
"""

from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile


def rmsnorm_reference(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """The norm of the last axis in MLX's operations, f32."""
    wide = x.astype(mx.float32)
    normalised = wide * mx.rsqrt(mx.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return normalised if weight is None else normalised * weight.astype(mx.float32)


@metile.inline
def columns_of(N, BLOCK, LAYOUT, ROWS=1):
    """The columns of ROWS rows, in the layout asked for or in four striped values per thread."""
    assert N > 0, "a row has at least one column: pass N=inputs.shape[-1]"
    assert N <= BLOCK, "a row must fit into the block: pass BLOCK=metile.next_power_of_2(N)"
    if LAYOUT is None:
        # Four, fewer for less than 128 columns, more where 1024 threads are not enough.
        VALUES = max(min(4, BLOCK // 32), BLOCK // 1024)
        LAYOUT = metile.ThreadLayout.identity(ROWS * BLOCK, elements_per_thread=ROWS * VALUES)
    return metile.arange(0, ROWS * BLOCK, layout=LAYOUT)


@metile.inline
def held_rows(N, BLOCK, LAYOUT, ROWS):
    """Of arrays of which each program holds ROWS rows: their shape, an index, its columns."""
    index = columns_of(N, BLOCK, LAYOUT, ROWS)
    programs, program = metile.num_programs(0), metile.program_id(0)
    if ROWS == 1:
        return (programs, N), (program, index), index
    index = metile.reshape(index, (ROWS, BLOCK))
    row, column = index // BLOCK, index % BLOCK
    return (programs, ROWS, N), (program, row, column), column


@metile.inline
def row_sum(values, ROWS):
    """Of each row that a program holds."""
    return metile.sum(values) if ROWS == 1 else metile.sum(values, axis=1)


@metile.inline
def reciprocal_root(values, eps, N, ROWS=1):
    """`1 / sqrt(mean(values^2) + eps)` of the f32 values of rows; those beyond N are zero."""
    return metile.rsqrt(row_sum(values * values, ROWS) * (1 / N) + eps)


@metile.inline
def weighted(normalised, weight, dtype, ROUND_NORMALISED):
    """Times the weight, in f32 or, after a rounding, in the dtype of the output."""
    if ROUND_NORMALISED:
        return metile.cast(normalised, dtype) * metile.cast(weight, dtype)
    return normalised * metile.cast(weight, metile.f32)


@metile.kernel(relaxed="RELAXED_PRECISION")
def rmsnorm(
    inputs,
    weights,
    output,
    width: int,
    eps: float,
    BLOCK: metile.constexpr = 1024,
    RELAXED_PRECISION: metile.constexpr = False,
    ROUND_NORMALISED: metile.constexpr = False,
    WEIGHTED: metile.constexpr = True,
):
    """Normalise rows of `width` columns: inputs and output hold rows * width elements.

    Args:
        width: columns, any number; a new one compiles nothing.
        eps: added to the mean square, f32.
        BLOCK: columns at a time, one per thread: a power of two of 32 to 1024.
        RELAXED_PRECISION, ROUND_NORMALISED, WEIGHTED: as of `rmsnorm_register`.
    """
    shape = (metile.num_programs(0), width)
    source = metile.tensor(inputs, shape=shape, access="read")
    result = metile.tensor(output, shape=shape, access="write")
    if WEIGHTED:
        scales = metile.tensor(weights, shape=(width,), access="read")
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    squares = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        values = metile.cast(source.load((row, start + lanes)), metile.f32)
        squares = squares + values * values
    mean = metile.sum(squares) / metile.cast(width, metile.f32)
    root = metile.rsqrt(mean + eps)
    for start in metile.tile_range(0, width, BLOCK):
        columns = start + lanes
        normalised = metile.cast(source.load((row, columns)), metile.f32) * root
        if WEIGHTED:
            normalised = weighted(normalised, scales.load(columns), output.dtype, ROUND_NORMALISED)
        result.store((row, columns), normalised)


@metile.kernel(relaxed="RELAXED_PRECISION")
def rmsnorm_register(
    inputs,
    weights,
    output,
    eps: float,
    N: metile.constexpr,
    BLOCK: metile.constexpr,
    RELAXED_PRECISION: metile.constexpr = False,
    LAYOUT: metile.constexpr = None,
    ROUND_NORMALISED: metile.constexpr = False,
    WEIGHTED: metile.constexpr = True,
):
    """Normalise rows of N columns: inputs and output hold rows * N elements, weights N.

    Args:
        eps: added to the mean square, f32.
        N, BLOCK: columns, and the power of two of 32 to 32768 that holds them: 0 < N <= BLOCK.
        RELAXED_PRECISION: compile with MLX's math mode `relaxed`.
        LAYOUT: who holds which column, a `metile.ThreadLayout` of BLOCK elements; four striped
            values per thread where it is None.
        ROUND_NORMALISED: round to the output's dtype before the weight too.
        WEIGHTED: multiply by the weights; else they may be any array and are not read.
    """
    rows = metile.num_programs(0)
    source = metile.tensor(inputs, shape=(rows, N), access="read")
    result = metile.tensor(output, shape=(rows, N), access="write")
    row = metile.program_id(0)
    columns = columns_of(N, BLOCK, LAYOUT)
    values = metile.cast(source.load((row, columns)), metile.f32)
    normalised = values * reciprocal_root(values, eps, N)
    if WEIGHTED:
        weight = metile.tensor(weights, shape=(N,), access="read").load(columns)
        normalised = weighted(normalised, weight, output.dtype, ROUND_NORMALISED)
    result.store((row, columns), normalised)


@metile.kernel(relaxed="RELAXED_PRECISION")
def rmsnorm_rows(
    inputs,
    weights,
    output,
    eps: float,
    rows: int,
    N: metile.constexpr,
    BLOCK: metile.constexpr,
    ROWS: metile.constexpr,
    WHOLE: metile.constexpr = False,
    RELAXED_PRECISION: metile.constexpr = False,
    LAYOUT: metile.constexpr = None,
    ROUND_NORMALISED: metile.constexpr = False,
    WEIGHTED: metile.constexpr = True,
):
    """`rmsnorm_register` for short rows: ROWS of them per program, the last program may have fewer.

    Args:
        inputs, weights, output, eps, N, BLOCK and the other options: as of `rmsnorm_register`.
        rows: of the inputs; the grid is `metile.cdiv(rows, ROWS)`.
        ROWS: a power of two with ROWS * BLOCK <= 32768.
        WHOLE: `rows` is a multiple of ROWS, so no row is checked.
        LAYOUT: who holds which element of the (ROWS, BLOCK) tile; where it is None each thread
            holds the same columns of all rows, and ROWS times their number is at most 32.
    """
    index = metile.reshape(columns_of(N, BLOCK, LAYOUT, ROWS), (ROWS, BLOCK))
    row, column = index // BLOCK, index % BLOCK
    if WHOLE:
        # No row has to be looked for: every program has all of its own.
        shape = (metile.num_programs(0), ROWS, N)
        at = (metile.program_id(0), row, column)
    else:
        shape = (rows, N)
        at = (metile.program_id(0) * ROWS + row, column)
    source = metile.tensor(inputs, shape=shape, access="read")
    result = metile.tensor(output, shape=shape, access="write")
    values = metile.cast(source.load(at), metile.f32)
    mean = metile.sum(values * values, axis=1) * (1 / N)
    normalised = values * metile.rsqrt(mean + eps)
    if WEIGHTED:
        weight = metile.tensor(weights, shape=(N,), access="read").load(column)
        normalised = weighted(normalised, weight, output.dtype, ROUND_NORMALISED)
    result.store(at, normalised)


@metile.kernel(relaxed="RELAXED_PRECISION")
def rmsnorm_register_gradients(
    inputs,
    weights,
    cotangents,
    passed,
    input_gradient,
    weight_gradients,
    eps: float,
    N: metile.constexpr,
    BLOCK: metile.constexpr,
    ROWS: metile.constexpr = 1,
    RELAXED_PRECISION: metile.constexpr = False,
    LAYOUT: metile.constexpr = None,
    WEIGHTED: metile.constexpr = True,
    PASSED: metile.constexpr = False,
):
    """Gradients of `rmsnorm_register` for the cotangents of its output: ROWS rows per program.

    With r = 1 / sqrt(mean(x^2) + eps), n = x * r and g = cotangent * w:
    input_gradient = r * (g - n * mean(g * n)), and each program's part of the weight gradient is
    the sum of cotangent * n over its rows. All in f32, one rounding at the store.

    Args:
        inputs, cotangents, input_gradient: programs * ROWS * N elements.
        weights: N elements.
        passed: as inputs: what else reaches the inputs, added to their gradient.
        weight_gradients: programs * N elements, f32; their sum over programs is the gradient.
        WEIGHTED: without it weights and weight_gradients are neither read nor written.
        PASSED: without it `passed` is not read.
        eps, N, BLOCK, RELAXED_PRECISION, LAYOUT: as of `rmsnorm_register`.
    """
    program = metile.program_id(0)
    shape = (metile.num_programs(0), ROWS, N)
    source = metile.tensor(inputs, shape=shape, access="read")
    given = metile.tensor(cotangents, shape=shape, access="read")
    result = metile.tensor(input_gradient, shape=shape, access="write")
    columns = columns_of(N, BLOCK, LAYOUT)
    if WEIGHTED:
        weight = metile.cast(
            metile.tensor(weights, shape=(N,), access="read").load(columns), metile.f32
        )
    if PASSED:
        other = metile.tensor(passed, shape=shape, access="read")
    total = 0.0
    for row in range(ROWS):
        values = metile.cast(source.load((program, row, columns)), metile.f32)
        cotangent = metile.cast(given.load((program, row, columns)), metile.f32)
        root = reciprocal_root(values, eps, N)
        normalised = values * root
        if WEIGHTED:
            total = total + cotangent * normalised
            cotangent = cotangent * weight
        along = metile.sum(cotangent * normalised) * (1 / N)
        gradient = root * (cotangent - normalised * along)
        if PASSED:
            gradient = gradient + metile.cast(other.load((program, row, columns)), metile.f32)
        result.store((program, row, columns), gradient)
    if WEIGHTED:
        parts = metile.tensor(weight_gradients, shape=(metile.num_programs(0), N), access="write")
        parts.store((program, columns), total)


@metile.kernel(relaxed="RELAXED_PRECISION")
def rmsnorm_gradients(
    inputs,
    weights,
    cotangents,
    passed,
    input_gradient,
    roots,
    width: int,
    eps: float,
    BLOCK: metile.constexpr = 1024,
    RELAXED_PRECISION: metile.constexpr = False,
    WEIGHTED: metile.constexpr = True,
    PASSED: metile.constexpr = False,
):
    """Gradient of `rmsnorm` for its inputs: one program per row, in two loops over it.

    The weight's gradient is that of `metile_kernels.norm_weights`, from `roots`.

    Args:
        inputs, cotangents, passed, input_gradient: rows * width elements.
        weights: `width` elements.
        roots: the f32 1 / sqrt(mean(x^2) + eps) of each row, an output.
        width, eps, BLOCK: as of `rmsnorm`.
        WEIGHTED, PASSED, RELAXED_PRECISION: as of `rmsnorm_register_gradients`.
    """
    rows = metile.num_programs(0)
    source = metile.tensor(inputs, shape=(rows, width), access="read")
    given = metile.tensor(cotangents, shape=(rows, width), access="read")
    result = metile.tensor(input_gradient, shape=(rows, width), access="write")
    statistics = metile.tensor(roots, shape=(rows,), access="write")
    if WEIGHTED:
        scales = metile.tensor(weights, shape=(width,), access="read")
    if PASSED:
        other = metile.tensor(passed, shape=(rows, width), access="read")
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    squares = metile.zeros(BLOCK, metile.f32)
    products = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        values = metile.cast(source.load((row, start + lanes)), metile.f32)
        slope = metile.cast(given.load((row, start + lanes)), metile.f32)
        if WEIGHTED:
            slope = slope * metile.cast(scales.load(start + lanes), metile.f32)
        squares = squares + values * values
        products = products + slope * values
    count = metile.cast(width, metile.f32)
    root = metile.rsqrt(metile.sum(squares) / count + eps)
    along = metile.sum(products) / count * root
    statistics.store(row, root)
    for start in metile.tile_range(0, width, BLOCK):
        values = metile.cast(source.load((row, start + lanes)), metile.f32)
        slope = metile.cast(given.load((row, start + lanes)), metile.f32)
        if WEIGHTED:
            slope = slope * metile.cast(scales.load(start + lanes), metile.f32)
        gradient = root * (slope - values * root * along)
        if PASSED:
            gradient = gradient + metile.cast(other.load((row, start + lanes)), metile.f32)
        result.store((row, start + lanes), gradient)


def _rows(dtype, width):
    """Rows of N(0, 1) numbers, weights, and what float64 makes of them."""
    generator = np.random.default_rng(width)
    x = mx.array(generator.standard_normal((5, width)).astype(np.float32)).astype(dtype)
    w = mx.array(generator.uniform(0.5, 2, width).astype(np.float32)).astype(dtype)
    exact, weight = (np.array(a.astype(mx.float32)).astype(np.float64) for a in (x, w))
    expected = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    # 1e-6 of a f32; two more than the correctly rounded f16 or bf16, which is half of one off.
    return x, w, expected, 8 if dtype == mx.float32 else 2.5


def _selftest(dtype, width, backend):
    x, w, expected, ulps = _rows(dtype, width)
    arguments = (x, w, metile.empty(x.shape, dtype), 1e-5)
    dispatch = rmsnorm_register[5].prepare(
        *arguments, N=width, BLOCK=metile.next_power_of_2(max(width, 32)), backend=backend
    )
    return dispatch, arguments, expected, ulps


def _selftest_rows(dtype, width, backend):
    """Four of the five rows in the first program, one in the second."""
    x, w, expected, ulps = _rows(dtype, width)
    arguments = (x, w, metile.empty(x.shape, dtype), 1e-5, 5)
    block = metile.next_power_of_2(max(width, 32))
    dispatch = rmsnorm_rows[2].prepare(*arguments, N=width, BLOCK=block, ROWS=4, backend=backend)
    return dispatch, arguments, expected, ulps


def _selftest_runtime(dtype, width, backend):
    x, w, expected, ulps = _rows(dtype, width)
    arguments = (x, w, metile.empty(x.shape, dtype), width, 1e-5)
    return rmsnorm[5].prepare(*arguments, backend=backend), arguments, expected, ulps


_NAMES = (("f32", mx.float32), ("f16", mx.float16), ("bf16", mx.bfloat16))
SELFTESTS = (
    [
        (f"rmsnorm_register, {width} columns, {name}", partial(_selftest, dtype, width))
        for width in (31, 1009, 1024)
        for name, dtype in _NAMES
    ]
    + [
        (f"rmsnorm, {width} columns, {name}", partial(_selftest_runtime, dtype, width))
        for width in (31, 4097)
        for name, dtype in _NAMES
    ]
    + [
        (f"rmsnorm_rows, {width} columns, {name}", partial(_selftest_rows, dtype, width))
        for width, (name, dtype) in zip((31, 250, 256), _NAMES, strict=True)
    ]
)
