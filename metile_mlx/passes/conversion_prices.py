"""What the planner would make of a conversion, for who decides which conversions there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from metile_mlx.context import Context
from metile_mlx.dtypes import DType
from metile_mlx.errors import CompileError
from metile_mlx.ir.core import Func, Value
from metile_mlx.ir.types import TileType
from metile_mlx.layout.exchange import Memory, exchanges
from metile_mlx.layout.thread_layout import ThreadLayout, transition
from metile_mlx.passes.conversion_choice import is_wanted
from metile_mlx.passes.plan_conversions import WIRE, capacities
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
    def capacities(self) -> Mapping[DType, int]:
        try:
            return capacities(self.func, self.ctx)
        except CompileError:
            # Something has to go before it can be planned; then there is memory for the rest.
            return {}

    def _price(self, source: ThreadLayout, destination: ThreadLayout, wire: DType) -> Price:
        moves = transition(source, destination)
        if moves.is_identity:
            return Price()
        whole = self.ctx.target.threadgroup_bytes - partial_bytes(self.func)
        bytes_ = self.capacities.get(wire, whole)
        banks = self.ctx.target.language != "cpp"
        memory = Memory(wire.bytes, max(bytes_ // wire.bytes, self.func.threads), banks)
        schedule = self.ctx.schedule
        legal = [
            each.cost
            for each in exchanges(moves, self.func.threads, memory)
            if is_wanted(each, schedule.conversion)
            and not (schedule.staging == "device" and each.rounds)
        ]
        if not legal:
            return Price(refused=1)
        cost = min(legal, key=lambda each: each.total)
        return Price(0, cost.barriers, cost.total, cost.bytes)
