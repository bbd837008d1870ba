"""Scalar and vector types, their sizes, conversions and rounding, as MSL has them."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx.errors import CompileError
from tests.emulator.support import launch

pytestmark = pytest.mark.emulator

ONE = {"x": mx.arange(16).astype(mx.float32)}

TRUE = [
    # Sizes and alignments.
    "sizeof(float3) == 16 && alignof(float3) == 16 && sizeof(packed_float3) == 12",
    "alignof(packed_float3) == 4 && alignof(float2) == 8 && sizeof(half3) == 8",
    "sizeof(bool4) == 4 && sizeof(uchar3) == 4 && sizeof(long2) == 16 && sizeof(bfloat4) == 8",
    "sizeof(long) == 8 && sizeof(size_t) == 8 && sizeof(ushort) == 2 && sizeof(bfloat) == 2",
    # Literals and usual conversions.
    "is_same_v<decltype(1.0), float> && is_same_v<decltype(1e-3), float>",
    "is_same_v<decltype(.5), float> && is_same_v<decltype(1.), float>",
    "is_same_v<decltype(1.0h), half> && is_same_v<decltype(1.0bf), bfloat>",
    "is_same_v<decltype(half(1) * 2.0), float> && is_same_v<decltype(half(1) * half(1)), half>",
    "is_same_v<decltype(half(1) * 2), half>",
    "is_same_v<decltype(bfloat(1.0f) * bfloat(1.0f)), bfloat>",
    "is_same_v<decltype(bfloat(1.0f) * 2.0f), float>",
    "is_same_v<decltype(bfloat(1.0f) + half(1)), float>",
    "is_convertible_v<bfloat, float> && !is_convertible_v<float, bfloat>",
    "!is_convertible_v<half, bfloat> && is_convertible_v<half, float>",
    "!is_convertible_v<int4, float4> && !is_convertible_v<float4, half4>",
    "is_convertible_v<float, float4>",
    # Vectors.
    "all(float4(1, 2, 3, 4).wzyx == float4(4, 3, 2, 1))",
    "all(float4(1, 2, 3, 4).bgr == float3(3, 2, 1))",
    "all(float4(float2(1, 2), 3, 4) == float4(1, 2, 3, 4))",
    "all(float4(1, float3(2, 3, 4)) == float4(1, 2, 3, 4))",
    "all(int4(float4(1.9f, -1.9f, 2, 3)) == int4(1, -1, 2, 3))",
    "all(2 * float2(1, 2) + 1 == float2(3, 5)) && all(-float2(1, 2) == float2(-1, -2))",
    "any(float2(1, 2) > 1.5f) && !all(float2(1, 2) > 1.5f)",
    "all((uint2(5, 6) >> 1u & 3u) == uint2(2, 3)) && all(~uint2(0) == uint2(0xffffffff))",
    "all(select(float2(1, 2), float2(3, 4), bool2(true, false)) == float2(3, 2))",
    "float4(1, 2, 3, 4)[2] == 3 && int3(7).z == 7",
    "as_type<uint>(1.0f) == 0x3f800000 && as_type<half2>(0x3c004000u).x == half(2)",
    "as_type<uint2>(1ul << 32).y == 1u && as_type<float>(as_type<uint>(3.5f)) == 3.5f",
    "float3(packed_float3(1, 2, 3)).y == 2 && (packed_float3(1, 2, 3) * 2).z == 6",
    "dot(float3(1, 2, 3), float3(4, 5, 6)) == 32",
    "all(cross(float3(1, 0, 0), float3(0, 1, 0)) == float3(0, 0, 1))",
    "length(float2(3, 4)) == 5 && distance_squared(float2(1, 1), float2(4, 5)) == 25",
    # Matrices, by columns.
    "all(float2x2(1, 2, 3, 4) * float2(1, 10) == float2(31, 42))",
    "all(float2(1, 10) * float2x2(1, 2, 3, 4) == float2(21, 43))",
    "all((float2x2(1, 2, 3, 4) * float2x2(5, 6, 7, 8))[1] == float2(31, 46))",
    "all((float3x2(float2(1, 2), float2(3, 4), float2(5, 6)) * float3(1)) == float2(9, 12))",
    "all(transpose(float2x3(1, 2, 3, 4, 5, 6))[2] == float2(3, 6)) && sizeof(float3x3) == 48",
    "determinant(float3x3(2, 0, 1, 1, 3, 0, 0, 1, 4)) == 25 && determinant(float4x4(2)) == 16",
    "all((2 * float2x2(1) + float2x2(1, 2, 3, 4))[0] == float2(3, 2))",
    "array<int, 3>{1, 2, 3}[1] == 2 && array<float, 5>::size() == 5",
    # Limits and constants.
    "numeric_limits<half>::max() == half(65504) && numeric_limits<int>::lowest() == INT_MIN",
    "numeric_limits<float>::infinity() == INFINITY && isnan(NAN) && HALF_MAX == half(65504)",
    "numeric_limits<ulong>::max() == 0xfffffffffffffffful && numeric_limits<char>::min() == -128",
    "float(numeric_limits<bfloat>::max()) == 0x1.fep127f && FLT_MAX < INFINITY",
    # Integers wrap and shift as on the device.
    "2147483647 + int(x[1]) == -2147483647 - 1",
    "char(200) == -56 && char(int(x[1]) + 255) == 0",
    # What MLX puts before the text.
    "is_same_v<bfloat16_t, bfloat> && is_same_v<float16_t, half>",
    "ceildiv(7, 2) == 4 && Limits<float>::max == INFINITY && Limits<int>::max == INT_MAX",
    "(complex64_t(1, 2) * complex64_t(3, 4)).imag == 10 && sizeof(complex64_t) == 8",
    "log1p(0.0f) == 0 && WorkPerThread<half>::n == 4",
]


def test_facts_about_types() -> None:
    body = "\n".join(f"y[{i}] = ({text});" for i, text in enumerate(TRUE))
    y = np.array(launch(body, ONE, (len(TRUE),), threads=1, dtype=mx.int32))
    assert [text for text, value in zip(TRUE, y, strict=True) if not value] == []


def test_components_are_assigned() -> None:
    body = (
        "float4 v = float4(1, 2, 3, 4);\nv.xy += v.zw;\nv.w = 9;\nv.rgb = v.bgr;\nv[3] *= 2;\n"
        "thread float& r = v.x;\nr += 1;\nfloat2 u(v.zw);\nu.y++;\n"
        "device packed_float3* p = (device packed_float3*)(y + 8);\np[0] = v.xyz;\n"
        "for (int k = 0; k < 4; ++k) y[k] = v[k];\ny[4] = u.x; y[5] = u.y;"
    )
    y = np.array(launch(body, ONE, (11,), threads=1, init_value=0))
    assert y.tolist() == [4, 6, 4, 18, 4, 19, 0, 0, 4, 6, 4]


REFUSED = {
    "max of a float and an integer": "y[0] = max(x[0], 0);",
    "float to bfloat": "bfloat b = x[0];\ny[0] = b;",
    "half to bfloat": "half h = half(x[0]);\nbfloat b = h;\ny[0] = b;",
    "vector to another element type": "int4 v = float4(x[0]);\ny[0] = v.x;",
    "vector of another length": "float3 v = float4(x[0]);\ny[0] = v.x;",
    "repeated component assigned": "float4 v = x[0];\nv.xx = float2(1);\ny[0] = v.x;",
    "as_type of another size": "y[0] = as_type<half>(x[0]);",
    "atomic of half": "threadgroup atomic<half> a;\ny[0] = 0;",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_metal_refuses_is_refused(name: str) -> None:
    with pytest.raises(CompileError, match=r"can't compile|cannot initialize"):
        launch(REFUSED[name], ONE, (1,))


def every_half() -> np.ndarray:
    return np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)


def test_half_converts_as_ieee_says() -> None:
    halves = every_half()
    y = launch("uint i = thread_position_in_grid.x;\ny[i] = float(x[i]);", {"x": mx.array(halves)},
               (1 << 16,), threads=1 << 16)  # fmt: skip
    assert np.array_equal(np.array(y), halves.astype(np.float32), equal_nan=True)


def floats() -> np.ndarray:
    """Random bits, and the neighbourhood of every tie of bfloat and half."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 20000, dtype=np.uint64).astype(np.uint32)
    ties = (rng.integers(0, 1 << 16, 4000, dtype=np.uint64).astype(np.uint32) << 16) + 0x8000
    middle = rng.uniform(-70000, 70000, 8000).astype(np.float32).view(np.uint32) & 0xFFFFF000
    parts = [bits, ties - 1, ties, ties + 1, middle, middle + 0x1000]
    return np.concatenate(parts).view(np.float32)


@pytest.mark.parametrize("kind", ["bfloat", "half"])
def test_narrow_floats_round_to_nearest_even(kind: str) -> None:
    values = floats()
    dtype = {"bfloat": mx.bfloat16, "half": mx.float16}[kind]
    body = f"uint i = thread_position_in_grid.x;\nif (i < {len(values)}) y[i] = {kind}(x[i]);"
    y = launch(body, {"x": mx.array(values)}, (len(values),), threads=len(values), dtype=dtype)
    assert mx.array_equal(y, mx.array(values).astype(dtype), equal_nan=True)


def test_half_arithmetic_rounds_each_operation() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=4096).astype(np.float16) for _ in range(2))
    body = "uint i = thread_position_in_grid.x;\ny[i] = a[i] * b[i] + a[i];"
    y = launch(body, {"a": mx.array(a), "b": mx.array(b)}, (4096,), threads=4096, dtype=mx.float16)
    assert np.array_equal(np.array(y), (a * b).astype(np.float16) + a)


def test_bfloat_arithmetic_rounds_each_operation() -> None:
    a = mx.random.normal((4096,)).astype(mx.bfloat16)
    body = "uint i = thread_position_in_grid.x;\ny[i] = a[i] * a[i] + a[i];"
    y = launch(body, {"a": a}, (4096,), threads=4096, dtype=mx.bfloat16)
    assert mx.array_equal(y, a * a + a)
