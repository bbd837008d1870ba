"""Lowering to threads: other owners, addresses, masks, values or orders are rejected (SPEC R1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

import metile_mlx.frontend.language as metile
from metile_mlx.compiler import STEPS
from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import f32, i32, u32
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind, CombineKind
from metile_mlx.ir.core import Func, Op, Value, walk
from metile_mlx.ir.types import PointerType
from metile_mlx.target import CUDA, EMULATOR, METAL, Target
from metile_mlx.verify.thread_reader import check_lowering, thread_reader
from tests.mutation.editing import made
from tests.support import verified
from tests.support.grouped import adjacent, row_func
from tests.support.kernels import tile_ir
from tests.support.mutate import edit, ops_of
from tests.support.samples import SAMPLES


def lowered(func: Func, ctx: Context) -> tuple[Func, Func]:
    """The planned and the scalar program."""
    for step in STEPS:
        before, func = func, step.run(func, ctx)
        if step.name == "scalarise":
            return before, func
    raise AssertionError("no scalarise")


def cases() -> Iterator[tuple[str, Func, Func]]:
    for name, sample in SAMPLES.items():
        for bits in (32, 64):
            ctx = Context(METAL, masked_outputs=sample.masked, index_bits=bits)
            yield f"{name}, {bits}", *lowered(sample.func(), ctx)


BEFORE, AFTER = lowered(row_func(adjacent(256), thirds=True), Context(METAL))
CASES = {name: (before, after) for name, before, after in cases()}


def changed(item: Op, **fields: object) -> Op:
    return replace(item, **fields)  # type: ignore[arg-type]


def rejected(func: Func, before: Func = BEFORE, by_default: bool = False) -> str:
    return verified.rejected(func, Stage.THREAD, before, by_default=by_default).message


@pytest.mark.parametrize("name", CASES)
def test_what_the_pass_makes_is_accepted(name: str) -> None:
    before, after = CASES[name]
    assert check_lowering(after, before, METAL) == []


@pytest.mark.parametrize("name", CASES)
def test_every_op_of_the_samples_is_read(name: str) -> None:
    """Of a program that it can't read the verifier says nothing; between them they have all ops."""
    before, after = CASES[name]
    read = thread_reader(after, before)
    assert {v for item in after.body.ops for v in item.results} <= read.numbers.keys()


STORE = "other elements, addresses or values than the store of line"


def test_r1_a_value_of_another_register() -> None:
    first, second = ops_of(AFTER, metal.Store)[:2]
    assert isinstance(second, metal.Store)
    assert isinstance(first, metal.Store)
    message = rejected(edit(AFTER, {second: (changed(second, value=first.value),)}))
    assert "metal.store %y, " in message
    assert f"{STORE} {second.loc.line} has, expected the same in every thread" in message
    assert first.value is not second.value


def test_r1_an_address_one_further() -> None:
    for kind in (metal.Load, metal.Store):
        item = ops_of(AFTER, kind)[0]
        index: Value = item.index  # type: ignore[attr-defined]
        one = made(metal.Constant(1, u32), item)
        more = made(metal.Binary(BinaryKind.ADD, index, one.result), item)
        func = edit(AFTER, {item: (one, more, changed(item, index=more.result))})
        assert "other elements, addresses or values than the " in rejected(func)


def test_k2_a_mask_without_its_bound_or_without_the_condition() -> None:
    """Where lanes are out of bounds, and where the condition is false, nothing is accessed."""
    defined = {value: item for item in AFTER.body.ops for value in item.results}
    tried = 0
    for item in (*ops_of(AFTER, metal.Load), *ops_of(AFTER, metal.Store)):
        mask = defined[item.mask]  # type: ignore[attr-defined]
        assert isinstance(mask, metal.Binary)
        for part in mask.operands():
            assert "metal." in rejected(edit(AFTER, {item: (changed(item, mask=part),)}))
            tried += 1
    assert tried == 16


def test_stores_in_another_order() -> None:
    first, second = ops_of(AFTER, metal.Store)[:2]
    assert STORE in rejected(edit(AFTER, {first: (), second: (second, first)}))


def test_a_store_that_is_gone() -> None:
    last = ops_of(AFTER, metal.Store)[-1]
    assert "is missing in the program after" in rejected(edit(AFTER, {last: ()}))


def test_r2_the_tree_of_a_sum_has_one_order() -> None:
    """Neighbours first: another order of the registers rounds otherwise."""
    before, after = CASES["registers, 32"]
    adds = [
        item
        for item in ops_of(after, metal.Binary)
        if isinstance(item, metal.Binary)
        and item.kind is BinaryKind.ADD
        and item.lhs.type.dtype == f32  # type: ignore[union-attr]
    ]
    swapped = changed(adds[0], lhs=adds[0].rhs, rhs=adds[0].lhs)
    assert "other elements, addresses or values" in rejected(
        edit(after, {adds[0]: (swapped,)}), before
    )


def test_k7_the_written_mask_says_what_is_stored() -> None:
    before, after = CASES["chain, 32"]
    stores = [i for i in ops_of(after, metal.Store) if i.operands()[0].name == "y_written"]
    assert "is missing in the program after" in rejected(edit(after, {stores[-1]: ()}), before)


def test_a_print_of_another_value() -> None:
    before, after = CASES["print, 32"]
    (item,) = ops_of(after, metal.Print)
    other = changed(item, label="another")
    assert "an access that the program before does not do here" in (
        rejected(edit(after, {item: (other,)}), before)
    )


def test_arrays_of_another_kind_or_order() -> None:
    params = AFTER.params
    assert "its list of parameters has %y" in rejected(
        replace(AFTER, params=(params[0], params[1], params[3], params[2]))
    )
    extra = Value(PointerType(i32), "extra")
    message = rejected(replace(AFTER, params=(*params, extra)))
    assert "has the parameter %extra: ptr<i32>, which the program before has not" in message


def pointers(x, y):
    i = metile.program_id(0) * 64 + metile.arange(0, 64)
    metile.store(y + i, metile.load(x + i) + 1.0)


@pytest.mark.parametrize("target", [METAL, CUDA, EMULATOR], ids=lambda target: target.name)
def test_f55_pointers_end_where_their_array_does(target: Target) -> None:
    """But in the emulator, whose checker has to see them leave it: no bound there, none here."""
    before, after = lowered(tile_ir(pointers, "f32*", "f32*"), Context(target))
    masks = [item.mask for item in ops_of(after, metal.Load, metal.Store)]  # type: ignore[attr-defined]
    assert (masks == [None] * len(masks)) == (target is EMULATOR)
    assert check_lowering(after, before, target) == []
    for other in (METAL, CUDA, EMULATOR):
        accepted = check_lowering(after, before, other) == []
        assert accepted == ((other is EMULATOR) == (target is EMULATOR))


def test_f55_a_pointer_that_lost_its_bound() -> None:
    before, after = lowered(tile_ir(pointers, "f32*", "f32*"), Context(METAL))
    for item in ops_of(after, metal.Load, metal.Store):
        bare = {"mask": None, "fill": None} if isinstance(item, metal.Load) else {"mask": None}
        message = rejected(edit(after, {item: (changed(item, **bare),)}), before)
        assert "other elements, addresses or values than the " in message


def collected(x, y):
    i = metile.arange(0, 64)
    value = metile.tensor(x, shape=64).load(i)
    out = metile.tensor(y, shape=(3, 64), access="write")
    out.store((0, i), metile.simd_shuffle_xor(value, 5))
    out.store((1, i), metile.simd_broadcast(value, 7))
    out.store((2, metile.thread_id()), metile.simd_sum(value))


COLLECTED = lowered(tile_ir(collected, "f32*", "f32*"), Context(METAL))


@pytest.mark.parametrize(
    ("before", "after", "places"), [(*COLLECTED, 3), (*CASES["passed on, 32"], 2)]
)
def test_k6_what_the_user_says_of_threads_is_lowered_as_said(
    before: Func, after: Func, places: int
) -> None:
    """Another lane or value of declared communication, another combination, no barrier."""
    assert check_lowering(after, before, METAL) == []
    tried = 0
    for item in walk(after.body):
        wrong: list[Op] = []
        if isinstance(item, metal.Shuffle):
            one = made(metal.Constant(1, item.lane.type.dtype), item)  # type: ignore[union-attr]
            lane = made(metal.Binary(BinaryKind.XOR, item.lane, one.result), item)
            wrong = [one, lane, changed(item, lane=lane.result)]
        elif isinstance(item, metal.SimdReduce):
            wrong = [changed(item, kind=CombineKind.MAX)]
        elif isinstance(item, metal.ThreadgroupStore):
            one = made(metal.Constant(1.0, f32), item)
            value = made(metal.Binary(BinaryKind.ADD, item.value, one.result), item)
            wrong = [one, value, changed(item, value=value.result)]
        elif isinstance(item, metal.Barrier):
            assert check_lowering(edit(after, {item: ()}), before, METAL)
        if wrong:
            tried += 1
            assert STORE in rejected(edit(after, {item: tuple(wrong)}), before)
    assert tried == places


def test_k6_an_element_that_declared_memory_has_not() -> None:
    before, after = CASES["passed on, 32"]
    for item in ops_of(after, metal.ThreadgroupStore, metal.ThreadgroupLoad):
        far = made(metal.Constant(64, u32), item)
        faulty = edit(after, {item: (far, changed(item, index=far.result, mask=None))})
        (finding,) = check_lowering(faulty, before, METAL)
        assert finding.message == "accesses an element that its threadgroup memory has not"
