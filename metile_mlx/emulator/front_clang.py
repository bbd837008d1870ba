"""What clang says of a text: macros expanded, address spaces and vectors checked, calls resolved.

Address spaces are checked in a parse of their own, as plain C++ with `address_space` attributes.
That parse knows only part of Metal's library, so of its diagnostics only those that name two
address spaces, or two vector types, are kept.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from metile_mlx.emulator.front_rules import (
    Cycle,
    FrontFinding,
    Parsed,
    Rule,
    Severity,
    threadgroup_variables,
)
from metile_mlx.emulator.front_tokens import closing
from metile_mlx.runtime.toolchain import Toolchain

HEADERS = Path(__file__).with_name("headers")
_NAME = "program.metal"
_FLAGS = (
    *("-x", "c++", "-std=c++17", "-w", "-ferror-limit=0", "-fno-caret-diagnostics"),
    *("-fno-elide-type", "-nostdinc", "-fno-lax-vector-conversions", "-fdeclspec"),
    *("-Xclang", "-cl-single-precision-constant"),
)

_INCLUDE = re.compile(r"^([ \t]*#[ \t]*(?:include|import)\b)[^\n]*", re.M)
# What a preprocessor would change: directives, comments, continued lines and names it knows.
_PREPROCESSED = re.compile(r"[#\\]|//|/\*|\b(?:__|_Pragma\b|METAL_FUNC\b|MLX_MTL_PRAGMA_UNROLL\b)")
_MARKER = re.compile(r'# (\d+) "([^"]*)"')
_MAKE = re.compile(r"(?:packed_)?(?:bool|u?(?:char|short|int|long)|half|bfloat|float)[234]")
_DIAGNOSTIC = re.compile(
    rf"^(?:{re.escape(_NAME)}|<stdin>):(\d+):\d+: (?P<kind>error|fatal error): (?P<text>.*)$"
)
_NOTE = re.compile(r"^[^\n]*?:\d+:\d+: note: (?P<text>.*)$")
_QUOTED = re.compile(r"'((?:[^'])*)'(?: \(aka '([^']*)'\))?")
_SPACE_WORD = re.compile(r"\b(device|constant|threadgroup)\b|address_space\((\d)\)")
_SPACE_NAMES = {"1": "device", "2": "constant", "3": "threadgroup"}
_VECTOR = re.compile(
    r"(?:metal::)?(?:packed_)?vec<(?:metal::)?([\w ]+), (\d)>"
    r"|(?:metal::)?(?:packed_)?(bool|u?(?:char|short|int|long)|half|bfloat|float)([234])\b"
    r"|([\w ]+) __attribute__\(\(ext_vector_type\((\d)\)\)\)"
)


def preprocess(text: str, toolchain: Toolchain) -> str:
    """The text with macros expanded and the same line numbers.

    Raises:
        subprocess.CalledProcessError: the text can't be preprocessed.
    """
    own = _INCLUDE.sub("", text)
    if not _PREPROCESSED.search(own):
        return own
    command = [*toolchain.command, "-E", "-x", "c++", "-w", "-nostdinc", "-undef"]
    command += ["-D__METAL_VERSION__=320", "-D__METAL__=1", "-DMETAL_FUNC=inline", "-"]
    command += ["-DMLX_MTL_PRAGMA_UNROLL="]
    shown = subprocess.run(
        command, input=own, capture_output=True, text=True, errors="replace", check=True
    ).stdout
    lines = [""] * (text.count("\n") + 1)
    at, is_own = 1, False
    for line in shown.split("\n"):
        marker = _MARKER.match(line)
        if marker:
            at, is_own = int(marker[1]), marker[2] == "<stdin>"
            continue
        if is_own and 0 < at <= len(lines):
            lines[at - 1] += line
        at += 1
    return "\n".join(lines)


def without_clang(text: str) -> str:
    """The text without lines of the preprocessor; macros stay as they are."""
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", _blank, text, flags=re.M)


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def check_types(parsed: Parsed, toolchain: Toolchain) -> list[FrontFinding]:
    """Pointers that change their address space, and vectors that change their type."""
    done = subprocess.run(
        [
            *[*toolchain.command, *_FLAGS, "-fsyntax-only", "-Xclang", "-ast-dump"],
            *["-include", str(HEADERS / "front" / "spaces.h"), "-"],
        ],
        input=f'#line 1 "{_NAME}"\n' + _for_spaces(parsed),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    found = {*_diagnostics(parsed, done.stderr), *_casts(parsed, done.stdout)}
    return sorted(found, key=lambda finding: finding.line)


def _for_spaces(parsed: Parsed) -> str:
    """The text as the parse wants it, with the same lines.

    Threadgroup variables become static, since C++ has no other local variable with an address
    space; vectors are made by a function, since clang's have no constructors in C++.
    """
    edits: list[tuple[int, int, str]] = []
    for at, scope in threadgroup_variables(parsed):
        token = parsed.tokens[at]
        if scope.function is not None:
            edits.append((token.at, token.at, "static "))
    for at, token in enumerate(parsed.tokens):
        if token.kind == "number" and re.fullmatch(
            r"[\d.]+(?:[eE][+-]?\d+)?(?:[hH]|bf|BF)", token.text
        ):
            bare = re.sub(r"(?:[hH]|bf|BF)$", "", token.text)
            edits.append((token.at, token.at + len(token.text), f"((half){bare})"))
            continue
        end = at
        if token.text in ("vec", "packed_vec") and parsed.word(at + 1) == "<":
            end = closing(parsed.tokens, at + 1) or at
        elif token.kind != "name" or not _MAKE.fullmatch(token.text):
            continue
        if parsed.word(end + 1) == "(" and parsed.word(end + 2) not in ("*", "&"):
            last = parsed.tokens[end]
            edits.append((token.at, token.at, "metile_make<"))
            edits.append((last.at + len(last.text), last.at + len(last.text), ">"))
    out, done = [], 0
    for start, stop, new in sorted(edits):
        out += [parsed.text[done:start], new]
        done = stop
    return _concrete("".join([*out, parsed.text[done:]]))


# C++ takes no attributes on an explicit instantiation.
_ATTRIBUTES = re.compile(r"template\s*\[\[\s*host_name\([^)]*\)\s*\]\]\s*\[\[\s*kernel\s*\]\]")
_INSTANCE = re.compile(
    r"template\s*\[\[\s*host_name\([^)]*\)\s*\]\]\s*\[\[\s*kernel\s*\]\]\s*"
    r"decltype\((?P<name>\w+)<(?P<arguments>[^;]*)>\)\s*(?P=name)\s*<[^;]*>\s*;",
    re.S,
)


def _concrete(text: str) -> str:
    """With the kernel template MLX writes replaced by its one instance.

    A parse of an instance stops at its first error, a plain function is read to its end.
    """
    instances = list(_INSTANCE.finditer(text))
    text = _ATTRIBUTES.sub("template", text)
    if len(instances) != 1:
        return text
    name, arguments = instances[0]["name"], instances[0]["arguments"].split(",")
    head = re.search(rf"template <([^\n]*)>\n(\[\[kernel\]\] void {name}\()", text)
    if head is None:
        return text
    parameters = [part.strip().rpartition(" ") for part in head[1].split(",")]
    if len(parameters) != len(arguments):
        return text
    lines = []
    for (kind, _, parameter), argument in zip(parameters, arguments, strict=True):
        if kind == "typename":
            lines.append(f"using {parameter} = {argument.strip()};")
        else:
            lines.append(f"constexpr {kind} {parameter} = {argument.strip()};")
    text = text[: head.start()] + " ".join(lines) + "\n" + text[head.start(2) :]
    return re.sub(
        rf"template\s+decltype\({name}<[^;]*>\)\s*{name}\s*<[^;]*>\s*;", "", text, count=1
    )


def _diagnostics(parsed: Parsed, shown: str) -> Iterator[FrontFinding]:
    """Those about address spaces and vectors, each with the notes that follow it."""
    errors: list[tuple[int, str, list[str]]] = []
    for line in shown.splitlines():
        match = _DIAGNOSTIC.match(line)
        if match:
            errors.append((int(match[1]), match["text"], []))
            continue
        note = _NOTE.match(line)
        if note and errors and "in instantiation of" not in note["text"]:
            errors[-1][2].append(note["text"])
    for line_number, message, notes in errors:
        judged = _judge(message, notes)
        if judged is not None:
            rule, severity, text = judged
            yield parsed.finding(rule, severity, text, line_number)


def _judge(message: str, notes: list[str]) -> tuple[Rule, Severity, str] | None:
    if message.startswith("no matching function"):
        return _judge_call(message, notes)
    if re.match(r"no matching|no viable|cannot initialize object parameter", message):
        # Members of qualified objects: legal in Metal, beyond this parse.
        return None
    types = [aka or shown for shown, aka in _QUOTED.findall(message)]
    if len(types) >= 2 and _changes_space(types[0], types[1]):
        return "address-space-mismatch", "error", _plain(message)
    if "address space" in message and "automatic variable" not in message:
        if re.search(r"changes address space|mismatch|non-overlapping", message):
            return "address-space-mismatch", "error", _plain(message)
        return None
    if len(types) >= 2 and _is_implicit(message) and _changes_vector(types[0], types[1]):
        text = f"{_plain(message)}: convert vectors explicitly"
        return "vector-conversion", "error", text
    return None


def _is_implicit(message: str) -> bool:
    return bool(
        re.match(
            r"cannot initialize (?:a|an|return)|assigning to|cannot convert between vector values"
            r"|incompatible operand types|vector operands",
            message,
        )
    )


def _judge_call(message: str, notes: list[str]) -> tuple[Rule, Severity, str] | None:
    for note in notes:
        if "'this' object" in note or "constructor" in note:
            return None
        types = [aka or shown for shown, aka in _QUOTED.findall(note)]
        is_space = re.search(
            r"cannot (?:pass pointer|bind reference) (?:to|in) (?:generic )?address space", note
        ) or (
            re.search(r"does not match adjusted type|that would make", note)
            and len(types) >= 2
            and _changes_space(types[-2], types[-1])
        )
        if is_space:
            return "address-space-mismatch", "error", f"{_plain(message)}: {_plain(note)}"
    for note in notes:
        types = [aka or shown for shown, aka in _QUOTED.findall(note)]
        if "no known conversion from" in note and len(types) >= 2 and _changes_vector(*types[:2]):
            text = f"{_plain(message)}: {_plain(note)}"
            return "vector-conversion", "error", text
    return None


def _spaces(kind: str) -> list[str]:
    return [_SPACE_NAMES.get(number, word) for word, number in _SPACE_WORD.findall(kind)]


def _changes_space(first: str, second: str) -> bool:
    """Whether two pointers or references differ in an address space."""
    is_pointer = any(mark in first + second for mark in "*&")
    return is_pointer and _spaces(first) != _spaces(second)


def _changes_vector(first: str, second: str) -> bool:
    a, b = _vector(first), _vector(second)
    if a is None and b is None:
        return False
    if a is None or b is None:
        scalar = first if a is None else second
        return re.fullmatch(r"(?:const )?[\w ]+", scalar) is not None and "<" not in scalar
    # clang compares vectors to a vector of integers, Metal to one of bool.
    return a != b and "bool" not in (a[0], b[0])


def _vector(kind: str) -> tuple[str, str] | None:
    if any(mark in kind for mark in "*&"):
        return None
    match = _VECTOR.search(kind)
    if match is None:
        return None
    name = (match[1] or match[3] or match[5]).strip()
    element = {"_Float16": "half", "__bf16": "bfloat", "float16_t": "half"}.get(name, name)
    return element, match[2] or match[4] or match[6]


def _plain(message: str) -> str:
    """The message in Metal's words."""
    message = re.sub(r"__attribute__\(\(address_space\((\d)\)\)\)", _space_name, message)
    message = re.sub(r"address space '?(\d)'?", lambda m: f"'{_SPACE_NAMES[m[1]]}'", message)
    message = message.replace("generic address space", "'thread'").replace("_Float16", "half")
    return message.replace("metal::", "").replace("__bf16", "bfloat")


def _space_name(match: re.Match[str]) -> str:
    return _SPACE_NAMES.get(match[1], match[0])


_LOCATION = re.compile(r"line:(?P<line>\d+):\d+|(?P<file>[^\s<>,:]+):(?P<first>\d+):\d+")


def _casts(parsed: Parsed, dump: str) -> Iterator[FrontFinding]:
    """C-style casts that change the address space: C++ accepts them."""
    if "<AddressSpaceConversion>" not in dump:
        return
    line, is_own = 0, False
    for row in dump.splitlines():
        for match in _LOCATION.finditer(row.partition(" '")[0]):
            if match["file"]:
                is_own = match["file"] == _NAME
            line = int(match["line"] or match["first"])
        cast = re.search(r"(?:CStyleCast|CXXFunctionalCast)Expr .*? '([^']*)'", row)
        if cast and is_own and "<AddressSpaceConversion>" in row:
            message = f"a cast to '{_plain(cast[1])}' changes the address space of the pointer"
            yield parsed.finding("address-space-mismatch", "error", message, line)


_DEFINE = re.compile(r'^define [^\n]*?@"?([\w.$]+)"?\(', re.M)
_CALL = re.compile(r'\bcall [^\n]*?@"?([\w.$]+)"?\(')


def resolve(parsed: Parsed, cycle: Cycle, toolchain: Toolchain) -> bool | None:
    """Whether functions of a cycle of names really call themselves; None where unknown.

    Overloads and instances of templates are functions of their own in clang's output.
    """
    done = subprocess.run(
        [
            *toolchain.command,
            *_FLAGS,
            *["-S", "-emit-llvm", "-O0", "-Xclang", "-disable-llvm-passes"],
            *["-Wno-reserved-user-defined-literal", f"-I{HEADERS}", "-o", "-", "-"],
        ],
        input=f'#include "msl/mlx_utils.h"\n{_ATTRIBUTES.sub("template", parsed.text)}',
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        return None
    graph: dict[str, set[str]] = {}
    for body in re.split(r"(?=^define )", done.stdout, flags=re.M)[1:]:
        name = _DEFINE.match(body)
        if name:
            graph[name[1]] = set(_CALL.findall(body))
    # `1f` is the name `f` in a mangled name: its length comes first.
    mangled = re.compile("|".join(rf"(?<!\d){len(each)}{each}" for each in cycle.names))
    members = {name for name in graph if mangled.search(name)}
    if not members:
        return None
    return any(_reaches(start, graph) for start in members)


def _reaches(start: str, graph: dict[str, set[str]]) -> bool:
    todo, seen = list(graph[start]), set[str]()
    while todo:
        name = todo.pop()
        if name == start:
            return True
        if name not in seen:
            seen.add(name)
            todo += graph.get(name, ())
    return False
