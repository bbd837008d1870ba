"""Norms that are `mx.fast.rms_norm(x, weight, eps)` and no more; modules that are swapped."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

from metile_mlx.nn.using import EXCHANGED
from metile_mlx.patching.recognition import function_of, returned
from metile_mlx.patching.source import Unreadable, read, rebuilt

# (module, x) -> (weight, eps); x is not looked at.
Form: TypeAlias = Callable[..., Any]
# What the class of a module with swapped operations has among its members.
MARK = "_metile_swapped"


def is_swapped(module: Any) -> bool:
    """Whether a module runs swapped operations now."""
    return MARK in vars(type(module))


def method_of(original: type) -> object:
    """The method that a call of an instance runs; MLX's inside of `metile.nn.using`, too."""
    found = next((vars(c)["__call__"] for c in original.__mro__ if "__call__" in vars(c)), None)
    return getattr(found, EXCHANGED, found)


def form_of(module: Any) -> Form | None:
    """(module, x) -> (weight, eps) of a norm that is `mx.fast.rms_norm` and no more, else None."""
    kind = type(module)
    return norm_form(method_of(kind.__mro__[1] if MARK in vars(kind) else kind))


@lru_cache(maxsize=1024)
def norm_form(method: object) -> Form | None:
    """(self, x) -> (weight, eps) of a method that is only `mx.fast.rms_norm(x, weight, eps)`.

    None for any other. The weight may be an expression, such as Gemma's `1.0 + self.weight`.
    """
    try:
        source = read(method)
    except Unreadable:
        return None
    value, parameters = returned(source), source.parameters
    if not isinstance(value, ast.Call) or len(parameters) != 2 or len(value.args) == 0:
        return None
    given = dict(zip(("x", "weight", "eps"), value.args, strict=False))
    given |= {k.arg: k.value for k in value.keywords if k.arg is not None}
    if function_of(source, value.func) != "rms_norm" or set(given) != {"x", "weight", "eps"}:
        return None
    nodes = (*ast.walk(given["weight"]), *ast.walk(given["eps"]))
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    if not _is_name(given["x"], parameters[1]) or parameters[1] in names:
        return None
    tree = copy.deepcopy(source.tree)
    pair = ast.Tuple(elts=[given["weight"], given["eps"]], ctx=ast.Load())
    tree.body = [ast.copy_location(ast.Return(value=pair), value)]
    return rebuilt(source, tree, {})


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and name == node.id
