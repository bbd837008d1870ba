"""Deciding owners changes nothing else: the same ops in the same order, and owners as stated.

What a program says of owners stays; where it says nothing, a tile has the identity with one element
per thread (SPEC O6).
"""

from __future__ import annotations

import math

from metile_mlx.ir.core import Block, Func, Op, Value
from metile_mlx.ir.printer import print_op
from metile_mlx.ir.types import TileType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.verify.findings import Finding


def check_decided(func: Func, before: Func) -> list[Finding]:
    """How `func`, with owners, differs from `before`, without; the first difference of each op."""
    checker = _Decided(dict(zip(before.params, before.params, strict=True)))
    if func.params != before.params:
        checker.findings.append(Finding(None, "has other parameters than before"))
    checker.block(before.body, func.body, None)
    return checker.findings


class _Decided:
    def __init__(self, same: dict[Value, Value]) -> None:
        self.same = same
        self.findings: list[Finding] = []

    def block(self, old: Block, new: Block, parent: Op | None) -> None:
        self.same.update(zip(old.args, new.args, strict=False))
        for was, now in zip(old.ops, new.ops, strict=False):
            message = self.difference(was, now)
            if message:
                self.findings.append(Finding(now, message))
            self.same.update(zip(was.results, now.results, strict=False))
            for one, other in zip(was.blocks(), now.blocks(), strict=False):
                self.block(one, other, now)
        if len(old.ops) != len(new.ops):
            text = f"a block has {len(new.ops)} ops, expected {len(old.ops)} as before"
            self.findings.append(Finding(parent, text))

    def difference(self, was: Op, now: Op) -> str:
        if type(was) is not type(now):
            return f"stands where `{print_op(was)}` was"
        for name in was.field_names:
            if name in was.block_fields:
                continue
            before, after = getattr(was, name), getattr(now, name)
            if before is None and isinstance(after, ThreadLayout):
                # Whose tile it is follows from the type of the result.
                before = _identity(now)
            if not _is_same(self._mapped(before), after):
                return f"its {name} is {after!r}, expected {before!r} as before"
        return ""

    def _mapped(self, item: object) -> object:
        if isinstance(item, Value):
            return self.same.get(item, item)
        return tuple(map(self._mapped, item)) if isinstance(item, tuple) else item


def _is_same(one: object, other: object) -> bool:
    # A NaN equals no NaN, and 0.0 equals -0.0.
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    return one == other


def _identity(item: Op) -> ThreadLayout | None:
    type_ = item.results[0].type if item.results else None
    if not isinstance(type_, TileType):
        return None
    size = math.prod(type_.shape)
    return ThreadLayout.identity(size) if 32 <= size <= 1024 and not size & (size - 1) else None
