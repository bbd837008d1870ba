"""Constants read back to the same bits, in both languages and for every dtype (F25)."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from metile_mlx import dtypes
from metile_mlx.dtypes import DType, Kind, bf16, bool_, f16, f32, i8, i32, i64, u8, u16, u32, u64
from metile_mlx.emit.cpp import emit_cpp
from metile_mlx.emit.literals import CPP, MSL, bits_of, literal, round_to, wrap
from metile_mlx.emit.msl import emit_msl
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir.core import Builder, Func
from metile_mlx.ir.metal import Constant, Store
from tests.emit.compiled import COMPILERS, build
from tests.emit.kernels import cpu_context, metal_context, output_pointer
from tests.support.arithmetic import NUMPY, Array
from tests.support.arithmetic import literal as numpy_literal

FLOATS = (
    *(0.0, -0.0, 1.0, -1.0, 0.1, -2.5, 1 / 3, 16777217.0, 1e-45, -1e-45, 1e-40, 1.1754944e-38),
    *(6e-8, 6.1e-5, 65504.0, 65520.0, 1e5, -1e6, 3.4028235e38, 1e39, -1e300, 1e-320),
    *(math.inf, -math.inf, math.nan),
)
VALUES: dict[DType, tuple[float, ...]] = {
    dtype: FLOATS
    if dtype.is_float
    else (False, True)
    if dtype == bool_
    else (dtype.min, dtype.min + 1, 0, 1, 2, dtype.max - 1, dtype.max)
    for dtype in dtypes.ALL
}


def constants(dtype: DType) -> Func:
    """A kernel that stores each of VALUES."""
    out = output_pointer(dtype, "out")
    b = Builder()
    for number, value in enumerate(VALUES[dtype]):
        b.emit(Store(out, b.add(Constant(number, u32)), b.add(Constant(value, dtype))))
    return Func(f"constants_{dtype}", (out,), b.block(), threads=32)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_constants_read_back_to_the_same_bits(compiler: str, tmp_path: Path) -> None:
    sources: dict[str, KernelSource] = {}
    for dtype in dtypes.ALL:
        sources[f"cpp_{dtype}"] = emit_cpp(constants(dtype), cpu_context())
        sources[f"msl_{dtype}"] = emit_msl(constants(dtype), metal_context())
    library = build(sources, compiler, tmp_path)
    for name in sources:
        dtype = dtypes.BY_NAME[name.split("_")[1]]
        got = library.run(name, {"out": np.zeros(len(VALUES[dtype]), NUMPY[dtype])}, {}, (1,))
        expected = expected_values(dtype)
        for value, a, b in zip(VALUES[dtype], got["out"], expected, strict=True):
            assert a.tobytes() == b.tobytes(), (name, value, a, b)


def expected_values(dtype: DType) -> Array:
    with np.errstate(over="ignore"):
        singles = [
            numpy_literal(float(np.float32(value)) if dtype.is_float else value, dtype)
            for value in VALUES[dtype]
        ]
    return np.concatenate(singles)


@pytest.mark.parametrize(
    ("value", "dtype", "msl", "cpp"),
    [
        (2.0, f32, "2.0f", "2.0f"),
        (2.0, f16, "half(2.0f)", "uint16_t(0x4000)"),
        (2.0, bf16, "bfloat(2.0f)", "uint16_t(0x4000)"),
        (-0.0, f32, "-0.0f", "-0.0f"),
        (1e-45, f32, "1e-45f", "1e-45f"),
        (3.4028235e38, f32, "3.4028235e+38f", "3.4028235e+38f"),
        (math.inf, f32, "INFINITY", "INFINITY"),
        (-math.inf, f16, "half(-INFINITY)", "uint16_t(0xfc00)"),
        (math.nan, bf16, "bfloat(NAN)", "uint16_t(0x7fc0)"),
        (-(2**31), i32, "(-2147483647 - 1)", "(-2147483647 - 1)"),
        (-7, i32, "-7", "-7"),
        (2**32 - 1, u32, "4294967295u", "4294967295u"),
        (-(2**63), i64, "(-9223372036854775807l - 1)", "(-9223372036854775807ll - 1)"),
        (64, u64, "64ul", "64ull"),
        (-128, i8, "char(-128)", "int8_t(-128)"),
        (200, u8, "uchar(200)", "uint8_t(200)"),
        (31, u16, "ushort(31)", "uint16_t(31)"),
        (True, bool_, "true", "true"),
    ],
)
def test_spelling(value: float, dtype: DType, msl: str, cpp: str) -> None:
    """No literal that Metal refuses (`nan`, `-inff`), none that computes in another type (K4)."""
    assert literal(value, dtype, MSL) == msl
    assert literal(value, dtype, CPP) == cpp


def test_f32_text_is_the_shortest_that_reads_back() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << 32, 2000, dtype=np.uint32).view(np.float32)
    for single in words[np.isfinite(words)]:
        text = literal(float(single), f32, MSL)
        assert re.fullmatch(r"-?\d+(\.\d+)?(e[+-]\d+)?f", text), text
        assert np.float32(text[:-1]).tobytes() == single.tobytes()


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_every_value_of_16_bits_rounds_to_itself(dtype: DType) -> None:
    words = np.arange(1 << 16, dtype=np.uint32)
    values = (
        words.astype(np.uint16).view(np.float16).astype(np.float32)
        if dtype == f16
        else (words << 16).view(np.float32)
    )
    for word, value in zip(words[::7].tolist(), values[::7].tolist(), strict=True):
        if not math.isnan(value):
            assert bits_of(value, dtype) == word
            assert math.copysign(1.0, round_to(value, dtype)) == math.copysign(1.0, value)
            assert round_to(value, dtype) == value


def test_integers_are_taken_modulo_the_width() -> None:
    assert wrap(-1, u32) == 2**32 - 1
    assert wrap(2**31, i32) == -(2**31)
    assert wrap(300, u8) == 44
    assert all(
        wrap(value, dtype) == value
        for dtype in dtypes.ALL
        if dtype.kind in (Kind.INT, Kind.UINT)
        for value in (dtype.min, dtype.max)
    )
