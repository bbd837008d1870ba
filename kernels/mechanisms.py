"""One small kernel for each mechanism of the compiler, for `python -m metile_mlx selftest`.

Conversions of owners by each way of moving values, every dtype, ragged edges and masks, zero fill
and merged stores, scalars and grids, integer and float arithmetic, register tiles and their sums.
"""

from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile

SWAPPED = metile.ThreadLayout((1, 0, 2, 3, 4, 5))
TRANSPOSED = metile.ThreadLayout((3, 4, 5, 0, 1, 2))
BITS = {
    "bool": mx.bool_, "u8": mx.uint8, "i8": mx.int8, "u16": mx.uint16, "i16": mx.int16,
    "u32": mx.uint32, "i32": mx.int32, "u64": mx.uint64, "i64": mx.int64,
    "f16": mx.float16, "bf16": mx.bfloat16, "f32": mx.float32,
}  # fmt: skip
FLOATS = ("f16", "bf16", "f32")


def random_bits(shape, dtype):
    """Any bits: NaN with payloads, infinities, -0.0 and subnormal numbers are among them."""
    generator = np.random.default_rng(7)
    if dtype == mx.bool_:
        return mx.array(generator.integers(0, 2, shape).astype(np.bool_))
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.size]
    return mx.array(generator.integers(0, 2 ** (8 * dtype.size), shape, unsigned)).view(dtype)


def positive(shape, seed=3):
    """f32 numbers of 0.5 to 2: sums of them lose nothing to cancellation."""
    return np.random.default_rng(seed).uniform(0.5, 2, shape).astype(np.float32)


@metile.kernel
def moved(x, out, batches, DESTINATION: metile.constexpr):
    """Swap the rows and columns of 8 by 8 blocks by changing who owns what."""
    source = metile.tensor(x, shape=(batches, 8, 8))
    result = metile.tensor(out, shape=(batches, 8, 8), access="write")
    batch = metile.program_id(0)
    i = metile.arange(0, 64)
    values = metile.convert_layout(source.load((batch, i // 8, i % 8)), DESTINATION)
    owned = metile.arange(0, 64, layout=DESTINATION)
    result.store((batch, owned % 8, owned // 8), values)


def selftest_moved(layout, dtype, conversion, mechanism, backend):
    x = random_bits((5, 8, 8), BITS[dtype])
    out = metile.empty(x.shape, x.dtype)
    dispatch = moved[(5,)].prepare(
        x, out, 5, DESTINATION=layout, backend=backend,
        schedule=metile.Schedule(conversion=conversion),
    )  # fmt: skip
    used = [c.mechanism for c in dispatch.execution_report.layout_conversions]
    assert backend == "reference" or used == [mechanism], f"{used}, not {mechanism}"
    return dispatch, (x, out, 5), mx.contiguous(mx.transpose(x, (0, 2, 1))), 0


@metile.kernel
def masked(x, out, n, start, BLOCK: metile.constexpr):
    """Copy the even elements from `start` on; 7 where a lane is masked; the rest is not stored."""
    source = metile.tensor(x, shape=n)
    result = metile.tensor(out, shape=n, access="write")
    i = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    result.store(i, source.load(i, mask=i % 2 == 0, fill=7), mask=i >= start)


def selftest_masked(n, backend):
    x = mx.arange(n).astype(mx.float32)
    i = np.arange(n)
    expected = np.where(i >= 5, np.where(i % 2 == 0, i, 7), 0).astype(np.float32)
    out = metile.empty((n,), mx.float32)
    programs = metile.cdiv(n, 128)
    dispatch = masked[programs].prepare(x, out, n, 5, BLOCK=128, backend=backend)
    return dispatch, (x, out, n, 5), mx.array(expected), 0


@metile.kernel
def merged(x, n, start: int, stop: int, step: float):
    """Add to some elements; the others keep what was given."""
    values = metile.tensor(x, shape=n, access="read_write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    values.store(i, values.load(i) + step, mask=(start <= i) & (i < stop))


def selftest_merged(backend):
    x = mx.arange(70).astype(mx.float32)
    i = np.arange(70)
    expected = mx.array(np.where((i >= 3) & (i < 67), i + 0.5, i).astype(np.float32))
    dispatch = merged[3].prepare(x, 70, 3, 67, 0.5, backend=backend)
    return dispatch, (x, 70, 3, 67, 0.5), expected, 0


@metile.kernel
def planes(out, width, negate: bool):
    """The number of each program of a grid of three axes."""
    result = metile.tensor(out, shape=(2, 3, 4, width), access="write")
    z, y, x = metile.program_id(2), metile.program_id(1), metile.program_id(0)
    number = (z * metile.num_programs(1) + y) * metile.num_programs(0) + x
    if negate:
        number = -number
    result.store((z, y, x, metile.arange(0, 32)), metile.zeros(32, metile.i32) + number)


def selftest_planes(backend):
    out = metile.empty((2, 3, 4, 20), mx.int32)
    dispatch = planes[4, 3, 2].prepare(out, 20, True, backend=backend)
    expected = mx.contiguous(mx.broadcast_to(-mx.arange(24).reshape(2, 3, 4, 1), (2, 3, 4, 20)))
    return dispatch, (out, 20, True), expected, 0


@metile.kernel
def integers(a, b, out, n):
    """Division and remainder toward minus infinity, shifts, masks and wrapping products."""
    left, right = metile.tensor(a, shape=n), metile.tensor(b, shape=n)
    result = metile.tensor(out, shape=(4, n), access="write")
    i = metile.program_id(0) * 64 + metile.arange(0, 64)
    x, y = left.load(i), right.load(i)
    result.store((0, i), x // y)
    result.store((1, i), x % y)
    result.store((2, i), (x << (y & 7)) ^ (x >> 3))
    result.store((3, i), x * y)


def selftest_integers(backend):
    generator = np.random.default_rng(11)
    a = generator.integers(-(2**31), 2**31, 200)
    b = generator.integers(1, 1000, 200) * generator.choice([-1, 1], 200)
    rows = np.stack([a // b, a % b, (a << (b & 7)) ^ (a >> 3), a * b])
    expected = mx.array(rows.astype(np.uint64).astype(np.uint32)).view(mx.int32)
    x, y, out = mx.array(a.astype(np.int32)), mx.array(b.astype(np.int32)), (4, 200)
    arguments = (x, y, metile.empty(out, mx.int32), 200)
    return integers[4].prepare(*arguments, backend=backend), arguments, expected, 0


@metile.kernel
def gathered(x, index, out, n, m):
    """Load where another array says; what lies outside gives the fill."""
    source, where = metile.tensor(x, shape=n), metile.tensor(index, shape=m)
    result = metile.tensor(out, shape=m, access="write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    result.store(i, source.load(where.load(i), fill=-1))


def selftest_gathered(backend):
    index = np.array([0, 9, 10, -1, 5, 2**31 - 1, -(2**31), 3] * 5, np.int32)
    x = mx.arange(10).astype(mx.float32)
    inside = (index >= 0) & (index < 10)
    expected = mx.array(np.where(inside, index, -1).astype(np.float32))
    arguments = (x, mx.array(index), metile.empty((40,), mx.float32), 10, 40)
    return gathered[2].prepare(*arguments, backend=backend), arguments, expected, 0


@metile.kernel
def function(x, out, n, FUNCTION: metile.constexpr):
    """A function of each element, computed in f32."""
    source = metile.tensor(x, shape=n)
    result = metile.tensor(out, shape=n, access="write")
    i = metile.program_id(0) * 128 + metile.arange(0, 128)
    value = metile.cast(source.load(i), metile.f32)
    if FUNCTION == "exp":
        value = metile.exp(value)
    elif FUNCTION == "log":
        value = metile.log(value)
    elif FUNCTION == "sqrt":
        value = metile.sqrt(value)
    elif FUNCTION == "rsqrt":
        value = metile.rsqrt(value)
    elif FUNCTION == "sin":
        value = metile.sin(value)
    elif FUNCTION == "tanh":
        value = metile.tanh(value)
    result.store(i, metile.cast(value, out.dtype))


# Metal allows 4 ulps to exp and log, 4 to sin and 5 to tanh.
FUNCTIONS = {
    "exp": (np.exp, 4), "log": (lambda x: np.log(x), 4), "sqrt": (np.sqrt, 1),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 2), "sin": (np.sin, 4), "tanh": (np.tanh, 5),
}  # fmt: skip


def selftest_function(name, backend):
    # Not near 1, where the logarithm is near 0 and an ulp of it is tiny.
    values = positive(300) + 1
    exact, ulps = FUNCTIONS[name]
    arguments = (mx.array(values), metile.empty((300,), mx.float32), 300)
    dispatch = function[3].prepare(*arguments, FUNCTION=name, backend=backend)
    return dispatch, arguments, exact(values.astype(np.float64)), ulps


def selftest_rounding(dtype, backend):
    values = random_bits((300,), mx.float32)
    values = mx.where(mx.isnan(values), 1.0, values)
    arguments = (values, metile.empty((300,), BITS[dtype]), 300)
    dispatch = function[3].prepare(*arguments, FUNCTION="none", backend=backend)
    return dispatch, arguments, values.astype(BITS[dtype]), 0


@metile.kernel
def copied(x, out, rows, width, LAYOUT: metile.constexpr):
    """Copy ragged rows, several elements a thread."""
    source = metile.tensor(x, shape=(rows, width))
    result = metile.tensor(out, shape=(rows, width), access="write")
    row, columns = metile.program_id(0), metile.arange(0, LAYOUT.size, layout=LAYOUT)
    result.store((row, columns), source.load((row, columns)))


def selftest_copied(dtype, width, layout, backend):
    x = random_bits((3, width), BITS[dtype])
    arguments = (x, metile.empty(x.shape, x.dtype), 3, width)
    return copied[3].prepare(*arguments, LAYOUT=layout, backend=backend), arguments, x, 0


@metile.kernel
def summed(x, out, rows, width, LAYOUT: metile.constexpr):
    """The sum of each row, added in f32, written to 32 places."""
    source = metile.tensor(x, shape=(rows, width))
    result = metile.tensor(out, shape=(rows, width), access="write")
    row, columns = metile.program_id(0), metile.arange(0, LAYOUT.size, layout=LAYOUT)
    values = metile.cast(source.load((row, columns)), metile.f32)
    result.store((row, columns), values / metile.sum(values))


def selftest_summed(dtype, width, layout, backend):
    x = mx.array(positive((3, width))).astype(BITS[dtype])
    exact = np.array(x.astype(mx.float32)).astype(np.float64)
    arguments = (x, metile.empty(x.shape, mx.float32), 3, width)
    dispatch = summed[3].prepare(*arguments, LAYOUT=layout, backend=backend)
    return dispatch, arguments, exact / exact.sum(axis=1, keepdims=True), 16


def adjacent(size, registers):
    """Each thread holds neighbours: the register bits of a slot are the low bits of the element."""
    bits, low = size.bit_length() - 1, registers.bit_length() - 1
    order = (*range(bits - low, bits), *range(bits - low))
    return metile.ThreadLayout(order, elements_per_thread=registers)


def striped(size, registers):
    """Thread t holds elements t, t + T, t + 2 T, ... with T threads."""
    return metile.ThreadLayout.identity(size, elements_per_thread=registers)


IDENTITY = metile.ThreadLayout.identity(64)
WAYS = [
    ("unchanged", IDENTITY, "auto", "unchanged"),
    ("by shuffle", SWAPPED, "auto", "shuffle"),
    ("by scratch in one simdgroup", SWAPPED, "scratch", "threadgroup"),
    ("by scratch", TRANSPOSED, "auto", "threadgroup"),
]
REGISTERS = [(striped, 4), (striped, 32), (adjacent, 4), (adjacent, 8)]

SELFTESTS = [
    *(
        (f"transpose {way}, {dtype}", partial(selftest_moved, layout, dtype, how, mechanism))
        for way, layout, how, mechanism in WAYS
        for dtype in FLOATS
    ),
    *(
        (f"transpose by scratch, {dtype}",
         partial(selftest_moved, TRANSPOSED, dtype, "auto", "threadgroup"))
        for dtype in ("bool", "u32", "i32")
    ),
    *(
        (f"copy 100 columns, {dtype}", partial(selftest_copied, dtype, 100, striped(128, 1)))
        for dtype in BITS
    ),
    ("masks and zero fill, 1000 elements", partial(selftest_masked, 1000)),
    ("masks and zero fill, 6 elements", partial(selftest_masked, 6)),
    ("stores merged into an input", selftest_merged),
    ("grid of three axes, branch on a scalar", selftest_planes),
    ("integers", selftest_integers),
    ("gather, also from outside", selftest_gathered),
    *((f"{name}, f32", partial(selftest_function, name)) for name in FUNCTIONS),
    *((f"round f32 to {dtype}", partial(selftest_rounding, dtype)) for dtype in FLOATS),
    *(
        (f"copy {registers} {kind.__name__} a thread, {width} columns, {dtype}",
         partial(selftest_copied, dtype, width, kind(1024, registers)))
        for kind, registers in REGISTERS
        for width, dtype in ((1024, "f32"), (1009, "f16"), (1009, "bf16"))
    ),
    *(
        (f"sum {registers} {kind.__name__} a thread, {width} columns, {dtype}",
         partial(selftest_summed, dtype, width, kind(1024, registers)))
        for kind, registers in REGISTERS
        for width, dtype in ((1024, "f32"), (1009, "f16"))
    ),
]  # fmt: skip
