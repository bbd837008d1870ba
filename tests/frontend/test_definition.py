"""Reading a kernel: source, parameters, and the outside values it depends on (SPEC K1, K8)."""

from __future__ import annotations

import linecache
import subprocess
import sys
import textwrap
import timeit
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import metile_mlx.frontend.language as metile
from metile_mlx.errors import CompileError
from metile_mlx.frontend.definition import RESERVED, Definition
from metile_mlx.frontend.values import MISSING
from tests.support.kernels import load_module, shown, tile_ir, tile_text


def documented(source, n: int, eps: float = 1e-5, *, N: metile.constexpr = 4, D: metile.constexpr):
    """A kernel."""


def test_parameters_are_read_with_kind_default_and_annotation() -> None:
    """Under `from __future__ import annotations` the annotations are strings."""
    definition = Definition.of(documented)
    found = [(p.name, p.is_constexpr, p.default, p.annotation) for p in definition.params]
    assert found == [
        ("source", False, MISSING, MISSING),
        ("n", False, MISSING, int),
        ("eps", False, 1e-5, float),
        ("N", True, 4, metile.constexpr),
        ("D", True, MISSING, metile.constexpr),
    ]
    assert definition.name == "documented"


def test_annotation_through_an_alias_of_an_enclosing_function() -> None:
    def outer() -> object:
        m = metile

        def k(x, N: m.constexpr):
            """Nothing in the body mentions the alias."""

        return k

    assert [p.is_constexpr for p in Definition.of(outer()).params] == [False, True]


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_names_are_no_parameters(name: str, tmp_path: Path) -> None:
    module = load_module(tmp_path, f"def k(x, {name}):\n    pass\n")
    with pytest.raises(CompileError) as caught:
        Definition.of(module.k)
    assert shown(caught.value, tmp_path) == textwrap.dedent(f"""\
        k.py:2:10: error: a kernel parameter can't be named {name!r}, a keyword of the call
          def k(x, {name}):
                   {"^" * len(name)}
        hint: rename it; reserved are {", ".join(RESERVED)}""")


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("x, *rest", "k.py:2:11: error: *rest: a kernel has a fixed number of parameters"),
        ("x, **rest", "k.py:2:12: error: **rest: a kernel has a fixed number of parameters"),
        ("x, *, n", "k.py:2:13: error: 'n' is a keyword-only runtime parameter"),
    ],
)
def test_parameters_a_kernel_can_not_have(signature: str, message: str, tmp_path: Path) -> None:
    module = load_module(tmp_path, f"def k({signature}):\n    pass\n")
    with pytest.raises(CompileError) as caught:
        Definition.of(module.k)
    assert shown(caught.value, tmp_path).splitlines()[0] == message


def test_kernel_without_source_text_says_what_to_do() -> None:
    scope: dict[str, object] = {}
    exec("def k(x):\n    pass\n", scope)
    with pytest.raises(CompileError) as caught:
        Definition.of(scope["k"])
    assert str(caught.value) == (
        "no source text for 'k' (<string>): kernels are translated from source\n"
        "hint: define it in a file or a notebook cell, not with exec or `python -c`"
    )


def test_kernel_of_a_notebook_cell_is_read() -> None:
    """A cell has no file; IPython hands its text to linecache."""
    name = "<ipython-input-7-metile>"
    text = "def k(x):\n    i = metile.arange(0, 32)\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, object] = {"metile": metile}
    exec(compile(text, name, "exec"), scope)
    op = tile_ir(scope["k"], "f32*").body.ops[-1]
    assert str(op.loc) == f"{name}:2:9"
    del linecache.cache[name]


def test_kernel_of_python_c_says_what_to_do() -> None:
    code = (
        "from metile_mlx.frontend.definition import Definition\n"
        "def k(x):\n    pass\n"
        "print(Definition.of(k).name)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    # Python 3.13 and later keep the text of -c, and then it works.
    assert "no source text for 'k'" in done.stderr or done.stdout == "k\n"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda x: x, "a lambda can't be a kernel"),
        (3, "@metile.kernel takes a function, got int"),
        (print, "@metile.kernel takes a function, got builtin_function_or_method"),
    ],
)
def test_only_plain_functions_are_kernels(value: object, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        Definition.of(value)
    assert caught.value.message == message


def test_file_that_changed_after_import_is_noticed(tmp_path: Path) -> None:
    module = load_module(tmp_path, "def k(x):\n    pass\n")
    (tmp_path / "k.py").write_text("\n\n\ndef other(x):\n    pass\n", encoding="utf-8")
    with pytest.raises(CompileError, match=r"is no longer at|no source text"):
        Definition.of(module.k)


WATCHED = """
import math
import other
SCALE = 2
UNUSED = 5
LAYOUT = metile.ThreadLayout.identity(32)

@metile.inline
def helper(x):
    return x * FACTOR

FACTOR = 3

def k(x, N: metile.constexpr):
    SHADOW = 1
    i = metile.arange(0, 32, layout=LAYOUT)
    y: metile.Tile = helper(i * SCALE) + other.inner.SIZE + SHADOW + math.floor(2.5)
"""


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    other, inner = ModuleType("other"), ModuleType("inner")
    other.inner = inner  # type: ignore[attr-defined]
    inner.SIZE = 7  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "other", other)
    return load_module(tmp_path, WATCHED)


def test_environment_holds_what_the_body_reads(watched: ModuleType) -> None:
    """SPEC K1: through inline functions and modules too; not annotations, locals, our own names."""
    names = [name for name, _ in Definition.of(watched.k).environment()]
    assert names == [
        "metile",
        "LAYOUT",
        "helper",
        "SCALE",
        "other.inner.SIZE",
        "math.floor",
        "FACTOR",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SCALE", 3),
        ("SCALE", 2.0),
        ("SCALE", True),
        ("FACTOR", 4),
        ("LAYOUT", metile.ThreadLayout.identity(64)),
        ("helper", metile.inline(documented)),
    ],
)
def test_changed_global_changes_the_environment(
    watched: ModuleType, name: str, value: object
) -> None:
    definition = Definition.of(watched.k)
    before = definition.environment()
    assert definition.environment() is before
    original = getattr(watched, name)
    setattr(watched, name, value)
    after = definition.environment()
    assert after != before
    setattr(watched, name, original)
    assert definition.environment() == before
    assert len({before, after}) == 2


def test_changed_module_attribute_changes_the_environment(watched: ModuleType) -> None:
    definition = Definition.of(watched.k)
    before = definition.environment()
    watched.other.inner.SIZE = 8
    assert definition.environment() != before
    del watched.other.inner.SIZE
    assert definition.environment() != before
    watched.other.inner.SIZE = 7
    assert definition.environment() == before


def test_changed_class_attribute_recompiles() -> None:
    """SPEC K1: constants grouped in a class are outside values as others are."""

    class Config:
        FACTOR = 2

        class Inner:
            OFFSET = 3

    @metile.kernel
    def affine(out):
        made = metile.arange(0, 32) * Config.FACTOR + Config.Inner.OFFSET
        metile.tensor(out, shape=(32,), access="write").store(metile.arange(0, 32), made)

    def second() -> object:
        return affine[1](metile.empty(32, metile.i32), backend="reference")[1].item()

    assert second() == 5
    Config.FACTOR = 4
    assert second() == 7
    Config.Inner.OFFSET = 1
    assert second() == 5


def test_equal_value_in_a_new_object_is_no_change(watched: ModuleType) -> None:
    definition = Definition.of(watched.k)
    watched.SCALE = 12345
    before = definition.environment()
    watched.SCALE = int("12345")
    assert definition.environment() is before
    watched.UNUSED = 6
    assert definition.environment() is before


def test_numpy_numbers_are_python_numbers(watched: ModuleType) -> None:
    definition = Definition.of(watched.k)
    watched.SCALE, watched.FACTOR = np.int64(12345), np.float32(0.5)
    before = definition.environment()
    watched.SCALE, watched.FACTOR = 12345, 0.5
    assert definition.environment() is before


def test_signed_zero_and_nan_are_told_apart(watched: ModuleType) -> None:
    definition = Definition.of(watched.k)
    seen = []
    for value in (0.0, -0.0, float("nan"), float("nan"), 0, False):
        watched.SCALE = value
        seen.append(definition.environment())
    assert len(set(seen)) == 5


def test_closure_variables_are_watched_even_before_they_are_set() -> None:
    def outer():
        def k(x):
            metile.arange(0, 32) * factor

        def assign(value: object) -> None:
            nonlocal factor
            factor = value

        definition = Definition.of(k)
        snapshots = [definition.environment()]
        factor: object = None
        for value in (2, 3):
            assign(value)
            snapshots.append(definition.environment())
            assert f"value={value}, " in tile_text(k, "f32*")
        return snapshots

    assert len(set(outer())) == 3


def test_global_that_changes_is_seen_by_the_next_translation(watched: ModuleType) -> None:
    definition = Definition.of(watched.k)
    tile_ir(definition, "f32*", N=1)
    watched.FACTOR = 77
    ops = tile_ir(definition, "f32*", N=1).body.ops
    assert 77 in [op.attributes().get("value") for op in ops]


def test_unchanged_environment_is_cheap(watched: ModuleType) -> None:
    """About a microsecond for seven names; the bound leaves room for a busy host."""
    definition = Definition.of(watched.k)
    definition.environment()
    assert min(timeit.repeat(definition.environment, number=1000, repeat=5)) / 1000 < 20e-6
