"""From the text MLX hands to Metal to text that clang compiles as C++.

Three things of MSL have no C++ spelling and are rewritten, each within its line so that line
numbers stay: a float literal without suffix is a float, a variable in `threadgroup` memory becomes
a reference to the threadgroup's instance of it, and the instantiation MLX appends to a template
becomes a call in the entry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from metile_mlx.emit.reserved import ATTRIBUTES
from metile_mlx.errors import CompileError

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<space>\s+)
    |(?P<other>.)""",
    re.X | re.S,
)
_FLOAT = re.compile(
    r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|0[xX][\da-fA-F.]+[pP][+-]?\d+"
)
_NARROW = re.compile(rf"(?P<value>{_FLOAT.pattern}|\d+)(?P<suffix>h|H|bf|BF)")
_INSTANCE = re.compile(
    r"template\s*\[\[\s*host_name\(\s*\"(?P<host>\w+)\"\s*\)\s*\]\]\s*\[\[\s*kernel\s*\]\]"
    r"\s*decltype\((?P<call>.+?)\)\s*(?P=call)\s*;",
    re.S,
)


@dataclass(frozen=True)
class Parameter:
    """A parameter of the kernel: a buffer with its C++ type, or an attribute."""

    name: str
    kind: str
    is_buffer: bool


@dataclass(frozen=True)
class Signature:
    """A kernel's name with template arguments, as called, and its parameters in order."""

    call: str
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True)
class Token:
    kind: str
    text: str


def tokens(text: str) -> list[Token]:
    """The text as tokens that join to it again."""
    return [Token(match.lastgroup or "other", match[0]) for match in _TOKEN.finditer(text)]


def rewrite(text: str) -> str:
    """The body of a C++ translation unit, with the same lines."""
    text = _INSTANCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    parts = tokens(text)
    out: list[str] = []
    at = 0
    sites = 0
    while at < len(parts):
        token = parts[at]
        if token.kind == "name" and token.text == "threadgroup":
            end = _variable_end(parts, at)
            if end is not None:
                variables = _shared(parts[at + 1 : end], sites)
                out.append(" ".join(variables))
                sites += len(variables)
                at = end + 1
                continue
        out.append(_number(token.text) if token.kind == "number" else token.text)
        at += 1
    return "".join(out)


def _number(text: str) -> str:
    """A literal as C++ has it: unsuffixed floats are float, `h` and `bf` name a narrow type."""
    if _FLOAT.fullmatch(text):
        return text + "f"
    match = _NARROW.fullmatch(text)
    if match is None:
        return text
    value = match["value"] if match["value"].isdigit() else match["value"] + "f"
    return f"{'half' if match['suffix'] in 'hH' else 'bfloat'}({value})"


def _variable_end(parts: list[Token], start: int) -> int | None:
    """The index of the `;` of a variable definition, None where the word qualifies a pointee."""
    depth = 0
    is_declared = False
    for at in range(start + 1, len(parts)):
        text = parts[at].text
        if parts[at].kind in ("space", "comment"):
            continue
        if text in "([<":
            depth += 1
        elif text in ")]>":
            depth -= 1
            if depth < 0:
                return None
        elif depth == 0 and text in ("*", "&", "=", "{", "}", ":"):
            # `A::B` is a type; a lone colon is not part of a definition.
            neighbours = (parts[at - 1].text, parts[at + 1].text if at + 1 < len(parts) else "")
            if text != ":" or ":" not in neighbours:
                return None
        elif depth == 0 and text == ";":
            return at if is_declared else None
        elif depth == 0 and text == "," and not is_declared:
            return None
        if parts[at].kind == "name":
            is_declared = True
    return None


def _shared(parts: list[Token], site: int) -> list[str]:
    """`T a[8], b` -> a reference to the threadgroup's instance of each, on the same lines."""
    text = "".join(token.text for token in parts)
    pieces = _split(text)
    head = re.match(r"(?P<type>.*?)(?P<name>[A-Za-z_]\w*)(?P<dims>\s*(?:\[.*)?)$", pieces[0], re.S)
    if head is None:
        raise CompileError(f"the threadgroup variable {text.strip()!r} can't be read")
    declarators = [(head["name"], head["dims"])]
    for piece in pieces[1:]:
        match = re.match(r"\s*([A-Za-z_]\w*)(\s*(?:\[.*)?)$", piece, re.S)
        if match is None:
            raise CompileError(f"the threadgroup variable {text.strip()!r} can't be read")
        declarators.append((match[1], match[2]))
    kind = re.sub(r"\b(?:static|volatile)\b", "", head["type"])
    out = []
    for index, (name, dims) in enumerate(declarators):
        alias = f"metile_type_{site + index}"
        out.append(
            f"typedef {kind} {alias}{dims}; {alias}& {name} = "
            f'metal::metile_shared<{alias}, {site + index}>("{name}");'
        )
    return out


def _split(text: str) -> list[str]:
    """At the commas that are in no bracket."""
    pieces = [""]
    depth = 0
    for char in text:
        depth += (char in "([{<") - (char in ")]}>")
        if char == "," and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += char
    return pieces


def signature(name: str, text: str) -> Signature:
    """The kernel `name` of a text MLX recorded.

    Raises:
        CompileError: the text has no such kernel.
    """
    start = re.search(rf"\[\[kernel\]\] void {re.escape(name)}\(\n", text)
    end = text.find(") {\n", start.end()) if start else -1
    if start is None or end < 0:
        raise CompileError(f"the text has no kernel {name}")
    parameters = tuple(_parameter(line) for line in text[start.end() : end].split(",\n"))
    call = next((m["call"] for m in _INSTANCE.finditer(text) if m["host"] == name), name)
    return Signature(call, parameters)


def _parameter(line: str) -> Parameter:
    match = re.match(r"\s*(?P<type>.*?)\s*(?P<name>\w+)\s*\[\[(?P<attribute>.*?)\]\]\s*$", line)
    if match is None:
        raise CompileError(f"the parameter {line.strip()!r} can't be read")
    return Parameter(match["name"], match["type"], match["attribute"].startswith("buffer"))


_FIXED = {
    "thread_execution_width": "32u",
    "threads_per_simdgroup": "32u",
    "grid_origin": "uint3(0u)",
    "grid_size": "metal::metile_attribute(a->threads_per_grid)",
}


def entry(signature: Signature, symbol: str) -> str:
    """The functions the runtime calls: one for a thread, and `symbol` for a launch."""
    arguments = []
    buffers = 0
    for parameter in signature.parameters:
        if parameter.is_buffer:
            arguments.append(f"metal::metile_argument<{parameter.kind}>::from(b[{buffers}])")
            buffers += 1
        elif parameter.name in _FIXED:
            arguments.append(_FIXED[parameter.name])
        elif parameter.name in ATTRIBUTES:
            arguments.append(f"metal::metile_attribute(a->{parameter.name})")
        else:
            raise CompileError(f"the kernel attribute {parameter.name} is unknown")
    joined = ",\n    ".join(arguments)
    return (
        '\n#line 1 "entry"\n'
        f"static void {symbol}_thread(void* const* b, const metile_thread* a) {{\n"
        f"  {signature.call}(\n    {joined});\n}}\n"
        f'extern "C" __attribute__((visibility("default"))) metile_u32 {symbol}('
        "metile_launch* launch) {\n"
        f"  return metile_run(launch, &{symbol}_thread);\n}}\n"
    )
