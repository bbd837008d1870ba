"""The order of accesses to one piece of threadgroup memory, over tiles and over threads alike.

Between two barriers threads run in any order. So a store and a load of one buffer, or two stores,
never stand between the same two barriers; several stores do where they write different elements.
What a release barrier has given up is not read again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from metile_mlx.dtypes import DType, f16, f32, i32, u16, u32
from metile_mlx.ir.core import Op
from metile_mlx.layout.affine import Indices
from metile_mlx.verify.findings import Finding

WIRE_DTYPES = (f16, f32, i32, u32, u16)
"""What may travel between threads: bool goes as u32, bf16 as u16 (SPEC C3)."""


@dataclass
class ScratchOrder:
    """The accesses of one allocation so far.

    Attributes:
        stored: the store since the last barrier, if that was the last access.
        loaded: the load since the last barrier, if that was the last access.
        written: the elements stored to since the last barrier.
        readable: the elements that a barrier has published since.
    """

    slot: str
    dtype: DType
    elements: int
    stored: Op | None = None
    loaded: Op | None = None
    written: NDArray[np.bool_] = field(init=False)
    readable: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.written = np.zeros(max(self.elements, 0), np.bool_)
        self.readable = self.written.copy()

    def store(self, item: Op, at: Indices | None = None) -> str:
        """Note a store to elements `at` (None: any); what is wrong with it, or nothing."""
        message = ""
        place = self._inside(at)
        if self.loaded is not None:
            message = (
                f"overwrites {self.slot} while the load of line {self.loaded.loc.line} may still "
                "read it, expected a release barrier between them"
            )
        elif self.stored is not None and self.written[place].any():
            message = (
                f"overwrites {self.slot} beside the store of line {self.stored.loc.line}, expected "
                "a barrier between them"
            )
        self.stored, self.loaded = item, None
        self.written[place] = True
        self.readable[:] = False
        return message

    def load(self, item: Op, at: Indices | None = None) -> str:
        """Note a load of elements `at`; what is wrong with it, or nothing.

        None: of some that the caller knows to be written, if any are.
        """
        message = ""
        if self.stored is not None:
            message = (
                f"reads {self.slot} before the store of line {self.stored.loc.line} is published, "
                "expected a barrier between them"
            )
        elif not self.readable.any():
            message = f"reads {self.slot}, which holds no published elements"
        elif at is not None and not self.readable[self._inside(at)].all():
            message = f"reads elements of {self.slot} that no store has published"
        self.stored, self.loaded = None, item
        return message

    def _inside(self, at: Indices | None) -> Indices:
        """Those of `at` that exist: others have a finding of their own."""
        if at is None:
            return np.arange(self.written.size)
        return at[(at >= 0) & (at < self.written.size)]

    def barrier(self, role: str) -> list[Finding]:
        """All threads have met; what this barrier should not have found open.

        One that rotates stages publishes what has been stored and releases what has been read.
        """
        open_stores = self._open_stores() if role == "release" else []
        open_loads = self._open_loads() if role == "publish" else []
        if self.stored is not None:
            self.readable = self.written.copy()
        elif self.loaded is not None:
            self.readable[:] = False
        self.written[:] = False
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
