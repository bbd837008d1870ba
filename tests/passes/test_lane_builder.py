"""What is built for one thread: only what is needed, with overflow excluded where it can be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metile_mlx.dtypes import bool_, f32, i32, u32, u64
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, CompareKind, element
from metile_mlx.ir.core import Func, Value, definitions
from metile_mlx.ir.dead_code import eliminate_dead_code
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.passes.lane_builder import LaneBuilder
from tests.support import simulate
from tests.support.arithmetic import NUMPY, Array

THREADS = 64
N = Value(ScalarType(i32), "n")
ADD, SUB, MUL = BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL


def values(b: LaneBuilder, value: Value, **scalars: int) -> Array:
    """What `value` is in every thread, by storing it."""
    assert isinstance(value.type, ScalarType)
    out = Value(PointerType(value.type.dtype, True), "out")
    b.emit(metal.Store(out, b.thread, value))
    func = Func("kernel", (N, out), b.finish(), threads=THREADS)
    arrays = {"out": np.zeros(THREADS, NUMPY[value.type.dtype])}
    found, _ = simulate.run(func, arrays, {"n": 0, **scalars}, (1,))
    return found["out"]


def operations(b: LaneBuilder, value: Value) -> list[str]:
    """Kinds of the operations `value` takes."""
    b.emit(metal.Store(Value(PointerType(element(value), True)), b.thread, value))
    func = eliminate_dead_code(Func("kernel", (N,), b.finish(), threads=THREADS))
    return [item.kind.value for item in func.body.ops if isinstance(item, metal.Binary)]


def test_an_operation_with_one_possible_result_is_that_constant() -> None:
    b = LaneBuilder(THREADS)
    high = b.with_number(BinaryKind.SHR, b.thread, 6)
    below = b.compare_number(CompareKind.LT, b.thread, THREADS)
    for value, number in ((high, 0), (below, 1)):
        assert b.number(value) == number
        item = definitions(Func("kernel", (), b.finish()))[value]
        assert isinstance(item, metal.Constant)
    assert str(below.type) == "bool", "a constant is uniform"


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (ADD, 0),
        (SUB, 0),
        (MUL, 1),
        (BinaryKind.SHL, 0),
        (BinaryKind.SHR, 0),
        (BinaryKind.OR, 0),
        (BinaryKind.XOR, 0),
        (BinaryKind.AND, -1),
    ],
)
def test_an_operation_that_changes_nothing_is_not_built(kind: BinaryKind, number: int) -> None:
    b = LaneBuilder(THREADS)
    assert b.with_number(kind, N, number) is N
    if kind not in (SUB, BinaryKind.SHL, BinaryKind.SHR):
        assert b.binary(kind, b.constant(number, i32), N) is N


def test_all_ones_of_u32_and_bool_change_nothing_under_and() -> None:
    b = LaneBuilder(THREADS)
    assert b.with_number(BinaryKind.AND, b.thread, 2**32 - 1) is b.thread
    mask = b.compare_number(CompareKind.LT, b.thread, 5)
    assert b.with_number(BinaryKind.AND, mask, True) is mask


def test_float_identities_are_left_alone() -> None:
    """-0.0 + 0.0 is 0.0, and a signalling NaN times 1 is quiet."""
    b = LaneBuilder(THREADS)
    x = Value(ScalarType(f32), "x")
    assert b.with_number(ADD, x, 0) is not x
    assert b.with_number(MUL, x, 1) is not x


def nowrap(b: LaneBuilder, value: Value) -> bool:
    item = definitions(Func("kernel", (), b.finish()))[value]
    assert isinstance(item, metal.Binary)
    return item.nowrap


def test_nowrap_says_that_ranges_exclude_overflow() -> None:
    b = LaneBuilder(THREADS)
    thread = b.cast(b.thread, i32)
    pid = b.add(metal.ProgramId(0))
    assert nowrap(b, b.with_number(MUL, thread, 2**25))
    assert not nowrap(b, b.with_number(MUL, thread, 2**26))
    assert not nowrap(b, b.binary(ADD, pid, thread))
    assert nowrap(b, b.binary(SUB, pid, thread))
    assert not nowrap(b, b.binary(ADD, N, thread))
    assert not nowrap(b, b.with_number(ADD, b.thread, 1)), "only signed arithmetic needs it"


def test_masks_join_without_what_is_always_true() -> None:
    b = LaneBuilder(THREADS)
    always, some = b.constant(True, bool_), b.compare_number(CompareKind.LT, b.thread, 5)
    assert b.both(None, None) is None
    assert b.both(always, None) is None
    assert b.both(always, always) is None
    assert b.both(always, some) is some
    assert b.both(some, always) is some
    never = b.both(some, b.constant(False, bool_))
    assert never is not None
    assert b.number(never) == 0


@given(
    st.lists(st.integers(0, 63), min_size=6, max_size=6),
    st.integers(0, 63),
)
def test_any_map_of_thread_bits_is_what_it_says(columns: list[int], constant: int) -> None:
    """Permutations, broadcasts and swizzles alike."""
    b = LaneBuilder(THREADS)
    found = values(b, b.thread_map(columns, constant))
    expected = AffineMap(tuple(columns), constant).apply(np.arange(THREADS))
    assert found.tolist() == expected.tolist()


@given(
    st.lists(st.one_of(st.integers(0, 2**33), st.integers(0, 9)), min_size=6, max_size=6),
    st.integers(0, 63),
)
def test_sums_over_thread_bits_are_exact_at_64_bits(coefficients: list[int], flip: int) -> None:
    b = LaneBuilder(THREADS)
    found = values(b, b.thread_sum(coefficients, flip, u64))
    for thread in range(THREADS):
        bits = thread ^ flip
        total = sum(c for k, c in enumerate(coefficients) if bits >> k & 1)
        assert found[thread] == total


def test_a_narrow_sum_is_computed_in_u32_and_widened_once() -> None:
    b = LaneBuilder(THREADS)
    value = b.thread_sum((8, 16, 32, 1, 2, 4), 0, u64)
    item = definitions(Func("kernel", (), b.finish()))[value]
    assert isinstance(item, metal.Cast)
    assert item.src.type == ScalarType(u32, uniform=False)
    assert operations(b, value) == ["and", "shl", "shr", "add"]


def test_constants_of_a_branch_stay_in_it() -> None:
    b = LaneBuilder(THREADS)
    child = b.child()
    with b.inside(child):
        inner = b.constant(12345, i32)
        assert b.constant(12345, i32) is inner
    assert b.constant(12345, i32) is not inner
