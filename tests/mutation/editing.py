"""Edits of any program: an op anywhere gives way to others, and the types behind it follow.

A place is an op and the way to its block. Nothing here knows an op by name: operands, regions and
attributes are the fields that say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metile_mlx.errors import MetileError
from metile_mlx.ir import metal, tile
from metile_mlx.ir.core import Block, Effect, Func, Op, Value
from metile_mlx.ir.types import Type

# What infer raises on operands that an edit has made wrong; the verifiers then say so.
_BROKEN = (MetileError, AssertionError, AttributeError, IndexError, TypeError, ValueError)
MEMORY = Effect.READ | Effect.WRITE
ORDERED = MEMORY | Effect.CONVERGENT


@dataclass(frozen=True)
class Place:
    """Position `index` in the block that `path` leads to: an op's position and its field, each."""

    path: tuple[tuple[int, str], ...]
    index: int


def blocks(func: Func) -> Iterator[tuple[tuple[tuple[int, str], ...], Block]]:
    """Every block and the way to it, outer before inner."""

    def visit(path: tuple[tuple[int, str], ...], block: Block) -> Iterator[Any]:
        yield path, block
        for index, item in enumerate(block.ops):
            for name in item.block_fields:
                yield from visit((*path, (index, name)), getattr(item, name))

    yield from visit((), func.body)


def places(func: Func) -> Iterator[tuple[Place, Op, Block]]:
    """Every op, with its place and its block."""
    for path, block in blocks(func):
        for index, item in enumerate(block.ops):
            yield Place(path, index), item, block


def with_ops(func: Func, path: Sequence[tuple[int, str]], ops: Sequence[Op]) -> Func:
    """The program with another list of ops in one block; types behind follow."""

    def rebuilt(block: Block, rest: Sequence[tuple[int, str]]) -> Block:
        if not rest:
            return Block(tuple(ops), block.args)
        (index, name), *deeper = rest
        item = block.ops[index]
        inner: dict[str, Any] = {name: rebuilt(getattr(item, name), deeper)}
        changed = (*block.ops[:index], replace(item, **inner), *block.ops[index + 1 :])
        return Block(changed, block.args)

    return settled(func.with_body(rebuilt(func.body, path)))


def put(func: Func, place: Place, block: Block, *ops: Op) -> Func:
    """The program in which `ops` stand in the place of one."""
    head, tail = block.ops[: place.index], block.ops[place.index + 1 :]
    return with_ops(func, place.path, (*head, *ops, *tail))


def moved(func: Func, path: Sequence[tuple[int, str]], block: Block, old: int, new: int) -> Func:
    """The program in which the op at `old` stands at `new` once it is taken out."""
    rest = [*block.ops[:old], *block.ops[old + 1 :]]
    rest.insert(new, block.ops[old])
    return with_ops(func, path, rest)


def settled(func: Func) -> Func:
    """Results and uses typed anew where an op infers other types than it bears."""
    mapping: dict[Value, Value] = {}

    def visit(block: Block) -> Block:
        ops = tuple(one(item) for item in block.ops)
        same = all(new is old for new, old in zip(ops, block.ops, strict=True))
        return block if same else Block(ops, block.args)

    def one(item: Op) -> Op:
        new = item.with_operands(mapping) if mapping else item
        inner: dict[str, Any] = {
            name: block
            for name in new.block_fields
            if (block := visit(getattr(new, name))) is not getattr(new, name)
        }
        new = replace(new, **inner) if inner else new
        try:
            types: tuple[Type, ...] = new.infer()
        except _BROKEN:
            return new
        return typed(new, types)

    def typed(item: Op, types: tuple[Type, ...]) -> Op:
        if len(types) != len(item.results):
            return item
        results = []
        for value, type_ in zip(item.results, types, strict=True):
            made = value if value.type == type_ else Value(type_, value.name, value.loc)
            if made is not value:
                mapping[value] = made
            results.append(made)
        same = all(new is old for new, old in zip(results, item.results, strict=True))
        return item if same else replace(item, results=tuple(results))

    return func.with_body(visit(func.body))


def made(item: Op, like: Op, name: str = "mutant") -> Op:
    """A new op with results, in the source line of another."""
    item = replace(item, loc=like.loc)
    return replace(item, results=tuple(Value(type_, name, like.loc) for type_ in item.infer()))


def op_set(item: Op) -> Any:
    """The module of the ops that may stand beside this one."""
    return metal if item.opcode.startswith("metal.") else tile


def is_ordered(item: Op) -> bool:
    """Whether the op accesses memory or communicates, itself or within."""
    return bool(item.effect & ORDERED) or any(
        is_ordered(inner) for block in item.blocks() for inner in block.ops
    )


def uses(item: Op, values: Sequence[Value]) -> bool:
    """Whether the op, or one within it, has any of the values as an operand."""
    return any(value in values for value in item.operands()) or any(
        uses(inner, values) for block in item.blocks() for inner in block.ops
    )
