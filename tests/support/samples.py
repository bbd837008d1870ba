"""Kernels that between them use every op, for tests of what holds for any program."""

from __future__ import annotations

from dataclasses import dataclass, field

import metile_mlx as metile
from metile_mlx.dtypes import BY_NAME
from metile_mlx.frontend.translate import translate
from metile_mlx.frontend.values import ArraySpec, ScalarSpec
from metile_mlx.ir.core import Func
from tests.support.products import accumulated, constexprs

ACROSS = metile.ThreadLayout((3, 4, 5, 0, 1, 2), xor_mask=9)
ADJACENT = metile.ThreadLayout((6, 7, 8, 0, 1, 2, 3, 4, 5), elements_per_thread=8)
FOURS = metile.ThreadLayout((5, 6, 0, 1, 2, 3, 4), elements_per_thread=4)
LANES = metile.ThreadLayout((1, 0, 3, 2, 4, 5), xor_mask=5)


@metile.kernel
def transpose(x, y, n, LAYOUT: metile.constexpr):
    source = metile.tensor(x, shape=(n, 8, 8), access="read")
    target = metile.tensor(y, shape=(n, 8, 8), access="write")
    batch, i = metile.program_id(0), metile.arange(0, 64)
    values = source.load((batch, i // 8, i % 8))
    converted = metile.convert_layout(values, LAYOUT)
    owned = metile.arange(0, 64, layout=LAYOUT)
    target.store((batch, owned % 8, owned // 8), converted)


@metile.kernel
def chain(x, y, n):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="read_write")
    i = metile.program_id(0) * 64 + metile.arange(0, 64)
    first = metile.convert_layout(source.load(i) > 0, ACROSS)
    second = metile.convert_layout(source.load(i, mask=i < n - 3, fill=2), ACROSS)
    third = metile.convert_layout(second * 2, LANES)
    j = metile.program_id(0) * 64 + metile.arange(0, 64, layout=LANES)
    keep = metile.convert_layout(~first, LANES)
    target.store(j, metile.where(keep, third, target.load(j)), mask=j % 3 != 1)


@metile.kernel
def turned(x, y, n):
    source = metile.tensor(x, shape=(n, 128), access="read")
    target = metile.tensor(y, shape=(n, 128), access="write")
    row, i = metile.program_id(0), metile.arange(0, 128, layout=FOURS)
    value = metile.permute(source.load((row, i)), range(6, -1, -1), xor_mask=3)
    target.store((row, i), metile.convert_layout(value, FOURS))


@metile.inline
def scaled(value, by):
    half = metile.cast(value, metile.f16)
    return metile.cast(half, metile.f32) * by


@metile.kernel
def numbers(x, y, n, by: float, POWER: metile.constexpr = 3):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="write")
    i = metile.program_id(1) * metile.num_programs(0) * 32 + metile.arange(0, 32)
    value = source.load(i)
    total = value
    for power in range(POWER):
        total = metile.fma(total, value, power) + metile.sin(-value) ** 2
    if n > 100:
        total = metile.maximum(total, scaled(value, by))
        target.store(i, total / by)
    else:
        total = metile.cast((i // n) % -7 << 2, metile.f32)
    target.store(i + 1, total, mask=(i < 20) & ~(i > 3) | (i == n))


@metile.kernel
def square(y, n):
    target = metile.tensor(y, shape=(n, 64), access="write")
    flat = metile.arange(0, 64)
    shape = metile.full((8, 8), 2, metile.i32)
    product = metile.reshape(flat, (8, 8)) * shape
    target.store((metile.program_id(2), flat), metile.reshape(product, (64,)) + n)


@metile.kernel
def printed(x, y, n):
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    value = metile.tensor(x, shape=n).load(i)
    metile.device_print(value, mask=i == 3)
    metile.tensor(y, shape=n, access="write").store(i, value)


@metile.kernel
def centred(x, y, n, LAYOUT: metile.constexpr):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="read_write")
    i = metile.program_id(0) * 512 + metile.arange(0, 512, layout=LAYOUT)
    value = source.load(i) - metile.sum(target.load(i)) / n
    target.store(i, value)


@metile.kernel
def ranges(x, y, n, LAYOUT: metile.constexpr):
    source = metile.tensor(x, shape=(n, 32), access="read")
    target = metile.tensor(y, shape=(n, 32), access="write")
    i = metile.reshape(metile.arange(0, 512, layout=LAYOUT), (16, 32))
    at = (metile.program_id(0) * 16 + i // 32, i % 32)
    value = source.load(at, fill=0)
    target.store(at, metile.max(value, axis=1) - metile.min(value, axis=0))


@metile.kernel
def in_loops(x, y, n):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="write")
    lanes = metile.arange(0, 64)
    total, largest = 0.0, metile.zeros(64, metile.f32)
    for start in metile.tile_range(0, n, 64):
        value = source.load(start + lanes)
        largest = metile.maximum(largest, value)
        if start > 64:
            total += metile.sum(value)
    target.store(lanes, largest + total)


@metile.kernel
def multiplied(
    x, y, z, M: int, N: int, K: int,
    BM: metile.constexpr, BN: metile.constexpr, BK: metile.constexpr,
):  # fmt: skip
    a = metile.tensor(x, shape=(M, K), access="read")
    b = metile.tensor(y, shape=(K, N), access="read")
    c = metile.tensor(z, shape=(M, N), access="write")
    row, column = metile.program_id(1) * BM, metile.program_id(0) * BN
    total = metile.zeros((BM, BN), metile.f32)
    for k in metile.tile_range(0, K, BK):
        left = metile.tile_load(a, (row, k), (BM, BK))
        right = metile.tile_load(b, (k, column), (BK, BN))
        total = metile.dot(left, right, total)
    metile.tile_store(c, (row, column), total)


@metile.kernel
def exchanged(x, y, n):
    memory = metile.shared(64, metile.f32)
    t = metile.thread_id()
    lanes = metile.arange(0, 64)
    value = metile.tensor(x, shape=(n,), access="read").load(lanes)
    memory.store(t, metile.simd_sum(value))
    metile.barrier()
    other = metile.simd_shuffle_xor(memory.load(63 - t), 3)
    metile.tensor(y, shape=(n,), access="write").store(lanes, value + other)


@metile.kernel
def idle_loop(x, y, n):
    """A loop that leaves nothing, between a store to memory and the load behind it."""
    memory = metile.shared(64, metile.f32)
    t = metile.thread_id()
    memory.store(t, metile.tensor(x, shape=(64,), access="read").load(t))
    count = 0
    for step in metile.tile_range(0, n):
        count += step
    metile.barrier()
    metile.tensor(y, shape=(64,), access="write").store(metile.arange(0, 64), memory.load(63 - t))


@metile.kernel
def passed_on(x, y, n):
    """An iteration reads what the one before it has left; after the last one nobody does."""
    memory = metile.shared(64, metile.f32)
    t = metile.thread_id()
    lanes = metile.arange(0, 64)
    memory.store(t, metile.tensor(x, shape=(64,), access="read").load(t))
    total = metile.zeros(64, metile.f32)
    for step in metile.tile_range(0, n):
        metile.barrier()
        value = memory.load((t + 1) % 64)
        metile.barrier()
        total += value
        memory.store(t, value * 2 + metile.cast(step, metile.f32))
    metile.tensor(y, shape=(64,), access="write").store(lanes, total)


@dataclass(frozen=True)
class Sample:
    """A kernel with the types of its runtime parameters (`f32*` an array) and its constexprs."""

    kernel: metile.Kernel
    kinds: tuple[str, ...]
    constexprs: dict[str, object] = field(default_factory=dict)
    masked: frozenset[str] = frozenset()

    def func(self) -> Func:
        """The kernel at Stage.TILE, translated anew."""
        names = [p.name for p in self.kernel.definition.params if not p.is_constexpr]
        specs = {
            name: ArraySpec(BY_NAME[kind[:-1]]) if kind[-1] == "*" else ScalarSpec(BY_NAME[kind])
            for name, kind in zip(names, self.kinds, strict=True)
        }
        return translate(self.kernel.definition, specs, self.constexprs)


SAMPLES = {
    "exchange": Sample(transpose, ("f32*", "f32*", "i32"), {"LAYOUT": ACROSS}),
    "exchange of bits": Sample(transpose, ("bf16*", "bf16*", "i32"), {"LAYOUT": ACROSS}),
    "shuffle": Sample(transpose, ("f16*", "f16*", "i32"), {"LAYOUT": LANES}),
    "unchanged": Sample(
        transpose, ("u32*", "u32*", "i32"), {"LAYOUT": metile.ThreadLayout.identity(64)}
    ),
    "chain": Sample(chain, ("f32*", "f32*", "i32"), {}, frozenset({"y"})),
    "permutation": Sample(turned, ("bf16*", "bf16*", "i32")),
    "print": Sample(printed, ("f32*", "f32*", "i32")),
    "square": Sample(square, ("i32*", "i32")),
    "registers": Sample(centred, ("f32*", "f32*", "i32"), {"LAYOUT": ADJACENT}, frozenset({"y"})),
    "rows": Sample(
        ranges,
        ("bf16*", "f32*", "i32"),
        {"LAYOUT": metile.ThreadLayout.identity(512)},
    ),
    "loops": Sample(in_loops, ("f32*", "f32*", "i32")),
    "idle loop": Sample(idle_loop, ("f32*", "f32*", "i32")),
    "passed on": Sample(passed_on, ("f32*", "f32*", "i32")),
    "lanes": Sample(exchanged, ("f32*", "f32*", "i32")),
    "product": Sample(
        accumulated, (*("bf16*",) * 3, *("i32",) * 4), constexprs((8, 16, 16)), frozenset({"C"})
    ),
    "numbers": Sample(numbers, ("f32*", "f32*", "i32", "f32"), {"POWER": 3}),
}
