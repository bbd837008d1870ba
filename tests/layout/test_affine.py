"""The laws of affine maps, each against enumeration (SPEC L5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metile_mlx.errors import LayoutError
from metile_mlx.layout import AffineMap
from metile_mlx.layout.affine import as_index

BITS = st.integers(0, 8)


@st.composite
def matrices(draw: st.DrawFn, bits: st.SearchStrategy[int] = BITS) -> AffineMap:
    """Any affine map, singular ones included."""
    n = draw(bits)
    index = st.integers(0, (1 << n) - 1)
    return AffineMap(tuple(draw(st.lists(index, min_size=n, max_size=n))), draw(index))


@st.composite
def bijections(draw: st.DrawFn, bits: st.SearchStrategy[int] = BITS) -> AffineMap:
    """A bijective map: a bit permutation with a constant, then a few row additions."""
    n = draw(bits)
    f = AffineMap.from_bit_order(
        draw(st.permutations(range(n))), draw(st.integers(0, (1 << n) - 1))
    )
    if n < 2:
        return f
    bit = st.integers(0, n - 1)
    for source, target in draw(st.lists(st.tuples(bit, bit), max_size=6)):
        if source != target:
            columns = [1 << b for b in range(n)]
            columns[source] |= 1 << target
            f = AffineMap(tuple(columns)) @ f
    return f


def everything(f: AffineMap) -> list[int]:
    return [f.apply(x) for x in range(f.size)]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[AffineMap, AffineMap]:
    n = draw(st.integers(0, 8))
    return draw(matrices(st.just(n))), draw(matrices(st.just(n)))


def test_apply_xors_the_columns_of_the_set_bits_and_the_constant() -> None:
    f = AffineMap((0b110, 0b011, 0b100), 0b001)
    assert everything(f) == [1, 7, 2, 4, 5, 3, 6, 0]


def test_the_transpose_of_the_module_docstring() -> None:
    f = AffineMap.from_bit_order((3, 4, 5, 0, 1, 2))
    assert f.columns == (8, 16, 32, 1, 2, 4)
    assert f.apply(11) == 25
    assert everything(f) == [8 * (t % 8) + t // 8 for t in range(64)]
    assert not f.preserves_bits_from(5)


def test_from_bit_order_puts_the_named_argument_bit_at_each_image_bit() -> None:
    order, constant = (2, 0, 3, 1), 0b0101
    f = AffineMap.from_bit_order(order, constant)
    for x in range(16):
        moved = sum((x >> source & 1) << b for b, source in enumerate(order))
        assert f.apply(x) == moved ^ constant
    assert f.bit_order == order


@given(matrices())
def test_arrays_agree_with_integers_whatever_their_dtype(f: AffineMap) -> None:
    expected = np.array(everything(f)).reshape(-1, 1)
    column = np.arange(f.size).reshape(-1, 1)
    for x in (column.astype(np.int16), column.astype(np.int32), column.astype(np.uint64)):
        image = f.apply(x)
        assert image.dtype == np.int64
        np.testing.assert_array_equal(image, expected)


def test_apply_leaves_its_array_alone_and_call_is_apply() -> None:
    x = np.arange(8)
    f = AffineMap.from_bit_order((1, 0, 2), 7)
    np.testing.assert_array_equal(f(x), f.apply(x))
    np.testing.assert_array_equal(x, np.arange(8))
    assert f(np.int8(3)) == f(3)
    assert type(f(np.int8(3))) is int


@given(pairs())
def test_after_applies_its_argument_first(both: tuple[AffineMap, AffineMap]) -> None:
    f, g = both
    assert everything(f.after(g)) == [f.apply(g.apply(x)) for x in range(g.size)]
    assert f @ g == f.after(g)


@given(bijections())
def test_inverse_undoes_on_both_sides(f: AffineMap) -> None:
    assert (f.inverse() @ f).is_identity
    assert (f @ f.inverse()).is_identity
    assert f.inverse().inverse() == f
    assert [f.inverse().apply(y) for y in everything(f)] == list(range(f.size))


@given(matrices())
def test_inverse_exists_exactly_for_bijections(f: AffineMap) -> None:
    if len(set(everything(f))) == f.size:
        assert (f.inverse() @ f).is_identity
    else:
        with pytest.raises(LayoutError, match="is singular"):
            f.inverse()


def test_a_singular_map_names_the_bit_without_a_pivot() -> None:
    with pytest.raises(LayoutError) as caught:
        AffineMap((1, 1)).inverse()
    assert str(caught.value) == (
        "[AffineMap.inverse] AffineMap(columns=(1, 1), constant=0) is singular: its columns are "
        "dependent (no pivot for bit 1), so two indices share an image"
    )


@given(st.one_of(matrices(), bijections()), st.integers(0, 9))
def test_predicates_agree_with_enumeration(f: AffineMap, bit: int) -> None:
    images = everything(f)
    assert f.is_identity == (images == list(range(f.size)))
    preserved = all(y >> bit == x >> bit for x, y in enumerate(images))
    assert f.preserves_bits_from(bit) == preserved
    below = (1 << bit) - 1
    low: dict[int, int] = {}
    high: dict[int, int] = {}
    splits = all(
        low.setdefault(x & below, y & below) == y & below
        and high.setdefault(x >> bit, y >> bit) == y >> bit
        for x, y in enumerate(images)
    )
    assert f.splits_at(bit) == splits


@given(bijections(), st.integers(0, 8))
def test_low_is_the_map_of_the_low_bits_where_it_splits(f: AffineMap, bit: int) -> None:
    if bit <= f.bits and f.splits_at(bit):
        low = f.low(bit)
        assert low.bits == bit
        assert all(f.apply(x) % low.size == low.apply(x % low.size) for x in range(f.size))
    else:
        with pytest.raises(LayoutError, match=f"doesn't split at bit {bit}"):
            f.low(bit)


@given(st.permutations(range(6)), st.integers(0, 63))
def test_bit_permutations_are_recognised(order: list[int], constant: int) -> None:
    f = AffineMap.from_bit_order(order, constant)
    assert f.is_permutation
    assert f.bit_order == tuple(order)
    assert AffineMap.from_bit_order(f.bit_order, constant) == f


def test_a_swizzle_is_a_map_but_no_permutation() -> None:
    swizzle = AffineMap((1, 2, 4 ^ 1, 8 ^ 2))
    assert not swizzle.is_permutation
    assert swizzle.inverse() == swizzle
    assert swizzle.preserves_bits_from(2)
    assert not swizzle.splits_at(2)
    with pytest.raises(LayoutError, match="mixes bits, it doesn't permute them"):
        _ = swizzle.bit_order


def test_identity() -> None:
    assert AffineMap.identity(5).columns == (1, 2, 4, 8, 16)
    assert AffineMap.identity(5).is_identity
    assert not AffineMap((1, 2), 1).is_identity
    assert AffineMap.identity(0).apply(0) == 0


def test_maps_are_values() -> None:
    f, g = AffineMap((2, 1), 3), AffineMap((2, 1), 3)
    assert f == g
    assert hash(f) == hash(g)
    assert f != AffineMap((2, 1))
    assert f != AffineMap((1, 2), 3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        f.constant = 0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AffineMap((1, 4)), "[AffineMap] column 1 must be in 0..3, got 4"),
        (lambda: AffineMap((1, 2), 4), "[AffineMap] constant must be in 0..3, got 4"),
        (lambda: AffineMap((1, True)), "[AffineMap] column 1 must be an integer, got True"),
        (
            lambda: AffineMap.from_bit_order((0, 0)),
            "[AffineMap] (0, 0) is not a permutation of 0..1",
        ),
        (
            lambda: AffineMap.identity(2) @ AffineMap.identity(3),
            "[AffineMap.after] both maps must have one width, got 2 bits after 3 bits",
        ),
        (
            lambda: AffineMap.identity(2).apply(4),
            "[AffineMap.apply] x must be in 0..3, got 4",
        ),
        (
            lambda: AffineMap.identity(2).apply(np.array([0, -1, 9])),
            "[AffineMap.apply] x must be in 0..3, got -1",
        ),
        (
            lambda: AffineMap.identity(2).apply(np.array([0.0])),
            "[AffineMap.apply] x must be an array of integers, got dtype float64",
        ),
        (
            lambda: AffineMap.identity(2).apply(True),
            "[AffineMap.apply] x must be an integer, got True",
        ),
    ],
)
def test_errors_name_the_value_and_the_rule(make: Callable[[], object], message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        make()
    assert str(caught.value) == message


def test_as_index_copies() -> None:
    x = np.arange(4)
    as_index(x, 4, "x")[0] = 3
    assert x[0] == 0
