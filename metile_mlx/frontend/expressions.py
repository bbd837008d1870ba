"""Expressions of a kernel: each gives a Python constant, an IR value, or something to call."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Sequence
from types import ModuleType
from typing import ClassVar

from metile_mlx.errors import CompileError, Loc, MetileError
from metile_mlx.frontend.branches import chosen, merge
from metile_mlx.frontend.build import Build, Scope
from metile_mlx.frontend.calls import Inline, attribute_of, call_function
from metile_mlx.frontend.definition import Definition, InlineFunction
from metile_mlx.frontend.naming import infix
from metile_mlx.frontend.operators import (
    AND,
    BINARY,
    COMPARE,
    STATIC_COMPARE,
    binary,
    compare,
    fold,
    truth,
    unary,
)
from metile_mlx.frontend.scope import assigned, parameters
from metile_mlx.frontend.source import Node
from metile_mlx.frontend.values import (
    MISSING,
    Unbound,
    as_constant,
    describe,
    is_constant,
    is_number,
    is_static,
)
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import Value, walk
from metile_mlx.ir.lanes import Shared
from metile_mlx.ir.tile import Binary, Select, Tensor

# A block that a condition decides on, its value, and the arrays that are stored to at its end.
Way = tuple[Scope, object, dict[Value, Loc]]


class Expressions:
    """Translates the expressions of one function body.

    Attributes:
        build: the kernel under construction, shared by all inlined bodies.
        definition: the function whose body this is.
        names: its local names and what they hold now.
        stack: the inline functions being inlined, outermost first.
    """

    _handlers: ClassVar[dict[type[ast.AST], str]] = {
        ast.Constant: "_constant",
        ast.Name: "_name",
        ast.Attribute: "_attribute",
        ast.BinOp: "_binop",
        ast.UnaryOp: "_unaryop",
        ast.Compare: "_compare",
        ast.BoolOp: "_boolop",
        ast.IfExp: "_ifexp",
        ast.Call: "_call",
        ast.Tuple: "_tuple",
        ast.Subscript: "_subscript",
        ast.Slice: "_slice",
        ast.JoinedStr: "_joined",
        ast.FormattedValue: "_formatted",
    }

    def __init__(
        self,
        build: Build,
        definition: Definition,
        names: dict[str, object],
        stack: tuple[InlineFunction[..., object], ...] = (),
    ) -> None:
        self.build = build
        self.definition = definition
        self.names = names
        self.stack = stack
        self._locals = frozenset(
            (*parameters(definition.source.node), *assigned(definition.source.node.body))
        )

    def loc(self, node: Node) -> Loc:
        """Where a node stands in the user's file."""
        return self.definition.source.loc(node)

    def value(self, node: ast.expr) -> object:
        """Translate one expression; errors and new ops get its place.

        Raises:
            CompileError: anything a kernel can't contain.
        """
        name = self._handlers.get(type(node))
        if name is None:
            raise self._illegal(node)
        outer = self.build.loc
        self.build.loc = self.loc(node)
        try:
            found: object = getattr(self, name)(node)
            return found
        except MetileError as error:
            if error.loc is None:
                error.loc = self.loc(node)
            raise
        finally:
            self.build.loc = outer

    def inline(self, call: Inline) -> object:
        """Translate the body of an inline function here; statements know how."""
        raise NotImplementedError

    def condition(self, node: ast.expr, where: str) -> bool | Value:
        """A condition: True or False now, or a uniform bool scalar."""
        value = self.value(node)
        outer = self.build.loc
        self.build.loc = self.loc(node)
        try:
            return truth(self.build, value, where)
        except MetileError as error:
            error.loc = error.loc or self.loc(node)
            raise
        finally:
            self.build.loc = outer

    def _illegal(self, node: ast.expr) -> CompileError:
        what, hint = ILLEGAL.get(
            type(node),
            (f"a {type(node).__name__} expression", "docs/language.md lists what is allowed"),
        )
        return CompileError(f"{what} is not allowed in a kernel", self.loc(node), hint)

    def _constant(self, node: ast.Constant) -> object:
        if not is_constant(node.value):
            raise CompileError(f"{node.value!r} is not allowed in a kernel")
        return node.value

    def _name(self, node: ast.Name) -> object:
        if node.id in self.names:
            found = self.names[node.id]
            if isinstance(found, Unbound):
                raise CompileError(found.message, hint=found.hint)
            return found
        if node.id in self._locals:
            raise CompileError(
                f"{node.id!r} is used before it is assigned",
                hint="only statements that are reached assign: an `if` on a constexpr takes one "
                "branch, a loop may run zero times",
            )
        value = self.definition.names.lookup(node.id)
        if value is MISSING:
            raise CompileError(
                f"name {node.id!r} is not defined", hint=_nearest(node.id, self._known())
            )
        return self._usable(node.id, value)

    def _known(self) -> tuple[str, ...]:
        return (*self._locals, *self.definition.names.known())

    def _usable(self, name: str, value: object) -> object:
        """An outside value as a kernel sees it, unless it is data a kernel can't hold (SPEC K1)."""
        value = as_constant(value)
        if is_constant(value) or callable(value) or isinstance(value, ModuleType):
            return value
        raise CompileError(
            f"{name!r} is {describe(value)}; from outside a kernel takes int, float, bool, str, "
            "dtypes, ThreadLayouts, tuples of these, and metile.inline functions",
            hint="pass it as an argument: an array parameter, or a metile.constexpr",
        )

    def _attribute(self, node: ast.Attribute) -> object:
        base = self.value(node.value)
        if isinstance(base, ModuleType):
            found = getattr(base, node.attr, MISSING)
            if found is MISSING:
                raise CompileError(
                    f"module {base.__name__!r} has no {node.attr!r}",
                    hint=_nearest(node.attr, tuple(dir(base))),
                )
            return self._usable(f"{base.__name__}.{node.attr}", found)
        found = attribute_of(base, node.attr)
        if isinstance(base, type):
            return self._usable(f"{base.__name__}.{node.attr}", found)
        return found

    def _binop(self, node: ast.BinOp) -> object:
        lhs, rhs = self.value(node.left), self.value(node.right)
        operator = BINARY.get(type(node.op))
        if operator is None:
            raise CompileError(
                "@ is not allowed in a kernel", hint="use metile.dot for matrix products"
            )
        return binary(self.build, operator, lhs, rhs)

    def _unaryop(self, node: ast.UnaryOp) -> object:
        return unary(self.build, node.op, self.value(node.operand))

    def _compare(self, node: ast.Compare) -> object:
        """`a < b < c` is `(a < b) & (b < c)`, each operand evaluated once."""
        lhs = self.value(node.left)
        result: object = True
        for op, right in zip(node.ops, node.comparators, strict=True):
            rhs = self.value(right) if result is True else self._behind(right)
            single = self._comparison(op, lhs, rhs)
            result = single if result is True else self._both(result, single)
            if result is False:
                return False
            lhs = rhs
        return result

    def _behind(self, node: ast.expr) -> object:
        """An operand behind the first comparison of a chain, which Python may not evaluate."""
        scope, value, _ = self._way(node)
        if scope.writes():
            raise CompileError(
                "a function that stores stands behind the first comparison of a chain",
                self.loc(node),
                "write the comparisons one by one: a < b and b < c",
            )
        self.build.splice(scope)
        return value

    def _comparison(self, op: ast.cmpop, lhs: object, rhs: object) -> object:
        static = STATIC_COMPARE.get(type(op))
        if static is None:
            return compare(self.build, COMPARE[type(op)], lhs, rhs)
        if isinstance(op, ast.Is | ast.IsNot) and (lhs is None or rhs is None):
            return static(lhs, rhs)
        if not is_static(lhs) or not is_static(rhs):
            raise CompileError(
                "`is` and `in` compare compile-time constants only", hint="use == or a mask"
            )
        return fold(static, lhs, rhs)

    def _both(self, lhs: object, rhs: object) -> object:
        return rhs if rhs is False else binary(self.build, AND, lhs, rhs)

    def _boolop(self, node: ast.BoolOp) -> object:
        """Python's short circuit on constants; on uniform bool scalars both sides are computed.

        One that writes memory, through an inline function, runs only where Python would run it.
        """
        is_and = isinstance(node.op, ast.And)
        result: object = is_and
        for part in node.values:
            if isinstance(result, Value):
                way = self._way(part)
                if way[0].writes():
                    result = self._decided(is_and, result, way, part)
                    if result is not is_and and is_static(result):
                        return result
                    continue
                self.build.splice(way[0])
                value = way[1]
            else:
                value = self.value(part)
            if is_static(value):
                if bool(value) is not is_and:
                    return value if is_static(result) else not is_and
                result = value if is_static(result) else result
                continue
            result = self._join(is_and, result, value, part)
        return result

    def _decided(self, is_and: bool, left: Value, way: Way, part: ast.expr) -> object:
        """`left and right`, where `right` runs only if `left` leaves it open."""
        scope, value, stored = way
        with self.build.inside(scope):
            right = self._truth(is_and, value, part)
        with self.build.inside() as short:
            pass
        ways = [(scope, right, stored), (short, not is_and, self.build.tensors.stored)]
        return self._branch(left, "and" if is_and else "or", ways if is_and else ways[::-1])

    def _truth(self, is_and: bool, value: object, part: ast.expr) -> bool | Value:
        try:
            return truth(self.build, value, "`and`" if is_and else "`or`")
        except MetileError as error:
            error.loc = error.loc or self.loc(part)
            raise

    def _join(self, is_and: bool, left: object, right: object, part: ast.expr) -> Value | bool:
        condition = self._truth(is_and, right, part)
        if not isinstance(left, Value) or not isinstance(condition, Value):
            return condition
        kind, word = (BinaryKind.AND, "and") if is_and else (BinaryKind.OR, "or")
        return self.build.add(Binary(kind, left, condition), infix(word, left, condition))

    def _ifexp(self, node: ast.IfExp) -> object:
        condition = self.condition(node.test, "a conditional expression")
        if isinstance(condition, bool):
            return self.value(node.body if condition else node.orelse)
        ways = [self._way(part) for part in (node.body, node.orelse)]
        for part, (_, value, _) in zip((node.body, node.orelse), ways, strict=True):
            if not is_number(value):
                raise CompileError(
                    f"a conditional expression on a runtime value can't give {describe(value)}",
                    self.loc(part),
                    "both sides have to be tiles, scalars or numbers",
                )
        if any(scope.writes() for scope, _, _ in ways):
            return self._branch(condition, "choice", ways)
        for scope, _, _ in ways:
            self.build.splice(scope)
        values = (ways[0][1], ways[1][1])
        dtype = chosen(self.build, values)
        on_true, on_false = (self.build.lift(value, dtype) for value in values)
        return self.build.add(Select(condition, on_true, on_false), "choice")

    def _way(self, node: ast.expr) -> Way:
        """An expression that a runtime condition decides on, in a block of its own."""
        tensors = self.build.tensors
        before = dict(tensors.stored)
        with self.build.inside(is_branch=False) as scope:
            value = self.value(node)
        stored, tensors.stored = tensors.stored, before
        return scope, value, stored

    def _branch(self, condition: Value, name: str, ways: Sequence[Way]) -> object:
        """The value of one of two ways, of which only that one runs."""
        then, otherwise = ways
        for item in (item for scope, _, _ in ways for item in walk(scope.builder.block())):
            if isinstance(item, Tensor | Shared):
                raise CompileError(
                    f"{item.result.name} is declared in what may not run, beside a store; tensors "
                    "are declared at kernel entry",
                    item.loc,
                    "move the declaration to the top of the kernel",
                )
        self.build.tensors.stored = {**otherwise[2], **then[2]}
        sides = [(scope, {name: value}) for scope, value, _ in ways]
        return merge(self.build, condition, (name,), sides, self.build.loc.line)[name]

    def _call(self, node: ast.Call) -> object:
        callee = self.value(node.func)
        args: list[object] = []
        places: list[Loc] = []
        for arg in node.args:
            if isinstance(arg, ast.Starred):
                parts = self._expanded(arg)
                args += parts
                places += [self.loc(arg)] * len(parts)
            else:
                args.append(self.value(arg))
                places.append(self.loc(arg))
        kwargs: dict[str, object] = {}
        keyword_places: dict[str, Loc] = {}
        for keyword in node.keywords:
            if keyword.arg is None:
                raise CompileError(
                    "** is not allowed in a call", self.loc(keyword.value), "name each argument"
                )
            kwargs[keyword.arg] = self.value(keyword.value)
            keyword_places[keyword.arg] = self.loc(keyword.value)
        self.build.loc = self.loc(node)
        result = call_function(
            self.build, callee, args, kwargs, places, keyword_places, self.loc(node)
        )
        return self.inline(result) if isinstance(result, Inline) else result

    def _expanded(self, node: ast.Starred) -> list[object]:
        value = self.value(node.value)
        if not isinstance(value, tuple):
            raise CompileError(f"* needs a tuple, got {describe(value)}", self.loc(node))
        return list(value)

    def _tuple(self, node: ast.Tuple) -> tuple[object, ...]:
        parts: list[object] = []
        for element_ in node.elts:
            if isinstance(element_, ast.Starred):
                parts += self._expanded(element_)
            else:
                parts.append(self.value(element_))
        return tuple(parts)

    def _subscript(self, node: ast.Subscript) -> object:
        base, index = self.value(node.value), self.value(node.slice)
        if isinstance(base, tuple | str | range) and (
            isinstance(index, slice) or (is_static(index) and not isinstance(index, tuple))
        ):
            return fold(lambda a, i: a[i], base, index)
        if isinstance(base, tuple | str | range):
            raise CompileError(
                f"a tuple index is known at compile time, got {describe(index)}",
                self.loc(node.slice),
            )
        raise CompileError(
            f"{describe(base)} can't be indexed with []",
            hint="declare a view and use tensor.load(indices); tiles have no element access",
        )

    def _slice(self, node: ast.Slice) -> slice:
        parts = [None if p is None else self.value(p) for p in (node.lower, node.upper, node.step)]
        if not all(is_static(part) for part in parts):
            raise CompileError("slice bounds are known at compile time")
        return slice(*parts)

    def _joined(self, node: ast.JoinedStr) -> str:
        return "".join(str(self.value(part)) for part in node.values)

    def _formatted(self, node: ast.FormattedValue) -> str:
        value = self.value(node.value)
        if not is_static(value):
            raise CompileError(
                f"an f-string shows compile-time constants, not {describe(value)}",
                self.loc(node.value),
            )
        text = {-1: value, 115: str(value), 114: repr(value), 97: ascii(value)}[node.conversion]
        spec = "" if node.format_spec is None else str(self.value(node.format_spec))
        return str(fold(format, text, spec))


def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else None


ILLEGAL: dict[type[ast.expr], tuple[str, str]] = {
    ast.Lambda: ("a lambda", "write a function and mark it @metile.inline"),
    ast.ListComp: ("a comprehension", "write a `for` loop over range(constexpr)"),
    ast.SetComp: ("a comprehension", "write a `for` loop over range(constexpr)"),
    ast.DictComp: ("a comprehension", "write a `for` loop over range(constexpr)"),
    ast.GeneratorExp: ("a comprehension", "write a `for` loop over range(constexpr)"),
    ast.List: ("a list", "use a tuple: (a, b)"),
    ast.Set: ("a set", "use a tuple: (a, b)"),
    ast.Dict: ("a dict", "use separate names or a tuple"),
    ast.NamedExpr: ("an assignment inside an expression", "assign in a statement of its own"),
    ast.Yield: ("yield", "store results with tensor.store"),
    ast.YieldFrom: ("yield", "store results with tensor.store"),
    ast.Await: ("await", "a kernel is plain code"),
    ast.Starred: ("a starred expression", "name each value"),
}
