"""The functions of metile_cpu_math.h and metile_cpu_trig.h against libm in double (SPEC K3, X4).

Errors are in units of the last place of the exact result; below the normal numbers that unit is
2^-149. The full profile tries all 2^32 arguments of every function.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from metile_mlx.dtypes import DType, bf16, f16, f32
from metile_mlx.emit.cpp import emit_cpp
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir.arith import BinaryKind, UnaryKind
from metile_mlx.ir.metal import Binary, Unary
from metile_mlx.runtime.toolchain import Toolchain, prelude
from tests.emit.compiled import remarks, text_of
from tests.emit.kernels import Tile, cpu_context
from tests.support.profile import count

# The bounds that the headers state: with fused multiply-add, and without.
BOUNDS = {
    "exp": (1.02, 1.0),
    "exp2": (1.02, 1.0),
    "log": (0.93, 0.93),
    "log2": (1.51, 1.55),
    "sigmoid": (2.41, 2.41),
    "tanh": (1.34, 1.34),
    "erf": (1.14, 1.31),
    "sin": (1.6, 2.5),
    "cos": (1.6, 2.5),
}
FUNCTIONS = tuple(BOUNDS)
LOOPS = "".join(
    f"""
extern "C" void {name}_of(const float* __restrict in, float* __restrict out, uint64_t n) {{
  for (uint64_t i = 0; i < n; ++i) {{ const float x = in[i]; out[i] = metile_{name}(x); }}
}}
"""
    for name in FUNCTIONS
)
# Wrong are those that are no number, or a zero of another sign, where the exact result is not.
ORACLE = """
static inline double power_of_two(int n) {
  const uint64_t bits = (uint64_t)(n + 1023) << 52;
  double made;
  memcpy(&made, &bits, sizeof made);
  return made;
}
static inline int exponent(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return (int)((bits >> 52) & 0x7ff) - 1023;
}
static double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
typedef void Function(const float*, float*, uint64_t);
template <double exact(double)>
static void compare(const uint32_t* patterns, uint64_t begin, uint64_t n, Function* const* made,
                    int variants, double* worst, uint32_t* at, uint64_t* wrong) {
  const uint64_t step = 4096;
  float in[step], out[8][step];
  for (uint64_t first = 0; first < n; first += step) {
    const uint64_t size = n - first < step ? n - first : step;
    for (uint64_t i = 0; i < size; ++i) {
      in[i] = metile_bits_f32(patterns ? patterns[first + i] : (uint32_t)(begin + first + i));
    }
    for (int v = 0; v < variants; ++v) made[v](in, out[v], size);
    for (uint64_t i = 0; i < size; ++i) {
      double wanted = exact(in[i]);
      const bool is_number = wanted == wanted;
      // Infinity counts as the number behind the largest.
      if (is_number && std::fabs(wanted) > 0x1p128) wanted = std::copysign(0x1p128, wanted);
      const int power = exponent(wanted);
      const double unit = power_of_two(23 - (power < -126 ? -126 : power > 127 ? 127 : power));
      for (int v = 0; v < variants; ++v) {
        const float got = out[v][i];
        const double number = std::fabs(got) > 0x1.fffffep127f ? std::copysign(0x1p128, got) : got;
        const bool is_zero = wanted == 0.0 && std::signbit(got) != std::signbit(wanted);
        wrong[v] += (got == got) != is_number || is_zero;
        const double error = std::fabs(number - wanted) * unit;
        if (error > worst[v]) worst[v] = error, at[v] = metile_f32_bits(in[i]);
      }
    }
  }
}
#define EXACT(name, function)                                                                 \\
  extern "C" void compare_##name(const uint32_t* patterns, uint64_t begin, uint64_t n,        \\
                                 Function* const* made, int variants, double* worst,          \\
                                 uint32_t* at, uint64_t* wrong) {                             \\
    compare<function>(patterns, begin, n, made, variants, worst, at, wrong);                  \\
  }
EXACT(exp, std::exp) EXACT(exp2, std::exp2) EXACT(log, std::log) EXACT(log2, std::log2)
EXACT(sigmoid, sigmoid) EXACT(tanh, std::tanh) EXACT(erf, std::erf)
EXACT(sin, std::sin) EXACT(cos, std::cos)
"""
COMPILERS = ("g++", "clang++")
# Without fused multiply-add the macro has two operations.
FUSED = {True: (), False: ("-U__FMA__", "-U__ARM_FEATURE_FMA")}
VARIANTS = [(compiler, fused) for fused in FUSED for compiler in COMPILERS]
Patterns = NDArray[np.uint32]


@dataclass
class Found:
    """The largest error of one variant in units of the last place, where, and how many are wrong
    beside."""

    error: float
    at: str
    wrong: int


class Judge:
    """Compares every variant with the oracle at once."""

    def __init__(self, folder: Path) -> None:
        self._oracle = ctypes.CDLL(str(_compiled(("g++",), prelude() + ORACLE, folder / "oracle")))
        self._made = [
            ctypes.CDLL(
                str(_compiled((compiler, *FUSED[fused]), prelude() + LOOPS, folder / f"{number}"))
            )
            for number, (compiler, fused) in enumerate(VARIANTS)
        ]

    def __call__(
        self, name: str, patterns: Patterns | None, begin: int = 0, n: int = 0
    ) -> dict[tuple[str, bool], Found]:
        """Of the arguments with these bits, or of `n` from `begin` on."""
        variants = len(VARIANTS)
        functions = [ctypes.cast(library[f"{name}_of"], ctypes.c_void_p) for library in self._made]
        worst, at = np.zeros(variants), np.zeros(variants, np.uint32)
        wrong = np.zeros(variants, np.uint64)
        self._oracle[f"compare_{name}"](
            None if patterns is None else patterns.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_uint64(begin),
            ctypes.c_uint64(n if patterns is None else patterns.size),
            (ctypes.c_void_p * variants)(*functions),
            variants,
            *(array.ctypes.data_as(ctypes.c_void_p) for array in (worst, at, wrong)),
        )
        shown = at.view(np.float32)
        return {
            variant: Found(float(worst[i]), float(shown[i]).hex(), int(wrong[i]))
            for i, variant in enumerate(VARIANTS)
        }


def _compiled(command: tuple[str, ...], text: str, folder: Path) -> Path:
    folder.mkdir()
    return Toolchain(command, "").compile_kernel(text, folder)


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    return Judge(tmp_path_factory.mktemp("math"))


def two_over_pi(bits: int) -> int:
    """2 / pi times 2^bits, rounded down: by Machin's formula for pi."""
    one = 1 << (2 * bits)

    def arctan_of_inverse(n: int) -> int:
        return sum((-1) ** k * one // ((2 * k + 1) * n ** (2 * k + 1)) for k in range(2 * bits))

    pi = 4 * (4 * arctan_of_inverse(5) - arctan_of_inverse(239))
    return (one << (bits + 1)) // pi


@functools.cache
def near_quarter_turns() -> Patterns:
    """Of each exponent those numbers that are nearest to a multiple of pi/2.

    m 2^e 2/pi is near to an integer where m is a multiple of the denominator of a convergent of
    the continued fraction of 2^e 2/pi.
    """
    bits = 320
    ratio = two_over_pi(bits)
    found = []
    for power in range(-23, 105):
        numerator = (ratio << power if power > 0 else ratio >> -power) % (1 << bits)
        denominator, last, this = 1 << bits, 0, 1
        while numerator:
            quotient, rest = divmod(denominator, numerator)
            denominator, numerator = numerator, rest
            last, this = this, last + quotient * this
            first = -(-(1 << 23) // this)
            if first * this >= 1 << 24:
                break
            found += [float(k * this) * 2.0**power for k in range(first, first + 8)
                      if k * this < 1 << 24]  # fmt: skip
    return np.array(found, np.float32).view(np.uint32)


def samples(number: int) -> Patterns:
    """Every exponent with the ends and the middle of its mantissas, what is near the bounds of the
    functions' parts, and random ones, of both signs."""
    rng = np.random.default_rng(23)
    mantissas = np.array([0, 1, 2, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFE, 0x7FFFFF], np.uint32)
    exponents = np.arange(256, dtype=np.uint32) << 23
    grid = (exponents[:, None] | mantissas).ravel()
    near = np.array(
        [0.5, 0.6, 0.921875, 1, 2**0.5 / 2, 2**0.5, 4, 10, 80, 87.3366, 88.0, 88.7228, 89,
         103.972, 104, 126, 127, 128, 129, 149, 150, 151, *(np.pi / 4 * np.arange(1, 40))],
        np.float32,
    )  # fmt: skip
    ends = (near.view(np.uint32)[:, None] + np.arange(-64, 65, dtype=np.int64)).ravel()
    drawn = rng.integers(0, 1 << 31, number, dtype=np.int64)
    usual = rng.uniform(0, 128, number).astype(np.float32).view(np.uint32)
    parts = [grid, near_quarter_turns(), *(each.astype(np.uint32) for each in (ends, drawn))]
    patterns = np.concatenate([*parts, usual])
    return np.concatenate([patterns, patterns | np.uint32(1 << 31)])


def check(name: str, found: dict[tuple[str, bool], Found]) -> None:
    for (compiler, fused), each in found.items():
        allowed = BOUNDS[name][0 if fused else 1]
        text = f"{name}, {compiler}, {'' if fused else 'not '}fused: {each}"
        assert each.wrong == 0, text
        assert each.error <= allowed, text


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_their_bounds(judge: Judge, name: str) -> None:
    """K3: the stated error, and the exact limits, signs of zero and NaN."""
    check(name, judge(name, samples(count(ci=250_000, full=4_000_000))))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_keep_their_bounds_everywhere(judge: Judge, name: str) -> None:
    """K3: all arguments in the full profile, else slices of neighbours from all over."""
    slices = 256
    size = (1 << 32) // slices
    tried = count(ci=1 << 12, full=size)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(
            lambda k: judge(name, None, k * size + size // 3 * (tried < size), tried), range(slices)
        )
        for each in found:
            check(name, each)


def elementwise(kind: UnaryKind, dtype: DType) -> KernelSource:
    tile = Tile(256, dtype)
    tile.store(tile.b.add(Unary(kind, tile.values)))
    return emit_cpp(tile.func(kind.value), cpu_context())


@pytest.mark.parametrize("compiler", COMPILERS)
def test_loops_over_lanes_vectorise(compiler: str) -> None:
    """X4: no function of libm is called lane by lane, in any dtype."""
    kinds = [UnaryKind(name) for name in FUNCTIONS]
    sources = {f"{k.value}_{d}": elementwise(k, d) for k in kinds for d in (f32, f16, bf16)}
    text = text_of(sources)
    said, assembly = remarks(compiler, text)
    assert not re.search(rf"\b({'|'.join(FUNCTIONS)})f?(@PLT)?$", assembly, re.MULTILINE)
    seen = {
        int(line.split(":")[1])
        for line in said.splitlines()
        if "vectorized" in line and line.startswith("<stdin>:")
    }
    at = 1
    for part in text.split("\nnamespace of_"):
        lines = range(at, at + part.count("\n") + 1)
        at = lines.stop
        name = part.split(" ", 1)[0]
        assert name not in sources or seen.intersection(lines), f"{name} is not vectorised"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_halves_are_compared_and_added_as_floats(compiler: str) -> None:
    """X4: no compiler goes back to arithmetic of halves, which runs lane by lane."""
    sources = {}
    for kind in (BinaryKind.ADD, BinaryKind.MAXIMUM):
        tile = Tile(256, f16)
        tile.store(
            tile.b.add(Binary(kind, tile.values, tile.b.add(Unary(UnaryKind.SIGMOID, tile.values))))
        )
        sources[kind.value] = emit_cpp(tile.func(kind.value), cpu_context())
    said, assembly = remarks(compiler, text_of(sources))
    assert said.count("vectorized") >= len(sources)
    assert not re.search(r"ucomiss|addss|mulss", assembly)
