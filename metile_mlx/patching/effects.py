"""Whether code that runs may change the array that a local variable holds.

MLX's arrays change in place: by `h[mask] = 0`, by `y = h; y += 1`, in any function that is given
`h`. Only what can't hand the array on is harmless: operands, and reading attributes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_OPERATORS = (ast.BinOp, ast.UnaryOp, ast.Compare)
# Strings of these are no local variables of the function.
_OTHER_NAMES = (ast.Name, ast.Attribute, ast.keyword, ast.arg, ast.Constant)
_LEAVING = (ast.Return, ast.Break, ast.Continue)


def changes(root: ast.stmt, name: str) -> Iterator[ast.AST]:
    """Nodes of a statement that bind `name`, or let its array go where it may be changed."""
    for node in ast.walk(root):
        binds = any(value == name for _, value in ast.iter_fields(node))
        if binds and not isinstance(node, _OTHER_NAMES):
            yield node
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Name) and child.id == name and not _only_read(child, node):
                yield child


def may_leave(root: ast.stmt) -> bool:
    """Whether what follows a statement may not run after it."""
    return any(isinstance(node, _LEAVING) for node in ast.walk(root))


def has_attribute(root: ast.stmt, name: str) -> bool:
    """Whether a statement says `.name` anywhere."""
    return any(isinstance(node, ast.Attribute) and node.attr == name for node in ast.walk(root))


def runs_before(node: ast.AST, call: ast.Call, statement: ast.stmt) -> bool:
    """Whether a node may be evaluated before a call in the same simple statement.

    Python goes from left to right, but takes `*arguments` before keywords that stand before them.
    """
    if any(isinstance(each, ast.Starred) for each in ast.walk(statement)):
        return True
    return position(node) < position(call)


def position(node: ast.AST) -> tuple[int, int]:
    """Where a node begins."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _only_read(child: ast.Name, parent: ast.AST) -> bool:
    if not isinstance(child.ctx, ast.Load):
        return False
    if isinstance(parent, ast.Attribute):
        # `h.__iadd__` is the way in place; the named methods of arrays return others.
        return isinstance(parent.ctx, ast.Load) and not parent.attr.startswith("__")
    return isinstance(parent, _OPERATORS)
