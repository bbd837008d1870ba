"""What an expression or a method of a model computes, as far as it is one of MLX's operations.

A name counts only if it means MLX's function now, where the method would look it up; a local
variable never does.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from types import FunctionType

from metile_mlx.nn.optional import mlx_nn
from metile_mlx.patching.source import Source, Unreadable, read, unwrapped
from metile_mlx.runtime.optional import mx

GATES = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_approx": "geglu_approx",
    "gelu_fast_approx": "geglu_fast_approx",
}


def known() -> list[tuple[object, str]]:
    """The functions of MLX that a method may call, and our names for them."""
    return [
        (mx.fast.rms_norm, "rms_norm"),
        (mx.fast.layer_norm, "layer_norm"),
        (mx.addmm, "addmm"),
        (mlx_nn.silu, "silu"),
        (mlx_nn.gelu, "gelu"),
        (mlx_nn.gelu_approx, "gelu_approx"),
        (mlx_nn.gelu_fast_approx, "gelu_fast_approx"),
    ]


def returned(source: Source) -> ast.expr | None:
    """The expression that a function of a single `return` returns."""
    body = [s for s in source.tree.body if not _is_docstring(s)]
    if len(body) == 1 and isinstance(body[0], ast.Return):
        return body[0].value
    return None


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def function_of(source: Source, node: ast.expr) -> str | None:
    """Our name of the MLX function that an expression stands for."""
    value = source.value(node)
    return next((name for item, name in known() if item is value), None)


@dataclass(frozen=True)
class Product:
    """f(gate) * up, or up * f(gate): `first` says which of the two is evaluated first."""

    function: str
    gate: ast.expr
    up: ast.expr
    gate_is_first: bool


def product(source: Source, node: ast.expr) -> Product | None:
    """A product of an activation and something, here or in the function that is called."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for call, up, is_first in ((left, right, True), (right, left, False)):
                match call:
                    case ast.Call(func=func, args=[gate], keywords=[]):
                        name = GATES.get(function_of(source, func) or "")
                        if name is not None and not isinstance(gate, ast.Starred):
                            return Product(name, gate, up, is_first)
                    case _:
                        pass
        case ast.Call(func=func, args=[first, second], keywords=[]):
            return _called_product(source, func, first, second)
        case _:
            pass
    return None


def _called_product(
    source: Source, func: ast.expr, first: ast.expr, second: ast.expr
) -> Product | None:
    """The product that a function of two parameters returns, with what it is called with."""
    called = unwrapped(source.value(func))
    if not isinstance(called, FunctionType) or any(
        isinstance(a, ast.Starred) for a in (first, second)
    ):
        return None
    try:
        inner = read(called)
    except Unreadable:
        return None
    value, parameters = returned(inner), inner.parameters
    found = None if value is None or len(parameters) != 2 else product(inner, value)
    if found is None or not isinstance(found.gate, ast.Name):
        return None
    if not isinstance(found.up, ast.Name):
        return None
    given = dict(zip(parameters, (first, second), strict=True))
    if {found.gate.id, found.up.id} != set(parameters):
        return None
    gate, up = given[found.gate.id], given[found.up.id]
    return Product(found.function, gate, up, gate is first)
