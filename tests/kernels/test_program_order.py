"""`metile_kernels.program_order`: every order is a bijection, and a broken one is named (P1)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_kernels.program_order import (
    check_order,
    grouped,
    hilbert,
    morton,
    program_order,
    program_order_reference,
    tile_of,
)
from metile_mlx import emulator
from tests.support.profile import count
from tests.support.public import compilations, same_bits

WALKS = (grouped, morton, hilbert)
SIZES = ((1, 1), (1, 40), (40, 1), (4, 4), (5, 7), (8, 12), (9, 33), (40, 39))


def places(rows: int, columns: int, walk: Any, levels: int) -> tuple[Any, Any]:
    index = np.arange(rows * columns)
    row, column = tile_of.python(index, rows, columns, walk.python, levels)
    return np.asarray(row), np.asarray(column)


def launched(rows: int, columns: int, walk: Any, levels: int, backend: str) -> mx.array:
    out = metile.empty(rows * columns, mx.int32)
    made: mx.array = program_order[rows * columns](
        out, rows, columns, WALK=walk, LEVELS=levels, backend=backend
    )
    return made


@pytest.mark.parametrize("walk", WALKS)
def test_p1_every_order_is_a_bijection(walk: Any) -> None:
    """Of 1 to 40 rows and columns, for blocks of several sizes."""
    for levels in (0, 2, 3, *range(4, count(ci=4, full=7))):
        for rows in range(1, 41):
            for columns in range(1, 41):
                check_order(rows, columns, walk, levels)


@pytest.mark.emulator
@pytest.mark.parametrize("walk", WALKS)
def test_p1_kernels_have_the_order_that_is_checked(walk: Any) -> None:
    """One text for all sizes, on each backend."""
    launched(2, 2, walk, 2, "cpu")
    with compilations() as found:
        for rows, columns in SIZES:
            expected = program_order_reference(rows, columns, walk, 2)
            for backend in ("cpu", "reference"):
                assert same_bits(launched(rows, columns, walk, 2, backend), expected)
    assert found == []
    with emulator.checked():
        made = launched(5, 7, walk, 2, "emulator")
    assert same_bits(made, program_order_reference(5, 7, walk, 2))


def test_no_levels_is_the_linear_order() -> None:
    for walk in WALKS:
        for rows, columns in SIZES:
            made = program_order_reference(rows, columns, walk, 0)
            assert made.tolist() == list(range(rows * columns))


def test_grouped_is_tritons() -> None:
    """The formula of its tutorial of matrix multiplication, with GROUP_SIZE_M = 4."""
    for rows, columns in SIZES:
        row, column = places(rows, columns, grouped, 2)
        for index in range(rows * columns):
            first = index // (4 * columns) * 4
            size = min(rows - first, 4)
            inside = index % (4 * columns)
            assert (row[index], column[index]) == (first + inside % size, inside // size)


def test_curves_keep_to_their_blocks() -> None:
    """Hilbert's steps are to neighbours; four in a row of Morton's are a square."""
    for levels in (1, 2, 3, 4):
        row, column = places(2**levels, 2**levels, hilbert, levels)
        assert set(abs(np.diff(row)) + abs(np.diff(column))) == {1}
        row, column = places(2**levels, 2**levels, morton, levels)
        squares = np.stack([row // 2, column // 2], axis=1).reshape(-1, 4, 2)
        assert (squares == squares[:, :1]).all()
    row, column = places(9, 22, hilbert, 3)
    assert (row[:64] < 8).all()
    assert (column[:64] < 8).all()


@metile.inline
def doubled(place, LEVELS):  # type: ignore[no-untyped-def]
    """Broken: the last place is that of the first."""
    place = place - (place == 4**LEVELS - 1) * place
    return place % 2**LEVELS, place // 2**LEVELS


@metile.inline
def beyond(place, LEVELS):  # type: ignore[no-untyped-def]
    """Broken: one row too far."""
    return place % 2**LEVELS + 1, place // 2**LEVELS


def test_p1_a_broken_order_is_named() -> None:
    """With the first tile that is wrong; where no block is whole, nothing of it is used."""
    for walk, where in (
        (doubled, r"doubled with LEVELS=1 on 5 x 4 tiles: tile \(0, 0\) is taken by 2 programs"),
        (beyond, r"beyond with LEVELS=1 on 5 x 4 tiles: tile \(0, 0\) is taken by 0 programs"),
    ):
        with pytest.raises(metile.LaunchError, match=where):
            check_order(5, 4, walk, 1)
        check_order(5, 1, walk, 1)
    with pytest.raises(metile.LaunchError, match=r"program 1 takes tile \(2, 0\), outside"):
        check_order(2, 2, beyond, 1)


def test_nothing_has_an_order() -> None:
    for rows, columns in ((0, 0), (0, 5), (5, 0)):
        check_order(rows, columns, hilbert, 2)
