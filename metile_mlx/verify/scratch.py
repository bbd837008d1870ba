"""The order of accesses to one piece of threadgroup memory, over tiles and over threads alike.

Between two barriers threads run in any order. So a store and a load of one buffer, or two stores,
never stand between the same two barriers. What a release barrier has given up is not read again.
"""

from __future__ import annotations

from dataclasses import dataclass

from metile_mlx.dtypes import DType, f16, f32, i32, u16, u32
from metile_mlx.ir.core import Op
from metile_mlx.verify.findings import Finding

WIRE_DTYPES = (f16, f32, i32, u32, u16)
"""What may travel between threads: bool goes as u32, bf16 as u16 (SPEC C3)."""


@dataclass
class ScratchOrder:
    """The accesses of one allocation so far.

    Attributes:
        stored: the last store not yet followed by a barrier.
        loaded: the last load not yet followed by a barrier.
        readable: whether a barrier has published what the last store wrote.
    """

    slot: str
    dtype: DType
    elements: int
    stored: Op | None = None
    loaded: Op | None = None
    readable: bool = False

    def store(self, item: Op) -> str:
        """Note a store; what is wrong with it, or nothing."""
        message = ""
        if self.loaded is not None:
            message = (
                f"overwrites {self.slot} while the load of line {self.loaded.loc.line} may still "
                "read it, expected a release barrier between them"
            )
        elif self.stored is not None:
            message = (
                f"overwrites {self.slot} beside the store of line {self.stored.loc.line}, expected "
                "a barrier between them"
            )
        self.stored = item
        self.readable = False
        return message

    def load(self, item: Op) -> str:
        """Note a load; what is wrong with it, or nothing."""
        message = ""
        if self.stored is not None:
            message = (
                f"reads {self.slot} before the store of line {self.stored.loc.line} is published, "
                "expected a barrier between them"
            )
        elif not self.readable:
            message = f"reads {self.slot}, which holds no published elements"
        self.loaded = item
        return message

    def barrier(self, role: str) -> None:
        """All threads have met."""
        self.readable = self.readable or self.stored is not None
        if self.loaded is not None and role == "release":
            self.readable = False
        self.stored = self.loaded = None

    def end(self) -> list[Finding]:
        """Accesses at the end of the kernel that no barrier has closed."""
        findings = []
        if self.stored is not None:
            findings.append(
                Finding(self.stored, f"no barrier publishes what this stores to {self.slot}")
            )
        if self.loaded is not None:
            findings.append(Finding(self.loaded, f"no release barrier follows; {self.slot} leaks"))
        return findings
