"""Each sum gets the memory it needs, once, and the report says which (SPEC R2, R3, E)."""

from __future__ import annotations

import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import f32
from metile_mlx.errors import OutOfResources
from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.arith import BinaryKind, CombineKind
from metile_mlx.ir.core import Func, Op, walk
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.report import Allocation, RegisterReduction
from metile_mlx.target import METAL
from tests.support.tile_program import TileProgram


def sums(size: int, registers: int, count: int = 1) -> Func:
    """`count` times in a row: x becomes x minus the sum of its elements."""
    p = TileProgram()
    layout = ThreadLayout.identity(size, elements_per_thread=registers)
    x, y = p.tensor("x", (size,), "read"), p.tensor("y", (size,), "write")
    i = p.lanes(size, layout=layout)
    value = p.load(x, i)
    for k in range(count):
        total = p.add(tile.Reduce(CombineKind.SUM, value), f"total{k}")
        value = p.op(BinaryKind.SUB, value, total)
    p.store(y, i, value=value)
    return p.func()


def planned_with(func: Func) -> tuple[Func, Context]:
    ctx = Context(METAL)
    return lower(func, ctx, Stage.PLANNED), ctx


def ops(func: Func, *kinds: type[Op]) -> list[Op]:
    return [item for item in walk(func.body) if isinstance(item, kinds)]


@pytest.mark.parametrize("registers", [1, 2, 4, 8, 16, 32])
def test_one_partial_for_each_simdgroup(registers: int) -> None:
    func, ctx = planned_with(sums(1024, registers))
    threads, groups = 1024 // registers, 32 // registers
    slot = "partials_0" if groups > 1 else None
    assert ctx.report.register_reductions == [
        RegisterReduction("sum", "f32", threads, registers, slot)
    ]
    memory = [Allocation("partials_0", "f32", groups, groups * 4)] if slot else []
    assert ctx.report.allocations == memory
    (reduction,) = ops(func, planned.Reduce)
    assert isinstance(reduction, planned.Reduce)
    assert (reduction.scratch is None) == (groups == 1)
    assert not ops(func, tile.Reduce)


def test_sums_in_a_row_never_share_memory() -> None:
    """F43: with memory of its own no sum has to wait until the one before has been read."""
    func, ctx = planned_with(sums(256, 1, count=3))
    assert [r.scratch for r in ctx.report.register_reductions] == [
        "partials_0", "partials_1", "partials_2",
    ]  # fmt: skip
    scratches = [item.operands()[1] for item in ops(func, planned.Reduce)]
    assert len(set(scratches)) == 3


def test_a_program_without_sums_stays_the_same_object() -> None:
    func, ctx = planned_with(sums(256, 4, count=0))
    assert lower(func, ctx, Stage.TILE) is func
    assert ctx.report.register_reductions == []
    assert not ops(func, planned.Reduce, planned.Scratch)


@pytest.mark.parametrize("registers", [1, 4, 32])
def test_the_lowered_sum(registers: int) -> None:
    """R2: a tree over registers, lanes, one publication, and every simdgroup reads all partials."""
    func = lower(sums(1024, registers), Context(METAL))
    found = ops(
        func,
        metal.SimdReduce,
        metal.ThreadgroupStore,
        metal.ThreadgroupLoad,
        metal.Barrier,
        metal.ThreadgroupAlloc,
        metal.Shuffle,
    )
    kinds = [type(item).__name__ for item in found]
    if registers == 32:
        assert kinds == ["SimdReduce"]
    else:
        assert kinds == [
            "ThreadgroupAlloc", "SimdReduce", "ThreadgroupStore", "Barrier", "ThreadgroupLoad",
            "SimdReduce",
        ]  # fmt: skip
    adds = [
        item
        for item in ops(func, metal.Binary)
        if isinstance(item, metal.Binary)
        and item.kind is BinaryKind.ADD
        and item.lhs.type == metal.ScalarType(f32, uniform=False)
    ]
    assert len(adds) == registers - 1
    by_result = {item.result: item for item in adds}

    def depth(item: Op) -> int:
        return 1 + max((depth(by_result[v]) for v in item.operands() if v in by_result), default=0)

    assert max(map(depth, adds), default=0) == registers.bit_length() - 1


def test_x9_parts_that_no_threadgroup_has_room_for() -> None:
    """Pairs across simdgroups: every one of 32768 values would have to be published."""
    order = (*range(9), *range(10, 15), 9)
    p = TileProgram()
    x, y = p.tensor("x", (32768,), "read"), p.tensor("y", (32768,), "write")
    i = p.lanes(32768, layout=ThreadLayout(order, elements_per_thread=32))
    value = p.add(tile.Reshape(p.load(x, i), (2, 16384)))
    total = p.add(tile.Reduce(CombineKind.SUM, value, 0), "total")
    p.store(y, i, value=p.add(tile.Reshape(total, (32768,))))
    with pytest.raises(OutOfResources, match="partials_0 32768 x f32 = 131072"):
        lower(p.func(), Context(METAL))


def test_an_axis_of_one_element_is_the_tile_itself() -> None:
    p = TileProgram()
    x, y = p.tensor("x", (256,), "read"), p.tensor("y", (256,), "write")
    i = p.lanes(256)
    value = p.add(tile.Reshape(p.load(x, i), (256, 1)))
    same = p.add(tile.Reduce(CombineKind.MAX, value, 1))
    p.store(y, i, value=p.add(tile.Reshape(same, (256,))))
    func, ctx = planned_with(p.func())
    assert not ops(func, planned.Reduce, tile.Reduce)
    assert ctx.report.register_reductions == []


def test_r5_the_thread_index_is_masked_to_its_range() -> None:
    """SPEC R5: `tid & 255` before register offsets are added; one value per thread needs none."""
    for registers, masked in ((4, True), (1, False)):
        func = lower(sums(1024, registers), Context(METAL))
        (index,) = ops(func, metal.ThreadIndex)
        users = [item for item in walk(func.body) if index.result in item.operands()]
        if masked:
            (mask,) = users
            assert isinstance(mask, metal.Binary)
            assert mask.kind is BinaryKind.AND
            number = next(i for i in walk(func.body) if mask.rhs in i.results)
            assert isinstance(number, metal.Constant)
            assert number.value == 255
        else:
            assert len(users) > 1
