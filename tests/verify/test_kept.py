"""Passes over per-thread programs keep what they do: each other access or value is rejected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from metile_mlx.compiler import STEPS
from metile_mlx.context import Context, Stage
from metile_mlx.ir import metal
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.loops import Loop, ThreadFor
from metile_mlx.passes.clean_up import clean_up
from metile_mlx.passes.group_memory import group_memory
from metile_mlx.target import METAL
from metile_mlx.verify import verify
from metile_mlx.verify.kept import check_kept, holds_registers
from tests.support import verified
from tests.support.grouped import adjacent, row_func
from tests.support.mutate import edit, ops_of
from tests.support.samples import SAMPLES


def scalarised(func: Func, ctx: Context) -> Func:
    """The program before clean_up."""
    for step in STEPS:
        func = step.run(func, ctx)
        if step.name == "scalarise":
            break
    return func


SAMPLE = SAMPLES["numbers"].func()
BEFORE = scalarised(row_func(adjacent(256), thirds=True), Context(METAL))
AFTER = clean_up(BEFORE, Context(METAL))
GROUPED = group_memory(AFTER, Context(METAL))


def changed(item: Op, **fields: object) -> Op:
    return replace(item, **fields)  # type: ignore[arg-type]


def rejected(func: Func, before: Func = BEFORE, by_default: bool = True) -> str:
    return verified.rejected(func, Stage.THREAD, before, by_default=by_default).message


def cases() -> Iterator[tuple[str, Func, Func]]:
    for name, sample in SAMPLES.items():
        ctx = Context(METAL, masked_outputs=sample.masked)
        before = scalarised(sample.func(), ctx)
        after = clean_up(before, ctx)
        yield f"{name}, clean_up", before, after
        yield f"{name}, group_memory", after, group_memory(after, ctx)


CASES = {name: (before, after) for name, before, after in cases()}


@pytest.mark.parametrize("name", CASES)
def test_what_the_passes_make_is_accepted(name: str) -> None:
    before, after = CASES[name]
    assert check_kept(after, before) == []


@pytest.mark.parametrize("kind", [metal.Load, metal.Store])
def test_a_mask_or_an_address_of_another_register(kind: type[Op]) -> None:
    first, second = ops_of(AFTER, kind)[:2]
    for name in ("index", "mask"):
        use = changed(first, **{name: getattr(second, name)})
        message = rejected(edit(AFTER, {first: (use,)}))
        assert f"metal.{kind.opcode.removeprefix('metal.')} " in message
        assert "before" in message


def test_a_value_of_another_register() -> None:
    first, second = ops_of(AFTER, metal.Store)[:2]
    assert isinstance(second, metal.Store)
    message = rejected(edit(AFTER, {first: (changed(first, value=second.value),)}))
    assert (
        f"is not the store of line {first.loc.line} with the values, masks and addresses it had "
        "before"
    ) in message


def test_a_store_that_is_gone_or_done_twice() -> None:
    last = ops_of(AFTER, metal.Store)[-1]
    rejected(edit(AFTER, {last: ()}))
    stores = dict.fromkeys(ops_of(AFTER, metal.Store), ())
    assert "is missing in the program after" in rejected(edit(AFTER, stores))
    twice = changed(last, access=None)
    assert "an access that the program before does not do here" in (
        rejected(edit(AFTER, {last: (last, twice)}))
    )


def test_parts_change_places_only_in_groups() -> None:
    """Four slots of a group are taken in the order of their addresses, scalars in their own."""
    first, second = ops_of(AFTER, metal.Store)[:2]
    swapped = edit(AFTER, {first: (), second: (second, first)})
    assert "is not the store of line" in rejected(swapped)
    assert check_kept(GROUPED, AFTER) == []
    assert check_kept(GROUPED, swapped) == []


def test_a_lane_of_a_group_is_the_load_it_stands_for() -> None:
    (extract, other, *_) = ops_of(GROUPED, metal.Extract)
    swapped = {extract: changed(extract, lane=1), other: changed(other, lane=0)}
    ops = tuple(swapped.get(item, item) for item in GROUPED.body.ops)
    assert check_kept(GROUPED.with_body(Block(ops)), AFTER) != []


def test_a_branch_that_keeps_its_sides() -> None:
    before = scalarised(SAMPLE, Context(METAL))
    after = clean_up(before, Context(METAL))
    (branch,) = ops_of(after, metal.If)
    assert isinstance(branch, metal.If)
    swapped = changed(branch, then=branch.otherwise, otherwise=branch.then)
    assert "before" in rejected(edit(after, {branch: (swapped,)}), before, by_default=False)


def test_other_parameters_and_threads() -> None:
    twin = Value(AFTER.params[0].type, "another")
    renamed = {AFTER.params[0]: twin}
    ops = tuple(item.with_operands(renamed) for item in AFTER.body.ops)
    func = replace(AFTER, params=(twin, *AFTER.params[1:]), body=Block(ops))
    assert "has other parameters than before" in rejected(func)
    (finding,) = check_kept(replace(AFTER, threads=128), BEFORE)
    assert finding.message == "has 128 threads, expected 64 as before"


PASSED_ON = scalarised(SAMPLES["passed on"].func(), Context(METAL))


def test_k6_what_a_loop_leaves_for_its_next_iteration() -> None:
    """Nobody reads it after the loop, and in the loop only what stands above the store."""
    after = clean_up(PASSED_ON, Context(METAL))
    verify(after, Stage.THREAD, Context(METAL), PASSED_ON)
    store = ops_of(after, metal.ThreadgroupStore)[-1]
    assert isinstance(store, metal.ThreadgroupStore)
    doubled = next(item for item in walk(after.body) if store.value in item.results)
    other = changed(store, value=doubled.operands()[0])
    for ops in ((), (other,)):
        assert "is not the loop of line" in rejected(edit(after, {store: ops}), PASSED_ON, False)


def test_a_register_slot_in_a_loop_is_one() -> None:
    accesses = scalarised(SAMPLES["loops"].func(), Context(METAL))
    assert not holds_registers(accesses)
    load = next(item for item in walk(accesses.body) if isinstance(item, metal.Load))
    assert load not in accesses.body.ops
    assert holds_registers(edit(accesses, {load: (changed(load, access=1),)}))


def test_blocks_that_nobody_knows() -> None:
    """Saying nothing of them would let any change of what they hold pass."""
    (loop,) = ops_of(PASSED_ON, ThreadFor)
    assert isinstance(loop, ThreadFor)
    unknown = Loop(*[getattr(loop, name) for name in loop.field_names], results=loop.results)
    func = PASSED_ON.with_body(
        Block(tuple(unknown if i is loop else i for i in PASSED_ON.body.ops))
    )
    (finding, again) = check_kept(func, func)
    assert finding.message.startswith("has blocks that are no branch and no loop")
    assert finding.op is again.op is unknown
