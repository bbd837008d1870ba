"""Which parameters a kernel uses as arrays, by syntax: the others may be lazy scalars.

What is loaded from is followed back through names, sums (`x + offsets`) and inline functions. In a
sum the first term that leads to a parameter is the array: `x + n * 32` says nothing of `n`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache

from metile_mlx.frontend.definition import Definition, InlineFunction
from metile_mlx.frontend.language.automatic import load, store
from metile_mlx.frontend.language.tensors import tensor
from metile_mlx.frontend.values import MISSING


@lru_cache(maxsize=1024)
def array_params(definition: Definition) -> frozenset[str]:
    """Parameters that are declared as tensors, or loaded and stored through, also in helpers.

    A size-one array for any other parameter is a runtime scalar that stays lazy (SPEC X10).
    """
    return _Usage(definition, ()).arrays()


@lru_cache(maxsize=1024)
def may_be_arrays(definition: Definition) -> frozenset[str]:
    """Parameters that some expression with an array in it may mean: no others are arrays."""
    return _Usage(definition, ()).mentioned()


class _Usage:
    """One function.

    Args:
        definition: the function.
        outer: those that call it, which it does not call: a kernel is refused for recursion later.
    """

    def __init__(self, definition: Definition, outer: tuple[Definition, ...]) -> None:
        self._definition = definition
        self._path = (*outer, definition)
        self._params = {param.name for param in definition.params}
        self._calls: list[ast.Call] = []
        # What each name is assigned, or runs over.
        self._values: dict[str, list[ast.expr]] = {}
        for node in ast.walk(definition.source.node):
            match node:
                case ast.Call():
                    self._calls.append(node)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._assign(target, value)
                case (
                    ast.For(target=target, iter=value)
                    | ast.AnnAssign(target=target, value=ast.expr() as value)
                ):
                    self._assign(target, value)
                case _:
                    pass

    def arrays(self) -> frozenset[str]:
        found: set[str] = set()
        for call in self._calls:
            for part in self._pointers(call):
                found.update(self._bases(part, frozenset()))
        return frozenset(found & self._params)

    def mentioned(self) -> frozenset[str]:
        """Every name below what may be a pointer."""
        parts = [part for call in self._calls for part in self._pointers(call, unknown=True)]
        found: set[str] = set()
        while parts:
            for node in ast.walk(parts.pop()):
                if isinstance(node, ast.Name) and node.id not in found:
                    found.add(node.id)
                    parts += self._values.get(node.id, ())
        return frozenset(found & self._params)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for inner, part in zip(target.elts, value.elts, strict=False):
                self._assign(inner, part)
            return
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self._values.setdefault(node.id, []).append(value)

    def _pointers(self, call: ast.Call, unknown: bool = False) -> Iterator[ast.expr]:
        """The arguments that stand for arrays; with `unknown` all of a function that is given."""
        callee = self._resolve(call.func)
        if callee in (tensor, load, store):
            yield from call.args[:1]
            yield from (k.value for k in call.keywords if k.arg in ("param", "pointer"))
        elif isinstance(callee, InlineFunction) and callee.definition not in self._path:
            inner = _Usage(callee.definition, self._path)
            wanted = inner.mentioned() if unknown else inner.arrays()
            names = [param.name for param in callee.definition.params]
            given = dict(zip(names, call.args, strict=False))
            given |= {k.arg: k.value for k in call.keywords if k.arg is not None}
            yield from (value for name, value in given.items() if name in wanted)
        elif unknown and (isinstance(callee, InlineFunction) or self._is_param(call.func)):
            yield from (*call.args, *(k.value for k in call.keywords))

    def _bases(self, node: ast.expr, seen: frozenset[str]) -> set[str]:
        """The parameters that an expression is, plus an offset or not."""
        match node:
            case ast.Name(id=name) if name not in seen:
                found = {name} & self._params
                return found | self._of(self._values.get(name, ()), seen | {name})
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return self._bases(left, seen) or self._bases(right, seen)
            case ast.IfExp(body=body, orelse=other):
                return self._of((body, other), seen)
            case ast.Tuple(elts=parts):
                return self._of(parts, seen)
            case ast.Subscript(value=value):
                return self._bases(value, seen)
            case _:
                return set()

    def _of(self, nodes: Iterable[ast.expr], seen: frozenset[str]) -> set[str]:
        return {name for node in nodes for name in self._bases(node, seen)}

    def _is_param(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._params

    def _resolve(self, node: ast.expr) -> object:
        """The object a called name means at present; MISSING for what is not a dotted name."""
        if isinstance(node, ast.Name):
            return MISSING if self._is_param(node) else self._definition.names.lookup(node.id)
        if isinstance(node, ast.Attribute):
            owner = self._resolve(node.value)
            return getattr(owner, node.attr, MISSING) if owner is not MISSING else MISSING
        return MISSING
