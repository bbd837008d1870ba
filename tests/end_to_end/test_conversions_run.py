"""Conversions between random owners, compiled for the CPU and as MLX operations (SPEC C1, O1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random

import mlx.core as mx
import pytest

import metile_mlx as metile
from tests.support.profile import count
from tests.support.public import DTYPES, compile_all, payload, random_layout, same_bits

BATCHES = 3


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
    """There, back and there again through one scratch, beside a conversion of the mask's dtype."""
    source = metile.tensor(x, shape=(n, SIZE), access="read")
    target = metile.tensor(y, shape=(n, SIZE), access="write")
    row = metile.program_id(0)
    i = metile.arange(0, SIZE, layout=A)
    odd = metile.convert_layout(i % 2 == 1, B)
    first = metile.convert_layout(source.load((row, i)), B)
    again = metile.convert_layout(metile.convert_layout(first, A), B)
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


@cache
def cases(dtype: str) -> tuple[Case, ...]:
    rng = Random(dtype)
    found = []
    for seed in range(count(ci=36, full=480)):
        size = 32 << seed % 6
        a = random_layout(rng, size)
        b = rng.choice((random_layout(rng, size), near(rng, a), near(rng, a), a))
        # `shuffle` is chosen wherever it is possible; `scratch` forces the other mechanism.
        conversion = rng.choice(("auto", "auto", "scratch"))
        found.append(Case(KERNELS[seed // 6 % 3], dtype, size, a, b, conversion, seed))
    return tuple(found)


@cache
def prepared(dtype: str) -> tuple[metile.Dispatch, ...]:
    dispatches = tuple(case.prepare("cpu") for case in cases(dtype))
    compile_all(dispatches)
    return dispatches


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_of_owners_move_every_bit_on_the_cpu(dtype: str) -> None:
    """SPEC C1, C3: 32 to 1024 threads; signalling NaNs, -0.0, infinities, subnormals, INT_MIN."""
    for case, dispatch in zip(cases(dtype), prepared(dtype), strict=True):
        assert same_bits(case.run(dispatch), case.expected()), case


@pytest.mark.parametrize("dtype", DTYPES)
def test_pairs_of_owners_move_every_bit_on_the_reference(dtype: str) -> None:
    """SPEC O1, X5: converting changes no value, so the oracle needs no owners at all."""
    for case in cases(dtype):
        assert same_bits(case.run(case.prepare("reference")), case.expected()), case


def test_at_least_200_pairs_and_every_mechanism_at_every_size_ran() -> None:
    """The sample is what its use claims: pairs, mechanisms, threads."""
    met: dict[str, set[int]] = {}
    pairs = set()
    for dtype in DTYPES:
        for case, dispatch in zip(cases(dtype), prepared(dtype), strict=True):
            pairs.add((case.a, case.b))
            report = dispatch.execution_report
            assert report.threads == case.size
            for conversion in report.layout_conversions:
                met.setdefault(conversion.mechanism, set()).add(report.threads)
    assert len(pairs) >= 200
    sizes = {32 << k for k in range(6)}
    assert met == {"unchanged": sizes, "shuffle": sizes, "threadgroup": sizes}
