"""Conversions between random owners, compiled for the CPU and as MLX operations (SPEC C1, O1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

import mlx.core as mx
import pytest

import metile_mlx as metile
from tests.support.levels import cpu_level
from tests.support.profile import count
from tests.support.public import DTYPES, compile_all, payload, random_layout, same_bits

BATCHES = 3
SHIPPED = "f16"
"""The dtype whose texts are compiled as users get them, in the other profiles too."""


@metile.kernel
def straight(x, y, n, SIZE: metile.constexpr, A: metile.constexpr, B: metile.constexpr):
    source = metile.tensor(x, shape=(n, SIZE), access="read")
    target = metile.tensor(y, shape=(n, SIZE), access="write")
    row = metile.program_id(0)
    value = source.load((row, metile.arange(0, SIZE, layout=A)))
    target.store((row, metile.arange(0, SIZE, layout=B)), metile.convert_layout(value, B))


@metile.kernel
def computed(x, y, n, SIZE: metile.constexpr, A: metile.constexpr, B: metile.constexpr):
    """No single load gives the converted value, so it has to travel between threads."""
    source = metile.tensor(x, shape=(n, SIZE), access="read")
    target = metile.tensor(y, shape=(n, SIZE), access="write")
    row = metile.program_id(0)
    i = metile.arange(0, SIZE, layout=A)
    value = metile.where(i % 3 == 0, source.load((row, i)), source.load((row, SIZE - 1 - i)))
    target.store((row, metile.arange(0, SIZE, layout=B)), metile.convert_layout(value, B))


@metile.kernel
def chained(x, y, n, SIZE: metile.constexpr, A: metile.constexpr, B: metile.constexpr):
    """There, back and there again through one scratch, beside a conversion of the mask's dtype.

    Selections keep these apart; the last two, back and there once more, are nothing (SPEC S1).
    """
    source = metile.tensor(x, shape=(n, SIZE), access="read")
    target = metile.tensor(y, shape=(n, SIZE), access="write")
    row = metile.program_id(0)
    i = metile.arange(0, SIZE, layout=A)
    odd = metile.convert_layout(i % 2 == 1, B)
    first = metile.convert_layout(source.load((row, i)), B)
    back = metile.convert_layout(metile.where(odd, first, first), A)
    again = metile.convert_layout(metile.where(i % 2 == 0, back, back), B)
    again = metile.convert_layout(metile.convert_layout(again, A), B)
    j = metile.arange(0, SIZE, layout=B)
    target.store((row, j), metile.where(odd, again, source.load((row, j ^ 1))))


KERNELS = (straight, computed, chained)


@dataclass(frozen=True)
class Case:
    """One pair of owners, the kernel that converts between them, and what it should return."""

    kernel: metile.Kernel
    dtype: str
    size: int
    a: metile.ThreadLayout
    b: metile.ThreadLayout
    conversion: str
    seed: int

    def x(self) -> mx.array:
        return payload(self.dtype, (BATCHES, self.size), self.seed)

    def expected(self) -> mx.array:
        x = self.x()
        i = mx.arange(self.size)
        if self.kernel is computed:
            return mx.where(i % 3 == 0, x, x[:, ::-1])
        if self.kernel is chained:
            return mx.where(i % 2 == 1, x, mx.take(x, mx.bitwise_xor(i, 1), axis=1))
        return x

    def prepare(self, backend: str) -> metile.Dispatch:
        x = self.x()
        return self.kernel[(BATCHES,)].prepare(
            x,
            metile.empty(x.shape, x.dtype),
            BATCHES,
            SIZE=self.size,
            A=self.a,
            B=self.b,
            backend=backend,
            schedule=metile.Schedule(conversion=self.conversion),
        )

    def run(self, dispatch: metile.Dispatch) -> mx.array:
        x = self.x()
        return dispatch(x, mx.zeros_like(x), BATCHES)


def near(rng: Random, a: metile.ThreadLayout) -> metile.ThreadLayout:
    """Owners that differ from `a` within SIMD groups only: the five lane bits in another order."""
    order = list(a.bit_order)
    lanes = [bit for bit, physical in enumerate(order) if physical < 5]
    for bit, physical in zip(lanes, rng.sample([order[bit] for bit in lanes], 5), strict=True):
        order[bit] = physical
    flipped = sum(rng.getrandbits(1) << bit for bit in lanes)
    return metile.ThreadLayout(tuple(order), xor_mask=a.xor_mask ^ flipped)


# How the second layout comes from the first, and the schedule; each at every size.
KINDS = (
    ("random", "auto"),
    ("near", "auto"),
    ("same", "auto"),
    ("random", "scratch"),
    ("near", "scratch"),
    ("random", "auto"),
)


@cache
def cases(dtype: str) -> tuple[Case, ...]:
    rng = Random(dtype)
    found = []
    for seed in range(count(ci=36, full=480)):
        size, turn = 32 << seed % 6, seed // 6
        how, conversion = KINDS[turn % 6]
        a = random_layout(rng, size)
        b = {"random": random_layout(rng, size), "near": near(rng, a), "same": a}[how]
        kernel = KERNELS[(turn + turn // 6) % 3]
        found.append(Case(kernel, dtype, size, a, b, conversion, seed))
    return tuple(found)


def prepared(dtype: str) -> tuple[metile.Dispatch, ...]:
    dispatches = tuple(case.prepare("cpu") for case in cases(dtype))
    compile_all(dispatches)
    return dispatches


def test_more_than_200_different_pairs_run() -> None:
    """The six tests below run them as compiled text, the six after as MLX operations."""
    pairs = {(case.a, case.b) for dtype in DTYPES for case in cases(dtype)}
    assert len(pairs) >= 200


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_of_owners_move_every_bit_on_the_cpu(dtype: str) -> None:
    """SPEC C1, C3: 32 to 1024 threads; signalling NaNs, -0.0, infinities, subnormals, INT_MIN."""
    met: dict[str, set[int]] = {}
    with cpu_level(shipped=dtype == SHIPPED):
        for case, dispatch in zip(cases(dtype), prepared(dtype), strict=True):
            assert same_bits(case.run(dispatch), case.expected()), case
            assert dispatch.execution_report.threads == case.size
            for conversion in dispatch.execution_report.layout_conversions:
                met.setdefault(conversion.mechanism, set()).add(case.size)
    sizes = {32 << k for k in range(6)}
    assert met == {"unchanged": sizes, "shuffle": sizes, "threadgroup": sizes}


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_of_owners_move_every_bit_on_the_reference(dtype: str) -> None:
    """SPEC O1, X5: converting changes no value, so the oracle needs no owners at all."""
    for case in cases(dtype):
        assert same_bits(case.run(case.prepare("reference")), case.expected()), case
