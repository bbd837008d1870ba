"""Every operation on every dtype, as the MSL that MLX generates, in the emulator (SPEC K4, X1).

The same programs and the same bounds as for the compiled text (tests/emit/test_operations.py).
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx import dtypes, emulator
from metile_mlx.dtypes import DType, bf16, f16
from metile_mlx.runtime.cpu import mlx_dtypes
from tests.emit import operations as ops
from tests.emit.test_operations import KERNELS, SOURCES, arrays_of, check, dtype_of
from tests.support import simulate
from tests.support.arithmetic import Array
from tests.support.simulated_metal import to_mlx, to_numpy

pytestmark = pytest.mark.emulator


def run(name: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """The outputs of a kernel of PROGRAMS threadgroups, checked."""
    source = SOURCES[f"msl_{name}"]
    kinds = mlx_dtypes()
    kernel = emulator.metal_kernel(
        name=source.name,
        input_names=[argument.name for argument in source.inputs],
        output_names=[argument.name for argument in source.outputs],
        source=source.body,
        header=source.header,
        compile_options={"math_mode": "safe"},
    )
    with emulator.checked():
        made = kernel(
            inputs=[to_mlx(arrays[a.param], kinds[a.dtype]) for a in source.inputs],
            output_shapes=[(ops.SIZE,)] * len(source.outputs),
            output_dtypes=[kinds[a.dtype] for a in source.outputs],
            grid=(ops.PROGRAMS * source.threads, 1, 1),
            threadgroup=(source.threads, 1, 1),
        )
        mx.eval(*made)
    return {a.param: to_numpy(x) for a, x in zip(source.outputs, made, strict=True)}


@pytest.mark.parametrize("dtype", ops.ARITHMETIC, ids=str)
def test_operations_are_the_simulators(dtype: DType) -> None:
    """Sums, products, quotients and roots to the bit; functions within a few ulp."""
    func = KERNELS[f"operations_{dtype}"]
    arrays = arrays_of(func, ops.operands(dtype))
    expected, _ = simulate.run(func, arrays, {}, (ops.PROGRAMS,))
    got = run(f"operations_{dtype}", arrays)
    for output in expected:
        check(func, got, expected, output)


@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
def test_casts_convert_and_bitcasts_keep_bits(source: DType) -> None:
    """To nearest even, or truncated; only what fits an integer has a defined conversion."""
    func = KERNELS[f"casts_{source}"]
    arrays = arrays_of(func, ops.operands(source, seed=1))
    if source.is_float:
        fits = np.random.default_rng(2).integers(0, 120, ops.SIZE) + np.float32(0.5)
        within = fits.astype(np.float16 if source == f16 else np.float32)
        if source == bf16:
            within = np.asarray(within.view(np.uint32) >> 16, np.uint16)
        numbers = {**arrays, "x": within}
        expected, _ = simulate.run(func, numbers, {}, (ops.PROGRAMS,))
        got = run(f"casts_{source}", numbers)
        for output in expected:
            check(func, got, expected, output)
    expected, _ = simulate.run(func, arrays, {}, (ops.PROGRAMS,))
    got = run(f"casts_{source}", arrays)
    for output in expected:
        to_integer = source.is_float and dtype_of(func, output).is_integer
        if not to_integer or output.startswith("as_"):
            check(func, got, expected, output)
