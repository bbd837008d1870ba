"""Functions are read only if their source is what runs, and keep all but the changed lines."""

from __future__ import annotations

import ast
import importlib
import linecache
import pkgutil
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from metile_mlx.patching.source import UNKNOWN, Source, Unreadable, read, rebuilt, unwrapped

SHARED = 3


class Base:
    def value(self, x: int) -> int:
        return x + 1


class Child(Base):
    def value(self, x: int, y: int = 5, *rest: int, z: int = 7, **more: int) -> int:
        """A docstring."""
        return super().value(x) * SHARED + y + z + sum(rest) + sum(more.values())

    def __secret(self) -> int:
        return 1

    def private(self) -> int:
        return self.__secret()

    def evaluated(self, x: int) -> Any:
        """`x` may change in the text."""
        return eval("x.__iadd__(1)")

    def fails(self, x: int) -> float:
        y = x - x
        return x / y


def made_by(n: int) -> Callable[[int], int]:
    def inner(x: int) -> int:
        return x + n

    return inner


def test_a_rebuilt_function_is_the_same() -> None:
    """Globals, defaults, keyword defaults, closure, super() and the docstring are kept."""
    again = rebuilt(read(Child.value), read(Child.value).tree, {})
    child = Child()
    assert again(child, 2) == child.value(2)
    assert again(child, 2, 3, 4, z=1, w=9) == child.value(2, 3, 4, z=1, w=9)
    assert (again.__doc__, again.__name__) == ("A docstring.", "value")
    assert again.__qualname__ == Child.value.__qualname__
    inner = made_by(10)
    assert rebuilt(read(inner), read(inner).tree, {})(1) == 11


def test_attributes_of_a_function_stay() -> None:
    def marked(x: int) -> int:
        return x

    marked.note, marked.__wrapped__ = "kept", Child.value  # type: ignore[attr-defined]
    again = rebuilt(read(marked), read(marked).tree, {})
    assert vars(again) == {"note": "kept", "__wrapped__": Child.value}
    again.note = "changed"  # type: ignore[attr-defined]
    assert marked.note == "kept"  # type: ignore[attr-defined]


def test_an_added_name_is_seen_and_nothing_else_changes() -> None:
    source = read(Base.value)

    class Add(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            return ast.copy_location(ast.Name(id="added", ctx=ast.Load()), node)

    made = rebuilt(source, Add().visit(source.tree), {"added": 40})
    assert made(None, 2) == 42
    assert "added" not in globals()
    assert Base().value(2) == 3


def test_a_traceback_shows_the_line_of_the_file() -> None:
    made = rebuilt(read(Child.fails), read(Child.fails).tree, {})
    with pytest.raises(ZeroDivisionError) as caught:
        made(None, 1)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (Path(last.filename).name, last.line) == ("test_source.py", "return x / y")


def test_what_is_not_what_runs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "edited.py"
    text = "class M:\n    def call(self, x):\n        return x + 1\n"
    path.write_text(text, encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(text, str(path), "exec", dont_inherit=True), names)
    method = names["M"].call
    read(method)
    path.write_text(text.replace("+ 1", "+ 2"), encoding="utf-8")
    other = FunctionType(method.__code__, names)
    with pytest.raises(Unreadable, match="compiles to what runs"):
        read(_reloaded(other))
    exec(compile(text, "no file at all", "exec", dont_inherit=True), names)
    with pytest.raises(Unreadable, match="can't be read"):
        read(names["M"].call)


def _reloaded(function: FunctionType) -> FunctionType:
    linecache.checkcache(function.__code__.co_filename)
    return function


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ((lambda x: x, lambda x: x)[1], "not a function that compiles"),
        (Child.private, "mangles"),
        (Child.evaluated, "may look at its own names, by eval, exec or locals"),
        (len, "builtin_function_or_method, not a Python function"),
        (mx.compile(made_by(1)), "gc_func, not a Python function"),
    ],
)
def test_other_functions_are_refused(function: object, message: str) -> None:
    with pytest.raises(Unreadable, match=message):
        read(function)


def test_a_lambda_that_is_alone_on_its_line_is_read() -> None:
    method = nn.SiLU.__call__
    source = read(method)
    assert source.parameters == ["_", "x"]
    x = mx.random.normal((5,))
    assert mx.array_equal(rebuilt(source, source.tree, {})(None, x), nn.silu(x))


def test_behind_mx_compile_is_a_function() -> None:
    inner = unwrapped(mx.compile(made_by(4)))
    assert isinstance(inner, FunctionType)
    assert (inner(1), read(inner).parameters) == (5, ["x"])
    assert unwrapped(len) is len


def local(nn: object, x: mx.array) -> object:
    return nn.silu(x), mx.fast.rms_norm, undefined_here, SHARED  # type: ignore[attr-defined] # noqa: F821


def test_names_mean_what_they_mean_there() -> None:
    """A parameter hides a module of the same name."""
    source = read(local)
    values = [_value(source, text) for text in ("nn.silu", "mx.fast.rms_norm", "SHARED", "x.shape")]
    assert values == [UNKNOWN, mx.fast.rms_norm, SHARED, UNKNOWN]
    assert _value(source, "undefined_here") is UNKNOWN


def _value(source: Source, text: str) -> object:
    return source.value(ast.parse(text, mode="eval").body)


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(package.__path__):
        if info.name != "olmo":  # ends the process where its own package is missing
            yield importlib.import_module(f"{package.__name__}.{info.name}")


def test_every_layer_of_mlx_can_be_read() -> None:
    """Nothing of a comparison of code objects fails by accident."""
    methods = {
        vars(item)["__call__"]
        for module in modules_of(importlib.import_module("mlx.nn.layers"))
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, nn.Module) and "__call__" in vars(item)
    }
    refused = {method for method in methods if not _can_be_read(method)}
    assert len(methods) == 66
    assert refused == set()


def _can_be_read(method: object) -> bool:
    try:
        read(method)
    except Unreadable:
        return False
    return True
