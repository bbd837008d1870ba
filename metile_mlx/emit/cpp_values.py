"""Values in C++: types, conversions and functions, f16 and bf16 carried as bits (SPEC X4)."""

from __future__ import annotations

from types import MappingProxyType

from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u8, u16, u32
from metile_mlx.emit.arithmetic import ARITHMETIC, unary
from metile_mlx.emit.cstyle import MEMORY, CStyle, Expression, Statement, is_output
from metile_mlx.emit.literals import CPP, Spelling, literal, quoted
from metile_mlx.ir.arith import REDUCED, BinaryKind, CombineKind, UnaryKind, element
from metile_mlx.ir.core import Op
from metile_mlx.ir.metal import Extract, LoadGroup, Print, SimdReduce, StoreGroup, Unary
from metile_mlx.ir.types import PointerType, ScalarType

# Those of metile_cpu_math.h and metile_cpu_trig.h, which vectorise where libm's are called by lane.
_OWN = ("exp", "exp2", "log", "log2", "sigmoid", "tanh", "erf", "sin", "cos")
_FUNCTIONS = {
    "rsqrt": "1.0f / std::sqrt({})",
    "abs": "std::fabs({})",
    **{name: f"metile_{name}({{}})" for name in _OWN},
}
_UNROLL = """\
#if defined(__clang__)
#define METILE_UNROLL _Pragma("unroll")
#else
#define METILE_UNROLL _Pragma("GCC unroll 64")
#endif
"""
# clang++ shuffles 64 values of 16 bits in registers when it is left alone, in half the time.
_UNROLL_SMALL = """\
#if defined(__clang__)
#define METILE_UNROLL_SMALL
#else
#define METILE_UNROLL_SMALL _Pragma("GCC unroll 64")
#endif
"""
# A slot of 32 lanes of 32 bits is two vectors and two lines of memory. Left alone, clang++ goes
# through the first halves of all slots, then through the second ones. With both halves at once,
# `add_rms_norm` of 1009 and 1024 columns from memory takes 0.65 to 0.75 of the time.
_NEIGHBOURS = """\
#if defined(__clang__)
#define METILE_NEIGHBOURS _Pragma("clang loop interleave_count(2)")
#else
#define METILE_NEIGHBOURS
#endif
"""
# Of a few versions this is the one that g++ and clang++ both make a dozen instructions of; left to
# themselves they combine several simdgroups at once, with gathers.
_SIMD = """\
// 32 lanes combined by halves: the order never depends on the machine.
static inline {type} metile_simd_{name}(const {type}* lanes) {{
  typedef {type} whole __attribute__((vector_size(64)));
  typedef {type} half __attribute__((vector_size(32)));
  typedef {type} quarter __attribute__((vector_size(16)));
  whole w[2];
  half h[2];
  quarter q[2];
  memcpy(w, lanes, sizeof w);
  {{ const whole a = w[0], b = w[1], c = {combined}; memcpy(h, &c, sizeof h); }}
  {{ const half a = h[0], b = h[1], c = {combined}; memcpy(q, &c, sizeof q); }}
  quarter last;
  {{ const quarter a = q[0], b = q[1]; last = {combined}; }}
  {type} pair[2];
  for (int i = 0; i < 2; ++i) {{ const {type} a = last[i], b = last[i + 2]; pair[i] = {combined}; }}
  const {type} a = pair[0], b = pair[1];
  return {combined};
}}
"""
_BELOW = """\
// In how many of `threads` threads, the first ones, first + step * thread is below `bound`.
static inline uint32_t metile_below_{dtype}({type} first, {type} bound, uint32_t step,
                                         uint32_t threads) {{
  const uint32_t left = first < bound ? uint32_t(bound) - uint32_t(first) : 0u;
  const uint32_t count = left / step + (left % step != 0u);
  return count < threads ? count : threads;
}}
"""
_COMBINED = {
    CombineKind.SUM: "a + b",
    CombineKind.MAX: "{nan}(a > b) ? a : b",
    CombineKind.MIN: "{nan}(a < b) ? a : b",
}


def simd_helper(kind: CombineKind, dtype: DType) -> str:
    """The name, without its prefix, of the function that combines the lanes of a simdgroup."""
    return f"simd_{kind.value}_{dtype}"


def _simd(kind: CombineKind, dtype: DType) -> str:
    combined = _COMBINED[kind].format(nan="(a != a) | " if dtype.is_float else "")
    name = f"{kind.value}_{dtype}"
    return _SIMD.format(type=CPP.types[dtype], name=name, combined=combined)


HELPERS = {
    "print": "#include <cstdio>\n",
    "multiply": '#include "metile_cpu_multiply.h"\n',
    "unroll": _UNROLL,
    "unroll_small": _UNROLL_SMALL,
    "neighbours": _NEIGHBOURS,
    **{simd_helper(kind, dtype): _simd(kind, dtype) for kind in CombineKind for dtype in REDUCED},
    **{f"below_{dtype}": _BELOW.format(dtype=dtype, type=CPP.types[dtype]) for dtype in (i32, u32)},
}
_HALVES = frozenset({f16, bf16})
# What the text around the values calls its own things.
TAKEN = (
    *("buffers", "scalars", "grid", "begin", "end", "thread", "lane", "group", "high", "low"),
    *("holds", "program", "program_x", "program_y", "program_z", "metile_run", "metile_entry"),
    *("METILE_UNROLL", "METILE_UNROLL_SMALL", "METILE_NEIGHBOURS", "METILE_MADD", "metile_scalar"),
    *("METILE_CPU_H", "METILE_CPU_MATH_H", "METILE_CPU_TRIG_H"),
    *("METILE_CPU_MULTIPLY_H", "METILE_FUSED", "METILE_APART", "metile_multiply"),
    "metile_multiply_block",
    *(f"metile_{name}" for name in _OWN),
    *("metile_below_i32", "metile_below_u32"),
    *("metile_f32_bits", "metile_bits_f32", "metile_f16_to_f32"),
    *("metile_f32_to_f16", "metile_bf16_to_f32", "metile_f32_to_bf16"),
    *(f"metile_{simd_helper(kind, dtype)}" for kind in CombineKind for dtype in REDUCED),
)


def scalar(dtype: DType, number: int) -> str:
    """One of the scalars of a call."""
    fields = {bool_: "b != 0", i32: "i", u32: "u", f32: "f"}
    field = fields.get(dtype)
    if field is not None:
        return f"scalars[{number}].{field}"
    return f"{CPP.types[dtype]}(scalars[{number}].{'u' if dtype in _HALVES else 'raw'})"


class CppValues(CStyle):
    """Expressions of C++; the structure around them is `cpp`'s."""

    spelling: Spelling = CPP
    logical = MappingProxyType({BinaryKind.AND: "&", BinaryKind.OR: "|", BinaryKind.XOR: "!="})
    signed_wraps = True
    native = frozenset({f32})

    def parameters(self) -> tuple[list[str], list[str]]:
        """What the function that does the work takes, and what it is given."""
        taken, given = [], []
        buffers = scalars = 0
        for param in self.func.params:
            assert isinstance(param.type, PointerType | ScalarType)
            name, dtype = self.name(param), param.type.dtype
            if isinstance(param.type, ScalarType):
                taken.append(f"const {self.type(dtype)} {name}")
                given.append(scalar(dtype, scalars))
                scalars += 1
            else:
                pointer = f"{'' if is_output(param) else 'const '}{self.stored(dtype)}*"
                taken.append(f"{pointer} __restrict {name}")
                given.append(f"static_cast<{pointer}>(buffers[{buffers}])")
                buffers += 1
        return taken, given

    def stored(self, dtype: DType) -> str:
        """The type of an element in memory."""
        return self.type(u8) if dtype == bool_ else self.type(dtype)

    def buffer_value(self, text: str, dtype: DType) -> str:
        return f"({text} != 0)" if dtype == bool_ else text

    def widen(self, text: str, dtype: DType) -> str:
        return text if dtype == f32 else f"metile_{dtype}_to_f32({text})"

    def narrow(self, text: str, dtype: DType) -> str:
        return text if dtype == f32 else f"metile_f32_to_{dtype}({text})"

    def function(self, name: str, *arguments: str) -> str:
        return _FUNCTIONS.get(name, f"std::{name}({{}})").format(", ".join(arguments))

    def nan_or(self, text: str, test: str) -> str:
        # Both sides evaluated: a branch here would keep loops from being vectorised.
        return f"({text} != {text}) | ({test})"

    def reinterpret(self, text: str, source: DType, dtype: DType) -> str:
        if source == f32:
            text, source = f"metile_f32_bits({text})", u32
        elif source in _HALVES:
            source = u16
        if dtype == f32:
            return f"metile_bits_f32({text if source == u32 else f'uint32_t({text})'})"
        return text if self.type(source) == self.type(dtype) else f"{self.type(dtype)}({text})"


def _unary(e: CppValues, item: Unary) -> str:
    """Signs of f16 and bf16 are bits; all else is shared."""
    if element(item.src) in _HALVES and item.kind is UnaryKind.NEG:
        return f"uint16_t({e.operand(item.src)} ^ 0x8000)"
    if element(item.src) in _HALVES and item.kind is UnaryKind.ABS:
        return f"uint16_t({e.operand(item.src)} & 0x7fff)"
    return unary(e, item)


def equal_lanes(e: CppValues, item: SimdReduce) -> str:
    """32 equal lanes combined. A sum is doubled five times, as by the tree over them."""
    text = e.operand(item.src)
    if item.kind is not CombineKind.SUM:
        return text
    return f"{text} * {literal(32, element(item.src), e.spelling)}"


def write_print(e: CppValues, item: Print) -> None:
    """A line on standard error, in the words of the emulator's."""
    e.helpers.add("print")
    dtype, value = element(item.value), e.operand(item.value)
    kind, shown = "%lld", f"(long long)({value})"
    if dtype.is_float:
        kind, shown = "%.9g", f"double({e.as_float(item.value)})"
    elif dtype == bool_:
        kind, shown = "%s", f'{value} ? "True" : "False"'
    elif not dtype.is_signed:
        kind, shown = "%llu", f"(unsigned long long)({value})"
    form = f'"%s: program (%d, %d, %d), thread %u, register {item.register}: {kind}\\n"'
    place = ", ".join(e.operand(value) for value in item.place)
    text = f"std::fprintf(stderr, {form}, {quoted(item.label)}, {place}, {shown});"
    e.line(text if item.mask is None else f"if ({e.operand(item.mask)}) {{ {text} }}")


def _load_group(e: CppValues, item: LoadGroup) -> None:
    """Nothing: each lane is read where it is extracted, and loops over threads read neighbours."""


def _extract(e: CppValues, item: Extract) -> str:
    group = e.defined[item.vector]
    assert isinstance(group, LoadGroup)
    index, mask, fill = group.parts()[group.part_of(item.vector, item.lane)]
    return e.load_text(group.buffer, e.operand(index), mask, fill)


def _store_group(e: CppValues, item: StoreGroup) -> None:
    for index, value, mask in item.parts():
        e.store_line(item.buffer, e.operand(index), value, mask)


VALUES: dict[type[Op], Expression] = {**ARITHMETIC, **MEMORY, Unary: _unary, Extract: _extract}
GROUPS: dict[type[Op], Statement] = {LoadGroup: _load_group, StoreGroup: _store_group}
