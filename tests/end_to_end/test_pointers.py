"""Pointer arithmetic: `metile.load(X + offsets)`, `metile.store(X + offsets, value)` (SPEC K6, K2).

A lane outside the array never touches memory; the emulator's checker and the reference report it.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx import emulator
from tests.support.public import DTYPES, payload, same_bits

pytestmark = pytest.mark.usefixtures("gpu")


@metile.kernel
def added(x, y, out, n, BLOCK: metile.constexpr):
    offsets = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    inside = offsets < n
    total = metile.load(x + offsets, mask=inside) + metile.load(y + offsets, mask=inside)
    metile.store(out + offsets, total, mask=inside)


@pytest.mark.parametrize("n", [0, 1, 31, 64, 65, 1000])
def test_masked_offsets(n: int, backend: str) -> None:
    x, y = (mx.random.normal((n,), key=mx.random.key(seed)) for seed in (0, 1))
    made = added[metile.cdiv(n, 64)](
        x, y, metile.empty(n, mx.float32), n, BLOCK=64, backend=backend
    )
    assert mx.array_equal(made, x + y)


def test_f10_strided_arrays_are_flat_in_row_major_order(backend: str) -> None:
    """Offsets count elements of the array as it is seen, not as it lies in memory."""
    base = mx.arange(200).reshape(10, 20).astype(mx.float32)
    for x in (base.T, base[::2], base[:, ::3], mx.broadcast_to(base[0], (4, 20))):
        out = metile.empty(x.shape, mx.float32)
        n = x.size
        made = added[metile.cdiv(n, 32)](x, x, out, n, BLOCK=32, backend=backend)
        assert mx.array_equal(made, x + x)


@metile.kernel
def copied(x, out, BLOCK: metile.constexpr):
    offsets = BLOCK * metile.program_id(0) + metile.arange(0, BLOCK)
    metile.store(offsets + out, metile.load(x + offsets))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_is_moved(dtype: str, backend: str) -> None:
    x = payload(dtype, (128,), 3)
    made = copied[4](x, metile.empty(x.shape, x.dtype), BLOCK=32, backend=backend)
    assert same_bits(made, x)


@metile.kernel
def shifted(x, out, by, BLOCK: metile.constexpr):
    """No mask: what lies outside is the user's fault."""
    offsets = BLOCK * metile.program_id(0) + metile.arange(0, BLOCK)
    metile.store(out + offsets + by, metile.load(x + offsets, fill=-1))


@pytest.mark.emulator
@pytest.mark.faulty
@pytest.mark.parametrize(("size", "by"), [(100, 0), (128, 1), (128, -1), (0, 0)])
def test_outside_the_array_nothing_is_touched_and_it_is_reported(size: int, by: int) -> None:
    """SPEC K2, K6: neighbours stay, and who looks for faults finds this one."""
    x = mx.arange(size).astype(mx.int32)
    out = metile.empty(128, mx.int32)
    expected = [0] * 128
    for offset in range(128):
        if 0 <= offset + by < 128:
            expected[offset + by] = offset if offset < size else -1
    for name in ("cpu", "metal"):
        made = shifted[4](x, out, by, BLOCK=32, backend=name)
        assert made.tolist() == expected
    with pytest.raises(metile.LaunchError, match="lies outside") as caught:
        shifted[4](x, out, by, BLOCK=32, backend="reference")
    assert caught.value.hint == "mask what lies outside: mask=offsets < n"
    emulator.take()
    with emulator.options(checked=True):
        mx.eval(shifted[4](x, out, by, BLOCK=32, backend="emulator"))
    report = emulator.take()
    assert report.findings
    assert all("out of bounds" in str(found) for found in report.findings)


@metile.kernel
def gathered(ids, table, out, width, BLOCK: metile.constexpr):
    """out[p] = table[ids[p]]: offsets that depend on what an array holds."""
    lanes = metile.arange(0, BLOCK)
    row = metile.load(ids + metile.program_id(0))
    inside = lanes < width
    value = metile.load(table + row * width + lanes, mask=inside)
    metile.store(out + metile.program_id(0) * width + lanes, value, mask=inside)


# Other numbers than these, as the suite takes for its own run of each text, would lie outside.
@pytest.mark.emulator
@pytest.mark.faulty
def test_offsets_from_memory(backend: str) -> None:
    table = mx.random.normal((50, 20))
    ids = mx.array([3, 49, 0, 3])
    made = gathered[4](ids, table, metile.empty((4, 20), mx.float32), 20, BLOCK=32, backend=backend)
    assert mx.array_equal(made, table[ids])
    with emulator.checked(schedules=2):
        out = metile.empty((4, 20), mx.float32)
        made = gathered[4](ids, table, out, 20, BLOCK=32, backend="emulator")
        assert mx.array_equal(made, table[ids])


@metile.kernel
def in_place(x, n):
    offsets = metile.arange(0, 32)
    value = metile.load(x + offsets, mask=offsets < n, fill=0)
    metile.store(x + offsets, value + 1, mask=offsets < n - 2)


def test_k7_an_array_that_is_loaded_and_stored_keeps_what_no_program_stores(backend: str) -> None:
    x = mx.arange(10)
    assert in_place[1](x, 10, backend=backend).tolist() == [*range(1, 9), 8, 9]
    assert x.tolist() == list(range(10))


@metile.kernel
def after_store(x, n):
    offsets = metile.arange(0, 32)
    metile.store(x + offsets, offsets)
    metile.store(x + offsets, metile.load(x + offsets))


@metile.kernel
def beside_layout(x, y, LAYOUT: metile.constexpr):
    i = metile.arange(0, 64, layout=LAYOUT)
    metile.store(y + i, metile.load(x + i))


@metile.kernel
def no_pointer(x, y, n):
    metile.store(y + metile.arange(0, 32), metile.load(metile.tensor(x, shape=n)))


@metile.kernel
def float_offset(x, y):
    metile.store(y + metile.arange(0, 32), metile.load(x + 1.5))


def test_what_pointers_refuse() -> None:
    x, out = mx.arange(64), metile.empty(64, mx.int32)
    with pytest.raises(metile.CompileError, match="a load can't see stores of the same launch"):
        after_store[1](x, 64)
    with pytest.raises(metile.OwnershipError, match=r"\[load\] pointer arithmetic on x is not"):
        beside_layout[1](x, out, LAYOUT=metile.ThreadLayout.identity(64))
    with pytest.raises(metile.CompileError, match=r"expected array \+ offsets"):
        no_pointer[1](x, out, 64)
    with pytest.raises(metile.CompileError, match="a pointer offset is f32, expected i32"):
        float_offset[1](x, out)


def test_gradients_come_from_the_reference() -> None:
    x, y = mx.arange(40).astype(mx.float32), mx.ones((40,))

    def total(x: mx.array) -> mx.array:
        made = added[2](x, y, metile.empty(40, mx.float32), 40, BLOCK=32, backend="cpu")
        return (made * made).sum()

    assert mx.allclose(mx.grad(total)(x), 2 * (x + y))


@metile.kernel
def rows(x, out, n, BLOCK: metile.constexpr):
    """A loop over pointers, as Triton's norms have it."""
    row = metile.program_id(0) * n
    total = metile.zeros(BLOCK, metile.f32)
    for start in metile.tile_range(0, n, BLOCK):
        columns = start + metile.arange(0, BLOCK)
        total = total + metile.load(x + row + columns, mask=columns < n, fill=0)
    metile.store(out + metile.program_id(0), metile.sum(total))


@pytest.mark.parametrize("width", [1, 33, 200])
def test_pointers_in_loops(width: int, backend: str) -> None:
    x = mx.array(np.random.default_rng(0).integers(-9, 9, (5, width)).astype(np.float32))
    made = rows[5](x, metile.empty(5, mx.float32), width, BLOCK=64, backend=backend)
    assert mx.array_equal(made, x.sum(axis=1))


def test_a_new_size_compiles_nothing() -> None:
    """The length of an array is a scalar of the launch."""
    added[1](mx.ones(3), mx.ones(3), metile.empty(3, mx.float32), 3, BLOCK=256, backend="cpu")
    special = list(added._specialisations.values())[-1]
    texts = len(special._texts)
    for n in range(1, 400, 57):
        made = added[2](
            mx.ones(n), mx.ones(n), metile.empty(n, mx.float32), n, BLOCK=256, backend="cpu"
        )
        assert made.tolist() == [2] * n
    assert list(added._specialisations.values())[-1] is special
    assert len(special._texts) == texts


@metile.inline
def at(pointer):
    return metile.load(pointer)


@metile.inline
def second(source, offsets):
    moved = source + offsets
    return at(moved + 1)


@metile.kernel
def by_name(x, y, step, by, READ: metile.constexpr):
    i = metile.arange(0, 32)
    source, target = x + i * (step & 3), y + i
    total = at(x + by % 4 + i * (step & 3)) + READ(x, i)
    for array in (x, x):
        total += metile.load(array + i)
    metile.store(target, total + at(source))


def test_pointers_have_names_and_pass_through_inline_functions(backend: str) -> None:
    """What is no array among the terms may be a lazy scalar, an array of one element (X10)."""
    x = mx.arange(96).astype(mx.float32)
    for step, by in ((2, 6), (mx.array(2), mx.array(6))):
        out = metile.empty(32, mx.float32)
        made = by_name[1](x, out, step, by, READ=second, backend=backend)
        expected = x[2:66:2] + x[1:33] + 2 * x[:32] + x[:64:2]
        assert mx.array_equal(made, expected)


@metile.inline
def endless(pointer):
    return endless(pointer)


@metile.kernel
def recursive(x, y):
    metile.store(y + metile.arange(0, 32), endless(x))


def test_a_pointer_to_a_recursive_function_is_refused_as_such() -> None:
    for size in (1, 64):
        with pytest.raises(metile.CompileError, match="recursion: endless -> endless"):
            recursive[1](mx.zeros(size), metile.empty(32, mx.float32))
