"""The arms of the ownership benchmark: one batched transpose, three ways to do it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from benchmarks.compiler.manifest import Case
from benchmarks.harness import Arm

OWNERSHIP, SCATTER, MLX = "ownership", "scatter", "mlx"
# Memory that the results of one run may hold together.
MOST_BYTES = 32 * 2**20

_DTYPES = {"f16": mx.float16, "f32": mx.float32}
_BITS = {16: mx.uint16, 32: mx.uint32}
_NUMPY_BITS = {16: np.uint16, 32: np.uint32}
# -0.0, infinities, a quiet and a signalling NaN with payloads.
_SPECIALS = {
    16: (0x8000, 0x0000, 0x7C00, 0xFC00, 0x7E01, 0x7D55),
    32: (0x80000000, 0, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7FAAAAAA),
}


@metile.kernel
def transpose_by_ownership(
    source,
    destination,
    batches,
    ROWS: metile.constexpr,
    COLUMNS: metile.constexpr,
    OUTPUT_LAYOUT: metile.constexpr,
):
    inputs = metile.tensor(source, shape=(batches, ROWS, COLUMNS), access="read")
    outputs = metile.tensor(destination, shape=(batches, COLUMNS, ROWS), access="write")
    batch = metile.program_id(0)
    positions = metile.arange(0, ROWS * COLUMNS)
    values = inputs.load((batch, positions // COLUMNS, positions % COLUMNS))
    converted = metile.convert_layout(values, OUTPUT_LAYOUT)
    owned = metile.arange(0, ROWS * COLUMNS, layout=OUTPUT_LAYOUT)
    outputs.store((batch, owned % COLUMNS, owned // COLUMNS), converted)


@metile.kernel
def transpose_by_scatter(
    source, destination, batches, ROWS: metile.constexpr, COLUMNS: metile.constexpr
):
    inputs = metile.tensor(source, shape=(batches, ROWS, COLUMNS), access="read")
    outputs = metile.tensor(destination, shape=(batches, COLUMNS, ROWS), access="write")
    batch = metile.program_id(0)
    positions = metile.arange(0, ROWS * COLUMNS)
    values = inputs.load((batch, positions // COLUMNS, positions % COLUMNS))
    outputs.store((batch, positions % COLUMNS, positions // COLUMNS), values)


def transposing_layout(rows: int, columns: int) -> metile.ThreadLayout:
    """The layout in which thread p owns the element stored at p of the transposed tile."""
    low, high = rows.bit_length() - 1, columns.bit_length() - 1
    return metile.ThreadLayout((*range(low, low + high), *range(low)))


def source_bits(case: Case, seed: int) -> np.ndarray[Any, Any]:
    """Random bit patterns, NaNs of every payload among them, and each special value in each tile.

    Returns:
        Unsigned integers of the dtype's width, shape (batches, rows, columns).
    """
    rng = np.random.default_rng(seed)
    dtype = _NUMPY_BITS[case.bits]
    bits = rng.integers(0, 2**case.bits, case.elements, dtype=dtype)
    tiles = bits.reshape(case.batches, case.rows * case.columns)
    specials = _SPECIALS[case.bits]
    places = rng.permutation(case.rows * case.columns)[: len(specials)]
    tiles[:, places] = np.array(specials, dtype=dtype)
    return tiles.reshape(case.batches, case.rows, case.columns)


def arms(case: Case, source: mx.array, repeats: int, names: Sequence[str]) -> list[Arm]:
    """The arms of a case; one run launches `repeats` times and waits for all results."""
    shape = (case.batches, case.columns, case.rows)
    output = metile.empty(shape, _DTYPES[case.dtype])
    grid = (case.batches,)
    tile = {"ROWS": case.rows, "COLUMNS": case.columns}
    made: dict[str, Callable[[], mx.array]] = {
        MLX: lambda: mx.contiguous(mx.transpose(source, (0, 2, 1)))
    }
    if OWNERSHIP in names:
        layout = transposing_layout(case.rows, case.columns)
        by_ownership = transpose_by_ownership[grid].prepare(
            source, output, case.batches, **tile, OUTPUT_LAYOUT=layout
        )
        made[OWNERSHIP] = lambda: by_ownership(source, output, case.batches)
    if SCATTER in names:
        by_scatter = transpose_by_scatter[grid].prepare(source, output, case.batches, **tile)
        made[SCATTER] = lambda: by_scatter(source, output, case.batches)
    return [Arm(name, _run(made[name], repeats), repeats) for name in names]


def _run(launch: Callable[[], mx.array], repeats: int) -> Callable[[], list[mx.array]]:
    def run() -> list[mx.array]:
        outputs = [launch() for _ in range(repeats)]
        mx.eval(outputs)
        return outputs

    return run


def checker(case: Case, bits: np.ndarray[Any, Any]) -> Callable[[Arm, Any], str | None]:
    """A check that every result of a run is the transpose, bit for bit."""
    expected = np.ascontiguousarray(bits.transpose(0, 2, 1))

    def check(arm: Arm, results: Any) -> str | None:
        if len(results) != arm.repeats:
            return f"{len(results)} results, expected {arm.repeats}"
        for result in results:
            if result.shape != expected.shape or result.dtype != _DTYPES[case.dtype]:
                return f"{case.name}: a result is {result.shape} {result.dtype}"
            wrong = np.asarray(result.view(_BITS[case.bits])) != expected
            if wrong.any():
                first = np.unravel_index(int(wrong.argmax()), wrong.shape)
                return (
                    f"{case.name}: {int(wrong.sum())} of {wrong.size} elements differ in their "
                    f"bits, the first at {tuple(int(i) for i in first)}"
                )
        return None

    return check


def as_array(case: Case, bits: np.ndarray[Any, Any]) -> mx.array:
    """The bit patterns as an evaluated array of the case's dtype."""
    source = mx.array(bits).view(_DTYPES[case.dtype])
    mx.eval(source)
    return source
