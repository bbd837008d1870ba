"""Loops over threads in C++, in the versions that masks, relations and spans ask for (SPEC X4)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from metile_mlx.context import Context
from metile_mlx.emit.cpp_indices import Offsets, Relation, leading
from metile_mlx.emit.cpp_values import CppValues
from metile_mlx.emit.literals import literal
from metile_mlx.emit.phases import Plan
from metile_mlx.emit.prefixes import Conditions, Prefix, Prefixes
from metile_mlx.emit.segments import Segment, live
from metile_mlx.emit.thread_tables import is_uniform
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Func, Op, Value
from metile_mlx.ir.metal import Binary, Load, Store
from metile_mlx.target import SIMD_WIDTH

# Measured on exchanges of 64 to 1024 threads, g++ 12 and clang++ 14: 32 is never far from the best
# of 8, 16, 32 and 64, which differ by up to 3 times; 64 threads unroll as a whole.
_UNROLLED_WHOLE = 64
_UNROLLED = 32


@dataclass(frozen=True)
class Held:
    """What is known to hold in a loop."""

    masks: tuple[Value, ...]
    related: tuple[Relation, ...]


class CppLanes(CppValues):
    """Writes segments; what one loop over threads holds is `cpp`'s."""

    def __init__(self, func: Func, ctx: Context, taken: tuple[str, ...]) -> None:
        super().__init__(func, ctx, taken)
        self.plan = Plan(func)
        self.lined = frozenset([*self.plan.over_threads, *self.plan.over_lanes, *self.plan.shared])
        self._segment: Segment | None = None
        # The array of each value that another segment uses.
        self._arrays: dict[Value, str] = {}
        self.offsets = Offsets(func, self.plan.tables)
        self._prefixes = Prefixes(self.defined, self.plan.tables, self.ranges)
        # What was seen to hold, like the masks of `holding`.
        self.related: tuple[Relation | None, ...] = ()

    @abstractmethod
    def _write_loop(
        self, segment: Segment, step: int, grouped: bool, begin: str = "0", end: str = ""
    ) -> None:
        """One loop over threads."""

    @abstractmethod
    def _write_ops(self, segment: Segment, position: str) -> None:
        """What is in it."""

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
        self.holding = segment.certain
        step = SIMD_WIDTH if grouped else self._step(segment)
        simple = grouped or step == self.func.threads
        uniform = tuple(mask for mask in segment.masks if is_uniform(mask))
        varying = tuple(m for m in segment.masks if not (segment.permuted or is_uniform(m)))
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
                if value in self._arrays:
                    self.line(f"{self._arrays[value]}[thread] = {self.operand(fill)};")
                for slot in self.plan.tiles.slots.get(value, ()):
                    self.line(f"{self._arrays[slot]}[thread] = {self.as_float(fill)};")
            self._close()

    def _write_holding(self, segment: Segment, grouped: bool, held: Held, end: str = "") -> None:
        self.holding, self.related = segment.certain.union(held.masks), held.related
        self._write_loop(segment, SIMD_WIDTH if grouped else self._step(segment), grouped, end=end)
        self.holding, self.related = segment.certain, ()

    def _write_halves(
        self,
        segment: Segment,
        grouped: bool,
        tests: list[str],
        varying: tuple[Value, ...],
        held: Held,
    ) -> None:
        """A loop up to the first thread where a mask doesn't hold, and one from there on."""
        threads = segment.extent or (SIMD_WIDTH if grouped else self.func.threads)
        known = leading(self.plan.tables, varying)
        joint = self._prefixes.joint(held.masks) if known is None and not held.related else None
        failing, wraps = self._failing(segment, joint), ""
        if known is not None:
            known = known if grouped else min(known, threads)
            whole = f"{known}u"
        elif joint is not None:
            whole, wraps = self._below(joint, threads, grouped, bool(failing))
        else:
            whole = self._count(tests, varying, threads, grouped)
        if grouped:
            test = f"{whole} == {threads}u" if known is None else f"group + {threads}u <= {whole}"
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
        if joint is not None:
            self._write_rest(segment, whole, wraps, failing)
        elif known != threads or tests:
            self._write_loop(segment, self.func.threads, False, begin=whole)

    def _failing(self, segment: Segment, joint: Conditions | None) -> frozenset[Value]:
        """The masks that ask for all conditions: none holds behind the first thread without one."""
        if joint is None:
            return frozenset()
        every = set(joint)
        return frozenset(m for m in segment.masks if every <= set(self._prefixes.of(m) or ()))

    def _write_rest(
        self, segment: Segment, whole: str, wraps: str, failing: frozenset[Value]
    ) -> None:
        """The threads from the first one on where a condition fails, and some masks with it."""
        threads = self.func.threads
        if wraps:
            self._open(f"if ({wraps}) {{")
            self._write_loop(segment, threads, False, begin=whole)
            self._otherwise()
        self.failing = failing
        if live(segment.ops, segment.kept, self.holding, self.failing):
            self._write_loop(segment, threads, False, begin=whole)
        self.failing = frozenset()
        if wraps:
            self._close()

    def _below(
        self, joint: Conditions, threads: int, grouped: bool, asks_wraps: bool
    ) -> tuple[str, str]:
        """Two variables: in how many first threads, or lanes, all conditions hold, and whether
        an index may wrap behind them; the second is empty where none does or nobody asks."""
        prefixes = [each for each in joint if isinstance(each, Prefix)]
        uniform = [self.operand(each) for each in joint if not isinstance(each, Prefix)]
        name, wraps = self.fresh("whole"), ""
        start = f"({' & '.join(uniform)}) ? {threads}u : 0u" if uniform else f"{threads}u"
        self.line(f"uint32_t {name} = {start};")
        if asks_wraps and any(each.wraps for each in prefixes) and not grouped:
            wraps = self.fresh(f"{name}_wraps")
            self.line(f"bool {wraps} = false;")
        self._open("{")
        self.line(f"const uint32_t thread = {'group' if grouped else '0'};")
        for item in self.plan.again.ops([each.index for each in prefixes]):
            self.write(item)
        for each in prefixes:
            dtype, index = element(each.index), self.operand(each.index)
            helper = f"below_{dtype}"
            self.helpers.add(helper)
            bound = self.operand(each.bound)
            self.line(f"{name} = metile_{helper}({index}, {bound}, {each.step}u, {name});")
            if each.wraps and wraps:
                last = literal(each.last(self.func.threads), dtype, self.spelling)
                self.line(f"{wraps} = {wraps} | ({index} > {last});")
        self._close()
        return name, wraps

    def _count(
        self, tests: list[str], varying: tuple[Value, ...], threads: int, grouped: bool
    ) -> str:
        """The name of a variable: in how many of the first threads, or lanes, every mask holds."""
        index = "lane" if grouped else "thread"
        name = self.fresh("whole")
        start = f"({' & '.join(tests)}) ? {threads}u : 0u" if tests else f"{threads}u"
        self.line(f"uint32_t {name} = {start};")
        self._open(f"for (uint32_t {index} = 0; {index} < {threads}; ++{index}) {{")
        if grouped:
            self.line("const uint32_t thread = group + lane;")
        for item in self.plan.again.ops(varying):
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

    def _is_masked_index(self, item: Op) -> bool:
        """A mask of the thread index that leaves it as it is."""
        return isinstance(item, Binary) and self.plan.tables.is_thread_index(item.result)

    def _step(self, segment: Segment) -> int:
        """Threads per inner loop: how far a loop with fixed moves is unrolled."""
        threads = self.func.threads
        return _UNROLLED if segment.permuted and threads > _UNROLLED_WHOLE else threads
