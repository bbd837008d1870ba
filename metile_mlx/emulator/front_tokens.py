"""Tokens of preprocessed MSL, and which braces belong to kernels, functions, classes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SPACES = frozenset(
    [
        "device",
        "constant",
        "thread",
        "threadgroup",
        "threadgroup_imageblock",
        "ray_data",
        "object_data",
    ]
)
CV = frozenset({"const", "volatile", "restrict", "__restrict", "__restrict__"})

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\f\v]+|//[^\n]*|/\*.*?\*/|\\\n)
    |(?P<newline>\n)
    |(?P<directive>(?<=^)\#[^\n]*)
    |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<mark>::|->|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|<<(?!<)|.)""",
    re.X | re.S | re.M,
)


@dataclass(frozen=True)
class Token:
    """A token with its 1-based line and the offset of its first character."""

    kind: str
    text: str
    line: int
    at: int


def tokens(text: str) -> list[Token]:
    """All tokens but blanks, comments and lines of the preprocessor."""
    out = []
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        if kind not in ("skip", "newline", "directive"):
            out.append(Token(kind, match[0], line, match.start()))
        line += match[0].count("\n")
    return out


def closing(parts: list[Token], start: int) -> int | None:
    """The index of the bracket that closes the one at `start`; None where there is none.

    For `<` the search gives up at a token that no template argument list holds.
    """
    opener = parts[start].text
    closer = {"(": ")", "[": "]", "{": "}", "<": ">"}[opener]
    depth = 0
    at = start
    while at < len(parts):
        text = parts[at].text
        if text == opener:
            depth += 1
        elif text == closer:
            depth -= 1
            if depth == 0:
                return at
        elif opener == "<":
            if text == "(":
                end = closing(parts, at)
                if end is None:
                    return None
                at = end
            elif text in (";", "{", "}", ")", "&&", "||"):
                return None
        at += 1
    return None


def opening(parts: list[Token], end: int) -> int | None:
    """The index of the `<` that the `>` at `end` closes, None where it is a comparison."""
    depth = 0
    for at in range(end, -1, -1):
        text = parts[at].text
        depth += (text == ">") - (text == "<")
        if depth == 0:
            return at
        if text in (";", "{", "}", "&&", "||", "="):
            return None
    return None


@dataclass
class Scope:
    """What a pair of braces encloses.

    Attributes:
        kind: `file`, `namespace`, `class`, `enum`, `kernel`, `function`, `block` or `value`.
        name: of a function or class, empty where it has none.
        head: first and last index of the tokens before the brace that belong to it.
        body: index of the opening and of the closing brace.
        parent: the scope around it, None for the file.
    """

    kind: str
    name: str
    head: tuple[int, int]
    body: tuple[int, int]
    parent: Scope | None

    @property
    def function(self) -> Scope | None:
        """The function or kernel that holds it, itself included."""
        scope: Scope | None = self
        while scope is not None and scope.kind not in ("function", "kernel"):
            scope = scope.parent
        return scope


def scopes(parts: list[Token], kernels: frozenset[str]) -> tuple[list[Scope], list[Scope]]:
    """All scopes in the order of their opening braces, and the scope of each token.

    Args:
        parts: the tokens of a text.
        kernels: names of functions that are instantiated as kernels elsewhere in the text.
    """
    whole = Scope("file", "", (0, 0), (-1, len(parts)), None)
    found = [whole]
    of_token = []
    current = whole
    start = 0
    depth = 0
    for at, token in enumerate(parts):
        if token.text == "{":
            kind, name = _classify(parts, start, at, current, depth, kernels)
            current = Scope(kind, name, (start, at), (at, len(parts)), current)
            found.append(current)
        of_token.append(current)
        if token.text in "([":
            depth += 1
        elif token.text in ")]":
            depth -= 1
        if token.text == "}" and current.parent is not None:
            current.body = (current.body[0], at)
            if current.kind != "value":
                start = at + 1
            current = current.parent
        elif (token.text == ";" and depth <= 0) or (token.text == "{" and current.kind != "value"):
            start = at + 1
            if current.kind != "value":
                depth = 0
    return found, of_token


def _classify(
    parts: list[Token], start: int, at: int, outer: Scope, depth: int, kernels: frozenset[str]
) -> tuple[str, str]:
    head = parts[start:at]
    words = [token.text for token in _without_templates(head)]
    previous = parts[at - 1].text if at else ""
    if "namespace" in words or (words[:1] == ["extern"] and previous.startswith('"')):
        return "namespace", ""
    record = next((w for w in ("struct", "class", "union", "enum") if w in words), None)
    if record and "(" not in words and "=" not in words:
        name = words[words.index(record) + 1 :][:1]
        return ("enum" if record == "enum" else "class"), (name or [""])[0]
    if outer.kind in ("file", "namespace", "class"):
        return _outer_brace(words, previous, kernels)
    if depth > 0 and previous != ")":
        return "value", ""
    if previous in (")", "else", "do", ";", "{", "}", ":", "") or not head:
        return "block", ""
    return "value", ""


def _outer_brace(words: list[str], previous: str, kernels: frozenset[str]) -> tuple[str, str]:
    if "(" not in words or "=" in words[: words.index("(")]:
        return "value", ""
    # `S() : a{1} {`: the brace after a member's name belongs to the member.
    tail = words[words.index("(") :]
    if ":" in tail and previous not in (")", "}"):
        return "value", ""
    name = words[words.index("(") - 1] if words.index("(") else ""
    if "operator" in words[: words.index("(")]:
        name = "operator"
    is_kernel = "kernel" in words or name in kernels
    return ("kernel" if is_kernel else "function"), name


def _without_templates(head: list[Token]) -> Iterator[Token]:
    """The tokens outside `template <...>` and the attributes that take arguments."""
    at = 0
    while at < len(head):
        text = head[at].text
        if text == "template" and at + 1 < len(head) and head[at + 1].text == "<":
            end = closing(head, at + 1)
            at = len(head) if end is None else end + 1
            continue
        if text in ("__attribute__", "alignas") and at + 1 < len(head):
            end = closing(head, at + 1)
            at = len(head) if end is None else end + 1
            continue
        if text == "[" and at + 1 < len(head) and head[at + 1].text == "[":
            end = closing(head, at)
            yield from (token for token in head[at:end] if token.text == "kernel")
            at = len(head) if end is None else end + 1
            continue
        yield head[at]
        at += 1
