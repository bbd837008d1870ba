"""Reductions of tiles, whole and along an axis, through the public API on every backend.

SPEC K2 (fills), K3 (`sum`, `max`, `min`, `reshape`), R2 to R4. Each mechanism has a layout: rows in
the registers of a thread, in some lanes of a simdgroup, in all of them, and across simdgroups.
"""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx import emulator

pytestmark = pytest.mark.usefixtures("gpu")
L = metile.ThreadLayout
# 8 rows of 32 columns; slot bits: registers above, then simdgroups, then lanes.
LAYOUTS = {
    "a row per simdgroup": L.identity(256),
    "rows in registers": L.identity(256, elements_per_thread=8),
    "a row in eight lanes": L((6, 7, 0, 1, 2, 3, 4, 5), elements_per_thread=4),
    "a row across simdgroups": L((5, 6, 7, 0, 1, 2, 3, 4), 77),
    "lanes, simdgroups and registers": L((7, 0, 5, 3, 2, 6, 1, 4), 200, elements_per_thread=2),
}


@metile.kernel
def along(x, y, SHAPE: metile.constexpr, AXIS: metile.constexpr, LAYOUT: metile.constexpr):
    """y = [sum, max, min] of x along an axis, broadcast back."""
    source = metile.tensor(x, shape=SHAPE)
    i = metile.reshape(metile.arange(0, SHAPE[0] * SHAPE[1], layout=LAYOUT), SHAPE)
    at = (i // SHAPE[1], i % SHAPE[1])
    values = source.load(at)
    target = metile.tensor(y, shape=(3, SHAPE[0], SHAPE[1]), access="write")
    target.store((0, *at), metile.sum(values, axis=AXIS))
    target.store((1, *at), metile.max(values, axis=AXIS))
    target.store((2, *at), metile.min(values, axis=AXIS))


def expected(x: mx.array, axis: int | None) -> mx.array:
    found = [f(x, axis=axis, keepdims=True) for f in (mx.sum, mx.max, mx.min)]
    return mx.stack([mx.broadcast_to(part, x.shape) for part in found])


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_r2_each_mechanism(layout: metile.ThreadLayout, axis: int, backend: str) -> None:
    x = mx.random.randint(-99, 99, (8, 32), key=mx.random.key(axis % 5)).astype(mx.float32)
    out = metile.empty((3, 8, 32), x.dtype)
    found = along[1](x, out, SHAPE=(8, 32), AXIS=axis, LAYOUT=layout, backend=backend)
    assert mx.array_equal(found, expected(x, axis)).item()


def test_r2_what_the_report_says() -> None:
    """Shuffles for short rows, memory where a row spans simdgroups, nothing for registers."""
    facts = {}
    for name, layout in LAYOUTS.items():
        out = metile.empty((3, 8, 32), mx.float32)
        dispatch = along[1].prepare(
            mx.zeros((8, 32)), out, SHAPE=(8, 32), AXIS=1, LAYOUT=layout, backend="cpu"
        )
        fact = dispatch.execution_report.register_reductions[0]
        assert (fact.op, fact.axis, fact.dtype) == ("sum", 1, "f32")
        elements = {a.scratch: a.elements for a in dispatch.execution_report.allocations}
        facts[name] = (fact.shuffles, elements.get(fact.scratch or ""))
        assert "sum f32 along axis 1" in dispatch.explain()
    assert facts == {
        "a row per simdgroup": (0, None),
        "rows in registers": (0, None),
        "a row in eight lanes": (3, None),
        # Two lane bits and three of simdgroups: eight parts of each of eight rows.
        "a row across simdgroups": (2, 64),
        "lanes, simdgroups and registers": (3, 16),
    }


@pytest.mark.parametrize("dtype", [mx.int32, mx.uint32], ids=["i32", "u32"])
@pytest.mark.parametrize("axis", [None, 1])
def test_sums_of_integers_wrap(dtype: mx.Dtype, axis: int | None, backend: str) -> None:
    """K4: exact, modulo 2**32, with the largest and the smallest number among them."""
    numbers = np.random.default_rng(3).integers(0, 1 << 32, (8, 32), np.uint32)
    numbers[0, :3] = [0, (1 << 32) - 1, 1 << 31]
    x = mx.array(numbers.view(np.int32) if dtype == mx.int32 else numbers)
    layout = LAYOUTS["lanes, simdgroups and registers"]
    found = along[1](
        x, metile.empty((3, 8, 32), dtype), SHAPE=(8, 32), AXIS=axis, LAYOUT=layout, backend=backend
    )
    assert found.dtype == dtype
    assert mx.array_equal(found, expected(x, axis)).item()


@metile.kernel
def halves(x, sums, extremes, N: metile.constexpr, LAYOUT: metile.constexpr):
    """R4: sums of f16 and bf16 in f32; extremes in their own dtype."""
    i = metile.arange(0, LAYOUT.size, layout=LAYOUT)
    values = metile.tensor(x, shape=(N,)).load(i, fill=0)
    total = metile.sum(values, acc=metile.f32)
    assert total.dtype == metile.f32
    most, least = metile.max(values), metile.min(values, axis=0)
    assert most.dtype == x.dtype
    metile.tensor(sums, shape=(1,), access="write").store(0, total)
    target = metile.tensor(extremes, shape=(2,), access="write")
    target.store(0, most)
    target.store(1, least)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=["f16", "bf16"])
def test_r4_halves_with_an_accumulator(dtype: mx.Dtype, backend: str) -> None:
    """F67: 2000 times 50 overflows f16 and stalls bf16; in f32 it is 100000."""
    x = mx.full((2000,), 50.0, dtype)
    x[7], x[1234] = 60000.0, -60000.0
    layout = L.identity(2048, elements_per_thread=4)
    total, extremes = halves[1](
        x, metile.empty((1,), mx.float32), metile.empty((2,), dtype), N=2000, LAYOUT=layout,
        backend=backend,
    )  # fmt: skip
    assert total.item() == 1998 * 50
    assert extremes.dtype == dtype
    assert extremes.tolist() == [mx.max(x).item(), mx.min(x).item()]


@metile.kernel
def counted(x, y, LAYOUT: metile.constexpr):
    i = metile.arange(0, 256, layout=LAYOUT)
    target = metile.tensor(y, shape=(2,), access="write")
    values = metile.tensor(x, shape=(256,)).load(i)
    many = metile.cast(values, metile.i32) > 100
    target.store(0, metile.sum(many, acc=metile.i32))
    target.store(1, metile.sum(values, acc=metile.i32))


def test_masks_and_bytes_are_counted(backend: str) -> None:
    x = mx.array(np.arange(256), mx.uint8)
    layout = L.identity(256, elements_per_thread=2)
    found = counted[1](x, metile.empty((2,), mx.int32), LAYOUT=layout, backend=backend)
    assert found.tolist() == [155, 255 * 128]


@metile.kernel
def of_a_part(x, y, n, SIZE: metile.constexpr):
    """Sum, maximum, minimum and the place of the largest, of n elements in SIZE lanes."""
    source, i = metile.tensor(x, shape=n), metile.arange(0, SIZE)
    target = metile.tensor(y, shape=4, access="write")
    values = source.load(i, fill=-math.inf)
    target.store(0, metile.sum(source.load(i)))
    target.store(1, metile.max(values))
    target.store(2, metile.min(source.load(i, fill=math.inf)))
    target.store(3, metile.cast(metile.argmax(values), metile.f32))


@pytest.mark.emulator
@pytest.mark.parametrize("name", ["cpu", "reference", "metal", "emulator"])
def test_f48_f53_any_number_of_participants(name: str) -> None:
    """All negative or all positive; behind them memory is NaN, which nobody reads."""
    for size in (32, 128):
        for n in [n for n in (1, 3, 5, 31, 33, 48, 96) if n <= size]:
            for sign in (-1, 1):
                numbers = sign * (1 + mx.arange(n).astype(mx.float32))
                x = mx.concatenate([numbers, mx.full(200 - n, math.nan)])
                with emulator.checked(schedules=2):
                    y = of_a_part[1](x, metile.empty(4, x.dtype), n, SIZE=size, backend=name)
                total, (first, last) = sign * n * (n + 1) / 2, sorted((sign, sign * n))
                assert y.tolist() == [total, last, first, 0 if sign < 0 else n - 1], (size, n)


@pytest.mark.parametrize("place", [0, 37, 255])
def test_nan_wins(place: int, backend: str) -> None:
    """K3: as in MLX, in every lane, register and simdgroup, and in no row but its own."""
    for name in ("rows in registers", "lanes, simdgroups and registers"):
        numbers = np.random.default_rng(place).standard_normal(256).astype(np.float32)
        numbers[place] = np.nan
        numbers[(place + 100) % 256] = np.inf
        x = mx.array(numbers.reshape(8, 32))
        for axis in (1, None):
            out = metile.empty((3, 8, 32), x.dtype)
            found = along[1](
                x, out, SHAPE=(8, 32), AXIS=axis, LAYOUT=LAYOUTS[name], backend=backend
            )
            assert mx.array_equal(found[1:], expected(x, axis)[1:], equal_nan=True).item(), name


@metile.kernel
def softmax(x, y, rows, N: metile.constexpr, SHAPE: metile.constexpr, LAYOUT: metile.constexpr):
    """Rows of N columns, SHAPE[0] of them per program."""
    source = metile.tensor(x, shape=(rows, N))
    target = metile.tensor(y, shape=(rows, N), access="write")
    i = metile.reshape(metile.arange(0, SHAPE[0] * SHAPE[1], layout=LAYOUT), SHAPE)
    at = (metile.program_id(0) * SHAPE[0] + i // SHAPE[1], i % SHAPE[1])
    values = metile.cast(source.load(at, fill=-math.inf), metile.f32)
    # Rows beyond the last one are all -inf.
    most = metile.maximum(metile.max(values, axis=1), -3.0e38)
    powers = metile.exp(values - most)
    target.store(at, powers / metile.sum(powers, axis=1))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (11, 20)])
@pytest.mark.parametrize("name", ["a row per simdgroup", "a row in eight lanes"])
def test_softmax_of_short_rows(rows: int, columns: int, name: str, backend: str) -> None:
    """Ragged rows and columns, eight rows a threadgroup."""
    x = mx.random.normal((rows, columns), key=mx.random.key(rows)) * 20
    made = softmax[metile.cdiv(rows, 8)](
        x, metile.empty(x.shape, x.dtype), rows, N=columns, SHAPE=(8, 32), LAYOUT=LAYOUTS[name],
        backend=backend,
    )  # fmt: skip
    wide = np.array(x).astype(np.float64)
    right = np.exp(wide - wide.max(axis=1, keepdims=True))
    right /= right.sum(axis=1, keepdims=True)
    assert np.abs(np.array(made) - right).max() <= 1e-6


@metile.kernel
def row_totals(x, y, rows, N: metile.constexpr, LAYOUT: metile.constexpr):
    """One number per row: the thread that owns its first column stores it."""
    i = metile.reshape(metile.arange(0, 256, layout=LAYOUT), (8, 32))
    row, column = metile.program_id(0) * 8 + i // 32, i % 32
    total = metile.sum(metile.tensor(x, shape=(rows, N)).load((row, column)), axis=1)
    target = metile.tensor(y, shape=(rows,), access="write")
    target.store(row, total, mask=column == 0)


def test_one_value_per_row_is_stored_once(backend: str) -> None:
    for rows in (1, 8, 13):
        x = mx.random.randint(-9, 9, (rows, 30), key=mx.random.key(rows)).astype(mx.float32)
        found = row_totals[metile.cdiv(rows, 8)](
            x, metile.empty((rows,), x.dtype), rows, N=30,
            LAYOUT=LAYOUTS["lanes, simdgroups and registers"], backend=backend,
        )  # fmt: skip
        assert found.tolist() == mx.sum(x, axis=1).tolist()


@metile.kernel
def streamed(x, y, rows, columns):
    """Rows of any length, 64 columns at a time: a sum of each part, and the largest of those."""
    source = metile.tensor(x, shape=(rows, columns))
    i = metile.reshape(metile.arange(0, 256), (4, 64))
    row, column = metile.program_id(0) * 4 + i // 64, i % 64
    best = metile.full((4, 64), -1000.0, metile.f32)
    for start in metile.tile_range(0, columns, 64):
        part = source.load((row, start + column), fill=0)
        best = metile.maximum(best, metile.sum(part, axis=1))
    target = metile.tensor(y, shape=(rows,), access="write")
    target.store(row, metile.max(best, axis=1), mask=column == 0)


def test_f43_k5_in_a_loop_memory_is_released(backend: str) -> None:
    """A row lies in two simdgroups: the parts of one iteration are read before the next writes."""
    for rows, columns in ((3, 200), (9, 31)):
        x = mx.random.randint(-9, 9, (rows, columns), key=mx.random.key(rows)).astype(mx.float32)
        found = streamed[metile.cdiv(rows, 4)](
            x, metile.empty((rows,), x.dtype), rows, columns, backend=backend
        )
        padded = mx.pad(x, ((0, 0), (0, -columns % 64))).reshape(rows, -1, 64)
        assert found.tolist() == mx.max(mx.sum(padded, axis=2), axis=1).tolist()


@metile.kernel
def cube(x, y, LAYOUT: metile.constexpr):
    """Three dimensions: along each, one after the other."""
    i = metile.reshape(metile.arange(0, 512, layout=LAYOUT), (4, 16, 8))
    values = metile.tensor(x, shape=(512,)).load(i)
    middle = metile.max(values, axis=1)
    last = metile.sum(middle * values, axis=2)
    first = metile.min(metile.reshape(last, (4, 1, 128)), axis=0)
    alone = metile.sum(first, axis=1)
    metile.tensor(y, shape=(512,), access="write").store(i, metile.reshape(alone, (4, 16, 8)))


def test_three_dimensions_and_an_axis_of_one(backend: str) -> None:
    x = mx.random.randint(-9, 9, (512,), key=mx.random.key(1)).astype(mx.float32)
    layout = L((8, 1, 5, 0, 7, 2, 6, 3, 4), 300, elements_per_thread=2)
    found = cube[1](x, metile.empty((512,), x.dtype), LAYOUT=layout, backend=backend)
    block = x.reshape(4, 16, 8)
    last = mx.sum(mx.max(block, axis=1, keepdims=True) * block, axis=2, keepdims=True)
    least = mx.min(mx.broadcast_to(last, block.shape), axis=0, keepdims=True)
    assert mx.array_equal(found, mx.broadcast_to(least, block.shape).reshape(-1)).item()


@metile.kernel
def constants(y, LAYOUT: metile.constexpr):
    """What is the same in every slot is still combined as often as there are slots."""
    i = metile.reshape(metile.arange(0, 256, layout=LAYOUT), (8, 32))
    ones = metile.full((8, 32), 3, metile.i32, layout=LAYOUT)
    at = (i // 32, i % 32)
    target = metile.tensor(y, shape=(4, 8, 32), access="write")
    target.store((0, *at), metile.sum(ones, axis=1))
    target.store((1, *at), metile.max(ones, axis=0))
    target.store((2, *at), metile.sum(ones) + ones)
    target.store((3, *at), metile.sum(i, axis=1) + metile.min(i) + metile.max(i))


@pytest.mark.parametrize("name", ["rows in registers", "lanes, simdgroups and registers"])
def test_constants(name: str, backend: str) -> None:
    found = constants[1](metile.empty((4, 8, 32), mx.int32), LAYOUT=LAYOUTS[name], backend=backend)
    sums = mx.sum(mx.arange(256).reshape(8, 32), axis=1).tolist()
    assert np.array_equal(found[0], np.full((8, 32), 96))
    assert np.array_equal(found[1], np.full((8, 32), 3))
    assert np.array_equal(found[2], np.full((8, 32), 256 * 3 + 3))
    assert found[3, :, 0].tolist() == [total + 255 for total in sums]


def test_gradients_go_through_the_reference() -> None:
    """SPEC X7."""
    x = mx.random.normal((8, 20), key=mx.random.key(7))

    def ours(x: mx.array) -> mx.array:
        made = softmax[1](
            x, metile.empty(x.shape, x.dtype), 8, N=20, SHAPE=(8, 32),
            LAYOUT=LAYOUTS["a row per simdgroup"], backend="cpu",
        )  # fmt: skip
        return mx.sum(made**2)

    found, right = mx.grad(ours)(x), mx.grad(lambda x: mx.sum(mx.softmax(x, axis=1) ** 2))(x)
    assert mx.allclose(found, right, rtol=1e-4, atol=1e-6).item()
