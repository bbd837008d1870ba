"""Source locations, the error classes (SPEC D), and the one formatter of messages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Loc:
    """A span of one source line. Lines and columns count from 1, as compilers print them."""

    file: str
    line: int
    column: int
    end_column: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


def render(message: str, loc: Loc | None, hint: str | None, kind: str = "error") -> str:
    """`file:line:col: error: message`, the source line, a caret under the span, a `hint:` line."""
    lines = [f"{loc}: {kind}: {message}" if loc else message]
    if loc and loc.text.strip():
        width = max(1, loc.end_column - loc.column)
        # Tabs before the span are kept, so that the caret stands under it in any terminal.
        lead = "".join(c if c == "\t" else " " for c in loc.text[: loc.column - 1])
        lines += [f"  {loc.text.rstrip()}", f"  {lead}{'^' * width}"]
    if hint:
        lines.append(f"hint: {hint}")
    return "\n".join(lines)


class MetileError(Exception):
    """Base of every error this package raises on purpose.

    Args:
        message: what was given and what is allowed.
        loc: where in the kernel's source, when the error belongs to a line of a kernel.
        hint: what to change.

    Attributes:
        notes: other lines that matter, as (message, location): the call of an inlined function.
    """

    def __init__(self, message: str, loc: Loc | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.loc = loc
        self.hint = hint
        self.notes: list[tuple[str, Loc]] = []

    def __str__(self) -> str:
        notes = (render(text, loc, None, "note") for text, loc in self.notes)
        return "\n".join([render(self.message, self.loc, self.hint), *notes])


class CompileError(MetileError):
    """A kernel that can't be compiled; carries the source location."""


class LayoutError(CompileError):
    """An illegal thread layout (SPEC L4): names the value and the rule."""


class OwnershipError(CompileError):
    """Values with different owners meet in one operation (SPEC O3, O4)."""


class UnsupportedError(CompileError):
    """A construct that is legal in principle and not available here."""


class VerificationError(CompileError):
    """A compiled program breaks its contract: a bug of a pass, never of the user."""


class OutOfResources(MetileError):
    """A limit of the device: threads, threadgroup memory, buffers (SPEC X1, X9)."""


class LaunchError(MetileError):
    """Arguments of a call that do not fit the kernel's declarations (SPEC X10)."""


class BackendError(MetileError):
    """A backend that was asked for by name can't run here; says why."""
