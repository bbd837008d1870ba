"""Intervals hold every value that any thread of any launch computes (SPEC R5, K3)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metile_mlx.analysis.ranges import Interval, Ranges, analyse, decide, full
from metile_mlx.dtypes import DType, bool_, f32, i32, u32, u64
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Block, Builder, Func, Op, Value
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.types import ScalarType
from tests.support import profile, simulate
from tests.support.arithmetic import INTEGER_BINARY, INTEGER_UNARY, NUMPY, Array, binary

THREADS = 64
EXTREMES = (-(2**31), -(2**31) + 1, -65536, -8, -1, 0, 1, 2, 7, 31, 32, 65535, 2**31 - 1)
DIVISIONS = (BinaryKind.DIV, BinaryKind.REM)


class Known:
    """A Ranges with values of chosen intervals."""

    def __init__(self) -> None:
        self.ranges = Ranges(THREADS)
        self.builder = Builder()

    def value(self, lo: int, hi: int, dtype: DType = i32) -> Value:
        """An unknown value in lo..hi: one of two constants."""
        ends = [self.add(metal.Constant(end, dtype)) for end in (lo, hi)]
        return self.add(metal.Select(Value(ScalarType(bool_)), *ends))

    def add(self, item: Op) -> Value:
        value = self.builder.add(item)
        self.ranges.record(item)
        return value

    def of(self, item: Op) -> Interval:
        return self.ranges.of(self.add(item))


@pytest.mark.parametrize("dtype", [i32, u32])
@pytest.mark.parametrize("kind", INTEGER_BINARY)
def test_an_interval_holds_every_result_of_its_corners(kind: BinaryKind, dtype: DType) -> None:
    """Every pair of intervals between extreme numbers, every pair of extreme members."""
    numbers = sorted({number % 2**32 for number in EXTREMES} if dtype is u32 else EXTREMES)
    pairs = list(itertools.combinations_with_replacement(numbers[::2], 2))
    for a, b in itertools.product(pairs, repeat=2):
        members = np.array(
            [
                (x, y)
                for x in numbers
                if a[0] <= x <= a[1]
                for y in numbers
                if b[0] <= y <= b[1] and not (kind in DIVISIONS and y in (0, -1))
            ],
            NUMPY[dtype],
        ).reshape(-1, 2)
        known = Known()
        lo, hi = known.of(metal.Binary(kind, known.value(*a, dtype), known.value(*b, dtype)))
        with np.errstate(all="ignore"):
            found = binary(kind, members[:, 0], members[:, 1], dtype)
        assert np.all((lo <= found) & (found <= hi)), (kind, a, b)


@pytest.mark.parametrize(
    ("kind", "a", "b", "expected"),
    [
        (BinaryKind.ADD, (0, 100), (-5, 5), (-5, 105)),
        (BinaryKind.ADD, (0, 2**31 - 1), (0, 1), (i32.min, i32.max)),
        (BinaryKind.MUL, (-3, 4), (-5, 6), (-20, 24)),
        (BinaryKind.DIV, (-9, 9), (2, 4), (-4, 4)),
        (BinaryKind.REM, (0, 100), (8, 8), (0, 7)),
        (BinaryKind.REM, (-3, 100), (1, 8), (-3, 7)),
        (BinaryKind.SHR, (-16, 63), (3, 3), (-2, 7)),
        (BinaryKind.SHL, (0, 7), (3, 3), (0, 56)),
        (BinaryKind.SHL, (0, 1), (31, 31), (i32.min, i32.max)),
        (BinaryKind.AND, (-5, 1000), (0, 7), (0, 7)),
        (BinaryKind.OR, (8, 8), (0, 7), (8, 15)),
        (BinaryKind.XOR, (0, 63), (0, 9), (0, 63)),
        (BinaryKind.MINIMUM, (0, 9), (4, 5), (0, 5)),
        (BinaryKind.MAXIMUM, (-9, 9), (0, 0), (0, 9)),
    ],
)
def test_intervals_are_as_narrow_as_stated(
    kind: BinaryKind, a: tuple[int, int], b: tuple[int, int], expected: tuple[int, int]
) -> None:
    known = Known()
    assert known.of(metal.Binary(kind, known.value(*a), known.value(*b))) == expected


@pytest.mark.parametrize(
    ("kind", "dtype", "a", "expected"),
    [
        (UnaryKind.NEG, i32, (-3, 5), (-5, 3)),
        (UnaryKind.NEG, i32, (i32.min, 5), full(i32)),
        (UnaryKind.NEG, u32, (1, 5), full(u32)),
        (UnaryKind.ABS, i32, (-7, 5), (0, 7)),
        (UnaryKind.ABS, i32, (-7, -5), (5, 7)),
        (UnaryKind.ABS, i32, (i32.min, 0), full(i32)),
        (UnaryKind.NOT, i32, (0, 7), (-8, -1)),
        (UnaryKind.NOT, u32, (0, 7), (2**32 - 8, 2**32 - 1)),
        (UnaryKind.NOT, bool_, (0, 0), (1, 1)),
    ],
)
def test_unary_intervals(
    kind: UnaryKind, dtype: DType, a: tuple[int, int], expected: tuple[int, int]
) -> None:
    known = Known()
    assert known.of(metal.Unary(kind, known.value(*a, dtype))) == expected


def test_casts_keep_what_fits_and_forget_what_wraps() -> None:
    known = Known()
    assert known.of(metal.Cast(known.value(0, 9), u32)) == (0, 9)
    assert known.of(metal.Cast(known.value(-1, 9), u32)) == full(u32)
    assert known.of(metal.Cast(known.value(-1, 9), u64)) == full(u64)
    assert known.of(metal.Cast(known.value(3, 9), bool_)) == (1, 1)
    assert known.of(metal.Cast(known.value(0, 0), bool_)) == (0, 0)
    assert known.of(metal.Cast(known.add(metal.Constant(2.0, f32)), i32)) == full(i32)


def test_what_the_launch_guarantees_is_known_and_nothing_of_parameters() -> None:
    known = Known()
    assert known.of(metal.ThreadIndex()) == (0, THREADS - 1)
    assert known.of(metal.ProgramId(2)) == (0, 2**31 - 1)
    assert known.of(metal.NumPrograms(0)) == (1, 2**31 - 1)
    assert known.ranges.of(Value(ScalarType(i32))) == full(i32)


@pytest.mark.parametrize("kind", CompareKind)
def test_a_comparison_is_decided_exactly_when_all_members_agree(kind: CompareKind) -> None:
    small = [Interval(lo, hi) for lo in range(4) for hi in range(lo, 4)]
    compare = {
        CompareKind.EQ: int.__eq__,
        CompareKind.NE: int.__ne__,
        CompareKind.LT: int.__lt__,
        CompareKind.LE: int.__le__,
        CompareKind.GT: int.__gt__,
        CompareKind.GE: int.__ge__,
    }[kind]
    for a, b in itertools.product(small, repeat=2):
        answers = {compare(x, y) for x in range(a.lo, a.hi + 1) for y in range(b.lo, b.hi + 1)}
        assert decide(kind, a, b) == (answers.pop() if len(answers) == 1 else None)


@pytest.mark.parametrize(
    ("kind", "a", "b", "safe"),
    [
        (BinaryKind.ADD, (0, 2**31 - 2), (0, 1), True),
        (BinaryKind.ADD, (0, 2**31 - 1), (0, 1), False),
        (BinaryKind.SUB, (-1, 0), (0, 2**31 - 1), True),
        (BinaryKind.SUB, (-2, 0), (0, 2**31 - 1), False),
        (BinaryKind.MUL, (0, 2**16), (0, 2**15 - 1), True),
        (BinaryKind.MUL, (0, 2**16), (0, 2**15), False),
        (BinaryKind.MUL, (i32.min, 0), (-1, 0), False),
    ],
)
def test_wrap_is_excluded_exactly_up_to_the_limit(
    kind: BinaryKind, a: tuple[int, int], b: tuple[int, int], safe: bool
) -> None:
    known = Known()
    assert known.ranges.excludes_wrap(kind, known.value(*a), known.value(*b)) is safe


@st.composite
def programs(draw: st.DrawFn) -> Func:
    """Straight-line integer programs over the thread index, a program id and two parameters."""
    params = (Value(ScalarType(i32), "a"), Value(ScalarType(u32), "b"))
    builder = Builder()
    pool: dict[DType, list[Value]] = {i32: [params[0]], u32: [params[1]], bool_: []}

    def keep(item: Op) -> None:
        value = builder.add(item)
        assert isinstance(value.type, ScalarType)
        pool[value.type.dtype].append(value)

    keep(metal.ThreadIndex())
    keep(metal.ProgramId(0))
    for number in draw(st.lists(st.sampled_from(EXTREMES), min_size=2, max_size=4)):
        keep(metal.Constant(number, i32))
        keep(metal.Constant(number % 2**32, u32))
    kinds = [kind for kind in INTEGER_BINARY if kind not in DIVISIONS]
    for _ in range(draw(st.integers(1, 12))):
        dtype = draw(st.sampled_from([i32, u32]))
        a, b = (draw(st.sampled_from(pool[dtype])) for _ in range(2))
        choice = draw(st.integers(0, 9))
        if choice < 5:
            keep(metal.Binary(draw(st.sampled_from(kinds)), a, b))
        elif choice == 5:
            keep(metal.Unary(draw(st.sampled_from(list(INTEGER_UNARY))), a))
        elif choice == 6:
            keep(metal.Compare(draw(st.sampled_from(list(CompareKind))), a, b))
        elif choice == 7 and pool[bool_]:
            keep(metal.Select(draw(st.sampled_from(pool[bool_])), a, b))
        else:
            keep(metal.Cast(a, u32 if dtype is i32 else i32))
    return Func("random", params, builder.block(), threads=THREADS)


@settings(max_examples=profile.count(ci=300, full=20_000))
@given(programs(), st.sampled_from(EXTREMES), st.integers(0, 2**32 - 1))
def test_intervals_hold_every_simulated_value(func: Func, a: int, b: int) -> None:
    ranges = analyse(func)

    def check(item: Op, arrays: tuple[Array, ...]) -> None:
        for value, array in zip(item.results, arrays, strict=True):
            lo, hi = ranges.of(value)
            assert lo <= int(array.min()), item
            assert int(array.max()) <= hi, item

    simulate.run(func, {}, {"a": a, "b": b}, (2,), check)


def test_both_sides_of_a_branch_reach_its_result() -> None:
    def block(number: int) -> Block:
        inner = Builder()
        inner.emit(metal.Yield((inner.add(metal.Constant(number, i32)),)))
        return inner.block()

    condition = Value(ScalarType(bool_), "c")
    builder = Builder()
    (result,) = builder.emit(metal.If(condition, block(3), block(8)))
    func = Func("branch", (condition,), builder.block(), threads=32)
    assert analyse(func).of(result) == (3, 8)


def test_literals_are_their_own_interval() -> None:
    known = Known()
    for number, dtype in ((True, bool_), (-7, i32), (2**32 - 1, u32)):
        assert known.of(metal.Constant(number, dtype)) == (number, number)


@pytest.mark.parametrize("propagate", [True, False])
def test_a_loop_says_nothing_of_its_index_where_only_constants_are_known(propagate: bool) -> None:
    """To count what ranges are worth, the facts of loops have to be forgotten like all others."""
    ranges, builder = Ranges(THREADS, propagate), Builder()
    ends = [builder.add(metal.Constant(end, i32)) for end in (3, 9, 5)]
    for item in builder.ops:
        ranges.record(item)
    end = Value(ScalarType(i32), "n")
    index = Value(ScalarType(i32), "i")
    loop = ThreadFor(ends[0], end, ends[2], (), Block((), (index,)))
    ranges.enter(loop)
    whole = full(i32)
    assert ranges.of(index) == (Interval(3, whole.hi - 4) if propagate else whole)
    assert ranges.of(end) == (Interval(4, whole.hi) if propagate else whole)
    assert not ranges.steps_fit(loop)
    ranges.leave(loop)
    assert ranges.of(end) == whole


def test_a_loop_takes_whole_steps_from_its_start() -> None:
    """K in tiles of 16: every element of the last one is below K, if K is a multiple of 16."""
    for start, end, step, last in ((0, 64, 16, 48), (0, 65, 16, 64), (3, 10, 7, 3), (5, 5, 2, 5)):
        ranges, builder = Ranges(THREADS), Builder()
        bounds = [builder.add(metal.Constant(number, i32)) for number in (start, end, step)]
        for item in builder.ops:
            ranges.record(item)
        index = Value(ScalarType(i32), "k")
        ranges.enter(ThreadFor(bounds[0], bounds[1], bounds[2], (), Block((), (index,))))
        assert ranges.of(index) == (start, last)
