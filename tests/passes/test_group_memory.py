"""Which accesses become groups, where they go, and that nothing else changes (SPEC V1, V3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Context, Schedule
from metile_mlx.dtypes import DType, bf16, f16, f32, i32, u32
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import Block, Func, walk
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.group_memory import group_memory
from metile_mlx.target import CUDA, METAL, Target
from tests.support import simulate
from tests.support.arithmetic import NUMPY
from tests.support.execute import same_bits
from tests.support.grouped import adjacent, row, row_func, striped
from tests.support.mutate import ops_of
from tests.support.products import matmul
from tests.support.samples import Sample
from tests.support.tile_program import TileProgram


def lowered(func: Func, target: Target = METAL, **options: object) -> tuple[Func, Context]:
    ctx = Context(target, **options)  # type: ignore[arg-type]
    return lower(func, ctx), ctx


def groups(func: Func, **options: object) -> tuple[int, int]:
    """How many groups of loads and of stores a kernel gets; the report says the same."""
    made, ctx = lowered(func, **options)
    found = len(ops_of(made, metal.LoadGroup)), len(ops_of(made, metal.StoreGroup))
    assert found == (len(ctx.report.grouped_loads), len(ctx.report.grouped_stores))
    return found


SCALAR = Schedule(vector_width=1)


@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("bits", [32, 64])
def test_v1_adjacent_ownership_groups(dtype: DType, bits: int) -> None:
    """No scalar access is left, and each fact names array, dtype, width and line."""
    made, ctx = lowered(row_func(adjacent(256), dtype), index_bits=bits)
    assert not ops_of(made, metal.Load, metal.Store)
    (load,), (store,) = ctx.report.grouped_loads, ctx.report.grouped_stores
    assert (load.tensor, load.dtype, load.width) == ("x", str(dtype), 4)
    assert (store.tensor, store.dtype, store.width) == ("y", str(dtype), 4)
    assert load.where != store.where
    assert load.where.startswith("kernel.py:")


def test_v1_what_stays_scalar() -> None:
    """Striped ownership, stride 2, fewer than four neighbours, and dtypes groups don't hold."""
    assert groups(row_func(striped(256))) == (0, 0)
    assert groups(row_func(adjacent(256), stride=2)) == (0, 0)
    assert groups(row_func(adjacent(256, 2))) == (0, 0)
    assert groups(row_func(adjacent(256), i32)) == (0, 0)
    # Pairs of neighbours, far apart.
    assert groups(row_func(ThreadLayout((6, 0, 1, 2, 3, 4, 5, 7), 0, 4))) == (0, 0)


@pytest.mark.parametrize("registers", [4, 8, 16, 32])
def test_v1_each_four_neighbours_are_a_group(registers: int) -> None:
    count = registers // 4
    assert groups(row_func(adjacent(2048, registers))) == (count, count)


@pytest.mark.parametrize(
    "layout",
    [
        adjacent(256, 4, xor_mask=3),
        adjacent(256, 4, xor_mask=201),
        ThreadLayout((7, 6, 0, 1, 2, 3, 4, 5), 0, 4),
        ThreadLayout((7, 6, 5, 4, 3, 2, 1, 0), 90, 4),
        ThreadLayout((8, 6, 0, 1, 2, 3, 4, 5, 7), 0, 8),
    ],
    ids=repr,
)
def test_v1_slots_in_another_order_group_too(layout: ThreadLayout) -> None:
    """The lanes follow the indices, whatever the order of the registers and of the threads."""
    func = row_func(layout)
    assert sum(groups(func)) >= 2
    n = layout.size + 2
    arrays = {"x": np.arange(n, dtype=np.float32), "y": np.zeros(n, np.float32)}
    scalars = {"n": n, "start": 0}
    found = simulate.run(lowered(func)[0], arrays, scalars, (2,))
    plain = simulate.run(lowered(func, schedule=SCALAR)[0], arrays, scalars, (2,))
    assert same_bits(found[0]["y"], plain[0]["y"])
    assert same_bits(found[0]["y"], 2 * arrays["x"])


def test_v1_rows_of_a_matrix_group_and_its_columns_do_not() -> None:
    for order, expected in (((0, 1), 1), ((1, 0), 0)):
        p = TileProgram()
        x = p.tensor("x", (p.scalar("n"), 1009), "read")
        y = p.tensor("y", (256,), "write")
        i = p.lanes(256, 0, adjacent(256))
        index = (p.program_id(), i)
        value = p.load(x, *(index[k] for k in order))
        p.store(y, i, value=value)
        assert groups(p.func()) == (expected, 1)


def test_v2_indices_are_compared_where_a_number_may_wrap() -> None:
    """Not for constant extents; for an origin of the call, in 32 and in 64 bits."""
    known, _ = lowered(row_func(adjacent(256), extent=200))
    assert {item.checked for item in ops_of(known, metal.LoadGroup)} == {False}  # type: ignore[attr-defined]
    for bits in (32, 64):
        made, _ = lowered(row_func(adjacent(256)), index_bits=bits)
        found = ops_of(made, metal.LoadGroup, metal.StoreGroup)
        assert {item.checked for item in found} == {True}  # type: ignore[attr-defined]


def test_v2_on_cuda_the_bounds_of_a_view_stand_in_for_the_comparison() -> None:
    """Only where offsets have 32 bits: there no element of a view lies past 2**31 - 1."""
    for bits, checked in ((32, False), (64, True)):
        made, _ = lowered(row_func(adjacent(256)), CUDA, index_bits=bits)
        found = ops_of(made, metal.LoadGroup, metal.StoreGroup)
        assert {item.checked for item in found} == {checked}  # type: ignore[attr-defined]


@pytest.mark.parametrize("registers", [4, 8, 16, 32])
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
def test_v1_on_cuda_eight_16_bit_neighbours_are_one_access(dtype: DType, registers: int) -> None:
    """16 bytes at most: eights of 16 bits, fours of 32; the report gives the width."""
    _, ctx = lowered(row_func(adjacent(1024, registers), dtype), CUDA)
    width = 8 if dtype.bits == 16 and registers >= 8 else 4
    for facts in (ctx.report.grouped_loads, ctx.report.grouped_stores):
        assert [fact.width for fact in facts] == [width] * (registers // width)


def test_v1_on_cuda_what_eights_leave_is_grouped_in_fours() -> None:
    """Fours far apart, and eights whose middle another slot's row splits."""
    fours = ThreadLayout((6, 7, 0, 1, 2, 3, 4, 5, 8), 0, 8)
    _, ctx = lowered(row_func(fours, f16), CUDA)
    assert [fact.width for fact in ctx.report.grouped_loads] == [4, 4]


def test_v1_a_mask_of_some_lanes_only() -> None:
    """Extent 254: the last two lanes of a group can be outside, the first two can't."""
    made, _ = lowered(row_func(adjacent(256), extent=254))
    (load,) = ops_of(made, metal.LoadGroup)
    assert isinstance(load, metal.LoadGroup)
    assert [mask is None for mask in load.masks] == [True, True, False, False]
    assert [fill is None for fill in load.fills] == [True, True, False, False]


def test_v3_vector_width_1_keeps_everything_else() -> None:
    func = row_func(adjacent(256))
    ctx = Context(METAL, Schedule(vector_width=1))
    made = lower(func, ctx)
    assert group_memory(made, ctx) is made
    assert ctx.report.grouped_loads == []
    grouped, other = lowered(func)
    assert ctx.report.value_layouts == other.report.value_layouts
    assert ctx.report.bounds_checks_removed == other.report.bounds_checks_removed
    # What is not memory is the same, in the same order.
    kinds = (metal.Load, metal.Store, metal.LoadGroup, metal.StoreGroup, metal.Extract)
    kept = [
        [(i.opcode, i.attributes()) for i in f.body.ops if not isinstance(i, kinds)]
        for f in (made, grouped)
    ]
    assert kept[0] == kept[1]


def test_a_program_without_groups_is_the_same_object() -> None:
    made, ctx = lowered(row_func(striped(256)))
    assert group_memory(made, ctx) is made


def test_v1_results_stay_the_values_they_were() -> None:
    ctx = Context(METAL, SCALAR)
    made = lower(row_func(adjacent(256)), ctx)
    grouped = group_memory(made, Context(METAL))
    before = {item.result for item in ops_of(made, metal.Load)}
    assert {item.result for item in ops_of(grouped, metal.Extract)} == before


def test_v1_no_access_passes_another_one() -> None:
    """Two loads of one array with a store between them: each keeps its place."""
    p = TileProgram()
    x = p.tensor("x", (256,), "read_write")
    i = p.lanes(256, 0, adjacent(256))
    first = p.load(x, i)
    p.store(x, i, value=first)
    second = p.load(x, i)
    z = p.tensor("z", (256,), "write")
    p.store(z, i, value=second)
    made, _ = lowered(p.func())
    kinds = [item.opcode for item in made.body.ops if "_group" in item.opcode]
    assert kinds == ["metal.load_group", "metal.store_group"] * 2


@pytest.mark.parametrize("blocker", ["store", "load", "barrier", "use"])
def test_v1_slots_with_something_between_stay_scalar(blocker: str) -> None:
    """Another access, a barrier, or work on a slot already loaded."""
    ctx = Context(METAL, SCALAR)
    made = lower(row_func(adjacent(256)), ctx)
    loads, (store, *_) = ops_of(made, metal.Load), ops_of(made, metal.Store)
    others = {
        "store": replace(store, value=loads[0].result, access=77),  # type: ignore[call-arg]
        "load": replace(loads[0], access=None, results=()),  # type: ignore[call-arg]
        "barrier": metal.Barrier("publish"),
        "use": metal.Binary(BinaryKind.ADD, loads[0].result, loads[0].result),
    }
    ops = []
    for item in made.body.ops:
        ops += [others[blocker], item] if item is loads[3] else [item]
    blocked = group_memory(made.with_body(Block(tuple(ops))), Context(METAL))
    assert len(ops_of(blocked, metal.Load)) >= 4
    assert len(ops_of(blocked, metal.StoreGroup)) == 1


def test_k7_written_masks_stay_beside_grouped_stores() -> None:
    """A read_write output has bools stored between its slots: part of the same access."""
    p = TileProgram()
    n = p.scalar("n")
    x = p.tensor("x", (n,), "read_write")
    i = p.lanes(256, 0, adjacent(256))
    value = p.load(x, i)
    p.store(x, i, value=value)
    made, ctx = lowered(p.func(), masked_outputs=frozenset({"x"}))
    assert len(ctx.report.grouped_stores) == 1
    assert len(ops_of(made, metal.Store)) == 4
    arrays = {"x": np.arange(250, dtype=np.float32)}
    arrays |= {"x_out": arrays["x"], "x_written": np.zeros(250, bool)}
    found, _ = simulate.run(made, arrays, {"n": 249}, (1,))
    assert found["x_written"].tolist() == [True] * 249 + [False]


@pytest.mark.parametrize("target", [METAL, CUDA], ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [f16, bf16, f32], ids=str)
@pytest.mark.parametrize("bits", [32, 64])
def test_v1_groups_mean_what_scalars_mean(dtype: DType, bits: int, target: Target) -> None:
    """Ragged rows, shifted and wrapping origins, masks of every third element."""
    for thirds in (False, True):
        func = row_func(adjacent(256, 8), dtype, thirds=thirds)
        grouped = lowered(func, target, index_bits=bits)[0]
        plain = lowered(func, index_bits=bits, schedule=SCALAR)[0]
        for n, start in ((300, 0), (301, 1), (127, -3), (50, -129), (9, 2**31 - 2), (9, -(2**31))):
            x = np.random.default_rng(n).integers(0, 100, n).astype(np.float32)
            x = (x.view(np.uint32) >> 16).astype(np.uint16) if dtype == bf16 else x
            arrays = {"x": x.astype(NUMPY[dtype]), "y": np.zeros(n, NUMPY[dtype])}
            scalars = {"n": n, "start": start}
            a = simulate.run(grouped, arrays, scalars, (3,))
            b = simulate.run(plain, arrays, scalars, (3,))
            assert same_bits(a[0]["y"], b[0]["y"]), (n, start)
            assert same_bits(a[1]["y"], b[1]["y"]), (n, start)


def test_access_numbers_name_the_slots_of_one_access() -> None:
    """Each load and store has its own, and a tile of one slot needs none."""
    made, _ = lowered(row_func(adjacent(256)), schedule=SCALAR)
    numbers = {
        kind: {item.access for item in ops_of(made, kind)}  # type: ignore[attr-defined]
        for kind in (metal.Load, metal.Store)
    }
    assert all(len(found) == 1 and None not in found for found in numbers.values())
    assert numbers[metal.Load] != numbers[metal.Store]
    single, _ = lowered(row(striped(256, 1)).func())
    assert {item.access for item in ops_of(single, metal.Load)} == {None}  # type: ignore[attr-defined]


def test_masks_of_groups_are_those_of_the_slots() -> None:
    """A row of u32 indices: nothing about a group depends on the order of its masks."""
    made, _ = lowered(row_func(adjacent(256), thirds=True), schedule=SCALAR)
    slots = {item.index: item.mask for item in ops_of(made, metal.Load)}  # type: ignore[attr-defined]
    (load,) = ops_of(group_memory(made, Context(METAL)), metal.LoadGroup)
    assert isinstance(load, metal.LoadGroup)
    assert {index.type.dtype for index in load.indices} == {u32}  # type: ignore[union-attr]
    assert dict(zip(load.indices, load.masks, strict=True)) == slots


def product_func() -> Func:
    """A product of f16 matrices in tiles of 64 x 64 x 16."""
    specs = {
        "A": "f16*",
        "B": "f16*",
        "C": "f32*",
        **dict.fromkeys(("COUNT", "M", "N", "K"), "i32"),
    }
    specs |= {"MK": "i32", "KN": "i32"}
    sizes = {"BM": 64, "BN": 64, "BK": 16, "TURNED_A": False, "TURNED_B": False}
    return Sample(matmul, tuple(specs.values()), sizes).func()


@pytest.mark.parametrize("target", [METAL, CUDA], ids=["metal", "cuda"])
def test_v1_copies_in_loops_and_branches_are_grouped_there(target: Target) -> None:
    """The tiles that a pipeline loads: before its loop, and in it (SPEC P1)."""
    ctx = Context(target, Schedule(double_buffer=True))
    func = lower(product_func(), ctx)
    groups = [item for item in walk(func.body) if isinstance(item, metal.LoadGroup)]
    top = set(func.body.ops)
    assert len(groups) == 8
    assert top.isdisjoint(groups)
    assert len(ctx.report.grouped_loads) == 8
    scalars = [item for item in walk(func.body) if isinstance(item, metal.Load)]
    assert scalars == []
    plain = lower(product_func(), Context(target, Schedule(1, double_buffer=True)))
    assert group_memory(plain, Context(target, Schedule(1))) is plain
    assert group_memory(func, Context(target)) is func
