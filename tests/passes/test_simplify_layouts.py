"""Conversions that move nothing new go, each with its proof; what else there is stays as it is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import bool_, f32, i32
from metile_mlx.explain import explain
from metile_mlx.ir import planned, tile
from metile_mlx.ir.arith import BinaryKind, CombineKind, CompareKind
from metile_mlx.ir.core import Func, Value, walk
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.passes.plan_conversions import plan_conversions
from metile_mlx.passes.simplify_layouts import simplify_layouts
from metile_mlx.report import LayoutOptimization
from metile_mlx.verify import verify
from tests.support.build import Program, context
from tests.support.tile_program import TileProgram

IDENTITY = ThreadLayout.identity(64)
ROWS = ThreadLayout((3, 4, 5, 0, 1, 2))
ROWS_FLIPPED = ThreadLayout((3, 4, 5, 0, 1, 2), xor_mask=8)
SWAP = ThreadLayout((1, 0, 2, 3, 4, 5))
HALVES = ThreadLayout((5, 1, 2, 3, 4, 0))


class Tiles(TileProgram):
    """x is loaded by the owners of IDENTITY; each store goes to an array of its own."""

    def __init__(self) -> None:
        super().__init__()
        view = self.tensor("x", (64,), "read")
        self.at = {IDENTITY: self.lanes(64, layout=IDENTITY)}
        self.x = self.add(tile.Load(view, (self.at[IDENTITY],)), "x0")
        self.stored = 0

    def convert(self, source: Value, layout: ThreadLayout, name: str) -> Value:
        return self.add(tile.Convert(source, layout), name)

    def keep(self, value: Value) -> None:
        """Store a tile."""
        layout = value.type.layout  # type: ignore[union-attr]
        dtype = value.type.dtype  # type: ignore[union-attr]
        if layout not in self.at:
            self.at[layout] = self.lanes(64, layout=layout)
        out = self.tensor(f"y{self.stored}", (64,), "write", dtype=dtype)
        self.stored += 1
        self.store(out, self.at[layout], value=value)


def simplify(p: Program, ctx: Context | None = None) -> tuple[Func, Func, Context]:
    """The owned program and what the pass makes of it, verified; a second run does nothing."""
    ctx = ctx or context()
    owned = infer_ownership(p.func(), ctx)
    func = simplify_layouts(owned, ctx)
    verify(func, Stage.OWNED, ctx, owned if func is not owned else None)
    assert simplify_layouts(func, context()) is func
    return owned, func, ctx


def left(func: Func) -> list[tuple[str, str]]:
    """Each conversion that is left: what it reads, and its name."""
    return [
        (item.src.name, item.result.name)
        for item in walk(func.body)
        if isinstance(item, tile.Convert)
    ]


def kinds(ctx: Context) -> dict[str, str]:
    return {fact.value: fact.kind for fact in ctx.report.layout_optimizations}


def stored(func: Func) -> list[Value]:
    return [item.value for item in walk(func.body) if isinstance(item, tile.Store)]


def barriers(func: Func, ctx: Context | None = None) -> int:
    planned_func = plan_conversions(func, ctx or context())
    return sum(isinstance(item, planned.Barrier) for item in walk(planned_func.body))


def test_s1_an_identity_vanishes_and_is_reported_as_unchanged_too() -> None:
    p = Tiles()
    p.keep(p.convert(p.x, IDENTITY, "same"))
    _, func, ctx = simplify(p)
    assert left(func) == []
    assert stored(func) == [p.x]
    (fact,) = ctx.report.layout_optimizations
    layout = "ThreadLayout((0, 1, 2, 3, 4, 5))"
    assert fact == LayoutOptimization(
        "identity",
        "same",
        "x0",
        f"x0 {layout} -> same {layout}: the tile and the owners of x0",
        "kernel.py:7",
        0,
    )
    (conversion,) = ctx.report.layout_conversions
    assert (conversion.value, conversion.result) == ("x0", "same")
    assert conversion.mechanism == "unchanged"


def test_s1_an_inverse_pair_cancels_with_its_four_barriers() -> None:
    p = Tiles()
    there = p.convert(p.x, ROWS, "there")
    p.keep(p.convert(there, IDENTITY, "back"))
    owned, func, ctx = simplify(p)
    assert left(func) == []
    assert stored(func) == [p.x]
    assert kinds(ctx) == {"there": "intermediate", "back": "inverse"}
    assert barriers(owned) == 4
    assert sum(fact.barriers_removed for fact in ctx.report.layout_optimizations) == 4
    proofs = {fact.value: fact.proof for fact in ctx.report.layout_optimizations}
    assert proofs["there"] == "only conversions read it (back), and none does now"
    assert proofs["back"] == (
        "x0 ThreadLayout((0, 1, 2, 3, 4, 5)) -> there ThreadLayout((3, 4, 5, 0, 1, 2)) -> "
        "back ThreadLayout((0, 1, 2, 3, 4, 5)): the tile and the owners of x0"
    )


def test_s1_a_chain_composes_into_one_conversion() -> None:
    p = Tiles()
    value = p.x
    for number, layout in enumerate((ROWS, SWAP, HALVES, ROWS_FLIPPED)):
        value = p.convert(value, layout, f"step{number}")
    p.keep(value)
    owned, func, ctx = simplify(p)
    assert left(func) == [("x0", "step3")]
    assert stored(func) == [value], "the conversion that stays keeps its value"
    assert (barriers(owned), barriers(func)) == (8, 2)
    assert kinds(ctx) == {
        "step0": "intermediate", "step1": "intermediate", "step2": "intermediate",
        "step3": "composed",
    }  # fmt: skip


def test_s1_a_chain_through_other_simdgroups_may_end_in_a_shuffle() -> None:
    p = Tiles()
    p.keep(p.convert(p.convert(p.x, ROWS, "there"), SWAP, "near"))
    owned, func, _ = simplify(p)
    assert left(func) == [("x0", "near")]
    assert (barriers(owned), barriers(func)) == (4, 0)


def test_s1_an_intermediate_with_other_users_stays_live() -> None:
    p = Tiles()
    there = p.convert(p.x, ROWS, "there")
    near = p.convert(there, ROWS_FLIPPED, "near")
    p.keep(there)
    p.keep(near)
    owned, func, ctx = simplify(p)
    assert func is owned, "the nearest source is the one that was written"
    assert ctx.report.layout_optimizations == []


def test_s1_of_a_live_intermediate_and_its_source_the_cheaper_is_read() -> None:
    p = Tiles()
    there = p.convert(p.x, ROWS, "there")
    p.keep(there)
    p.keep(p.convert(there, SWAP, "near_x"))
    owned, func, ctx = simplify(p)
    assert left(func) == [("x0", "there"), ("x0", "near_x")]
    assert (barriers(owned), barriers(func)) == (4, 2)
    assert kinds(ctx) == {"near_x": "composed"}


def test_s3_a_shared_intermediate_is_not_computed_twice() -> None:
    """x to ROWS costs two barriers and its two copies a shuffle each: never four barriers."""
    p = Tiles()
    there = p.convert(p.x, ROWS, "there")
    p.keep(p.convert(there, ROWS_FLIPPED, "a"))
    p.keep(p.convert(there, ThreadLayout((3, 4, 5, 0, 1, 2), xor_mask=16), "b"))
    owned, func, ctx = simplify(p)
    assert left(func) == [("x0", "a"), ("a", "b")]
    assert (barriers(owned), barriers(func)) == (2, 2)
    removed = {fact.value: fact.barriers_removed for fact in ctx.report.layout_optimizations}
    assert removed == {"there": 2, "a": -2, "b": 0}


def test_s1_a_diamond_whose_sides_meet_in_one_layout_is_one_conversion() -> None:
    p = Tiles()
    a, b = p.convert(p.x, ROWS, "a"), p.convert(p.x, SWAP, "b")
    c, d = p.convert(a, HALVES, "c"), p.convert(b, HALVES, "d")
    p.keep(p.op(BinaryKind.SUB, c, d))
    _, func, ctx = simplify(p)
    assert left(func) == [("x0", "c")]
    assert kinds(ctx) == {
        "a": "intermediate",
        "b": "intermediate",
        "c": "composed",
        "d": "repeated",
    }


def test_s3_a_conversion_on_which_nothing_depends_goes_with_what_was_computed_for_it() -> None:
    p = Tiles()
    moved = p.convert(p.x, ROWS, "moved")
    doubled = p.op(BinaryKind.ADD, moved, moved)
    p.convert(doubled, IDENTITY, "back")
    p.tensor("unread", (64,), "read")
    p.keep(p.x)
    owned, func, ctx = simplify(p)
    assert left(func) == []
    assert kinds(ctx) == {"moved": "unused", "back": "unused"}
    assert not [item for item in func.body.ops if isinstance(item, tile.Binary)]
    declared = [item for item in owned.body.ops if isinstance(item, tile.Tensor)]
    assert [item for item in func.body.ops if isinstance(item, tile.Tensor)] == declared


def test_dead_code_without_conversions_is_none_of_its_business() -> None:
    p = Tiles()
    p.op(BinaryKind.ADD, p.x, p.x)
    p.keep(p.convert(p.x, ROWS, "moved"))
    owned, func, _ = simplify(p)
    assert func is owned


def test_s3_a_constant_is_made_anew_by_its_new_owners() -> None:
    p = Tiles()
    two = p.add(tile.Splat(p.number(2, f32), (64,), IDENTITY), "two")
    four = p.add(tile.Binary(BinaryKind.ADD, two, two), "four")
    less = p.compare(CompareKind.LT, four, two)
    chosen = p.add(tile.Select(less, two, four), "chosen")
    moved = p.convert(chosen, ROWS, "moved")
    again = p.convert(p.op(BinaryKind.MUL, moved, moved), IDENTITY, "again")
    p.keep(moved)
    p.keep(again)
    _, func, ctx = simplify(p)
    assert left(func) == []
    assert kinds(ctx) == {"moved": "uniform", "again": "uniform"}
    assert [value.name for value in stored(func)] == ["moved", "again"]
    assert [value.type for value in stored(func)] == [moved.type, again.type]
    proof = ctx.report.layout_optimizations[0].proof
    assert proof == "every element of chosen is one scalar, which all threads have"


def test_s3_a_tile_that_only_looks_constant_travels() -> None:
    """A load at one index in all lanes, or a constant chosen by a mask that varies."""
    p = Tiles()
    two = p.add(tile.Splat(p.number(2, f32), (64,), IDENTITY), "two")
    varied = p.compare(CompareKind.LT, p.at[IDENTITY], 8)
    chosen = p.add(tile.Select(varied, two, two), "chosen")
    p.keep(p.convert(chosen, ROWS, "moved"))
    owned, func, _ = simplify(p)
    assert func is owned


def test_s2_references_in_indices_masks_and_tensor_metadata_are_rewritten() -> None:
    """What an extent was computed from, an index among others in a tuple, a mask, a print."""
    p = Tiles()
    back = p.convert(p.convert(p.x, ROWS, "there"), IDENTITY, "back")
    total = p.add(tile.Reduce(CombineKind.SUM, back), "total")
    extent = p.add(tile.Cast(total, i32), "extent")
    index = p.convert(p.convert(p.at[IDENTITY], SWAP, "there_i"), IDENTITY, "back_i")
    odd = p.compare(CompareKind.GE, index, 3)
    mask = p.convert(p.convert(odd, ROWS, "there_m"), IDENTITY, "back_m")
    view = p.tensor("z", (extent, 64), "read", strides=(extent, 1))
    loaded = p.load(view, p.program_id(), index, mask=mask)
    p.emit(tile.Print(back, "back", mask))
    p.keep(loaded)
    _, func, _ = simplify(p)
    assert left(func) == []
    (reduce,) = [item for item in func.body.ops if isinstance(item, tile.Reduce)]
    assert reduce.src is p.x
    load = [item for item in func.body.ops if isinstance(item, tile.Load)][1]
    assert load.indices[1] is p.at[IDENTITY]
    assert load.mask is odd
    (shown,) = [item for item in func.body.ops if isinstance(item, tile.Print)]
    assert (shown.value, shown.mask) == (p.x, odd)
    last = [item for item in func.body.ops if isinstance(item, tile.Tensor)][1]
    assert last.shape[0] is extent is last.strides[0]


def test_s2_a_view_whose_extent_is_itself_replaced_gets_the_replacement() -> None:
    """No front end writes it; metadata is an operand like any other for the pass."""
    p = Tiles()
    back = p.convert(p.at[IDENTITY], IDENTITY, "back")
    view = p.add(tile.Tensor(p.params[0], (back, back), (back, p.number(1)), "read"), "odd")
    owned = infer_ownership(replace(p.func()), context())
    func = simplify_layouts(owned, context())
    (made,) = [item for item in func.body.ops if view in item.results]
    assert isinstance(made, tile.Tensor)
    assert made.shape == (p.at[IDENTITY],) * 2
    assert made.strides[0] is p.at[IDENTITY]


def test_s3_nothing_moves_across_memory_effects() -> None:
    """The conversion behind a store stays behind it, though its source is from before."""
    p = Tiles()
    there = p.convert(p.x, ROWS, "there")
    p.keep(p.x)
    p.emit(tile.Print(p.x, "x"))
    p.keep(p.convert(there, HALVES, "after"))
    owned, func, _ = simplify(p)
    kinds_in_order = (tile.Load, tile.Store, tile.Print, tile.Convert)

    def order(of: Func) -> list[str]:
        kept = [item for item in of.body.ops if there not in item.results]
        return [item.opcode for item in kept if isinstance(item, kinds_in_order)]

    assert order(func) == order(owned)
    assert order(func)[-4:] == ["tile.store", "tile.print", "tile.convert", "tile.store"]


def test_s2_the_input_stays_and_names_of_its_values_too() -> None:
    p = Tiles()
    nameless = p.add(tile.Unary(tile.UnaryKind.NEG, p.x))
    p.keep(p.convert(p.convert(nameless, ROWS, "there"), IDENTITY, "back"))
    owned = infer_ownership(p.func(), context())
    ops = owned.body.ops
    func = simplify_layouts(owned, context())
    assert owned.body.ops is ops
    assert nameless.name == ""
    assert stored(func) == [nameless]


@pytest.mark.parametrize("conversion", ["auto", "shuffle", "scratch"])
def test_s2_a_program_with_nothing_to_simplify_is_the_same_object(conversion: str) -> None:
    p = Tiles()
    p.keep(p.convert(p.x, ROWS, "moved"))
    near = p.convert(p.x, SWAP, "near")
    p.keep(near)
    p.keep(p.convert(p.op(BinaryKind.ADD, near, near), IDENTITY, "sum"))
    owned, func, _ = simplify(p, context(conversion=conversion))
    assert func is owned
    none = infer_ownership(Tiles().func(), context())
    assert simplify_layouts(none, context()) is none


def test_k8_with_everything_through_scratch_a_copy_costs_the_same_from_anywhere() -> None:
    """So sources stay as written, and shared intermediates still go."""
    p = Tiles()
    there = p.convert(p.x, ROWS, "there")
    p.keep(p.convert(there, ROWS_FLIPPED, "a"))
    p.keep(p.convert(there, SWAP, "b"))
    ctx = context(conversion="scratch")
    owned, func, _ = simplify(p, ctx)
    assert len(left(func)) == 2
    assert (barriers(owned, ctx), barriers(func, ctx)) == (6, 4)


def test_copies_of_different_tiles_are_never_mixed_up() -> None:
    """Two tiles of one type through the same layouts."""
    p = Tiles()
    view = p.tensor("z", (64,), "read")
    z = p.load(view, p.at[IDENTITY])
    x1, z1 = p.convert(p.x, ROWS, "x1"), p.convert(z, ROWS, "z1")
    p.keep(p.op(BinaryKind.SUB, p.convert(x1, SWAP, "x2"), p.convert(z1, SWAP, "z2")))
    _, func, _ = simplify(p)
    assert [(source, made) for source, made in left(func)] == [("x0", "x2"), (z.name, "z2")]


def test_c6_register_tiles_are_simplified_by_the_same_rules() -> None:
    """An inverse pair that no planner of register tiles has to know."""
    striped = ThreadLayout.identity(256, elements_per_thread=4)
    adjacent = ThreadLayout((6, 7, 0, 1, 2, 3, 4, 5), elements_per_thread=4)
    p = TileProgram()
    at = p.lanes(256, layout=striped)
    x = p.load(p.tensor("x", (256,), "read"), at)
    there = p.add(tile.Convert(x, adjacent), "there")
    back = p.add(tile.Convert(there, striped), "back")
    p.store(p.tensor("y", (256,), "write"), at, value=back)
    _, func, _ = simplify(p)
    assert left(func) == []
    assert stored(func) == [x]


def in_branch(p: Tiles, flag: Value, source: Value, layouts: tuple[ThreadLayout, ...]) -> None:
    """if flag: source is converted to each layout in turn and stored."""
    outer = p.begin()
    value = source
    for number, layout in enumerate(layouts):
        value = p.convert(value, layout, f"inner{number}")
    p.keep(value)
    then = p.end(outer)
    other = p.end(p.begin())
    p.emit(tile.If(flag, then, other))


def branching(outside: bool) -> Func:
    """x, a copy of it in ROWS that is read in a branch and, if wanted, outside as well."""
    p = Tiles()
    flag = p.scalar("flag", bool_)
    for layout in (ROWS, ROWS_FLIPPED, SWAP):
        p.at[layout] = p.lanes(64, layout=layout)
    p.tensor("y0", (64,), "write")
    there = p.convert(p.x, ROWS, "there")
    if outside:
        p.keep(there)
    in_branch(p, flag, there, (SWAP, ROWS_FLIPPED))
    return replace(p.func(), threads=64)


@pytest.mark.parametrize("outside", [False, True])
def test_c2_what_is_converted_outside_a_branch_is_not_moved_into_it(outside: bool) -> None:
    """In the branch a copy in ROWS_FLIPPED is a shuffle from `there`, and an exchange from x."""
    func = simplify_layouts(branching(outside), context())
    assert left(func) == [("x0", "there"), ("there", "inner1")]
    assert simplify_layouts(func, context()) is func


def test_e_the_report_and_explain_show_each_simplification() -> None:
    p = Tiles()
    there = p.convert(p.x, ROWS, "there")
    p.keep(p.convert(there, ROWS_FLIPPED, "a"))
    p.keep(p.convert(there, IDENTITY, "b"))
    _, _, ctx = simplify(p)
    plain = ctx.report.to_dict()
    facts = json.loads(json.dumps(plain))["layout_optimizations"]
    assert [fact["kind"] for fact in facts] == ["intermediate", "composed", "inverse"]
    assert facts[1]["replacement"] == "x0"
    text = explain(ctx.report)
    assert "layout optimizations:" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert any(
        line.startswith("there intermediate 2 barriers fewer kernel.py:7 only") for line in lines
    )
    assert any(
        line.startswith("a composed use x0 2 barriers more kernel.py:8 x0 ") for line in lines
    )
    assert any(line.startswith("b inverse use x0 2 barriers fewer kernel.py") for line in lines)
