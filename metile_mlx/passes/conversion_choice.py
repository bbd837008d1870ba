"""Which lowering a conversion takes, and what the report says of it (SPEC C1, C5, C6, E, K8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metile_mlx.context import Schedule
from metile_mlx.errors import CompileError
from metile_mlx.ir.core import Value
from metile_mlx.ir.tile import Convert
from metile_mlx.ir.types import TileType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.costs import groups_gained
from metile_mlx.layout.steps import Choice, Exchange, Lanes
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.report import ConversionCost, LayoutConversion, place
from metile_mlx.target import LANE_BITS


@dataclass(frozen=True)
class Chosen:
    """What a conversion does; None where nothing has to move. `considered` are all lowerings."""

    exchange: Exchange | None
    considered: tuple[Exchange, ...]
    reason: str


def choose(item: Convert, found: Sequence[Exchange], schedule: Schedule) -> Chosen:
    """The cheapest lowering that the schedule allows.

    Raises:
        CompileError: it allows none.
    """
    legal = [each for each in found if is_wanted(each, schedule.conversion)]
    if not legal:
        raise CompileError(
            f"[convert_layout] Schedule(conversion='shuffle'): {_change(item)} crosses "
            "simdgroups, and a shuffle does not",
            item.loc,
            "use conversion='auto', which takes threadgroup memory where it must",
        )
    legal = [each for each in legal if is_allowed(each, schedule)]
    if not legal:
        raise CompileError(
            f"[convert_layout] Schedule(staging='device'): {_change(item)} needs an exchange "
            "through threadgroup memory",
            item.loc,
            "use staging=None or 'threadgroup', or layouts that agree on the simdgroup of "
            "every element",
        )
    best = min(legal, key=lambda each: each.cost.total)
    gained = groups_gained(_source(item.src), item.layout)
    considered = tuple(replace(x, cost=replace(x.cost, grouped=gained)) for x in found)
    chosen = considered[list(found).index(best)]
    return Chosen(chosen, considered, _reason(len(found), len(legal), schedule))


def is_allowed(exchange: Exchange, schedule: Schedule) -> bool:
    """Whether a schedule allows it."""
    is_staged = schedule.staging != "device" or not exchange.rounds
    return is_staged and is_wanted(exchange, schedule.conversion)


def is_wanted(exchange: Exchange, conversion: str) -> bool:
    """Whether `Schedule(conversion=...)` allows it."""
    match conversion:
        case "shuffle":
            return not exchange.rounds
        case "scratch":
            return exchange.mechanism == "threadgroup"
        case _:
            return True


def _reason(found: int, legal: int, schedule: Schedule) -> str:
    if found == 1:
        return "the only lowering"
    if legal == found:
        return f"the cheapest of {found} lowerings"
    wishes = [f"conversion={schedule.conversion!r}"] * (schedule.conversion != "auto")
    wishes += [f"staging={schedule.staging!r}"] * (schedule.staging == "device")
    rank = "the only one" if legal == 1 else f"the cheapest of {legal}"
    return f"{rank} of {found} lowerings that Schedule({', '.join(wishes)}) allows"


def report(item: Convert, chosen: Chosen, scratch: str | None) -> LayoutConversion:
    """The fact about one conversion; `scratch` is the name of its memory."""
    x = chosen.exchange
    cost = None if x is None else _cost(x)
    return LayoutConversion(
        item.src.name,
        item.result.name,
        str(_type(item.src).dtype),
        repr(_source(item.src)),
        repr(item.layout),
        "unchanged" if x is None else x.mechanism,
        place(item.loc),
        scratch,
        None if x is None else _lane_rule(x),
        0 if cost is None else cost.barriers,
        cost,
        [_cost(each) for each in chosen.considered],
        chosen.reason,
    )


def _cost(exchange: Exchange) -> ConversionCost:
    cost = exchange.cost
    return ConversionCost(
        exchange.mechanism,
        cost.shuffles,
        cost.selects,
        cost.stores,
        cost.loads,
        cost.barriers,
        len(exchange.rounds),
        cost.bytes,
        cost.write_conflicts,
        cost.read_conflicts,
        cost.grouped,
        cost.total,
    )


def _lane_rule(exchange: Exchange) -> str | None:
    moves = [step.moves for step in exchange.local if isinstance(step, Lanes)]
    if not moves:
        return None
    (found,) = moves
    low = (1 << LANE_BITS) - 1
    lanes = AffineMap(tuple(c & low for c in found.columns[:LANE_BITS]), found.constant & low)
    mixed = any(isinstance(step, Choice) for step in (*exchange.local, *exchange.before))
    return lane_rule(lanes) + (", XOR a number of the register" if mixed else "")


def lane_rule(lanes: AffineMap) -> str:
    """The source lane of a shuffle as text: `lane = bits (1, 0, 2, 3, 4) of lane ^ 3`.

    `bits (...)` lists, lowest first, which bit of the lane each bit of the source lane is; the XOR
    comes last. A lane that only changes by the XOR reads `lane = lane ^ 3`.
    """
    source = "lane"
    if lanes.columns != AffineMap.identity(lanes.bits).columns:
        source = f"bits {lanes.bit_order} of lane"
    return f"lane = {source}{f' ^ {lanes.constant}' if lanes.constant else ''}"


def _type(value: Value) -> TileType:
    assert isinstance(value.type, TileType)
    return value.type


def _source(value: Value) -> ThreadLayout:
    return _type(value).owners


def _change(item: Convert) -> str:
    name = f"'{item.src.name}'" if item.src.name else "the value"
    return f"{name} from {_source(item.src)!r} to {item.layout!r}"
