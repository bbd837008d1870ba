"""`metal::utils()`, the text MLX puts before every custom kernel (SPEC X9).

MLX keeps it as a string inside its library and hands it to no one, but it can be had twice:

- as the string itself, which the macOS wheels hold in `mlx/lib/libmlx.dylib`, in one piece and
  ended by a zero byte;
- as the headers it is made of, which all wheels ship: `utils.h` after what it includes, each file
  once, without its own `#include "..."` and `#pragma once` lines, under a `#line` directive.

For MLX 0.32.4 both give the same 55112 bytes but for the copyright comment of the first line, which
is left out here.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ENTRY = "mlx/backend/metal/kernels/utils.h"
LIBRARIES = ("lib/libmlx.dylib", "lib/libmlx.so")

_MARK = re.compile(rb"// Auto generated source for [^\n\0]*backend/metal/kernels/utils\.h\n")
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+\.h)"', re.MULTILINE)
_DROPPED = re.compile(r'#include ".*\.h"|#pragma once')


@dataclass(frozen=True)
class Prelude:
    """The text, and whether it is MLX's own string (`exact`) or put together from headers."""

    text: str
    exact: bool


def find(package: Path) -> Prelude | str:
    """The prelude of the MLX installed in the folder `package`, or why there is none."""
    for name in LIBRARIES:
        text = embedded(package / name)
        if text is not None:
            return Prelude(text, True)
    try:
        return Prelude(assembled(package / "include"), False)
    except (OSError, UnicodeDecodeError) as error:
        return f"MLX's prelude is neither in {package / LIBRARIES[0]} nor in its headers: {error}"


def embedded(library: Path) -> str | None:
    """The string inside MLX's library; None where the file or the string is not there."""
    try:
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
            found = _MARK.search(m)
            if found is None:
                return None
            start, end = m.rfind(b"\0", 0, found.start()) + 1, m.find(b"\0", found.end())
            return m[start : end if end >= 0 else len(m)].decode("utf-8")
    except (OSError, ValueError):
        # ValueError: an empty file can't be mapped, or bytes that are no text.
        return None


def assembled(include: Path) -> str:
    """The string as MLX's build makes it of the headers below `include`.

    Raises:
        OSError: a header is missing.
    """
    rule = "/" * 79
    lines = [f"// Auto generated source for {ENTRY}", ""]
    for name in _in_order(include, ENTRY, set()):
        lines += [rule, f'// Contents from "{name}"', rule, "", f'#line 1 "{name}"']
        text = (include / name).read_text(encoding="utf-8")
        lines += [line for line in text.splitlines() if not _DROPPED.search(line)]
        lines.append("")
    return "\n".join([*lines, rule, ""])


def _in_order(include: Path, name: str, seen: set[str]) -> Iterator[str]:
    """Headers, each after those it includes."""
    if name in seen:
        return
    seen.add(name)
    for found in _INCLUDE.finditer((include / name).read_text(encoding="utf-8")):
        yield from _in_order(include, found[1], seen)
    yield name
