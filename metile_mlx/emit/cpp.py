"""C++ for the CPU: one function that runs a range of programs, its loops as planned (SPEC X4).

`buffers` are the arrays: the inputs, then the outputs; `scalars` the scalar inputs. Both in the
order of `KernelSource`. Programs are numbered with x fastest. The text needs `metile_cpu.h` before
it, and to be compiled with -fwrapv and -ffp-contract=off. A value of f16 or bf16 is carried as its
bits, so moving one never changes a NaN; each operation on it is computed in float and rounded.
"""

from __future__ import annotations

from metile_mlx.context import Context
from metile_mlx.dtypes import i32
from metile_mlx.emit.cpp_indices import Offsets, is_small, leading, permuted
from metile_mlx.emit.cpp_values import GROUPS, HELPERS, VALUES, CppValues, scalar, write_print
from metile_mlx.emit.cstyle import STATEMENTS, Expression, Statement, is_output
from metile_mlx.emit.naming import unique_name
from metile_mlx.emit.phases import Phase, Plan, Segment
from metile_mlx.emit.source import KernelSource
from metile_mlx.emit.thread_tables import is_uniform
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Func, Op, Value, walk
from metile_mlx.ir.metal import (
    Barrier,
    Binary,
    If,
    NumPrograms,
    Print,
    ProgramId,
    Shuffle,
    SimdReduce,
    ThreadIndex,
)
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.target import SIMD_WIDTH

_TAKEN = (
    *(
        "buffers",
        "scalars",
        "grid",
        "begin",
        "end",
        "thread",
        "lane",
        "group",
        "high",
        "low",
        "holds",
    ),
    *("program", "program_x", "program_y", "program_z", "METILE_UNROLL", "metile_simd_sum"),
    "METILE_UNROLL_SMALL",
    "metile_run",
    *("metile_entry", "metile_scalar", "metile_sigmoid", "metile_f32_bits", "metile_bits_f32"),
    *("metile_f16_to_f32", "metile_f32_to_f16", "metile_bf16_to_f32", "metile_f32_to_bf16"),
)
# Measured on exchanges of 64 to 1024 threads, g++ 12 and clang++ 14: 32 is never far from the best
# of 8, 16, 32 and 64, which differ by up to 3 times; 64 threads unroll as a whole.
_UNROLLED_WHOLE = 64
_UNROLLED = 32
_RUN = "static __attribute__((noinline)) void metile_run("
_RANGE = "const uint32_t* grid, uint64_t begin, uint64_t end"
_SIGNATURE = (
    'extern "C" void metile_entry(void* const* buffers, const metile_scalar* scalars,\n'
    f"                             {_RANGE}) {{"
)


class _Cpp(CppValues):
    def __init__(self, func: Func, ctx: Context) -> None:
        super().__init__(func, ctx, _TAKEN)
        self.expressions = EXPRESSIONS
        self.statements = LINES
        self.plan = Plan(func)
        self._segment: Segment | None = None
        # What each simdgroup has combined, named before the loop that uses it.
        self._combined: dict[Value, str] = {}
        # Where a value stands that another segment computed.
        self._placed: dict[Value, str] = {}
        self._arrays: dict[Value, str] = {}
        self.offsets = Offsets(func, self.plan.tables)

    # Structure

    def entry(self) -> str:
        """The function that does the work, and the one to call.

        Compilers believe __restrict of parameters only.
        """
        taken, given = self._parameters()
        self._declare_arrays()
        axes = {item.axis for item in walk(self.func.body) if isinstance(item, ProgramId)}
        ids = "xyz"[: max(axes) + 1] if axes else ""
        before = ("", " / grid[0]", " / grid[0] / grid[1]")
        for axis, name in enumerate(ids):
            inner = "" if axis == 2 else f" % grid[{axis}]"
            self.line(f"uint32_t program_{name} = uint32_t(begin{before[axis]}{inner});")
        self.line("for (uint64_t program = begin; program < end; ++program) {")
        self.depth += 1
        for item in self.plan.uniform:
            self.write(item)
        for phase in self.plan.phases:
            self._write_phase(phase)
        self._advance(ids)
        self.depth -= 1
        self.line("}")
        head = ",\n    ".join([*taken, _RANGE])
        call = ",\n      ".join([*given, "grid, begin, end"])
        lines = [f"{_RUN}\n    {head}) {{", *self.lines, "}", "", _SIGNATURE]
        return "\n".join([*lines, f"  metile_run(\n      {call});", "}", ""])

    def header(self) -> str:
        """What the function needs beside metile_cpu.h."""
        return "\n".join(HELPERS[name] for name in sorted(self.helpers))

    def _parameters(self) -> tuple[list[str], list[str]]:
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

    def _declare_arrays(self) -> None:
        for item in self.allocations():
            kind = self.stored(item.dtype)
            self.line(f"alignas(64) {kind} {self.name(item.result)}[{item.elements}];")
        for values, size, suffix in (
            (self.plan.over_threads, self.func.threads, "all"),
            (self.plan.over_lanes, SIMD_WIDTH, "lanes"),
        ):
            for value in values:
                name = self._arrays[value] = self.fresh(f"{self.name(value)}_{suffix}")
                self.line(f"alignas(64) {self.stored(element(value))} {name}[{size}];")

    def _advance(self, ids: str) -> None:
        """The next program's ids, x fastest."""
        if not ids:
            return
        if ids == "x":
            self.line("if (++program_x == grid[0]) program_x = 0;")
            return
        self.line("if (++program_x == grid[0]) {")
        self.depth += 1
        self.line("program_x = 0;")
        if ids == "xy":
            self.line("if (++program_y == grid[1]) program_y = 0;")
        else:
            self.line("if (++program_y == grid[1]) {")
            self.line("  program_y = 0;")
            self.line("  ++program_z;")
            self.line("}")
        self.depth -= 1
        self.line("}")

    # Loops

    def _write_phase(self, phase: Phase) -> None:
        if phase.once:
            for segment in phase.segments:
                for item in segment.ops:
                    self.write(item)
            return
        if phase.grouped:
            self._open(f"for (uint32_t group = 0; group < {self.func.threads}; group += 32) {{")
        for segment in phase.segments:
            self._write_segment(segment, phase.grouped)
        if phase.grouped:
            self._close()

    def _open(self, text: str) -> None:
        self.line(text)
        self.depth += 1

    def _close(self) -> None:
        self.depth -= 1
        self.line("}")

    def _write_segment(self, segment: Segment, grouped: bool) -> None:
        """The loop; twice where masks hold in the first threads, those without them first."""
        step = SIMD_WIDTH if grouped else self._step(segment)
        masks = segment.masks if grouped or step == self.func.threads else ()
        uniform = tuple(mask for mask in masks if is_uniform(mask))
        varying = () if segment.permuted else tuple(m for m in masks if not is_uniform(m))
        if varying and leading(self.plan.tables, varying) != 0:
            self._write_halves(segment, grouped, uniform, varying)
        elif not uniform:
            self._write_loop(segment, step, grouped)
        else:
            self._open(f"if ({' & '.join(map(self.operand, uniform))}) {{")
            self._write_holding(segment, grouped, uniform)
            # Without the one mask of all stores there is nothing to do; without another there is.
            if uniform != (segment.idle_without,):
                self._otherwise()
                self._write_loop(segment, step, grouped)
            self._close()

    def _write_holding(
        self, segment: Segment, grouped: bool, masks: tuple[Value, ...], end: str = ""
    ) -> None:
        self.holding = frozenset(masks)
        step = SIMD_WIDTH if grouped else self._step(segment)
        self._write_loop(segment, step, grouped, end=end)
        self.holding = frozenset()

    def _write_halves(
        self,
        segment: Segment,
        grouped: bool,
        uniform: tuple[Value, ...],
        varying: tuple[Value, ...],
    ) -> None:
        """A loop up to the first thread where a mask doesn't hold, and one from there on."""
        threads = SIMD_WIDTH if grouped else self.func.threads
        known = leading(self.plan.tables, varying)
        whole = f"{known}u" if known is not None else self._count(uniform, varying, grouped)
        if grouped:
            test = f"{whole} == 32u" if known is None else f"group + 32u <= {whole}"
            if known is not None and uniform:
                test = f"({test}) & {' & '.join(map(self.operand, uniform))}"
            self._open(f"if ({test}) {{")
            self._write_holding(segment, grouped, uniform + varying)
            self._otherwise()
            self._write_loop(segment, threads, grouped)
            self._close()
            return
        if known is not None and uniform:
            name = self.fresh("whole")
            start = f"{' & '.join(map(self.operand, uniform))} ? {whole} : 0u"
            self.line(f"const uint32_t {name} = {start};")
            whole = name
        self._write_holding(segment, grouped, uniform + varying, whole)
        if known != threads or uniform:
            self._write_loop(segment, threads, grouped, begin=whole)

    def _count(self, uniform: tuple[Value, ...], varying: tuple[Value, ...], grouped: bool) -> str:
        """The name of a variable: in how many of the first threads, or lanes, every mask holds."""
        threads, index = (SIMD_WIDTH, "lane") if grouped else (self.func.threads, "thread")
        name = self.fresh("whole")
        start = f"{' & '.join(map(self.operand, uniform))} ? {threads}u : 0u"
        self.line(f"uint32_t {name} = {start if uniform else f'{threads}u'};")
        self._open(f"for (uint32_t {index} = 0; {index} < {threads}; ++{index}) {{")
        if grouped:
            self.line("const uint32_t thread = group + lane;")
        for item in self.plan.recomputation(varying):
            self.write(item)
        everywhere = " & ".join(map(self.operand, varying))
        # A minimum vectorises where a search would not.
        self.line(f"const uint32_t holds = ({everywhere}) ? {threads}u : {index};")
        self.line(f"{name} = holds < {name} ? holds : {name};")
        self._close()
        return name

    def _otherwise(self) -> None:
        self.depth -= 1
        self._open("} else {")

    def _write_loop(
        self, segment: Segment, step: int, grouped: bool, begin: str = "0", end: str = ""
    ) -> None:
        self._segment = segment
        threads = self.func.threads
        outer = "group" if grouped else "high" if step < threads else ""
        if outer == "high":
            self._open(f"for (uint32_t high = 0; high < {threads}; high += {step}) {{")
        self._combine(segment)
        names = {value: self.name(value) for value in segment.permuted}
        highs = {}
        if outer:
            for value, moves in segment.permuted.items():
                text = permuted(moves, outer, step, high=True)
                if text != "0u":
                    highs[value] = self.fresh(f"{names[value]}_high")
                    self.line(f"const uint32_t {highs[value]} = {text};")
        if segment.permuted:
            small = step > SIMD_WIDTH and is_small(segment)
            self.helpers.add("unroll_small" if small else "unroll")
            self.line("METILE_UNROLL_SMALL" if small else "METILE_UNROLL")
        inner = {"group": "lane", "high": "low", "": "thread"}[outer]
        last = end or f"{step}"
        self._open(f"for (uint32_t {inner} = {begin}; {inner} < {last}; ++{inner}) {{")
        if outer:
            self.line(f"const uint32_t thread = {outer} + {inner};")
        for value, moves in segment.permuted.items():
            text = permuted(moves, inner, step, high=False)
            text = f"{highs[value]} + ({text})" if value in highs else text
            self.line(f"const {self.type(element(value))} {names[value]} = {text};")
        self._write_ops(segment, "lane" if grouped else "thread")
        for _ in range(1 + (outer == "high")):
            self._close()
        self._segment = None

    def _combine(self, segment: Segment) -> None:
        """The reductions over lanes whose values an earlier segment of this simdgroup has kept."""
        for item in segment.ops:
            if isinstance(item, SimdReduce) and not is_uniform(item.src):
                name = self._combined[item.result] = self.fresh(f"{self.name(item.result)}_group")
                self.line(f"const float {name} = {self.combined(item)};")

    def _step(self, segment: Segment) -> int:
        """Threads per inner loop: how far a loop with fixed moves is unrolled."""
        threads = self.func.threads
        return _UNROLLED if segment.permuted and threads > _UNROLLED_WHOLE else threads

    def _write_ops(self, segment: Segment, position: str) -> None:
        own = {value for item in segment.ops for value in item.results}
        near = set(self.plan.over_lanes)
        self._placed = {
            value: f"{name}[{position if value in near else 'thread'}]"
            for value, name in self._arrays.items()
            if value not in own
        }
        for item in segment.ops:
            self.write(item)
            if isinstance(item, If):
                for value in item.results:
                    self._keep(value)
        self._placed = {}

    def _keep(self, value: Value) -> None:
        if self._segment is not None and value in self._segment.kept:
            index = "lane" if value in self.plan.over_lanes else "thread"
            self.line(f"{self._arrays[value]}[{index}] = {self.name(value)};")

    # Values

    def define(self, value: Value, expression: str) -> None:
        self.line(f"const {self.type(element(value))} {self.name(value)} = {expression};")
        self._keep(value)

    def operand(self, value: Value) -> str:
        return self._placed.get(value) or super().operand(value)

    def write(self, item: Op) -> None:
        if isinstance(item, ThreadIndex) or self._is_masked_index(item):
            self._folded[item.result] = "thread"
        elif isinstance(item, Binary) and self.offsets.is_offset(item):
            base, behind = self.offsets.base(item.lhs)
            text = f"int64_t({self.type(i32)}({self.operand(base)}))"
            moved = self.operand(item.rhs)
            self._folded[item.result] = f"{text} + {f'{behind} + ' * (behind > 0)}{moved}"
        else:
            super().write(item)

    def group_value(self, value: Value) -> str:
        """What this simdgroup has combined."""
        return self._combined[value]

    def combined(self, item: SimdReduce) -> str:
        """The lanes of one simdgroup combined: this one's, or the first one's, where all agree."""
        self.helpers.add("simd_sum")
        array, spans = self.array(item.src)
        return f"metile_simd_sum({array}{' + group' if spans and not item.uniform else ''})"

    def _is_masked_index(self, item: Op) -> bool:
        """A mask of the thread index that leaves it as it is."""
        return isinstance(item, Binary) and self.plan.tables.is_thread_index(item.result)

    def array(self, value: Value) -> tuple[str, bool]:
        """The array a value is kept in, and whether it spans all threads."""
        return self._arrays[value], value not in self.plan.over_lanes


def _program_id(e: _Cpp, item: ProgramId) -> str:
    return f"int32_t(program_{'xyz'[item.axis]})"


def _num_programs(e: _Cpp, item: NumPrograms) -> str:
    return f"int32_t(grid[{item.axis}])"


def _thread_index(e: _Cpp, item: ThreadIndex) -> str:
    return "thread"


def _shuffle(e: _Cpp, item: Shuffle) -> str:
    if is_uniform(item.src):
        return e.operand(item.src)
    array, spans = e.array(item.src)
    lane = e.operand(item.lane)
    return f"{array}[group + {lane}]" if spans else f"{array}[{lane}]"


def _simd_reduce(e: _Cpp, item: SimdReduce) -> str:
    if is_uniform(item.src):
        # Doubled five times: what the tree over equal lanes gives.
        return f"{e.operand(item.src)} * 32.0f"
    return e.combined(item) if item.uniform else e.group_value(item.result)


def _barrier(e: _Cpp, item: Barrier) -> None:
    """Nothing: phases end there."""


EXPRESSIONS: dict[type[Op], Expression] = {
    **VALUES,
    ThreadIndex: _thread_index,
    ProgramId: _program_id,
    NumPrograms: _num_programs,
    Shuffle: _shuffle,
    SimdReduce: _simd_reduce,
}
LINES: dict[type[Op], Statement] = {
    **STATEMENTS,
    **GROUPS,
    Barrier: _barrier,
    Print: write_print,
}


def emit_cpp(func: Func, ctx: Context) -> KernelSource:
    """The C++ text of a kernel: a function `metile_entry`. Needs Stage.THREAD.

    The text is the same in every process.
    """
    emitter = _Cpp(func, ctx)
    body, header = emitter.entry(), emitter.header()
    inputs, outputs = emitter.arguments()
    return KernelSource(
        name=unique_name(func.name, body, header, ctx.math_mode, func.threads, inputs, outputs),
        language="cpp",
        body=body,
        header=header,
        inputs=inputs,
        outputs=outputs,
        threads=func.threads,
        threadgroup_bytes=sum(item.elements * item.dtype.bytes for item in emitter.allocations()),
        math_mode=ctx.math_mode,
    )
