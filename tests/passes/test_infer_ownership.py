"""Every rule of ownership with its exact message, and what the pass leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import DType, bool_, f32, i8, i32, u32
from metile_mlx.errors import (
    CompileError,
    LayoutError,
    OwnershipError,
    VerificationError,
)
from metile_mlx.ir import lanes, tile
from metile_mlx.ir.arith import BinaryKind, CombineKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.types import ScalarType, TileType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.report import ValueLayout
from metile_mlx.target import SIMD_WIDTH
from metile_mlx.verify import verify
from tests.support.build import Program, chain_program, context, conversion_program
from tests.support.tile_program import TileProgram

IDENTITY = ThreadLayout.identity(64)
ROWS = ThreadLayout((3, 4, 5, 0, 1, 2))
SWAP = ThreadLayout((1, 0, 2, 3, 4, 5))


def owned(func: Func, ctx: Context | None = None) -> Func:
    """The pass and the verifier of what it leaves."""
    ctx = ctx or context()
    verify(func, Stage.TILE, ctx)
    result = infer_ownership(func, ctx)
    verify(result, Stage.OWNED, ctx, func)
    return result


def fails(func: Func, kind: type[CompileError], message: str, line: int, hint: str) -> None:
    """The pass raises exactly this."""
    ctx = context()
    verify(func, Stage.TILE, ctx)
    with pytest.raises(CompileError) as caught:
        infer_ownership(func, ctx)
    error = caught.value
    assert (type(error), error.message) == (kind, message)
    assert error.loc is not None
    assert error.loc.line == line
    assert error.hint == hint


def layouts(func: Func) -> dict[str, ThreadLayout | None]:
    return {
        value.name: value.type.layout
        for item in walk(func.body)
        for value in item.results
        if value.name and isinstance(value.type, TileType)
    }


def test_o3_tiles_without_a_layout_take_the_identity_and_the_rest_follows() -> None:
    p = Program()
    x, y = p.array("x", f32, 64, "read"), p.array("y", f32, 64, "write")
    positions = p.arange(64, None, "positions")
    value = p.add(tile.Load(x, (positions,)), "value")
    double = p.add(tile.Binary(BinaryKind.ADD, value, value), "double")
    p.emit(tile.Store(y, (positions,), double))
    func = owned(p.func())
    assert layouts(func) == {"positions": IDENTITY, "value": IDENTITY, "double": IDENTITY}
    assert func.threads == 64


def test_o1_o2_every_elementwise_op_carries_the_layout() -> None:
    p = Program()
    positions = p.arange(64, ROWS, "positions")
    fill = p.add(tile.Splat(p.number(1.0, f32), (64,), ROWS), "fill")
    real = p.add(tile.Cast(positions, f32), "real")
    bits = p.add(tile.Bitcast(real, u32), "bits")
    root = p.add(tile.Unary(UnaryKind.SQRT, real), "root")
    mask = p.add(tile.Compare(CompareKind.LT, root, fill), "mask")
    chosen = p.add(tile.Select(mask, root, p.number(0.0, f32)), "chosen")
    fused = p.add(tile.Fma(chosen, fill, p.scalar("scale", f32)), "fused")
    func = owned(p.func())
    assert set(layouts(func).values()) == {ROWS}
    assert {bits.name, fused.name} <= set(layouts(func))


def test_stated_layouts_keep_the_same_values_and_a_second_run_the_same_function() -> None:
    source = conversion_program(SWAP, ROWS)
    func = owned(source)
    assert [item.results for item in func.body.ops] == [item.results for item in source.body.ops]
    assert func is not source  # it has threads now
    assert infer_ownership(func, context()) is func


def test_new_values_keep_name_and_location() -> None:
    source = conversion_program(None, ROWS)
    func = owned(source)
    pairs = [
        (old, new)
        for before, after in zip(source.body.ops, func.body.ops, strict=True)
        for old, new in zip(before.results, after.results, strict=True)
        if old is not new
    ]
    assert [new.name for _, new in pairs] == ["positions0", "value0"]
    assert all((old.name, old.loc) == (new.name, new.loc) for old, new in pairs)
    assert [old.type for old, _ in pairs] == [TileType(i32, (64,)), TileType(f32, (64,))]


def test_e_each_named_tile_is_reported_and_says_whether_its_layout_was_stated() -> None:
    ctx = context()
    owned(conversion_program(None, ROWS), ctx)
    assert ctx.report.value_layouts == [
        ValueLayout("positions0", "i32", repr(IDENTITY), False, "kernel.py:8"),
        ValueLayout("value0", "f32", repr(IDENTITY), False, "kernel.py:9"),
        ValueLayout("converted0", "f32", repr(ROWS), True, "kernel.py:10"),
        ValueLayout("owned0", "i32", repr(ROWS), True, "kernel.py:12"),
    ]


def test_a_kernel_without_tiles_runs_on_one_simdgroup() -> None:
    p = Program()
    y = p.array("y", i32, 1, "write")
    p.emit(tile.Store(y, (p.number(0),), p.scalar("n")))
    assert owned(p.func()).threads == SIMD_WIDTH


@pytest.mark.parametrize("size", [32, 64, 128, 256, 512, 1024])
def test_o5_every_legal_size_gives_its_number_of_threads(size: int) -> None:
    p = Program()
    p.arange(size, None, "positions")
    assert owned(p.func()).threads == size


def test_branches_without_explicit_layouts_are_resolved_inside_and_out() -> None:
    p = Program()
    a, b = p.arange(64, None, "a"), p.arange(64, None, "b")
    one, two = p.builder.child(), p.builder.child()
    total = one.add(tile.Binary(BinaryKind.ADD, a, b), "total")
    one.emit(tile.Yield((total,)))
    two.emit(tile.Yield((a,)))
    branch = tile.If(p.scalar("flag", bool_), one.block(), two.block())
    (result,) = p.emit(branch)
    p.add(tile.Binary(BinaryKind.MUL, result, a), "product")
    func = owned(p.func())
    assert set(layouts(func).values()) == {IDENTITY}
    assert not any(
        isinstance(value.type, TileType) and value.type.layout is None
        for item in walk(func.body)
        for value in (*item.operands(), *item.results)
    )


def mixed(lhs: ThreadLayout | None, rhs: ThreadLayout | None) -> Func:
    p = Program()
    a, b = p.arange(64, lhs, "a"), p.arange(64, rhs, "b")
    p.add(tile.Binary(BinaryKind.ADD, a, b), "c")
    return p.func()


def test_o3_two_explicit_owners_in_one_op() -> None:
    fails(
        mixed(SWAP, ROWS),
        OwnershipError,
        "[add] 'a' and 'b' have different owners: 'a' has ThreadLayout((1, 0, 2, 3, 4, 5)), "
        "'b' has ThreadLayout((3, 4, 5, 0, 1, 2))",
        5,
        "use metile.convert_layout(b, ThreadLayout((1, 0, 2, 3, 4, 5)))",
    )


def test_o3_an_implicit_tile_meets_an_explicit_one() -> None:
    hint = (
        "use metile.convert_layout({}, ThreadLayout((3, 4, 5, 0, 1, 2))), or state the owner "
        "where it is made: metile.arange(..., layout=...)"
    )
    implicit = "ThreadLayout((0, 1, 2, 3, 4, 5)) (implicit: no layout is stated for it)"
    fails(
        mixed(None, ROWS),
        OwnershipError,
        f"[add] 'a' and 'b' have different owners: 'a' has {implicit}, "
        "'b' has ThreadLayout((3, 4, 5, 0, 1, 2))",
        5,
        hint.format("a"),
    )
    fails(
        mixed(ROWS, None),
        OwnershipError,
        "[add] 'a' and 'b' have different owners: 'a' has ThreadLayout((3, 4, 5, 0, 1, 2)), "
        f"'b' has {implicit}",
        5,
        hint.format("b"),
    )


def test_o3_an_implicit_tile_may_meet_the_explicit_identity() -> None:
    assert set(layouts(owned(mixed(None, IDENTITY))).values()) == {IDENTITY}


def test_o3_index_mask_and_value_of_memory_ops_have_one_owner() -> None:
    p = Program()
    y = p.array("y", i32, 64, "write")
    a, b = p.arange(64, SWAP, "a"), p.arange(64, ROWS, "b")
    p.emit(tile.Store(y, (a,), b))
    fails(
        p.func(),
        OwnershipError,
        "[store] 'a' and 'b' have different owners: 'a' has ThreadLayout((1, 0, 2, 3, 4, 5)), "
        "'b' has ThreadLayout((3, 4, 5, 0, 1, 2))",
        8,
        "use metile.convert_layout(b, ThreadLayout((1, 0, 2, 3, 4, 5)))",
    )
    p = Program()
    x = p.array("x", i32, 64, "read")
    a, b = p.arange(64, SWAP, "a"), p.arange(64, ROWS, "b")
    mask = p.add(tile.Compare(CompareKind.LT, b, p.number(5)))
    p.add(tile.Load(x, (a,), mask), "c")
    fails(
        p.func(),
        OwnershipError,
        "[load] 'a' and the value of line 9 have different owners: 'a' has "
        "ThreadLayout((1, 0, 2, 3, 4, 5)), the value of line 9 has "
        "ThreadLayout((3, 4, 5, 0, 1, 2))",
        10,
        "use metile.convert_layout(value, ThreadLayout((1, 0, 2, 3, 4, 5)))",
    )


def test_o3_where_is_called_by_its_own_name() -> None:
    p = Program()
    a, b = p.arange(64, SWAP, "a"), p.arange(64, ROWS, "b")
    mask = p.add(tile.Compare(CompareKind.LT, a, p.number(5)), "mask")
    p.add(tile.Select(mask, a, b), "c")
    with pytest.raises(OwnershipError, match=r"\[where\] 'mask' and 'b' have different owners"):
        infer_ownership(p.func(), context())


def test_o4_a_value_of_each_threads_own_never_broadcasts_into_an_owned_tile() -> None:
    p = Program()
    lane = p.add(lanes.ThreadId("thread_id"), "lane")
    a = p.arange(64, ROWS, "a")
    p.add(tile.Binary(BinaryKind.ADD, a, lane), "c")
    hint = "number the elements with metile.arange(0, size, layout=...) instead"
    fails(
        p.func(),
        OwnershipError,
        "[add] 'lane' is thread_id, a value of each thread's own, and meets 'a' with "
        "ThreadLayout((3, 4, 5, 0, 1, 2)): only uniform scalars broadcast",
        4,
        hint,
    )
    p = Program()
    lane = p.add(lanes.ThreadId("simd_lane_id"), "lane")
    twice = p.add(tile.Binary(BinaryKind.ADD, lane, lane), "twice")
    four = p.add(tile.Binary(BinaryKind.ADD, twice, twice), "four")
    a = p.arange(64, ROWS, "a")
    p.add(tile.Binary(BinaryKind.ADD, a, four), "c")
    fails(
        p.func(),
        OwnershipError,
        "[add] 'four' is computed from simd_lane_id, a value of each thread's own, and meets 'a' "
        "with ThreadLayout((3, 4, 5, 0, 1, 2)): only uniform scalars broadcast",
        6,
        hint,
    )


CONSTRUCTS = [
    lanes.ThreadId("thread_id()"),
    lanes.Shared(f32, (64,), "shared_0", "shared()"),
    lanes.Sync("barrier()"),
]


@pytest.mark.parametrize("item", CONSTRUCTS, ids=lambda item: item.construct)
def test_o5_constructs_of_the_automatic_path_are_rejected_by_name(item: Op) -> None:
    p = Program()
    p.arange(64, ROWS, "a")
    p.emit(replace(item))
    fails(
        p.func(),
        OwnershipError,
        f"[{item.attributes()['construct']}] is not available beside explicit thread layouts (one "
        "is stated in line 2)",
        3,
        "explicit ownership is for straight-line programs over tensor descriptors",
    )


def test_o5_a_conversion_alone_makes_a_program_explicit() -> None:
    p = Program()
    a = p.arange(64, None, "a")
    p.add(tile.Convert(a, ROWS), "b")
    p.add(lanes.ThreadId("thread_id"), "own")
    with pytest.raises(OwnershipError, match=r"\[thread_id\] .* stated in line 3"):
        infer_ownership(p.func(), context())


def test_o5_c2_no_branch_beside_explicit_layouts() -> None:
    p = Program()
    p.arange(64, ROWS, "a")
    empty = Block((tile.Yield(),))
    p.emit(tile.If(p.scalar("flag", bool_), empty, empty))
    fails(
        p.func(),
        OwnershipError,
        "[if] a branch is not available beside explicit thread layouts (one is stated in line 2)",
        3,
        "use metile.where(condition, a, b), mask= of load and store, or a constexpr",
    )


def test_o1_a_view_of_a_tile_keeps_its_owners() -> None:
    """The layout owns the row-major flattened index, whatever the shape."""
    p = Program()
    a = p.arange(64, ROWS, "a")
    p.add(tile.Reshape(a, (8, 8)), "grid")
    p.add(tile.Reduce(CombineKind.MAX, p.add(tile.Reshape(a, (2, 32)), "pairs"), 1), "most")
    func = owned(p.func())
    types = {value.name: value.type for item in func.body.ops for value in item.results}
    assert types["grid"] == TileType(i32, (8, 8), ROWS)
    assert types["most"] == types["pairs"] == TileType(i32, (2, 32), ROWS)


def test_o5_tile_sizes_agree_within_a_kernel() -> None:
    hint = "a kernel has one tile size; use the larger one and mask the rest"
    p = Program()
    p.arange(64, None, "a")
    p.arange(128, None, "b")
    message = "[arange] 'b' has 128 elements but 'a' has 64 (kernel.py:2)"
    fails(p.func(), LayoutError, message, 4, hint)
    p = Program()
    p.arange(64, ROWS, "a")
    p.add(tile.Splat(p.number(0.0, f32), (32,)), "b")
    message = "[full] 'b' has 32 elements but 'a' has 64 (kernel.py:2)"
    fails(p.func(), LayoutError, message, 4, hint)


@pytest.mark.parametrize("size", [1, 16, 2048, 4096])
def test_o6_a_tile_without_a_layout_is_never_one_of_several_registers(size: int) -> None:
    p = Program()
    p.arange(size, None, "a")
    advice = (
        "; or state who owns several elements per thread: "
        f"layout=metile.ThreadLayout.identity({size}, elements_per_thread={size // 1024})"
    )
    fails(
        p.func(),
        LayoutError,
        f"[arange] 'a' has {size} elements; a tile without a layout has one per thread: a power "
        "of two from 32 to 1024",
        2,
        "use a tile of such a size; mask what is too much, and cover more with more programs "
        f"(a larger grid){advice if size > 1024 else ''}",
    )


def test_o6_a_tile_beyond_every_layout_gets_no_advice_to_state_one() -> None:
    p = Program()
    p.arange(65536, None, "a")
    fails(
        p.func(),
        LayoutError,
        "[arange] 'a' has 65536 elements; a tile without a layout has one per thread: a power of "
        "two from 32 to 1024",
        2,
        "use a tile of such a size; mask what is too much, and cover more with more programs "
        "(a larger grid)",
    )


def test_o6_a_shape_that_is_no_power_of_two() -> None:
    p = Program()
    p.add(tile.Splat(p.number(0.0, f32), (6, 8)), "a")
    with pytest.raises(LayoutError, match=r"\[full\] 'a' has 48 elements; a tile without"):
        infer_ownership(p.func(), context())


FOUR = ThreadLayout.identity(1024, elements_per_thread=4)


@pytest.mark.parametrize("registers", [1, 2, 4, 8, 16, 32])
def test_registers_divide_the_threads(registers: int) -> None:
    """SPEC L2, R1: a thread for each group of elements it owns."""
    p = Program()
    p.arange(1024, ThreadLayout.identity(1024, elements_per_thread=registers), "a")
    assert owned(p.func()).threads == 1024 // registers


def test_the_largest_tile() -> None:
    p = Program()
    p.arange(32768, ThreadLayout.identity(32768, elements_per_thread=32), "a")
    assert owned(p.func()).threads == 1024


def test_o6_an_unstated_tile_beside_one_of_several_registers() -> None:
    """It has one element per thread, and that is said; in either order."""
    p = Program()
    p.arange(1024, FOUR, "a")
    p.arange(1024, None, "b")
    fails(
        p.func(),
        LayoutError,
        "[arange] 'b' has 1 element per thread (no layout is stated for it) but 'a' has 4 elements "
        "per thread (kernel.py:2)",
        4,
        f"state the owner of the other one: layout={FOUR!r}",
    )
    p = Program()
    p.arange(1024, None, "a")
    p.arange(1024, FOUR, "b")
    fails(
        p.func(),
        LayoutError,
        "[arange] 'b' has 4 elements per thread but 'a' has 1 element per thread (no layout is "
        "stated for it) (kernel.py:2)",
        4,
        f"state the owner of the other one: layout={FOUR!r}",
    )


def test_o5_one_number_of_registers_per_kernel() -> None:
    p = Program()
    p.arange(1024, FOUR, "a")
    p.arange(1024, ThreadLayout.identity(1024, elements_per_thread=8), "b")
    fails(
        p.func(),
        LayoutError,
        "[arange] 'b' has 8 elements per thread but 'a' has 4 elements per thread (kernel.py:2)",
        4,
        "a kernel has one elements_per_thread; give all its layouts the same",
    )


def summed_under(read_condition: bool) -> Func:
    p = TileProgram()
    x = p.tensor("x", (64,), "read")
    value = p.load(x, p.lanes(64))
    limit = p.add(tile.Cast(p.load(x, 5), i32), "limit") if read_condition else p.number(3)
    condition = p.compare(CompareKind.LT, p.program_id(), limit)
    outer = p.begin()
    then = p.end(outer, p.add(tile.Reduce(CombineKind.SUM, value)))
    outer = p.begin()
    otherwise = p.end(outer, p.number(0.0, f32))
    p.emit(tile.If(condition, then, otherwise))
    return p.func()


def test_c2_a_reduction_under_a_condition() -> None:
    """Every thread takes part in a sum or none does: what decides is proven uniform."""
    infer_ownership(summed_under(read_condition=False), context())
    func = summed_under(read_condition=True)
    with pytest.raises(CompileError) as caught:
        infer_ownership(func, context())
    line = func.body.ops[-1].loc.line
    assert caught.value.message.startswith(
        f"[sum] a reduction under the runtime `if` of line {line}, whose condition "
    )
    assert "is not proven to be the same in all threads: it comes from memory" in (
        caught.value.message
    )


def test_a_layout_of_another_size_than_its_tile() -> None:
    p = Program()
    p.add(tile.Splat(p.number(0.0, f32), (32,), ROWS), "a")
    fails(
        p.func(),
        LayoutError,
        "[full] 'a' has 32 elements but ThreadLayout((3, 4, 5, 0, 1, 2)) owns 64",
        2,
        "give a layout of the tile's size",
    )


@pytest.mark.parametrize("width", [None, 1])
def test_c5_v3_explicit_ownership_takes_vector_width_none_or_one(width: int | None) -> None:
    owned(conversion_program(None, ROWS), context(vector_width=width))


def test_c5_v3_a_forced_vector_width_beside_explicit_layouts() -> None:
    with pytest.raises(CompileError) as caught:
        infer_ownership(conversion_program(None, ROWS), context(vector_width=4))
    assert caught.value.message == (
        "Schedule(vector_width=4) is not available beside explicit thread layouts "
        "(one is stated in line 10)"
    )
    assert caught.value.hint == "use vector_width=None, or 1 to turn grouping off"
    owned(mixed(None, None), context(vector_width=4))


@pytest.mark.parametrize("dtype", [i8, DType("u64", u32.kind, 64)])
def test_c1_only_the_dtypes_of_the_language_convert(dtype: DType) -> None:
    with pytest.raises(CompileError) as caught:
        infer_ownership(conversion_program(None, ROWS, dtype), context())
    assert caught.value.message == (
        f"[convert_layout] 'value0' is {dtype}, expected one of f16, bf16, f32, i32, u32, bool"
    )
    assert caught.value.loc is not None
    assert caught.value.loc.line == 10


def test_o5_origins_are_uniform_by_type() -> None:
    start = Value(ScalarType(i32, uniform=False), "lane")
    with pytest.raises(CompileError, match=r"\[arange\] start is thread<i32>, expected a uniform"):
        Program().add(tile.Arange(start, 64))


def test_the_verifier_sees_a_tile_that_was_left_without_owner() -> None:
    func = chain_program(None, [(ROWS, f32)])
    with pytest.raises(VerificationError, match="expected a power of two from 32 to 32768"):
        verify(func, Stage.OWNED, context())
