"""What MSL and C++ text have in common: names, one line per op, memory, branches.

A language is a subclass of `CStyle` with two tables: op class -> expression of its result, and op
class -> lines. An operand is a name, a literal or an integer conversion of a name, so each
expression holds one operation, and no compiler can contract a product with the sum that uses it:
contraction is only allowed within a statement.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from metile_mlx.analysis.ranges import analyse
from metile_mlx.context import Context
from metile_mlx.dtypes import DType, bool_, i32, u32
from metile_mlx.emit.literals import Spelling, float_literal, literal, round_to
from metile_mlx.emit.reserved import legal_identifier
from metile_mlx.emit.source import Argument
from metile_mlx.ir.arith import BinaryKind, element
from metile_mlx.ir.core import Block, Func, Op, Value, definitions, walk
from metile_mlx.ir.lanes import SharedAlloc
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.metal import (
    Cast,
    Compare,
    Constant,
    If,
    Load,
    NumPrograms,
    ProgramId,
    Shuffle,
    SimdReduce,
    Store,
    ThreadgroupAlloc,
    ThreadgroupLoad,
    ThreadgroupStore,
    ThreadIndex,
    Yield,
)
from metile_mlx.ir.stated import AxisReduction
from metile_mlx.ir.types import PointerType, ScalarType, ScratchType, VectorType

# (emitter, op) -> the expression of its result; (emitter, op) -> None, having written its lines.
Expression = Callable[[Any, Any], str]
Statement = Callable[[Any, Any], None]

# For values without a Python name.
_DEFAULT_NAMES: dict[type[Op], str] = {
    ThreadIndex: "thread_index",
    ProgramId: "program",
    NumPrograms: "programs",
    ThreadgroupLoad: "exchanged",
    Shuffle: "shuffled",
    SimdReduce: "combined",
    Load: "loaded",
}


def is_output(param: Value) -> bool:
    """Whether a parameter of a kernel at Stage.THREAD is written."""
    return isinstance(param.type, PointerType) and param.type.writable


class CStyle(ABC):
    """Writes the lines of one kernel.

    Args:
        func: a kernel at Stage.THREAD.
        ctx: its compilation.
        taken: identifiers the text around the lines uses.
    """

    spelling: Spelling
    expressions: Mapping[type[Op], Expression]
    statements: Mapping[type[Op], Statement]
    # Operators on masks; the operands are evaluated already.
    logical: Mapping[BinaryKind, str]
    # Whether signed overflow wraps by itself.
    signed_wraps: bool
    # Dtypes whose operators + - * / and comparisons have the dtype's own precision.
    native: frozenset[DType]

    def __init__(self, func: Func, ctx: Context, taken: Iterable[str] = ()) -> None:
        self.func = func
        self.ctx = ctx
        self.lines: list[str] = []
        self.depth = 1
        self.helpers: set[str] = set()
        self.defined = definitions(func)
        self.uses = Counter(value for item in walk(func.body) for value in item.operands())
        self._folded: dict[Value, str] = {}
        self._names: dict[Value, str] = {}
        self._taken = set(taken)
        self._inputs: list[str] | None = None
        for param in func.params:
            self.name(param)
        self._inputs = [self._names[param] for param in func.params if not is_output(param)]
        # What the block being written assigns at its end, and what of it its own values are.
        self._results: list[tuple[tuple[Value, ...], tuple[Value, ...]]] = []
        self.ranges = analyse(func)
        # Masks known to hold, or not to, where the lines now being written run.
        self.holding: frozenset[Value] = frozenset()
        self.failing: frozenset[Value] = frozenset()
        # Values that need a line of their own, whatever they are.
        self.lined: frozenset[Value] = frozenset()

    # Names

    def name(self, value: Value) -> str:
        """The identifier of a value: its Python name made legal, unique in the kernel (SPEC X1)."""
        if value not in self._names:
            self._names[value] = self.fresh(value.name or self._default_name(value))
        return self._names[value]

    def fresh(self, wish: str) -> str:
        """An identifier nothing else has, as close to `wish` as is legal."""
        made = legal_identifier(wish, self._taken, self._inputs)
        self._taken.add(made)
        return made

    def _default_name(self, value: Value) -> str:
        item = self.defined.get(value)
        if isinstance(item, ThreadgroupAlloc):
            return item.slot
        if item is not None and type(item) in _DEFAULT_NAMES:
            return _DEFAULT_NAMES[type(item)]
        if isinstance(item, Cast) and item.src.name:
            return f"{item.src.name}_{item.dtype}"
        if isinstance(value.type, VectorType):
            return "vector"
        if element(value) == bool_:
            return "is_true" if isinstance(item, Compare) else "mask"
        return "index" if element(value).is_integer else "value"

    def arguments(self) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
        """The inputs and the outputs of the kernel, in order, as the text names them."""
        inputs: list[Argument] = []
        outputs: list[Argument] = []
        for param in self.func.params:
            assert isinstance(param.type, PointerType | ScalarType)
            is_scalar = isinstance(param.type, ScalarType)
            made = Argument(self.name(param), param.name, param.type.dtype, is_scalar)
            (outputs if is_output(param) else inputs).append(made)
        return tuple(inputs), tuple(outputs)

    def allocations(self) -> list[ThreadgroupAlloc]:
        """The kernel's threadgroup memory, in program order."""
        return [item for item in walk(self.func.body) if isinstance(item, ThreadgroupAlloc)]

    # Lines

    def line(self, text: str) -> None:
        """Append one line at the current depth."""
        self.lines.append("  " * self.depth + text)

    def write(self, item: Op) -> None:
        """The lines of one op; none for what stands inline where it is used."""
        expression = self.expressions.get(type(item))
        if expression is None:
            self.statements[type(item)](self, item)
        elif not isinstance(item, Constant):
            text = expression(self, item)
            if self._stands_inline(item):
                self._folded[item.result] = text
            else:
                self.define(item.result, text)

    def define(self, value: Value, expression: str) -> None:
        """`type name = expression;`"""
        self.line(f"{self.type(element(value))} {self.name(value)} = {expression};")

    def _stands_inline(self, item: Op) -> bool:
        # Between integers a conversion is a spelling; with a name or a second use it gets its line.
        return (
            isinstance(item, Cast)
            and not item.result.name
            and self.uses[item.result] == 1
            and item.result not in self.lined
            and item.dtype.is_integer
            and element(item.src).is_integer
        )

    def write_block(self, block: Block) -> None:
        """The ops of a nested block, one level deeper."""
        self.depth += 1
        for item in block.ops:
            self.write(item)
        self.depth -= 1

    # Operands

    def type(self, dtype: DType) -> str:
        """The type of a value in the text."""
        return self.spelling.types[dtype]

    def operand(self, value: Value) -> str:
        """A value where it is used: a literal, a folded conversion, or its name."""
        item = self.defined.get(value)
        if isinstance(item, Constant):
            return literal(item.value, item.dtype, self.spelling)
        return self._folded.get(value) or self.name(value)

    def constant(self, value: Value) -> int | float | bool | None:
        """The value of a constant, else None."""
        item = self.defined.get(value)
        return item.value if isinstance(item, Constant) else None

    def convert(self, value: Value, dtype: DType) -> str:
        """An integer operand as another integer type, modulo its width."""
        known = self.constant(value)
        if known is not None:
            return literal(known, dtype, self.spelling)
        text = self.operand(value)
        return text if element(value) == dtype else f"{self.type(dtype)}({text})"

    def as_float(self, value: Value) -> str:
        """A float operand as an f32 expression."""
        known = self.constant(value)
        if known is not None:
            return float_literal(round_to(known, element(value)))
        return self.widen(self.operand(value), element(value))

    @abstractmethod
    def widen(self, text: str, dtype: DType) -> str:
        """A float expression of `dtype` as f32."""

    @abstractmethod
    def narrow(self, text: str, dtype: DType) -> str:
        """An f32 expression rounded to the float `dtype`."""

    @abstractmethod
    def function(self, name: str, *arguments: str) -> str:
        """A call of the f32 function `name` (a value of UnaryKind, `pow`, `fmod` or `fma`)."""

    @abstractmethod
    def nan_or(self, text: str, test: str) -> str:
        """Whether the f32 or native operand is NaN or a comparison holds."""

    @abstractmethod
    def reinterpret(self, text: str, source: DType, dtype: DType) -> str:
        """The bits of an expression as a type of the same width; at least one is a float."""

    # Lines of ops without a result, and of branches

    def buffer_value(self, text: str, dtype: DType) -> str:
        """An element of device memory as a value."""
        del dtype
        return text

    def load_text(self, buffer: Value, at: str, mask: Value | None, fill: Value | None) -> str:
        """`mask ? buffer[at] : fill`: a lane that is masked off touches no memory."""
        assert isinstance(buffer.type, PointerType)
        text = f"{self.name(buffer)}[{at}]"
        text = self.buffer_value(text, buffer.type.dtype)
        if mask is None or fill is None or mask in self.holding:
            return text
        if mask in self.failing:
            return self.operand(fill)
        return f"{self.operand(mask)} ? {text} : {self.operand(fill)}"

    def store_line(self, buffer: Value, at: str, value: Value, mask: Value | None) -> None:
        """`buffer[at] = value;`, guarded by the mask."""
        text = f"{self.name(buffer)}[{at}] = {self.operand(value)};"
        self._guarded(text, mask)

    def _guarded(self, text: str, mask: Value | None) -> None:
        if mask is None or mask in self.holding:
            self.line(text)
        elif mask not in self.failing:
            self.line(f"if ({self.operand(mask)}) {{ {text} }}")

    def store_row(self, item: Store) -> None:
        """The line of a store."""
        self.store_line(item.buffer, self.operand(item.index), item.value, item.mask)

    def threadgroup_store_row(self, item: ThreadgroupStore) -> None:
        """`scratch[index] = value;`, guarded by the mask."""
        text = f"{self.name(item.buffer)}[{self.operand(item.index)}] = {self.operand(item.value)};"
        self._guarded(text, item.mask)

    def if_row(self, item: If) -> None:
        """The results declared before, then both branches, each of which assigns them."""
        for value in item.results:
            self.line(f"{self.type(element(value))} {self.name(value)};")
        self._results.append((item.results, ()))
        self.line(f"if ({self.operand(item.condition)}) {{")
        self.write_block(item.then)
        if len(item.otherwise.ops) > 1 or item.results:
            self.line("} else {")
            self.write_block(item.otherwise)
        self.line("}")
        self._results.pop()

    def for_row(self, item: ThreadFor) -> None:
        """The carried values as variables, and the loop, which assigns them at its end."""
        self.carry(item)
        for init, result in zip(item.inits, item.results, strict=True):
            self.line(f"{self.type(element(result))} {self.name(result)} = {self.operand(init)};")
        self._results.append((item.results, item.carried))
        self.line(self.loop_head(item))
        self.write_block(item.body)
        self.line("}")
        self._results.pop()

    def carry(self, item: ThreadFor) -> None:
        """One name for what a loop carries: within it and afterwards."""
        for arg, result in zip(item.carried, item.results, strict=True):
            self._names[arg] = self._names[result] = self.fresh(arg.name or "carried")

    def loop_head(self, item: ThreadFor) -> str:
        """`for (int i = start; i < end; i += step) {`, which never counts past what an int holds.

        Where it might, the rest of the way decides, as a number without sign.
        """
        index, end, step = self.name(item.index), self.operand(item.end), self.operand(item.step)
        kind = self.type(i32)
        count = f"{index} += {step}"
        if not self.ranges.steps_fit(item):
            last, by = self.convert(item.end, u32), self.convert(item.step, u32)
            rest = f"{last} - {self.type(u32)}({index}) > {by}"
            count = f"{index} = {rest} ? {index} + {step} : {end}"
        return f"for ({kind} {index} = {self.operand(item.start)}; {index} < {end}; {count}) {{"

    def yield_row(self, item: Yield) -> None:
        """Assigns what the block hands over."""
        results, carried = self._results[-1]
        self.assign(list(map(self.name, results)), item.values, carried)

    def assign(
        self, targets: Sequence[str], values: Sequence[Value], carried: Sequence[Value]
    ) -> None:
        """Variables take values all at once; `carried` are the variables as values."""
        pairs = list(zip(targets, values, strict=True))
        texts = [self.operand(value) for value in values]
        for number, (name, value) in enumerate(pairs):
            # What another assignment changes is kept before.
            varies = value in carried or (carried and value in self._folded)
            if len(pairs) > 1 and varies and texts[number] != name:
                kept = self.fresh("carried_next")
                self.line(f"{self.type(element(value))} {kept} = {texts[number]};")
                texts[number] = kept
        for (name, _), text in zip(pairs, texts, strict=True):
            if text != name:
                self.line(f"{name} = {text};")


def load(emitter: CStyle, item: Load) -> str:
    """The element, or the fill."""
    return emitter.load_text(item.buffer, emitter.operand(item.index), item.mask, item.fill)


def threadgroup_load(emitter: CStyle, item: ThreadgroupLoad) -> str:
    """`mask ? scratch[index] : fill`"""
    assert isinstance(item.buffer.type, ScratchType)
    text = f"{emitter.name(item.buffer)}[{emitter.operand(item.index)}]"
    if item.mask is None or item.fill is None:
        return text
    return f"{emitter.operand(item.mask)} ? {text} : {emitter.operand(item.fill)}"


def constant(emitter: CStyle, item: Constant) -> str:
    """The literal."""
    return literal(item.value, item.dtype, emitter.spelling)


MEMORY: dict[type[Op], Expression] = {
    Constant: constant,
    Load: load,
    ThreadgroupLoad: threadgroup_load,
}


def nothing(emitter: CStyle, item: Op) -> None:
    """No text: what is stated for verifiers, or declared before the first line."""


STATEMENTS: dict[type[Op], Statement] = {
    AxisReduction: nothing,
    Store: CStyle.store_row,
    ThreadgroupAlloc: nothing,
    SharedAlloc: nothing,
    ThreadgroupStore: CStyle.threadgroup_store_row,
    If: CStyle.if_row,
    ThreadFor: CStyle.for_row,
    Yield: CStyle.yield_row,
}
