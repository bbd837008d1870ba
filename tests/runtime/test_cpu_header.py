"""The f16 and bf16 helpers of metile_cpu.h, against numpy and MLX (SPEC X4, K4)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx.runtime.toolchain import Toolchain, prelude

TEXT = """
extern "C" {
void f16_to_f32(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = metile_f16_to_f32(in[i]); }
void bf16_to_f32(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = metile_bf16_to_f32(in[i]); }
void f32_to_f16(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = metile_f32_to_f16(in[i]); }
void f32_to_bf16(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = metile_f32_to_bf16(in[i]); }
}
"""
Convert = Callable[[str, np.ndarray], np.ndarray]


@pytest.fixture(scope="module", params=["g++", "clang++"])
def convert(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Convert:
    """`convert(function, array)` by code of each compiler; the loops are vectorised there."""
    folder = tmp_path_factory.mktemp("header")
    path: Path = Toolchain((request.param,), "").compile_kernel(prelude() + TEXT, folder)
    library = ctypes.CDLL(str(path))

    def call(name: str, values: np.ndarray) -> np.ndarray:
        out = np.empty(len(values), np.float32 if name.endswith("f32") else np.uint16)
        library[name](
            values.ctypes.data_as(ctypes.c_void_p),
            out.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(len(values)),
        )
        return out

    return call


PATTERNS = np.arange(1 << 16, dtype=np.uint16)


def floats() -> np.ndarray:
    """Two million f32 patterns: any, near the range of f16 and its ties, and every special one."""
    rng = np.random.default_rng(7)
    everything = rng.integers(0, 1 << 32, 1 << 20, dtype=np.uint64).astype(np.uint32)
    near = rng.integers(0x32000000 >> 12, 0x47A00000 >> 12, 1 << 19).astype(np.uint32) << 12
    ties = near + rng.integers(-1, 2, 1 << 19).astype(np.uint32)
    special = np.array(
        [0, 1, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x477FEFFF, 0x477FF000, 0x7F7FFFFF,
         0x33000000, 0x33000001, 0x387FFFFF, 0x38800000, 0x7F7F8000, 0x7F7F7FFF], np.uint32
    )  # fmt: skip
    bits = np.concatenate([everything, ties, special, special | np.uint32(0x80000000)])
    return bits.view(np.float32)


def test_every_f16_widens_exactly(convert: Convert) -> None:
    actual, expected = convert("f16_to_f32", PATTERNS), PATTERNS.view(np.float16).astype(np.float32)
    nan = np.isnan(expected)
    assert np.array_equal(actual.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])
    assert np.isnan(actual[nan]).all()
    assert np.array_equal(np.signbit(actual), np.signbit(expected))


def test_f32_rounds_to_the_nearest_even_f16(convert: Convert) -> None:
    values = floats()
    actual = convert("f32_to_f16", values)
    with np.errstate(all="ignore"):
        expected = values.astype(np.float16).view(np.uint16)
    nan = np.isnan(values)
    assert np.array_equal(actual[~nan], expected[~nan])
    assert np.isnan(actual[nan].view(np.float16)).all()
    assert np.array_equal(actual >> 15, values.view(np.uint32) >> 31)


def test_every_f16_comes_back_from_f32(convert: Convert) -> None:
    back = convert("f32_to_f16", convert("f16_to_f32", PATTERNS))
    quiet = np.where(np.isnan(PATTERNS.view(np.float16)), PATTERNS | 0x200, PATTERNS)
    assert np.array_equal(back, quiet)


def test_every_bf16_widens_exactly(convert: Convert) -> None:
    actual = convert("bf16_to_f32", PATTERNS).view(np.uint32)
    assert np.array_equal(actual, PATTERNS.astype(np.uint32) << 16)
    mlx = np.array(mx.array(PATTERNS).view(mx.bfloat16).astype(mx.float32))
    number = ~np.isnan(mlx)
    assert np.array_equal(actual[number], mlx.view(np.uint32)[number])


def test_f32_rounds_to_bf16_as_in_mlx(convert: Convert) -> None:
    values = floats()
    actual = convert("f32_to_bf16", values)
    expected = np.array(mx.array(values).astype(mx.bfloat16).view(mx.uint16))
    nan = np.isnan(values)
    assert np.array_equal(actual[~nan], expected[~nan])
    assert ((actual[nan] & 0x7FFF) > 0x7F80).all()
