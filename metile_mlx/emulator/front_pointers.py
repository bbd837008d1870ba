"""Pointers and references that name no address space."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from metile_mlx.emulator.front_rules import FrontFinding, Parsed, Severity
from metile_mlx.emulator.front_tokens import CV, SPACES, closing, opening

_INTEGERS = ("char", "uchar", "short", "ushort", "int", "uint", "long", "ulong")
_SCALARS = (*_INTEGERS, "bool", "half", "bfloat", "float")
BUILTIN_TYPES = frozenset(
    [
        *_SCALARS,
        *(f"{prefix}{name}{n}" for prefix in ("", "packed_") for name in _SCALARS for n in "234"),
        *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
        *(f"{name}{c}x{r}" for name in ("float", "half") for c in "234" for r in "234"),
        *(f"simdgroup_{name}8x8" for name in ("float", "half", "bfloat")),
        *["void", "unsigned", "signed", "size_t", "ptrdiff_t", "uintptr_t", "intptr_t"],
        *["atomic_int", "atomic_uint", "atomic_bool", "atomic_float", "atomic_ulong"],
        *["bfloat16_t", "float16_t", "complex64_t", "complex_t", "double"],
    ]
)
BUILTIN_TEMPLATES = frozenset(
    [
        "vec",
        "packed_vec",
        "atomic",
        "simdgroup_matrix",
        "array",
        "matrix",
        "complex_t",
        "conditional_t",
        "enable_if_t",
        "remove_reference_t",
        "remove_cv_t",
    ]
)
_INTEGER_WORDS = frozenset({"unsigned", "signed", "long", "short", "char", "int"})
_NOT_NAMES = frozenset({"typename", "class", "struct", "union", "enum", "using", "typedef"})
_AFTER = CV | SPACES | {")", ",", ">", "*", "&", "[", ".", ";", "{", "=", "("}


@dataclass(frozen=True)
class _Types:
    """Names that are types: everywhere, and template parameters between two tokens."""

    known: frozenset[str]
    templates: frozenset[str]
    with_space: frozenset[str]
    parameters: tuple[tuple[str, int, int], ...]

    def is_parameter(self, name: str, at: int) -> bool:
        return any(name == each and a <= at <= b for each, a, b in self.parameters)


def missing(parsed: Parsed) -> Iterator[FrontFinding]:
    """A finding for every `*` or `&` of a declaration whose pointee names no address space."""
    types = _types(parsed)
    declarators: set[int] = set()
    for at, token in enumerate(parsed.tokens):
        if token.text not in ("*", "&", "&&") or not _can_follow(parsed, at):
            continue
        described = _pointee(parsed, at, types, declarators)
        if described is None:
            continue
        declarators.add(at)
        name, has_space, is_dependent, first = described
        if has_space:
            continue
        kind = "pointer" if token.text == "*" else "reference"
        severity, why = _severity(parsed, at, first, name, is_dependent)
        yield parsed.finding(
            "address-space-missing",
            severity,
            f"a {kind} to {name!r} without an address space{why}: write device, constant, "
            "threadgroup or thread before the type",
            token.line,
        )


def _severity(
    parsed: Parsed, at: int, first: int, name: str, is_dependent: bool
) -> tuple[Severity, str]:
    if is_dependent:
        return "warning", ""
    before, after = parsed.word(first - 1), parsed.word(at + 1)
    while after in CV:
        at += 1
        after = parsed.word(at + 1)
    if after == ">":
        return "warning", " in a template argument"
    in_function = parsed.of_token[at].function is not None
    if after == ")" and before == "(" and in_function:
        return "warning", " in a cast"
    head = first
    while parsed.word(head - 1) not in ("", ";", "{", "}"):
        head -= 1
        if parsed.word(head) in ("using", "typedef"):
            return "warning", " in a type alias"
    return "error", ""


def _can_follow(parsed: Parsed, at: int) -> bool:
    after = at + 1
    if after >= len(parsed.tokens):
        return False
    return parsed.tokens[after].kind == "name" or parsed.word(after) in _AFTER


def _pointee(
    parsed: Parsed, at: int, types: _Types, declarators: set[int]
) -> tuple[str, bool, bool, int] | None:
    """What the declarator at `at` points to: name, has a space, is dependent, first token."""
    word = parsed.word
    back = at - 1
    if word(back) == "(":
        # `float (&x)[4]`, not the call `float(&x)`.
        end = closing(parsed.tokens, back)
        if end is None or word(end + 1) not in ("[", "("):
            return None
        back -= 1
    has_space = False
    while word(back) in CV | SPACES:
        has_space |= word(back) in SPACES
        back -= 1
    if word(back) in ("*", "&", "&&"):
        if back not in declarators:
            return None
        # Apple's compiler takes `device T*& p`; of `device T** p` its answer is not known.
        return "a pointer", has_space or word(at) != "*", True, back
    core = _core(parsed, back, types)
    if core is None:
        return None
    name, first, is_dependent = core
    has_space |= name in types.with_space
    while word(first - 1) in CV | SPACES | {"typename", "static", "constexpr", "inline", "struct"}:
        first -= 1
        has_space |= word(first) in SPACES
        is_dependent |= word(first) == "typename"
    return name, has_space, is_dependent, first


def _core(parsed: Parsed, end: int, types: _Types) -> tuple[str, int, bool] | None:
    """The type whose last token is at `end`: its name, first token, whether it is dependent."""
    word = parsed.word
    first = end
    is_dependent = False
    if word(end) == ">":
        start = opening(parsed.tokens, end)
        if start is None or word(start - 1) not in types.templates:
            return None
        first = start - 1
    elif word(end) == ")":
        start = _decltype(parsed, end)
        return None if start is None else ("decltype(...)", start, True)
    elif end < 0 or parsed.tokens[end].kind != "name":
        return None
    name = word(first)
    if word(end) != ">":
        if name == "auto":
            return "auto", first, True
        is_dependent = types.is_parameter(name, end)
        if not is_dependent and name not in types.known and word(first - 1) != "::":
            return None
        while name in _INTEGER_WORDS and word(first - 1) in _INTEGER_WORDS:
            first -= 1
    return _qualified(parsed, first, name, types, is_dependent)


def _qualified(
    parsed: Parsed, first: int, name: str, types: _Types, is_dependent: bool
) -> tuple[str, int, bool] | None:
    """With `metal::` before it; `T::member` only where `typename` says that it is a type."""
    word = parsed.word
    last = first
    while word(first - 1) == "::" and (
        parsed.tokens[first - 2].kind == "name" or word(first - 2) == ">"
    ):
        first -= 2
        if word(first) == ">":
            start = opening(parsed.tokens, first)
            if start is None:
                return None
            first = start - 1
    if first < last and not (name in types.known or name in types.templates):
        return (name, first, True) if word(first - 1) == "typename" else None
    return name, first, is_dependent


def _decltype(parsed: Parsed, end: int) -> int | None:
    depth = 0
    for at in range(end, -1, -1):
        depth += (parsed.word(at) == ")") - (parsed.word(at) == "(")
        if depth == 0:
            return at - 1 if parsed.word(at - 1) == "decltype" else None
    return None


def _types(parsed: Parsed) -> _Types:
    known = set(BUILTIN_TYPES)
    templates = set(BUILTIN_TEMPLATES)
    typedefs: set[str] = set()
    with_space: set[str] = set()
    parameters: list[tuple[str, int, int]] = []
    for at, token in enumerate(parsed.tokens):
        name = parsed.word(at + 1)
        if token.text in ("struct", "class", "union") and parsed.word(at - 1) not in ("<", ","):
            (templates if _templated(parsed, at) else known).add(name)
        elif token.text == "using" and parsed.word(at + 2) == "=":
            known.add(name)
            if _templated(parsed, at):
                templates.add(name)
            if _alias_space(parsed, at + 3):
                with_space.add(name)
        elif token.text == "typedef":
            end = at
            while parsed.word(end) not in ("", ";"):
                end += 1
            typedefs.add(parsed.word(end - 1))
            if _alias_space(parsed, at + 1):
                with_space.add(parsed.word(end - 1))
        elif token.text == "template" and name == "<":
            parameters += _parameters(parsed, at)
    shadowed = _variables(parsed) - typedefs - BUILTIN_TYPES
    return _Types(
        frozenset(known | typedefs) - shadowed,
        frozenset(templates),
        frozenset(with_space),
        tuple(each for each in parameters if each[0] not in shadowed),
    )


def _templated(parsed: Parsed, at: int) -> bool:
    return parsed.word(at - 1) == ">"


def _alias_space(parsed: Parsed, at: int) -> bool:
    """Whether an alias names memory itself: `using T = device float`, not a pointer to it."""
    words = []
    while parsed.word(at) not in ("", ";"):
        words.append(parsed.word(at))
        at += 1
    return bool(SPACES & set(words)) and "*" not in words and "&" not in words


def _parameters(parsed: Parsed, at: int) -> Iterator[tuple[str, int, int]]:
    """The type parameters of `template <...>`, with the tokens of what it declares."""
    close = closing(parsed.tokens, at + 1)
    if close is None:
        return
    end = close + 1
    while parsed.word(end) not in ("", ";", "{"):
        end += 1
    if parsed.word(end) == "{":
        end = closing(parsed.tokens, end) or len(parsed.tokens)
    for each in range(at + 2, close):
        if parsed.word(each) in ("typename", "class") and parsed.word(each - 1) in ("<", ","):
            name = each + 1
            while parsed.word(name) == ".":
                name += 1
            yield parsed.word(name), close, end


def _variables(parsed: Parsed) -> frozenset[str]:
    """Names declared as parameters or variables after a type or a declarator."""
    names = set()
    for at in range(1, len(parsed.tokens) - 1):
        token, before, after = parsed.tokens[at], parsed.tokens[at - 1], parsed.word(at + 1)
        if token.kind != "name" or before.text in _NOT_NAMES or token.text in CV | SPACES:
            continue
        is_attribute = after == "[" and parsed.word(at + 2) == "["
        if (before.text in ("auto", *_SCALARS) and after in ("=", ";", ",", ")", "[")) or (
            is_attribute and (before.kind == "name" or before.text in ("*", "&", ">"))
        ):
            names.add(token.text)
    return frozenset(names)
