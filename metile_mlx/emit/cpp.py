"""C++ for the CPU: one function that runs a range of programs, its loops as planned (SPEC X4).

`buffers` are the arrays: the inputs, then the outputs; `scalars` the scalar inputs. Both in the
order of `KernelSource`. Programs are numbered with x fastest. The text needs `metile_cpu.h` before
it, and to be compiled with -fwrapv and -ffp-contract=off. A value of f16 or bf16 is carried as its
bits, so moving one never changes a NaN; each operation on it is computed in float and rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metile_mlx.context import Context
from metile_mlx.dtypes import i32, u32, u64
from metile_mlx.emit.cpp_indices import is_small, permuted
from metile_mlx.emit.cpp_rows import CppRows
from metile_mlx.emit.cpp_values import (
    GROUPS,
    HELPERS,
    TAKEN,
    VALUES,
    equal_lanes,
    simd_helper,
    write_print,
)
from metile_mlx.emit.cstyle import STATEMENTS, Expression, Statement, nothing
from metile_mlx.emit.naming import unique_name
from metile_mlx.emit.segments import Assign, Copy, Multiply, Part, Phase, Segment, live
from metile_mlx.emit.source import KernelSource
from metile_mlx.emit.thread_tables import is_contiguous, is_uniform
from metile_mlx.errors import VerificationError
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Func, Op, Value, walk
from metile_mlx.ir.lanes import ThreadLaneReduce, ThreadLaneShuffle, ThreadSync
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.matrix import BlockMultiply, FragmentMultiply
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

# Fewer are too few for their order to matter.
_SLOTS = 4
_RUN = "static __attribute__((noinline)) void metile_run("
_RANGE = "const uint32_t* grid, uint64_t begin, uint64_t end"
_SIGNATURE = (
    'extern "C" void metile_entry(void* const* buffers, const metile_scalar* scalars,\n'
    f"                             {_RANGE}) {{"
)


class _Cpp(CppRows):
    def __init__(self, func: Func, ctx: Context) -> None:
        super().__init__(func, ctx, TAKEN)
        self.expressions = EXPRESSIONS
        self.statements = {**LINES, **STEPS}
        # What each simdgroup has combined, named before the loop that uses it.
        self._combined: dict[Value, str] = {}
        # Where a value stands that another segment computed.
        self._placed: dict[Value, str] = {}
        # Lines that overwrite what ops of the same loop read.
        self._late: list[str] = []

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
        self._write_parts(self.plan.parts)
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
        for tile in self.plan.tiles:
            self._declare_tile(tile)
        for values, size, suffix in (
            ([*self.plan.carried, *self.plan.over_threads], self.func.threads, "all"),
            (self.plan.over_lanes, SIMD_WIDTH, "lanes"),
        ):
            for value in (value for value in values if value not in self._arrays):
                name = self._arrays[value] = self.fresh(f"{self.name(value)}_{suffix}")
                self.line(f"alignas(64) {self.stored(element(value))} {name}[{size}];")
        for value in self.plan.shared:
            place = self.plan.tiles.place(value)
            if place in self._arrays:
                self._arrays[value] = self._arrays[place]

    def _declare_tile(self, slots: Sequence[Value]) -> None:
        """One array; each slot is a part of it."""
        threads = self.func.threads
        whole = self.fresh(f"{self.name(slots[0])}_tile")
        self.line(f"alignas(64) float {whole}[{len(slots) * threads}];")
        for number, value in enumerate(slots):
            self._arrays[value] = whole
            if number:
                name = self._arrays[value] = self.fresh(f"{whole}_{number}")
                self.line(f"float* const {name} = {whole} + {number * threads};")

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

    def _write_parts(self, parts: Iterable[Part]) -> None:
        for part in parts:
            if isinstance(part, Phase):
                self._write_phase(part)
            elif isinstance(part.op, ThreadFor):
                self._write_parts(part.before)
                self._write_for(part.op, part.bodies[0])
            else:
                self._write_if(part.op, part.bodies)

    def _write_for(self, item: ThreadFor, body: Iterable[Part]) -> None:
        self.carry(item)
        for result, init in zip(item.results, item.inits, strict=True):
            if is_uniform(result):
                kind = self.type(element(result))
                self.line(f"{kind} {self.name(result)} = {self.operand(init)};")
        self._open(self.loop_head(item))
        self._write_parts(body)
        self._close()

    def _write_if(self, item: If, sides: Sequence[Iterable[Part]]) -> None:
        for result in item.results:
            if is_uniform(result):
                self.line(f"{self.type(element(result))} {self.name(result)};")
        self._open(f"if ({self.operand(item.condition)}) {{")
        self._write_parts(sides[0])
        self._otherwise()
        self._write_parts(sides[1])
        self._close()

    def write_assign(self, item: Assign) -> None:
        """Variables of the program, or elements of arrays, take values."""
        targets = [
            self.name(value) if is_uniform(value) else f"{self._arrays[value]}[thread]"
            for value in item.targets
        ]
        self.assign(targets, item.values, item.carried)

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
            self.holding = frozenset()
        if phase.grouped:
            self._close()

    def _write_loop(
        self, segment: Segment, step: int, grouped: bool, begin: str = "0", end: str = ""
    ) -> None:
        self._segment = segment
        threads = self.func.threads
        assert grouped or threads % step == 0, "loops take all threads, each once"
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
        if not all(is_contiguous(moves.columns) for moves in segment.permuted.values()):
            small = step > SIMD_WIDTH and is_small(segment)
            self.helpers.add("unroll_small" if small else "unroll")
            self.line("METILE_UNROLL_SMALL" if small else "METILE_UNROLL")
        elif not outer and begin == "0" and not end and self._copies_wide_slots(segment):
            self.helpers.add("neighbours")
            self.line("METILE_NEIGHBOURS")
        inner = {"group": "lane", "high": "low", "": "thread"}[outer]
        last = end or f"{segment.extent or step}"
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

    def _copies_wide_slots(self, segment: Segment) -> bool:
        """Whether its loop reads slots of 32 lanes of 32 bits and writes to the same places."""
        if (segment.extent or self.func.threads) != SIMD_WIDTH:
            return False
        loads = (i for i in segment.ops if isinstance(i, Load) and element(i.result).bytes == 4)
        stores = (i for i in segment.ops if isinstance(i, Store) and element(i.value).bytes == 4)
        places = {item.index for item in loads}.intersection(item.index for item in stores)
        return len(places) >= _SLOTS

    def _combine(self, segment: Segment) -> None:
        """The reductions over lanes whose values an earlier segment of this simdgroup has kept."""
        for item in segment.ops:
            if isinstance(item, SimdReduce) and not is_uniform(item.src):
                name = self._combined[item.result] = self.fresh(f"{self.name(item.result)}_group")
                self.line(f"const {self.type(element(item.src))} {name} = {self.combined(item)};")

    def _write_ops(self, segment: Segment, position: str) -> None:
        own = {value for item in segment.ops for value in item.results}
        ops = live(segment.ops, segment.kept, self.holding, self.failing)
        near = set(self.plan.over_lanes)
        self._placed = {
            value: f"{name}[{position if value in near else 'thread'}]"
            for value, name in self._arrays.items()
            if value not in own
        }
        for item in ops:
            self.write(item)
            if isinstance(item, If):
                for value in item.results:
                    self._keep(value)
        for line in self._late:
            self.line(line)
        self._placed, self._late = {}, []

    def _keep(self, value: Value) -> None:
        if self._segment is not None and value in self._segment.kept:
            index = "lane" if value in self.plan.over_lanes else "thread"
            line = f"{self._arrays.get(value)}[{index}] = {self.name(value)};"
            if value in self.plan.shared:
                self._late.append(line)
            elif value in self._arrays:
                self.line(line)
            for slot in self.plan.tiles.slots.get(value, ()):
                self.line(f"{self._arrays[slot]}[thread] = {self.as_float(value)};")

    # Values

    def define(self, value: Value, expression: str) -> None:
        self.line(f"const {self.type(element(value))} {self.name(value)} = {expression};")
        self._keep(value)

    def operand(self, value: Value) -> str:
        return self._placed.get(value) or super().operand(value)

    def write(self, item: Op) -> None:
        if self.in_row.intersection(item.results):
            return
        is_kept = self._segment is not None and not self._segment.kept.isdisjoint(item.results)
        if isinstance(item, ThreadIndex) and not is_kept:
            self._folded[item.result] = "thread"
        elif self._is_masked_index(item) and not is_kept:
            # The variable is unsigned; of an i32, what compares or divides has to be signed.
            is_own = element(item.result) == u32
            self._folded[item.result] = "thread" if is_own else f"{self.type(i32)}(thread)"
        elif isinstance(item, Binary) and not is_kept and (behind := self._behind(item)):
            self._folded[item.result] = f"(thread + {behind}u)"
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

    def _behind(self, item: Binary) -> int | None:
        """How far a u32 lies behind the thread index."""
        return self.plan.tables.behind(item.result) if element(item.result) == u32 else None

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


def _copy(e: _Cpp, item: Copy) -> None:
    e.line(f"{e.array(item.target[0])[0]}[thread] = {e.as_float(item.value)};")


def _multiply(e: _Cpp, item: Multiply) -> None:
    e.helpers.add("multiply")
    a, b, targets = (e.array(values[0])[0] for values in (item.a, item.b, item.targets))
    shape = ", ".join(map(str, item.shape))
    e.line(f"metile_multiply<{shape}>({a}, {b}, {targets});")


def _block_multiply(e: _Cpp, item: BlockMultiply) -> None:
    raise VerificationError(f"{item.opcode} has no phase of its own", item.loc)


def _fragment_multiply(e: _Cpp, item: FragmentMultiply) -> None:
    raise VerificationError(f"{item.opcode} is for simdgroups; a CPU multiplies blocks", item.loc)


EXPRESSIONS: dict[type[Op], Expression] = {
    **VALUES,
    ThreadIndex: _thread_index,
    ProgramId: _program_id,
    NumPrograms: _num_programs,
    Shuffle: _shuffle,
    SimdReduce: _simd_reduce,
    ThreadLaneReduce: _simd_reduce,
    ThreadLaneShuffle: _shuffle,
}
LINES: dict[type[Op], Statement] = {
    **STATEMENTS,
    **GROUPS,
    ThreadSync: nothing,
    Barrier: nothing,  # phases end there
    Print: write_print,
    BlockMultiply: _block_multiply,
    FragmentMultiply: _fragment_multiply,
}
# What only the plan of the loops has.
STEPS: dict[type[Op], Statement] = {Assign: _Cpp.write_assign, Copy: _copy, Multiply: _multiply}


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
