"""What a pass states about the metal ops around it, for a verifier to prove. Writes no text."""

from __future__ import annotations

from metile_mlx.errors import CompileError
from metile_mlx.ir.arith import CombineKind
from metile_mlx.ir.core import Effect, Op, Value, op
from metile_mlx.layout.thread_layout import ThreadLayout


@op("metal.axis_reduction", Effect.CONVERGENT)
class AxisReduction(Op):
    """States that `totals` are `sources` combined along an axis.

    Both are the register slots of a tile of `shape` that `layout` owns. The ops before combine
    them; verify/axis_reductions.py shows that they do.
    """

    kind: CombineKind
    sources: tuple[Value, ...]
    totals: tuple[Value, ...]
    shape: tuple[int, ...]
    axis: int
    layout: ThreadLayout

    def verify(self) -> None:
        slots = self.layout.elements_per_thread
        if len(self.sources) != slots or len(self.totals) != slots:
            raise CompileError(f"metal.axis_reduction takes {slots} sources and totals")
