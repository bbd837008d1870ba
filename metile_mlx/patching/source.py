"""A function as the syntax tree that it was compiled from, and a function from a changed tree.

The tree is trusted only if its file compiles to the code that runs: where the file was edited after
the import, or is not there, the function is refused. A changed tree keeps globals,
defaults, closure and line numbers, so that tracebacks show the lines of the file.
"""

from __future__ import annotations

import ast
import copy
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CellType, CodeType, FunctionType, ModuleType

# What `compile` has to be told again; the bits of `from __future__ import ...`.
_FUTURES = 0x1FF0000
UNKNOWN = object()
_LOOKS_AT_NAMES = ("eval", "exec", "locals")


class Unreadable(Exception):
    """A function whose source is not there, or is not what runs; the message says why."""


@dataclass(frozen=True)
class Source:
    """A function and its tree, without decorators, defaults and annotations."""

    function: FunctionType
    tree: ast.FunctionDef

    @property
    def parameters(self) -> list[str]:
        """Names of the positional parameters."""
        return [a.arg for a in (*self.tree.args.posonlyargs, *self.tree.args.args)]

    def place(self, node: ast.expr | ast.stmt) -> str:
        """`file.py:line` of a node."""
        return f"{self.function.__code__.co_filename.rsplit('/', 1)[-1]}:{node.lineno}"

    def value(self, node: ast.expr) -> object:
        """What a name, or an attribute of a module, stands for; UNKNOWN if only a run can say."""
        match node:
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=base, attr=name):
                module = self.value(base)
                if isinstance(module, ModuleType):
                    return getattr(module, name, UNKNOWN)
            case _:
                pass
        return UNKNOWN

    def _named(self, name: str) -> object:
        code = self.function.__code__
        if name in code.co_varnames or name in code.co_cellvars:
            return UNKNOWN
        if name in code.co_freevars:
            cell = (self.function.__closure__ or ())[code.co_freevars.index(name)]
            try:
                return cell.cell_contents
            except ValueError:
                return UNKNOWN
        return self.function.__globals__.get(name, UNKNOWN)


def read(function: object) -> Source:
    """The source of a function.

    Raises:
        Unreadable: it isn't a Python function, its source is not there, or not what runs.
    """
    # Not isinstance: what mx.compile returns says that it is one.
    if type(function) is not FunctionType:
        raise Unreadable(f"it is {type(function).__name__}, not a Python function")
    code = function.__code__
    text = "".join(linecache.getlines(code.co_filename, function.__globals__))
    if not text:
        raise Unreadable("its source can't be read")
    parsed, compiled = _file(code.co_filename, text)
    tree = parsed.get((code.co_name, code.co_firstlineno))
    if tree is None or code not in compiled:
        raise Unreadable("its source is not a function that compiles to what runs")
    if any(_is_private(node) for node in ast.walk(tree)):
        raise Unreadable("it has names that Python mangles, such as self.__x")
    if any(isinstance(node, ast.Name) and node.id in _LOOKS_AT_NAMES for node in ast.walk(tree)):
        raise Unreadable("it may look at its own names, by eval, exec or locals")
    return Source(function, _bare(copy.deepcopy(tree)))


@lru_cache(maxsize=64)
def _file(
    name: str, text: str
) -> tuple[dict[tuple[str, int], ast.FunctionDef | None], frozenset[CodeType]]:
    """The function definitions of a file by name and first line, and all code it compiles to."""
    try:
        module = ast.parse(text)
        whole = compile(text, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return {}, frozenset()
    found: dict[tuple[str, int], ast.FunctionDef | None] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name, first] = node
        elif isinstance(node, ast.Lambda):
            # Code says the line of a lambda, not which one it is.
            key = ("<lambda>", node.lineno)
            found[key] = None if key in found else _defined(node)
    return found, frozenset(_all_code(whole))


def _defined(node: ast.Lambda) -> ast.FunctionDef:
    """A function that returns what a lambda does."""
    made = ast.parse("def of_lambda(): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.args = node.args
    made.body = [ast.copy_location(ast.Return(value=node.body), node.body)]
    return ast.copy_location(made, node)


def _all_code(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _all_code(constant)


def rebuilt(source: Source, tree: ast.FunctionDef, added: Mapping[str, object]) -> FunctionType:
    """The function of a changed tree, in which the names `added` have these values.

    Whatever else it had stays: globals, defaults, closure, attributes.
    """
    function = source.function
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: CellType(value) for name, value in added.items()}
    module = ast.parse(f"def outer({', '.join(cells)}): pass")
    outer = module.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [tree]
    flags = code.co_flags & _FUTURES
    whole = compile(
        ast.fix_missing_locations(module), code.co_filename, "exec", flags, dont_inherit=True
    )
    inner = _inside(_inside(whole, outer.name), tree.name)
    closure = tuple(cells[name] for name in inner.co_freevars)
    made = FunctionType(
        inner, function.__globals__, function.__name__, function.__defaults__, closure
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__qualname__, made.__module__ = function.__qualname__, function.__module__
    made.__doc__, made.__annotations__ = function.__doc__, function.__annotations__
    vars(made).update(vars(function))
    return made


def unwrapped(value: object) -> object:
    """The Python function behind `mx.compile`, which shows it as attributes; else `value`."""
    code = getattr(value, "__code__", None)
    names = getattr(value, "__globals__", None)
    if type(value) is FunctionType or not isinstance(code, CodeType) or names is None:
        return value
    closure = getattr(value, "__closure__", None)
    return FunctionType(code, names, code.co_name, getattr(value, "__defaults__", None), closure)


def _is_private(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return isinstance(name, str) and name.startswith("__") and not name.endswith("__")


def _bare(node: ast.FunctionDef) -> ast.FunctionDef:
    """Without what belongs to the definition and not to the code."""
    node.decorator_list, node.returns = [], None
    arguments = node.args
    arguments.defaults = []
    arguments.kw_defaults = [None for _ in arguments.kwonlyargs]
    extra = [a for a in (arguments.vararg, arguments.kwarg) if a is not None]
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra):
        argument.annotation = None
    return node


def _inside(code: CodeType, name: str) -> CodeType:
    """The code of the function `name` that this one defines."""
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
