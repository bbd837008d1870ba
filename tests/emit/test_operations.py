"""Every operation on every dtype, as compiled C++ and as MSL run thread by thread (SPEC K4, X4).

The meaning is that of the simulator. Sums, products, quotients, roots, comparisons and conversions
are exact to the bit on all dtypes; functions are within a few units in the last place.
"""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx import dtypes
from metile_mlx.dtypes import DType, bf16, bool_, f16, f32
from metile_mlx.emit.cpp import emit_cpp
from metile_mlx.emit.msl import emit_msl
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir.arith import FLOAT_UNARY, BinaryKind, UnaryKind
from metile_mlx.ir.core import Func
from metile_mlx.ir.types import PointerType
from tests.emit import operations as ops
from tests.emit.compiled import COMPILERS, Library, build
from tests.emit.kernels import cpu_context, metal_context
from tests.support import simulate
from tests.support.arithmetic import NUMPY, Array, from_bf16

EXACT = {UnaryKind.SQRT, UnaryKind.FLOOR, UnaryKind.CEIL}
INEXACT = {kind.value for kind in FLOAT_UNARY - EXACT} | {BinaryKind.POW.value}
ULPS = {f32: 4, f16: 1, bf16: 1}

KERNELS: dict[str, Func] = {
    **{f"operations_{dtype}": ops.operations(dtype) for dtype in ops.ARITHMETIC},
    **{f"casts_{dtype}": ops.casts(dtype) for dtype in dtypes.ALL},
}
SOURCES: dict[str, KernelSource] = {
    **{f"cpp_{name}": emit_cpp(func, cpu_context()) for name, func in KERNELS.items()},
    **{f"msl_{name}": emit_msl(func, metal_context()) for name, func in KERNELS.items()},
}


@pytest.fixture(scope="module", params=COMPILERS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder: Path = tmp_path_factory.mktemp(request.param.replace("+", "x"))
    return build(SOURCES, request.param, folder)


def arrays_of(func: Func, given: dict[str, Array]) -> dict[str, Array]:
    made = dict(given)
    for param in func.params:
        assert isinstance(param.type, PointerType)
        if param.type.writable:
            made[param.name] = np.zeros(ops.SIZE, NUMPY[param.type.dtype])
    return made


def dtype_of(func: Func, output: str) -> DType:
    (found,) = (p.type.dtype for p in func.params if p.name == output)  # type: ignore[union-attr]
    return found  # type: ignore[no-any-return]


def distance(a: Array, b: Array, dtype: DType) -> Array:
    """Units in the last place between floats; 0 between NaNs, many between a NaN and a number."""
    bits = {16: np.uint16, 32: np.uint32}[dtype.bits]
    sign = 1 << (dtype.bits - 1)

    def ordered(x: Array) -> Array:
        word = x.view(bits).astype(np.int64)
        return np.where(word & sign, sign - word, word)

    nan = [np.isnan(from_bf16(x) if dtype == bf16 else x) for x in (a, b)]
    apart = np.abs(ordered(a) - ordered(b))
    return np.where(nan[0] & nan[1], 0, np.where(nan[0] | nan[1], 1 << 40, apart))


def check(func: Func, got: dict[str, Array], expected: dict[str, Array], name: str) -> None:
    dtype = dtype_of(func, name)
    operation = name.split("_of_")[0]
    if not dtype.is_float or name.startswith("as_"):
        assert np.array_equal(got[name].view(np.uint8), expected[name].view(np.uint8)), name
        return
    apart = distance(got[name], expected[name], dtype)
    allowed = ULPS[dtype] if operation in INEXACT else 0
    if operation in INEXACT and dtype != f16:
        # NumPy's sigmoid is 0 below the normal numbers.
        tiny = [
            np.abs(from_bf16(x) if dtype == bf16 else x) < 1.2e-38
            for x in (got[name], expected[name])
        ]
        apart = np.where(tiny[0] & tiny[1], 0, apart)
    if operation in ("minimum", "maximum"):
        # Of 0.0 and -0.0 either is the minimum to NumPy; MLX's choice has a test of its own.
        apart = np.where(expected[name].astype(bool), apart, 0)
    worst = int(apart.argmax())
    assert apart[worst] <= allowed, (
        f"{name}[{worst}]: {got[name][worst]} for {expected[name][worst]}, {apart[worst]} ulp"
    )


@pytest.mark.parametrize("language", ["cpp", "msl"])
@pytest.mark.parametrize("dtype", ops.ARITHMETIC, ids=str)
def test_operations_are_the_simulators(library: Library, language: str, dtype: DType) -> None:
    """K4: each f16 and bf16 operation rounds to its dtype; integers wrap; NaN compares as in
    IEEE."""
    name = f"operations_{dtype}"
    arrays = arrays_of(KERNELS[name], ops.operands(dtype))
    expected, _ = simulate.run(KERNELS[name], arrays, {}, (ops.PROGRAMS,))
    got = library.run(f"{language}_{name}", arrays, {}, (ops.PROGRAMS,))
    for output in expected:
        check(KERNELS[name], got, expected, output)


@pytest.mark.parametrize("language", ["cpp", "msl"])
@pytest.mark.parametrize("source", dtypes.ALL, ids=str)
def test_casts_convert_and_bitcasts_keep_bits(
    library: Library, language: str, source: DType
) -> None:
    """Conversions are to nearest even, or truncate; signalling NaNs pass a bitcast unchanged."""
    name = f"casts_{source}"
    arrays = arrays_of(KERNELS[name], ops.operands(source, seed=1))
    if source.is_float:
        # What does not fit an integer has no defined conversion.
        fits = np.random.default_rng(2).integers(0, 120, ops.SIZE) + np.float32(0.5)
        within = {"x": fits.astype(np.float16) if source == f16 else fits.astype(np.float32)}
        if source == bf16:
            within["x"] = np.asarray(within["x"].view(np.uint32) >> 16, np.uint16)
        run = simulate.run(KERNELS[name], {**arrays, **within}, {}, (ops.PROGRAMS,))[0]
        got = library.run(f"{language}_{name}", {**arrays, **within}, {}, (ops.PROGRAMS,))
        for output in run:
            check(KERNELS[name], got, run, output)
    expected, _ = simulate.run(KERNELS[name], arrays, {}, (ops.PROGRAMS,))
    got = library.run(f"{language}_{name}", arrays, {}, (ops.PROGRAMS,))
    for output in expected:
        to_integer = source.is_float and dtype_of(KERNELS[name], output).is_integer
        if not to_integer or output.startswith("as_"):
            check(KERNELS[name], got, expected, output)


@pytest.mark.parametrize("language", ["cpp", "msl"])
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_arithmetic_is_mlxs(library: Library, language: str, dtype: DType) -> None:
    """K4: bit for bit what MLX computes with its own f16 and bf16, -0.0 and NaN included."""
    name = f"operations_{dtype}"
    given = ops.operands(dtype, seed=3)
    arrays = arrays_of(KERNELS[name], given)
    got = library.run(f"{language}_{name}", arrays, {}, (ops.PROGRAMS,))
    kind = {f16: mx.float16, bf16: mx.bfloat16, f32: mx.float32}[dtype]
    with mx.stream(mx.cpu):
        x, y = (mx.array(given[k].view(f"u{dtype.bytes}")).view(kind) for k in ("x", "y"))
        results = {
            "add": x + y,
            "sub": x - y,
            "mul": x * y,
            "div": x / y,
            "minimum": mx.minimum(x, y),
            "maximum": mx.maximum(x, y),
        }
        for operation, result in results.items():
            bits = np.array(result.view({2: mx.uint16, 4: mx.uint32}[dtype.bytes]))
            expected = bits.view(NUMPY[dtype])
            apart = distance(got[f"{operation}_of_xy"], expected, dtype)
            assert apart.max() == 0, (operation, int(apart.argmax()))


def test_masks_are_stored_as_zero_and_one(library: Library) -> None:
    """A bool array holds 0 and 1 only, whatever made it."""
    for name in ("operations_f32", "operations_bool", "casts_u8"):
        arrays = arrays_of(KERNELS[name], ops.operands(ops_dtype(name)))
        got = library.run(f"cpp_{name}", arrays, {}, (ops.PROGRAMS,))
        for output, array in got.items():
            if dtype_of(KERNELS[name], output) == bool_:
                assert array.view(np.uint8).max() <= 1, output


def ops_dtype(name: str) -> DType:
    return dtypes.BY_NAME[name.split("_")[1]]
