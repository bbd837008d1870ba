"""Deciding owners changes nothing else: the same ops in the same order, and owners as stated.

What a program says of owners stays; where it says nothing, a tile has the identity with one element
per thread (SPEC O6), or, in a kernel with matrix products, owners that these need. There, operands
may be handed over before a product.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from metile_mlx.ir.core import Block, Func, Op, Value, literal_key, walk
from metile_mlx.ir.matrix import Dot, Operand
from metile_mlx.ir.printer import print_op
from metile_mlx.ir.types import TileType
from metile_mlx.layout.operand import Layout
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import MAX_THREADS, SIMD_WIDTH
from metile_mlx.verify.findings import Finding


def check_decided(func: Func, before: Func) -> list[Finding]:
    """How `func`, with owners, differs from `before`, without; the first difference of each op."""
    has_products = any(isinstance(item, Dot) for item in walk(before.body))
    checker = _Decided(dict(zip(before.params, before.params, strict=True)), has_products)
    if func.params != before.params:
        checker.findings.append(Finding(None, "has other parameters than before"))
    checker.block(before.body, func.body, None)
    return checker.findings


class _Decided:
    def __init__(self, same: dict[Value, Value], has_products: bool) -> None:
        self.same = same
        self.has_products = has_products
        # What hands an operand to the simdgroups is that operand.
        self.handed: dict[Value, Value] = {}
        self.findings: list[Finding] = []

    def block(self, old: Block, new: Block, parent: Op | None) -> None:
        self.same.update(zip(old.args, new.args, strict=False))
        kept = [item for item in new.ops if not self.hands(item)]
        for was, now in zip(old.ops, kept, strict=False):
            message = self.difference(was, now)
            if message:
                self.findings.append(Finding(now, message))
            self.same.update(zip(was.results, now.results, strict=False))
            for one, other in zip(was.blocks(), now.blocks(), strict=False):
                self.block(one, other, now)
        if len(old.ops) != len(kept):
            text = f"a block has {len(kept)} ops, expected {len(old.ops)} as before"
            self.findings.append(Finding(parent, text))

    def hands(self, item: Op) -> bool:
        """Note what hands an operand over."""
        if isinstance(item, Operand):
            self.handed[item.result] = item.src
        return isinstance(item, Operand)

    def difference(self, was: Op, now: Op) -> str:
        if type(was) is not type(now):
            return f"stands where `{print_op(was)}` was"
        for name in was.field_names:
            if name in was.block_fields:
                continue
            before, after = getattr(was, name), getattr(now, name)
            if before is None and isinstance(after, Layout):
                # Whose tile it is follows from the type of the result; what products need, from
                # them (verify/ownership.py).
                before = after if self.has_products else _identity(now)
            if self._keyed(before, self.same) != self._keyed(after, self.handed):
                return f"its {name} is {after!r}, expected {before!r} as before"
        return ""

    def _keyed(self, item: object, same: Mapping[Value, Value]) -> Hashable:
        """What a field has to be, its values as `same` names them."""
        if isinstance(item, Value):
            return same.get(item, item)
        if isinstance(item, tuple):
            return tuple([self._keyed(part, same) for part in item])
        return literal_key(item)


def _identity(item: Op) -> ThreadLayout | None:
    type_ = item.results[0].type if item.results else None
    if not isinstance(type_, TileType):
        return None
    size = type_.size
    has_owners = SIMD_WIDTH <= size <= MAX_THREADS and not size & (size - 1)
    return ThreadLayout.identity(size) if has_owners else None
