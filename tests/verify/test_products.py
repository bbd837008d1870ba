"""Planted faults in matrix products: owners that miss something, and multiplications (SPEC P3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest

from metile_mlx.compiler import STEPS
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.dtypes import f32
from metile_mlx.ir import matrix, tile
from metile_mlx.ir.core import Func, Op, Value
from metile_mlx.ir.matrix import BlockMultiply, FragmentMultiply
from metile_mlx.layout.fragments import Product, product_of
from metile_mlx.layout.operand import Layout, OperandLayout
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import CPU, METAL, Target
from metile_mlx.verify import verify
from metile_mlx.verify.products import check_products
from tests.support import verified
from tests.support.build import Program, context
from tests.support.kernels import tile_ir
from tests.support.mutate import edit, ops_of
from tests.support.products import constexprs, matmul
from tests.support.profile import count

SHAPE = (32, 16, 24)
# Two simdgroups of rows by two of columns; 2 by 1 fragments in each, K in three blocks.
DEEP = (32, 16, 32)


def owned(a: Layout, b: Layout, acc: Layout, shape: tuple[int, int, int] = DEEP) -> Func:
    """A product of tiles with these owners, on 128 threads; it stands in line 5."""
    p = Program()
    rows, columns, depth = shape
    zero = p.number(0, f32)
    x = p.add(tile.Splat(zero, (rows, depth), a), "x")
    y = p.add(tile.Splat(zero, (depth, columns), b), "y")
    start = p.add(tile.Splat(zero, (rows, columns), acc), "start")
    p.add(matrix.Dot(x, y, start), "made")
    return replace(p.func(), threads=128)


def exchanged(layout: Layout, one: int, other: int) -> OperandLayout:
    """The owners with two bits of the slot exchanged."""
    columns = list(layout.map.columns)
    columns[one], columns[other] = columns[other], columns[one]
    return OperandLayout(tuple(columns), layout.elements_per_thread)


GOOD: Product = product_of(DEEP, 128)
LEFT, RIGHT, SUMS = GOOD.left, GOOD.right, GOOD.accumulator


def test_owners_that_multiply_everything_once() -> None:
    verify(owned(LEFT, RIGHT, SUMS), Stage.OWNED, context())
    in_order = [ThreadLayout.identity(size, size // 128) for size in (32 * 32, 32 * 16, 32 * 16)]
    verify(owned(in_order[0], in_order[1], in_order[2]), Stage.OWNED, context())


def test_the_registers_of_fragments_may_stand_in_any_order() -> None:
    """What is multiplied follows from the layouts, not from the order that a pass chooses."""
    turned = exchanged(LEFT, 8, 10)
    assert turned != LEFT
    verify(owned(turned, RIGHT, SUMS), Stage.OWNED, context())


def as_threads(layout: OperandLayout) -> ThreadLayout:
    order = [0] * len(layout.columns)
    for bit, column in enumerate(layout.columns):
        order[column.bit_length() - 1] = bit
    return ThreadLayout(order, elements_per_thread=layout.elements_per_thread)


FAULTY: dict[str, tuple[Layout, Layout, Layout, str]] = {
    "lanes of a exchanged": (
        exchanged(LEFT, 0, 1), RIGHT, SUMS,
        "registers 0 and 1 of simdgroup 0 hold elements of a, but no 8 rows by 8 columns",
    ),
    "two columns of a fragment in another register": (
        LEFT, exchanged(RIGHT, 7, 8), SUMS,
        "registers 0 and 1 of simdgroup 0 hold elements of b, but no 8 rows by 8 columns",
    ),
    "rows of a for the simdgroups of the other rows": (
        exchanged(LEFT, 5, 6), RIGHT, SUMS,
        "simdgroup 1 has rows 0 to 7 and columns 0 to 7 of a nowhere, expected once: it "
        "accumulates rows 0 to 7 and columns 8 to 15",
    ),
    "columns of b for the simdgroups of the other columns": (
        LEFT, exchanged(RIGHT, 5, 6), SUMS,
        "simdgroup 1 has rows 0 to 7 and columns 8 to 15 of b nowhere, expected once: it "
        "accumulates rows 0 to 7 and columns 8 to 15",
    ),
    "rows of a where simdgroups have columns of it": (
        exchanged(LEFT, 6, 9), RIGHT, SUMS,
        "simdgroup 0 has rows 0 to 7 and columns 16 to 23 of a nowhere, expected once: it "
        "accumulates rows 0 to 7 and columns 0 to 7",
    ),
    "a and b exchanged": (
        RIGHT, LEFT, SUMS, "%x: tile<32x32xf32, ",
    ),
    "sums of other simdgroups": (
        LEFT, RIGHT, as_threads(exchanged(SUMS, 5, 6)),
        "simdgroup 1 has rows 16 to 23 and columns 0 to 7 of a nowhere, expected once: it "
        "accumulates rows 16 to 23 and columns 0 to 7",
    ),
    "a in order, which the CPU takes": (
        ThreadLayout.identity(1024, 8), RIGHT, SUMS,
        "the elements of b lie in another order than row by row",
    ),
    "sums in order": (
        LEFT, RIGHT, ThreadLayout.identity(512, 4),
        "registers 0 and 1 of simdgroup 0 hold elements of acc, but no 8 rows by 8 columns",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTY)
def test_owners_that_miss_something(fault: str) -> None:
    a, b, acc, expected = FAULTY[fault]
    for stage in (Stage.OWNED, Stage.PLANNED):
        message = verified.rejected(owned(a, b, acc), stage).message
        assert "kernel.py:5:5: %made = tile.dot a=%x, b=%y, acc=%start" in message
        assert expected in message


def test_sums_that_two_simdgroups_have() -> None:
    """An operand's owners are none of an accumulator: two would add to what both hold."""
    columns = SUMS.map.columns
    doubled = OperandLayout((*columns[:6], 0, *columns[7:], columns[6]), 8)
    message = verified.rejected(owned(LEFT, RIGHT, doubled), Stage.OWNED).message
    assert "element 0 of acc is accumulated by 2 slots, expected one" in message


Lowered = tuple[Func, Func]


@cache
def lowered(staging: str | None = None, target: Target = METAL, dtype: str = "f32") -> Lowered:
    """A kernel that multiplies in a loop, planned and as one thread's program."""
    kinds = (*(f"{dtype}*",) * 3, *("i32",) * 6)
    func = tile_ir(matmul.definition, *kinds, **constexprs((32, 16, 32)))
    ctx = Context(target, Schedule(staging=staging))
    for step in STEPS:
        before, func = func, step.run(func, ctx)
        if step.stage is Stage.THREAD:
            return before, func
    raise AssertionError


def wrong(change: Callable[[Func], Func], which: Lowered) -> str:
    before, func = which
    faulty = change(func)
    assert faulty is not func
    return verified.rejected(faulty, Stage.THREAD, before).message


STAGED = ("staged", "device", "bits")


def case(name: str) -> Lowered:
    return {
        "staged": lowered(), "device": lowered("device"), "bits": lowered(dtype="bf16"),
    }[name]  # fmt: skip


@pytest.mark.parametrize("name", STAGED)
def test_what_the_pass_multiplies_is_accepted(name: str) -> None:
    before, func = case(name)
    assert len(ops_of(func, FragmentMultiply)) == 2 * 4
    verify(func, Stage.THREAD, context(), before)


def multiplied(func: Func) -> list[FragmentMultiply]:
    return [item for item in ops_of(func, FragmentMultiply) if isinstance(item, FragmentMultiply)]


def dropped(func: Func) -> Func:
    """A multiplication is left out; what it adds to goes on."""
    items = multiplied(func)
    item = items[3]
    mapping = dict(zip(item.results, item.acc, strict=True))
    changes: dict[Op, Sequence[Op]] = {
        other: (other.with_operands(mapping),) for other in items[4:] if other.acc == item.results
    }
    return edit(func, {item: (), **changes})


def doubled(func: Func) -> Func:
    """One is done twice, and adds to what it made."""
    item = multiplied(func)[0]
    first = replace(item, results=tuple(Value(v.type, "once", v.loc) for v in item.results))
    again = replace(item, acc=(first.results[0], first.results[1]))
    return edit(func, {item: (first, again)})


def with_fields(number: int, **fields: object) -> Callable[[Func], Func]:
    def change(func: Func) -> Func:
        items = multiplied(func)
        made = {n: getattr(items[of], name) for n, (of, name) in fields.items()}  # type: ignore[misc]
        return edit(func, {items[number]: (replace(items[number], **made),)})

    return change


def halves(func: Func) -> Func:
    """The two values of a fragment change places."""
    item = multiplied(func)[0]
    return edit(func, {item: (replace(item, a=(item.a[1], item.a[0])),)})


def turned(func: Func) -> Func:
    """a times b becomes b times a, everywhere."""
    return edit(func, {item: (replace(item, a=item.b, b=item.a),) for item in multiplied(func)})


def backwards(func: Func) -> Func:
    """The blocks of K are taken in another order: the first and the last change places."""
    items = multiplied(func)
    changes: dict[Op, Sequence[Op]] = {}
    for one, other in ((items[0], items[6]), (items[1], items[7])):
        changes[one] = (replace(one, a=other.a, b=other.b),)
        changes[other] = (replace(other, a=one.a, b=one.b),)
    return edit(func, changes)


def of_others(func: Func) -> Func:
    """Each sum begins with that of the other fragment."""
    one, other = multiplied(func)[:2]
    return edit(func, {one: (replace(one, acc=other.acc),), other: (replace(other, acc=one.acc),)})


FAULTS: dict[str, tuple[Callable[[Func], Func], str]] = {
    "dropped": (dropped, " has 7 of its 8 multiplications"),
    "doubled": (doubled, "adds to fragment 0 of acc after all its blocks of K"),
    "a of another block of K": (with_fields(0, a=(2, "a")), "its a is "),
    "b of another block of K": (with_fields(2, b=(0, "b")), "its b is "),
    "a of other rows": (with_fields(3, a=(2, "a")), "its a is "),
    "the sum of another fragment": (
        with_fields(3, acc=(0, "results")), "begins a sum of its own, expected 2 sums",
    ),
    "a and b exchanged once": (
        lambda func: with_fields(5, a=(5, "b"), b=(5, "a"))(func), "its a is ",
    ),
    "a and b exchanged": (turned, "its a is "),
    "halves of a fragment exchanged": (halves, "its a is "),
    "K backwards": (backwards, "its a is "),
    "sums of other fragments": (of_others, "its acc is "),
}  # fmt: skip


@pytest.mark.parametrize("name", STAGED)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_multiplication_is_rejected_by_default(fault: str, name: str) -> None:
    change, expected = FAULTS[fault]
    message = wrong(change, case(name))
    assert expected in message
    assert "metal.fragment_multiply a=[" in message


def planted(func: Func) -> Iterator[tuple[Op, Op]]:
    """Each multiplication with operands of each other one."""
    items = multiplied(func)
    for item in items:
        for other in items:
            for name in ("a", "b", "acc"):
                value = getattr(other, name)
                if value != getattr(item, name):
                    yield item, replace(item, **{name: value})


@pytest.mark.parametrize("name", STAGED)
def test_every_exchange_of_an_operand_is_found(name: str) -> None:
    before, func = case(name)
    every = list(planted(func))
    assert len(every) >= 100
    for item, other in every[:: max(1, len(every) // count(ci=25, full=1000))]:
        assert check_products(edit(func, {item: (other,)}), before)
    assert check_products(func, before) == []


def test_whole_tiles_of_a_cpu() -> None:
    before, func = lowered(target=CPU)
    (item,) = ops_of(func, BlockMultiply)
    assert isinstance(item, BlockMultiply)
    verify(func, Stage.THREAD, context(CPU), before)
    for fields, expected in (
        ({"a": item.a[::-1]}, "its a is "),
        ({"b": item.acc}, "its b is "),
        ({"acc": item.b}, "its acc is "),
        ({"shape": (16, 32, 32)}, "multiplies (16, 32, 32), expected (32, 16, 32)"),
    ):
        faulty = edit(func, {item: (replace(item, **fields),)})
        message = verified.rejected(faulty, Stage.THREAD, before, CPU).message
        assert expected in message
        assert "metal.block_multiply a=[" in message
