"""Planted faults: a program simplified wrongly is rejected, wherever the fault stands (S3).

Each fault is planted at every place of several programs that simplification is given or leaves. A
mutant is compared with the program it should still mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from metile_mlx.context import Stage
from metile_mlx.dtypes import f32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CombineKind, CompareKind
from metile_mlx.ir.core import Block, Effect, Func, Op, Value
from metile_mlx.ir.types import TileType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.passes.simplify_layouts import simplify_layouts
from metile_mlx.verify import verify
from tests.support import verified
from tests.support.build import context
from tests.support.mutate import edit, ops_of, under_condition
from tests.support.tile_program import TileProgram

IDENTITY = ThreadLayout.identity(64)
ROWS = ThreadLayout((3, 4, 5, 0, 1, 2))
FLIPPED = ThreadLayout((3, 4, 5, 0, 1, 2), xor_mask=8)
SWAP = ThreadLayout((1, 0, 2, 3, 4, 5))
LAYOUTS = (IDENTITY, ROWS, FLIPPED, SWAP)


def program() -> Func:
    """Chains, a diamond, a live intermediate, a constant, a sum, a print, masks and two arrays."""
    p = TileProgram()
    at = {layout: p.lanes(64, layout=layout) for layout in LAYOUTS}
    x, z = p.tensor("x", (64,), "read"), p.tensor("z", (64,), "read")
    first = p.load(x, at[IDENTITY])
    second = p.load(z, at[IDENTITY], mask=p.compare(CompareKind.LT, at[IDENTITY], 40))
    there = p.add(tile.Convert(first, ROWS), "there")
    near = p.add(tile.Convert(there, FLIPPED), "near")
    other = p.add(tile.Convert(second, ROWS), "other")
    two = p.add(tile.Convert(p.add(tile.Splat(p.number(2, f32), (64,), SWAP)), ROWS), "two")
    three = p.add(tile.Splat(p.number(3, f32), (64,), ROWS), "three")
    mixed = p.op(
        BinaryKind.SUB, p.op(BinaryKind.MUL, there, two), p.op(BinaryKind.MUL, other, three)
    )
    mask = p.compare(CompareKind.LT, mixed, other)
    for number, value in enumerate((mixed, there)):
        out = p.tensor(f"y{number}", (64,), "write")
        p.store(out, at[ROWS], value=value, mask=mask if number else None)
    p.emit(tile.Print(near, "near", p.compare(CompareKind.EQ, near, other_in(p, second))))
    swapped = p.add(tile.Convert(p.add(tile.Convert(near, SWAP), "swapped"), IDENTITY), "back")
    third = p.load(z, at[SWAP])
    total = p.add(
        tile.Reduce(CombineKind.SUM, p.add(tile.Convert(swapped, SWAP), "summed")), "total"
    )
    p.store(p.tensor("y2", (64,), "write"), at[SWAP], value=p.op(BinaryKind.MUL, third, total))
    p.store(p.tensor("y3", (64,), "write"), at[IDENTITY], value=swapped)
    return p.func()


def other_in(p: TileProgram, second: Value) -> Value:
    return p.add(tile.Convert(second, FLIPPED), "second_near")


OWNED = infer_ownership(program(), context())
SIMPLIFIED = simplify_layouts(OWNED, context())
# What a fault is planted in: what the pass was given, and what it left.
PLACES = {"as written": OWNED, "simplified": SIMPLIFIED}


def rejected(func: Func) -> str:
    return verified.rejected(func, Stage.OWNED, OWNED).message


def converts(func: Func) -> list[tile.Convert]:
    return [item for item in func.body.ops if isinstance(item, tile.Convert)]


def tiles_before(func: Func, item: Op) -> Iterator[Value]:
    """Every tile that is there when `item` runs."""
    for other in func.body.ops:
        if other is item:
            return
        yield from (value for value in other.results if isinstance(value.type, TileType))


def wrong_source(func: Func) -> Iterator[Func]:
    """A conversion reads another tile of the same dtype; one that means the same is no fault."""
    for item in converts(func):
        same = copies_of(func, item.src)
        for value in tiles_before(func, item):
            if value.type.dtype == item.src.type.dtype and value not in same:  # type: ignore[union-attr]
                yield edit(func, {item: (replace(item, src=value),)})


def copies_of(func: Func, value: Value) -> set[Value]:
    """The tile that `value` was converted from and all that is converted from it."""
    origin = {item.result: item.src for item in converts(func)}

    def root(of: Value) -> Value:
        while of in origin:
            of = origin[of]
        return of

    return {v for v in [*origin, *origin.values()] if root(v) is root(value)}


def read_by_others(func: Func) -> list[tile.Convert]:
    """What only conversions read may have any owners, and be left out: there is no fault in it."""
    readers = [item for item in func.body.ops if not isinstance(item, tile.Convert)]
    read = {value for item in readers for value in item.operands()}
    return [item for item in converts(func) if item.result in read]


def wrong_owners(func: Func) -> Iterator[Func]:
    """A conversion goes elsewhere, and all that is read from its result is typed by it."""
    for item in read_by_others(func):
        for layout in LAYOUTS:
            if layout != item.layout:
                yield edit(func, {item: (replace(item, layout=layout),)})


def conversion_left_out(func: Func) -> Iterator[Func]:
    """The tile takes the place of its conversion, though its owners are others."""
    for item in read_by_others(func):
        ops = [other for other in func.body.ops if other is not item]
        kept = tuple(other.with_operands({item.result: item.src}) for other in ops)
        yield edit(func.with_body(Block(kept)), {})


def more_conversions(func: Func) -> Iterator[Func]:
    """A value travels there and back before it is stored."""
    for store in ops_of(func, tile.Store):
        assert isinstance(store, tile.Store)
        for layout in LAYOUTS:
            there = made(tile.Convert(store.value, layout))
            if layout != layout_of(store.value):
                back = made(tile.Convert(there.result, layout_of(store.value)))
                yield more_than_before(
                    edit(func, {store: (there, back, replace(store, value=back.result))})
                )


def more_than_before(func: Func) -> Func:
    """With so many more conversions that there are more than in the program to compare with."""
    (item, *_) = converts(func)
    extra = [made(replace(item, results=())) for _ in range(len(converts(OWNED)))]
    return edit(func, {item: (item, *extra)})


def made(item: Op) -> Op:
    return replace(item, results=tuple(Value(type_, "made") for type_ in item.infer()))


def layout_of(value: Value) -> ThreadLayout:
    assert isinstance(value.type, TileType)
    assert value.type.layout is not None
    return value.type.layout


def under_a_condition(func: Func) -> Iterator[Func]:
    """A conversion that nobody reads any more stands in a branch."""
    for item in converts(func):
        yield edit(func, {item: (item, *under_condition(made(replace(item, results=()))))})


def effect_left_out(func: Func) -> Iterator[Func]:
    for item in ops_of(func, tile.Store, tile.Print):
        yield edit(func, {item: ()})


def effects_swapped(func: Func) -> Iterator[Func]:
    """Neighbouring accesses change places, with what is between them staying."""
    effects = [item for item in func.body.ops if item.effect & (Effect.READ | Effect.WRITE)]
    for first, second in pairwise(effects):
        if not any(value in second.operands() for value in first.results):
            moved = edit(func, {first: (), second: (second, first)})
            if in_order(moved):
                yield moved
        moved = edit(func, {first: (second, first), second: ()})
        if in_order(moved):
            yield moved


def in_order(func: Func) -> bool:
    """Every operand stands before its readers: another fault than the one to plant."""
    seen = set(func.params)
    for item in func.body.ops:
        if not seen.issuperset(item.operands()):
            return False
        seen.update(item.results)
    return True


def mask_left_out(func: Func) -> Iterator[Func]:
    for item in ops_of(func, tile.Store, tile.Print, tile.Load):
        if item.mask is not None:  # type: ignore[attr-defined]
            yield edit(func, {item: (replace(item, mask=None),)})  # type: ignore[call-arg]


def operand_of_an_effect(func: Func) -> Iterator[Func]:
    """A store or print takes another tile of the same type."""
    for item in ops_of(func, tile.Store, tile.Print):
        assert isinstance(item, tile.Store | tile.Print)
        same = copies_of(func, item.value)
        for value in tiles_before(func, item):
            if value.type == item.value.type and value not in {*same, item.value}:
                yield edit(func, {item: (replace(item, value=value),)})


def another_constant(func: Func) -> Iterator[Func]:
    """A tile that was made anew repeats another scalar."""
    splats = ops_of(func, tile.Splat)
    scalars = {item.src for item in splats}  # type: ignore[attr-defined]
    used = {value for item in func.body.ops for value in item.operands()}
    for item in splats:
        assert isinstance(item, tile.Splat)
        for scalar in scalars - {item.src}:
            if item.result in used:
                yield edit(func, {item: (replace(item, src=scalar),)})


def sum_over_other_owners(func: Func) -> Iterator[Func]:
    """The elements are the same, the order in which they are added is not."""
    for item in ops_of(func, tile.Reduce):
        assert isinstance(item, tile.Reduce)
        for value in tiles_before(func, item):
            if value in copies_of(func, item.src) and value.type != item.src.type:
                yield edit(func, {item: (replace(item, src=value),)})


def another_label(func: Func) -> Iterator[Func]:
    for item in ops_of(func, tile.Print):
        yield edit(func, {item: (replace(item, label="another"),)})  # type: ignore[call-arg]


FAULTS: Sequence[Callable[[Func], Iterator[Func]]] = (
    wrong_source,
    wrong_owners,
    conversion_left_out,
    more_conversions,
    under_a_condition,
    effect_left_out,
    effects_swapped,
    mask_left_out,
    operand_of_an_effect,
    another_constant,
    sum_over_other_owners,
    another_label,
)


def test_the_programs_have_everything_that_faults_are_planted_in() -> None:
    verify(SIMPLIFIED, Stage.OWNED, context(), OWNED)
    assert 0 < len(converts(SIMPLIFIED)) < len(converts(OWNED))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_s3_every_planted_fault_is_rejected(
    fault: Callable[[Func], Iterator[Func]], place: str
) -> None:
    tried = 0
    for mutant in fault(PLACES[place]):
        tried += 1
        rejected(mutant)
    assert tried, "this fault was planted nowhere"


def test_s3_what_a_finding_says() -> None:
    (first, *_) = more_conversions(OWNED)
    assert "conversions that move elements, expected at most 8" in rejected(first)
    (hidden, *_) = under_a_condition(SIMPLIFIED)
    message = rejected(hidden)
    assert (
        "has 1 conversions that move elements under 1 branches or loops, expected at most 0"
        in message
    )
    (shown,) = another_label(OWNED)
    assert "has other attributes than before" in rejected(shown)
    (swapped, *_) = effects_swapped(OWNED)
    assert "or has passed another access" in rejected(swapped)


def test_an_access_may_be_left_out_where_nothing_depends_on_it() -> None:
    p = TileProgram()
    at = p.lanes(64, layout=IDENTITY)
    x = p.tensor("x", (64,), "read")
    read = p.load(x, at)
    p.store(p.tensor("y", (64,), "write"), at, value=p.add(tile.Cast(at, f32)))
    owned = infer_ownership(p.func(), context())
    (load,) = [item for item in owned.body.ops if read in item.results]
    verify(edit(owned, {load: ()}), Stage.OWNED, context(), owned)
