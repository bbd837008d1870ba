"""A kernel or inline function as written: parameters, source, and the outside names it reads."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar

from metile_mlx.errors import CompileError, Loc
from metile_mlx.frontend.environment import Environment, Names
from metile_mlx.frontend.scope import chain, references
from metile_mlx.frontend.source import Source, read_source
from metile_mlx.frontend.values import MISSING, Identity

if TYPE_CHECKING:
    constexpr: TypeAlias = Any
else:

    class constexpr:
        """Annotation of a compile-time parameter: `N: metile.constexpr` (SPEC K1).

        Its value (int, float, bool, str, dtype, `ThreadLayout`, a tuple of these, None or an inline
        function) is part of the specialisation: another value compiles another kernel.
        """


RESERVED = ("schedule", "backend", "target", "stream", "math_mode", "grid")
"""Keywords of a kernel call, so no parameter's name (SPEC K8)."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel; `default` and `annotation` are MISSING where not given."""

    name: str
    is_constexpr: bool
    default: object
    annotation: object
    loc: Loc
    is_keyword_only: bool = False


class Definition:
    """What `@metile.kernel` or `@metile.inline` knows of a function. Make it with `of`.

    Attributes:
        fn: the Python function; it is never run.
        name: its name.
        params: its parameters in order.
        source: text and syntax tree.
        names: looks up what the body takes from outside.
        references: those outside names, by syntax.
        loc: the place of `def name`.
    """

    def __init__(self, fn: FunctionType, source: Source) -> None:
        self.fn = fn
        self.name = fn.__name__
        self.source = source
        self.loc = source.head()
        self.names = Names(fn)
        self.references = references(source.node)
        self.params = _parameters(fn, source, self.names)
        self._environment = Environment(self, _inlined)

    @classmethod
    def of(cls, fn: object) -> Definition:
        """Read a kernel's source, once.

        Raises:
            CompileError: not a plain function, no source text, or a parameter that can't be one:
                `*args`, `**kwargs`, a runtime parameter that is keyword-only, a reserved name (K8).
        """
        made = cls._read(fn, "metile.kernel")
        for param in made.params:
            if param.name in RESERVED:
                raise CompileError(
                    f"a kernel parameter can't be named {param.name!r}, a keyword of the call",
                    param.loc,
                    f"rename it; reserved are {', '.join(RESERVED)}",
                )
            if param.is_keyword_only and not param.is_constexpr:
                raise CompileError(
                    f"{param.name!r} is a keyword-only runtime parameter",
                    param.loc,
                    "put it before the `*`, or annotate it metile.constexpr",
                )
        return made

    @classmethod
    def _read(cls, fn: object, decorator: str) -> Definition:
        if not isinstance(fn, FunctionType):
            raise CompileError(
                f"@{decorator} takes a function, got {type(fn).__name__}",
                hint=f"decorate a `def`; @{decorator} goes below other decorators",
            )
        return cls(fn, read_source(fn))

    def environment(self) -> tuple[tuple[str, object], ...]:
        """The outside values the kernel depends on, as (name, key) pairs: hashable and cheap.

        Two snapshots are equal exactly when translation sees the same values, those of the inline
        functions it calls included (SPEC K1). Read anew at each call; the same object comes back
        while nothing has changed.
        """
        return self._environment.snapshot()

    def text(self) -> str:
        """All that decides what this means, as text: equal in another process for equal kernels."""
        return "\n".join(
            [*self.source.lines, *(f"{name}: {_stable(key)}" for name, key in self.environment())]
        )

    def __repr__(self) -> str:
        return f"<definition of {self.name} at {self.loc}>"


class InlineFunction(Generic[P, R]):
    """A function marked `@metile.inline`: its body is translated at each call (SPEC K5)."""

    def __init__(self, fn: Callable[P, R]) -> None:
        self.definition = Definition._read(fn, "metile.inline")
        self.__name__ = self.definition.name
        self.__doc__ = fn.__doc__
        self._function = fn

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Only kernels and other inline functions may call it.

        Raises:
            CompileError: always, since this is plain Python.
        """
        raise CompileError(
            f"{self.__name__} is a metile.inline function; it was called outside a kernel",
            hint="call it inside a function decorated with @metile.kernel",
        )

    @property
    def python(self) -> Callable[P, R]:
        """The function itself, to run integer arithmetic of a kernel on Python's or NumPy's."""
        return self._function

    def __repr__(self) -> str:
        return f"<metile.inline {self.__name__}>"


def inline(fn: Callable[P, R]) -> InlineFunction[P, R]:
    """Mark a helper whose body is inlined into the kernels that call it (SPEC K5).

    Arguments may be tiles, scalars, tensors, arrays and constants; it returns a value or a tuple.

    Raises:
        CompileError: no source text, or parameters it can't have.
    """
    return InlineFunction(fn)


def _stable(key: object) -> str:
    """The text of an outside value: of an inline function its source, of other objects the name."""
    if not isinstance(key, Identity):
        return repr(key)
    inner = _inlined(key.item)
    return "\n".join(inner.source.lines) if inner else getattr(key.item, "__name__", "")


def _inlined(value: object) -> Definition | None:
    return value.definition if isinstance(value, InlineFunction) else None


def _parameters(fn: FunctionType, source: Source, names: Names) -> tuple[Parameter, ...]:
    args = source.node.args
    for arg, stars in ((args.vararg, "*"), (args.kwarg, "**")):
        if arg is not None:
            raise CompileError(
                f"{stars}{arg.arg}: a kernel has a fixed number of parameters",
                source.loc(arg),
                "name each parameter",
            )
    annotations = _annotations(fn)
    defaults = {
        name: item.default
        for name, item in inspect.signature(fn, follow_wrapped=False).parameters.items()
        if item.default is not inspect.Parameter.empty
    }
    made: list[Parameter] = []
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs):
        annotation = annotations.get(arg.arg, MISSING)
        if isinstance(annotation, str) or (annotation is MISSING and arg.annotation is not None):
            annotation = _resolve(arg.annotation, annotation, names)
        made.append(
            Parameter(
                arg.arg,
                annotation is constexpr,
                defaults.get(arg.arg, MISSING),
                annotation,
                source.loc(arg),
                arg in args.kwonlyargs,
            )
        )
    return tuple(made)


def _annotations(fn: FunctionType) -> dict[str, object]:
    # Python 3.14 evaluates annotations here, and they may name what only type checkers import.
    try:
        return dict(fn.__annotations__)
    except NameError:
        return {}


def _resolve(node: ast.expr | None, text: object, names: Names) -> object:
    """The object a postponed annotation names; MISSING if it is more than a dotted name."""
    try:
        if isinstance(text, str):
            node = ast.parse(text, mode="eval").body
        while isinstance(node, ast.Constant) and isinstance(node.value, str):
            node = ast.parse(node.value, mode="eval").body
    except SyntaxError:
        return MISSING
    reference = chain(node) if node is not None else None
    if reference is None:
        return MISSING
    value = names.lookup(reference.root)
    if value is MISSING:
        # An enclosing function's alias of the module that the body never mentions leaves no trace.
        last = (reference.root, *reference.attributes)[-1]
        return constexpr if last == constexpr.__name__ else MISSING
    for attribute in reference.attributes:
        value = getattr(value, attribute, MISSING)
    return value
