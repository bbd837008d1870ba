"""Calls and attributes: the language, methods of its values, and Python on constants."""

from __future__ import annotations

import builtins
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinMethodType, MethodType, ModuleType

from metile_mlx.dtypes import DType
from metile_mlx.errors import CompileError, Loc, MetileError
from metile_mlx.frontend.build import Build, Call
from metile_mlx.frontend.definition import Definition, InlineFunction
from metile_mlx.frontend.language import elementwise
from metile_mlx.frontend.language.tensors import Array, Tensor
from metile_mlx.frontend.language.types import Scalar, Tile
from metile_mlx.frontend.operators import fold
from metile_mlx.frontend.rules import HOST, RULES, Rule
from metile_mlx.frontend.values import describe, is_static
from metile_mlx.ir.core import Value
from metile_mlx.ir.types import PointerType, ScalarType, TensorType, TileType, Type
from metile_mlx.layout.thread_layout import ThreadLayout


@dataclass(frozen=True)
class Bound:
    """A method of a value: its stub and the value."""

    stub: object
    receiver: Value


@dataclass(frozen=True)
class Inline:
    """A call of an inline function, arguments bound to its parameters."""

    function: InlineFunction[..., object]
    arguments: Mapping[str, object]
    loc: Loc


SURFACES: dict[type[Type], type] = {
    TensorType: Tensor,
    PointerType: Array,
    TileType: Tile,
    ScalarType: Scalar,
}
# Containers may hold IR values; the others compute with constants only.
CONTAINERS: tuple[object, ...] = (enumerate, len, reversed, tuple, zip)
BUILTINS: tuple[object, ...] = (
    *CONTAINERS, builtins.abs, bool, divmod, float, int, builtins.max, builtins.min, pow, range,
    round, str, builtins.sum,
)  # fmt: skip
INSTEAD = {
    "abs": "use metile.abs",
    "bool": "compare: x != 0",
    "float": "use metile.cast(x, metile.f32)",
    "int": "use metile.cast(x, metile.i32)",
    "max": "use metile.maximum(a, b)",
    "min": "use metile.minimum(a, b)",
    "pow": "use x ** y",
    "range": "use metile.tile_range, or make the bound a metile.constexpr: range() is unrolled",
    "sum": "use metile.sum",
}


def attribute_of(base: object, name: str) -> object:
    """`base.name` of a value, dtype or layout.

    Raises:
        CompileError: there is no such attribute, or not one a kernel may use.
    """
    if isinstance(base, Value):
        return _value_attribute(base, name)
    if isinstance(base, ThreadLayout | DType | type) and not name.startswith("_"):
        return fold(getattr, base, name)
    raise CompileError(f"{describe(base)} has no attribute {name!r} in a kernel")


def _value_attribute(base: Value, name: str) -> object:
    if name == "dtype" and isinstance(base.type, ScalarType | TileType | PointerType | TensorType):
        return base.type.dtype
    if name == "shape" and isinstance(base.type, TileType):
        return base.type.shape
    surface = SURFACES.get(type(base.type), object)
    stub = vars(surface).get(name)
    if _is_rule(stub):
        return Bound(stub, base)
    methods = [key for key, item in vars(surface).items() if _is_rule(item)]
    known = ", ".join(sorted([*methods, "dtype", *(["shape"] if surface is Tile else [])]))
    hint = None
    if surface is Array:
        hint = f"declare a view first: metile.tensor({base.name}, shape=..., access=...)"
    raise CompileError(f"{describe(base)} has no {name!r}; it has {known}", hint=hint)


def _is_rule(item: object) -> bool:
    return inspect.isfunction(item) and item in RULES


def call_function(
    build: Build,
    callee: object,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    places: Sequence[Loc],
    keyword_places: Mapping[str, Loc],
    loc: Loc,
) -> object:
    """The result of a call, or an `Inline` for the caller to translate.

    Raises:
        CompileError: not something a kernel may call, or arguments that don't fit.
    """
    if isinstance(callee, Bound):
        args, places = (callee.receiver, *args), (loc, *places)
        callee = callee.stub
    if callee is builtins.abs and not is_static(tuple(args)):
        callee = elementwise.abs
    if isinstance(callee, InlineFunction):
        signature = inspect.signature(callee.definition.fn)
        bound = _bind(callee.__name__, signature, args, kwargs)
        bound.apply_defaults()
        return Inline(callee, bound.arguments, loc)
    rule = RULES.get(callee) if inspect.isfunction(callee) else None
    if rule is not None:
        if callee in HOST and _all_static(args, kwargs):
            return _on_host(callee, args, kwargs)
        return _apply(build, rule, args, kwargs, places, keyword_places, loc)
    return _python(callee, args, kwargs)


def _apply(
    build: Build,
    rule: Rule,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    places: Sequence[Loc],
    keyword_places: Mapping[str, Loc],
    loc: Loc,
) -> object:
    bound = _bind(rule.name, rule.signature, args, kwargs)
    written = dict(zip(rule.signature.parameters, places, strict=False))
    bound.apply_defaults()
    outer = build.call
    build.call = Call(rule.name, loc, {**written, **keyword_places})
    try:
        return rule.translate(build, **bound.arguments)
    finally:
        build.call = outer


def _bind(
    name: str,
    signature: inspect.Signature,
    args: Sequence[object],
    kwargs: Mapping[str, object],
) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        names = ", ".join(key for key in signature.parameters if key != "self")
        raise CompileError(f"[{name}] {error}", hint=f"it takes {name}({names})") from None


def _all_static(args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    return is_static(tuple(args)) and is_static(tuple(kwargs.values()))


def _on_host(callee: object, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    assert callable(callee)
    try:
        return callee(*args, **kwargs)
    except MetileError:
        raise
    except (TypeError, ValueError, ArithmeticError) as error:
        raise CompileError(f"{error} (in a compile-time call)") from None


def _python(callee: object, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """Builtins, `math` and layout methods on constants."""
    if not _is_allowed(callee):
        raise _not_callable(callee)
    name = getattr(callee, "__name__", str(callee))
    if callee in CONTAINERS:
        for arg in args:
            if isinstance(arg, Value):
                raise CompileError(f"{name}() takes a tuple, got {describe(arg)}")
    elif not _all_static(args, kwargs):
        bad = next(arg for arg in (*args, *kwargs.values()) if not is_static(arg))
        raise CompileError(
            f"{name}() computes with compile-time constants, got {describe(bad)}",
            hint=INSTEAD.get(name) or f"see whether metile.{name} exists",
        )
    result = _on_host(callee, args, kwargs)
    # Iterators would be used up by the first loop over them.
    return tuple(result) if isinstance(result, enumerate | reversed | zip) else result


def _is_allowed(callee: object) -> bool:
    if callee in BUILTINS or callee is ThreadLayout:
        return True
    owner = getattr(callee, "__self__", None)
    if isinstance(callee, MethodType):
        return isinstance(owner, ThreadLayout) or owner is ThreadLayout
    return isinstance(callee, BuiltinMethodType) and owner is math


def _not_callable(callee: object) -> CompileError:
    name = getattr(callee, "__name__", None) or describe(callee)
    if isinstance(getattr(callee, "definition", None), Definition):
        return CompileError(
            f"{name} is a kernel; a kernel can't call a kernel",
            hint="mark the shared part @metile.inline",
        )
    if inspect.isfunction(callee):
        return CompileError(
            f"{name} is a plain Python function", hint="mark it @metile.inline to call it here"
        )
    if callable(callee) and getattr(builtins, str(name), None) is callee:
        hint = "take it out; METILE_DUMP shows the IR" if callee is print else None
        return CompileError(f"{name}() is not available in a kernel", hint=hint)
    if callable(callee) or isinstance(callee, ModuleType):
        return CompileError(f"{describe(callee)} can't be called in a kernel")
    return CompileError(f"{describe(callee)} is not a function")
