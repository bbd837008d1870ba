"""Drop what no store, barrier or print needs: ops, results of branches, values that loops carry.

First what is needed is found, from the effects backwards. A value carried by a loop is needed where
its result is, or its value in an iteration; a loop that only counts it up is no need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from metile_mlx.ir.core import Block, Effect, Func, Op, Value
from metile_mlx.ir.loops import Loop

Item = TypeVar("Item")


def eliminate_dead_code(func: Func, keep: tuple[type[Op], ...] = ()) -> Func:
    """Drop ops whose results nobody uses and which write and synchronise nothing.

    Ops of the kinds in `keep` stay, used or not. Returns the same Func when nothing is dropped.
    """
    return func.with_body(_Needs(func.body, keep).sweep(func.body, None))


class _Needs:
    """The ops and values that something needs."""

    def __init__(self, body: Block, keep: tuple[type[Op], ...]) -> None:
        self._keep = keep
        self._ops: set[Op] = set()
        self._values: set[Value] = set()
        # What makes a value, and as which of its results or carried values.
        self._made: dict[Value, tuple[Op, int]] = {}
        self._around: dict[Op, Op | None] = {}
        self._pending: list[Value] = []
        roots: list[Op] = []
        self._note(body, None, roots)
        for item in roots:
            self._need(item)
        while self._pending:
            value = self._pending.pop()
            if value not in self._values:
                self._values.add(value)
                self._feed(value)

    def _note(self, block: Block, owner: Op | None, roots: list[Op]) -> None:
        for item in block.ops:
            self._around[item] = owner
            for position, value in enumerate(item.results):
                self._made[value] = (item, position)
            if isinstance(item, Loop):
                self._made[item.index] = (item, -1)
                for position, value in enumerate(item.carried):
                    self._made[value] = (item, position)
            if item.effect & (Effect.WRITE | Effect.CONVERGENT) or isinstance(item, self._keep):
                roots.append(item)
            for inner in item.blocks():
                self._note(inner, item, roots)

    def _need(self, item: Op) -> None:
        if item in self._ops:
            return
        self._ops.add(item)
        if isinstance(item, Loop):
            self._pending += (item.start, item.end, item.step)
        else:
            self._pending += item.operands()
        around = self._around[item]
        if around is not None:
            self._need(around)

    def _feed(self, value: Value) -> None:
        """Need what a needed value comes from."""
        made = self._made.get(value)
        if made is None:
            return
        item, position = made
        self._need(item)
        if position < 0:
            return
        for block in item.blocks():
            self._pending.append(block.ops[-1].operands()[position])
        if isinstance(item, Loop):
            self._pending.append(item.inits[position])

    def sweep(self, block: Block, kept: Sequence[int] | None) -> Block:
        """The block without what nobody needs; `kept`: the positions its yield hands over."""
        ops: list[Op] = []
        for item in block.ops:
            if item.effect is Effect.TERMINATOR:
                ops.append(item if kept is None else _yield(item, kept))
            elif item in self._ops:
                ops.append(self._swept(item))
        same = len(ops) == len(block.ops) and all(
            a is b for a, b in zip(ops, block.ops, strict=True)
        )
        return block if same else Block(tuple(ops), block.args)

    def _swept(self, item: Op) -> Op:
        if not item.block_fields:
            return item
        kept = [p for p, value in enumerate(item.results) if self._is_needed(item, p, value)]
        changes: dict[str, Any] = {}
        for name in item.block_fields:
            before: Block = getattr(item, name)
            after = self.sweep(before, kept)
            if isinstance(item, Loop) and len(kept) < len(item.results):
                after = Block(after.ops, (item.index, *_at(item.carried, kept)))
            if after is not before:
                changes[name] = after
        if len(kept) < len(item.results):
            changes["results"] = _at(item.results, kept)
            if isinstance(item, Loop):
                changes["inits"] = _at(item.inits, kept)
        return replace(item, **changes) if changes else item

    def _is_needed(self, item: Op, position: int, result: Value) -> bool:
        if result in self._values:
            return True
        return isinstance(item, Loop) and item.carried[position] in self._values


def _yield(item: Op, kept: Sequence[int]) -> Op:
    values = item.operands()
    if len(kept) == len(values):
        return item
    changes: dict[str, Any] = {"values": _at(values, kept)}
    return replace(item, **changes)


def _at(items: Sequence[Item], positions: Sequence[int]) -> tuple[Item, ...]:
    return tuple(items[position] for position in positions)
