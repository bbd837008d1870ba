"""Deciding owners changes nothing else: each other change is rejected (SPEC O1, O6)."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Stage
from metile_mlx.dtypes import DType, bool_, f32, i32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CompareKind
from metile_mlx.ir.core import Block, Func, Op, Value
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.verify import verify
from tests.mutation.editing import places, put
from tests.support import verified
from tests.support.build import Program, context

ROWS = ThreadLayout((3, 4, 5, 0, 1, 2))


def explicit() -> Func:
    """A stated and an open owner, and a mask."""
    p = Program()
    x, y = p.array("x", f32, 64, "read"), p.array("y", f32, 64, "write")
    a, b = p.arange(64, None, "a"), p.arange(64, ROWS, "b")
    mask = p.add(tile.Compare(CompareKind.LT, a, p.number(40)), "mask")
    value = p.add(tile.Load(x, (a,), mask), "value")
    moved = p.add(tile.Convert(value, ROWS), "moved")
    p.emit(tile.Store(y, (b,), moved))
    return p.func()


def branching() -> Func:
    """Owners are open, and a branch has an operation in it."""
    p = Program()
    y, flag = p.array("y", i32, 64, "write"), p.scalar("flag", bool_)
    a = p.arange(64, None, "a")
    inner, other = p.builder.child(), p.builder.child()
    double = inner.add(tile.Binary(BinaryKind.ADD, a, a), "double")
    inner.emit(tile.Yield((double,)))
    other.emit(tile.Yield((a,)))
    (chosen,) = p.emit(tile.If(flag, inner.block(), other.block()))
    p.emit(tile.Store(y, (a,), chosen))
    return p.func()


BEFORE, BRANCHING = explicit(), branching()
AFTER, BRANCHED = (infer_ownership(func, context()) for func in (BEFORE, BRANCHING))


def rejected(func: Func, before: Func = BEFORE) -> str:
    return verified.rejected(func, Stage.OWNED, before).message


def with_other(which: type[Op], func: Func = AFTER, **fields: object) -> Func:
    """The program with other fields in its first op of a kind, wherever it stands."""
    place, item, block = next(found for found in places(func) if isinstance(found[1], which))
    return put(func, place, block, replace(item, **fields))  # type: ignore[arg-type]


def test_what_the_pass_decides_is_accepted() -> None:
    verify(AFTER, Stage.OWNED, context(), BEFORE)
    verify(BRANCHED, Stage.OWNED, context(), BRANCHING)


def test_a_mask_that_is_gone() -> None:
    message = rejected(with_other(tile.Load, mask=None))
    assert "tile.load %x_tensor, [%a] : tile<64xf32" in message
    assert "its mask is None, expected %mask" in message


def test_o6_an_open_owner_is_the_identity() -> None:
    owner = ThreadLayout((1, 0, 2, 3, 4, 5))
    message = rejected(with_other(tile.Arange, layout=owner))
    assert f"its layout is {owner!r}, expected {ThreadLayout.identity(64)!r} as before" in message


def test_o1_a_stated_owner_stays() -> None:
    """Both uses agree with each other, and not with what was stated."""
    other = ThreadLayout.identity(64)
    func = with_other(tile.Convert, layout=other)
    place, item, block = [found for found in places(func) if isinstance(found[1], tile.Arange)][1]
    message = rejected(put(func, place, block, replace(item, layout=other)))  # type: ignore[call-arg]
    assert message.count(f"its layout is {other!r}, expected {ROWS!r} as before") == 2


def test_another_operation_within_a_branch() -> None:
    message = rejected(with_other(tile.Binary, BRANCHED, kind=BinaryKind.MUL), BRANCHING)
    assert "its kind is <BinaryKind.MUL: 'mul'>, expected <BinaryKind.ADD: 'add'>" in message


def test_an_op_that_is_gone_or_stands_elsewhere() -> None:
    ops = AFTER.body.ops
    message = rejected(AFTER.with_body(Block(ops[:-1])))
    assert f"a block has {len(ops) - 1} ops, expected {len(ops)} as before" in message
    at = next(i for i, (a, b) in enumerate(pairwise(ops)) if type(a) is not type(b))
    twin = replace(ops[at], results=tuple(Value(v.type) for v in ops[at].results))
    assert "stands where `" in rejected(
        AFTER.with_body(Block((*ops[: at + 1], twin, *ops[at + 1 :])))
    )


def test_other_parameters() -> None:
    assert "has other parameters than before" in rejected(replace(AFTER, params=AFTER.params[::-1]))


NOT_A_NUMBER = float("nan")


def constant(value: float | bool, dtype: DType = f32) -> tuple[Func, Func]:
    """A program that stores a literal, without owners and with them."""
    p = Program()
    y = p.array("y", dtype, 64, "write")
    p.emit(tile.Store(y, (p.arange(64),), p.number(value, dtype)))
    return p.func(), infer_ownership(p.func(), context())


@pytest.mark.parametrize("value", [NOT_A_NUMBER, math.inf, -0.0, 5e-324])
def test_f25_a_literal_is_itself(value: float) -> None:
    """A NaN is no other than it was, though it does not equal itself; through all passes."""
    lower(constant(value)[0], context())


@pytest.mark.parametrize(
    ("was", "is_now", "dtype"),
    [
        (NOT_A_NUMBER, 1.0, f32),
        (1.0, NOT_A_NUMBER, f32),
        (0.0, -0.0, f32),
        (True, 1, bool_),
        (1, 1.0, i32),
    ],
)
def test_f25_another_literal(was: float, is_now: float, dtype: DType) -> None:
    before, after = constant(was, dtype)
    place, item, block = [
        found
        for found in places(after)
        if isinstance(found[1], tile.Constant) and found[1].dtype == dtype
    ][-1]
    message = rejected(put(after, place, block, replace(item, value=is_now)), before)  # type: ignore[call-arg]
    assert f"its value is {is_now!r}, expected {was!r} as before" in message
