"""Numbers that stand for values: exact integers, floats told apart, and the laws of lowering."""

from __future__ import annotations

import numpy as np
import pytest

from metile_mlx.dtypes import ALL, DType, bf16, bool_, f16, f32, i32, u16, u32
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.verify import numbers
from metile_mlx.verify.numbers import TRIALS, Numbers
from tests.support import arithmetic
from tests.support.arithmetic import NUMPY
from tests.support.execute import random_bits

ON_THREADS = sorted(set(arithmetic.INTEGER_BINARY), key=lambda kind: kind.value)
FLOATS = (f16, bf16, f32)


def held(dtype: DType, seed: int) -> Numbers:
    """Integers of every size, edges included, in canonical form."""
    values = random_bits(dtype, 500, seed).astype(np.int64)
    values[:7] = [0, 1, dtype.min, dtype.max, dtype.max - 1, 7, 31]
    return values[None]


@pytest.mark.parametrize("dtype", [i32, u32])
@pytest.mark.parametrize("kind", ON_THREADS)
def test_integers_are_exact(kind: BinaryKind, dtype: DType) -> None:
    a, b = held(dtype, 1), held(dtype, 2)
    if kind in (BinaryKind.DIV, BinaryKind.REM):
        b = np.where((b == 0) | (b == -1), 3, b)
    with np.errstate(all="ignore"):
        expected = arithmetic.binary(
            kind, a[0].astype(NUMPY[dtype]), b[0].astype(NUMPY[dtype]), dtype
        )
    found = numbers.binary(kind, a, b, dtype)[0]
    np.testing.assert_array_equal(found, expected.astype(np.int64))


def test_k3_division_of_tiles_is_pythons() -> None:
    a, b = held(i32, 3), held(i32, 4)
    b[0, :9] = [0, 1, -1, 2, -2, 3, -3, 7, -7]
    for kind, of in ((BinaryKind.FLOORDIV, "__floordiv__"), (BinaryKind.MOD, "__mod__")):
        found = numbers.binary(kind, a, b, i32)[0]
        for x, y, got in zip(a[0].tolist(), b[0].tolist(), found.tolist(), strict=True):
            right = getattr(x, of)(y) if y else 0
            assert got == (right + 2**31) % 2**32 - 2**31


@pytest.mark.parametrize("kind", CompareKind)
def test_comparisons_of_integers_are_exact(kind: CompareKind) -> None:
    for dtype in (i32, u32):
        a, b = held(dtype, 5), held(dtype, 6)
        b[0, :50] = a[0, :50]
        expected = arithmetic.compare(
            kind, a[0].astype(NUMPY[dtype]), b[0].astype(NUMPY[dtype]), dtype
        )
        np.testing.assert_array_equal(numbers.compare(kind, a, b, dtype)[0], expected)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_casts_of_integers_wrap_and_bitcasts_keep_bits(dtype: DType) -> None:
    if dtype.is_float:
        bits = numbers.unknown("x", dtype, np.arange(9)[None])
        wire = {16: u16, 32: u32}[dtype.bits]
        there = numbers.bitcast(bits, wire)
        np.testing.assert_array_equal(numbers.bitcast(there, dtype), bits)
        return
    source = held(i32, 7)
    with np.errstate(all="ignore"):
        expected = source[0].astype(NUMPY[dtype]) if dtype != bool_ else source[0] != 0
    found = numbers.cast(source, i32, dtype)[0]
    np.testing.assert_array_equal(found, expected.astype(np.int64))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_constants_are_their_bits(dtype: DType) -> None:
    for value in (0.0, -0.0, 1.0, -2.5, 1 / 3, 1e-3, np.inf, -np.inf):
        right = arithmetic.from_f32(np.array([value], np.float32), dtype)
        bits = right.view({16: np.uint16, 32: np.uint32}[dtype.bits])
        assert numbers.constant(value, dtype).item() == int(bits[0])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_are_told_apart_by_kind_operands_and_order(dtype: DType) -> None:
    a, b = (numbers.unknown(name, dtype, np.arange(64)[None]) for name in "ab")
    found = [numbers.binary(k, a, b, dtype) for k in arithmetic.FLOAT_BINARY]
    found += [numbers.binary(k, b, a, dtype) for k in (BinaryKind.ADD, BinaryKind.MUL)]
    found += [numbers.unary(k, a, dtype) for k in UnaryKind if k is not UnaryKind.NOT]
    found += [numbers.fma(a, b, a, dtype), a, b]
    # A minimum or maximum is one of its operands.
    texts = {each.tobytes() for each in found}
    assert len(texts) == len(found)


def test_r2_lanes_combine_in_any_order_with_what_changes_nothing() -> None:
    values = numbers.unknown("x", f32, np.arange(32)[None])
    order = np.random.default_rng(0).permutation(32)
    for kind, nothing in (
        (BinaryKind.ADD, 0.0),
        (BinaryKind.MAXIMUM, -np.inf),
        (BinaryKind.MINIMUM, np.inf),
    ):
        total = numbers.combine(kind, values, f32)
        np.testing.assert_array_equal(numbers.combine(kind, values[:, order], f32), total)
        fill = np.broadcast_to(numbers.constant(nothing, f32), values.shape)
        padded = np.concatenate([values, fill], axis=1)
        np.testing.assert_array_equal(numbers.combine(kind, padded, f32), total)


def test_arguments_are_small_and_large_and_extents_differ_from_each_other() -> None:
    given = [(name, i32, name in "nm") for name in ("n", "start", "m", "stop")]
    first, start, second, stop = numbers.arguments(given, 256)
    assert first.shape == (TRIALS, 1)
    assert first.min() >= 1
    assert first.min() <= 2 < 256 < first.max()
    assert ((first > 256) & (second < 16)).any()
    assert ((second > 256) & (first < 16)).any()
    assert ((start < stop) & (stop <= 256)).any()
    ids, extents = numbers.program(0), numbers.programs(0)
    assert (ids >= 0).all()
    assert (ids < extents).all()
    far = ids.max() * 2 ** np.arange(5, 16)
    assert (numbers.canonical(far, i32) < 0).all()
