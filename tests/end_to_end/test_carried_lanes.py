"""What loops carry is exchanged between lanes: all read the last iteration's (SPEC K5, K6, F43).

Every value is a small integer, so all backends agree bit for bit with lane exchanges in NumPy.
"""

# ruff: noqa: B007 (an index nobody reads)

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

import metile_mlx as metile

BACKENDS = ("cpu", "reference", "metal")
BLOCK = 64
LANES = np.arange(32)
TRIPS = (0, 1, 2, 3)
pytestmark = pytest.mark.usefixtures("gpu")
Array = NDArray[np.float64]


@metile.kernel
def exchanged(x, y, trips, KIND: metile.constexpr):
    """The new value is the exchange itself."""
    i = metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=BLOCK).load(i)
    for _ in metile.tile_range(trips):
        if KIND == "xor":
            value = metile.simd_shuffle_xor(value, 1)
        elif KIND == "broadcast":
            value = metile.simd_broadcast(value, 3)
        elif KIND == "sum":
            value = metile.simd_sum(value)
        else:
            value = metile.simd_max(value)
    metile.tensor(y, shape=BLOCK, access="write").store(i, value)


@metile.kernel
def added(x, y, trips, KIND: metile.constexpr):
    """The new value is made of the exchange and of the old one, in one loop over lanes."""
    i = metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=BLOCK).load(i)
    for _ in metile.tile_range(trips):
        if KIND == "xor":
            value = value + metile.simd_shuffle_xor(value, 21) * 2
        elif KIND == "broadcast":
            value = value + metile.simd_broadcast(value, 0)
        elif KIND == "sum":
            value = value - metile.simd_sum(value)
        else:
            value = value - metile.simd_max(value) * 3
    metile.tensor(y, shape=BLOCK, access="write").store(i, value)


@metile.kernel
def swapped(x, y, trips, KIND: metile.constexpr):
    """Two values take each other's place; the second as the lanes have exchanged the first."""
    i = metile.arange(0, BLOCK)
    a = metile.tensor(x, shape=BLOCK).load(i)
    b = a * 2
    for _ in metile.tile_range(trips):
        if KIND == "xor":
            a, b = b + 1, metile.simd_shuffle_xor(a, 16)
        elif KIND == "broadcast":
            a, b = b + 1, metile.simd_broadcast(a, 31)
        elif KIND == "sum":
            a, b = b + 1, metile.simd_sum(a)
        else:
            a, b = b + 1, metile.simd_max(a)
    metile.tensor(y, shape=BLOCK, access="write").store(i, a - b)


@metile.kernel
def nested(x, y, trips, KIND: metile.constexpr):
    """A loop in a loop carries the same value on; each exchanges it."""
    i = metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=BLOCK).load(i)
    for outer in metile.tile_range(trips):
        for inner in metile.tile_range(outer + 1):
            if KIND == "xor":
                value = value + metile.simd_shuffle_xor(value, 2)
            elif KIND == "broadcast":
                value = value + metile.simd_broadcast(value, 5)
            elif KIND == "sum":
                value = value - metile.minimum(metile.abs(metile.simd_sum(value)), 9)
            else:
                value = value - metile.simd_max(value)
        value = metile.simd_shuffle_xor(value, 1)
    metile.tensor(y, shape=BLOCK, access="write").store(i, value)


@metile.kernel
def under_an_if(x, y, trips, KIND: metile.constexpr):
    """Under a runtime `if`, on either side."""
    i = metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=BLOCK).load(i)
    for trip in metile.tile_range(trips):
        if trip != 1:
            if KIND == "xor":
                value = metile.simd_shuffle_xor(value, 4)
            elif KIND == "broadcast":
                value = value * 2 + metile.simd_broadcast(value, 0)
            elif KIND == "sum":
                value = value - metile.simd_sum(value)
            else:
                value = value - metile.simd_max(value)
        else:
            value = value + metile.simd_shuffle_xor(value, 3)
    metile.tensor(y, shape=BLOCK, access="write").store(i, value)


@metile.kernel
def through_an_if(x, y, trips, KIND: metile.constexpr):
    """Chosen by a runtime `if` without an exchange, which another one reads."""
    i = metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=BLOCK).load(i)
    for trip in metile.tile_range(trips):
        if KIND == "xor":
            other = metile.simd_shuffle_xor(value, 7)
        elif KIND == "broadcast":
            other = metile.simd_broadcast(value, 1)
        elif KIND == "sum":
            other = metile.simd_sum(value)
        else:
            other = metile.simd_max(value)
        value = value - other if trip > 0 else other + 1
    metile.tensor(y, shape=BLOCK, access="write").store(i, value)


@metile.kernel
def beside_memory(x, y, trips, KIND: metile.constexpr):
    """Declared memory turns the value round, the lanes exchange it, and memory takes it again."""
    memory = metile.shared(BLOCK, metile.f32)
    t, i = metile.thread_id(), metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=BLOCK).load(i)
    for _ in metile.tile_range(trips):
        memory.store(t, value)
        metile.barrier()
        turned = memory.load(BLOCK - 1 - t)
        metile.barrier()
        if KIND == "xor":
            value = turned + metile.simd_shuffle_xor(value, 1)
        elif KIND == "broadcast":
            value = turned + metile.simd_broadcast(value, 2)
        elif KIND == "sum":
            value = turned - metile.simd_sum(value)
        else:
            value = turned - metile.simd_max(value)
    metile.tensor(y, shape=BLOCK, access="write").store(i, value)


def xor(value: Array, number: int) -> Array:
    return value.reshape(-1, 32)[:, LANES ^ number].reshape(-1)


def spread(value: Array) -> Array:
    return np.repeat(value, 32)


def exchange(kind: str, value: Array, number: int) -> Array:
    groups = value.reshape(-1, 32)
    match kind:
        case "xor":
            return xor(value, number)
        case "broadcast":
            return spread(groups[:, number])
        case "sum":
            return spread(groups.sum(1))
        case _:
            return spread(groups.max(1))


def _exchanged(kind: str, value: Array, trips: int) -> Array:
    for _ in range(trips):
        value = exchange(kind, value, 1 if kind == "xor" else 3)
    return value


def _added(kind: str, value: Array, trips: int) -> Array:
    factor = {"xor": 2, "broadcast": 1, "sum": -1, "max": -3}[kind]
    for _ in range(trips):
        value = value + factor * exchange(kind, value, 21 if kind == "xor" else 0)
    return value


def _swapped(kind: str, value: Array, trips: int) -> Array:
    a, b = value, value * 2
    for _ in range(trips):
        a, b = b + 1, exchange(kind, a, 16 if kind == "xor" else 31)
    return a - b


def _nested(kind: str, value: Array, trips: int) -> Array:
    sign = 1 if kind in ("xor", "broadcast") else -1
    for outer in range(trips):
        for _ in range(outer + 1):
            other = exchange(kind, value, 2 if kind == "xor" else 5)
            value = value + sign * (np.minimum(np.abs(other), 9) if kind == "sum" else other)
        value = xor(value, 1)
    return value


def _under_an_if(kind: str, value: Array, trips: int) -> Array:
    own, sign = {"xor": (0, 1), "broadcast": (2, 1), "sum": (1, -1), "max": (1, -1)}[kind]
    for trip in range(trips):
        if trip == 1:
            value = value + xor(value, 3)
        else:
            value = own * value + sign * exchange(kind, value, 4 if kind == "xor" else 0)
    return value


def _through_an_if(kind: str, value: Array, trips: int) -> Array:
    for trip in range(trips):
        other = exchange(kind, value, 7 if kind == "xor" else 1)
        value = value - other if trip else other + 1
    return value


def _beside_memory(kind: str, value: Array, trips: int) -> Array:
    sign = 1 if kind in ("xor", "broadcast") else -1
    for _ in range(trips):
        value = value[::-1] + sign * exchange(kind, value, 1 if kind == "xor" else 2)
    return value


CASES: dict[str, tuple[metile.Kernel, Callable[[str, Array, int], Array]]] = {
    "exchanged": (exchanged, _exchanged),
    "added": (added, _added),
    "swapped": (swapped, _swapped),
    "nested": (nested, _nested),
    "under an if": (under_an_if, _under_an_if),
    "through an if": (through_an_if, _through_an_if),
    "beside memory": (beside_memory, _beside_memory),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_lanes_read_the_last_iteration(name: str, backend: str) -> None:
    kernel, model = CASES[name]
    numbers = np.random.default_rng(5).integers(-4, 5, BLOCK).astype(np.float64)
    x = mx.array(numbers.astype(np.float32))
    wrong = []
    for kind in ("xor", "broadcast", "sum", "max"):
        for trips in TRIPS:
            expected = model(kind, numbers, trips)
            assert np.abs(expected).max() < 2**24, "sums are exact"
            out = metile.empty(BLOCK, mx.float32)
            made = np.array(kernel[1](x, out, trips, KIND=kind, backend=backend))
            if not np.array_equal(made, expected):
                wrong.append((kind, trips))
    assert not wrong


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_bit_of_what_is_carried_is_moved(backend: str) -> None:
    """Halves with a NaN and a negative zero, an odd number of exchanges."""
    x = mx.array([float("nan"), -0.0, *range(62)]).astype(mx.float16)
    out = metile.empty(BLOCK, mx.float16)
    made = np.array(exchanged[1](x, out, 3, KIND="xor", backend=backend))
    assert made.view(np.uint16).tolist() == np.array(x).view(np.uint16)[np.arange(64) ^ 1].tolist()


@metile.kernel
def widened(x, y, trips):
    """Uniform before the loops, each thread's own in them; `steps` stays uniform."""
    t, i = metile.thread_id(), metile.arange(0, BLOCK)
    a, b, steps = 1, 0, 0
    most = 0.0
    for outer in metile.tile_range(trips):
        for inner in metile.tile_range(outer + 1):
            a, b = b, metile.simd_shuffle_xor(a + t, 1)
            most = metile.maximum(metile.simd_max(metile.cast(b, metile.f32)), most)
            steps += 1
    own = metile.cast(a * 1000 + b + steps, metile.f32) + most
    value = metile.tensor(x, shape=BLOCK).load(i) + own
    metile.tensor(y, shape=BLOCK, access="write").store(i, value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_scalar_may_become_each_threads_own(backend: str) -> None:
    t = np.arange(BLOCK)
    for trips in TRIPS:
        a, b, most = np.ones(BLOCK), np.zeros(BLOCK), np.zeros(BLOCK)
        steps = trips * (trips + 1) // 2
        for _ in range(steps):
            a, b = b, xor(a + t, 1)
            most = np.maximum(spread(b.reshape(-1, 32).max(1)), most)
        out = metile.empty(BLOCK, mx.float32)
        made = widened[1](mx.arange(BLOCK).astype(mx.float32), out, trips, backend=backend)
        assert np.array_equal(np.array(made), t + a * 1000 + b + steps + most)
