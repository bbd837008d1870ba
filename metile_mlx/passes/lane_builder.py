"""Builds one thread's program: metal ops whose ranges and forms are known as they appear.

What can be only one number becomes that constant, arithmetic that can't overflow is marked so, and
an operation that changes nothing is not built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from metile_mlx.analysis.bits import BitForm, Forms, Part, diagonals, plan
from metile_mlx.analysis.ranges import Ranges
from metile_mlx.dtypes import DType, Kind, i32, u32
from metile_mlx.errors import Loc
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind, element
from metile_mlx.ir.core import NOWHERE, Block, Builder, Effect, Op, Value
from metile_mlx.ir.types import ScalarType

WRAPPING = (BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL)
# Right operands that leave the left one as it is.
_NEUTRAL = {
    BinaryKind.ADD: 0,
    BinaryKind.SUB: 0,
    BinaryKind.MUL: 1,
    BinaryKind.SHL: 0,
    BinaryKind.SHR: 0,
    BinaryKind.OR: 0,
    BinaryKind.XOR: 0,
}
_COMMUTATIVE = (BinaryKind.ADD, BinaryKind.MUL, BinaryKind.AND, BinaryKind.OR, BinaryKind.XOR)


class LaneBuilder:
    """A Builder of metal ops for a threadgroup of `threads` threads, a power of two.

    Ops built outside `at` belong to `loc`. With `masked` the thread index is masked to its exact
    range, which tells a Metal compiler which of its bits are zero (SPEC R5). `propagate_ranges` as
    in Context.
    """

    def __init__(
        self,
        threads: int,
        loc: Loc = NOWHERE,
        masked: bool = False,
        propagate_ranges: bool = True,
    ) -> None:
        self.threads = threads
        self.ranges = Ranges(threads, propagate_ranges)
        self.forms = Forms(threads)
        self._builder = Builder(loc)
        # Integer constants that are in scope.
        self._integers: dict[tuple[int, str], Value] = {}
        self._axes: dict[Value, tuple[type[Op], int]] = {}
        # Bits of the thread index and linear maps of it that are in scope; what a bit chose.
        self._bits: dict[int, Value] = {}
        self._maps: dict[tuple[int, ...], Value] = {}
        self._sums: dict[tuple[tuple[int, ...], int, str], Value] = {}
        self._choices: dict[Value, tuple[int, Value, Value]] = {}
        self.thread = self.add(metal.ThreadIndex(), "" if masked else "tid")
        if masked:
            last = self.constant(threads - 1, u32)
            self.thread = self.binary(BinaryKind.AND, self.thread, last, "tid")

    @contextmanager
    def at(self, loc: Loc) -> Iterator[None]:
        """Ops built inside belong to this source location."""
        before, self._builder.loc = self._builder.loc, loc
        yield
        self._builder.loc = before

    def child(self) -> Builder:
        """A builder for a nested block."""
        return self._builder.child()

    @contextmanager
    def inside(self, builder: Builder) -> Iterator[None]:
        """Ops built meanwhile go to `builder`."""
        outer, self._builder = self._builder, builder
        in_scope, self._integers = self._integers, dict(self._integers)
        bits, self._bits = self._bits, dict(self._bits)
        maps, self._maps = self._maps, dict(self._maps)
        sums, self._sums = self._sums, dict(self._sums)
        yield
        self._builder, self._integers = outer, in_scope
        self._bits, self._maps, self._sums = bits, maps, sums

    def finish(self) -> Block:
        """The block of everything built."""
        return self._builder.block()

    def emit(self, item: Op, names: Sequence[str] = ()) -> tuple[Value, ...]:
        """Append an op with any number of results."""
        values = self._builder.emit(item, names)
        self.ranges.record(item)
        if isinstance(item, metal.ProgramId | metal.NumPrograms):
            self._axes[item.result] = (type(item), item.axis)
        return values

    def add(self, item: Op, name: str = "") -> Value:
        """Append an op with one result and return it, or the constant it always is."""
        (value,) = self.emit(item, (name,))
        self.forms.record(item)
        known = self.number(value)
        if known is None or item.effect is not Effect.PURE or isinstance(item, metal.Constant):
            return value
        self._builder.ops.pop()
        return self.constant(known, element(value), name)

    def number(self, value: Value) -> int | None:
        """The integer (bools are 0 and 1) that `value` always is, else None."""
        return self.ranges.point(value)

    def is_own_program(self, index: Value, extent: Value) -> bool:
        """Whether `index` is a program id and `extent` the grid's along the same axis."""
        here, size = self._axes.get(index), self._axes.get(extent)
        if here is None or size is None:
            return False
        return here[1] == size[1] and (here[0], size[0]) == (metal.ProgramId, metal.NumPrograms)

    def is_uniform(self, value: Value) -> bool:
        """Whether all threads hold the same."""
        return isinstance(value.type, ScalarType) and value.type.uniform

    def constant(self, value: int | float | bool, dtype: DType, name: str = "") -> Value:
        """A literal."""
        if dtype.kind is Kind.FLOAT:
            return self.add(metal.Constant(float(value), dtype), name)
        key = (int(value), dtype.name)
        if name or key not in self._integers:
            exact = bool(value) if dtype.kind is Kind.BOOL else int(value)
            self._integers[key] = self.add(metal.Constant(exact, dtype), name)
        return self._integers[key]

    def binary(self, kind: BinaryKind, lhs: Value, rhs: Value, name: str = "") -> Value:
        """lhs `kind` rhs."""
        dtype = element(lhs)
        if dtype.kind is Kind.FLOAT:
            return self.add(metal.Binary(kind, lhs, rhs), name)
        if kind in _COMMUTATIVE and self.number(lhs) is not None:
            lhs, rhs = rhs, lhs
        number = self.number(rhs)
        ones = kind is BinaryKind.AND and number == (-1 if dtype.is_signed else dtype.max)
        if number is not None and (number == _NEUTRAL.get(kind) or ones):
            return lhs
        nowrap = dtype is i32 and kind in WRAPPING and self.ranges.excludes_wrap(kind, lhs, rhs)
        return self.add(metal.Binary(kind, lhs, rhs, nowrap), name)

    def with_number(self, kind: BinaryKind, lhs: Value, rhs: int) -> Value:
        """lhs `kind` a constant of its dtype."""
        if rhs == _NEUTRAL.get(kind) and not element(lhs).is_float:
            return lhs
        return self.binary(kind, lhs, self.constant(rhs, element(lhs)))

    def unary(self, kind: UnaryKind, src: Value, name: str = "") -> Value:
        """`kind` of src."""
        return self.add(metal.Unary(kind, src), name)

    def compare(self, kind: CompareKind, lhs: Value, rhs: Value, name: str = "") -> Value:
        """lhs `kind` rhs, bool."""
        return self.add(metal.Compare(kind, lhs, rhs), name)

    def compare_number(self, kind: CompareKind, lhs: Value, rhs: int) -> Value:
        """lhs `kind` a constant of its dtype, bool."""
        return self.compare(kind, lhs, self.constant(rhs, element(lhs)))

    def select(self, condition: Value, on_true: Value, on_false: Value, name: str = "") -> Value:
        """on_true where condition, else on_false."""
        chosen = self.number(condition)
        if chosen is not None:
            return on_true if chosen else on_false
        return self.add(metal.Select(condition, on_true, on_false), name)

    def choose(self, bit: int, clear: Value, taken: Value) -> Value:
        """`taken` where this bit of the thread index is set, else `clear`."""
        # What the same bit has chosen already is known on each side.
        for_clear, for_taken = self._choices.get(clear), self._choices.get(taken)
        if for_clear is not None and for_clear[0] == bit:
            clear = for_clear[1]
        if for_taken is not None and for_taken[0] == bit:
            taken = for_taken[2]
        if clear is taken:
            return clear
        made = self.add(metal.Select(self.thread_bit(bit), taken, clear))
        self._choices[made] = (bit, clear, taken)
        return made

    def thread_bit(self, bit: int) -> Value:
        """Whether this bit of the thread index is set."""
        if bit not in self._bits:
            alone = self.with_number(BinaryKind.AND, self.thread, 1 << bit)
            self._bits[bit] = self.compare_number(CompareKind.NE, alone, 0)
        return self._bits[bit]

    def cast(self, src: Value, dtype: DType, name: str = "") -> Value:
        """src converted to dtype."""
        return src if element(src) == dtype else self.add(metal.Cast(src, dtype), name)

    def both(self, a: Value | None, b: Value | None) -> Value | None:
        """The mask a & b; None means everywhere."""
        if a is None or self.number(a) == 1:
            return b if b is None or self.number(b) != 1 else None
        return a if b is None else self.binary(BinaryKind.AND, a, b)

    def total(self, parts: Sequence[Value], dtype: DType) -> Value:
        """The sum of integers of one dtype, left to right."""
        result: Value | None = None
        for part in parts:
            result = part if result is None else self.binary(BinaryKind.ADD, result, part)
        return self.constant(0, dtype) if result is None else result

    def uniform_part(self, form: BitForm) -> Value:
        """The uniform rest of a form whose thread part is taken positive, i32."""
        values = [
            self.with_number(BinaryKind.MUL, self.cast(value, i32), factor)
            for value, factor in form.terms
        ]
        return self.total([*values, self.constant(form.positive()[0], i32)], i32)

    def thread_sum(self, coefficients: Sequence[int], flip: int, dtype: DType) -> Value:
        """The sum of coefficients[b] * bit b of (thread ^ flip), in u32 or u64."""
        key = (tuple(coefficients), flip, dtype.name)
        if key not in self._sums:
            self._sums[key] = self._thread_sum(coefficients, flip, dtype)
        return self._sums[key]

    def _thread_sum(self, coefficients: Sequence[int], flip: int, dtype: DType) -> Value:
        # Narrow arithmetic where the sum fits, widened once at the end.
        narrow = u32 if sum(coefficients) <= u32.max else dtype
        thread = self.cast(self.thread, narrow)
        thread = self.with_number(BinaryKind.XOR, thread, flip)
        parts = [self._part(thread, part) for part in plan(tuple(coefficients))]
        return self.cast(self.total(parts, narrow), dtype)

    def thread_map(self, columns: Sequence[int], constant: int) -> Value:
        """The XOR-affine map of the thread index with these columns, u32."""
        form = BitForm.of_map(columns, constant)
        if form is not None:
            offset, coefficients, flip = form.positive()
            moved = self.thread_sum(coefficients, flip, u32)
            return self.with_number(BinaryKind.ADD, moved, offset)
        parts = [self._part(self.thread, part) for part in diagonals(columns)]
        image = parts[0]
        for part in parts[1:]:
            image = self.binary(BinaryKind.XOR, image, part)
        return self.with_number(BinaryKind.XOR, image, constant)

    def slot_map(self, columns: Sequence[int], constant: int) -> Value:
        """As `thread_map`; maps that differ in their constant share all but the last operation."""
        key = tuple(columns)
        if key not in self._maps:
            self._maps[key] = self.thread_map(key, 0)
        return self.with_number(BinaryKind.XOR, self._maps[key], constant)

    def _part(self, thread: Value, part: Part) -> Value:
        mask = part.mask
        if part.shift < 0:
            thread = self.with_number(BinaryKind.SHR, thread, -part.shift)
            mask >>= -part.shift
        if part.needs_mask(self.forms.width):
            thread = self.with_number(BinaryKind.AND, thread, mask)
        if part.shift > 0:
            thread = self.with_number(BinaryKind.SHL, thread, part.shift)
        return self.with_number(BinaryKind.MUL, thread, part.factor)
