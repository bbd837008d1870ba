"""Raw lanes, threads, and declared threadgroup memory with declared barriers (SPEC K6, C2, O4)."""

# ruff: noqa: B007 (an index nobody reads)

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx import emulator

pytestmark = pytest.mark.usefixtures("gpu")


@metile.kernel
def collectives(x, y, BLOCK: metile.constexpr):
    i = metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=BLOCK).load(i)
    out = metile.tensor(y, shape=(4, BLOCK), access="write")
    out.store((0, i), metile.simd_sum(value))
    out.store((1, i), metile.simd_max(value))
    out.store((2, i), metile.simd_shuffle_xor(value, 5))
    out.store((3, i), metile.simd_broadcast(value, 7))


@pytest.mark.parametrize("dtype", [mx.float32, mx.int32, mx.uint32])
@pytest.mark.parametrize("block", [32, 64, 1024])
def test_collectives_over_tiles(block: int, dtype: mx.Dtype, backend: str) -> None:
    """F48, F49: each simdgroup for itself, all 32 lanes of it."""
    numbers = np.random.default_rng(block).integers(0, 50, block)
    x = mx.array(numbers).astype(dtype)
    made = collectives[1](x, metile.empty((4, block), dtype), BLOCK=block, backend=backend)
    groups = numbers.reshape(-1, 32)
    expected = [
        np.repeat(groups.sum(1), 32),
        np.repeat(groups.max(1), 32),
        groups[:, np.arange(32) ^ 5].reshape(-1),
        np.repeat(groups[:, 7], 32),
    ]
    assert np.array_equal(np.array(made), np.stack(expected))


@metile.kernel
def of_threads(y):
    """No tile: one simdgroup. Scalars of each thread's own, and a uniform one."""
    t, lane = metile.thread_id(), metile.simd_lane_id()
    out = metile.tensor(y, shape=(3, 32), access="write")
    out.store((0, t), t * 10 + lane)
    out.store((1, t), metile.simd_sum(t))
    out.store((2, t), metile.simd_sum(metile.program_id(0) + 1))


def test_threads_of_a_kernel_without_tiles(backend: str) -> None:
    made = of_threads[1](metile.empty((3, 32), mx.int32), backend=backend)
    assert made.tolist() == [[11 * t for t in range(32)], [496] * 32, [32] * 32]


@metile.kernel
def halves_moved(x, y, BLOCK: metile.constexpr):
    i = metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=BLOCK).load(i)
    metile.tensor(y, shape=BLOCK, access="write").store(i, metile.simd_shuffle_xor(value, 16))


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_shuffles_keep_every_bit(dtype: mx.Dtype, backend: str) -> None:
    x = mx.arange(64).astype(dtype)
    made = halves_moved[1](x, metile.empty(64, dtype), BLOCK=64, backend=backend)
    assert made.tolist() == [float(i ^ 16) for i in range(64)]


@metile.kernel
def reversed_rows(x, y, n, BLOCK: metile.constexpr):
    memory = metile.shared(BLOCK, metile.f32)
    row, t = metile.program_id(0), metile.thread_id()
    i = metile.arange(0, BLOCK)
    memory.store(t, metile.tensor(x, shape=(n, BLOCK)).load((row, i)))
    metile.barrier()
    out = metile.tensor(y, shape=(n, BLOCK), access="write")
    out.store((row, i), memory.load(BLOCK - 1 - t))


@pytest.mark.parametrize("block", [32, 256, 1024])
def test_what_one_thread_stores_another_loads_behind_the_barrier(block: int, backend: str) -> None:
    x = mx.arange(3 * block).reshape(3, block).astype(mx.float32)
    made = reversed_rows[3](x, metile.empty(x.shape, x.dtype), 3, BLOCK=block, backend=backend)
    assert mx.array_equal(made, x[:, ::-1])


@metile.kernel
def turned(x, y):
    """Two dimensions, a tile as index; outside of it a load gives the fill, a store is dropped."""
    memory = metile.shared((8, 8), metile.i32)
    i = metile.arange(0, 64)
    memory.store((i // 8, i % 8), metile.tensor(x, shape=64).load(i))
    memory.store((i, i + 100), i)
    metile.barrier()
    out = metile.tensor(y, shape=(2, 64), access="write")
    out.store((0, i), memory.load((i % 8, i // 8)))
    out.store((1, i), memory.load((i // 8, i % 16), mask=i > 3, fill=-7))


def test_bounds_of_shared_memory(backend: str) -> None:
    x = mx.arange(64)
    made = turned[1](x, metile.empty((2, 64), mx.int32), backend=backend)
    assert made[0].tolist() == x.reshape(8, 8).T.reshape(-1).tolist()
    i = np.arange(64)
    inside = (i % 16 < 8) & (i > 3)
    assert made[1].tolist() == np.where(inside, i // 8 * 8 + i % 16, -7).tolist()


@metile.kernel
def tree(x, y, n, BLOCK: metile.constexpr):
    """A sum by halves, in a loop whose stride changes as it runs: a barrier on either side."""
    memory = metile.shared(BLOCK, metile.f32)
    row, t = metile.program_id(0), metile.thread_id()
    rows = metile.num_programs(0)
    i = metile.arange(0, BLOCK)
    memory.store(t, metile.tensor(x, shape=(rows, n)).load((row, i)))
    metile.barrier()
    for step in metile.tile_range(n):
        half = BLOCK >> (step + 1)
        total = memory.load(t) + memory.load(t + half, mask=t < half)
        metile.barrier()
        memory.store(t, total, mask=t < half)
        metile.barrier()
    result = memory.load(0)
    metile.tensor(y, shape=rows, access="write").store(row, result, mask=t == 0)


def test_barriers_in_a_loop(backend: str) -> None:
    """More iterations than halves change nothing."""
    x = mx.array(np.random.default_rng(0).integers(-9, 9, (4, 20)).astype(np.float32))
    made = tree[4](x, metile.empty(4, mx.float32), 20, BLOCK=128, backend=backend)
    assert mx.array_equal(made, x.sum(axis=1))


@metile.kernel
def own_elements(x, y, times):
    """A thread's own elements need no barrier, in loops neither."""
    memory = metile.shared((2, 64), metile.f32)
    t, i = metile.thread_id(), metile.arange(0, 64)
    memory.store((0, t), metile.tensor(x, shape=64).load(i))
    memory.store((1, t), 0.0)
    for _ in metile.tile_range(times):
        memory.store((1, t), memory.load((1, t)) + memory.load((0, t)))
    metile.tensor(y, shape=64, access="write").store(i, memory.load((1, t)))


def test_a_thread_sees_what_it_has_stored(backend: str) -> None:
    x = mx.arange(64).astype(mx.float32)
    made = own_elements[1](x, metile.empty(64, mx.float32), 3, backend=backend)
    assert mx.array_equal(made, 3 * x)


@metile.kernel
def chosen(x, y, flag):
    """A barrier under a condition that all threads agree on."""
    memory = metile.shared(64, metile.f32)
    t, i = metile.thread_id(), metile.arange(0, 64)
    value = metile.tensor(x, shape=64).load(i)
    if flag:
        memory.store(t, value)
        metile.barrier()
        value = memory.load(63 - i)
    metile.tensor(y, shape=64, access="write").store(i, value)


def test_c2_a_barrier_under_a_runtime_scalar(backend: str) -> None:
    x = mx.arange(64).astype(mx.float32)
    for flag in (True, False):
        made = chosen[1](x, metile.empty(64, mx.float32), flag, backend=backend)
        assert mx.array_equal(made, x[::-1] if flag else x)


def test_shared_memory_is_in_the_report() -> None:
    x = mx.zeros((3, 256))
    dispatch = reversed_rows[3].prepare(x, metile.empty(x.shape, x.dtype), 3, BLOCK=256)
    (fact,) = dispatch.execution_report.allocations
    assert (fact.dtype, fact.elements, fact.bytes) == ("f32", 256, 1024)


# Races: the verifier names the line, and the emulator's checker sees the same.


@metile.kernel
def no_publication(x, y):
    memory = metile.shared(64, metile.f32)
    t, i = metile.thread_id(), metile.arange(0, 64)
    memory.store(t, metile.tensor(x, shape=64).load(i))
    metile.tensor(y, shape=64, access="write").store(i, memory.load(63 - t))


@metile.kernel
def no_release(x, y):
    memory = metile.shared(64, metile.f32)
    t, i = metile.thread_id(), metile.arange(0, 64)
    memory.store(t, metile.tensor(x, shape=64).load(i))
    metile.barrier()
    value = memory.load(63 - t)
    memory.store(t, value)
    metile.tensor(y, shape=64, access="write").store(i, value)


@metile.kernel
def over_the_back_edge(x, y):
    memory = metile.shared(64, metile.f32)
    t, i = metile.thread_id(), metile.arange(0, 64)
    value = metile.tensor(x, shape=64).load(i)
    for _ in metile.tile_range(3):
        memory.store(t, value)
        metile.barrier()
        value = memory.load(63 - i)
    metile.tensor(y, shape=64, access="write").store(i, value)


@metile.kernel
def two_writers(x, y):
    memory = metile.shared(64, metile.f32)
    t, i = metile.thread_id(), metile.arange(0, 64)
    memory.store(t // 2, metile.tensor(x, shape=64).load(i))
    metile.barrier()
    metile.tensor(y, shape=64, access="write").store(i, memory.load(t // 2))


@metile.kernel
def on_one_side_only(x, y):
    memory = metile.shared(64, metile.f32)
    t, i = metile.thread_id(), metile.arange(0, 64)
    memory.store(t, metile.tensor(x, shape=64).load(i))
    if metile.program_id(0) > 0:
        metile.barrier()
    metile.tensor(y, shape=64, access="write").store(i, memory.load(63 - t))


RACES: dict[str, tuple[metile.Kernel, str, str]] = {
    "no publication": (
        no_publication,
        "memory loads here what another thread has stored in line {-1}",
        "memory.load(63 - t)",
    ),
    "no release": (
        no_release,
        "memory stores here what another thread may still load in line {-1}",
        "memory.store(t, value)",
    ),
    "over the back edge": (
        over_the_back_edge,
        "memory stores here what another thread may still load in line {+2}, an iteration before",
        "memory.store(t, value)",
    ),
    "two writers": (
        two_writers,
        "several threads store to one element of memory here{0}",
        "memory.store(t // 2",
    ),
    "a barrier on one side only": (
        on_one_side_only,
        "memory loads here what another thread has stored in line {-3}",
        "memory.load(63 - t)",
    ),
}


@pytest.mark.emulator
@pytest.mark.faulty
@pytest.mark.parametrize("name", RACES)
def test_races_are_refused_and_would_be_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, message, text = RACES[name]
    x, out = mx.arange(64).astype(mx.float32), metile.empty(64, mx.float32)
    with pytest.raises(metile.CompileError, match=r"\[shared\]"):
        kernel[1](x, out, backend="reference")
    with pytest.raises(metile.CompileError) as caught:
        kernel[1](x, out, backend="cpu")
    error = caught.value
    assert error.loc is not None
    away = message[message.index("{") + 1 : message.index("}")]
    line = str(error.loc.line + int(away)) if int(away) else ""
    expected = message.replace("{" + away + "}", line)
    assert error.message.startswith(f"[shared] {expected}")
    assert text in error.loc.text
    monkeypatch.setenv("METILE_VERIFY", "0")
    emulator.take()
    with emulator.options(checked=True, schedules=3):
        mx.eval(kernel[1](x, out, backend="emulator"))
    kernel._specialisations.clear()
    kernel._dispatches.clear()
    report = emulator.take()
    assert any("data race on threadgroup memory" in str(found) for found in report.findings)


@metile.kernel
def barrier_from_memory(x, y):
    source = metile.tensor(x, shape=64)
    if source.load(0) > 0:
        metile.barrier()
    metile.tensor(y, shape=64, access="write").store(metile.arange(0, 64), 1.0)


@metile.kernel
def sum_from_memory(x, y):
    i = metile.arange(0, 64)
    value = metile.tensor(x, shape=64).load(i)
    if metile.sum(value) > 0:
        value = metile.simd_sum(value)
    metile.tensor(y, shape=64, access="write").store(i, value)


@metile.kernel
def on_threads(x, y):
    i = metile.arange(0, 64)
    out = metile.tensor(y, shape=64, access="write")
    if metile.thread_id() > 3:
        out.store(i, metile.tensor(x, shape=64).load(i))


@metile.kernel
def shared_in_a_loop(x, y):
    value = metile.tensor(x, shape=64).load(metile.arange(0, 64))
    for i in metile.tile_range(4):
        metile.shared(64, metile.f32)
    metile.tensor(y, shape=64, access="write").store(metile.arange(0, 64), value)


@metile.kernel
def shared_masks(x, y):
    metile.shared(64, metile.bool_)
    i = metile.arange(0, 64)
    metile.tensor(y, shape=64, access="write").store(i, metile.tensor(x, shape=64).load(i))


@metile.kernel
def runtime_lane(x, y):
    i = metile.arange(0, 64)
    value = metile.tensor(x, shape=64).load(i)
    metile.tensor(y, shape=64, access="write").store(i, metile.simd_broadcast(value, 32))


@metile.kernel
def sum_from_a_namesake(x, y):
    """The view and what it loads bear the name of the parameter, as scalar arguments do."""
    x = metile.tensor(x, shape=64)
    i = metile.arange(0, 64)
    value = x.load(i)
    x = x.load(3)
    if x > 0:
        value = metile.simd_sum(value)
    metile.tensor(y, shape=64, access="write").store(i, value)


@metile.kernel
def half_sum(x, y):
    i = metile.arange(0, 64)
    value = metile.cast(metile.tensor(x, shape=64).load(i), metile.f16)
    metile.tensor(y, shape=64, access="write").store(i, metile.simd_sum(value))


@metile.kernel
def unfilled(x, y):
    memory = metile.shared(64, metile.f32)
    i = metile.arange(0, 64)
    memory.store(i, metile.tensor(x, shape=64).load(i))
    metile.barrier()
    most = metile.max(memory.load(i + 1))
    metile.tensor(y, shape=1, access="write").store(0, most)


@metile.kernel
def too_large(x, y):
    memory = metile.shared(8193, metile.f32)
    i = metile.arange(0, 64)
    memory.store(i, metile.tensor(x, shape=64).load(i))
    metile.tensor(y, shape=64, access="write").store(i, memory.load(i))


REFUSED: dict[str, tuple[metile.Kernel, type[Exception], str]] = {
    "a barrier under what memory says (C2)": (
        barrier_from_memory,
        metile.CompileError,
        "a barrier under the runtime `if` of line",
    ),
    "a collective under what memory says (C2)": (
        sum_from_memory,
        metile.CompileError,
        "an exchange between lanes under the runtime `if` of line",
    ),
    "whatever it is called (C2)": (
        sum_from_a_namesake,
        metile.CompileError,
        "whose condition 'x_gt_0' is not proven to be the same in all threads: it comes from mem",
    ),
    "an if on threads": (on_threads, metile.CompileError, "needs one value for the whole"),
    "declared in a loop": (shared_in_a_loop, metile.CompileError, "declared inside a loop"),
    "masks in memory": (shared_masks, metile.CompileError, "dtype is bool, expected one of"),
    "a lane of 32": (runtime_lane, metile.CompileError, "lane is 32, expected a constant of 0"),
    "f16 (R4)": (half_sum, metile.CompileError, "value is f16, expected one of f32, i32, u32"),
    "no fill before a maximum (K2)": (unfilled, metile.CompileError, "would be 0, and take part"),
    "too much (F18)": (too_large, metile.OutOfResources, "shared_0 8193 x f32 = 32772"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    kernel, kind, message = REFUSED[name]
    with pytest.raises(kind) as caught:
        kernel[1](mx.ones(64), metile.empty(64, mx.float32), backend="cpu")
    assert type(caught.value) is kind
    assert message in str(caught.value)


@metile.kernel
def thread_meets_layout(x, y, LAYOUT: metile.constexpr):
    i = metile.arange(0, 64, layout=LAYOUT)
    value = metile.tensor(x, shape=64).load(i)
    shifted = value + metile.cast(metile.thread_id(), metile.f32)
    metile.tensor(y, shape=64, access="write").store(i, shifted)


@metile.kernel
def barrier_beside_layout(x, y, LAYOUT: metile.constexpr):
    i = metile.arange(0, 64, layout=LAYOUT)
    metile.barrier()
    metile.tensor(y, shape=64, access="write").store(i, metile.tensor(x, shape=64).load(i))


@metile.kernel
def shared_beside_layout(x, y, LAYOUT: metile.constexpr):
    memory = metile.shared(64, metile.f32)
    i = metile.arange(0, 64, layout=LAYOUT)
    memory.store(i, metile.tensor(x, shape=64).load(i))
    metile.tensor(y, shape=64, access="write").store(i, memory.load(i))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (thread_meets_layout, "is computed from thread_id(), a value of each thread's own"),
        (barrier_beside_layout, "[barrier()] is not available beside explicit thread layouts"),
        (shared_beside_layout, "[shared()] is not available beside explicit thread layouts"),
    ],
)
def test_o4_o5_beside_stated_layouts(kernel: metile.Kernel, message: str) -> None:
    layout = metile.ThreadLayout.identity(64)
    with pytest.raises(metile.OwnershipError) as caught:
        kernel[1](mx.ones(64), metile.empty(64, mx.float32), LAYOUT=layout)
    assert message in caught.value.message


def test_math_of_the_special_values(backend: str) -> None:
    """NaN wins a maximum over lanes too."""
    x = mx.array([math.nan if i == 3 else float(i) for i in range(32)])
    made = collectives[1](x, metile.empty((4, 32), mx.float32), BLOCK=32, backend=backend)
    assert mx.isnan(made[1]).all().item()


@metile.kernel
def one_element(y, n, MASK: metile.constexpr, WHAT: metile.constexpr):
    target = metile.tensor(y, shape=64, access="write")
    i, t = metile.arange(0, 64), metile.thread_id()
    value = t if WHAT == "own" else i if WHAT == "tile" else metile.simd_sum(t)
    if MASK == "none":
        target.store(n, metile.simd_sum(t))
    elif MASK == "five":
        target.store(n, value, mask=i < 5)
    else:
        target.store(n, value, mask=t == 7)


@pytest.mark.parametrize("what", ["own", "tile", "sum"])
def test_several_threads_with_one_element_are_refused(what: str, backend: str) -> None:
    out = metile.empty(64, mx.int32)
    for mask, count in (("none", 64), ("five", 5)):
        with pytest.raises(metile.CompileError, match=f"{count} threads store to one element"):
            one_element[1](out, 3, MASK=mask, WHAT=what, backend=backend)
    made = one_element[1](out, 3, MASK="one", WHAT=what, backend=backend)
    assert made.tolist() == [0, 0, 0, 496 if what == "sum" else 7, *[0] * 60]
