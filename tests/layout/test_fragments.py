"""Owners of products against enumeration: which lane and register has which element (SPEC K6)."""

from __future__ import annotations

from functools import cache
from itertools import product as combinations

import numpy as np
import pytest

from metile_mlx.errors import LayoutError, UnsupportedError
from metile_mlx.layout.affine import Indices
from metile_mlx.layout.fragments import Product, copy_layout, product_of, products
from metile_mlx.layout.operand import Layout, OperandLayout
from metile_mlx.layout.thread_layout import ThreadLayout
from tests.support.profile import count

EDGES = (8, 16, 32, 64, 128)
LANES = np.arange(32)
# As simdgroup_matrix has it (MLX, steel/gemm/mma.h): the row, and the first of two columns.
ROWS = LANES // 16 * 4 + LANES % 8 // 2
COLUMNS = LANES % 16 // 8 * 4 + LANES % 2 * 2


@cache
def every() -> tuple[Product, ...]:
    """All shapes on all numbers of simdgroups that have a fragment each, 16 at most."""
    found = []
    for rows, columns, depth in combinations(EDGES, repeat=3):
        for bits in range(6):
            if 1 << bits <= rows // 8 * (columns // 8) <= 16 << bits:
                found.append(product_of((rows, columns, depth), 32 << bits))
    return tuple(found)


def sample() -> list[Product]:
    found = every()
    return list(found[:: max(1, len(found) // count(ci=120, full=10**9))])


def held(layout: Layout) -> Indices:
    """The element of each slot by register, simdgroup and lane; bit by bit, without the algebra."""
    threads = layout.thread_count
    slots = np.arange(layout.elements_per_thread * threads)
    found = np.zeros_like(slots)
    if isinstance(layout, ThreadLayout):
        for bit, source in enumerate(layout.bit_order):
            found |= (slots >> source & 1) << bit
        found ^= layout.xor_mask
    else:
        for bit, column in enumerate(layout.columns):
            found |= (slots >> bit & 1) * column
    return found.reshape(layout.elements_per_thread, threads // 32, 32)


def test_every_number_of_simdgroups_has_as_many() -> None:
    assert len(every()) > 300
    for made in every():
        assert made.simdgroups_m * made.simdgroups_n * 32 == made.threads
        assert (made.simdgroups_m * 8) <= made.rows
        assert (made.simdgroups_n * 8) <= made.columns


def test_each_fragment_is_8_by_8_where_the_simdgroup_multiplies_it() -> None:
    """Row blocks of the left operand and column blocks of the right one meet in the accumulator."""
    for made in sample():
        high, wide = made.rows // made.simdgroups_m, made.columns // made.simdgroups_n
        tables = {"left": made.left, "right": made.right, "accumulator": made.accumulator}
        found = {name: held(layout) for name, layout in tables.items()}
        for group in range(made.threads // 32):
            top, left = group // made.simdgroups_n * high, group % made.simdgroups_n * wide
            for row, k, column in combinations(
                range(high // 8), range(made.depth // 8), range(wide // 8)
            ):
                where = {
                    "left": (row, k, top + row * 8, k * 8, made.depth),
                    "right": (k, column, k * 8, left + column * 8, made.columns),
                    "accumulator": (row, column, top + row * 8, left + column * 8, made.columns),
                }
                for name, (i, j, first, second, width) in where.items():
                    slot = made.fragment(name, i, j)
                    for at in range(2):
                        expected = (first + ROWS) * width + second + COLUMNS + at
                        assert (found[name][slot + at, group] == expected).all(), (made, name)


def test_each_sum_has_one_owner_and_operands_as_many_as_need_them() -> None:
    for made in sample():
        sums = np.bincount(held(made.accumulator).reshape(-1), minlength=made.rows * made.columns)
        assert (sums == 1).all()
        for layout, size, copies in (
            (made.left, made.rows * made.depth, made.simdgroups_n),
            (made.right, made.depth * made.columns, made.simdgroups_m),
        ):
            owners = np.bincount(held(layout).reshape(-1), minlength=size)
            assert owners.size == size
            assert (owners == copies).all(), made
            assert (layout.size, layout.copies) == (size, copies)
            assert layout.thread_count == made.threads


def test_copies_are_cooperative_and_neighbours_lie_in_one_thread() -> None:
    for rows, columns in combinations(EDGES, repeat=2):
        size = (rows * columns).bit_length() - 1
        for bits in range(max(5, size - 5), min(10, size) + 1):
            for along in range(2):
                layout = copy_layout((rows, columns), 1 << bits, along)
                found = held(layout).reshape(layout.elements_per_thread, -1)
                assert (np.sort(found.reshape(-1)) == np.arange(rows * columns)).all()
                near = min(4, layout.elements_per_thread, (rows, columns)[along])
                step = columns if along == 0 else 1
                assert (found[:near] == found[0] + np.arange(near)[:, None] * step).all()


def test_an_operand_layout_names_each_bit_of_an_element_once() -> None:
    made = OperandLayout((1, 0, 4, 2, 0, 8), 2)
    assert (made.size, made.copies, made.thread_count) == (16, 4, 32)
    for columns in ((1, 1, 2, 0, 0), (1, 4, 0, 0, 0), (2, 4, 0, 0, 0), (3, 4, 0, 0, 0)):
        with pytest.raises(LayoutError, match="expected each bit of an element once and zeros"):
            OperandLayout(columns, 1)


def test_simdgroups_are_as_many_as_the_sums_need_and_the_smallest_tile_has_work_for() -> None:
    for shape, smallest, expected in (
        ((128, 128, 8), 1024, 16),
        ((64, 64, 16), 1024, 4),
        ((8, 8, 128), 64, 1),
        ((16, 8, 8), 64, 2),
        ((64, 128, 32), 4096, 8),
    ):
        (made,) = products([shape], smallest)
        assert made.threads == 32 * expected
        assert held(made.accumulator).shape[0] <= 32
    both = products([(64, 64, 8), (64, 8, 64)], 512)
    assert {made.threads for made in both} == {128}
    with pytest.raises(UnsupportedError, match="need 16 simdgroups") as caught:
        products([(128, 128, 8), (8, 8, 8)], 64)
    assert "larger depth" in str(caught.value)
