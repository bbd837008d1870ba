"""What comparisons of floats guard is read: any three take all combinations, at every place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from metile_mlx.compiler import STEPS
from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import f32, i32
from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import BinaryKind, CompareKind
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.loops import For
from metile_mlx.ir.types import ScalarType
from metile_mlx.target import METAL
from metile_mlx.verify import numbers
from metile_mlx.verify.decisions import COLUMNS, Decisions, compared_with, guards, turns
from metile_mlx.verify.numbers import TRIALS, Numbers
from metile_mlx.verify.thread_reader import check_lowering
from tests.support import verified
from tests.support.mutate import edit, ops_of
from tests.support.tile_program import TileProgram

KINDS = tuple(CompareKind)


def floats(p: TileProgram, x: Value, origin: str, number: int) -> tuple[Value, Value]:
    """Two uniform floats to compare: literals, or one from memory."""
    literal = p.number(float(number + 1), f32)
    return (p.number(0.5, f32) if origin == "literals" else p.load(x, number)), literal


def nested(
    sides: Sequence[bool],
    origin: str = "literals",
    kinds: Sequence[CompareKind] = KINDS,
    size: int = 64,
    extent: int = 63,
) -> Func:
    """A store of `size` lanes into `extent` elements, under a branch on floats for each of
    `sides`: where it holds, or where not."""
    p = TileProgram()
    x, y = p.tensor("x", (size,), "read"), p.tensor("y", (p.scalar("n"), extent), "write")
    lanes, row = p.lanes(size), p.program_id()
    value = p.load(x, lanes)

    def branch(rest: Sequence[bool]) -> None:
        if not rest:
            p.store(y, row, lanes, value=value)
            return
        number = len(sides) - len(rest)
        condition = p.compare(kinds[number % len(kinds)], *floats(p, x, origin, number))
        blocks = []
        for side in (True, False):
            outer = p.begin()
            if side == rest[0]:
                branch(rest[1:])
            blocks.append(p.end(outer))
        p.emit(tile.If(condition, *blocks))

    branch(sides)
    return p.func()


def masked(extent: int, kinds: Sequence[CompareKind]) -> Func:
    """A store under comparisons of what lanes have loaded; those out of bounds have the fill."""
    p = TileProgram()
    x, y = p.tensor("x", (extent,), "read"), p.tensor("y", (extent,), "write")
    lanes = p.lanes(64)
    value = p.load(x, lanes)
    mask = None
    for number, kind in enumerate(kinds):
        held = p.compare(kind, value, p.number(float(number), f32))
        mask = held if mask is None else p.op(BinaryKind.AND, mask, held)
    p.store(y, lanes, value=value, mask=mask)
    return p.func()


def numbered(kind: CompareKind, literal: int, is_mask: bool, swapped: bool = False) -> Func:
    """A store of 64 lanes into 63 elements of a row, where integers of memory are so compared:
    the lanes' own under a mask, or the first one at a branch."""
    p = TileProgram()
    x = p.tensor("x", (64,), "read", dtype=i32)
    y = p.tensor("y", (p.scalar("n"), 63), "write", dtype=i32)
    lanes, row = p.lanes(64), p.program_id()
    value = p.load(x, lanes)
    found = value if is_mask else p.load(x, 5)
    number = p.number(literal)
    other = p.add(tile.Splat(number, (64,))) if is_mask else number
    held = p.compare(kind, *((other, found) if swapped else (found, other)))
    if is_mask:
        p.store(y, row, lanes, value=value, mask=held)
        return p.func()
    outer = p.begin()
    p.store(y, row, lanes, value=value)
    then = p.end(outer)
    outer = p.begin()
    p.emit(tile.If(held, then, p.end(outer)))
    return p.func()


def lowered(func: Func) -> tuple[Func, Func]:
    """The planned and the scalar program."""
    ctx = Context(METAL)
    for step in STEPS:
        before, func = func, step.run(func, ctx)
        if step.name == "scalarise":
            return before, func
    raise AssertionError("no scalarise")


def parts(mask: Value, made: dict[Value, Op]) -> list[Value]:
    """What a mask joins."""
    item = made[mask]
    if isinstance(item, metal.Binary) and item.kind is BinaryKind.AND:
        return [*parts(item.lhs, made), *parts(item.rhs, made)]
    return [mask]


def without(func: Func, store: metal.Store, lost: Value) -> Func:
    """The program without one condition of the mask of a store."""
    assert store.mask is not None
    made = {value: item for item in walk(func.body) for value in item.results}
    left = [part for part in parts(store.mask, made) if part is not lost]
    ops: list[Op] = []
    mask = left[0] if left else None
    for part in left[1:]:
        assert mask is not None
        ops.append(metal.Binary(BinaryKind.AND, mask, part, results=(Value(store.mask.type),)))
        mask = ops[-1].result
    return edit(func, {store: (*ops, replace(store, mask=mask))})


def check(func: Func, bounds: int) -> None:
    """Each of the conditions of the only store that compare integers is missed."""
    before, after = lowered(func)
    assert check_lowering(after, before, METAL) == []
    (store,) = ops_of(after, metal.Store)
    assert isinstance(store, metal.Store)
    assert store.mask is not None
    made = {value: item for item in walk(after.body) for value in item.results}
    tried = 0
    for part in parts(store.mask, made):
        item = made[part]
        if isinstance(item, metal.Compare) and item.lhs.type.dtype != f32:  # type: ignore[union-attr]
            faulty = without(after, store, part)
            error = verified.rejected(faulty, Stage.THREAD, before, by_default=False)
            assert "metal.store %y" in error.message
            tried += 1
    assert tried == bounds


SIDES = [*product((True, False), repeat=2), *product((True, False), repeat=3)]


@pytest.mark.parametrize("origin", ["literals", "memory"])
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_k2_a_bound_that_is_dropped_under_nested_conditions_on_floats(
    sides: tuple[bool, ...], origin: str
) -> None:
    """Of the row, and of one lane, whatever the conditions ask for (SPEC K2)."""
    check(nested(sides, origin), bounds=2)


@pytest.mark.parametrize("extent", [1, 9, 63])
@pytest.mark.parametrize("kinds", [*combinations(KINDS, 3), *combinations(KINDS, 2)], ids=str)
def test_k2_a_bound_that_is_dropped_under_a_mask_of_comparisons(
    kinds: tuple[CompareKind, ...], extent: int
) -> None:
    """Lanes out of bounds hold one literal, so that all of them pass a comparison, or none."""
    check(masked(extent, kinds), bounds=1)


@pytest.mark.parametrize("literal", [7, 77777, -1, -(2**31)])
@pytest.mark.parametrize("is_mask", [False, True], ids=["branch", "mask"])
def test_k2_a_bound_that_is_dropped_where_memory_holds_one_number(
    literal: int, is_mask: bool
) -> None:
    """Of the row, and of one lane; in the mask that comparison itself too (SPEC K2)."""
    for swapped in (False, True):
        check(numbered(CompareKind.EQ, literal, is_mask, swapped), bounds=3 if is_mask else 2)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_k2_a_bound_that_is_dropped_where_memory_holds_a_large_number(
    kind: CompareKind, swapped: bool
) -> None:
    """On the side of the literal where memory, by chance, never is."""
    check(numbered(kind, 1 << 20, False, swapped), bounds=2)


def test_memory_holds_what_it_is_compared_with_in_half_of_the_turns() -> None:
    """Everywhere, if that is one number; each array has its own; floats are as they were."""
    before, _ = lowered(numbered(CompareKind.LT, 9, True, swapped=True))
    assert compared_with(before) == {"x": (10,)}
    assert turns(before) == 2
    offset = np.arange(64)[None]
    held = [Decisions(before, turn).memory("x", i32, offset) for turn in range(2)]
    assert (held[1] == 10).all()
    np.testing.assert_array_equal(held[0], numbers.unknown("x", i32, offset))
    for name, dtype in (("y", i32), ("x", f32)):
        found = Decisions(before, 1).memory(name, dtype, offset)
        np.testing.assert_array_equal(found, numbers.unknown(name, dtype, offset))


def test_conditions_that_ask_for_the_same_and_the_opposite_are_read_as_such() -> None:
    """Equal comparisons are equal in each turn: what stands under both ways is never done."""
    same = nested((True, False), "literals", [CompareKind.LT])
    before, after = lowered(same)
    first, second = guards(before)
    values = Decisions(before, 1)
    one, two = numbers.constant(0.5, f32), numbers.constant(1.0, f32)
    held = [values.of(item)(CompareKind.LT, one, two, f32) for item in (first, second)]
    np.testing.assert_array_equal(*held)
    assert check_lowering(after, before, METAL) == []


def bits(func: Func, count: int, operands: Sequence[tuple[Numbers, Numbers]]) -> np.ndarray:
    """What the first `count` comparisons give: by turn, comparison and place."""
    found = []
    for turn in range(turns(func)):
        decisions = Decisions(func, turn)
        row = [
            decisions.of(item)(CompareKind.LT, a, b, f32)
            for item, (a, b) in zip(guards(func)[:count], operands, strict=True)
        ]
        found.append(np.stack([np.broadcast_to(each, (TRIALS, 64)) for each in row]))
    return np.stack(found)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("origin", ["literals", "lanes"])
def test_any_three_comparisons_take_all_combinations_at_every_place(
    count: int, origin: str
) -> None:
    before, _ = lowered(nested([True] * count))
    assert turns(before) == {1: 2, 2: 4, 3: 8, 4: 8, 5: 16, 8: 16}[count]
    zero = numbers.constant(0.0, f32)
    lanes = np.arange(64)[None]
    operands = [
        (zero, numbers.constant(float(at), f32))
        if origin == "literals"
        else (numbers.unknown(f"x{at}", f32, lanes), zero)
        for at in range(count)
    ]
    found = bits(before, count, operands)
    for chosen in combinations(range(count), min(count, 3)):
        code = sum(found[:, at] << place for place, at in enumerate(chosen))
        for one in range(1 << len(chosen)):
            assert (code == one).any(axis=0).all()


def test_programs_without_such_comparisons_are_read_once() -> None:
    """What only chooses a value guards nothing; more than there are columns share them."""
    p = TileProgram()
    x, y = p.tensor("x", (64,), "read"), p.tensor("y", (64,), "write")
    lanes = p.lanes(64)
    value = p.load(x, lanes)
    larger = p.compare(CompareKind.GT, value, p.number(0.0, f32))
    p.store(y, lanes, value=p.add(tile.Select(larger, value, p.number(1.0, f32))))
    before, _ = lowered(p.func())
    assert guards(before) == []
    assert turns(before) == 1
    many, _ = lowered(nested([True] * (COLUMNS + 1)))
    assert turns(many) == 2 * COLUMNS
    assert len(guards(many)) == COLUMNS + 1


def test_what_decides_through_a_choice_or_a_loop_guards_too() -> None:
    """A bound of a loop and an index that are chosen by comparisons; a mask that branches yield."""
    p = TileProgram()
    x, y = p.tensor("x", (64,), "read"), p.tensor("y", (64,), "write")
    lanes = p.lanes(64)
    value = p.load(x, lanes)
    compared = [p.compare(kind, value, p.number(0.0, f32)) for kind in KINDS[:2]]
    moved = p.add(tile.Select(compared[0], lanes, p.op(BinaryKind.ADD, lanes, 1)))
    single = p.compare(CompareKind.LT, p.load(x, 0), p.number(2.0, f32))
    outer = p.begin()
    then = p.end(outer, compared[1])
    outer = p.begin()
    otherwise = p.end(outer, p.compare(CompareKind.LT, lanes, 9))
    (mask,) = p.emit(tile.If(p.compare(CompareKind.LT, p.program_id(), 1), then, otherwise))
    end = p.add(tile.Select(single, p.number(1), p.number(2)))
    index = Value(ScalarType(i32), "i")
    outer = p.begin()
    p.store(y, moved, value=value, mask=mask)
    body: Block = p.end(outer)
    p.emit(For(p.number(0), end, p.number(1), (), replace(body, args=(index,))))
    before, after = lowered(p.func())
    assert len(guards(before)) == 3
    assert check_lowering(after, before, METAL) == []
