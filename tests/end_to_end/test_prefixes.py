"""Masks that hold in the first threads: counted without asking each thread, on the CPU (SPEC X4).

Indices wrap as i32 does; expectations are NumPy's, of each thread by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

import metile_mlx as metile
from tests.support.public import source

BACKENDS = ("cpu", "reference", "metal")
BLOCK = 64
TOP = 2**31 - 1
OFFSETS = (0, 1, -1, -5, -63, -64, 37, 100, TOP, TOP - 31, TOP - 63, TOP - 64, -TOP - 1, -TOP + 30)
WIDTHS = (0, 1, 33, 63, 64, 65, 101)
# Of masks: no array has such an extent.
OTHERS = (-3, TOP, -TOP - 1)
THREADS = np.arange(BLOCK, dtype=np.int64)
SOURCE = np.arange(1, 321, dtype=np.float32)
pytestmark = pytest.mark.usefixtures("gpu")
Array = NDArray[np.float32]
Numbers = NDArray[np.int64]


def wrapped(numbers: Numbers) -> Numbers:
    return (numbers + 2**31) % 2**32 - 2**31


def loaded(index: Numbers, width: int, mask: NDArray[np.bool_] | None = None) -> Array:
    """Elements of SOURCE within the width, -1 elsewhere."""
    inside = (index >= 0) & (index < width)
    if mask is not None:
        inside &= mask
    return np.where(inside, SOURCE[np.where(inside, index, 0)], np.float32(-1))


@metile.kernel
def shifted(x, y, offset: int, width: int):
    i = metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=width).load(offset + i, fill=-1)
    metile.tensor(y, shape=BLOCK, access="write").store(i, value * 2)


def _shifted(offset: int, width: int) -> Array:
    return loaded(wrapped(offset + THREADS), width) * 2


@metile.kernel
def in_steps(x, y, offset: int, width: int):
    """Two and three from thread to thread."""
    i = metile.arange(0, BLOCK)
    source = metile.tensor(x, shape=width)
    value = source.load(offset + 2 * i, fill=-1) - source.load(i * 3 - offset, fill=-1)
    metile.tensor(y, shape=BLOCK, access="write").store(i, value)


def _in_steps(offset: int, width: int) -> Array:
    twice, thrice = offset + 2 * THREADS, 3 * THREADS - offset
    return loaded(wrapped(twice), width) - loaded(wrapped(thrice), width)


@metile.kernel
def masked(x, y, offset: int, width: int):
    """A mask of signed numbers, both ways round, joined with the bounds."""
    i = metile.arange(0, BLOCK)
    source = metile.tensor(x, shape=200)
    value = source.load(i, mask=offset + i < width, fill=-1)
    other = source.load(i + 7, mask=width > i + offset, fill=-1)
    metile.tensor(y, shape=BLOCK, access="write").store(i, value * 3 + other)


def _masked(offset: int, width: int) -> Array:
    mask = wrapped(offset + THREADS) < width
    return loaded(THREADS, 200, mask) * 3 + loaded(THREADS + 7, 200, mask)


@metile.kernel
def two_widths(x, y, offset: int, width: int):
    """Two bounds in one loop: behind the first of them the other may still hold."""
    i = metile.arange(0, BLOCK)
    first = metile.tensor(x, shape=width).load(offset + i, fill=-1)
    second = metile.tensor(x, shape=50).load(i, fill=-1)
    third = metile.tensor(x, shape=(3, width)).load((offset - 36, i), fill=-1)
    metile.tensor(y, shape=BLOCK, access="write").store(i, first + second * 4 + third * 8)


def _two_widths(offset: int, width: int) -> Array:
    row = wrapped(np.array(offset - 36))
    is_row = np.full(BLOCK, 0 <= row < 3)
    third = loaded(row * width + THREADS, 320, is_row & (width > THREADS))
    return loaded(wrapped(offset + THREADS), width) + loaded(THREADS, 50) * 4 + third * 8


@metile.kernel
def stored(x, y, offset: int, width: int):
    """Threads store within a bound of their own; nothing else is touched."""
    i = metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=BLOCK).load(i)
    metile.tensor(y, shape=BLOCK, access="write").store(i, value, mask=offset + i < width)


def _stored(offset: int, width: int) -> Array:
    return np.where(wrapped(offset + THREADS) < width, SOURCE[:BLOCK], np.float32(0))


@metile.kernel
def in_a_loop(x, y, offset: int, width: int):
    """A row in steps; what lies behind its end counts as -1, once for each thread."""
    i = metile.arange(0, BLOCK)
    source = metile.tensor(x, shape=width)
    total = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, width, BLOCK):
        total = total + source.load(start + i, fill=-1)
        total = total * source.load(start + i + offset, fill=1)
    metile.tensor(y, shape=BLOCK, access="write").store(i, total)


def _in_a_loop(offset: int, width: int) -> Array:
    total = np.zeros(BLOCK, np.float32)
    for start in range(0, max(width, 0), BLOCK):
        total = total + loaded(start + THREADS, width)
        factor = loaded(wrapped(start + THREADS + offset), width)
        total = total * np.where(factor == -1, np.float32(1), factor)
    return total


@metile.kernel
def over_lanes(x, y, offset: int, width: int):
    """Simdgroup by simdgroup, since each combines its lanes."""
    i = metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=width).load(offset + i, fill=-1)
    metile.tensor(y, shape=BLOCK, access="write").store(i, value + metile.simd_sum(value))


def _over_lanes(offset: int, width: int) -> Array:
    value = loaded(wrapped(offset + THREADS), width)
    return value + np.repeat(value.reshape(-1, 32).sum(1), 32)


@metile.kernel
def few_stores(x, y, offset: int, width: int):
    """Eight threads overwrite memory with what forty may load, wherever memory says."""
    memory = metile.shared(BLOCK, metile.f32)
    t, i = metile.thread_id(), metile.arange(0, BLOCK)
    memory.store(t, 0.5)
    metile.barrier()
    source = metile.tensor(x, shape=200)
    at = metile.cast(source.load(i + 3), metile.i32) + offset & 63
    memory.store(t, source.load(at, mask=i < 40), mask=t < 8)
    metile.barrier()
    metile.tensor(y, shape=BLOCK, access="write").store(i, memory.load(BLOCK - 1 - t))


def _few_stores(offset: int, width: int) -> Array:
    at = SOURCE[THREADS + 3].astype(np.int64) + offset & 63
    return np.where(THREADS < 8, SOURCE[at], np.float32(0.5))[::-1]


CASES: dict[str, tuple[metile.Kernel, Callable[[int, int], Array]]] = {
    "shifted": (shifted, _shifted),
    "in steps": (in_steps, _in_steps),
    "masked": (masked, _masked),
    "two widths": (two_widths, _two_widths),
    "stored": (stored, _stored),
    "in a loop": (in_a_loop, _in_a_loop),
    "over lanes": (over_lanes, _over_lanes),
    "few stores": (few_stores, _few_stores),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_each_thread_is_in_bounds_by_itself(name: str, backend: str) -> None:
    kernel, model = CASES[name]
    x, out = mx.array(SOURCE), metile.empty(BLOCK, mx.float32)
    widths = (*WIDTHS, *OTHERS) if name in ("masked", "stored") else WIDTHS
    pairs = [(offset, width) for offset in OFFSETS for width in widths]
    if backend != "cpu":
        pairs = pairs[::5]
    made = [kernel[1](x, out, *pair, backend=backend) for pair in pairs]
    mx.eval(made)
    expected = [model(*pair) for pair in pairs]
    wrong = [p for p, a, b in zip(pairs, made, expected, strict=True) if (np.array(a) != b).any()]
    assert not wrong


def text(kernel: metile.Kernel) -> str:
    x, out = mx.array(SOURCE), metile.empty(BLOCK, mx.float32)
    return source(kernel[1].prepare(x, out, 3, 40, backend="cpu")).body


@pytest.mark.parametrize("name", [name for name in CASES if name != "few stores"])
def test_no_loop_counts(name: str) -> None:
    """One number is compared with the bound, that of the first thread."""
    made = text(CASES[name][0])
    assert "metile_below_" in made
    assert "holds" not in made


def test_behind_the_end_of_a_row_nothing_is_asked_or_read() -> None:
    """The loop's bounds show that no index wraps; so no load of the row is masked."""
    made = text(in_a_loop)
    pattern = r"for \(uint32_t thread = 0; thread < whole\w*; \+\+thread\) \{(.*?)\}"
    whole = re.findall(pattern, made, re.S)
    assert whole
    assert all("x[" in body and "?" not in body for body in whole)


def test_a_store_has_no_loop_behind_its_bound() -> None:
    """But for indices that wrap on the way, which are looked for once."""
    made = text(stored)
    assert made.count("for (uint32_t thread") == 2
    assert re.search(r"if \(whole_wraps\) \{\s*for \(uint32_t thread = whole;", made)


@pytest.mark.parametrize("name", CASES)
def test_no_two_versions_of_a_loop_are_the_same(name: str) -> None:
    """Where no mask asks for all conditions, what wraps changes nothing (two widths)."""
    pattern = r"^( *)if \(whole\w*_wraps\) \{\n(.*?)\n\1\} else \{\n(.*?)\n\1\}\n"
    sides = re.findall(pattern, text(CASES[name][0]), re.S | re.M)
    assert bool(sides) == (name == "shifted")
    assert all(first.split() != second.split() for _, first, second in sides)


@metile.kernel
def cut_columns(
    x, out, n: int, WIDTH: metile.constexpr, AT: metile.constexpr, SIDE: metile.constexpr
):
    """Rows of WIDTH threads from column AT on: the last columns lie outside, known beforehand."""
    i = metile.arange(0, SIDE * WIDTH)
    value = metile.tensor(x, shape=n).load(i)
    target = metile.tensor(out, shape=(32, 16), access="read_write")
    target.store((i // WIDTH + 1, i % WIDTH + AT), value * 2.0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [0, 7, 33, 100, 300])
@pytest.mark.parametrize(("width", "at"), [(8, 11), (8, 15), (16, 3), (4, 14), (8, 0)])
def test_columns_cut_for_certain_leave_all_else_alone(
    width: int, at: int, n: int, backend: str
) -> None:
    """No thread beyond the last one runs, and none twice (F52)."""
    side = 8
    source_ = np.arange(1, 301, dtype=np.float32)
    base = np.full((32, 16), -1, np.float32)
    made = cut_columns[1](
        mx.array(source_), mx.array(base), n, WIDTH=width, AT=at, SIDE=side, backend=backend
    )
    place = np.arange(side * width)
    given = np.where(place < n, source_[place], 0) * 2
    row, column = place // width + 1, place % width + at
    inside = column < 16
    base[row[inside], column[inside]] = given[inside]
    assert np.array_equal(np.array(made), base)


@metile.kernel
def tile_at(x, out, n: int, ROW: metile.constexpr, AT: metile.constexpr, SIDE: metile.constexpr):
    a = metile.tensor(x, shape=(n, n))
    c = metile.tensor(out, shape=(32, 32), access="read_write")
    value = metile.tile_load(a, (0, 0), (SIDE, SIDE))
    metile.tile_store(c, (ROW, AT), metile.dot(value, value))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("side", [8, 16])
@pytest.mark.parametrize(("row", "at"), [(4, 27), (25, 0), (20, 29)])
def test_tiles_cut_for_certain(row: int, at: int, side: int, backend: str) -> None:
    x = np.random.default_rng(side).integers(-4, 5, (13, 13)).astype(np.float32)
    base = np.full((32 + side, 32 + side), -1, np.float32)
    padded = np.zeros((side, side), np.float32)
    padded[: min(13, side), : min(13, side)] = x[:side, :side]
    base[row : row + side, at : at + side] = padded @ padded
    given = mx.full((32, 32), -1.0)
    made = tile_at[1](mx.array(x), given, 13, ROW=row, AT=at, SIDE=side, backend=backend)
    assert np.array_equal(np.array(made), base[:32, :32])
