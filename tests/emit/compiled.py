"""Emitted text compiled by the system's compilers, many kernels in one translation unit, and run.

C++ kernels run as they are. MSL without threadgroups' cooperation (no barrier, no shuffle) is C++
too once Metal's types and functions have a meaning: then one call of the body is one thread.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from metile_mlx.emit.source import KernelSource
from metile_mlx.runtime.toolchain import KERNEL_FLAGS, Toolchain, included, prelude
from tests.support.arithmetic import NUMPY, Array, literal

COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]

METAL = """
#include <cstdlib>
typedef unsigned char uchar; typedef unsigned short ushort; typedef unsigned int uint;
typedef unsigned long ulong;
struct uint3 { uint x, y, z; };
struct half {
  uint16_t bits;
  half() = default;
  half(float value) : bits(metile_f32_to_f16(value)) {}
  operator float() const { return metile_f16_to_f32(bits); }
};
struct bfloat {
  uint16_t bits;
  bfloat() = default;
  bfloat(float value) : bits(metile_f32_to_bf16(value)) {}
  operator float() const { return metile_bf16_to_f32(bits); }
};
// Packed vectors are aligned like one element; address spaces are one here.
#define device
#define constant
template <class T> struct vector4 {
  T x, y, z, w;
  vector4() = default;
  vector4(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  template <class P>
  explicit vector4(const P& p) : x(p.at[0]), y(p.at[1]), z(p.at[2]), w(p.at[3]) {}
};
template <class T> struct packed4 {
  T at[4];
  explicit packed4(const vector4<T>& v) : at{v.x, v.y, v.z, v.w} {}
};
typedef vector4<float> float4; typedef packed4<float> packed_float4;
typedef vector4<half> half4; typedef packed4<half> packed_half4;
typedef vector4<ushort> ushort4; typedef packed4<ushort> packed_ushort4;
template <class T, class S> T as_type(S value) {
  static_assert(sizeof(T) == sizeof(S), "as_type keeps the size");
  T result; memcpy(&result, &value, sizeof result); return result;
}
namespace metal {
using std::abs; using std::ceil; using std::floor; using std::copysign; using std::fma;
using std::isnan; using std::exp;
namespace precise {
using std::cos; using std::exp; using std::exp2; using std::fmod; using std::log; using std::log2;
using std::pow; using std::sin; using std::sqrt; using std::tanh;
inline float rsqrt(float x) { return 1.0f / std::sqrt(x); }
}
}
"""


def as_cpp(source: KernelSource) -> str:
    """A function `metile_entry(buffers, scalars, grid, begin, end)` that runs an MSL body."""
    types = {"f16": "half", "bf16": "bfloat", "f32": "float", "bool": "bool"}
    lines = []
    for number, argument in enumerate((*source.inputs, *source.outputs)):
        dtype = argument.dtype
        kind = types.get(dtype.name) or f"{'u' * (dtype.name[0] == 'u')}int{dtype.bits}_t"
        const = "const " if argument in source.inputs else ""
        lines.append(f"  {const}{kind}* {argument.name} = ({const}{kind}*)buffers[{number}];")
    # As a macro it would also hide the variable of C++ kernels in the same unit.
    header = source.header.replace("inline ", "static inline ").replace("thread ", "")
    return "\n".join(
        [
            *(header.splitlines()),
            'extern "C" void metile_entry(void* const* buffers, const void*,',
            "    const uint32_t* grid, uint64_t begin, uint64_t end) {",
            *lines,
            "  for (uint64_t program = begin; program < end; ++program)",
            f"  for (uint thread = 0; thread < {source.threads}; ++thread) {{",
            "  uint3 thread_position_in_threadgroup = {thread, 0, 0};",
            "  uint3 threadgroup_position_in_grid = {uint(program % grid[0]),",
            "    uint(program / grid[0] % grid[1]), uint(program / grid[0] / grid[1])};",
            "  uint3 threadgroups_per_grid = {grid[0], grid[1], grid[2]};",
            "  (void)thread_position_in_threadgroup; (void)threadgroup_position_in_grid;",
            "  (void)threadgroups_per_grid;",
            source.body,
            "}}",
        ]
    )


class Library:
    """Kernels of one translation unit; `run` calls one on NumPy arrays."""

    def __init__(self, path: Path, sources: Mapping[str, KernelSource]) -> None:
        self._library = ctypes.CDLL(os.fspath(path))
        self._sources = sources

    def run(
        self,
        name: str,
        arrays: Mapping[str, Array],
        scalars: Mapping[str, float],
        grid: Sequence[int],
        parts: int = 1,
        keep: bool = False,
    ) -> dict[str, Array]:
        """The outputs, by argument's parameter; `arrays` holds a like array for each.

        An output begins as zeros, or, with `keep`, as the array given.
        `parts` splits the programs into that many calls, as a pool of threads does.
        """
        source = self._sources[name]
        begin_as = np.copy if keep else np.zeros_like
        outputs = {a.param: begin_as(arrays[a.param]) for a in source.outputs}
        inputs = [
            literal(scalars[a.param], a.dtype) if a.is_scalar else arrays[a.param]
            for a in source.inputs
        ]
        is_msl = source.language == "msl"
        buffers = [
            given
            for argument, given in zip(source.inputs, inputs, strict=True)
            if is_msl or not argument.is_scalar
        ]
        buffers += outputs.values()
        for argument, given in zip(source.inputs, inputs, strict=True):
            assert given.dtype == NUMPY[argument.dtype], argument
            assert given.flags.c_contiguous
        pointers = (ctypes.c_void_p * len(buffers))(*(b.ctypes.data for b in buffers))
        words = [
            given.tobytes().ljust(8, b"\0")
            for argument, given in zip(source.inputs, inputs, strict=True)
            if argument.is_scalar
        ]
        extents = (ctypes.c_uint32 * 3)(*(*grid, 1, 1)[:3])
        total = int(np.prod(grid))
        edges = np.linspace(0, total, parts + 1).astype(int)
        entry = getattr(self._library, name)
        for begin, end in itertools.pairwise(edges):
            entry(
                pointers,
                ctypes.create_string_buffer(b"".join(words), 8 * len(words) + 8),
                extents,
                ctypes.c_uint64(int(begin)),
                ctypes.c_uint64(int(end)),
            )
        return outputs


def text_of(sources: Mapping[str, KernelSource]) -> str:
    """One translation unit: every kernel in a namespace, its function under its own name."""
    parts = [prelude(included("\n".join(source.header for source in sources.values()))), METAL]
    for name, source in sources.items():
        header = re.sub(r'(?m)^#include ".*"$', "", source.header)
        text = as_cpp(source) if source.language == "msl" else header + source.body
        parts += [f"namespace of_{name} {{", f"#define metile_entry {name}", text]
        parts += ["#undef metile_entry", "}"]
    return "\n".join(parts)


def build(
    sources: Mapping[str, KernelSource],
    compiler: str,
    folder: Path,
    flags: Sequence[str] = tuple(KERNEL_FLAGS),
) -> Library:
    """Compile and load kernels; the text stays in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    text, shared = folder / "kernels.cpp", folder / "kernels.so"
    text.write_text(text_of(sources), encoding="ascii")
    command = [compiler, *flags, str(text), "-o", str(shared)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Library(shared, sources)


@functools.cache
def remarks(compiler: str, text: str) -> tuple[str, str]:
    """What the compiler says about vectorising a translation unit, and its assembly."""
    wish = "-fopt-info-vec-optimized" if compiler == "g++" else "-Rpass=loop-vectorize"
    flags = [flag for flag in KERNEL_FLAGS if flag not in ("-shared", "-w", "-pipe")]
    flags += Toolchain((compiler,), compiler).own_flags
    command = [compiler, *flags, wish, "-x", "c++", "-S", "-", "-o", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    return done.stderr, done.stdout
