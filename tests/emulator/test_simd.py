"""Operations across lanes, each against its definition on the values of all lanes."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx.errors import CompileError
from tests.emulator.support import check, launch

pytestmark = pytest.mark.emulator

LANES = np.arange(32)
VALUES = ((LANES * 37 + 11) % 101 - 40).astype(np.int32)
Expected = Callable[[np.ndarray], np.ndarray]


def running(
    values: np.ndarray, op: np.ufunc, start: int, width: int, inclusive: bool
) -> np.ndarray:
    parts = []
    for part in values.reshape(-1, width):
        scanned = op.accumulate(part)
        parts.append(scanned if inclusive else np.concatenate([[start], scanned[:-1]]))
    return np.concatenate(parts)


def whole(op: np.ufunc, width: int) -> Expected:
    return lambda v: np.repeat([op.reduce(part) for part in v.reshape(-1, width)], width)


def source(lanes: np.ndarray) -> Expected:
    return lambda v: v[lanes]


BASE = LANES & ~3
IN_QUAD = LANES & 3
CASES: dict[str, Expected] = {
    "simd_sum(v)": whole(np.add, 32),
    "simd_product(v & 3)": lambda v: whole(np.multiply, 32)(v & 3),
    "simd_min(v)": whole(np.minimum, 32),
    "simd_max(v)": whole(np.maximum, 32),
    "simd_and(v)": whole(np.bitwise_and, 32),
    "simd_or(v)": whole(np.bitwise_or, 32),
    "simd_xor(v)": whole(np.bitwise_xor, 32),
    "simd_prefix_inclusive_sum(v)": lambda v: running(v, np.add, 0, 32, True),
    "simd_prefix_exclusive_sum(v)": lambda v: running(v, np.add, 0, 32, False),
    "simd_prefix_inclusive_product(v | 1)": lambda v: running(v | 1, np.multiply, 1, 32, True),
    "simd_prefix_exclusive_product(v | 1)": lambda v: running(v | 1, np.multiply, 1, 32, False),
    "simd_shuffle(v, (lane * 5 + 3) % 32)": source((LANES * 5 + 3) % 32),
    "simd_broadcast(v, 7)": source(np.full(32, 7)),
    "simd_broadcast_first(v)": source(np.zeros(32, int)),
    "simd_shuffle_xor(v, 9)": source(LANES ^ 9),
    "simd_shuffle_down(v, 5)": source(np.where(LANES + 5 < 32, LANES + 5, LANES)),
    "simd_shuffle_up(v, 5)": source(np.where(LANES >= 5, LANES - 5, LANES)),
    "simd_shuffle_rotate_down(v, 5)": source((LANES + 5) % 32),
    "simd_shuffle_rotate_up(v, 5)": source((LANES - 5) % 32),
    "simd_shuffle_and_fill_down(v, v + 1000, 5)": lambda v: np.where(
        LANES + 5 < 32, v[(LANES + 5) % 32], v[(LANES + 5) % 32] + 1000
    ),
    "simd_shuffle_and_fill_up(v, v + 1000, 5)": lambda v: np.where(
        LANES >= 5, v[(LANES - 5) % 32], v[(LANES - 5) % 32] + 1000
    ),
    "simd_shuffle_and_fill_down(v, v + 1000, 3, 8)": lambda v: (
        np.where(LANES % 8 + 3 < 8, 0, 1000) + v[LANES // 8 * 8 + (LANES % 8 + 3) % 8]
    ),
    "quad_sum(v)": whole(np.add, 4),
    "quad_max(v)": whole(np.maximum, 4),
    "quad_xor(v)": whole(np.bitwise_xor, 4),
    "quad_prefix_inclusive_sum(v)": lambda v: running(v, np.add, 0, 4, True),
    "quad_prefix_exclusive_sum(v)": lambda v: running(v, np.add, 0, 4, False),
    "quad_shuffle(v, 3 - lane % 4)": source(BASE + 3 - IN_QUAD),
    "quad_broadcast(v, 2)": source(BASE + 2),
    "quad_shuffle_xor(v, 1)": source(LANES ^ 1),
    "quad_shuffle_down(v, 1)": source(np.where(IN_QUAD < 3, LANES + 1, LANES)),
    "quad_shuffle_up(v, 1)": source(np.where(IN_QUAD > 0, LANES - 1, LANES)),
    "quad_shuffle_rotate_down(v, 1)": source(BASE + (IN_QUAD + 1) % 4),
    "quad_shuffle_rotate_up(v, 1)": source(BASE + (IN_QUAD - 1) % 4),
    "int((simd_vote::vote_t)simd_ballot(v > 0))": lambda v: np.full(
        32, np.uint32(np.sum((v > 0).astype(np.uint64) << LANES.astype(np.uint64))).view(np.int32)
    ),
    "int(simd_all(v > -100)) + 2 * int(simd_all(v > 0))": lambda v: np.full(32, 1),
    "int(simd_any(v > 0)) + 2 * int(simd_any(v > 100))": lambda v: np.full(32, 1),
    "int(simd_is_first())": lambda v: (LANES == 0).astype(np.int32),
    "int(simd_active_threads_mask().all())": lambda v: np.full(32, 1),
    "int((quad_vote::vote_t)quad_ballot(v > 0))": lambda v: np.repeat(
        [int(np.sum((part > 0) << np.arange(4))) for part in v.reshape(-1, 4)], 4
    ),
    "int(quad_all(v > 0)) + 2 * int(quad_any(v > 0))": lambda v: np.repeat(
        [int((part > 0).all()) + 2 * int((part > 0).any()) for part in v.reshape(-1, 4)], 4
    ),
    "simd_shuffle(int4(v, v + 1, v + 2, v + 3), (lane + 1) % 32).z": lambda v: np.roll(v, -1) + 2,
    "int(simd_sum(short(v)))": whole(np.add, 32),
    "int(simd_max(half(v)))": whole(np.maximum, 32),
    "int(float(simd_shuffle_xor(bfloat(v), 1)))": source(LANES ^ 1),
    # MLX's own overloads for what Metal's lack.
    "int(simd_shuffle(long(v) << 32, 31 - lane) >> 32)": lambda v: v[::-1],
    "int(simd_shuffle_down(v > 0, 1))": lambda v: (v > 0)[np.minimum(LANES + 1, 31)],
    "int(simd_shuffle_up(complex64_t(v, 2 * v), 1).imag)": lambda v: (
        2 * v[np.maximum(LANES - 1, 0)]
    ),
}


def test_every_operation_gives_what_its_definition_says() -> None:
    lines = [f"y[{row * 32} + lane] = {text};" for row, text in enumerate(CASES)]
    body = "uint lane = thread_index_in_simdgroup;\nint v = x[lane];\n" + "\n".join(lines)
    report, y = check(body, {"x": mx.array(VALUES)}, (len(CASES), 32), threads=32, dtype=mx.int32)
    assert not report, str(report)
    rows = np.array(y)
    for row, (text, expect) in zip(rows, CASES.items(), strict=True):
        assert np.array_equal(row, expect(VALUES).astype(np.int32)), text


def test_float_sums_differ_by_order_only() -> None:
    """Ascending, butterfly and random orders of a sum are all near the exact one."""
    x = mx.array(np.random.default_rng(0).normal(size=32).astype(np.float32))
    body = "y[thread_index_in_simdgroup] = simd_sum(x[thread_index_in_simdgroup]);"
    report, y = check(body, {"x": x}, (32,), threads=32, schedules=6)
    assert not report, str(report)
    assert np.allclose(np.array(y), np.array(x, dtype=np.float64).sum(), atol=1e-5)


# Sums of 1 that a 1e30 swallows until a -1e30 comes: how many are left depends on the order.
ORDERS = {
    # Values of lanes 0 to 3, and the first order that differs: 1 is butterfly, 2 random.
    "butterfly": ((1e30, 1, -1e30, 1), 1),
    "random": ((1e30, -1e30, 1, 1), 2),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("operation", ["simd_sum", "quad_sum"])
def test_reductions_run_in_ascending_butterfly_and_random_order(operation: str, order: str) -> None:
    start, first = ORDERS[order]
    width = 32 if operation == "simd_sum" else 4
    x = np.ones(32, np.float32)
    x.reshape(-1, width)[:, :4] = start
    body = f"uint lane = thread_index_in_simdgroup;\ny[lane] = {operation}(x[lane]);"
    for schedules in (first, first + 1):
        report, y = check(body, {"x": mx.array(x)}, (32,), threads=32, schedules=schedules)
        ascending = np.float32(0)
        for value in x[:width]:
            ascending = np.float32(ascending + value)
        assert np.array_equal(np.array(y), np.full(32, ascending))
        shown = [str(finding) for finding in report.findings]
        found = [f"planted: y[0] differs in order {first} of the threads"]
        assert shown == (found if schedules > first else [])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_that_only_round_otherwise_are_no_finding(dtype: str) -> None:
    x = mx.array(np.random.default_rng(2).normal(size=64)).astype(getattr(mx, dtype))
    body = "uint i = thread_position_in_grid.x;\ny[i] = simd_sum(x[i]) * x[i];"
    report, _ = check(body, {"x": x}, (64,), schedules=9, dtype=x.dtype)
    assert not report, str(report)


def test_values_of_lanes_that_are_not_there_are_poison() -> None:
    """Of an inactive lane and of one that the grid lacks, checked or not; never a lane's value."""
    body = (
        "uint i = thread_position_in_grid.x, lane = thread_index_in_simdgroup;\ny[i] = 0;\n"
        "if (lane < 8) y[i] = simd_shuffle(x[i], 8 + lane) + simd_broadcast(x[i], 31);"
    )
    poison = np.array([0x7FC57FC5], np.uint32).view(np.float32)
    for inputs in (np.ones(40, np.float32), np.arange(40, dtype=np.int32)):
        wanted = np.full(8, poison[0] if inputs.dtype == np.float32 else 2 * 0x7FC57FC5 - 2**32)
        arguments = (body, {"x": mx.array(inputs)}, (40,))
        options = {"threads": 40, "dtype": mx.array(inputs).dtype}
        for y in (check(*arguments, **options)[1], launch(*arguments, **options)):
            got = np.array(y)
            for lanes in (got[:8], got[32:]):
                assert np.array_equal(lanes, wanted, equal_nan=inputs.dtype == np.float32)
            assert not got[8:32].any()


@pytest.mark.parametrize(
    "text",
    [
        "metal::simd_shuffle(x[0] > 0, 1)",
        "metal::simd_shuffle(long(x[0]), 1)",
        "metal::simd_sum(ulong(x[0]))",
        "metal::simd_and(float(x[0]))",
    ],
)
def test_overloads_that_metal_lacks_are_refused(text: str) -> None:
    with pytest.raises(CompileError):
        launch(f"y[0] = {text};", {"x": mx.array(VALUES)}, (1,), dtype=mx.int32)


def matrix(body: str, shape: tuple[int, ...], **inputs: np.ndarray) -> np.ndarray:
    report, y = check(
        body, {name: mx.array(value) for name, value in inputs.items()}, shape, threads=32
    )
    assert not report, str(report)
    return np.array(y)


def test_matrix_product_with_transposed_and_shifted_loads() -> None:
    rng = np.random.default_rng(1)
    a = rng.integers(-8, 8, (16, 24)).astype(np.float32)
    b = rng.integers(-8, 8, (8, 8)).astype(np.float32)
    body = (
        "simdgroup_float8x8 ma, mb, mc = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);\n"
        "simdgroup_load(ma, a, 24, ulong2(16, 8));\nsimdgroup_load(mb, b, 8, ulong2(0), true);\n"
        "simdgroup_multiply_accumulate(mc, ma, mb, mc);\nsimdgroup_store(mc, y, 8);"
    )
    assert np.array_equal(matrix(body, (8, 8), a=a, b=b), a[8:16, 16:24] @ b.T + 1)


def test_matrix_elements_of_a_lane() -> None:
    """The published order: rows of four lanes' pairs, quadrant by quadrant."""
    body = (
        "simdgroup_float8x8 m;\nsimdgroup_load(m, x, 8);\nuint lane = thread_index_in_simdgroup;\n"
        "y[2 * lane] = m.thread_elements()[0];\ny[2 * lane + 1] = m.thread_elements()[1];"
    )
    y = matrix(body, (32, 2), x=np.arange(64, dtype=np.float32))
    quad = LANES // 4
    row = (quad & 4) + LANES // 2 % 4
    column = (quad & 2) * 2 + LANES % 2 * 2
    assert np.array_equal(y[:, 0], 8 * row + column)
    assert np.array_equal(y[:, 1], 8 * row + column + 1)


def test_half_matrices_accumulate_in_float() -> None:
    a = np.full((8, 8), 1 / 3, np.float16)
    body = (
        "simdgroup_half8x8 m;\nsimdgroup_load(m, x, 8);\nsimdgroup_float8x8 c;\n"
        "simdgroup_multiply(c, m, m);\nsimdgroup_store(c, y, 8);"
    )
    assert np.allclose(
        matrix(body, (8, 8), x=a), a.astype(np.float32) @ a.astype(np.float32), rtol=1e-6
    )
