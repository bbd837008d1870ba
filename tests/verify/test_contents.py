"""Planted faults in what travels: values of other registers, wrong sides of selects (C4, F38)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from metile_mlx.context import Stage
from metile_mlx.dtypes import f32
from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import BinaryKind, CompareKind
from metile_mlx.ir.core import Func, Op
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.clean_up import clean_up
from metile_mlx.passes.scalarise import scalarise
from metile_mlx.verify import verify
from tests.support import verified
from tests.support.build import Program, context
from tests.support.mutate import edit, ops_of
from tests.verify.test_conversions import REGISTERS, both

# Cleaned, since what nobody needs may be wrong.
THREADS = {
    name: (func, clean_up(scalarise(func, context()), context()))
    for name, (_, func) in REGISTERS.items()
}


def rejected(func: Func, before: Func, by_default: bool = True) -> str:
    return verified.rejected(func, Stage.THREAD, before, by_default=by_default).message


@pytest.mark.parametrize("name", THREADS)
def test_c4_what_scalarise_makes_is_accepted_and_so_is_what_is_cleaned(name: str) -> None:
    before, func = THREADS[name]
    verify(func, Stage.THREAD, context(), before)
    made = scalarise(before, context())
    verify(made, Stage.THREAD, context(), before)
    verify(func, Stage.THREAD, context(), made)


def exchanged(func: Func, one: Op, other: Op, name: str) -> Func:
    """Two ops with each other's operand `name`."""
    changed = replace(one, **{name: getattr(other, name)})
    return edit(func, {one: (changed,), other: (replace(other, **{name: getattr(one, name)}),)})


def sides(func: Func) -> Iterator[Func]:
    """A select takes its values the other way round."""
    for item in ops_of(func, metal.Select):
        assert isinstance(item, metal.Select)
        changed = replace(item, on_true=item.on_false, on_false=item.on_true)
        yield edit(func, {item: (changed,)})


def bits(func: Func) -> Iterator[Func]:
    """A select asks another bit of the thread index."""
    found = ops_of(func, metal.Select)
    for item in found:
        assert isinstance(item, metal.Select)
        others = (o.condition for o in found if isinstance(o, metal.Select))
        for other in dict.fromkeys(o for o in others if o is not item.condition):
            order = [value for each in func.body.ops for value in each.results]
            if order.index(other) < order.index(item.result):
                yield edit(func, {item: (replace(item, condition=other),)})
                break


def stored(func: Func) -> Iterator[Func]:
    """Two stores to threadgroup memory exchange their values."""
    for one, other in pairwise(ops_of(func, metal.ThreadgroupStore)):
        assert isinstance(other, metal.ThreadgroupStore)
        if other.value not in _between(func, one, other):
            yield exchanged(func, one, other, "value")


def sent(func: Func) -> Iterator[Func]:
    """Two shuffles exchange what they send."""
    for one, other in pairwise(ops_of(func, metal.Shuffle)):
        assert isinstance(other, metal.Shuffle)
        if other.src not in _between(func, one, other):
            yield exchanged(func, one, other, "src")


def delivered(func: Func) -> Iterator[Func]:
    """Two register slots of a result exchange their values on the way to the array."""
    for one, other in pairwise(ops_of(func, metal.Store)):
        assert isinstance(one, metal.Store)
        assert isinstance(other, metal.Store)
        if one.access == other.access and other.value not in _between(func, one, other):
            yield exchanged(func, one, other, "value")


def _between(func: Func, one: Op, other: Op) -> set[object]:
    ops = func.body.ops
    return {v for item in ops[ops.index(one) : ops.index(other)] for v in item.results}


FAULTS: dict[str, tuple[Callable[[Func], Iterator[Func]], set[str]]] = {
    # The name of a register alone is no communication, so that nothing follows it.
    "sides": (sides, {"renamed"}),
    "bits": (bits, {"renamed"}),
    "stored": (stored, set()),
    "sent": (sent, set()),
    "delivered": (delivered, {"renamed"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_c4_f38_values_of_other_registers_are_rejected(fault: str) -> None:
    plant, left_out = FAULTS[fault]
    tried = 0
    for name, (before, func) in THREADS.items():
        for mutant in plant(func) if name not in left_out else ():
            tried += 1
            message = rejected(mutant, before)
            assert "expected what register" in message or "another register's value" in message
    assert tried >= 4


def test_a_value_that_was_there_before_a_clean_up_stands_for_itself() -> None:
    """Per-thread programs are compared with each other as well."""
    for fault in (sides, stored, sent):
        tried = 0
        for _, func in THREADS.values():
            for mutant in fault(func):
                tried += 1
                message = rejected(mutant, func)
                kept = "with the values, masks and addresses it had before" in message
                assert kept or "uses another" in message, message
        assert tried >= 4


def test_no_false_alarm_where_ops_leave_values_as_they_are_or_choose_by_the_thread() -> None:
    """`x + 0` and what always holds are gone per thread; a `where` is no choice of ours."""
    p = Program()
    size, source = 256, ThreadLayout.identity(256, 4)
    x, y = p.array("x", f32, size, "read"), p.array("y", f32, size, "write")
    a = p.arange(size, source, "a")
    flags = p.add(tile.Splat(p.number(4), (size,), source), "flags")
    bit = p.add(tile.Binary(BinaryKind.AND, a, flags), "bit")
    zeros = p.add(tile.Splat(p.number(0), (size,), source), "zeros")
    odd = p.add(tile.Compare(CompareKind.NE, bit, zeros), "odd")
    loaded = p.add(tile.Load(x, (a,)), "loaded")
    doubled = p.add(tile.Binary(BinaryKind.ADD, loaded, loaded), "doubled")
    value = p.add(tile.Select(odd, doubled, loaded), "value")
    owners = ThreadLayout((6, 1, 2, 3, 4, 5, 0, 7), 3, 4)
    moved = p.add(tile.Convert(value, owners), "moved")
    there = p.add(tile.Convert(a, owners), "there")
    none = p.add(tile.Splat(p.number(0), (size,), owners), "none")
    same = p.add(tile.Binary(BinaryKind.ADD, there, none), "same")
    always = p.add(tile.Compare(CompareKind.EQ, same, same), "always")
    chosen = p.add(tile.Select(always, moved, moved), "chosen")
    p.emit(tile.Store(y, (same,), chosen))
    _, planned = both(p.func())
    func = scalarise(planned, context())
    verify(func, Stage.THREAD, context(), planned)
    verify(clean_up(func, context()), Stage.THREAD, context(), func)
