"""SSA, op sets and types: each rule broken once, with the exact finding."""

from __future__ import annotations

import pkgutil
from dataclasses import replace

import pytest

from metile_mlx import ir
from metile_mlx.context import Stage
from metile_mlx.dtypes import bool_, f32, i32, u32
from metile_mlx.errors import VerificationError
from metile_mlx.ir import lanes, loops, matrix, metal, permute, pipeline, planned, stated, tile
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import Block, Builder, Func, Op, Value
from metile_mlx.ir.types import PointerType, ScalarType, ScratchType, TileType, Type
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.verify import verify
from metile_mlx.verify.structure import LEGAL
from tests.support import verified
from tests.support.build import Program, context

ROWS = ThreadLayout((3, 4, 5, 0, 1, 2))


def findings(func: Func, stage: Stage = Stage.TILE) -> list[str]:
    """The findings of the error, without their indentation."""
    head, *rest = verified.rejected(func, stage).message.splitlines()
    count = "1 finding" if len(rest) == 1 else f"{len(rest)} findings"
    assert head == f"[verify] @{func.name} breaks the rules of stage {stage.name}: {count}"
    return [line.strip() for line in rest]


def body(func: Func, *ops: Op) -> Func:
    return func.with_body(Block(ops))


def simple() -> tuple[Func, Op, Op, Op]:
    """`a = 5; b = a + a; c = b * a`, and its three ops."""
    p = Program()
    a = p.add(tile.Constant(5, i32), "a")
    b = p.add(tile.Binary(BinaryKind.ADD, a, a), "b")
    p.add(tile.Binary(BinaryKind.MUL, b, a), "c")
    func = p.func()
    first, second, third = func.body.ops
    return func, first, second, third


def test_a_sound_program_passes_at_its_stage() -> None:
    verify(simple()[0], Stage.TILE, context())


def test_a_use_before_its_definition() -> None:
    func, a, b, c = simple()
    assert findings(body(func, a, c, b)) == [
        "kernel.py:3:5: %c = tile.binary mul, %b, %a : i32: uses %b: i32 before its definition"
    ]


def test_a_use_of_a_value_that_nothing_defines() -> None:
    func, a, _, c = simple()
    assert findings(body(func, a, c)) == [
        "kernel.py:3:5: %c = tile.binary mul, %b, %a : i32: uses %b: i32, which nothing in this "
        "kernel defines"
    ]


def test_a_value_defined_twice() -> None:
    func, a, b, c = simple()
    twin = replace(b, results=a.results)
    assert findings(body(func, a, b, twin, c)) == [
        "kernel.py:2:5: %a = tile.binary add, %a, %a : i32: %a: i32 is defined twice, expected "
        "one definition"
    ]
    assert findings(body(func, a, b, b, c)) == [
        "kernel.py:2:5: %b = tile.binary add, %a, %a : i32: %b: i32 is defined twice, expected "
        "one definition"
    ]


def test_a_parameter_listed_twice() -> None:
    p = Program()
    p.scalar("n")
    func = replace(p.func(), params=(p.params[0], p.params[0]))
    assert findings(func) == [
        "<generated>:0:0: kernel @kernel: a parameter is listed twice, expected each Value once"
    ]


@pytest.mark.parametrize(
    ("type_", "stage"),
    [
        (ScalarType(i32, uniform=False), Stage.TILE),
        (TileType(f32, (64,), ROWS), Stage.OWNED),
        (PointerType(f32, writable=True), Stage.PLANNED),
        (ScratchType(f32, 64), Stage.THREAD),
    ],
)
def test_a_parameter_that_no_caller_can_give(type_: Type, stage: Stage) -> None:
    p = Program()
    p.param("odd", type_)
    func = replace(p.func(), threads=64)
    assert findings(func, stage) == [
        f"<generated>:0:0: kernel @kernel: parameter odd is {type_}, expected an array or a "
        "uniform scalar"
    ]


def branch(inner: Builder, end: Op | None = None) -> tuple[Program, tile.If]:
    """A kernel whose branch holds what `inner` has built."""
    p = Program()
    flag = p.scalar("flag", bool_)
    if end is not None:
        inner.ops.append(end)
    return p, tile.If(flag, inner.block(), Block((tile.Yield(),)))


def test_a_value_used_outside_its_block() -> None:
    inner = Builder()
    inside = inner.add(tile.Constant(5, i32), "inside")
    p, item = branch(inner, tile.Yield())
    p.emit(item)
    p.add(tile.Binary(BinaryKind.ADD, inside, inside), "sum")
    one, two = findings(p.func())
    assert one == two
    assert one == (
        "kernel.py:2:5: %sum = tile.binary add, %inside, %inside : i32: uses %inside: i32 "
        "outside the block that defines it"
    )


def test_a_block_sees_what_its_surroundings_defined() -> None:
    p = Program()
    flag, a = p.scalar("flag", bool_), p.number(5)
    inner = Builder()
    total = inner.add(tile.Binary(BinaryKind.ADD, a, a), "total")
    inner.emit(tile.Yield((total,)))
    p.emit(tile.If(flag, inner.block(), Block((tile.Yield((a,)),))))
    verify(p.func(), Stage.TILE, context())


def test_a_block_without_its_yield_and_a_yield_where_none_belongs() -> None:
    inner = Builder()
    inner.add(tile.Constant(5, i32), "a")
    p, item = branch(inner)
    p.emit(item)
    assert findings(p.func())[0] == (
        "kernel.py:1:5: tile.if condition=%flag: a nested block doesn't end in a yield"
    )
    p = Program()
    p.emit(tile.Yield())
    assert findings(p.func()) == [
        "kernel.py:1:5: tile.yield values=(): expected only at the end of a nested block"
    ]
    inner = Builder()
    inner.emit(tile.Yield())
    p, item = branch(inner, tile.Yield())
    p.emit(item)
    assert findings(p.func())[0].endswith("expected only at the end of a nested block")


def test_branches_that_yield_different_types() -> None:
    p = Program()
    flag, a = p.scalar("flag", bool_), p.number(5)
    then, otherwise = Block((tile.Yield((a,)),)), Block((tile.Yield((flag,)),))
    p.emit(tile.If(flag, then, otherwise))
    (text,) = findings(p.func())
    assert text.endswith("branches yield (i32) and (bool), expected one")


def test_a_branch_on_what_differs_between_threads() -> None:
    b = Builder()
    thread = b.add(metal.ThreadIndex(), "thread")
    flag = b.add(metal.Cast(thread, bool_), "flag")
    empty = Block((metal.Yield(),))
    b.emit(metal.If(flag, empty, empty))
    func = Func("kernel", (), b.block(), threads=64)
    assert findings(func, Stage.THREAD) == [
        "<generated>:0:0: metal.if condition=%flag: condition is thread<bool>, expected a uniform "
        "bool"
    ]


def every_op() -> set[type[Op]]:
    modules = {name for _, name, _ in pkgutil.iter_modules(ir.__path__)}
    assert {"tile", "planned", "metal", "stated", "loops", "lanes", "matrix", "pipeline"} <= modules
    return {
        item
        for module in (tile, permute, planned, metal, stated, loops, lanes, matrix, pipeline)
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Op) and item not in (Op, loops.Loop)
    }


def test_every_op_is_legal_at_some_stage() -> None:
    assert every_op() == frozenset().union(*LEGAL.values())


def test_the_stages_exclude_what_has_been_lowered() -> None:
    assert LEGAL[Stage.TILE] == LEGAL[Stage.OWNED]
    assert LEGAL[Stage.OWNED] - LEGAL[Stage.PLANNED] == {tile.Convert}
    assert not LEGAL[Stage.PLANNED] & LEGAL[Stage.THREAD]


def test_a_conversion_that_survives_planning() -> None:
    p = Program()
    a = p.arange(64, ThreadLayout.identity(64), "a")
    p.add(tile.Convert(a, ROWS), "b")
    func = replace(p.func(), threads=64)
    verify(func, Stage.OWNED, context())
    assert findings(func, Stage.PLANNED) == [
        "kernel.py:3:5: %b = tile.convert %a, layout=ThreadLayout((3, 4, 5, 0, 1, 2)) : "
        "tile<64xi32, ThreadLayout((3, 4, 5, 0, 1, 2))>: tile.convert is no op of stage PLANNED"
    ]


def test_a_tile_op_among_metal_ops_and_the_reverse() -> None:
    func, a, *_ = simple()
    func = replace(body(func, a), threads=64)
    assert findings(func, Stage.THREAD) == [
        "kernel.py:1:5: %a = tile.constant value=5, dtype=metile.i32 : i32: tile.constant is no op "
        "of stage THREAD"
    ]
    p = Program()
    p.add(metal.ThreadIndex(), "thread")
    assert findings(p.func())[0].endswith("metal.thread_index is no op of stage TILE")


def test_a_result_of_another_type_than_the_op_computes() -> None:
    func, a, b, c = simple()
    lie = replace(b, results=(Value(ScalarType(f32), "b", b.loc),))
    assert findings(body(func, a, lie)) == [
        "kernel.py:2:5: %b = tile.binary add, %a, %a : f32: results are (f32), expected (i32)"
    ]
    assert findings(body(func, a, replace(b, results=())))[0].endswith(
        "results are (), expected (i32)"
    )
    assert c.results


def test_a_uniform_flag_on_what_differs_between_threads() -> None:
    b = Builder()
    thread = b.add(metal.ThreadIndex(), "thread")
    one = b.add(metal.Constant(1, u32), "one")
    b.add(metal.Binary(BinaryKind.ADD, thread, one), "next")
    *rest, add = b.ops
    lie = replace(add, results=(Value(ScalarType(u32, uniform=True), "next"),))
    func = Func("kernel", (), Block((*rest, lie)), threads=64)
    assert findings(func, Stage.THREAD) == [
        "<generated>:0:0: %next = metal.binary add, %thread, %one : u32: results are (u32), "
        "expected (thread<u32>)"
    ]


def test_operands_that_the_op_rejects_or_never_expected() -> None:
    func, a, b, _ = simple()
    assert isinstance(b, tile.Binary)
    other = Value(ScalarType(f32), "x")
    func = replace(func, params=(other,))
    wrong = replace(b, rhs=other)
    assert findings(body(func, a, wrong)) == [
        "kernel.py:2:5: %b = tile.binary add, %a, %x : i32: add takes one dtype, got i32 and f32"
    ]
    thread = Builder()
    index = thread.add(metal.Constant(0, u32), "index")
    load = metal.ThreadgroupLoad(index, index, results=(Value(ScalarType(f32, False), "v"),))
    func = Func("kernel", (), Block((*thread.ops, load)), threads=64)
    assert findings(func, Stage.THREAD) == [
        "<generated>:0:0: %v = metal.threadgroup_load %index, %index : thread<f32>: its operands "
        "have kinds it can't take"
    ]


def test_all_findings_are_in_one_error_and_it_shows_the_first_line() -> None:
    func, a, b, c = simple()
    with pytest.raises(VerificationError) as caught:
        verify(body(func, c, b, a), Stage.TILE, context())
    assert len(caught.value.message.splitlines()) == 1 + 4
    assert caught.value.loc is c.loc
    assert caught.value.loc.text in str(caught.value)
