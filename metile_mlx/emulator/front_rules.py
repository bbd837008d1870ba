"""The rules of MSL that tokens decide: `double`, scopes of threadgroup variables, recursion.

Pointers without an address space are in `front_pointers`; what needs types is in `front_clang`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from metile_mlx.emulator.front_tokens import CV, SPACES, Scope, closing, scopes, tokens

Rule = Literal[
    "double",
    "address-space-missing",
    "address-space-mismatch",
    "vector-conversion",
    "threadgroup-scope",
    "recursion",
    "program-scope",
]
Severity = Literal["error", "warning"]

_INSTANCE = re.compile(
    r"template\s*(?:\[\[\s*host_name\([^)]*\)\s*\]\]\s*)?(?:\[\[\s*kernel\s*\]\]|kernel)[^;{]*?"
    r"\b(\w+)\s*(?:<[^;{]*?>)?\s*(?:\([^;{]*\))?\s*;",
    re.S,
)
_STORAGE = CV | {"static", "constexpr", "inline", "extern", "typename", "struct", "unsigned"}
# User functions of these names may mean Metal's: only exact types tell.
_KEYWORDS = frozenset(
    [
        "if",
        "for",
        "while",
        "switch",
        "return",
        "sizeof",
        "alignof",
        "alignas",
        "decltype",
        "static_assert",
        "catch",
        "case",
        "do",
        "else",
        "static_cast",
        "reinterpret_cast",
        "const_cast",
        "dynamic_cast",
        "template",
        "operator",
        "__attribute__",
    ]
)


@dataclass(frozen=True)
class FrontFinding:
    """A line that Apple's compiler rejects, or may.

    Attributes:
        rule: which rule of the language.
        severity: `error` where the text can't compile, `warning` where this check can't be sure.
        message: what is there and what MSL wants.
        line: 1-based line of the text that was examined.
        source: that line.
    """

    rule: Rule
    severity: Severity
    message: str
    line: int
    source: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.severity}: {self.message} [{self.rule}]\n  {self.source}"


class Parsed:
    """A text with its tokens and scopes.

    Args:
        text: MSL after the preprocessor, with the lines of the original.
        original: what the user wrote, for the lines findings show.
    """

    def __init__(self, text: str, original: str) -> None:
        self.text = text
        self.lines = original.splitlines()
        self.tokens = tokens(text)
        kernels = frozenset(match[1] for match in _INSTANCE.finditer(text))
        self.scopes, self.of_token = scopes(self.tokens, kernels)

    def finding(self, rule: Rule, severity: Severity, message: str, line: int) -> FrontFinding:
        """A finding with its source line."""
        source = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        return FrontFinding(rule, severity, message, line, source)

    def word(self, at: int) -> str:
        """The token's text, empty outside the text."""
        return self.tokens[at].text if 0 <= at < len(self.tokens) else ""

    @cached_property
    def functions(self) -> list[Scope]:
        """Functions and kernels that have a body."""
        return [scope for scope in self.scopes if scope.kind in ("function", "kernel")]

    @cached_property
    def depths(self) -> list[int]:
        """Of each token, how many round or square brackets of its scope enclose it."""
        out = []
        stack = [0]
        for token in self.tokens:
            if token.text == "}" and len(stack) > 1:
                stack.pop()
            if token.text in (")", "]"):
                stack[-1] -= 1
            out.append(stack[-1])
            if token.text in ("(", "["):
                stack[-1] += 1
            if token.text == "{":
                stack.append(0)
        return out


def doubles(parsed: Parsed) -> Iterator[FrontFinding]:
    """`double` is no type of Metal."""
    for token in parsed.tokens:
        if token.kind == "name" and re.fullmatch(r"double[234]?", token.text):
            message = f"Metal has no {token.text!r}: use float"
            yield parsed.finding("double", "error", message, token.line)
        elif token.kind == "number" and re.fullmatch(
            r"(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?[lL]", token.text
        ):
            message = f"{token.text} is a long double in C++, which Metal does not have"
            yield parsed.finding("double", "warning", message, token.line)


def threadgroup_variables(parsed: Parsed) -> list[tuple[int, Scope]]:
    """The token and scope of each definition of a variable in threadgroup memory."""
    found = []
    for at, token in enumerate(parsed.tokens):
        if token.text == "threadgroup" and parsed.depths[at] == 0 and _is_variable(parsed, at):
            found.append((at, parsed.of_token[at]))
    return found


def _is_variable(parsed: Parsed, at: int) -> bool:
    """Whether the definition around the word is of a variable in, not a pointer to, the memory."""
    start = at
    while parsed.word(start - 1) not in ("", ";", "{", "}", ":", ")", "]", ">"):
        start -= 1
        word = parsed.word(start)
        if word in ("using", "typedef", "=", "(", "<", ",", "return", "*", "&", "operator"):
            return False
    names = 0
    end = at + 1
    while (word := parsed.word(end)) not in ("", ";", "=", "{", ","):
        if word in ("*", "&", "&&"):
            return False
        if word == "<":
            close = closing(parsed.tokens, end)
            if close is None:
                return False
            end = close
        elif word == "(":
            return False
        elif word == "[":
            return names > 0
        elif parsed.tokens[end].kind == "name" and word not in _STORAGE:
            names += 1
        end += 1
    return names > 0 and (word in (";", "=", "{") or (word == "," and names > 1))


def threadgroup_scope(parsed: Parsed) -> Iterator[FrontFinding]:
    """Threadgroup variables belong into a kernel."""
    for at, scope in threadgroup_variables(parsed):
        line = parsed.tokens[at].line
        function = scope.function
        if scope.kind in ("file", "namespace"):
            what = "at program scope"
        elif scope.kind == "class":
            what = "in a class"
        elif function is None or function.kind != "kernel":
            what = f"in {function.name!r}, which is no kernel" if function else "in no kernel"
        else:
            continue
        message = f"a threadgroup variable {what}: declare it in the kernel and pass a pointer"
        yield parsed.finding("threadgroup-scope", "error", message, line)


def program_scope(parsed: Parsed) -> Iterator[FrontFinding]:
    """Variables at program scope belong into `constant` memory."""
    for at, token in enumerate(parsed.tokens):
        starts = parsed.word(at - 1) in ("", ";", "}", "{")
        if (
            not starts
            or parsed.of_token[at].kind not in ("file", "namespace")
            or (token.text not in ("const", "static", "constexpr", "inline"))
        ):
            continue
        end = at
        while parsed.word(end) not in ("", ";", "=", "{", "("):
            end += 1
        words = {part.text for part in parsed.tokens[at:end]}
        if parsed.word(end) in (";", "=") and not words & (SPACES | {"struct", "template"}):
            message = "Metal wants variables at program scope in the constant address space"
            yield parsed.finding("program-scope", "warning", message, token.line)


@dataclass(frozen=True)
class Cycle:
    """Functions that call each other by name.

    Attributes:
        names: the functions, in the order of the calls.
        line: of the first call.
        is_certain: whether the names alone prove it: no overloads, templates or methods.
        is_direct: whether all calls are of a bare name, not of an object or another scope.
    """

    names: tuple[str, ...]
    line: int
    is_certain: bool
    is_direct: bool


def cycles(parsed: Parsed, builtins: frozenset[str]) -> list[Cycle]:
    """Groups of functions of the text that may call themselves, one cycle of each function."""
    by_name: dict[str, list[Scope]] = {}
    for scope in parsed.functions:
        if scope.name and scope.name != "operator":
            by_name.setdefault(scope.name, []).append(scope)
    calls = {name: _calls(parsed, name, by_name) for name in by_name}
    found: list[Cycle] = []
    seen: set[frozenset[str]] = set()
    for name in by_name:
        path = _cycle(name, calls)
        if path is None or frozenset(path) in seen:
            continue
        seen.add(frozenset(path))
        steps = [calls[each][path[(at + 1) % len(path)]] for at, each in enumerate(path)]
        is_direct = all(each.is_direct for each in steps)
        is_certain = is_direct and all(
            len(by_name[each]) == 1
            and each not in builtins
            and not _is_template(parsed, by_name[each][0])
            and not _is_method(by_name[each][0])
            for each in path
        )
        found.append(Cycle(tuple(path), steps[0].line, is_certain, is_direct))
    return found


def _is_template(parsed: Parsed, scope: Scope) -> bool:
    return any(token.text == "template" for token in parsed.tokens[scope.head[0] : scope.head[1]])


def _is_method(scope: Scope) -> bool:
    return scope.parent is not None and scope.parent.kind == "class"


@dataclass(frozen=True)
class _Call:
    line: int
    is_direct: bool


def _calls(parsed: Parsed, name: str, by_name: dict[str, list[Scope]]) -> dict[str, _Call]:
    """Which functions of the text the bodies of `name` call, with the first call of each."""
    out: dict[str, _Call] = {}
    for scope in by_name[name]:
        for at in range(scope.body[0] + 1, scope.body[1]):
            token = parsed.tokens[at]
            if token.kind != "name" or token.text not in by_name or token.text in _KEYWORDS:
                continue
            after = at + 1
            if parsed.word(after) == "<":
                end = closing(parsed.tokens, after)
                after = at if end is None else end + 1
            if parsed.word(after) != "(" or _is_declared(parsed, at):
                continue
            is_direct = (
                parsed.word(at - 1) not in (".", "->", "::") or parsed.word(at - 2) == "this"
            )
            if token.text not in out or is_direct > out[token.text].is_direct:
                out[token.text] = _Call(token.line, is_direct)
    return out


def _is_declared(parsed: Parsed, at: int) -> bool:
    """Whether `name (` there is another function's: `metal::name(`, or a definition `T name(`."""
    before = parsed.word(at - 1)
    if before == "::":
        return parsed.word(at - 2) in ("metal", "precise", "fast", "simd")
    is_type = parsed.tokens[at - 1].kind == "name" if at else False
    return is_type and before not in ("return", "else", "do", "case")


def _cycle(start: str, calls: dict[str, dict[str, _Call]]) -> list[str] | None:
    """The shortest path of calls from `start` back to it."""
    paths = [[start]]
    seen = {start}
    while paths:
        path = paths.pop(0)
        for called in calls[path[-1]]:
            if called == start:
                return path
            if called not in seen:
                seen.add(called)
                paths.append([*path, called])
    return None
