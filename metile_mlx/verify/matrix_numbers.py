"""What products mean in numbers: sums that go up in K, whoever multiplies (see numbers.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metile_mlx.dtypes import f32
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.layout.fragments import EDGE
from metile_mlx.target import SIMD_WIDTH
from metile_mlx.verify import numbers
from metile_mlx.verify.numbers import Numbers

_LANE = np.arange(SIMD_WIDTH)
LANE_ROW = _LANE // 16 * 4 + _LANE // 2 % 4
"""The row of an 8 by 8 matrix of which each lane holds two neighbours."""
LANE_COLUMN = _LANE // 8 % 2 * 4 + _LANE % 2 * 2
"""The column of the first of these (SPEC K6; layout/fragments.py names the source)."""


def coordinates(shape: tuple[int, ...], axis: int) -> Numbers:
    """Where each element of a tile stands along an axis."""
    found: Numbers = np.indices(shape)[axis].reshape(1, -1)
    return found


def product(a: Numbers, b: Numbers, acc: Numbers, shape: tuple[int, int, int]) -> Numbers:
    """acc + a @ b of whole tiles, row by row; one row of numbers per trial."""
    rows, columns, depth = shape
    left, right = a.reshape(-1, rows, depth, 1), b.reshape(-1, depth, 1, columns)
    total = acc.reshape(-1, rows, columns)
    for k in range(depth):
        total = _step(left[:, :, k], right[:, k], total)
    return total.reshape(-1, rows * columns)


def fragments(a: Numbers, b: Numbers, acc: Numbers) -> Sequence[Numbers]:
    """Products of 8 by 8 matrices of each simdgroup, in trials x 2 values x threads.

    What Metal's simdgroup_matrix does, by LANE_ROW and LANE_COLUMN.
    """

    def matrices(held: Numbers) -> Numbers:
        lanes = held.reshape(held.shape[0], 2, -1, SIMD_WIDTH)
        found = np.empty((held.shape[0], lanes.shape[2], EDGE, EDGE), held.dtype)
        for at in range(2):
            found[:, :, LANE_ROW, LANE_COLUMN + at] = lanes[:, at]
        return found

    left, right, total = (matrices(held) for held in (a, b, acc))
    for k in range(EDGE):
        total = _step(left[..., k : k + 1], right[..., k : k + 1, :], total)
    return [total[:, :, LANE_ROW, LANE_COLUMN + at].reshape(len(total), -1) for at in range(2)]


def _step(left: Numbers, right: Numbers, total: Numbers) -> Numbers:
    times = numbers.binary(BinaryKind.MUL, left, right, f32)
    return numbers.binary(BinaryKind.ADD, total, times, f32)
