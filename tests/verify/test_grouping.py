"""Groups of accesses: each way to access or to extract anything else is rejected (SPEC V4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.dtypes import bf16, bool_, f16, i32
from metile_mlx.errors import VerificationError
from metile_mlx.ir import metal
from metile_mlx.ir.core import Block, Func, Op, Value
from metile_mlx.ir.types import PointerType, VectorType
from metile_mlx.passes.group_memory import group_memory
from metile_mlx.target import CUDA, METAL
from metile_mlx.verify import verify
from tests.support import verified
from tests.support.grouped import adjacent, row_func, striped
from tests.support.mutate import edit, ops_of, under_condition
from tests.support.tile_program import TileProgram

SCALAR = Context(METAL, Schedule(vector_width=1))
BEFORE = lower(row_func(adjacent(256), thirds=True), SCALAR)
AFTER = group_memory(BEFORE, Context(METAL))
LOAD = ops_of(AFTER, metal.LoadGroup)[0]
STORE = ops_of(AFTER, metal.StoreGroup)[0]
EXTRACTS = ops_of(AFTER, metal.Extract)


def rejected(func: Func, before: Func | None = None, by_default: bool = True) -> VerificationError:
    return verified.rejected(func, Stage.THREAD, before, by_default=by_default)


def changed(item: Op, **fields: object) -> Op:
    return replace(item, **fields)  # type: ignore[arg-type]


def with_ops(ops: list[Op]) -> Func:
    return AFTER.with_body(Block(tuple(ops), AFTER.body.args))


def moved(item: Op, behind: Op) -> Func:
    """`item` stands directly behind another op."""
    rest = [other for other in AFTER.body.ops if other is not item]
    at = rest.index(behind) + 1
    return with_ops([*rest[:at], item, *rest[at:]])


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("registers", [4, 8, 32])
def test_sound_groups_pass_alone_and_beside_the_scalars(registers: int, bits: int) -> None:
    for extent in (None, 500, 512):
        func = row_func(adjacent(1024, registers), extent=extent)
        made = lower(func, Context(METAL, Schedule(vector_width=1), index_bits=bits))
        after = group_memory(made, Context(METAL))
        assert after is not made
        for before in (None, made, after):
            verify(after, Stage.THREAD, Context(METAL), before)


def swapped() -> Func:
    """Indices 0, 2, 1, 3."""
    first, second, third, last = LOAD.indices  # type: ignore[attr-defined]
    return edit(AFTER, {LOAD: (changed(LOAD, indices=(first, third, second, last)),)})


def repeated() -> Func:
    first, second, third, _ = STORE.indices  # type: ignore[attr-defined]
    return edit(AFTER, {STORE: (changed(STORE, indices=(first, second, third, third)),)})


def widened_mask() -> Func:
    first, *_ = masks = LOAD.masks  # type: ignore[attr-defined]
    return edit(AFTER, {LOAD: (changed(LOAD, masks=(first,) * len(masks)),)})


def dropped_mask() -> Func:
    return edit(AFTER, {STORE: (changed(STORE, masks=(None,) * 4),)})


def other_fill() -> Func:
    zero = metal.Constant(0.0, LOAD.fills[0].type.dtype, loc=LOAD.loc)  # type: ignore[attr-defined]
    zero = replace(zero, results=(Value(zero.infer()[0], "zero", LOAD.loc),))
    fills = (*LOAD.fills[:3], zero.result)  # type: ignore[attr-defined]
    return edit(AFTER, {LOAD: (zero, changed(LOAD, fills=fills))})


def other_value() -> Func:
    values = STORE.values  # type: ignore[attr-defined]
    return edit(AFTER, {STORE: (changed(STORE, values=values[::-1]),)})


def other_lane() -> Func:
    first, second = EXTRACTS[:2]
    return edit(AFTER, {first: (changed(first, lane=1),), second: (changed(second, lane=0),)})


def across_a_store() -> Func:
    """The loads happen once the stores have: their extracts feed what comes after."""
    rest = [item for item in AFTER.body.ops if item not in (LOAD, STORE, *EXTRACTS)]
    zeros = [
        replace(STORE, values=tuple(LOAD.fills), loc=STORE.loc)  # type: ignore[call-arg, attr-defined]
    ]
    pure = [item for item in rest if not set(item.operands()) & {e.result for e in EXTRACTS}]
    return with_ops([*pure, *zeros, LOAD, *EXTRACTS])


def other_access() -> Func:
    return edit(AFTER, {LOAD: (changed(LOAD, access=99),)})


Fault = tuple[Callable[[], Func], Op, str]
FAULTS: dict[str, Fault] = {
    "permuted": (swapped, LOAD, "index 1 lies 2 elements behind the first in thread 0"),
    "repeated": (repeated, STORE, "index 3 lies 2 elements behind the first in thread 0"),
    "mask widened": (widened_mask, LOAD, "has another mask at"),
    "mask dropped": (dropped_mask, STORE, "has another mask at"),
    "fill": (other_fill, LOAD, "has another fill at"),
    "value": (other_value, STORE, "has another value at"),
    "lane": (other_lane, LOAD, "has another result at"),
    "store": (across_a_store, STORE, "stands in the place of another access"),
    "access": (other_access, LOAD, "stands in the place of another access"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_v4_another_access_than_before_is_rejected(name: str) -> None:
    """F52: the message names the op and its line in the source."""
    make, item, text = FAULTS[name]
    error = rejected(make(), BEFORE)
    assert text in error.message
    assert item.opcode in error.message
    assert f"kernel.py:{item.loc.line}:" in error.message


def test_v4_a_permutation_is_rejected_without_the_program_before() -> None:
    assert "expected 1 in every thread" in rejected(swapped()).message


def test_v4_neighbours_in_some_threads_only() -> None:
    """Striped slots of one thread lie 64 apart; contiguity is asked of all threads."""
    made = lower(row_func(striped(256)), SCALAR)
    loads = ops_of(made, metal.Load)
    parts = {
        name: tuple(getattr(item, name) for item in loads) for name in ("index", "mask", "fill")
    }
    group = metal.LoadGroup(
        loads[0].operands()[0], parts["index"], parts["mask"], parts["fill"], access=1
    )
    vector = Value(group.infer()[0], "vector", loads[0].loc)
    group = replace(group, results=(vector,), loc=loads[0].loc)
    extracts = [
        metal.Extract(vector, lane, results=item.results, loc=item.loc)
        for lane, item in enumerate(loads)
    ]
    func = edit(made, {**dict.fromkeys(loads[:3], ()), loads[3]: (group, *extracts)})
    assert "index 1 lies 64 elements behind the first" in rejected(func, made).message


def test_v4_an_extract_not_dominated_by_its_vector() -> None:
    """Before the load, and under a condition from the vector's point of view."""
    first = EXTRACTS[0]
    at = AFTER.body.ops.index(LOAD) - 1
    error = rejected(moved(first, AFTER.body.ops[at]))
    assert "uses %x_group" in error.message or "before its definition" in error.message
    assert first.opcode in error.message
    assert f"kernel.py:{first.loc.line}:" in error.message
    error = rejected(edit(AFTER, {LOAD: under_condition(LOAD)}))
    assert "outside the block that defines it" in error.message


def test_v4_a_group_stays_in_the_block_of_its_scalars() -> None:
    error = rejected(edit(AFTER, {STORE: under_condition(STORE)}), BEFORE)
    assert "has 3 blocks, expected 1 as before" in error.message


def test_v4_a_group_that_compares_nothing_needs_a_proof() -> None:
    """`checked` may be left out where ranges exclude that an index wraps, or a view's bounds do."""
    verify(edit(AFTER, {LOAD: (changed(LOAD, checked=False),)}), Stage.THREAD, Context(METAL))
    error = rejected(edit(AFTER, {LOAD: (changed(LOAD, checked=False, bounded=False),)}))
    assert "compares no indices, but nothing excludes that one of them wraps" in error.message
    known = lower(row_func(adjacent(256), extent=200), Context(METAL))
    assert not ops_of(known, metal.LoadGroup)[0].checked  # type: ignore[attr-defined]
    verify(known, Stage.THREAD, Context(METAL))


def test_v4_bounds_that_the_scalars_do_not_claim() -> None:
    """64-bit offsets may pass 2**31: there an access is not `bounded`, and no group may be."""
    wide = Context(METAL, Schedule(vector_width=1), index_bits=64)
    before = lower(row_func(adjacent(256)), wide)
    after = group_memory(before, Context(METAL))
    (load,) = ops_of(after, metal.LoadGroup)
    claimed = edit(after, {load: (changed(load, checked=False, bounded=True),)})
    assert "has another claim to be in bounds at" in rejected(claimed, before).message


@pytest.mark.parametrize("registers", [8, 16])
def test_v4_faults_in_eights(registers: int) -> None:
    """CUDA's groups of eight: an index out of order in the second vector, a lane of the other."""
    before = lower(row_func(adjacent(512, registers), f16), SCALAR)
    after = group_memory(before, Context(CUDA))
    load = ops_of(after, metal.LoadGroup)[0]
    assert isinstance(load, metal.LoadGroup)
    assert len(load.indices) == 8
    verify(after, Stage.THREAD, Context(CUDA), before)
    *others, seventh, eighth = load.indices
    damaged = edit(after, {load: (replace(load, indices=(*others, eighth, seventh)),)})
    assert "index 6 lies 7 elements behind the first" in rejected(damaged, before).message
    low, high = ops_of(after, metal.Extract)[3:5]
    assert isinstance(low, metal.Extract)
    assert isinstance(high, metal.Extract)
    other = {low: (replace(low, vector=high.vector),), high: (replace(high, vector=low.vector),)}
    assert "has another result at" in rejected(edit(after, other), before).message
    error = rejected(edit(after, {load: (replace(load, indices=load.indices[:7]),)}))
    assert "takes 4 or 8 of each of its operands" in error.message


def test_v4_wrong_dtypes() -> None:
    """Of the array, of the vector's type, of what is stored, and of lanes that don't exist."""
    array = LOAD.operands()[0]
    for dtype in (i32, bool_):
        other = Value(PointerType(dtype), array.name)
        func = edit(AFTER, {LOAD: (changed(LOAD, buffer=other),)})
        func = replace(func, params=tuple(other if p is array else p for p in func.params))
        assert "metal.load_group of f32 in an array of" in rejected(func).message
    lie = Value(VectorType(f16, 4), "lie", LOAD.loc)
    ops = [item.with_operands({LOAD.result: lie}) for item in AFTER.body.ops]
    ops[ops.index(LOAD)] = changed(LOAD, results=(lie,))
    assert (
        "results are (thread<4xf16>), expected (thread<4xf32>)" in rejected(with_ops(ops)).message
    )
    cast = metal.Cast(STORE.values[3], bf16, loc=STORE.loc)  # type: ignore[attr-defined]
    cast = replace(cast, results=(Value(cast.infer()[0], "cast", STORE.loc),))
    values = (*STORE.values[:3], cast.result)  # type: ignore[attr-defined]
    func = edit(AFTER, {STORE: (cast, changed(STORE, values=values))})
    assert "metal.store_group of bf16 and f32 in an array of f32" in rejected(func).message
    last = EXTRACTS[3]
    func = edit(AFTER, {last: (changed(last, lane=4),)})
    assert "metal.extract of lane 4 from thread<4xf32>" in rejected(func).message


def test_v4_groups_of_another_size() -> None:
    for name in ("indices", "masks", "fills"):
        func = edit(AFTER, {LOAD: (changed(LOAD, **{name: getattr(LOAD, name)[:3]}),)})
        assert "metal.load_group takes 4 or 8 of each of its operands" in rejected(func).message


def test_v4_vectors_have_no_other_use() -> None:
    values = (LOAD.result, *STORE.values[1:])  # type: ignore[attr-defined]
    func = edit(AFTER, {STORE: (changed(STORE, values=values),)})
    assert "metal.store_group" in rejected(func).message


def test_v4_a_slot_that_stands_apart_from_its_access() -> None:
    """A scalar left behind beyond another access, seen without the program before."""
    p = TileProgram()
    x, y = p.tensor("x", (256,), "read"), p.tensor("y", (256,), "write")
    i = p.lanes(256, 0, adjacent(256, 8))
    p.store(y, i, value=p.load(x, i))
    made = lower(p.func(), SCALAR)
    loads, stores = ops_of(made, metal.Load), ops_of(made, metal.Store)
    late = replace(loads[0], results=(Value(loads[0].result.type, "late", loads[0].loc),))
    func = group_memory(made, Context(METAL))
    assert ops_of(func, metal.StoreGroup)
    assert stores
    ops = (*func.body.ops, late)
    error = rejected(func.with_body(Block(ops, func.body.args)))
    assert "stands apart from the access it belongs to" in error.message


def test_v4_an_access_left_out_or_done_twice() -> None:
    twice = edit(AFTER, {STORE: (STORE, STORE)})
    assert "accesses 8 elements, expected 4 as before" in rejected(twice, BEFORE).message
    without = with_ops([item for item in AFTER.body.ops if item is not STORE])
    assert "is missing" in rejected(without, BEFORE).message
