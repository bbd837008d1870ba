"""What the planner would make of a conversion, for who decides which conversions there are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from metile_mlx.context import Context
from metile_mlx.dtypes import DType
from metile_mlx.errors import CompileError
from metile_mlx.ir.core import Func, Value
from metile_mlx.ir.types import TileType
from metile_mlx.layout.exchange import exchanges
from metile_mlx.layout.thread_layout import ThreadLayout, transition
from metile_mlx.passes.conversion_choice import is_allowed
from metile_mlx.passes.plan_conversions import WIRE, Survey, memory, survey
from metile_mlx.passes.plan_reductions import partial_bytes

Sum = tuple[int, int, int]
"""Prices added up, compared from the left: refused, barriers, total."""


@dataclass(frozen=True)
class Price:
    """Of one conversion.

    Attributes:
        refused: 1 where the schedule forbids every lowering.
        barriers: of the threadgroup.
        total: as layout/costs.py weighs it.
        bytes: of threadgroup memory; what several conversions need is the most of them.
    """

    refused: int = 0
    barriers: int = 0
    total: int = 0
    bytes: int = 0

    def within(self, limit: int) -> Sum:
        """With more than `limit` bytes it is as bad as one that is refused."""
        return self.refused + (self.bytes > limit), self.barriers, self.total


class Prices:
    """Prices in one kernel, each worked out once, with the scratch that it has as it is."""

    def __init__(self, func: Func, ctx: Context) -> None:
        self.func = func
        self.ctx = ctx
        self.known: dict[tuple[ThreadLayout, ThreadLayout, DType], Price] = {}

    def between(self, source: ThreadLayout, destination: ThreadLayout, like: Value) -> Price:
        """The price of converting a tile of the dtype of `like`."""
        assert isinstance(like.type, TileType)
        key = (source, destination, WIRE.get(like.type.dtype, like.type.dtype))
        if key not in self.known:
            self.known[key] = self._price(*key)
        return self.known[key]

    @cached_property
    def survey(self) -> Survey | None:
        """What is planned of the kernel as it is; None where the schedule refuses that."""
        try:
            return survey(self.func, self.ctx)
        except CompileError:
            # Something has to go before it can be planned; then there is memory for the rest.
            return None

    @cached_property
    def whole(self) -> int:
        """Bytes of threadgroup memory that conversions may use together."""
        return self.ctx.target.threadgroup_bytes - partial_bytes(self.func)

    def hold(self, made: Func) -> bool:
        """Whether a kernel made of this one has no more barriers, as the planner counts them.

        Prices are those of this kernel's scratch. What another needs may be divided otherwise
        between dtypes, and a dtype that gets less takes more rounds.
        """
        if self.survey is None or all(s >= self.whole for s in self.survey.capacities.values()):
            # Each conversion had all of the memory, and needs no more of it than before.
            return True
        return survey(made, self.ctx).barriers <= self.survey.barriers

    def _price(self, source: ThreadLayout, destination: ThreadLayout, wire: DType) -> Price:
        moves = transition(source, destination)
        if moves.is_identity:
            return Price()
        known = {} if self.survey is None else self.survey.capacities
        # One register of all threads is planned for even where it does not fit.
        bytes_ = max(known.get(wire, self.whole), self.func.threads * wire.bytes)
        found = exchanges(moves, self.func.threads, memory(wire, bytes_, self.ctx.target))
        legal = [each.cost for each in found if is_allowed(each, self.ctx.schedule)]
        if not legal:
            return Price(refused=1)
        cost = min(legal, key=lambda each: each.total)
        return Price(0, cost.barriers, cost.total, cost.bytes)
