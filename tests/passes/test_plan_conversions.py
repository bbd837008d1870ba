"""Each conversion gets the mechanism its owners imply, or is forbidden; nothing else moves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations, product

import numpy as np
import pytest
from numpy.typing import NDArray

from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u16, u32
from metile_mlx.errors import CompileError
from metile_mlx.ir import planned, tile
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.types import TileType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.costs import ACCESS, BARRIER, KIBIBYTE, SHUFFLE
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.conversion_choice import lane_rule
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.passes.plan_conversions import plan_conversions
from metile_mlx.report import Allocation, ConversionCost, LayoutConversion
from metile_mlx.verify import verify
from tests.support.build import Program, chain_program, context, conversion_program
from tests.support.profile import count

IDENTITY = ThreadLayout.identity(64)
ROWS = ThreadLayout((3, 4, 5, 0, 1, 2))
SWAP = ThreadLayout((1, 0, 2, 3, 4, 5))
COMMUNICATION = (
    planned.Scratch,
    planned.ScratchStore,
    planned.ScratchLoad,
    planned.Barrier,
    planned.Shuffle,
)


def plan(source: Func, ctx: Context | None = None) -> Func:
    """Ownership, the pass, and the verifier of what it leaves."""
    ctx = ctx or context()
    owned = infer_ownership(source, ctx)
    func = plan_conversions(owned, ctx)
    verify(func, Stage.PLANNED, ctx, owned)
    return func


def communication(func: Func) -> list[str]:
    """The opcodes of the communication, in order."""
    return [item.opcode for item in walk(func.body) if isinstance(item, COMMUNICATION)]


EXCHANGE = [
    "tile.scratch_store",
    "tile.barrier",
    "tile.scratch_load",
    "tile.barrier",
]


def test_c1_an_unchanged_owner_forwards_the_value_itself() -> None:
    ctx = context()
    func = plan(conversion_program(SWAP, SWAP), ctx)
    assert communication(func) == []
    (store,) = [item for item in func.body.ops if isinstance(item, tile.Store)]
    (load,) = [item for item in func.body.ops if isinstance(item, tile.Load)]
    assert store.value is load.result
    (fact,) = ctx.report.layout_conversions
    assert (fact.value, fact.result, fact.mechanism) == ("value0", "converted0", "unchanged")
    assert (fact.scratch, fact.lane_rule, fact.barriers) == (None, None, 0)


def test_c1_within_simdgroups_a_shuffle_with_the_exact_lane() -> None:
    ctx = context()
    func = plan(conversion_program(None, ThreadLayout(range(6), xor_mask=3)), ctx)
    assert communication(func) == ["tile.shuffle"]
    (shuffle,) = [item for item in func.body.ops if isinstance(item, planned.Shuffle)]
    assert shuffle.lanes == AffineMap((1, 2, 4, 8, 16, 32), 3)
    taken = ConversionCost("shuffle", 1, 0, 0, 0, 0, 0, 0, 1, 1, 0, SHUFFLE)
    through = 2 * ACCESS + 2 * BARRIER + KIBIBYTE
    other = ConversionCost("threadgroup", 0, 0, 1, 1, 2, 1, 256, 1, 1, 0, through)
    assert ctx.report.layout_conversions == [
        LayoutConversion(
            "value0",
            "converted0",
            "f32",
            "ThreadLayout((0, 1, 2, 3, 4, 5))",
            "ThreadLayout((0, 1, 2, 3, 4, 5), xor_mask=3)",
            "shuffle",
            "kernel.py:10",
            None,
            "lane = lane ^ 3",
            0,
            taken,
            [taken, other],
            "the cheapest of 2 lowerings",
        )
    ]
    assert ctx.report.allocations == []


def test_c1_across_simdgroups_scratch_between_two_barriers() -> None:
    ctx = context()
    func = plan(conversion_program(None, ROWS), ctx)
    assert communication(func) == ["tile.scratch", *EXCHANGE]
    roles = [item.role for item in func.body.ops if isinstance(item, planned.Barrier)]
    assert roles == ["publish", "release"]
    through = 2 * ACCESS + 2 * BARRIER + KIBIBYTE
    taken = ConversionCost("threadgroup", 0, 0, 1, 1, 2, 1, 256, 1, 1, 0, through)
    assert ctx.report.layout_conversions == [
        LayoutConversion(
            "value0",
            "converted0",
            "f32",
            "ThreadLayout((0, 1, 2, 3, 4, 5))",
            "ThreadLayout((3, 4, 5, 0, 1, 2))",
            "threadgroup",
            "kernel.py:10",
            "scratch_f32",
            None,
            2,
            taken,
            [taken],
            "the only lowering",
        )
    ]
    assert ctx.report.allocations == [Allocation("scratch_f32", "f32", 64, 256)]


WIRES = [(f16, f16), (bf16, u16), (f32, f32), (i32, i32), (u32, u32), (bool_, u32)]


@pytest.mark.parametrize(("dtype", "wire"), WIRES, ids=lambda dtype: str(dtype))
@pytest.mark.parametrize("layout", [SWAP, ROWS], ids=["shuffle", "scratch"])
def test_c3_each_dtype_travels_in_its_wire_type(
    dtype: DType, wire: DType, layout: ThreadLayout
) -> None:
    ctx = context()
    func = plan(conversion_program(None, layout, dtype), ctx)
    moved = [
        value.type.dtype
        for item in func.body.ops
        if isinstance(item, planned.Shuffle | planned.ScratchLoad)
        for value in item.results
        if isinstance(value.type, TileType)
    ]
    assert moved == [wire]
    kind = tile.Cast if dtype == bool_ else tile.Bitcast
    disguises = [item for item in func.body.ops if isinstance(item, tile.Cast | tile.Bitcast)]
    assert [type(item) for item in disguises] == ([] if dtype == wire else [kind, kind])
    assert ctx.report.layout_conversions[0].dtype == str(dtype)
    if layout is ROWS:
        assert ctx.report.allocations == [
            Allocation(f"scratch_{wire}", str(wire), 64, 64 * wire.bytes)
        ]


def test_c3_scratch_of_one_wire_dtype_is_reused_and_others_get_their_own() -> None:
    ctx = context()
    steps = [(ROWS, f32), (IDENTITY, bool_), (ROWS, f32), (IDENTITY, u32), (ROWS, bf16)]
    func = plan(chain_program(None, steps), ctx)
    assert communication(func) == [
        "tile.scratch", *EXCHANGE, "tile.scratch", *EXCHANGE, *EXCHANGE, *EXCHANGE,
        "tile.scratch", *EXCHANGE,
    ]  # fmt: skip
    assert [fact.scratch for fact in ctx.report.allocations] == [
        "scratch_f32", "scratch_u32", "scratch_u16",
    ]  # fmt: skip
    assert [fact.scratch for fact in ctx.report.layout_conversions] == [
        "scratch_f32", "scratch_u32", "scratch_f32", "scratch_u32", "scratch_u16",
    ]  # fmt: skip


def test_values_that_take_part_in_no_conversion_stay_the_same_objects() -> None:
    ctx = context()
    owned = infer_ownership(conversion_program(None, ROWS), ctx)
    func = plan_conversions(owned, ctx)
    kept = {item for item in owned.body.ops if not isinstance(item, tile.Convert | tile.Store)}
    assert kept <= set(func.body.ops)


def test_a_program_without_conversions_is_returned_as_it_is() -> None:
    p = Program()
    a = p.arange(64, None, "a")
    p.emit(tile.Store(p.array("y", i32, 64, "write"), (a,), a))
    owned = infer_ownership(p.func(), context())
    assert plan_conversions(owned, context()) is owned
    planned_once = plan(conversion_program(None, ROWS))
    assert plan_conversions(planned_once, context()) is planned_once


def test_results_keep_the_name_and_every_new_op_the_line_of_the_conversion() -> None:
    func = plan(chain_program(None, [(ROWS, bf16), (SWAP, bool_)]))
    names = {value.name for item in func.body.ops for value in item.results}
    assert {"converted0", "converted0_wire", "converted1", "converted1_wire"} <= names
    lines = {item.loc.line for item in walk(func.body) if isinstance(item, COMMUNICATION)}
    assert lines == {16, 23}


def test_k8_schedule_scratch_is_taken_where_a_shuffle_would_do() -> None:
    ctx = context(conversion="scratch")
    func = plan(chain_program(None, [(SWAP, f32), (SWAP, f32)]), ctx)
    assert communication(func) == ["tile.scratch", *EXCHANGE]
    mechanisms = [fact.mechanism for fact in ctx.report.layout_conversions]
    assert mechanisms == ["threadgroup", "unchanged"]


def fails(ctx: Context, layout: ThreadLayout, message: str, hint: str) -> None:
    owned = infer_ownership(conversion_program(None, layout), ctx)
    with pytest.raises(CompileError) as caught:
        plan_conversions(owned, ctx)
    assert caught.value.message == message
    assert caught.value.hint == hint
    assert caught.value.loc is not None
    assert caught.value.loc.line == 10


def test_k8_schedule_shuffle_rejects_what_crosses_simdgroups() -> None:
    plan(conversion_program(None, SWAP), context(conversion="shuffle"))
    fails(
        context(conversion="shuffle"),
        ROWS,
        "[convert_layout] Schedule(conversion='shuffle'): 'value0' from ThreadLayout((0, 1, 2, 3, "
        "4, 5)) to ThreadLayout((3, 4, 5, 0, 1, 2)) crosses simdgroups, and a shuffle does not",
        "use conversion='auto', which takes threadgroup memory where it must",
    )


def test_c5_staging_device_rejects_a_needed_exchange_only() -> None:
    plan(conversion_program(None, SWAP), context(staging="device"))
    plan(conversion_program(None, IDENTITY), context(staging="device"))
    plan(conversion_program(None, ROWS), context(staging="threadgroup"))
    hint = "use staging=None or 'threadgroup', or layouts that agree on the simdgroup of every "
    message = (
        "[convert_layout] Schedule(staging='device'): 'value0' from ThreadLayout((0, 1, 2, 3, 4, "
        "5)) to ThreadLayout({}) needs an exchange through threadgroup memory"
    )
    fails(context(staging="device"), ROWS, message.format("(3, 4, 5, 0, 1, 2)"), hint + "element")
    fails(
        context(staging="device", conversion="scratch"),
        SWAP,
        message.format("(1, 0, 2, 3, 4, 5)"),
        hint + "element",
    )


@pytest.mark.parametrize(
    ("lanes", "text"),
    [
        (AffineMap((1, 2, 4, 8, 16), 3), "lane = lane ^ 3"),
        (AffineMap.from_bit_order((1, 0, 2, 3, 4)), "lane = bits (1, 0, 2, 3, 4) of lane"),
        (
            AffineMap.from_bit_order((1, 2, 3, 4, 0), 16),
            "lane = bits (1, 2, 3, 4, 0) of lane ^ 16",
        ),
    ],
)
def test_e_the_lane_rule_says_where_a_lane_takes_its_value(lanes: AffineMap, text: str) -> None:
    assert lane_rule(lanes) == text
    order, constant = lanes.bit_order, lanes.constant
    for lane in range(32):
        source = sum((lane >> bit & 1) << position for position, bit in enumerate(order))
        assert source ^ constant == lanes.apply(lane)


# The plan against an exhaustive owner table, written from SPEC L2 and independent of our algebra.


@lru_cache(maxsize=4096)
def permuted(order: tuple[int, ...]) -> NDArray[np.int64]:
    """The element of each slot, before the XOR: bit b is bit order[b] of the slot."""
    slots = np.arange(1 << len(order))
    return sum((slots >> source & 1) << bit for bit, source in enumerate(order))  # type: ignore[return-value]


def source_slots(source: ThreadLayout, destination: ThreadLayout) -> NDArray[np.int64]:
    """For each destination slot, the slot in which the source holds its element."""
    held = permuted(source.bit_order) ^ source.xor_mask
    slot_of = np.empty_like(held)
    slot_of[held] = np.arange(held.size)
    return slot_of[permuted(destination.bit_order) ^ destination.xor_mask]


def expected_mechanism(table: NDArray[np.int64]) -> str:
    slots = np.arange(table.size)
    if (table == slots).all():
        return "unchanged"
    return "shuffle" if (table // 32 == slots // 32).all() else "threadgroup"


def check(source: ThreadLayout, destination: ThreadLayout) -> str:
    """Plan one conversion; its mechanism and map are those of the owner table."""
    ctx = context()
    func = owned_conversion(source, destination)
    result = plan_conversions(func, ctx)
    verify(result, Stage.PLANNED, ctx, func)
    table = source_slots(source, destination)
    (fact,) = ctx.report.layout_conversions
    assert fact.mechanism == expected_mechanism(table), (source, destination)
    for item in result.body.ops:
        if isinstance(item, planned.Shuffle):
            assert (item.lanes.apply(np.arange(table.size)) == table).all(), (source, destination)
        if isinstance(item, planned.ScratchStore):
            written = item.slots.apply(table)
        if isinstance(item, planned.ScratchLoad):
            read = item.slots.apply(np.arange(table.size))
            assert (read == written).all(), (source, destination)
    return fact.mechanism


@lru_cache(maxsize=8)
def head(size: int) -> tuple[tuple[Value, ...], tuple[Op, ...], Value, Value]:
    p = Program()
    y = p.array("y", i32, size, "write")
    zero = p.number(0)
    return tuple(p.params), tuple(p.builder.ops), y, zero


def owned_conversion(source: ThreadLayout, destination: ThreadLayout) -> Func:
    """y[i] = i, made by the owners of `source`, stored by those of `destination`; owned already."""
    params, ops, y, zero = head(source.size)
    p = Program()
    made = p.add(tile.Arange(zero, source.size, source), "made")
    moved = p.add(tile.Convert(made, destination), "moved")
    owned = p.add(tile.Arange(zero, source.size, destination), "owned")
    p.emit(tile.Store(y, (owned,), moved))
    return Func("kernel", params, Block((*ops, *p.builder.ops)), threads=source.size)


def drawn(size: int, pairs: Iterator[tuple[tuple[int, ...], ...]]) -> dict[str, int]:
    """Check pairs of bit orders with random masks; how often each mechanism came up."""
    rng = random.Random(size)
    seen: dict[str, int] = {}
    for source, destination in pairs:
        # A third of the masks agree, so that the identity comes up beside the shuffles.
        mask = rng.randrange(size)
        other = mask if rng.random() < 0.33 else rng.randrange(size)
        mechanism = check(ThreadLayout(source, mask), ThreadLayout(destination, other))
        seen[mechanism] = seen.get(mechanism, 0) + 1
    return seen


def sampled(
    pairs: list[tuple[tuple[int, ...], ...]], seed: int
) -> list[tuple[tuple[int, ...], ...]]:
    """All pairs, or as many as the profile tries."""
    return random.Random(seed).sample(pairs, count(ci=len(pairs) // 5, full=len(pairs)))


def test_c1_f37_every_pair_of_bit_permutations_on_one_simdgroup() -> None:
    pairs = list(product(permutations(range(5)), repeat=2))
    assert len(pairs) == 14_400
    seen = drawn(32, iter(sampled(pairs, 32)))
    assert "threadgroup" not in seen
    assert seen["shuffle"] > 0


def test_c1_f37_every_bit_permutation_on_two_simdgroups_from_twenty_sources() -> None:
    rng = random.Random(64)
    every = list(permutations(range(6)))
    pairs = [(source, destination) for source in rng.sample(every, 20) for destination in every]
    assert len(pairs) == 14_400
    seen = drawn(64, iter(sampled(pairs, 64)))
    assert seen["threadgroup"] > seen["shuffle"] > 0


@pytest.mark.parametrize("bits", [5, 6, 7, 8, 9, 10])
def test_c1_f37_random_pairs_up_to_1024_threads(bits: int) -> None:
    rng = random.Random(bits)
    for _ in range(count(ci=334, full=2000)):
        source = rng.sample(range(bits), bits)
        destination = list(source)
        # Half of the pairs permute the lanes only, or crossings would be all there is.
        movable = [b for b in range(bits) if rng.random() < 0.5 or source[b] < 5]
        moved = [destination[b] for b in movable]
        rng.shuffle(moved)
        for b, value in zip(movable, moved, strict=True):
            destination[b] = value
        mask = rng.randrange(1 << bits)
        flip = rng.randrange(32) if rng.random() < 0.5 else rng.randrange(1 << bits)
        other = ThreadLayout(source, mask).logical_index(flip) if rng.random() < 0.8 else mask
        check(ThreadLayout(source, mask), ThreadLayout(destination, other))


def test_the_identity_comes_up_when_owners_agree() -> None:
    rng = random.Random(1)
    for order in permutations(range(5)):
        layout = ThreadLayout(order, rng.randrange(32))
        assert check(layout, ThreadLayout(order, layout.xor_mask)) == "unchanged"
