"""Names by syntax alone: what a block assigns, what a function takes from outside (SPEC K1, K5)."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A name from outside the function and the attributes read from it: `config.tiles.SIZE`."""

    root: str
    attributes: tuple[str, ...] = ()


def assigned(statements: Iterable[ast.stmt]) -> tuple[str, ...]:
    """Every name the statements may bind, in order of appearance."""
    return tuple(dict.fromkeys(name.id for name in bindings(statements)))


def bindings(statements: Iterable[ast.stmt]) -> Iterator[ast.Name]:
    """Every place where the statements may bind a name, in order of appearance."""
    for statement in statements:
        for node in _evaluated(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node


def parameters(function: ast.FunctionDef) -> tuple[str, ...]:
    """Names of all parameters, `*args` and `**kwargs` included."""
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    every += [arg for arg in (args.vararg, args.kwarg) if arg is not None]
    return tuple(arg.arg for arg in every)


def references(function: ast.FunctionDef) -> tuple[Reference, ...]:
    """What the body reads from outside, with the attribute chains; annotations don't count."""
    local = {*parameters(function), *assigned(function.body)}
    found: dict[Reference, None] = {}
    for statement in function.body:
        for item in _chains(statement):
            if item.root not in local:
                found.setdefault(item)
    return tuple(found)


def chain(node: ast.expr) -> Reference | None:
    """`a.b.c` as a Reference; None for any other expression."""
    attributes: list[str] = []
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    return Reference(node.id, tuple(reversed(attributes))) if isinstance(node, ast.Name) else None


def _chains(node: ast.AST) -> Iterator[Reference]:
    if isinstance(node, ast.expr) and (found := chain(node)) is not None:
        yield found
        return
    for child in _children(node):
        yield from _chains(child)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Direct children, without the annotation of an annotated assignment."""
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.AnnAssign) and child is node.annotation):
            yield child


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in _children(node):
        yield from _evaluated(child)
