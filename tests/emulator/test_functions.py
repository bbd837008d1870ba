"""Functions of metal_stdlib against NumPy, over scalars and vectors of each float type."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from tests.emulator.support import launch

pytestmark = pytest.mark.emulator

X = np.array([-2.5, -1.0, -0.75, -0.5, -0.0, 0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 7.0], np.float32)
UNIT = "clamp(v, -0.9f, 0.9f)"
POSITIVE = "(fabs(v) + 0.5f)"


def p(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + 0.5


def u(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -0.9, 0.9)


FUNCTIONS = {
    f"acos({UNIT})": lambda x: np.arccos(u(x)),
    f"asin({UNIT})": lambda x: np.arcsin(u(x)),
    f"atanh({UNIT})": lambda x: np.arctanh(u(x)),
    f"acosh({POSITIVE} + 1.0f)": lambda x: np.arccosh(p(x) + 1),
    "asinh(v)": np.arcsinh,
    "atan(v)": np.arctan,
    "atan2(v, 2.0f)": lambda x: np.arctan2(x, 2),
    "ceil(v)": np.ceil,
    "cos(v)": np.cos,
    "cosh(v)": np.cosh,
    "cospi(v)": lambda x: np.cos(np.pi * x),
    "copysign(v, -1.0f)": lambda x: np.copysign(x, -1),
    "exp(v)": np.exp,
    "exp2(v)": np.exp2,
    "exp10(v)": lambda x: 10.0**x,
    "fabs(v)": np.abs,
    "abs(v)": np.abs,
    "fdim(v, 1.0f)": lambda x: np.maximum(x - 1, 0),
    "floor(v)": np.floor,
    "fma(v, v, 1.0f)": lambda x: x * x + 1,
    "fmax(v, 0.5f)": lambda x: np.maximum(x, 0.5),
    "fmin(v, 0.5f)": lambda x: np.minimum(x, 0.5),
    "fmod(v, 2.0f)": lambda x: np.fmod(x, 2),
    "fract(v)": lambda x: x - np.floor(x),
    f"log({POSITIVE})": lambda x: np.log(p(x)),
    f"log2({POSITIVE})": lambda x: np.log2(p(x)),
    f"log10({POSITIVE})": lambda x: np.log10(p(x)),
    "mix(v, 3.0f, 0.25f)": lambda x: x + (3 - x) * 0.25,
    f"pow({POSITIVE}, 1.5f)": lambda x: p(x) ** 1.5,
    f"powr({POSITIVE}, 2.0f)": lambda x: p(x) ** 2,
    "rint(v)": np.rint,
    "round(v)": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
    f"rsqrt({POSITIVE})": lambda x: 1 / np.sqrt(p(x)),
    "saturate(v)": lambda x: np.clip(x, 0, 1),
    "sign(v)": np.sign,
    "sin(v)": np.sin,
    "sinh(v)": np.sinh,
    "sinpi(v)": lambda x: np.sin(np.pi * x),
    "smoothstep(-1.0f, 3.0f, v)": lambda x: (
        np.clip((x + 1) / 4, 0, 1) ** 2 * (3 - 2 * np.clip((x + 1) / 4, 0, 1))
    ),
    f"sqrt({POSITIVE})": lambda x: np.sqrt(p(x)),
    "step(0.5f, v)": lambda x: (x >= 0.5).astype(float),
    "tan(v)": np.tan,
    "tanh(v)": np.tanh,
    "trunc(v)": np.trunc,
    "median3(v, 0.3f, 1.2f)": lambda x: np.clip(x, 0.3, 1.2),
    "precise::exp(v)": np.exp,
    "fast::tanh(v)": np.tanh,
    "fast::divide(v, 3.0f)": lambda x: x / 3,
}


def evaluate(kind: str, is_vector: bool) -> np.ndarray:
    """Each function on each of X, in float: (functions, len(X))."""
    lines = []
    for row, text in enumerate(FUNCTIONS):
        typed = text.replace("f)", "h)").replace("f,", "h,") if kind == "half" else text
        if kind == "bfloat":
            typed = typed.replace("f)", "bf)").replace("f,", "bf,")
        if is_vector:
            # The first argument decides; a scalar beside it is spread.
            typed = typed.replace("smoothstep(-1.0f", f"smoothstep({kind}2(-1.0f)")
            typed = typed.replace("step(0.5f", f"step({kind}2(0.5f)")
        cast = ".y" if is_vector else ""
        lines.append(f"y[{row * len(X)} + i] = float(({typed}){cast});")
    value = (
        f"{kind}2 v = {kind}2({kind}(7), {kind}(x[i]));"
        if is_vector
        else f"{kind} v = {kind}(x[i]);"
    )
    body = f"uint i = thread_position_in_grid.x;\n{value}\n" + "\n".join(lines)
    return np.array(launch(body, {"x": mx.array(X)}, (len(FUNCTIONS), len(X)), threads=len(X)))


@pytest.mark.parametrize(
    ("kind", "is_vector", "tolerance"),
    [("float", False, 2e-6), ("float", True, 2e-6), ("half", False, 2e-3), ("bfloat", False, 2e-2)],
)
def test_functions_agree_with_numpy(kind: str, is_vector: bool, tolerance: float) -> None:
    rows = evaluate(kind, is_vector)
    with np.errstate(all="ignore"):
        for row, (text, expect) in zip(rows, FUNCTIONS.items(), strict=True):
            expected = expect(X.astype(np.float64))
            # Near a pole or a zero of sine the float argument decides, not the function.
            is_close = np.isclose(row, expected, rtol=tolerance, atol=tolerance)
            assert (is_close | (np.abs(expected) > 1e6)).all(), (text, row, expected)


INTEGERS = {
    "popcount(v)": lambda x: [bin(v & 0xFFFFFFFF).count("1") for v in x],
    "clz(v)": lambda x: [32 - (v & 0xFFFFFFFF).bit_length() for v in x],
    "ctz(v)": lambda x: [((v & -v).bit_length() - 1) if v else 32 for v in x],
    "reverse_bits(v)": lambda x: [signed(int(f"{v & 0xFFFFFFFF:032b}"[::-1], 2)) for v in x],
    "rotate(v, 5)": lambda x: [
        signed(((v << 5) | ((v & 0xFFFFFFFF) >> 27)) & 0xFFFFFFFF) for v in x
    ],
    "abs(v)": lambda x: [abs(v) for v in x],
    "int(absdiff(v, 3))": lambda x: [abs(v - 3) for v in x],
    "addsat(v, 2147483000)": lambda x: [min(v + 2147483000, 2147483647) for v in x],
    "subsat(v, 2147483000)": lambda x: [max(v - 2147483000, -2147483648) for v in x],
    "mulhi(v, 1 << 30)": lambda x: [(v << 30) >> 32 for v in x],
    "mad24(v, 3, 4)": lambda x: [v * 3 + 4 for v in x],
    "extract_bits(v, 4, 8)": lambda x: [signed8(v >> 4 & 255) for v in x],
    "int(extract_bits(uint(v), 4, 8))": lambda x: [v >> 4 & 255 for v in x],
    "insert_bits(v, 5, 8, 4)": lambda x: [(v & ~0xF00) | 0x500 for v in x],
    "max(v, 10)": lambda x: [max(v, 10) for v in x],
    "min(v, 10)": lambda x: [min(v, 10) for v in x],
    "clamp(v, -3, 7)": lambda x: [min(max(v, -3), 7) for v in x],
    "median3(v, 2, 9)": lambda x: [sorted((v, 2, 9))[1] for v in x],
    "hadd(v, 3)": lambda x: [(v + 3) >> 1 for v in x],
    "rhadd(v, 3)": lambda x: [(v + 4) >> 1 for v in x],
    "min(int2(v), int2(5, 6)).y": lambda x: [min(v, 6) for v in x],
    "int(max(uint3(abs(v)), 9u).z)": lambda x: [max(abs(v), 9) for v in x],
}


def signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value


def signed8(value: int) -> int:
    return value - 256 if value >> 7 else value


def test_integer_functions() -> None:
    x = [0, 1, -1, 7, -8, 1000, -12345, 123456789, 2000000000, -2000000000]
    lines = [f"y[{row * len(x)} + i] = {text};" for row, text in enumerate(INTEGERS)]
    body = "uint i = thread_position_in_grid.x;\nint v = x[i];\n" + "\n".join(lines)
    y = launch(body, {"x": mx.array(x)}, (len(INTEGERS), len(x)), threads=len(x), dtype=mx.int32)
    for row, (text, expect) in zip(np.array(y), INTEGERS.items(), strict=True):
        wrapped = np.array(expect(x), dtype=np.int64).astype(np.int32)
        assert np.array_equal(row, wrapped), text


def test_special_values_of_the_safe_mode() -> None:
    """F24: exp(-inf) is 0, and comparisons see NaN and infinity."""
    body = (
        "y[0] = exp(-INFINITY); y[1] = max(NAN, 1.0f); y[2] = isnan(x[0]); y[3] = isinf(x[1]);\n"
        "y[4] = isfinite(x[1]); y[5] = x[0] == x[0]; y[6] = signbit(x[1]); y[7] = fmin(NAN, 2.0f);"
    )
    x = mx.array([np.nan, -np.inf, 0, 0, 0, 0, 0, 0])
    y = np.array(launch(body, {"x": x}, (8,), threads=1))
    assert y.tolist() == [0, 1, 1, 1, 0, 0, 1, 2]


def test_functions_with_two_results() -> None:
    body = (
        "float c; y[0] = sincos(x[1], c); y[1] = c; float w; y[2] = modf(-2.5f, w); y[3] = w;\n"
        "int e; y[4] = frexp(10.0f, e); y[5] = e; y[6] = ldexp(0.75f, 3); y[7] = ilogb(9.0f);"
    )
    y = np.array(launch(body, {"x": mx.arange(8).astype(mx.float32)}, (8,), threads=1))
    assert np.allclose(y, [np.sin(1), np.cos(1), -0.5, -2, 0.625, 4, 6, 3])
