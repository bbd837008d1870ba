"""`metile_kernels.permutations`: bit for bit what MLX operations give (SPEC B1, C1, C6, L2)."""

from __future__ import annotations

from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_kernels.permutations import (
    FOURS,
    NEAR,
    bit_reversing,
    hadamard,
    hadamard_reference,
    rearranged,
    rearranged_reference,
    transposed,
    transposed_reference,
    transposing,
)
from tests.support import profile
from tests.support.public import DTYPES, compile_all, payload, same_bits

BLOCKS = (transposing(8, 8, 2), metile.ThreadLayout.grouped(128, 4))
TILE = (transposing(64, 64), metile.ThreadLayout.grouped(4096, 16))
REVERSAL = (bit_reversing(1024), metile.ThreadLayout.grouped(1024, 4))
REARRANGEMENTS = {
    "8x8 blocks": BLOCKS,
    "8x8 blocks, striped": (BLOCKS[0], metile.ThreadLayout.identity(128, 4)),
    "64x64 tile": TILE,
    "16x32 tile": (transposing(16, 32), metile.ThreadLayout.grouped(512, 8)),
    "bit reversal": REVERSAL,
    "bit reversal in one simdgroup": (bit_reversing(1024), metile.ThreadLayout.grouped(1024, 32)),
}
CASES = [
    *((name, dtype) for name in ("8x8 blocks", "bit reversal") for dtype in DTYPES),
    *(("64x64 tile", dtype) for dtype in ("f32", "bf16", "bool")),
    *((name, "f16") for name in REARRANGEMENTS if name not in ("8x8 blocks", "bit reversal")),
    *(("64x64 tile", dtype) for dtype in ("i32", "u32") if profile.name() == "full"),
]
Arguments = tuple[Any, ...]


def prepared(
    name: str, dtype: str, tiles: int, mask: int = 0, **where: str
) -> tuple[metile.Dispatch, Arguments]:
    order, layout = REARRANGEMENTS[name]
    x = payload(dtype, (tiles, layout.size), tiles)
    arguments = (x, metile.empty(x.shape, x.dtype), tiles)
    dispatch = rearranged[tiles,].prepare(
        *arguments, ORDER=order, LAYOUT=layout, XOR=mask, **(where or {"backend": "cpu"})
    )
    return dispatch, arguments


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    """All CPU texts of the rearrangements in one run of the compiler."""
    compile_all(prepared(name, dtype, 3)[0] for name, dtype in CASES)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_each_rearrangement_moves_every_bit_of_six_dtypes(backend: str) -> None:
    """NaNs with payloads, -0.0, subnormals and infinities are among the bits."""
    for name, dtype in CASES:
        order, _ = REARRANGEMENTS[name]
        dispatch, arguments = prepared(name, dtype, 3, backend=backend)
        expected = rearranged_reference(arguments[0], order)
        assert same_bits(dispatch(*arguments), expected), (name, dtype)


@pytest.mark.parametrize("tiles", [0, 1, 7])
def test_any_number_of_tiles_with_an_xor_and_a_view_as_input(tiles: int) -> None:
    dispatch, (x, out, _) = prepared("8x8 blocks", "f32", tiles, mask=37)
    wide = mx.repeat(x, 2, axis=0)[::2]
    found = dispatch(wide, out, tiles)
    assert same_bits(found, rearranged_reference(x, BLOCKS[0], 37))


def test_the_operations_of_mlx_are_the_rule_of_the_kernel() -> None:
    """Element by element, from the rule of SPEC L2."""
    order, mask = (3, 0, 4, 1, 2, 5), 19
    i = np.arange(64)
    j = sum((i >> other & 1) << bit for bit, other in enumerate(order)) ^ mask
    x = mx.random.normal((2, 64))
    assert same_bits(rearranged_reference(x, order, mask), mx.take(x, mx.array(j), axis=1))
    blocks = mx.random.normal((2, 2, 8, 4))
    turned = rearranged_reference(mx.reshape(blocks, (2, 64)), transposing(8, 4, 2))
    assert same_bits(transposed_reference(blocks[0]), mx.array(np.array(blocks[0]).swapaxes(1, 2)))
    assert same_bits(mx.reshape(turned, (2, 2, 4, 8)), mx.contiguous(mx.swapaxes(blocks, 2, 3)))
    bits = [int(f"{n:05b}"[::-1], 2) for n in range(32)]
    assert rearranged_reference(mx.arange(32)[None], bit_reversing(32)).tolist() == [bits]


MATRICES = [(1, 1), (1, 65), (64, 64), (8, 8), (70, 100), (63, 129), (0, 5)]


@pytest.mark.parametrize("shape", MATRICES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_matrices_of_any_extents_are_transposed(shape: tuple[int, int], backend: str) -> None:
    rows, columns = shape
    for dtype in ("f16", "bool"):
        x = payload(dtype, (2, rows, columns))
        out = metile.empty((2, columns, rows), x.dtype)
        grid = (metile.cdiv(columns, 64), metile.cdiv(rows, 64), 2)
        found = transposed[grid](
            x, out, 2, rows, columns, ORDER=transposing(64, 64), TILE=64, LAYOUT=TILE[1],
            backend=backend,
        )  # fmt: skip
        assert same_bits(found, transposed_reference(x))


LAYOUTS = {
    "four a thread": {"LAYOUT": FOURS},
    "two layouts": {"LAYOUT": FOURS, "SPLIT": 7, "SECOND": NEAR},
    "one simdgroup": {"LAYOUT": metile.ThreadLayout.grouped(256, 8)},
    "one a thread": {"LAYOUT": metile.ThreadLayout.identity(1024)},
}
NUMBERS = {name: dtype for name, dtype in DTYPES.items() if name != "bool"}


def transform(
    kind: str, dtype: str, **where: str
) -> tuple[metile.Dispatch, mx.array, metile.Empty]:
    rows, size = 3, LAYOUTS[kind]["LAYOUT"].size
    x = mx.random.normal((rows, size), key=mx.random.key(5)) * 100
    x = x.astype(mx.int32).astype(mx.uint32) if dtype == "u32" else x.astype(NUMBERS[dtype])
    out = metile.empty(x.shape, x.dtype)
    made = hadamard[rows].prepare(
        x, out, rows, BITS=size.bit_length() - 1, **where, **LAYOUTS[kind]
    )
    return made, x, out


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_hadamard_transform_rounds_as_mlx_does_in_every_layout(backend: str) -> None:
    cases = [("two layouts", "bf16"), ("four a thread", "f32")]
    cases += [("one simdgroup", "f16"), ("one a thread", "u32")]
    if profile.name() == "full":
        cases = [(kind, dtype) for kind in LAYOUTS for dtype in NUMBERS]
    if backend == "cpu":
        compile_all(transform(*case, backend=backend)[0] for case in cases)
    for case in cases:
        dispatch, x, out = transform(*case, backend=backend)
        assert same_bits(dispatch(x, out, 3), hadamard_reference(x)), case


def test_the_hadamard_transform_is_the_one_of_mlx() -> None:
    """float64 is the judge of both."""
    dispatch, x, out = transform("two layouts", "f32", backend="cpu")
    rows = np.array(x).astype(np.float64)
    signs = np.array([[(-1.0) ** (i & j).bit_count() for j in range(1024)] for i in range(1024)])
    exact = rows @ signs
    for found in (dispatch(x, out, 3), mx.hadamard_transform(x, scale=1)):
        assert np.abs(np.array(found) - exact).max() <= 1e-6 * np.abs(rows).sum(axis=1).max()


def facts(dispatch: metile.Dispatch) -> tuple[list[str], int, int, int, int]:
    """Mechanisms, barriers, scratch bytes, grouped loads and stores."""
    report = dispatch.execution_report
    conversions = report.layout_conversions
    return (
        [fact.mechanism for fact in conversions],
        sum(fact.barriers for fact in conversions),
        sum(each.bytes for each in report.allocations),
        len(report.grouped_loads),
        len(report.grouped_stores),
    )


def test_what_the_reports_say() -> None:
    """SPEC E: small blocks stay in a simdgroup, tiles cross once, partners cost what they must."""
    metal = partial(prepared, dtype="f32", tiles=3, target="metal")
    assert facts(metal("8x8 blocks")[0]) == (["shuffle"], 0, 0, 1, 1)
    assert facts(metal("64x64 tile")[0]) == (["threadgroup"], 2, 16384, 4, 4)
    assert facts(metal("bit reversal")[0]) == (["threadgroup"], 2, 4096, 1, 1)
    assert facts(metal("bit reversal in one simdgroup")[0]) == (["shuffle"], 0, 0, 8, 8)
    near, far = (
        transform(kind, "f32", target="metal")[0] for kind in ("two layouts", "four a thread")
    )
    stages = ["registers"] * 2 + ["shuffle"] * 5
    assert facts(far) == ([*stages, *["threadgroup"] * 3], 6, 4096, 1, 1)
    together = [*stages, "threadgroup", "registers", "registers", "shuffle"]
    assert facts(near)[:3] == (together, 2, 4096)
    alone = facts(transform("one simdgroup", "f32", target="metal")[0])
    assert alone[:3] == (["registers"] * 2 + ["shuffle"] * 5 + ["registers"], 0, 0)


def test_nothing_conflicts_in_the_banks_of_threadgroup_memory() -> None:
    """A transpose without its swizzle would take 32 turns for each access of a column."""
    for name in ("64x64 tile", "bit reversal"):
        (fact,) = prepared(name, "f32", 3, target="metal")[0].execution_report.layout_conversions
        assert fact.cost is not None
        assert (fact.cost.write_conflicts, fact.cost.read_conflicts) == (1, 1)
