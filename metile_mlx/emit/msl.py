"""Metal Shading Language: body and header of a kernel for `mx.fast.metal_kernel` (SPEC X1, K4,
F24).

MLX writes the signature. Inputs are `const device T*`, or `const constant T*` below 8 elements, so
an input is only ever indexed by its own name, never aliased by a pointer of either address space
(F08); helpers that take an address exist for both. A runtime scalar is an input of shape (1,), read
once. Outputs are `device T*`. Attributes are taken by name.

Math. In `safe` mode the text itself asks for the `precise` variants, because not every MLX passes
the math mode on to Metal; in the other modes it leaves the choice to the compiler, and NaN is not
guaranteed to win a minimum. Arithmetic on f16 is `half`; functions and fma on it, and everything
on bf16, are computed in float and rounded.
"""

from __future__ import annotations

from types import MappingProxyType

from metile_mlx.context import Context
from metile_mlx.dtypes import DType, f16, f32, i32
from metile_mlx.emit import msl_groups as groups
from metile_mlx.emit.arithmetic import ARITHMETIC
from metile_mlx.emit.cstyle import MEMORY, STATEMENTS, CStyle, Expression, Statement
from metile_mlx.emit.literals import MSL as SPELLING
from metile_mlx.emit.literals import Spelling, quoted
from metile_mlx.emit.naming import unique_name
from metile_mlx.emit.source import KernelSource
from metile_mlx.errors import UnsupportedError, VerificationError
from metile_mlx.ir.arith import BinaryKind, CombineKind, element
from metile_mlx.ir.core import Func, Op, Value
from metile_mlx.ir.lanes import ThreadLaneReduce, ThreadLaneShuffle, ThreadSync
from metile_mlx.ir.matrix import BlockMultiply, FragmentMultiply
from metile_mlx.ir.metal import (
    Barrier,
    Extract,
    LoadGroup,
    NumPrograms,
    Print,
    ProgramId,
    Shuffle,
    SimdReduce,
    StoreGroup,
    ThreadIndex,
)
from metile_mlx.ir.types import ScalarType

# Exact, so they have no fast variant.
_EXACT = frozenset({"abs", "floor", "ceil", "fma"})

_SIGMOID = """\
// 1 / (1 + exp(-x)) without overflow, with full relative precision in both tails.
inline float metile_sigmoid(float x) {{
  float e = {exp}(-metal::abs(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}}
"""
# Minimax polynomials of our own: of erf(x) / x - 1 in x * x, and of -log(1 - erf(x)) above it.
_ERF = """\
// The error function, within 2 ulp where exp is within 1.
inline float metile_erf(float x) {{
  float t = metal::abs(x);
  float s = x * x;
  float p = 8.37009751e-05f;
  p = metal::fma(p, s, -0.000814270351f);
  p = metal::fma(p, s, 0.00520103221f);
  p = metal::fma(p, s, -0.0268593982f);
  p = metal::fma(p, s, 0.112836955f);
  p = metal::fma(p, s, -0.376126337f);
  p = metal::fma(p, s, 0.128379167f);
  float q = 4.37748317e-07f;
  q = metal::fma(q, t, 1.54754624e-05f);
  q = metal::fma(q, t, -0.000403592246f);
  q = metal::fma(q, t, 0.00407624073f);
  q = metal::fma(q, t, -0.0249412039f);
  q = metal::fma(q, t, 0.108070058f);
  q = metal::fma(q, t, 0.633498571f);
  q = metal::fma(q, t, 1.12945353f);
  q = metal::fma(q, t, -0.000164004441f);
  return t < 0.921875f ? metal::fma(p, x, x) : metal::copysign(1.0f - {exp}(-q), x);
}}
"""
_EXTREME = """\
// Over the lanes of a simdgroup; a NaN in any of them wins.
inline float metile_simd_{name}(float x) {{{{
  float most = simd_{name}(x);
  return simd_any(metal::isnan(x)) ? NAN : most;
}}}}
"""
_FRAGMENTS = """\
// c + a * b of 8 by 8 matrices, two neighbours of a row in each lane.
template <typename T>
inline void metile_fragment_multiply(
    T a0, T a1, T b0, T b1, thread float& c0, thread float& c1) {{
  simdgroup_matrix<T, 8, 8> a;
  simdgroup_matrix<T, 8, 8> b;
  simdgroup_matrix<float, 8, 8> c;
  a.thread_elements()[0] = a0;
  a.thread_elements()[1] = a1;
  b.thread_elements()[0] = b0;
  b.thread_elements()[1] = b1;
  c.thread_elements()[0] = c0;
  c.thread_elements()[1] = c1;
  simdgroup_multiply_accumulate(c, a, b, c);
  c0 = c.thread_elements()[0];
  c1 = c.thread_elements()[1];
}}
"""
_HELPERS = {
    "fragment_multiply": _FRAGMENTS,
    "erf": _ERF,
    "sigmoid": _SIGMOID,
    "simd_max": _EXTREME.format(name="max"),
    "simd_min": _EXTREME.format(name="min"),
}
_NAMES = frozenset({*(f"metile_{name}" for name in _HELPERS), *groups.NAMES})


class _Msl(CStyle):
    spelling: Spelling = SPELLING
    logical = MappingProxyType(
        {BinaryKind.AND: "&&", BinaryKind.OR: "||", BinaryKind.XOR: "!="},
    )
    signed_wraps = False
    native = frozenset({f16, f32})

    def __init__(self, func: Func, ctx: Context) -> None:
        super().__init__(func, ctx, _NAMES)
        self.expressions = EXPRESSIONS
        self.statements = LINES
        self._scalars: dict[Value, str] = {}

    def kernel_body(self) -> str:
        """All lines: threadgroup memory, scalars, then the ops."""
        for item in self.allocations():
            dtype = self.type(item.dtype)
            self.line(f"threadgroup {dtype} {self.name(item.result)}[{item.elements}];")
        for param in self.func.params:
            if isinstance(param.type, ScalarType) and self.uses[param]:
                local = self.fresh(f"{self.name(param)}_value")
                self.line(f"{self.type(param.type.dtype)} {local} = {self.name(param)}[0];")
                self._folded[param] = local
        for op in self.func.body.ops:
            self.write(op)
        return "\n".join([*self.lines, ""])

    def header(self) -> str:
        """The helper functions the body calls."""
        exp = self._math("exp")
        return "\n".join(
            groups.HELPERS[name] if name in groups.HELPERS else _HELPERS[name].format(exp=exp)
            for name in sorted(self.helpers)
        )

    def _math(self, name: str) -> str:
        precise = self.ctx.math_mode == "safe" and name not in _EXACT
        return f"metal::precise::{name}" if precise else f"metal::{name}"

    def widen(self, text: str, dtype: DType) -> str:
        return text if dtype == f32 else f"float({text})"

    def narrow(self, text: str, dtype: DType) -> str:
        return text if dtype == f32 else f"{self.type(dtype)}({text})"

    def function(self, name: str, *arguments: str) -> str:
        if name in _HELPERS:
            self.helpers.add(name)
            return f"metile_{name}({', '.join(arguments)})"
        return f"{self._math(name)}({', '.join(arguments)})"

    def nan_or(self, text: str, test: str) -> str:
        return f"metal::isnan({text}) || {test}"

    def reinterpret(self, text: str, source: DType, dtype: DType) -> str:
        return f"as_type<{self.type(dtype)}>({text})"


def _thread_index(e: _Msl, item: ThreadIndex) -> str:
    return "thread_position_in_threadgroup.x"


def _program_id(e: _Msl, item: ProgramId) -> str:
    return f"int(threadgroup_position_in_grid.{'xyz'[item.axis]})"


def _num_programs(e: _Msl, item: NumPrograms) -> str:
    return f"int(threadgroups_per_grid.{'xyz'[item.axis]})"


def _shuffle(e: _Msl, item: Shuffle) -> str:
    return f"simd_shuffle({e.operand(item.src)}, {e.operand(item.lane)})"


def _simd_reduce(e: _Msl, item: SimdReduce) -> str:
    """NaN wins, which simd_max and simd_min leave open; sums of i32 wrap, as those of uint do."""
    text, dtype, kind = e.operand(item.src), element(item.src), item.kind.value
    if item.kind is CombineKind.SUM:
        return f"int(simd_sum(uint({text})))" if dtype == i32 else f"simd_sum({text})"
    if dtype != f32:
        return f"simd_{kind}({text})"
    e.helpers.add(f"simd_{kind}")
    return f"metile_simd_{kind}({text})"


def _barrier(e: _Msl, item: Barrier) -> None:
    e.line("threadgroup_barrier(mem_flags::mem_threadgroup);")


def _fragment_multiply(e: _Msl, item: FragmentMultiply) -> None:
    """As MLX's own kernels do it, element by element; bf16, which is exact in f32, as f32."""
    e.helpers.add("fragment_multiply")
    results = [e.name(value) for value in item.results]
    for name, value in zip(results, item.acc, strict=True):
        e.line(f"float {name} = {e.operand(value)};")
    operands = [
        e.operand(value) if element(value) == f16 else e.widen(e.operand(value), element(value))
        for value in (*item.a, *item.b)
    ]
    e.line(f"metile_fragment_multiply({', '.join([*operands, *results])});")


def _block_multiply(e: _Msl, item: BlockMultiply) -> None:
    raise VerificationError(f"{item.opcode} is for a CPU; simdgroups multiply fragments", item.loc)


def _print(e: _Msl, item: Print) -> None:
    if e.ctx.target.name != "emulator":
        raise UnsupportedError(
            f"[device_print] a kernel compiled for {e.ctx.target.name} can't print",
            item.loc,
            "run it with backend='emulator' or backend='cpu', or remove the call",
        )
    place = ", ".join(e.operand(value) for value in item.place)
    text = f"metile_device_print({quoted(item.label)}, {place}, {item.register}u, "
    text += f"{e.operand(item.value)});"
    e.line(text if item.mask is None else f"if ({e.operand(item.mask)}) {{ {text} }}")


EXPRESSIONS: dict[type[Op], Expression] = {
    **ARITHMETIC,
    **MEMORY,
    ThreadIndex: _thread_index,
    ProgramId: _program_id,
    NumPrograms: _num_programs,
    Shuffle: _shuffle,
    SimdReduce: _simd_reduce,
    ThreadLaneReduce: _simd_reduce,
    ThreadLaneShuffle: _shuffle,
    Extract: groups.extract,
}
LINES: dict[type[Op], Statement] = {
    **STATEMENTS,
    Barrier: _barrier,
    ThreadSync: _barrier,
    LoadGroup: groups.load_group,
    StoreGroup: groups.store_group,
    Print: _print,
    FragmentMultiply: _fragment_multiply,
    BlockMultiply: _block_multiply,
}


def emit_msl(func: Func, ctx: Context) -> KernelSource:
    """The MSL text of a kernel. Needs Stage.THREAD.

    The text is pure ASCII, the same in every process, and never bounds the threadgroup's size by an
    attribute (F62).
    """
    emitter = _Msl(func, ctx)
    body, header = emitter.kernel_body(), emitter.header()
    inputs, outputs = emitter.arguments()
    return KernelSource(
        name=unique_name(func.name, body, header, ctx.math_mode, func.threads, inputs, outputs),
        language="msl",
        body=body,
        header=header,
        inputs=inputs,
        outputs=outputs,
        threads=func.threads,
        threadgroup_bytes=sum(item.elements * item.dtype.bytes for item in emitter.allocations()),
        math_mode=ctx.math_mode,
    )
