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
        stored: the store since the last barrier, if that was the last access.
        loaded: the load since the last barrier, if that was the last access.
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
        self.stored, self.loaded = item, None
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
        self.stored, self.loaded = None, item
        return message

    def barrier(self, role: str) -> list[Finding]:
        """All threads have met; what this barrier should not have found open."""
        open_stores = self._open_stores() if role == "release" else []
        open_loads = self._open_loads() if role == "publish" else []
        self.readable = self.stored is not None or (self.readable and self.loaded is None)
        self.stored = self.loaded = None
        return open_stores + open_loads

    def end(self) -> list[Finding]:
        """What no barrier has closed at the end of the kernel."""
        return self._open_stores() + self._open_loads()

    def _open_stores(self) -> list[Finding]:
        text = f"no publication barrier follows its write to {self.slot}"
        return [] if self.stored is None else [Finding(self.stored, text)]

    def _open_loads(self) -> list[Finding]:
        text = f"no release barrier follows its read of {self.slot}"
        return [] if self.loaded is None else [Finding(self.loaded, text)]
