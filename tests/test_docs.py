"""The documentation holds: its code runs and is checked, its excerpts are what is printed, its
links lead somewhere, and what it lists is all there is."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import metile_mlx as metile
from metile_mlx import doctor
from metile_mlx.frontend import language
from tests.support import docs, profile

ROOT = Path(__file__).resolve().parent.parent
FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {path: path.read_text(encoding="utf-8") for path in FILES}
EMULATED = {"emulator.md"}
WITH_CODE = [
    pytest.param(path, marks=[pytest.mark.emulator] if path.name in EMULATED else [], id=path.name)
    for path, text in TEXTS.items()
    if docs.as_module(text).strip()
]
# Many small kernels: compiling each costs more than it tells in every run.
ON_REFERENCE = {"language.md"}


@pytest.fixture
def environment() -> Iterator[None]:
    """Documents set variables of this package; the next test must not see them."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("path", WITH_CODE)
def test_code_runs_and_excerpts_are_what_it_prints(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path.name in ON_REFERENCE and profile.name() != "full":
        monkeypatch.setenv("METILE_BACKEND", "reference")
    monkeypatch.chdir(tmp_path)
    module = docs.run(TEXTS[path], tmp_path / f"{path.stem}.py")
    assert not list(docs.false_excerpts(TEXTS[path], module))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    assert not list(docs.broken_links(TEXTS[path], path.parent))


def test_every_document_is_in_the_index() -> None:
    index = TEXTS[ROOT / "docs" / "README.md"]
    missing = [path.name for path in FILES[1:] if f"({path.name})" not in index]
    assert missing == ["README.md"]


def test_table_of_variables_is_what_config_reads() -> None:
    source = (ROOT / "metile_mlx" / "config.py").read_text(encoding="utf-8")
    read = set(re.findall(r'(?:environ\.get|_switch)\("(\w+)"', source))
    listed = docs.first_column(TEXTS[ROOT / "docs" / "backends.md"], "## Environment variables")
    assert len(listed) == len(set(listed))
    assert set(listed) == read == set(doctor.VARIABLES)


DRAWINGS = {
    "transpose8.svg": metile.ThreadLayout((3, 4, 5, 0, 1, 2)),
    "striped2.svg": metile.ThreadLayout.identity(64, elements_per_thread=2),
    "adjacent2.svg": metile.ThreadLayout((5, 0, 1, 2, 3, 4), elements_per_thread=2),
    "rotated.svg": metile.ThreadLayout((1, 2, 3, 4, 0, 5)),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_each_drawing_is_what_the_code_draws(name: str) -> None:
    drawn = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert drawn == DRAWINGS[name].svg()


def test_every_drawing_is_tested_and_shown() -> None:
    assert {path.name for path in (ROOT / "docs").glob("*.svg")} == set(DRAWINGS)
    shown = re.findall(r"!\[[^\]]+\]\((\w+\.svg)\)", TEXTS[ROOT / "docs" / "layouts.md"])
    assert sorted(shown) == sorted(DRAWINGS)


def test_every_verifier_has_a_row_in_its_file() -> None:
    """docs/design.md, Verifiers: a function `check_...` and where it is."""
    found = {
        (name, path.name)
        for path in (ROOT / "metile_mlx" / "verify").glob("*.py")
        for name in re.findall(r"^def (check_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    table = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## Verifiers")[2]
    rows = re.findall(r"^\| `(check_\w+)` \| `(\w+\.py)`", table, re.MULTILINE)
    assert len(found) >= 17
    assert sorted(rows) == sorted(found)


def test_every_module_of_the_ir_has_a_rank() -> None:
    """docs/design.md, Ranks: the only folder whose modules differ in theirs."""
    table = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## Ranks")[2]
    table = table.partition("## The IR")[0]
    modules = {path.name for path in (ROOT / "metile_mlx" / "ir").glob("[a-z]*.py")}
    assert set(re.findall(r"`ir/(\w+\.py)`", table)) == modules


def test_every_public_name_is_in_the_documentation() -> None:
    said = "\n".join(TEXTS.values())
    missing = [n for n in metile.__all__ if not re.search(rf"\bmetile\.{n}(?!\w)", said)]
    assert not missing


def example(name: str) -> str:
    """The code of a document."""
    return docs.as_module(TEXTS[ROOT / "docs" / name])


# What a kernel or a call gives, and what nobody writes by name.
GIVEN = {
    "Autotuned", "DType", "Dispatch", "Empty", "ExecutionReport", "Kernel", "Launcher",
    "PatchReport", "Pointer", "Tensor", "TuningReport", "VerificationError",
}  # fmt: skip


def test_k9_every_public_name_is_in_an_example() -> None:
    """Those of the language in language.md or layouts.md."""

    def missing(names: Iterable[str], code: str) -> set[str]:
        return {n for n in names if not re.search(rf"\bmetile\.{n}(?!\w)", code)}

    of_kernels = {n for n in metile.__all__ if hasattr(language, n)} - GIVEN
    assert len(of_kernels) > 60
    assert not missing(of_kernels, example("language.md") + example("layouts.md"))
    every = "\n".join(map(docs.as_module, TEXTS.values()))
    assert not missing(set(metile.__all__) - of_kernels - GIVEN, every)
    layers = [name for name in metile.nn.__all__ if name not in metile.__all__]
    assert not missing([rf"nn\.{name}" for name in layers], every)


CONSTRUCTS = {
    "Add", "Sub", "Mult", "Div", "FloorDiv", "Mod", "Pow", "LShift", "RShift", "BitAnd", "BitOr",
    "BitXor", "Invert", "USub", "UAdd", "Eq", "NotEq", "Lt", "LtE", "Gt", "GtE", "And", "Or", "Not",
    "For", "If", "IfExp", "Break", "Continue", "Return", "Assert", "AugAssign", "Tuple",
}  # fmt: skip


def test_k3_k5_every_construct_is_in_an_example() -> None:
    """Of Python's syntax, in what language.md decorates as kernels and inline functions."""
    found = {
        type(node).__name__
        for function in ast.walk(ast.parse(example("language.md")))
        if isinstance(function, ast.FunctionDef) and function.decorator_list
        for node in ast.walk(function)
    }
    assert not CONSTRUCTS - found


def test_names_in_the_documentation_exist() -> None:
    said = set(re.findall(r"\bmetile\.([A-Za-z_]\w*)", "\n".join(TEXTS.values())))
    assert said <= set(metile.__all__)


def test_no_document_claims_a_mac() -> None:
    """Standards: nothing is called tested or run on a Mac."""
    for path, text in TEXTS.items():
        assert not re.search(r"\b(tested|measured|verified) on (a |an )?(Mac|Apple|M\d)", text), (
            path
        )


RIGHT = "# A b\n```python\nx = 1\nassert x\n```\n```text from=f'a{x}'\na1\n```\n[l](#a-b)\n"


def test_a_right_document_passes(tmp_path: Path) -> None:
    module = docs.run(RIGHT, tmp_path / "right.py")
    assert not list(docs.false_excerpts(RIGHT, module))
    assert not list(docs.broken_links(RIGHT, tmp_path))


def test_a_false_assertion_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        docs.run(RIGHT.replace("x = 1", "x = 0"), tmp_path / "wrong.py")


def test_a_false_excerpt_is_seen(tmp_path: Path) -> None:
    module = docs.run(RIGHT, tmp_path / "wrong.py")
    assert list(docs.false_excerpts(RIGHT.replace("\na1\n", "\na2\n"), module))
    assert list(docs.false_excerpts(RIGHT.replace("\na1\n", "\na\n"), module))


@pytest.mark.parametrize("target", ["lost.md", "#lost", "right.md#lost"])
def test_a_broken_link_is_seen(target: str, tmp_path: Path) -> None:
    (tmp_path / "right.md").write_text(RIGHT, encoding="utf-8")
    assert list(docs.broken_links(f"[l]({target})", tmp_path)) == [target]


def test_code_stands_at_its_line_of_the_document(tmp_path: Path) -> None:
    assert docs.as_module(RIGHT).splitlines()[2:4] == ["x = 1", "assert x"]
