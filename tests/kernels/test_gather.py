"""`metile_kernels.gather`: rows bit for bit, and nothing read outside of a table (B1, F53)."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_kernels.gather import gather
from metile_mlx import emulator
from tests.support.public import UNSIGNED, bits, compilations, payload, same_bits
from tests.support.rows import WIDTHS

BACKENDS = ("cpu", "reference", pytest.param("emulator", marks=pytest.mark.emulator))
OTHERS = (mx.int8, mx.uint8, mx.int16, mx.uint16, mx.int64, mx.uint64)


def run(table: mx.array, ids: mx.array, **options: object) -> mx.array:
    size, width = table.shape
    made: mx.array = gather[ids.size](
        table, ids, metile.empty((ids.size, width), table.dtype), size, width, **options
    )
    return made


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i32", "u32", "bool"])
def test_b1_rows_bit_for_bit(backend: str, dtype: str) -> None:
    """NaN payloads too; numbers from the front, from the end, and twice."""
    table = payload(dtype, (5, 70))
    ids = mx.array([4, 0, 2, 2, -1, -5], mx.int32)
    assert same_bits(run(table, ids, BLOCK=64, backend=backend), table[ids])


@pytest.mark.parametrize("dtype", OTHERS)
def test_b1_dtypes_that_are_only_moved(dtype: mx.Dtype) -> None:
    table = mx.arange(60).reshape(3, 20).astype(dtype)
    ids = mx.array([2, 0], mx.int32)
    assert mx.array_equal(run(table, ids, backend="cpu"), table[ids])
    assert run(table, mx.array([3], mx.int32), backend="cpu").tolist() == [[0] * 20]


def test_b1_any_width_number_and_size_with_one_text() -> None:
    def check(size: int, width: int, number: int) -> None:
        table = payload("f16", (size, width), seed=width)
        ids = mx.random.randint(-size, size, (number,), key=mx.random.key(1))
        assert same_bits(run(table, ids, backend="cpu"), table[ids])

    check(3, 5, 2)
    with compilations() as found:
        for width in WIDTHS:
            check(3, width, 4)
        check(1000, 7, 1)
        check(1, 7, 1000)
    assert found == []


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["bf16", "i32"])
def test_f53_numbers_outside_of_the_table_read_nothing(backend: str, dtype: str) -> None:
    """Their rows are quiet NaN, of the same bits on every backend, or 0."""
    table = payload(dtype, (4, 33))
    ids = mx.array([4, -5, 2**31 - 1, -(2**31), 1], mx.int32)
    with emulator.checked(schedules=2):
        made = run(table, ids, BLOCK=32, backend=backend)
        mx.eval(made)
    nothing = {"f16": 0x7E00, "bf16": 0x7FC0, "f32": 0x7FC00000, "i32": 0}[dtype]
    kind = UNSIGNED[table.dtype.size][0]
    assert np.array_equal(bits(made)[:4], np.full((4, 33), nothing, kind))
    assert same_bits(made[4], table[1])


def test_k7_every_element_is_provably_stored() -> None:
    table, ids = mx.zeros((5, 70)), mx.zeros(3, mx.int32)
    dispatch = gather[3].prepare(table, ids, metile.empty((3, 70), mx.float32), 5, 70)
    (fact,) = dispatch.execution_report.coverage
    assert fact.proven
