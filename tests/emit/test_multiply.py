"""Products of tiles on the CPU: each through both compilers, exact for small integers (P1, P4, X4).

What is multiplied, added to, used again and put elsewhere decides which arrays a kernel has and
what moves between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from platform import machine
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx.runtime.toolchain import KERNEL_FLAGS
from tests.emit.compiled import COMPILERS, Library, build
from tests.support import profile
from tests.support.public import DTYPES, bits, source

# Registers of 4 and of 8 floats; elsewhere than on x86 there is one width.
LEVELS = ("-march=x86-64", "-march=haswell") if machine() == "x86_64" else ("-mcpu=native",)
EXTENTS = (1, 7, 8, 9, 31, 64, 65, 128, 257)


@metile.kernel
def matmul(
    A, B, C, M: int, N: int, K: int, a_step: int, a_pitch: int, b_step: int, b_pitch: int,
    BM: metile.constexpr, BN: metile.constexpr, BK: metile.constexpr,
    A_TURNED: metile.constexpr, B_TURNED: metile.constexpr,
):  # fmt: skip
    batch = metile.num_programs(2)
    along, across = (a_step, a_pitch, 1), (a_step, 1, a_pitch)
    a = metile.tensor(A, shape=(batch, M, K), strides=across if A_TURNED else along)
    along, across = (b_step, b_pitch, 1), (b_step, 1, b_pitch)
    b = metile.tensor(B, shape=(batch, K, N), strides=across if B_TURNED else along)
    c = metile.tensor(C, shape=(batch, M, N), access="write")
    row, column, at = metile.program_id(1) * BM, metile.program_id(0) * BN, metile.program_id(2)
    acc = metile.zeros((BM, BN), metile.f32)
    for k in metile.tile_range(0, K, BK):
        x = metile.tile_load(a, (at, row, k), (BM, BK))
        y = metile.tile_load(b, (at, k, column), (BK, BN))
        acc = metile.dot(x, y, acc)
    metile.tile_store(c, (at, row, column), acc)


# Dtype, tiles, and whether A and B are stored transposed.
PRODUCTS = {
    "f32": ("f32", (64, 64, 64), False, False),
    "f32_turned": ("f32", (64, 32, 32), True, True),
    "f16": ("f16", (32, 64, 16), False, True),
    "bf16": ("bf16", (16, 8, 128), True, False),
}


def prepared(name: str) -> metile.Dispatch:
    dtype, (rows, columns, depth), *turned = PRODUCTS[name]
    x = mx.zeros((1, 8, 8), DTYPES[dtype])
    sizes = {"BM": rows, "BN": columns, "BK": depth, "A_TURNED": turned[0], "B_TURNED": turned[1]}
    return matmul[1, 1, 1].prepare(
        x, x, metile.empty(x.shape, x.dtype), 8, 8, 8, 64, 8, 64, 8, **sizes, backend="cpu"
    )


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "f32") -> mx.array:
    return mx.array(rng.integers(-3, 4, shape).astype(np.float32)).astype(DTYPES[dtype])


def plain(x: mx.array) -> Any:
    """As the kernels' arrays in NumPy: bf16 is its bits."""
    return bits(x) if x.dtype == mx.bfloat16 else np.array(x)


def rounded(x: Any, dtype: str) -> Any:
    return plain(mx.array(x.astype(np.float32)).astype(DTYPES[dtype]))


@pytest.fixture(scope="module", params=COMPILERS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    """All kernels of this file as one translation unit."""
    dispatches = {name: prepared(name) for name in PRODUCTS}
    dispatches |= {name: case.prepare() for name, case in CASES.items()}
    sources = {name: source(dispatch) for name, dispatch in dispatches.items()}
    return build(sources, request.param, tmp_path_factory.mktemp("multiply"))


def sample() -> list[tuple[int, int, int]]:
    """M, N and K: each extent in each place, and K = 0."""
    count = len(EXTENTS)
    found = [
        (EXTENTS[i], EXTENTS[(i + shift) % count], EXTENTS[(2 * i + shift + 3) % count])
        for shift in range(4, 4 + profile.count(ci=1, full=9))
        for i in range(count)
    ]
    return [*found, (9, 65, 0)]


@pytest.mark.parametrize("name", PRODUCTS)
def test_p1_any_extents(library: Library, name: str) -> None:
    """Ragged in all extents, K = 0, batches, operands transposed by strides: exact."""
    rng = np.random.default_rng(8)
    dtype, tile, *turned = PRODUCTS[name]
    for m, n, k in sample():
        batch = 2 if m * n < 1000 else 1
        a, b = numbers(rng, (batch, m, k), dtype), numbers(rng, (batch, k, n), dtype)
        want = np.matmul(np.array(a.astype(mx.float32)), np.array(b.astype(mx.float32)))
        given = [
            mx.contiguous(x.swapaxes(1, 2)) if turn else x
            for x, turn in zip((a, b), turned, strict=True)
        ]
        arrays = {"A": plain(given[0]), "B": plain(given[1]), "C": rounded(want, dtype)}
        if not k:
            arrays["A"] = arrays["B"] = arrays["C"][:0]
        scalars = {"M": m, "N": n, "K": k, "a_step": m * k, "b_step": k * n}
        scalars |= {"a_pitch": m if turned[0] else k, "b_pitch": k if turned[1] else n}
        grid = (metile.cdiv(n, tile[1]), metile.cdiv(m, tile[0]), batch)
        found = library.run(name, arrays, scalars, grid)["C"]
        assert np.array_equal(found, arrays["C"]), (m, n, k)


@pytest.mark.parametrize("level", LEVELS)
def test_x4_narrow_registers(level: str, tmp_path: Path) -> None:
    """Narrower vectors, without fused steps and with them."""
    flags = [level if flag.endswith("=native") else flag for flag in KERNEL_FLAGS]
    library = build({"f32": source(prepared("f32"))}, COMPILERS[0], tmp_path, flags)
    test_p1_any_extents(library, "f32")


# Kernels whose tiles are used in other ways


@metile.kernel
def scaled_weights(A, Q, S, C, K: int):
    """An operand that is computed from integers and a scale of each row (dequantised)."""
    a = metile.tensor(A, shape=(32, K))
    q = metile.tensor(Q, shape=(K, 32))
    s = metile.tensor(S, shape=(K, 32), strides=(1, 0))
    c = metile.tensor(C, shape=(32, 32), access="write")
    acc = metile.zeros((32, 32), metile.f32)
    for k in metile.tile_range(0, K, 32):
        y = metile.cast(metile.tile_load(q, (k, 0), (32, 32)), metile.f16)
        acc = metile.dot(
            metile.tile_load(a, (0, k), (32, 32)), y * metile.tile_load(s, (k, 0), (32, 32)), acc
        )
    metile.tile_store(c, (0, 0), acc)


@metile.kernel
def chained(A, B, C, D, K: int):
    """Two products a step, one after the other and one beside them; a product as an operand."""
    a = metile.tensor(A, shape=(32, K))
    b = metile.tensor(B, shape=(K, 32))
    c = metile.tensor(C, shape=(32, 32), access="write")
    d = metile.tensor(D, shape=(32, 32), access="write")
    acc = metile.zeros((32, 32), metile.f32)
    other = metile.zeros((32, 32), metile.f32)
    for k in metile.tile_range(0, K, 32):
        x = metile.tile_load(a, (0, k), (32, 32))
        y = metile.tile_load(b, (k, 0), (32, 32))
        acc = metile.dot(x, y, metile.dot(x, x, acc))
        other = metile.dot(metile.dot(x, y), y, other)
    metile.tile_store(c, (0, 0), acc)
    metile.tile_store(d, (0, 0), other)


@metile.kernel
def scaled_sums(A, B, C, D, K: int):
    """The accumulator between steps: halved, and what it was before a step added elsewhere."""
    a = metile.tensor(A, shape=(32, K))
    b = metile.tensor(B, shape=(K, 32))
    c = metile.tensor(C, shape=(32, 32), access="write")
    d = metile.tensor(D, shape=(32, 32), access="write")
    acc = metile.full((32, 32), 4.0, metile.f32)
    before = metile.zeros((32, 32), metile.f32)
    for k in metile.tile_range(0, K, 32):
        x = metile.tile_load(a, (0, k), (32, 32))
        y = metile.tile_load(b, (k, 0), (32, 32))
        last = acc
        acc = metile.dot(x, y, acc * 0.5) + 1.0
        before = before + last
    metile.tile_store(c, (0, 0), acc)
    metile.tile_store(d, (0, 0), before + metile.abs(acc))


@metile.kernel
def exchanged(A, B, C, D, K: int):
    """Accumulators that change places, an operand that a loop carries, one that it leaves, and
    constant ones."""
    a = metile.tensor(A, shape=(32, K))
    b = metile.tensor(B, shape=(K, 32))
    c = metile.tensor(C, shape=(32, 32), access="write")
    d = metile.tensor(D, shape=(32, 32), access="write")
    p = metile.zeros((32, 32), metile.f32)
    q = metile.zeros((32, 32), metile.f32)
    x = metile.tile_load(a, (0, 0), (32, 32))
    for k in metile.tile_range(0, K, 32):
        y = metile.tile_load(b, (k, 0), (32, 32))
        sum = metile.dot(x, y, p)
        p = metile.dot(x, metile.full((32, 32), 2.0, metile.f32), q)
        q = sum
        x = metile.tile_load(a, (0, k + 32), (32, 32))
    metile.tile_store(c, (0, 0), metile.dot(p, metile.full((32, 32), 2.0, metile.f32)))
    metile.tile_store(d, (0, 0), q)


@metile.kernel
def multiplied_sums(A, B, C, D, K: int):
    """The accumulator as an operand of the product that follows it, and under a condition."""
    a = metile.tensor(A, shape=(32, K))
    b = metile.tensor(B, shape=(K, 32))
    c = metile.tensor(C, shape=(32, 32), access="write")
    d = metile.tensor(D, shape=(32, 32), access="write")
    acc = metile.zeros((32, 32), metile.f32)
    start = metile.tile_load(b, (0, 0), (32, 32))
    odd = metile.dot(metile.tile_load(a, (0, 0), (32, 32)), start, start)
    for k in metile.tile_range(0, K, 32):
        x = metile.tile_load(a, (0, k), (32, 32))
        acc = metile.dot(acc, x * 0.25, metile.tile_load(b, (k, 0), (32, 32)))
        if k % 64 == 32:
            odd = metile.dot(x, x, odd)
            acc = acc - 1.0
        else:
            odd = odd + 1.0
    metile.tile_store(c, (0, 0), acc)
    metile.tile_store(d, (0, 0), odd)


Arrays = Mapping[str, Any]


class Case:
    """A kernel of 32 by 32 tiles, and what it computes of blocks of A and B in float64."""

    def __init__(self, kernel: Any, want: Callable[..., tuple[Any, ...]], dtype: str) -> None:
        self.kernel = kernel
        self.want = want
        self.dtype = dtype

    def arrays(self, depth: int) -> dict[str, mx.array]:
        rng = np.random.default_rng(depth)
        a, b = numbers(rng, (32, depth), self.dtype), numbers(rng, (depth, 32), self.dtype)
        if self.kernel is not scaled_weights:
            return {"A": a, "B": b}
        scale = mx.array(2.0 ** rng.integers(-2, 3, depth)).astype(mx.float16)
        return {"A": a, "Q": b.astype(mx.int8), "S": scale}

    def prepare(self) -> metile.Dispatch:
        outputs = [metile.empty((32, 32), mx.float32)] * (1 + (self.kernel is not scaled_weights))
        arrays = self.arrays(32).values()
        found: metile.Dispatch = self.kernel[1].prepare(*arrays, *outputs, 32, backend="cpu")
        return found


def blocks(a: Any, b: Any) -> list[tuple[Any, Any]]:
    return [(a[:, k : k + 32], b[k : k + 32]) for k in range(0, a.shape[1], 32)]


def want_scaled_weights(a: Any, q: Any, s: Any) -> tuple[Any, ...]:
    return (a @ (q * s[:, None]),)


def want_chained(a: Any, b: Any) -> tuple[Any, ...]:
    steps = blocks(a, b)
    return sum(x @ x + x @ y for x, y in steps), sum(x @ y @ y for x, y in steps)


def want_scaled_sums(a: Any, b: Any) -> tuple[Any, ...]:
    acc, before = np.full((32, 32), 4.0), np.zeros((32, 32))
    for x, y in blocks(a, b):
        before = before + acc
        acc = acc * 0.5 + x @ y + 1
    return acc, before + np.abs(acc)


def want_exchanged(a: Any, b: Any) -> tuple[Any, ...]:
    p = q = np.zeros((32, 32))
    for x, y in blocks(a, b):
        p, q = q + x @ np.full((32, 32), 2.0), p + x @ y
    return p @ np.full((32, 32), 2.0), q


def want_multiplied_sums(a: Any, b: Any) -> tuple[Any, ...]:
    acc, odd = np.zeros((32, 32)), a[:, :32] @ b[:32] + b[:32]
    for number, (x, y) in enumerate(blocks(a, b)):
        acc = acc @ (x * 0.25) + y - number % 2
        odd = odd + (x @ x if number % 2 else 1)
    return acc, odd


CASES = {
    case.kernel.__name__: case
    for case in (
        Case(scaled_weights, want_scaled_weights, "f16"),
        Case(chained, want_chained, "f32"),
        Case(scaled_sums, want_scaled_sums, "f32"),
        Case(exchanged, want_exchanged, "f32"),
        Case(multiplied_sums, want_multiplied_sums, "f32"),
    )
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_p4_tiles_are_used_as_written(library: Library, name: str, steps: int) -> None:
    """Whatever lies in one place with something else: the numbers are those of the program."""
    case = CASES[name]
    given = case.arrays(32 * steps)
    want = case.want(*(np.array(x.astype(mx.float32)).astype(np.float64) for x in given.values()))
    arrays = {key: plain(value) for key, value in given.items()}
    outputs = {key: value.astype(np.float32) for key, value in zip("CD", want, strict=False)}
    found = library.run(name, arrays | outputs, {"K": 32 * steps}, (1,))
    for key, value in outputs.items():
        assert np.array_equal(found[key], value), key
