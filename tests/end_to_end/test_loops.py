"""Loops with runtime bounds through the public API, on every backend (SPEC K5, X5, F21, F43)."""

# ruff: noqa: B007 (an index nobody reads)

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx import compiler
from metile_mlx.context import Context
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir.core import Func
from tests.support import emulated
from tests.support.mutate import BARRIER, without_barrier

pytestmark = pytest.mark.usefixtures("gpu")
TOP = 2**31 - 1


@metile.kernel
def counted(y, start, end, step):
    """How often the loop runs, the sum of its indices (modulo 2**32) and the last one."""
    target = metile.tensor(y, shape=3, access="write")
    trips, total, last = 0, 0, -1
    for i in metile.tile_range(start, end, step):
        trips += 1
        total += i
        last = i
    target.store(0, trips)
    target.store(1, total)
    target.store(2, last)


@metile.kernel
def counted_constant(y, START: metile.constexpr, END: metile.constexpr, STEP: metile.constexpr):
    target = metile.tensor(y, shape=3, access="write")
    trips, total, last = 0, 0, -1
    for i in metile.tile_range(START, END, STEP):
        trips += 1
        total += i
        last = i
    target.store(0, trips)
    target.store(1, total)
    target.store(2, last)


def wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def expected(start: int, end: int, step: int) -> list[int]:
    found = range(start, end, step)
    return [len(found), wrapped(sum(found)), found[-1] if found else -1]


BOUNDS = [
    (0, 10, 3),
    (0, 9, 3),
    (5, 5, 1),
    (7, -7, 2),
    (-7, 7, 7),
    (TOP - 10, TOP, 7),
    (TOP - 10, TOP, TOP),
    (TOP - 1, TOP, 1),
    (0, TOP, 2**30),
    (-(2**31), TOP, 2**30),
    (-(2**31), -(2**31), 1),
    (-(2**31), -(2**31) + 3, TOP),
    (TOP, -(2**31), 1),
]


@pytest.mark.parametrize("bounds", BOUNDS)
def test_bounds_near_the_end_of_i32_never_wrap(bounds: tuple[int, int, int], backend: str) -> None:
    """i += step past the end would be negative again, and the loop would not come to an end."""
    made = counted[1](metile.empty(3, mx.int32), *bounds, backend=backend)
    assert made.tolist() == expected(*bounds)


@pytest.mark.parametrize("bounds", BOUNDS[:2] + BOUNDS[5:11])
def test_constant_bounds(bounds: tuple[int, int, int], backend: str) -> None:
    start, end, step = bounds
    out = metile.empty(3, mx.int32)
    made = counted_constant[1](out, START=start, END=end, STEP=step, backend=backend)
    assert made.tolist() == expected(*bounds)


def test_a_loop_that_can_not_wrap_is_counted_plainly() -> None:
    def text(kernel: metile.Kernel, *args: Any, **constexprs: int) -> str:
        return kernel[1].prepare(*args, **constexprs, target="metal").msl

    out = metile.empty(3, mx.int32)
    plain = text(counted_constant, out, START=0, END=1000, STEP=32)
    assert "for (int i = 0; i < 1000; i += 32) {" in plain
    guarded = text(counted, out, 0, 10, 3)
    assert (
        "for (int i = start_value; i < end_value; i = uint(end_value) - uint(i) > "
        "uint(step_value) ? i + step_value : end_value) {"
    ) in guarded


@pytest.mark.parametrize("step", [0, -1, -(2**31)])
def test_a_step_below_one_is_refused_at_the_call(step: int, backend: str) -> None:
    with pytest.raises(metile.LaunchError, match=rf"step is {step} \(step\), expected at least 1"):
        counted[1](metile.empty(3, mx.int32), 0, 10, step, backend=backend)
    dispatch = counted[1].prepare(metile.empty(3, mx.int32), 0, 10, 1, backend=backend)
    with pytest.raises(metile.LaunchError, match="expected at least 1"):
        dispatch(metile.empty(3, mx.int32), 0, 10, step)


@metile.kernel
def computed_step(y, n, step):
    trips = 0
    for i in metile.tile_range(0, n, step - 5):
        trips += 1
    metile.tensor(y, shape=1, access="write").store(0, trips)


def test_a_step_that_no_call_can_check_runs_nothing_below_one() -> None:
    """It would never come to an end."""
    for backend in ("cpu", "metal"):
        out = metile.empty(1, mx.int32)
        assert computed_step[1](out, 10, 8, backend=backend).item() == 4
        assert computed_step[1](out, 10, 5, backend=backend).item() == 0
        assert computed_step[1](out, 10, -9, backend=backend).item() == 0
        lazy = counted[1](metile.empty(3, mx.int32), 0, 10, mx.array(0), backend=backend)
        assert lazy.tolist() == [0, 0, -1]
        lazy = counted[1](metile.empty(3, mx.int32), 0, mx.array(10), mx.array(4), backend=backend)
        assert lazy.tolist() == expected(0, 10, 4)


@metile.kernel
def triangle(x, y, n, BLOCK: metile.constexpr):
    """y[r] = the sum of the first r + 1 elements of row r."""
    rows = metile.num_programs(0)
    source = metile.tensor(x, shape=(rows, n))
    row = metile.program_id(0)
    lanes = metile.arange(0, BLOCK)
    total = 0.0
    for i in metile.tile_range(0, row + 1, BLOCK):
        at = i + lanes
        total = total + metile.sum(source.load((row, at), mask=at <= row))
    metile.tensor(y, shape=rows, access="write").store(row, total)


@pytest.mark.parametrize("block", [32, 64])
def test_bounds_may_differ_between_programs(block: int) -> None:
    x = mx.arange(100 * 100).reshape(100, 100).astype(mx.float32) % 7
    exact = np.tril(np.array(x)).sum(axis=1)
    for backend in ("cpu", "metal"):
        made = triangle[100](x, metile.empty(100, mx.float32), 100, BLOCK=block, backend=backend)
        assert np.array_equal(np.array(made), exact)
    with pytest.raises(metile.UnsupportedError, match="its end is no Python number") as caught:
        triangle[100](x, metile.empty(100, mx.float32), 100, BLOCK=block, backend="reference")
    assert caught.value.loc is not None
    assert "metile.tile_range(0, row + 1, BLOCK)" in caught.value.loc.text


@metile.kernel
def summed(x, y, n, BLOCK: metile.constexpr):
    """One sum in each iteration: the memory of its partials is written again and again (F43)."""
    rows = metile.num_programs(0)
    source = metile.tensor(x, shape=(rows, n))
    row = metile.program_id(0)
    total = 0.0
    for i in metile.tile_range(0, n, BLOCK):
        total += metile.sum(source.load((row, i + metile.arange(0, BLOCK))))
    metile.tensor(y, shape=rows, access="write").store(row, total)


@pytest.mark.parametrize("width", [0, 1, 31, 64, 65, 192, 1009])
def test_a_sum_in_a_loop(width: int, backend: str) -> None:
    x = mx.array(np.random.default_rng(width).integers(-9, 9, (3, width)).astype(np.float32))
    made = summed[3](x, metile.empty(3, mx.float32), width, BLOCK=64, backend=backend)
    assert np.array_equal(np.array(made), np.array(x).sum(axis=1))


def test_a_new_width_compiles_nothing() -> None:
    """SPEC K7: runtime bounds are no part of what is compiled."""
    x = mx.ones((3, 500))
    out = metile.empty(3, mx.float32)
    summed[3](x, out, 500, BLOCK=32, backend="cpu")
    before = len(summed._specialisations)
    texts = [len(s._texts) for s in summed._specialisations.values()]
    for width in range(1, 500, 23):
        y = summed[3](mx.ones((3, width)), out, width, BLOCK=32, backend="cpu")
        assert y.tolist() == [width] * 3
    assert len(summed._specialisations) == before
    assert [len(s._texts) for s in summed._specialisations.values()] == texts


@pytest.mark.faulty
@pytest.mark.parametrize("barrier", [0, 1])
def test_f43_each_barrier_that_the_text_of_a_loop_lacks_is_missed(
    barrier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication, and the release over the back edge, as the emulator sees them."""
    emit = compiler.EMITTERS["msl"]

    def changed(func: Func, ctx: Context) -> KernelSource:
        made = emit(func, ctx)
        assert made.body.count(BARRIER) == 2
        return without_barrier(made, barrier)

    monkeypatch.setitem(compiler.EMITTERS, "msl", changed)
    summed._specialisations.clear()
    summed._dispatches.clear()
    collector = emulated.Collector()
    with emulated.collecting(collector):
        mx.eval(summed[2](mx.ones((2, 300)), metile.empty(2, mx.float32), 300, BLOCK=64))
    summed._specialisations.clear()
    summed._dispatches.clear()
    (fault,) = emulated.run_all(collector, emulated.Tally())
    assert "data race on threadgroup memory partials_0" in fault


@metile.kernel
def powers(x, y, n, times):
    """y = x, multiplied by itself `times` times; the first values are swapped round each time."""
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    value = metile.tensor(x, shape=n).load(i)
    a, b, c = value, value + 1, metile.cast(value, metile.f16)
    product = metile.full(32, 1.0, metile.f32)
    for _ in metile.tile_range(times):
        a, b = b, a
        product = product * value
        c = -c
    metile.tensor(y, shape=(4, n), access="write").store((0, i), product)
    metile.tensor(y, shape=(4, n), access="write").store((1, i), a)
    metile.tensor(y, shape=(4, n), access="write").store((2, i), b)
    metile.tensor(y, shape=(4, n), access="write").store((3, i), metile.cast(c, metile.f32))


@pytest.mark.parametrize("times", [0, 1, 2, 5])
def test_carried_tiles_change_all_at_once(times: int, backend: str) -> None:
    x = mx.array([0.5, -2.0, 3.0, 1.0] * 10)
    made = powers[2](x, metile.empty((4, 40), mx.float32), 40, times, backend=backend)
    first, second = (x, x + 1) if times % 2 == 0 else (x + 1, x)
    exact = mx.stack([x**times, first, second, x if times % 2 == 0 else -x])
    assert mx.array_equal(made, exact)


def test_loops_have_gradients_by_the_reference() -> None:
    """SPEC X5: d(x**3)/dx = 3 x**2."""
    x = mx.array([0.5, -2.0, 3.0, 1.0] * 8)

    def total(x: mx.array) -> mx.array:
        return powers[1](x, metile.empty((4, 32), mx.float32), 32, 3, backend="cpu")[0].sum()

    assert mx.allclose(mx.grad(total)(x), 3 * x * x)


def test_a_bound_given_as_an_array_has_no_meaning_on_the_reference() -> None:
    out = metile.empty(3, mx.int32)
    with pytest.raises(metile.UnsupportedError, match="its end is no Python number"):
        counted[1](out, 0, mx.array(4), 1, backend="reference")
    with pytest.raises(metile.UnsupportedError, match="runs 100000 times"):
        counted[1](out, 0, 100_000, 1, backend="reference")


@metile.kernel
def until_flag(x, y, n, BLOCK: metile.constexpr):
    source = metile.tensor(x, shape=n)
    stop = metile.cast(source.load(0), metile.i32)
    total = 0.0
    for i in metile.tile_range(0, stop, BLOCK):
        total += metile.sum(source.load(i + metile.arange(0, BLOCK)))
    metile.tensor(y, shape=1, access="write").store(0, total)


def test_c2_a_sum_in_a_loop_whose_end_is_read_from_memory() -> None:
    with pytest.raises(metile.CompileError) as caught:
        until_flag[1](mx.ones(64), metile.empty(1, mx.float32), 64, BLOCK=64)
    assert "a reduction under the loop of line" in caught.value.message
    assert "'stop' is not proven to be the same in all threads" in caught.value.message
