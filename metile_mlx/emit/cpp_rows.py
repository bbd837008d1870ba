"""Loops over the rows of tiles in C++: whole rows, rows that are cut, and what is behind (X4)."""

from __future__ import annotations

from collections.abc import Callable

from metile_mlx.emit.cpp_lanes import CppLanes
from metile_mlx.emit.prefixes import Conditions, Prefix, Prefixes
from metile_mlx.emit.segments import Row, Segment, live
from metile_mlx.emit.thread_tables import is_uniform
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.metal import ThreadIndex


class CppRows(CppLanes):
    """Writes segments whose threads are rows of a tile."""

    # What of the row at hand has a text already.
    in_row: frozenset[Value] = frozenset()

    def _write_segment(self, segment: Segment, grouped: bool) -> None:
        row = segment.row
        if row is None or segment.permuted or segment.extent is not None:
            super()._write_segment(segment, grouped)
            return
        self._open(f"for (uint32_t high = 0; high < {self.func.threads}; high += {row.threads}) {{")
        self._enter(segment, row)
        prefixes = Prefixes(
            self.defined, self.plan.tables, self.ranges, self._fixed(row), row.counting.__contains__
        )
        joint = prefixes.joint(segment.masks) if segment.masks else None
        if joint is None:
            self._row_loop(segment, "0", f"{row.threads}")
        else:
            self._write_cut(segment, row, self._whole(joint, row), joint)
        self.in_row = frozenset()
        self._close()

    def _enter(self, segment: Segment, row: Row) -> None:
        """The parts of the thread index, as far as they are the same in all of a row."""
        self.line("constexpr uint32_t low = 0;")
        self.line("const uint32_t thread = high;")
        for item in segment.ops:
            is_index = isinstance(item, ThreadIndex) or self._is_masked_index(item)
            if is_index or row.fixed.intersection(item.results):
                self.write(item)
            elif item.results and item.result in row.counting:
                start = "" if row.counting[item.result] else f"{self._start(item)} + "
                self._folded[item.result] = f"({start}low)" if start else "low"
        self.in_row = row.fixed.union(row.counting)

    def _start(self, item: Op) -> str:
        name = self.fresh(f"{self.name(item.result)}_high")
        self.line(f"const uint32_t {name} = {self.expressions[type(item)](self, item)};")
        return name

    def _fixed(self, row: Row) -> Callable[[Value], bool]:
        """Whether a value is the same in all threads of a row."""
        known: dict[Value, bool] = {}

        def fixed(value: Value) -> bool:
            if value not in known:
                item = self.defined.get(value)
                known[value] = is_uniform(value) or value in row.fixed
                if not known[value] and item is not None and value not in row.counting:
                    inner = self.plan.again.covers(item) and not isinstance(item, ThreadIndex)
                    known[value] = inner and all(map(fixed, item.operands()))
            return known[value]

        return fixed

    def _whole(self, joint: Conditions, row: Row) -> str:
        """A variable: in how many first threads of this row all conditions hold."""
        name = self.fresh("whole")
        self.line(f"uint32_t {name} = {row.threads};")
        self._open("{")
        indices = [each.index if isinstance(each, Prefix) else each for each in joint]
        for item in self.plan.again.ops(indices):
            self.write(item)
        for each in joint:
            if not isinstance(each, Prefix):
                self.line(f"{name} = {self.operand(each)} ? {name} : 0u;")
        for each in joint:
            if isinstance(each, Prefix):
                helper = f"below_{element(each.index)}"
                self.helpers.add(helper)
                index, bound = self.operand(each.index), self.operand(each.bound)
                self.line(f"{name} = metile_{helper}({index}, {bound}, {each.step}u, {name});")
        self._close()
        return name

    def _write_cut(self, segment: Segment, row: Row, whole: str, joint: Conditions) -> None:
        """A row that ends within, or has no part in bounds."""
        self._row_loop(segment, "0", whole, segment.masks)
        if any(isinstance(each, Prefix) and each.wraps for each in joint):
            self._row_loop(segment, whole, f"{row.threads}")
            return
        self.failing = frozenset(segment.masks) if len(segment.masks) == 1 else frozenset()
        if live(segment.ops, segment.kept, self.holding, self.failing):
            self._row_loop(segment, whole, f"{row.threads}")
        self.failing = frozenset()

    def _row_loop(
        self, segment: Segment, begin: str, end: str, holding: tuple[Value, ...] = ()
    ) -> None:
        self.holding = segment.certain.union(holding)
        self._segment = segment
        self._open(f"for (uint32_t low = {begin}; low < {end}; ++low) {{")
        self.line("const uint32_t thread = high + low;")
        self._write_ops(segment, "thread")
        self._close()
        self._segment, self.holding = None, segment.certain
