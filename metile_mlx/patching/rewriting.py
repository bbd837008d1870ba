"""Which operations of a method are ours to swap, and the method with them swapped.

What is looked for, in the syntax tree, whatever classes and attributes are called:

    norm        a call of `mx.fast.rms_norm` or `mx.fast.layer_norm`
    gate        f(a) * b or b * f(a), with f MLX's silu or one of its gelus; also behind a function
                of two parameters that returns just that, as mlx-lm's `swiglu`
    activation  a call of such an f alone
    linear      `x @ w.T`, or a call of `mx.addmm(b, x, w.T)`: mlx.nn.Linear
    residual    `h = a + b` with `self.norm(h)` in a later statement of the same block, and h only
                read in between, as an operand or for its attributes; or `self.norm(a + b)`

All else in the method stays as it is; inner functions, lambdas and comprehensions are left alone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import TypeVar

from metile_mlx.patching.effects import changes, has_attribute, may_leave, position, runs_before
from metile_mlx.patching.operations import Operations
from metile_mlx.patching.recognition import function_of, product
from metile_mlx.patching.source import Source, read, rebuilt

KINDS = ("norm", "gate", "activation", "linear", "residual")
NORMS = ("rms_norm", "layer_norm")
RESIDUAL = "add_norm"
_Node = TypeVar("_Node", bound=ast.AST)
_PREFIX = "metile_swapped_"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Site:
    """One place in a method.

    Attributes:
        kind: one of KINDS.
        function: what is called instead, a name in Operations.
        text: the expression as written.
        where: `file.py:line`.
        norm: of a residual, the attribute that holds the norm.
    """

    kind: str
    function: str
    text: str
    where: str
    norm: str | None = None


@dataclass(frozen=True)
class Rewritten:
    """A method with its sites; `function` is None where there are none."""

    function: FunctionType | None
    sites: tuple[Site, ...]


def rewritten(
    method: object, kinds: Collection[str], operations: Operations, norms: Collection[str]
) -> Rewritten:
    """The method with these kinds of operations swapped.

    Args:
        method: the `__call__` of a module.
        kinds: of KINDS.
        operations: what is called instead; what it lacks is not swapped.
        norms: attributes of the module that hold norms which a sum can be computed with.

    Raises:
        Unreadable: its source is not there, or not what runs.
    """
    source = read(method)
    rewriter = _Rewriter(source, kinds, operations, norms)
    tree = copy.deepcopy(source.tree)
    rewriter.generic_visit(tree)
    if not rewriter.sites:
        return Rewritten(None, ())
    made = rebuilt(
        source, tree, {_PREFIX + name: operations.functions[name] for name in rewriter.used}
    )
    return Rewritten(made, tuple(rewriter.sites))


class _Rewriter(ast.NodeTransformer):
    """Swaps what it finds, and notes where."""

    def __init__(
        self,
        source: Source,
        kinds: Collection[str],
        operations: Operations,
        norms: Collection[str],
    ) -> None:
        self._source = source
        self._norms = norms
        self._kinds = kinds
        self._operations = operations
        self._self = source.parameters[0] if source.parameters else None
        names = (node for node in ast.walk(source.tree) if isinstance(node, ast.Name))
        self._stored = {node.id for node in names if _is_stored(node)}
        self.used: set[str] = set()
        self.sites: list[Site] = []

    def visit(self, node: ast.AST) -> ast.AST:
        """Not into other scopes, in which names mean something else."""
        if isinstance(node, (*_SCOPES, *_COMPREHENSIONS)):
            return node
        made: ast.AST = super().visit(node)
        return made

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Residuals of each block, then everything in it."""
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                self._residuals(statements)
        return super().generic_visit(node)

    def _residuals(self, block: list[ast.stmt]) -> None:
        """Sums and norms of statements that run one after the other."""
        if not self._is_wanted("residual", RESIDUAL) or self._self in self._stored:
            return
        for index, statement in enumerate(block):
            match statement:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.BinOp(op=ast.Add()) as value
                ):
                    norm = self._norm_of(name, block[index + 1 :])
                case _:
                    continue
            if norm is None:
                continue
            use, attribute = norm
            normed = f"{_PREFIX}{name}_normed"
            text = f"{name} = {ast.unparse(value)}; {ast.unparse(use)}"
            self._note("residual", RESIDUAL, statement, text, attribute.attr)
            both = ast.Tuple(
                elts=[ast.Name(id=n, ctx=ast.Store()) for n in (name, normed)], ctx=ast.Store()
            )
            call = self._call(RESIDUAL, [value.left, value.right, attribute], [])
            block[index] = _at(ast.Assign(targets=[both], value=call), statement)
            for later in block[index + 1 :]:
                _replace(later, use, _at(ast.Name(id=normed, ctx=ast.Load()), use))

    def _norm_of(self, name: str, later: list[ast.stmt]) -> tuple[ast.Call, ast.Attribute] | None:
        """The first `self.norm(name)` in a simple statement, if it has to see the sum as it was."""
        code = self._source.function.__code__
        if name not in code.co_varnames or name in code.co_cellvars:
            return None
        for index, statement in enumerate(later):
            changing = [*changes(statement, name)]
            uses = self._uses(name, statement)
            if uses:
                call, norm = min(uses, key=lambda use: position(use[0]))
                between = later[:index]
                is_changed = any(
                    node is not call.args[0] and runs_before(node, call, statement)
                    for node in changing
                ) or any(has_attribute(each, norm.attr) for each in between)
                return None if is_changed else (call, norm)
            if changing or may_leave(statement):
                return None
        return None

    def _uses(self, name: str, statement: ast.stmt) -> list[tuple[ast.Call, ast.Attribute]]:
        """Calls of norms with `name` alone."""
        found = []
        if isinstance(statement, (ast.Assign, ast.Return, ast.Expr)):
            for node in _evaluated(statement):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id=owner)) as norm,
                        args=[ast.Name(id=given)],
                        keywords=[],
                    ) if self._is_norm(owner, norm) and given == name:
                        found.append((node, norm))
        return found

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        return self._gated(node) or self._linear(node) or self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        found = self._gated(node) or self._added(node) or self._linear(node)
        if found is not None:
            return found
        name = function_of(self._source, node.func)
        if name not in (None, "addmm") and self._is_wanted(
            "norm" if name in NORMS else "activation", name
        ):
            self._note("norm" if name in NORMS else "activation", name, node, ast.unparse(node))
            node.func = ast.copy_location(self._name(name), node.func)
        return self.generic_visit(node)

    def _gated(self, node: ast.expr) -> ast.AST | None:
        found = product(self._source, node)
        if found is None or not self._is_wanted("gate", found.function):
            return None
        self._note("gate", found.function, node, ast.unparse(node))
        # As keywords: arguments are evaluated in the order in which they stand.
        given = [("gate", found.gate), ("up", found.up)]
        if not found.gate_is_first:
            given.reverse()
        made = self._call(found.function, [], [ast.keyword(arg=a, value=v) for a, v in given])
        return self.generic_visit(_at(made, node))

    def _added(self, node: ast.Call) -> ast.AST | None:
        """`self.norm(a + b)`."""
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner)) as norm,
                args=[ast.BinOp(left=a, op=ast.Add(), right=b)],
                keywords=[],
            ) if self._is_norm(owner, norm) and self._is_wanted("residual", RESIDUAL):
                self._note("residual", RESIDUAL, node, ast.unparse(node), norm.attr)
                pair = self._call(RESIDUAL, [a, b, norm], [])
                second = ast.Subscript(value=pair, slice=ast.Constant(value=1), ctx=ast.Load())
                return self.generic_visit(_at(second, node))
        return None

    def _linear(self, node: ast.expr) -> ast.AST | None:
        """`x @ w.T` and `mx.addmm(b, x, w.T)`, with the weight itself handed over."""
        match node:
            case ast.BinOp(left=x, op=ast.MatMult(), right=ast.Attribute(value=w, attr="T")):
                name, arguments = "linear", [x, w]
            case ast.Call(func=f, args=[b, x, ast.Attribute(value=w, attr="T")], keywords=[]) if (
                function_of(self._source, f) == "addmm"
            ):
                name, arguments = "addmm", [b, x, w]
            case _:
                return None
        if not self._is_wanted("linear", name) or any(
            isinstance(a, ast.Starred) for a in arguments
        ):
            return None
        self._note("linear", name, node, ast.unparse(node))
        return self.generic_visit(_at(self._call(name, arguments, []), node))

    def _is_norm(self, owner: str, norm: ast.Attribute) -> bool:
        return owner == self._self and norm.attr in self._norms

    def _is_wanted(self, kind: str, function: str) -> bool:
        return kind in self._kinds and function in self._operations.functions

    def _note(
        self,
        kind: str,
        function: str,
        node: ast.expr | ast.stmt,
        text: str,
        norm: str | None = None,
    ) -> None:
        self.sites.append(Site(kind, function, text, self._source.place(node), norm))

    def _call(
        self, function: str, arguments: list[ast.expr], keywords: list[ast.keyword]
    ) -> ast.Call:
        return ast.Call(func=self._name(function), args=arguments, keywords=keywords)

    def _name(self, function: str) -> ast.Name:
        self.used.add(function)
        return ast.Name(id=_PREFIX + function, ctx=ast.Load())


def _is_stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)


def _evaluated(statement: ast.stmt) -> Iterator[ast.AST]:
    """Nodes of a simple statement that are evaluated whenever it is, and once.

    None where it names a value on the way: that may be the very name that is looked for.
    """
    if any(isinstance(node, ast.NamedExpr) for node in ast.walk(statement)):
        return
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*_SCOPES, *_COMPREHENSIONS, ast.IfExp, ast.BoolOp)):
            waiting += ast.iter_child_nodes(node)


def _at(node: _Node, place: ast.expr | ast.stmt) -> _Node:
    """The node, at the place of another."""
    return ast.fix_missing_locations(ast.copy_location(node, place))


def _replace(root: ast.AST, old: ast.AST, new: ast.AST) -> None:
    """Puts one node in the place of another, anywhere below `root`."""
    for node in ast.walk(root):
        for field, value in ast.iter_fields(node):
            if value is old:
                setattr(node, field, new)
            elif isinstance(value, list):
                setattr(node, field, [new if item is old else item for item in value])
