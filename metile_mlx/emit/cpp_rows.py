"""Loops over the rows of tiles in C++: whole rows, rows that are cut, and what is behind (X4)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metile_mlx.analysis.consecutive import Sums
from metile_mlx.context import Context
from metile_mlx.emit.cpp_lanes import CppLanes
from metile_mlx.emit.prefixes import Conditions, Prefix, Prefixes
from metile_mlx.emit.segments import Row, Segment, live
from metile_mlx.emit.thread_tables import is_uniform
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Func, Op, Value
from metile_mlx.ir.metal import Load, Store, ThreadIndex

# Rows that are read together where neighbours in memory stand in columns: a line of f32.
_TURNED = 16


class CppRows(CppLanes):
    """Writes segments whose threads are rows of a tile."""

    def __init__(self, func: Func, ctx: Context, taken: tuple[str, ...]) -> None:
        super().__init__(func, ctx, taken)
        self._sums = Sums(self.defined)

    # What of the row at hand has a text already.
    in_row: frozenset[Value] = frozenset()

    def _write_segment(self, segment: Segment, grouped: bool) -> None:
        row = segment.row
        if row is None or segment.permuted or segment.extent is not None:
            super()._write_segment(segment, grouped)
            return
        prefixes = Prefixes(
            self.defined, self.plan.tables, self.ranges, self._fixed(row), row.counting.__contains__
        )
        joint = prefixes.joint(segment.masks) if segment.masks else None
        if joint is None or not self._is_turned(segment, row):
            self._write_rows(segment, row, joint)
            return
        every = self.fresh("every")
        self.line(f"bool {every} = true;")
        self._open(self._head(row))
        self._enter(segment, row)
        self.line(f"{every} = {every} & ({self._whole(joint, row)} == {row.threads});")
        self._leave()
        self._open(f"if ({every}) {{")
        self._write_turned(segment, row)
        self._otherwise()
        self._write_rows(segment, row, joint)
        self._close()

    def _head(self, row: Row) -> str:
        return f"for (uint32_t high = 0; high < {self.func.threads}; high += {row.threads}) {{"

    def _write_rows(self, segment: Segment, row: Row, joint: Conditions | None) -> None:
        self._open(self._head(row))
        self._enter(segment, row)
        if joint is None:
            self._row_loop(segment, "0", f"{row.threads}")
        else:
            self._write_cut(segment, row, self._whole(joint, row), joint)
        self._leave()

    def _write_turned(self, segment: Segment, row: Row) -> None:
        """A tile whose neighbours in memory stand in a column: a few rows at once, by columns."""
        rows = min(_TURNED, self.func.threads // row.threads)
        step = rows * row.threads
        block, column, line = map(self.fresh, ("block", "column", "line"))
        for name, end, by in (
            (block, self.func.threads, step),
            (column, row.threads, 1),
            (line, rows, 1),
        ):
            self._open(f"for (uint32_t {name} = 0; {name} < {end}; {name} += {by}) {{")
        self.line(f"const uint32_t high = {block} + {line} * {row.threads};")
        self._enter(segment, row, f"{block} / {row.threads} + {line}")
        self.holding, self._segment = segment.certain.union(segment.masks), segment
        self._open("{")
        self.line(f"const uint32_t low = {column};")
        self.line("const uint32_t thread = high + low;")
        self._write_ops(segment, "thread")
        self._close()
        self._segment, self.holding = None, segment.certain
        self._leave()
        self._close()
        self._close()

    def _is_turned(self, segment: Segment, row: Row) -> bool:
        """Whether a load steps by one from row to row, and by more within one."""
        if any(isinstance(item, Store) for item in segment.ops):
            return False
        for item in segment.ops:
            if isinstance(item, Load):
                terms = dict(self._sums.of(item.index).terms)
                ones = {value for value, factor in terms.items() if factor == 1}
                if ones & row.fixed and not ones & set(row.counting):
                    return True
        return False

    def _enter(self, segment: Segment, row: Row, number: str = "") -> None:
        """The parts of the thread index, as far as they are the same in all of a row.

        `number`: the text of the row's own number, where it is none of the thread index.
        """
        self.line("constexpr uint32_t low = 0;")
        self.line("const uint32_t thread = high;")
        # What is the same in a row may be computed from what is not: from its first thread's.
        wanted = set(row.fixed)
        for item in reversed(segment.ops):
            if wanted.intersection(item.results):
                wanted.update(value for value in item.operands() if value not in row.counting)
        for item in segment.ops:
            is_index = isinstance(item, ThreadIndex) or self._is_masked_index(item)
            if is_index:
                self.write(item)
            elif row.fixed.intersection(item.results):
                if number and self._is_number(item, row):
                    self.define(item.result, number)
                else:
                    self.write(item)
            elif wanted.intersection(item.results):
                self.write(item)
            elif item.results and item.result in row.counting:
                start = "" if row.counting[item.result] else f"{self._start(item)} + "
                self._folded[item.result] = f"({start}low)" if start else "low"
        self.in_row = row.fixed.union(row.counting)

    def _leave(self) -> None:
        self.in_row = frozenset()
        self._close()

    def _is_number(self, item: Op, row: Row) -> bool:
        """Whether an op counts the rows."""
        table = self.plan.tables.table(item.result)
        return table is not None and bool((table == np.arange(len(table)) // row.threads).all())

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
