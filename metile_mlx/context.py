"""What travels with a compilation: stage, schedule, target, and the report being written."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from metile_mlx.errors import CompileError
from metile_mlx.report import ExecutionReport
from metile_mlx.target import Target


class Stage(IntEnum):
    """How far a Func has come; each stage states what its IR may hold (verify/structure.py)."""

    TILE = 0  # typed SSA over tiles
    OWNED = 1  # every tile type has a layout; no two owners meet
    PLANNED = 2  # conversions are shuffles or scratch with explicit barriers
    THREAD = 3  # metal ops only


@dataclass(frozen=True)
class Schedule:
    """How to compile, never what (SPEC K8).

    Args:
        vector_width: 1 turns memory grouping off; None lets the compiler group; 4 is for kernels
            without explicit ownership.
        staging: `threadgroup` or `device`; None lets the compiler choose.
        backend: `simdgroup` or None: how matrix operations run.
        double_buffer: stage the canonical matrix loop twice.
        conversion: `auto`, `shuffle` or `scratch`: how layout conversions communicate.

    Raises:
        CompileError: a value outside these.
    """

    vector_width: int | None = None
    staging: str | None = None
    backend: str | None = None
    double_buffer: bool = False
    conversion: str = "auto"

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed or isinstance(value, bool) != (name == "double_buffer"):
                expected = ", ".join(repr(item) for item in allowed)
                raise CompileError(f"Schedule({name}={value!r}): expected one of {expected}")


_ALLOWED: dict[str, tuple[object, ...]] = {
    "vector_width": (None, 1, 4),
    "staging": (None, "threadgroup", "device"),
    "backend": (None, "simdgroup"),
    "double_buffer": (False, True),
    "conversion": ("auto", "shuffle", "scratch"),
}


@dataclass
class Context:
    """One compilation.

    Attributes:
        target: limits and language.
        schedule: the user's wishes.
        index_bits: width of memory offsets, 32 or 64 (SPEC X8).
        masked_outputs: names of read_write parameters that get a written-mask output (SPEC K7).
        propagate_ranges: False forgets the ranges of values, to count what they remove (SPEC R5).
        report: facts; passes append to it.
    """

    target: Target
    schedule: Schedule = Schedule()
    index_bits: int = 32
    masked_outputs: frozenset[str] = frozenset()
    math_mode: str = "safe"
    propagate_ranges: bool = True
    report: ExecutionReport = field(default_factory=ExecutionReport)
