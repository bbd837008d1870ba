"""Planted faults: the verifier of planned programs rejects each and names the op and line (C4)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from metile_mlx.context import Context, Stage
from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u32
from metile_mlx.ir import planned, tile
from metile_mlx.ir.arith import UnaryKind
from metile_mlx.ir.core import Block, Func, Op, Value
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.passes.plan_conversions import plan_conversions
from metile_mlx.target import CPU, METAL, Target
from metile_mlx.verify import verify
from tests.support import mutate, verified
from tests.support.build import Program, chain_program, context, conversion_program
from tests.support.mutate import Mutant, edit, ops_of

IDENTITY = ThreadLayout.identity(64)
ROWS = ThreadLayout((3, 4, 5, 0, 1, 2))
SWAP = ThreadLayout((1, 0, 2, 3, 4, 5))
FLIP = ThreadLayout((0, 1, 2, 3, 4, 5), xor_mask=5)
SHAPE = "ThreadLayout((3, 4, 5, 0, 1, 2))"


def both(source: Func, ctx: Context | None = None) -> tuple[Func, Func]:
    """The owned and the planned program; without banks, so that scratch is not swizzled."""
    ctx = ctx or context(CPU)
    owned = infer_ownership(source, ctx)
    return owned, plan_conversions(owned, ctx)


EXCHANGES = [(ROWS, f32), (SWAP, f32), (ROWS, bool_), (FLIP, bf16), (ROWS, f16), (SWAP, i32)]
SHUFFLES = [(SWAP, f32), (FLIP, bool_), (IDENTITY, bf16), (SWAP, u32)]
CASES = {
    "one exchange": both(conversion_program(None, ROWS)),
    "exchanges": both(chain_program(None, EXCHANGES)),
    "shuffles": both(chain_program(None, SHUFFLES)),
    "both": both(chain_program(None, [*SHUFFLES, *EXCHANGES, *SHUFFLES])),
    "forced scratch": both(chain_program(None, SHUFFLES), context(CPU, conversion="scratch")),
}


def registers(
    order: Sequence[int], per_thread: int, dtype: DType, mask: int = 5, **schedule: object
) -> tuple[Func, Func]:
    """Striped tiles to owners of this bit order and constant, with banks."""
    source = ThreadLayout.identity(1 << len(order), per_thread)
    program = conversion_program(source, ThreadLayout(order, mask, per_thread), dtype)
    return both(program, context(METAL, **schedule))


SMALL = Target("small", "msl", threadgroup_bytes=512)
FOUR = ThreadLayout.identity(256, 4)
ROUNDS = chain_program(FOUR, [(ThreadLayout((*range(2, 8), 0, 1), 9, 4), f32), (FOUR, bf16)])
REGISTERS = {
    "renamed": registers((0, 1, 2, 3, 4, 6, 5), 4, f32, mask=96),
    "lanes": registers((4, 1, 2, 3, 0, 6, 5), 4, f16),
    "one mixed bit": registers((5, 1, 2, 3, 4, 0, 6), 4, f32),
    "two mixed bits": registers((5, 6, 2, 3, 4, 1, 0), 4, bf16),
    "a butterfly": registers((5, 6, 7, 1, 2, 0, 3, 4), 8, bool_),
    "everything": registers((7, 6, 5, 4, 3, 2, 1, 0), 4, f32),
    "everything by scratch": registers((5, 6, 2, 3, 4, 1, 0), 4, i32, conversion="scratch"),
    "what crosses": registers((0, 1, 2, 3, 4, 7, 6, 5), 4, f32, mask=0),
    "rounds": both(ROUNDS, Context(SMALL)),
}


def rejected(func: Func, before: Func | None) -> str:
    """The message of the error; it is located at its first finding."""
    return verified.rejected(func, Stage.PLANNED, before).message


@pytest.mark.parametrize("case", [*CASES, *REGISTERS])
def test_c4_what_the_pass_plans_is_accepted(case: str) -> None:
    owned, func = (CASES | REGISTERS)[case]
    verify(func, Stage.PLANNED, context(), owned)
    verify(func, Stage.PLANNED, context())


def test_c6_the_programs_with_registers_have_every_shape() -> None:
    kinds = {name: [type(x).__name__ for x in f.body.ops] for name, (_, f) in REGISTERS.items()}
    assert {"Choose"} == {*kinds["renamed"]} & {"Choose", "Shuffle", "ScratchLoad"}
    assert {"Shuffle"} == {*kinds["lanes"]} & {"Choose", "Shuffle", "ScratchLoad"}
    assert kinds["two mixed bits"].count("Choose") == 4
    assert kinds["a butterfly"].count("Choose") == 6
    assert {"ScratchLoad"} == {*kinds["everything"]} & {"Choose", "Shuffle", "ScratchLoad"}
    assert {"Choose", "ScratchLoad"} <= {*kinds["what crosses"]}
    assert kinds["rounds"].count("ScratchLoad") >= 3


@pytest.mark.parametrize("fault", mutate.FAULTS)
def test_c4_f43_every_planted_fault_is_rejected_and_names_an_op_and_its_line(fault: str) -> None:
    tried = 0
    for owned, func in (*CASES.values(), *REGISTERS.values()):
        mutant: Mutant
        for mutant in mutate.FAULTS[fault](func):
            tried += 1
            message = rejected(mutant.func, owned)
            named = re.findall(r"^  kernel\.py:(\d+):5: (?:%\S+ = )?tile\.\w+ ", message, re.M)
            assert named, message
            # The op named stands in the line tampered with, or is the next access to that scratch.
            assert int(named[0]) >= mutant.line, message
            assert str(mutant.line) in re.findall(r"\d+", message), message
    assert tried >= 2, "this fault was planted nowhere"


@pytest.mark.parametrize("fault", mutate.REGISTER_FAULTS)
def test_c4_f38_every_fault_of_registers_and_rounds_is_rejected(fault: str) -> None:
    tried = 0
    for owned, func in REGISTERS.values():
        for mutant in mutate.REGISTER_FAULTS[fault](func):
            tried += 1
            message = rejected(mutant.func, owned)
            assert str(mutant.line) in re.findall(r"\d+", message), message
    assert tried >= 2, "this fault was planted nowhere"


def the(func: Func, kind: type[Op], position: int = 0) -> Op:
    return ops_of(func, kind)[position]


def finding(text: str) -> str:
    return "[verify] @kernel breaks the rules of stage PLANNED: 1 finding\n  " + text


LOAD = (
    f"kernel.py:10:5: %converted0 = tile.scratch_load %scratch_f32, shape=(64,), layout={SHAPE}, "
    "slots=AffineMap(columns=(8, 16, 32, 1, 2, 4), constant=0), skip=0 : tile<64xf32, "
    + SHAPE
    + ">: "
)
STORE = (
    "kernel.py:10:5: tile.scratch_store %scratch_f32, %value0, "
    "slots=AffineMap(columns=(1, 2, 4, 8, 16, 32), constant=0), skip=0: "
)


def test_f43_a_dropped_publication_barrier() -> None:
    owned, func = CASES["one exchange"]
    func = edit(func, {the(func, planned.Barrier, 0): ()})
    assert rejected(func, owned) == finding(
        LOAD + "reads scratch_f32 before the store of line 10 is published, expected a barrier "
        "between them"
    )


def test_f43_a_dropped_release_barrier_at_the_end_and_before_reuse() -> None:
    owned, func = CASES["one exchange"]
    func = edit(func, {the(func, planned.Barrier, 1): ()})
    assert rejected(func, owned) == finding(
        LOAD + "no release barrier follows its read of scratch_f32"
    )
    owned, func = both(chain_program(None, [(ROWS, f32), (IDENTITY, f32)]))
    func = edit(func, {the(func, planned.Barrier, 1): ()})
    message = rejected(func, owned)
    first, second = (item.loc.line for item in ops_of(func, planned.ScratchStore))
    assert f"kernel.py:{second}:5: tile.scratch_store %scratch_f32, %value1" in message
    assert (
        f"overwrites scratch_f32 while the load of line {first} may still read it, expected a "
        "release barrier between them"
    ) in message


@pytest.mark.parametrize("position", [0, 1])
def test_c2_a_barrier_under_a_condition(position: int) -> None:
    owned, func = CASES["one exchange"]
    barrier = the(func, planned.Barrier, position)
    func = edit(func, {barrier: mutate.under_condition(barrier)})
    role = ("publish", "release")[position]
    assert (
        f"kernel.py:10:5: tile.barrier role='{role}': stands under a condition, expected where "
        "every thread takes part"
    ) in rejected(func, owned)


def test_c2_a_shuffle_under_a_condition() -> None:
    owned, func = CASES["shuffles"]
    shuffle = the(func, planned.Shuffle)
    lone = replace(shuffle, results=(Value(shuffle.result.type, "lone", shuffle.loc),))
    func = edit(func, {shuffle: (shuffle, *mutate.under_condition(lone))})
    assert "%lone = tile.shuffle" in rejected(func, owned)


def test_c4_scratch_too_small() -> None:
    owned, func = CASES["one exchange"]
    scratch = the(func, planned.Scratch)
    func = edit(func, {scratch: (replace(scratch, elements=32),)})  # type: ignore[call-arg]
    message = rejected(func, owned)
    assert STORE + "writes element 63 of scratch_f32, which has 32" in message
    assert LOAD + "reads element 63 of scratch_f32, which has 32" in message


def test_c4_f37_wrong_owner_slot() -> None:
    owned, func = CASES["one exchange"]
    load = the(func, planned.ScratchLoad)
    wrong = AffineMap((8, 16, 32, 1, 2, 4), 3)
    func = edit(func, {load: (replace(load, slots=wrong),)})  # type: ignore[call-arg]
    assert rejected(func, owned) == finding(
        LOAD.replace("constant=0", "constant=3")
        + "slot 0 receives element 3, expected element 0 (64 of 64 slots are wrong)"
    )


def test_c4_f37_wrong_source_lane() -> None:
    owned, func = both(conversion_program(None, SWAP))
    shuffle = the(func, planned.Shuffle)
    wrong = AffineMap((1, 2, 4, 8, 16, 32))
    func = edit(func, {shuffle: (replace(shuffle, lanes=wrong),)})  # type: ignore[call-arg]
    layout = "ThreadLayout((1, 0, 2, 3, 4, 5))"
    assert rejected(func, owned) == finding(
        f"kernel.py:10:5: %converted0 = tile.shuffle %value0, layout={layout}, "
        "lanes=AffineMap(columns=(1, 2, 4, 8, 16, 32), constant=0) : "
        f"tile<64xf32, {layout}>: "
        "slot 1 receives element 1, expected element 2 (32 of 64 slots are wrong)"
    )


def test_c1_a_shuffle_stays_in_its_simdgroup() -> None:
    owned, func = both(conversion_program(None, SWAP))
    shuffle = the(func, planned.Shuffle)
    wrong = AffineMap((2, 1, 4, 8, 16, 32), 32)
    func = edit(func, {shuffle: (replace(shuffle, lanes=wrong),)})  # type: ignore[call-arg]
    assert "slot 0 takes from slot 32 of another simdgroup, expected one of simdgroup 0" in (
        rejected(func, owned)
    )


def test_c3_f43_scratch_reused_before_its_release() -> None:
    owned, func = both(chain_program(None, [(ROWS, f32), (IDENTITY, f32)]))
    (mutant,) = mutate.reuse_before_release(func)
    message = rejected(mutant.func, owned)
    assert f"kernel.py:{mutant.line}:5: tile.scratch_store %scratch_f32, %value1" in message
    assert "may still read it, expected a release barrier between them" in message


def test_c3_bool_and_bf16_never_travel_as_themselves() -> None:
    owned, func = both(chain_program(None, [(SWAP, bool_), (IDENTITY, bf16)]))
    wires = "expected one of f16, f32, i32, u32, u16 (bool travels as u32, bf16 as u16)"
    for mutant in mutate.wrong_dtype(func):
        rejected(mutant.func, owned)
    messages = [rejected(mutant.func, owned) for mutant in mutate.wrong_dtype(func)]
    assert any(f"shuffles bool, {wires}" in message for message in messages)
    assert any(f"shuffles bf16, {wires}" in message for message in messages)


def test_c3_a_wrong_way_back_from_the_wire_is_seen_at_the_store() -> None:
    owned, func = both(conversion_program(None, ROWS, bf16))
    back = the(func, tile.Bitcast, 1)
    assert isinstance(back, tile.Bitcast)
    cast = tile.Cast(back.src, bf16, results=back.results, loc=back.loc)
    message = rejected(edit(func, {back: (cast,)}), owned)
    assert message == finding(
        "kernel.py:13:5: tile.store %y0_tensor, [%owned0], %converted0: its value is another "
        f"than before, expected %converted0: tile<64xbf16, {SHAPE}> made in line 10"
    )


def test_c4_a_conversion_left_out() -> None:
    owned, func = CASES["one exchange"]
    (mutant,) = mutate.leave_conversion_out(func)
    message = rejected(mutant.func, owned)
    assert "kernel.py:13:5: tile.store %y0_tensor, [%owned0], %value0: " in message
    assert "have different owners in one op, expected one layout" in message
    assert f"its value has owners {IDENTITY!r}, expected {SHAPE} made in line 10" in message


def test_c4_a_load_before_its_store() -> None:
    owned, func = CASES["one exchange"]
    (mutant,) = mutate.swap_store_and_load(func)
    assert LOAD + "reads scratch_f32, which holds no published elements" in (
        rejected(mutant.func, owned)
    )


def test_c4_a_wrong_layout_on_a_result() -> None:
    owned, func = CASES["one exchange"]
    load = the(func, planned.ScratchLoad)
    func = edit(func, {load: (replace(load, layout=SWAP),)})  # type: ignore[call-arg]
    message = rejected(func, owned)
    assert "kernel.py:10:5: %converted0 = tile.scratch_load" in message
    assert "slot 1 receives element 8, expected element 2" in message


def test_c4_another_value_is_stored() -> None:
    """Types, owners and barriers are all right; only the tile that arrives is the wrong one."""
    p = Program()
    x, y = p.array("x", f32, 64, "read"), p.array("y", f32, 64, "write")
    a = p.arange(64, None, "a")
    value = p.add(tile.Load(x, (a,)), "value")
    negated = p.add(tile.Unary(UnaryKind.NEG, value), "negated")
    converted = p.add(tile.Convert(negated, ROWS), "converted")
    p.emit(tile.Store(y, (p.arange(64, ROWS, "b"),), converted))
    owned, func = both(p.func())
    store = the(func, planned.ScratchStore)
    assert isinstance(store, planned.ScratchStore)
    load = the(func, tile.Load)
    astray = edit(func, {store: (replace(store, value=load.result),)})
    assert rejected(astray, owned) == finding(
        "kernel.py:14:5: tile.store %y_tensor, [%b], %converted: its value is another than "
        f"before, expected %converted: tile<64xf32, {SHAPE}> made in line 11"
    )


def test_c4_the_order_of_stores_and_their_number_count() -> None:
    owned, func = both(chain_program(None, [(ROWS, f32), (IDENTITY, f32)]))
    first, second = ops_of(func, tile.Store)
    message = rejected(edit(func, {first: ()}), owned)
    assert "kernel @kernel: has 1 stores, expected 2" in message
    message = rejected(edit(func, {second: (first,), first: ()}), owned)
    assert "has 1 stores, expected 2" in message


def test_c4_a_wrong_role_and_a_barrier_for_nothing() -> None:
    owned, func = CASES["one exchange"]
    publish, release = ops_of(func, planned.Barrier)
    message = rejected(edit(func, {publish: (publish, publish)}), owned)
    assert "role='publish': publishes nothing: no store precedes it since the last barrier" in (
        message
    )
    message = rejected(edit(func, {release: (release, release)}), owned)
    assert "releases nothing: no load precedes it since the last barrier" in message
    odd = replace(release, role="rest")  # type: ignore[call-arg]
    assert "role is 'rest', expected one of publish, release, rotate" in (
        rejected(edit(func, {release: (odd,)}), owned)
    )


def test_c4_released_scratch_is_not_read_again() -> None:
    owned, func = CASES["one exchange"]
    load, release = the(func, planned.ScratchLoad), the(func, planned.Barrier, 1)
    again = replace(load, results=(Value(load.result.type, "again", load.loc),))
    message = rejected(edit(func, {release: (release, again, release)}), owned)
    assert "%again = tile.scratch_load" in message
    assert "reads scratch_f32, which holds no published elements" in message


def test_c4_two_allocations_share_no_slot_id() -> None:
    owned, func = CASES["one exchange"]
    scratch = the(func, planned.Scratch)
    twin = replace(scratch, results=(Value(scratch.result.type, "twin", scratch.loc),))
    assert "%twin = tile.scratch dtype=metile.f32, elements=64, slot='scratch_f32' : " in (
        rejected(edit(func, {scratch: (scratch, twin)}), owned)
    )


def test_c4_two_slots_never_write_one_element() -> None:
    owned, func = CASES["one exchange"]
    store = the(func, planned.ScratchStore)
    singular = AffineMap((2, 2, 4, 8, 16, 32), 1)
    func = edit(func, {store: (replace(store, slots=singular),)})  # type: ignore[call-arg]
    message = rejected(func, owned)
    assert "two slots write one element of scratch_f32" in message
    assert "receives what nobody has written" in message


def test_c4_a_map_of_another_width_and_a_buffer_that_is_none() -> None:
    owned, func = CASES["one exchange"]
    store = the(func, planned.ScratchStore)
    assert isinstance(store, planned.ScratchStore)
    narrow = replace(store, slots=AffineMap.identity(5))
    assert "its map has 32 slots, the tile has 64" in rejected(
        edit(func, {store: (narrow,)}), owned
    )
    astray = replace(store, buffer=store.value)
    assert "expected the result of tile.scratch" in rejected(edit(func, {store: (astray,)}), owned)


def test_a_branch_keeps_its_meaning_and_its_conditions() -> None:
    """Automatic programs have no conversions, but the stores in their branches are compared."""
    p = Program()
    y = p.array("y", i32, 64, "write")
    a, flag = p.arange(64, None, "a"), p.scalar("flag", bool_)
    inner = p.builder.child()
    inner.emit(tile.Store(y, (a,), a))
    inner.emit(tile.Yield((a,)))
    other = p.builder.child()
    other.emit(tile.Yield((a,)))
    branch = tile.If(flag, inner.block(), other.block())
    (result,) = p.emit(branch)
    p.emit(tile.Store(y, (a,), result))
    owned, func = both(p.func())
    verify(func, Stage.PLANNED, context(), owned)
    old = the(func, tile.If)
    assert isinstance(old, tile.If)
    store, end = old.then.ops
    hoisted = edit(func, {old: (store, replace(old, then=Block((end,))))})
    assert "stores under other conditions than before, expected those of line 5" in rejected(
        hoisted, owned
    )
