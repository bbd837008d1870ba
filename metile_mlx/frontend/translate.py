"""From a kernel's syntax tree to `Func` over tiles: statements, branches, unrolled loops, inlining.

Nothing of the kernel runs. Names hold Python constants or IR values; constants compute in Python as
the translation goes, so an `if` on a constexpr takes one branch and a `for` over `range` unrolls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from typing import ClassVar

from metile_mlx.analysis.fills import check_fills
from metile_mlx.analysis.one_element import check_stores
from metile_mlx.dtypes import i32
from metile_mlx.errors import CompileError, Loc, MetileError, UnsupportedError
from metile_mlx.frontend.branches import merge
from metile_mlx.frontend.build import Build, OwnScalars, Scope
from metile_mlx.frontend.calls import Inline
from metile_mlx.frontend.definition import Definition
from metile_mlx.frontend.expressions import Expressions
from metile_mlx.frontend.loops import Carried, TileRange
from metile_mlx.frontend.operators import BINARY, binary
from metile_mlx.frontend.scope import assigned
from metile_mlx.frontend.values import (
    ArraySpec,
    ScalarSpec,
    Unbound,
    as_constant,
    describe,
    is_constant,
    is_static,
)
from metile_mlx.ir.core import Block, Func, Value
from metile_mlx.ir.tile import Load, Tensor
from metile_mlx.ir.types import PointerType, ScalarType

MAX_ITERATIONS = 4096
"""An unrolled loop longer than this is taken for a mistake."""


class Flow(Enum):
    """How a block of statements was left; known at compile time."""

    NEXT = auto()
    BREAK = auto()
    CONTINUE = auto()
    RETURN = auto()


def translate(
    definition: Definition,
    specs: Mapping[str, ArraySpec | ScalarSpec],
    constexprs: Mapping[str, object],
) -> Func:
    """A kernel for one specialisation, at Stage.TILE (SPEC K1-K5).

    Args:
        definition: the kernel.
        specs: dtype of each runtime parameter, by name.
        constexprs: value of each compile-time parameter, by name.

    Raises:
        CompileError: what the kernel contains can't be translated; carries the user's line.
        UnsupportedError: it is legal and not available yet.
    """
    params: list[Value] = []
    names: dict[str, object] = {}
    lazy: list[Value] = []
    for param in definition.params:
        if param.is_constexpr:
            names[param.name] = _constexpr(param.name, constexprs[param.name], param.loc)
            continue
        spec = specs[param.name]
        is_lazy = isinstance(spec, ScalarSpec) and spec.lazy
        is_array = isinstance(spec, ArraySpec) or is_lazy
        type_ = PointerType(spec.dtype) if is_array else ScalarType(spec.dtype)
        value = Value(type_, param.name, param.loc)
        params.append(value)
        names[param.name] = value
        if is_lazy:
            lazy.append(value)
    build = Build(definition.loc, tuple(params))
    for value in lazy:
        names[value.name] = _load_scalar(build, value)
    Statements(build, definition, names).run(definition.source.node.body)
    body = Block((*build.entry.ops, *build.ops))
    func = Func(definition.name, (*params, *build.sizes.values()), body, definition.loc)
    check_fills(func)
    check_stores(func)
    return func


def _load_scalar(build: Build, array: Value) -> Value:
    """A scalar that is still an array, read from its only element by every program."""
    build.loc = array.loc
    one, zero = build.constant(1, i32), build.constant(0, i32)
    view = build.add(Tensor(array, (one,), (one,), "read"), array.name)
    scalar = build.add(Load(view, (zero,), given=True), array.name)
    build.lazy_scalars.add(scalar)
    return scalar


def _constexpr(name: str, value: object, loc: Loc) -> object:
    held = as_constant(value)
    if is_constant(held) or callable(held):
        return held
    raise CompileError(
        f"constexpr {name!r} is {describe(held)}; it can be int, float, bool, str, None, a dtype, "
        "a ThreadLayout, a tuple of these, or a metile.inline function",
        loc,
        "pass arrays and runtime values as plain parameters",
    )


class Statements(Expressions):
    """Translates the statements of one function body."""

    _statements: ClassVar[dict[type[ast.stmt], str]] = {
        ast.Assign: "_assign",
        ast.AnnAssign: "_annassign",
        ast.AugAssign: "_augassign",
        ast.Expr: "_expression",
        ast.If: "_if",
        ast.For: "_for",
        ast.Assert: "_assert",
        ast.Return: "_return",
        ast.Pass: "_pass",
        ast.Break: "_leave",
        ast.Continue: "_leave",
    }
    result: object = None
    _branches = 0
    # Whether the innermost loop runs over tile_range.
    _is_runtime_loop = False

    def run(self, body: Iterable[ast.stmt]) -> Flow:
        """Translate statements in order, until one leaves the block."""
        for statement in body:
            flow = self._statement(statement)
            if flow is not Flow.NEXT:
                return flow
        return Flow.NEXT

    def _statement(self, node: ast.stmt) -> Flow:
        name = self._statements.get(type(node))
        if name is None:
            what, hint = ILLEGAL.get(
                type(node), (type(node).__name__, "docs/language.md lists what is allowed")
            )
            raise CompileError(f"{what} is not allowed in a kernel", self.loc(node), hint)
        self.build.loc = self.loc(node)
        try:
            flow: Flow | None = getattr(self, name)(node)
            return flow or Flow.NEXT
        except MetileError as error:
            if error.loc is None:
                error.loc = self.loc(node)
            raise

    def _pass(self, node: ast.Pass) -> None:
        """Nothing."""

    def _expression(self, node: ast.Expr) -> None:
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)):
            self.value(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self._bind(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, self.value(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            self._bind(node.target, None)
            return
        old = self.value(ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target))
        rhs = self.value(node.value)
        operator = BINARY.get(type(node.op))
        if operator is None:
            raise CompileError("@= is not allowed in a kernel", hint="use metile.dot")
        self.build.loc = self.loc(node)
        self._bind(node.target, binary(self.build, operator, old, rhs))

    def _bind(self, target: ast.expr, value: object) -> None:
        match target:
            case ast.Name(id=name):
                self.build.rename(value, name)
                self.names[name] = value
            case ast.Tuple(elts=parts):
                if not isinstance(value, tuple):
                    raise CompileError(f"can't unpack {describe(value)}", self.loc(target))
                if len(value) != len(parts) or any(isinstance(p, ast.Starred) for p in parts):
                    raise CompileError(
                        f"can't unpack {len(value)} values into {len(parts)} names",
                        self.loc(target),
                    )
                for part, item in zip(parts, value, strict=True):
                    self._bind(part, item)
            case _:
                raise CompileError(
                    "a kernel assigns to names only",
                    self.loc(target),
                    "write memory with tensor.store(indices, value); tiles are never changed",
                )

    def _if(self, node: ast.If) -> Flow:
        condition = self.condition(node.test, "`if`")
        if isinstance(condition, bool):
            return self.run(node.body if condition else node.orelse)
        touched = assigned([*node.body, *node.orelse])
        before = dict(self.names)
        stored = dict(self.build.tensors.stored)
        sides = []
        for body in (node.body, node.orelse):
            self.names = dict(before)
            self.build.tensors.stored = dict(stored)
            self._branches += 1
            with self.build.inside() as scope:
                self.run(body)
            self._branches -= 1
            sides.append((scope, self.names, self.build.tensors.stored))
        self.names = before
        self.build.tensors.stored = {**sides[1][2], **sides[0][2]}
        self.build.loc = self.loc(node)
        line = self.definition.source.line(node)
        merged = merge(
            self.build, condition, touched, [(scope, names) for scope, names, _ in sides], line
        )
        self.names.update(merged)
        return Flow.NEXT

    def _for(self, node: ast.For) -> Flow:
        if node.orelse:
            raise CompileError(
                "for ... else is not allowed in a kernel",
                self.loc(node.orelse[0]),
                "put the statements after the loop",
            )
        found = self.value(node.iter)
        if isinstance(found, TileRange):
            self._runtime_loop(node, found)
            return Flow.NEXT
        items = self._items(found, node.iter)
        branches, self._branches = self._branches, 0
        is_runtime, self._is_runtime_loop = self._is_runtime_loop, False
        self.build.loops += 1
        flow = Flow.NEXT
        for item in items:
            self._bind(node.target, item)
            flow = self.run(node.body)
            if flow in (Flow.BREAK, Flow.RETURN):
                break
        self.build.loops -= 1
        self._branches, self._is_runtime_loop = branches, is_runtime
        return Flow.RETURN if flow is Flow.RETURN else Flow.NEXT

    def _runtime_loop(self, node: ast.For, bounds: TileRange) -> None:
        """A loop of the kernel itself: translated until what it carries has a type."""
        build, target = self.build, node.target
        if not isinstance(target, ast.Name):
            raise CompileError(
                "a loop over tile_range has one index",
                self.loc(target),
                "for i in metile.tile_range(...)",
            )
        index = Value(ScalarType(i32), target.id, self.loc(target))
        before, stored = dict(self.names), dict(build.tensors.stored)
        outer = build.own
        own = build.own = outer or OwnScalars()
        while True:
            build.loc = self.loc(node.iter)
            found = own.of_next()
            carried = Carried(build, self.definition.source, node, before, found)
            scope = self._runtime_body(node, {**before, **carried.entry(), target.id: index})
            if more := carried.becoming_own(self.names):
                found |= more
                carried.make_own(more)
                own.is_settled = False
            if outer is not None or own.is_settled:
                break
            own.again()
            build.tensors.stored = dict(stored)
        build.own = outer
        build.loc = self.loc(node.iter)
        after = carried.close(bounds, index, scope, self.names)
        left = Unbound(
            f"{target.id!r} is the index of the loop in line {self.definition.source.line(node)}, "
            "which may run no iteration",
            "compute it from the bounds of the loop",
        )
        self.names = {**before, **after, target.id: left}

    def _runtime_body(self, node: ast.For, names: dict[str, object]) -> Scope:
        """The body translated once, with what names hold when an iteration starts."""
        build = self.build
        branches, self._branches = self._branches, 0
        is_runtime, self._is_runtime_loop = self._is_runtime_loop, True
        build.loops += 1
        with build.inside() as scope, build.tensors.repeated():
            self.names = names
            self.run(node.body)
        build.loops -= 1
        self._branches, self._is_runtime_loop = branches, is_runtime
        return scope

    def _items(self, value: object, node: ast.expr) -> tuple[object, ...]:
        if not isinstance(value, range | tuple):
            raise CompileError(
                f"a loop runs over range() of constants or a tuple, got {describe(value)}",
                self.loc(node),
                "for i in range(N) with a constexpr N is unrolled; metile.tile_range(0, n) loops",
            )
        if len(value) > MAX_ITERATIONS:
            raise CompileError(
                f"the loop would be unrolled {len(value)} times, at most {MAX_ITERATIONS}",
                self.loc(node),
                "use tiles for the inner extent, or more programs",
            )
        return tuple(value)

    def _assert(self, node: ast.Assert) -> None:
        value = self.value(node.test)
        if not is_static(value):
            raise UnsupportedError(
                f"assert checks compile-time conditions, got {describe(value)}",
                self.loc(node.test),
                "check runtime values on the host before the call",
            )
        if not value:
            message = "assertion failed" if node.msg is None else str(self.value(node.msg))
            raise CompileError(message, self.loc(node.test))

    def _return(self, node: ast.Return) -> Flow:
        self._check_static(node, "return")
        if node.value is not None:
            value = self.value(node.value)
            if not self.stack and value is not None:
                raise CompileError(
                    "a kernel returns nothing",
                    self.loc(node),
                    "write results with tensor.store; the call returns the written arrays",
                )
            self.result = value
        return Flow.RETURN

    def _leave(self, node: ast.Break | ast.Continue) -> Flow:
        is_break = isinstance(node, ast.Break)
        if is_break and self._is_runtime_loop and not self._branches:
            raise CompileError(
                "break in a loop over tile_range",
                self.loc(node),
                "end it earlier: metile.tile_range(start, metile.minimum(end, ...))",
            )
        self._check_static(node, "break" if is_break else "continue")
        return Flow.BREAK if is_break else Flow.CONTINUE

    def _check_static(self, node: ast.stmt, word: str) -> None:
        if self._branches or (word == "return" and self.build.branches > self._outer_branches):
            where = "loop" if word == "return" and self._is_runtime_loop else "`if`"
            raise CompileError(
                f"{word} inside a runtime {where}: whether it happens is not known at compile time",
                self.loc(node),
                "put the statements that follow under the `if`, or use masks",
            )

    _outer_branches = 0

    def inline(self, call: Inline) -> object:
        """The value of an inline function's body, translated here."""
        function = call.function
        if function in self.stack:
            path = " -> ".join(item.__name__ for item in (*self.stack, function))
            raise CompileError(
                f"recursion: {path}", call.loc, "write it as a loop over range(constexpr)"
            )
        names = {name: as_constant(value) for name, value in call.arguments.items()}
        for param in function.definition.params:
            if param.is_constexpr and not is_static(names[param.name]):
                raise CompileError(
                    f"[{function.__name__}] {param.name} is {describe(names[param.name])}, "
                    "expected a compile-time constant",
                    call.loc,
                )
        body = Statements(self.build, function.definition, names, (*self.stack, function))
        body._outer_branches = self.build.branches
        try:
            body.run(function.definition.source.node.body)
        except MetileError as error:
            error.notes.append((f"in {function.__name__}, inlined here", call.loc))
            raise
        return body.result


ILLEGAL: dict[type[ast.stmt], tuple[str, str]] = {
    ast.While: ("while", "use for i in metile.tile_range(start, end, step)"),
    ast.Try: ("try", "a kernel has no exceptions"),
    ast.Raise: ("raise", "assert checks compile-time conditions"),
    ast.With: ("with", "a kernel has no context managers"),
    ast.FunctionDef: ("a nested function", "define it outside and mark it @metile.inline"),
    ast.AsyncFunctionDef: ("a nested function", "define it outside and mark it @metile.inline"),
    ast.ClassDef: ("a class", "a kernel works on tiles, scalars and constants"),
    ast.Import: ("import", "import at the top of the file"),
    ast.ImportFrom: ("import", "import at the top of the file"),
    ast.Global: ("global", "pass values as parameters"),
    ast.Nonlocal: ("nonlocal", "pass values as parameters"),
    ast.Delete: ("del", "names end with the kernel"),
    ast.Match: ("match", "use `if` on constexprs"),
    ast.AsyncFor: ("async for", "a kernel is plain code"),
    ast.AsyncWith: ("async with", "a kernel is plain code"),
}
