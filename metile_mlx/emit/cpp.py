"""C++ for the CPU: one function that runs a range of programs, its loops as planned (SPEC X4).

`buffers` are the arrays: the inputs, then the outputs; `scalars` the scalar inputs. Both in the
order of `KernelSource`. Programs are numbered with x fastest. The text needs `metile_cpu.h` before
it, and to be compiled with -fwrapv and -ffp-contract=off. A value of f16 or bf16 is carried as its
bits, so moving one never changes a NaN; each operation on it is computed in float and rounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from metile_mlx.context import Context
from metile_mlx.dtypes import i32, u64
from metile_mlx.emit.cpp_indices import Offsets, Relation, is_small, leading, permuted
from metile_mlx.emit.cpp_values import (
    GROUPS,
    HELPERS,
    TAKEN,
    VALUES,
    CppValues,
    equal_lanes,
    simd_helper,
    write_print,
)
from metile_mlx.emit.cstyle import STATEMENTS, Expression, Statement, nothing
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
    Load,
    NumPrograms,
    Print,
    ProgramId,
    Shuffle,
    SimdReduce,
    Store,
    ThreadIndex,
)
from metile_mlx.target import SIMD_WIDTH

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


@dataclass(frozen=True)
class Held:
    """What is known to hold in a loop."""

    masks: tuple[Value, ...]
    related: tuple[Relation, ...]


class _Cpp(CppValues):
    def __init__(self, func: Func, ctx: Context) -> None:
        super().__init__(func, ctx, TAKEN)
        self.expressions = EXPRESSIONS
        self.statements = LINES
        self.plan = Plan(func)
        self.lined = frozenset(self.plan.over_threads + self.plan.over_lanes)
        self._segment: Segment | None = None
        # What each simdgroup has combined, named before the loop that uses it.
        self._combined: dict[Value, str] = {}
        # Where a value stands that another segment computed.
        self._placed: dict[Value, str] = {}
        self._arrays: dict[Value, str] = {}
        self.offsets = Offsets(func, self.plan.tables)
        # What was seen to hold, like the masks of `holding`.
        self.related: tuple[Relation | None, ...] = ()

    # Structure

    def entry(self) -> str:
        """The function that does the work, and the one to call.

        Compilers believe __restrict of parameters only.
        """
        taken, given = self.parameters()
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
        for axis, name in enumerate(ids):
            if axis == 2:
                self.line("++program_z;")
            elif axis == len(ids) - 1:
                self.line(f"if (++program_{name} == grid[{axis}]) program_{name} = 0;")
            else:
                self._open(f"if (++program_{name} == grid[{axis}]) {{")
                self.line(f"program_{name} = 0;")
        for _ in ids[1:]:
            self._close()

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
        if segment.span is not None:
            self._write_span(segment, segment.span)
            return
        step = SIMD_WIDTH if grouped else self._step(segment)
        simple = grouped or step == self.func.threads
        masks = segment.masks if simple else ()
        uniform = tuple(mask for mask in masks if is_uniform(mask))
        varying = () if segment.permuted else tuple(m for m in masks if not is_uniform(m))
        if leading(self.plan.tables, varying) == 0:
            varying = ()
        related = self.offsets.assumed(segment.ops) if simple and not segment.permuted else ()
        tests = [self.operand(mask) for mask in uniform]
        for each in related:
            first, base = self.operand(each.first), self.operand(each.base)
            tests.append(f"({base} == {first} + {each.behind})")
        held = Held(uniform + varying, related)
        if varying:
            self._write_halves(segment, grouped, tests, varying, held)
        elif not tests:
            self._write_loop(segment, step, grouped)
        else:
            self._open(f"if ({' & '.join(tests)}) {{")
            self._write_holding(segment, grouped, held)
            # Without the one mask of all stores there is nothing to do; without another there is.
            if related or uniform != (segment.idle_without,):
                self._otherwise()
                self._write_loop(segment, step, grouped)
            self._close()

    def _write_span(self, segment: Segment, span: int) -> None:
        """The accesses of the first threads; what the others would have loaded is the fill."""
        accesses = [item for item in segment.ops if isinstance(item, Load | Store)]
        self.holding = frozenset(item.mask for item in accesses if item.mask is not None)
        self._segment = segment
        if span:
            self._open(f"for (uint32_t thread = 0; thread < {span}; ++thread) {{")
            self._write_ops(segment, "thread")
            self._close()
        self._segment, self.holding = None, frozenset()
        fills = [(i.result, i.fill) for i in accesses if isinstance(i, Load) and i.fill is not None]
        if fills:
            self._open(f"for (uint32_t thread = {span}; thread < {self.func.threads}; ++thread) {{")
            for value, fill in fills:
                self.line(f"{self._arrays[value]}[thread] = {self.operand(fill)};")
            self._close()

    def _write_holding(self, segment: Segment, grouped: bool, held: Held, end: str = "") -> None:
        self.holding, self.related = frozenset(held.masks), held.related
        self._write_loop(segment, SIMD_WIDTH if grouped else self._step(segment), grouped, end=end)
        self.holding, self.related = frozenset(), ()

    def _write_halves(
        self,
        segment: Segment,
        grouped: bool,
        tests: list[str],
        varying: tuple[Value, ...],
        held: Held,
    ) -> None:
        """A loop up to the first thread where a mask doesn't hold, and one from there on."""
        threads = SIMD_WIDTH if grouped else self.func.threads
        known = leading(self.plan.tables, varying)
        whole = f"{known}u" if known is not None else self._count(tests, varying, grouped)
        if grouped:
            test = f"{whole} == 32u" if known is None else f"group + 32u <= {whole}"
            if known is not None and tests:
                test = f"({test}) & {' & '.join(tests)}"
            self._open(f"if ({test}) {{")
            self._write_holding(segment, grouped, held)
            self._otherwise()
            self._write_loop(segment, threads, grouped)
            self._close()
            return
        if known is not None and tests:
            name = self.fresh("whole")
            self.line(f"const uint32_t {name} = ({' & '.join(tests)}) ? {whole} : 0u;")
            whole = name
        self._write_holding(segment, grouped, held, whole)
        if known != threads or tests:
            self._write_loop(segment, threads, grouped, begin=whole)

    def _count(self, tests: list[str], varying: tuple[Value, ...], grouped: bool) -> str:
        """The name of a variable: in how many of the first threads, or lanes, every mask holds."""
        threads, index = (SIMD_WIDTH, "lane") if grouped else (self.func.threads, "thread")
        name = self.fresh("whole")
        start = f"({' & '.join(tests)}) ? {threads}u : 0u" if tests else f"{threads}u"
        self.line(f"uint32_t {name} = {start};")
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
                self.line(f"const {self.type(element(item.src))} {name} = {self.combined(item)};")

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
        elif self.offsets.is_offset(item) and (text := self._offset(item)):
            self._folded[item.result] = text
        else:
            for value in item.results:
                self._folded.pop(value, None)
            super().write(item)

    def _offset(self, item: Binary) -> str:
        """The text of a sum where it is used; empty: it has a name."""
        made = self.offsets.relation(item)
        wide = element(item.result) == u64
        if wide and made not in self.related:
            return ""
        base = self.operand(item.lhs if made is None else made.first)
        parts = [base if wide else f"int64_t({self.type(i32)}({base}))"]
        if made is not None:
            parts.append(f"{made.behind}")
        return " + ".join([*parts, self.operand(item.rhs)])

    def group_value(self, value: Value) -> str:
        """What this simdgroup has combined."""
        return self._combined[value]

    def combined(self, item: SimdReduce) -> str:
        """The lanes of one simdgroup combined: this one's, or the first one's, where all agree."""
        helper = simd_helper(item.kind, element(item.src))
        self.helpers.add(helper)
        array, spans = self.array(item.src)
        return f"metile_{helper}({array}{' + group' if spans and not item.uniform else ''})"

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
        return equal_lanes(e, item)
    return e.combined(item) if item.uniform else e.group_value(item.result)


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
    Barrier: nothing,  # phases end there
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
