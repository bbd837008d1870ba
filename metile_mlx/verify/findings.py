"""What a verifier found, and the one error that carries all of it."""

from __future__ import annotations

from dataclasses import dataclass

from metile_mlx.context import Stage
from metile_mlx.errors import Loc, VerificationError
from metile_mlx.ir.core import Func, Op
from metile_mlx.ir.printer import print_op


@dataclass(frozen=True)
class Finding:
    """One broken rule: what was expected and what stands there. `op` None means the kernel.

    After a `fatal` one nothing can be said about what the program does.
    """

    op: Op | None
    message: str
    fatal: bool = False


def error(func: Func, stage: Stage, findings: list[Finding]) -> VerificationError:
    """All findings as one error, located at the first."""
    count = "1 finding" if len(findings) == 1 else f"{len(findings)} findings"
    lines = [f"[verify] @{func.name} breaks the rules of stage {stage.name}: {count}"]
    for finding in findings:
        loc, text = _subject(func, finding.op)
        lines.append(f"  {loc}: {text}: {finding.message}")
    first = findings[0].op
    return VerificationError("\n".join(lines), func.loc if first is None else first.loc)


def _subject(func: Func, item: Op | None) -> tuple[Loc, str]:
    return (func.loc, f"kernel @{func.name}") if item is None else (item.loc, print_op(item))
