"""From a kernel at Stage.TILE to what it computes: every pass and verifier, then the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from metile_mlx.compiler import lower
from metile_mlx.context import Context
from metile_mlx.dtypes import DType
from metile_mlx.ir.core import Func
from metile_mlx.target import METAL
from tests.support import simulate
from tests.support.arithmetic import NUMPY, Array


def context(index_bits: int = 32, masked: Sequence[str] = ()) -> Context:
    """A compilation for Metal with offsets of this width."""
    return Context(METAL, index_bits=index_bits, masked_outputs=frozenset(masked))


def execute(
    func: Func,
    arrays: Mapping[str, Array],
    scalars: Mapping[str, int | float | bool] | None = None,
    grid: Sequence[int] = (1,),
    ctx: Context | None = None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Compile and simulate; see `simulate.run` for what comes back."""
    return simulate.run(lower(func, ctx or context()), arrays, scalars or {}, grid)


def random_bits(dtype: DType, size: int, seed: int) -> Array:
    """Every bit at random: NaNs with payloads, infinities, -0.0 and subnormals among floats."""
    rng = np.random.default_rng(seed)
    if dtype.name == "bool":
        return rng.integers(0, 2, size).astype(bool)
    bits = rng.integers(0, 256, size * dtype.bytes, np.uint8).view(NUMPY[dtype])
    return bits


def same_bits(a: Array, b: Array) -> bool:
    """Bitwise equality, shape and dtype included."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
