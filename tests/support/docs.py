"""What the documentation claims, as things a test can ask: its code, its excerpts, its links."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

FENCE = re.compile(r"^```(\S*)[ ]*(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`[^`]+`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
# What differs from run to run in a printed page: source places, hashes, times.
PLACES = re.compile(r"\b\w+\.py:\d+|\b[0-9a-f]{16}\b|(?<=_)[0-9a-f]{16}(?=_)|\d+\.\d+ ms")


@dataclass(frozen=True)
class Fence:
    """A fenced block: its language, the words behind it, its text, its first line's number."""

    language: str
    info: str
    text: str
    line: int

    @property
    def source(self) -> str | None:
        """`from=EXPRESSION`: what the block is an excerpt of."""
        return self.info[len("from=") :] if self.info.startswith("from=") else None


def fences(markdown: str) -> list[Fence]:
    """Every fenced block, in order."""
    return [
        Fence(found[1], found[2], found[3], markdown.count("\n", 0, found.start(3)) + 1)
        for found in FENCE.finditer(markdown)
    ]


def as_module(markdown: str) -> str:
    """The python blocks as one module, each at the line it has in the document."""
    lines: list[str] = []
    for fence in fences(markdown):
        if fence.language == "python":
            lines += [""] * (fence.line - 1 - len(lines))
            lines += fence.text.splitlines()
    return "\n".join([*lines, ""])


def run(markdown: str, path: Path) -> ModuleType:
    """Run the python blocks in one namespace, from a file, where a kernel's source can be read."""
    path.write_text(as_module(markdown), encoding="utf-8")
    name = f"documentation_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


def false_excerpts(markdown: str, module: ModuleType) -> Iterator[str]:
    """Each `from=` block that its expression does not print; a line `...` stands for any lines."""
    for fence in fences(markdown):
        if fence.source is None:
            continue
        printed = _normal(str(eval(fence.source, vars(module))))
        position = 0
        for part in re.split(r"^\.\.\.$\n?", fence.text, flags=re.MULTILINE):
            if not part.strip():
                continue
            wanted = _normal(part)
            found = printed.find(wanted, position)
            if found < 0:
                yield f"line {fence.line}: {fence.source} does not print\n{wanted}\nbut\n{printed}"
                break
            position = found + len(wanted)


def _normal(text: str) -> str:
    lines = [PLACES.sub("_", line).rstrip() for line in text.splitlines()]
    return "\n" + "\n".join(lines).strip("\n") + "\n"


def broken_links(markdown: str, folder: Path) -> Iterator[str]:
    """Relative links to no file, and `#anchor`s to no heading of the file they name."""
    for target in LINK.findall(SPAN.sub("code", FENCE.sub("", markdown))):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        text = markdown
        if name:
            file = folder / name
            if not file.exists():
                yield target
                continue
            text = file.read_text(encoding="utf-8") if file.suffix == ".md" else ""
        if anchor and anchor not in anchors(text):
            yield target


def anchors(markdown: str) -> set[str]:
    """The anchors GitHub gives the headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings}


def first_column(markdown: str, heading: str) -> list[str]:
    """The code in the first column of the table under a heading."""
    section = markdown.split(f"\n{heading}\n", 1)[1].split("\n#", 1)[0]
    return re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
