"""The one rewrite driver, and the clean-up every stage wants: shared expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from metile_mlx.ir.core import Block, Builder, Effect, Func, Op, Value

Rule = Callable[[Op, Builder], "Value | Sequence[Value] | None"]


def rewrite(func: Func, rule: Rule) -> Func:
    """Offer each op, operands already rewritten, to `rule`, in program order.

    The rule returns None to keep the op, or what replaces its results: a Value or a sequence (empty
    to erase an op without results); whatever it builds is placed where the op stood. What it built
    takes over the names. Returns the same Func when no op changed.
    """
    mapping: dict[Value, Value] = {}
    return func.with_body(_block(func.body, rule, mapping))


def _block(block: Block, rule: Rule, mapping: dict[Value, Value]) -> Block:
    builder = Builder()
    changed = False
    for item in block.ops:
        new = _regions(item.with_operands(mapping), rule, mapping)
        builder.loc = new.loc
        before = len(builder.ops)
        replacement = rule(new, builder)
        if replacement is None:
            builder.ops.append(new)
            changed = changed or new is not item
            continue
        changed = True
        values = (replacement,) if isinstance(replacement, Value) else tuple(replacement)
        # A value that was there before is the input's too, and keeps the name it has there.
        made = {value for op in builder.ops[before:] for value in op.results}
        for old, value in zip(item.results, values, strict=True):
            if not value.name and value in made:
                value.name = old.name
            mapping[old] = value
    return builder.block(block.args) if changed else block


def _regions(item: Op, rule: Rule, mapping: dict[Value, Value]) -> Op:
    changes: dict[str, Any] = {
        name: new
        for name in item.field_names
        if isinstance(inner := getattr(item, name), Block)
        and (new := _block(inner, rule, mapping)) is not inner
    }
    return replace(item, **changes) if changes else item


def eliminate_common_subexpressions(func: Func) -> Func:
    """Compute each pure expression once. A nested block sees what its surroundings computed."""
    mapping: dict[Value, Value] = {}

    def visit(block: Block, seen: dict[tuple[object, ...], Op]) -> Block:
        kept: list[Op] = []
        for item in block.ops:
            new = item.with_operands(mapping)
            inner: dict[str, Any] = {
                name: visit(part, dict(seen))
                for name in new.field_names
                if isinstance(part := getattr(new, name), Block)
            }
            if any(getattr(new, name) is not part for name, part in inner.items()):
                new = replace(new, **inner)
            if new.effect is Effect.PURE and not inner and new.results:
                first = seen.setdefault(new.key(), new)
                if first is not new:
                    mapping.update(zip(new.results, first.results, strict=True))
                    continue
            kept.append(new)
        same = len(kept) == len(block.ops) and all(
            a is b for a, b in zip(kept, block.ops, strict=True)
        )
        return block if same else Block(tuple(kept), block.args)

    return func.with_body(visit(func.body, {}))
