"""Which parameters a kernel uses as arrays, by syntax: the others may be lazy scalars."""

from __future__ import annotations

import ast
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
    found: set[str] = set()
    for node in ast.walk(definition.source.node):
        if isinstance(node, ast.Call):
            found.update(_arrays(definition, node))
    return frozenset(found & {param.name for param in definition.params})


def _arrays(definition: Definition, call: ast.Call) -> set[str]:
    callee = _resolve(definition, call.func)
    if callee in (tensor, load, store):
        first = call.args[:1] or [k.value for k in call.keywords if k.arg in ("param", "pointer")]
        return {n.id for part in first for n in ast.walk(part) if isinstance(n, ast.Name)}
    if not isinstance(callee, InlineFunction):
        return set()
    inner = array_params(callee.definition)
    names = [param.name for param in callee.definition.params]
    given = [*zip(names, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)]
    return {value.id for name, value in given if name in inner and isinstance(value, ast.Name)}


def _resolve(definition: Definition, node: ast.expr) -> object:
    """The object a called name means at present; MISSING for what is not a dotted name."""
    if isinstance(node, ast.Name):
        return definition.names.lookup(node.id)
    if isinstance(node, ast.Attribute):
        owner = _resolve(definition, node.value)
        return getattr(owner, node.attr, MISSING) if owner is not MISSING else MISSING
    return MISSING
