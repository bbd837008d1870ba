"""Forms over thread bits equal what the operations compute, and are planned in few operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metile_mlx.analysis.bits import BitForm, Forms, Part, diagonals, plan, signed
from metile_mlx.dtypes import i32, u32
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, UnaryKind, element
from metile_mlx.ir.core import Builder, Func, Op, Value
from metile_mlx.ir.types import ScalarType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout
from tests.support import profile, simulate
from tests.support.arithmetic import Array

THREADS = 64
WIDTH = 6
NUMBERS = (-8, -5, -1, 0, 1, 2, 3, 4, 5, 7, 8, 15, 16, 31, 33, 63, 64, 100, 2**31 - 1, -(2**31))
KINDS = (
    BinaryKind.ADD,
    BinaryKind.SUB,
    BinaryKind.MUL,
    BinaryKind.SHL,
    BinaryKind.SHR,
    BinaryKind.AND,
    BinaryKind.OR,
    BinaryKind.XOR,
)


def evaluate(form: BitForm, uniform: dict[Value, int], threads: int = THREADS) -> Array:
    """The form on every thread, as signed 32-bit numbers in int64."""
    constant = form.constant + sum(factor * uniform[value] for value, factor in form.terms)
    found = [
        signed(constant + sum(c for b, c in enumerate(form.bits) if thread >> b & 1))
        for thread in range(threads)
    ]
    return np.array(found, np.int64)


def parts_of(parts: Sequence[Part], threads: Array, combine: str = "add") -> Array:
    total = np.zeros_like(threads)
    for part in parts:
        moved = threads & part.mask
        moved = moved << part.shift if part.shift >= 0 else moved >> -part.shift
        total = total + moved * part.factor if combine == "add" else total ^ moved * part.factor
    return total


class Chain:
    """Index arithmetic on one thread's program, with the forms of its values."""

    def __init__(self) -> None:
        self.forms = Forms(THREADS)
        self.builder = Builder()
        self.uniform = Value(ScalarType(i32), "base")
        self.thread = self.add(metal.Cast(self.add(metal.ThreadIndex()), i32))

    def add(self, item: Op) -> Value:
        value = self.builder.add(item)
        self.forms.record(item)
        return value

    def op(self, kind: BinaryKind, lhs: Value, rhs: Value | int) -> Value:
        if isinstance(rhs, int):
            number = rhs if element(lhs) is i32 else rhs % 2**32
            rhs = self.add(metal.Constant(number, element(lhs)))
        return self.add(metal.Binary(kind, lhs, rhs))

    def func(self) -> Func:
        return Func("chain", (self.uniform,), self.builder.block(), threads=THREADS)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    chain = Chain()
    pool = [chain.thread, chain.uniform, chain.op(BinaryKind.ADD, chain.uniform, chain.thread)]
    for _ in range(draw(st.integers(1, 8))):
        lhs = draw(st.sampled_from(pool))
        if draw(st.integers(0, 5)):
            rhs: Value | int = draw(st.sampled_from(NUMBERS))
        else:
            rhs = draw(st.sampled_from([v for v in pool if element(v) is element(lhs)]))
        choice = draw(st.integers(0, 9))
        if choice == 0:
            kind = draw(st.sampled_from([UnaryKind.NEG, UnaryKind.NOT]))
            pool.append(chain.add(metal.Unary(kind, lhs)))
        elif choice == 1:
            pool.append(chain.add(metal.Cast(lhs, u32 if element(lhs) is i32 else i32)))
        else:
            pool.append(chain.op(draw(st.sampled_from(KINDS)), lhs, rhs))
    return chain


@settings(max_examples=profile.count(ci=500, full=50_000))
@given(chains(), st.sampled_from((0, 64, -64, 5, 2**31 - 1, -(2**31))))
def test_forms_equal_enumeration(chain: Chain, base: int) -> None:
    """Also where i32 sums wrap, and where a uniform number takes part."""
    uniform = {chain.uniform: base}

    def check(item: Op, arrays: tuple[Array, ...]) -> None:
        (value,), (array,) = item.results, arrays
        if array.size == 1:
            uniform[value] = int(array[0])
        form = chain.forms.of(value) if element(value) in (i32, u32) else None
        if form is not None:
            found = np.broadcast_to(array.astype(np.int64), THREADS)
            assert [signed(int(x)) for x in found] == evaluate(form, uniform).tolist(), item

    simulate.run(chain.func(), {}, {"base": base}, (1,), check)


def test_the_forms_that_kernels_write_are_all_found() -> None:
    """Row and column of a tile, blocks of it, and what a swizzle makes of them."""
    chain = Chain()
    row, column = (
        chain.op(BinaryKind.SHR, chain.thread, 3),
        chain.op(BinaryKind.AND, chain.thread, 7),
    )
    pitched = chain.op(BinaryKind.ADD, chain.op(BinaryKind.MUL, row, 9), column)
    origin = chain.op(BinaryKind.MUL, chain.uniform, 64)
    index = chain.op(BinaryKind.ADD, origin, chain.thread)
    back = chain.op(BinaryKind.SUB, index, origin)
    found = {
        row: (0, 0, 0, 1, 2, 4),
        column: (1, 2, 4, 0, 0, 0),
        pitched: (1, 2, 4, 9, 18, 36),
        chain.op(BinaryKind.XOR, column, 5): (-1, 2, -4, 0, 0, 0),
        chain.op(BinaryKind.OR, chain.op(BinaryKind.SHL, row, 3), column): (1, 2, 4, 8, 16, 32),
        chain.op(BinaryKind.AND, chain.thread, 0b101001): (1, 0, 0, 8, 0, 32),
        chain.op(BinaryKind.AND, chain.thread, -8): (0, 0, 0, 8, 16, 32),
        chain.add(metal.Unary(UnaryKind.NOT, column)): (-1, -2, -4, 0, 0, 0),
        back: (1, 2, 4, 8, 16, 32),
    }
    for value, bits in found.items():
        form = chain.forms.of(value)
        assert form is not None
        assert (form.bits, form.terms) == (bits, ())
    form = chain.forms.of(index)
    assert form == BitForm((1, 2, 4, 8, 16, 32), 0, ((origin, 1),))


@pytest.mark.parametrize(
    "build",
    [
        lambda c: c.op(BinaryKind.MUL, c.thread, c.thread),
        lambda c: c.op(BinaryKind.XOR, c.thread, c.thread),
        lambda c: c.op(BinaryKind.SHR, c.op(BinaryKind.ADD, c.uniform, c.thread), 1),
        lambda c: c.op(BinaryKind.SHR, c.op(BinaryKind.ADD, c.thread, 1), 1),
        lambda c: c.op(BinaryKind.AND, c.op(BinaryKind.MUL, c.thread, 3), 6),
        lambda c: c.op(BinaryKind.MUL, c.thread, c.uniform),
        lambda c: c.op(BinaryKind.SHL, c.thread, c.thread),
    ],
)
def test_what_carries_between_bits_has_no_form(build: object) -> None:
    chain = Chain()
    assert chain.forms.of(build(chain)) is None  # type: ignore[operator]


def test_multiples_of_a_uniform_value_drop_out_of_a_remainder() -> None:
    """((t + base) * 64 + t) % 64 is t, though base is not known and the sum may wrap."""
    chain = Chain()
    sum_ = chain.op(BinaryKind.ADD, chain.thread, chain.uniform)
    scaled = chain.op(BinaryKind.ADD, chain.op(BinaryKind.MUL, sum_, 64), chain.thread)
    assert chain.forms.of(chain.op(BinaryKind.AND, scaled, 63)) == chain.forms.of(chain.thread)


layouts = st.permutations(range(WIDTH)).flatmap(
    lambda order: st.integers(0, THREADS - 1).map(lambda mask: ThreadLayout(order, mask))
)


@given(layouts)
def test_every_layout_with_its_xor_constant_is_a_form(layout: ThreadLayout) -> None:
    form = BitForm.of_map(layout.map.columns, layout.map.constant)
    assert form is not None
    assert evaluate(form, {}).tolist() == layout.logical_index(np.arange(THREADS)).tolist()


@given(st.lists(st.integers(0, 2**40), min_size=WIDTH, max_size=WIDTH))
def test_a_plan_sums_to_its_coefficients(coefficients: list[int]) -> None:
    parts = plan(tuple(coefficients))
    threads = np.arange(THREADS)
    expected = sum(c * (threads >> b & 1) for b, c in enumerate(coefficients))
    assert parts_of(parts, threads).tolist() == np.broadcast_to(expected, THREADS).tolist()


@given(st.lists(st.integers(0, THREADS - 1), min_size=WIDTH, max_size=WIDTH))
def test_diagonals_xor_to_any_linear_map(columns: list[int]) -> None:
    """General matrices over bits, swizzles among them (SPEC L5)."""
    threads = np.arange(THREADS)
    found = parts_of(diagonals(columns), threads, "xor")
    assert found.tolist() == AffineMap(tuple(columns)).apply(threads).tolist()


@pytest.mark.parametrize(
    ("coefficients", "operations"),
    [
        ((1, 2, 4, 8, 16, 32), 0),  # t
        ((4, 8, 16, 32, 64, 128), 1),  # t << 2
        ((3, 6, 12, 24, 48, 96), 1),  # t * 3
        ((0, 0, 0, 1, 2, 4), 1),  # t >> 3: no mask, the shift drops the rest
        ((1, 2, 4, 0, 0, 0), 1),  # t & 7
        ((0, 1, 2, 0, 0, 0), 2),  # (t >> 1) & 3
        ((8, 16, 32, 1, 2, 4), 4),  # ((t & 7) << 3) + (t >> 3)
        ((1, 2, 4, 9, 18, 36), 2),  # t + (t >> 3)
        ((1, 2, 4, 100, 200, 400), 3),  # t + (t >> 3) * 92
        ((0, 0, 0, 100, 200, 400), 2),  # (t >> 3) * 100
        ((5, 10, 20, 40, 0, 0), 2),  # (t & 15) * 5
        ((0,) * 6, 0),
    ],
)
def test_plans_take_few_operations(coefficients: tuple[int, ...], operations: int) -> None:
    parts = plan(coefficients)
    assert sum(part.cost(WIDTH) for part in parts) + max(len(parts) - 1, 0) == operations


def test_of_map_refuses_columns_that_share_a_bit() -> None:
    assert BitForm.of_map((1, 2, 5, 8, 16, 32), 0) is None
