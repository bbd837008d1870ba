"""A function's source text, read and parsed once, and every node's place in the file (SPEC K1)."""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass
from types import FunctionType

from metile_mlx.errors import CompileError, Loc

Node = ast.expr | ast.stmt | ast.arg | ast.keyword


@dataclass(frozen=True, eq=False)
class Source:
    """The text of one function and its syntax tree.

    Attributes:
        file: path as Python reports it.
        first: number in the file of `lines[0]`.
        lines: the function's lines, decorators included, not dedented.
        node: the parsed `def`.
        shift: lines that parsing put before the text.
    """

    file: str
    first: int
    lines: tuple[str, ...]
    node: ast.FunctionDef
    shift: int

    def line(self, node: Node) -> int:
        """The node's line in the file."""
        return node.lineno - self.shift + self.first - 1

    def loc(self, node: Node) -> Loc:
        """The node's span in the file; of a node over several lines, its first line."""
        text = self._text(node.lineno)
        start = _column(text, node.col_offset)
        if node.end_lineno == node.lineno and node.end_col_offset is not None:
            end = _column(text, node.end_col_offset)
        else:
            end = len(text.rstrip()) + 1
        return Loc(self.file, self.line(node), start, end, text)

    def head(self) -> Loc:
        """The span of `def name`."""
        text = self._text(self.node.lineno)
        start = _column(text, self.node.col_offset)
        after_name = text.find(self.node.name, start) + len(self.node.name) + 1
        return Loc(self.file, self.line(self.node), start, after_name, text)

    def _text(self, lineno: int) -> str:
        return self.lines[lineno - self.shift - 1].rstrip("\r\n")


def _column(text: str, offset: int) -> int:
    """Column from 1 in characters; the parser counts UTF-8 bytes from 0."""
    return len(text.encode()[:offset].decode()) + 1


def read_source(fn: FunctionType) -> Source:
    """The source of a function as it was when the module was imported.

    Raises:
        CompileError: there is no source text (exec, `python -c`), or it is not a `def`.
    """
    code = fn.__code__
    if code.co_name == "<lambda>":
        raise CompileError(
            "a lambda can't be a kernel", hint="write it as `def name(...):` with statements"
        )
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError):
        raise CompileError(
            f"no source text for {code.co_name!r} ({code.co_filename}): kernels are translated "
            "from source",
            hint="define it in a file or a notebook cell, not with exec or `python -c`",
        ) from None
    return _parse(fn, tuple(lines), first)


def _parse(fn: FunctionType, lines: tuple[str, ...], first: int) -> Source:
    code = fn.__code__
    # A nested function keeps its indentation under an `if`, so that columns stay those of the file.
    shift = 1 if lines[0][:1].isspace() else 0
    try:
        tree = ast.parse("if 1:\n" * shift + "".join(lines))
    except SyntaxError:
        raise _changed(fn) from None
    body = tree.body
    if shift and isinstance(body[0], ast.If):
        body = body[0].body
    node = body[0]
    if isinstance(node, ast.AsyncFunctionDef):
        raise CompileError(f"{code.co_name!r} is an async function", hint="use a plain `def`")
    if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
        raise _changed(fn)
    return Source(code.co_filename, first, lines, node, shift)


def _changed(fn: FunctionType) -> CompileError:
    code = fn.__code__
    return CompileError(
        f"the source of {code.co_name!r} is no longer at {code.co_filename}:{code.co_firstlineno}",
        hint="the file changed after it was imported: import it again",
    )
