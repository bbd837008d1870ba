"""The arms of the staging benchmark: one product of matrices, by schedule, revision, and MLX."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np

from benchmarks.compiler.manifest import Effort
from benchmarks.harness import Arm
from benchmarks.optional import read_yaml

# MLX would multiply f32 in TF32 on CUDA, which has ten bits of a significand. Read at first use.
os.environ.setdefault("MLX_ENABLE_TF32", "0")

PATH = Path(__file__).with_name("staged_gemm.yaml")
DTYPES = {"f16": mx.float16, "bf16": mx.bfloat16, "f32": mx.float32}
# Units in the last place of the result's dtype, and of f32 for each product that is added.
_ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24}
_ADDED = 2.0**-24


@dataclass(frozen=True)
class Case:
    """A product of an M x K and a K x N matrix."""

    dtype: str
    rows: int
    columns: int
    depth: int

    @property
    def name(self) -> str:
        return f"{self.dtype} {self.rows}x{self.columns}x{self.depth}"

    @property
    def operations(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.columns * self.depth


@dataclass(frozen=True)
class Plan:
    """What is measured, in which tiles, and how long."""

    seed: int
    cases: tuple[Case, ...]
    tile: tuple[int, int, int]
    effort: Effort


def load(quick: bool = False, path: Path = PATH) -> Plan:
    """Read the manifest.

    Raises:
        ValueError: a dtype that isn't measured here, or an extent below 1.
    """
    content = read_yaml(path)
    mode = content["quick" if quick else "full"]
    cases = tuple(
        Case(dtype, *(extent // mode["divisor"] for extent in shape))
        for dtype in content["dtypes"]
        for shape in content["shapes"]
    )
    for case in cases:
        if case.dtype not in DTYPES or min(case.rows, case.columns, case.depth) < 1:
            raise ValueError(f"{case.name}: dtypes are {', '.join(DTYPES)}, extents at least 1")
    effort = Effort(int(mode["rounds"]), int(mode["warmup"]), float(mode["seconds_per_run"]))
    return Plan(int(content["seed"]), cases, tuple(content["tile"]), effort)


def product(metile: ModuleType) -> Any:
    """The kernel, in the language of a revision of the package."""

    @metile.kernel
    def staged_gemm(
        left,
        right,
        result,
        rows,
        columns,
        depth,
        BM: metile.constexpr,
        BN: metile.constexpr,
        BK: metile.constexpr,
    ):
        a = metile.tensor(left, shape=(rows, depth))
        b = metile.tensor(right, shape=(depth, columns))
        c = metile.tensor(result, shape=(rows, columns), access="write")
        row = metile.program_id(1) * BM
        column = metile.program_id(0) * BN
        total = metile.zeros((BM, BN), metile.f32)
        for k in metile.tile_range(0, depth, BK):
            x = metile.tile_load(a, (row, k), (BM, BK))
            y = metile.tile_load(b, (k, column), (BK, BN))
            total = metile.dot(x, y, total)
        metile.tile_store(c, (row, column), total)

    return staged_gemm


@dataclass(frozen=True)
class Operands:
    """The matrices of a case, what their product is, and how far a result may be from it."""

    case: Case
    left: mx.array
    right: mx.array
    expected: np.ndarray[Any, Any]
    tolerance: np.ndarray[Any, Any]


def operands(case: Case, seed: int) -> Operands:
    """Standard normal matrices.

    A result is right within half a unit of its dtype, and K units of f32 of what is added up:
    |error| <= rounding * |C| + K * 2^-24 * (|A| @ |B|), both in f64.
    """
    rng = np.random.default_rng(seed)
    made = [
        rng.standard_normal(shape)
        for shape in ((case.rows, case.depth), (case.depth, case.columns))
    ]
    left, right = (
        mx.array(values.astype(np.float32)).astype(DTYPES[case.dtype]) for values in made
    )
    a, b = (np.array(value.astype(mx.float32)).astype(np.float64) for value in (left, right))
    expected = a @ b
    added = case.depth * _ADDED * (np.abs(a) @ np.abs(b))
    return Operands(case, left, right, expected, _ROUNDING[case.dtype] * np.abs(expected) + added)


def dispatch(
    metile: ModuleType, given: Operands, tile: tuple[int, int, int], **schedule: Any
) -> Any:
    """The kernel compiled for a case under `metile.Schedule(**schedule)`."""
    case, (rows, columns, depth) = given.case, tile
    grid = (-(-case.columns // columns), -(-case.rows // rows))
    return product(metile)[grid].prepare(
        given.left,
        given.right,
        metile.empty((case.rows, case.columns), DTYPES[case.dtype]),
        case.rows,
        case.columns,
        case.depth,
        BM=rows,
        BN=columns,
        BK=depth,
        schedule=metile.Schedule(**schedule),
    )


def launcher(metile: ModuleType, found: Any, given: Operands) -> Callable[[], mx.array]:
    """One launch of a dispatch."""
    case = given.case
    output = metile.empty((case.rows, case.columns), DTYPES[case.dtype])
    extents = (case.rows, case.columns, case.depth)
    return lambda: found(given.left, given.right, output, *extents)


def arm(name: str, launch: Callable[[], mx.array], repeats: int) -> Arm:
    """One run launches `repeats` times and waits for all results."""

    def run() -> list[mx.array]:
        outputs = [launch() for _ in range(repeats)]
        mx.eval(outputs)
        return outputs

    return Arm(name, run, repeats)


def checker(given: Operands) -> Callable[[Arm, Any], str | None]:
    """A check that every result of a run is the product, within the stated tolerance."""

    def check(arm: Arm, results: Any) -> str | None:
        if len(results) != arm.repeats:
            return f"{len(results)} results, expected {arm.repeats}"
        for result in results:
            if result.shape != given.expected.shape or result.dtype != DTYPES[given.case.dtype]:
                return f"{given.case.name}: a result is {result.shape} {result.dtype}"
            found = np.array(result.astype(mx.float32)).astype(np.float64)
            error = np.abs(found - given.expected)
            wrong = ~(error <= given.tolerance)
            if wrong.any():
                first = np.unravel_index(int(wrong.argmax()), wrong.shape)
                return (
                    f"{given.case.name}: {int(wrong.sum())} of {wrong.size} elements are off, the "
                    f"first at {tuple(map(int, first))} by {error[first]:.3g} where "
                    f"{given.tolerance[first]:.3g} is allowed"
                )
        return None

    return check
