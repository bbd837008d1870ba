"""Drop the layout conversions that move nothing new, each with a proof (SPEC S1-S3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from metile_mlx.analysis.copies import Copy, Family, copies, layout_of
from metile_mlx.context import Context
from metile_mlx.ir.core import Builder, Func, Op, Value, walk
from metile_mlx.ir.dead_code import eliminate_dead_code
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.rewrite import rewrite
from metile_mlx.ir.tile import (
    Binary,
    Bitcast,
    Cast,
    Compare,
    Convert,
    Fma,
    Select,
    Splat,
    Tensor,
    Unary,
)
from metile_mlx.ir.types import TileType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.conversion_choice import Chosen
from metile_mlx.passes.conversion_choice import report as conversion_fact
from metile_mlx.passes.conversion_prices import Price, Prices, Sum
from metile_mlx.report import LayoutOptimization, place

POINTWISE = (Unary, Binary, Compare, Select, Cast, Bitcast, Fma)


def simplify_layouts(func: Func, ctx: Context) -> Func:
    """Drop what conversions move for nothing, and take the rest from the cheapest source.

    Needs and leaves Stage.OWNED. A conversion changes no value, so all conversions of one tile,
    direct or in chains, are copies of it, and a copy that is there already can be the source of any
    later one. Hence

    - a copy with the owners of an earlier one is that one: identities, inverse pairs, repetitions;
    - a copy that only conversions read goes where they cost no more together without it: chains;
    - a tile that repeats one scalar is made anew for its new owners;
    - a copy on which no effect depends goes.

    A conversion that stays stays where it stood, so nothing moves across an access to memory.
    Barriers never become more, nor does the cost of all conversions together, as the planner will
    choose them. Returns `func` itself where nothing applies, or where scratch is so short that the
    rest would take more barriers. Appends a LayoutOptimization for each change to the report.
    """
    if not any(isinstance(item, Convert) for item in walk(func.body)):
        return func
    prices, report = Prices(func, ctx), ctx.report
    said = len(report.layout_optimizations), len(report.layout_conversions)
    made = _drop_unused(func, ctx, prices)
    made = rewrite(made, _Uniform(ctx, prices).rule)
    made = rewrite(made, _Sources(made, ctx, prices).rule)
    if made is func or prices.hold(made):
        return made
    del report.layout_optimizations[said[0] :], report.layout_conversions[said[1] :]
    return func


def _drop_unused(func: Func, ctx: Context, prices: Prices) -> Func:
    """Without the conversions on which no effect depends, and what was computed for them alone."""
    # A declaration makes an array an argument, read or not.
    without = eliminate_dead_code(func, keep=(Tensor,))
    left = {item.result for item in walk(without.body) if isinstance(item, Convert)}
    found = False
    for item in walk(func.body):
        if isinstance(item, Convert) and item.result not in left:
            found = True
            _record(ctx, prices, "unused", item, "", "no store, print or condition depends on it")
    return without if found else func


class _Uniform:
    """Converted tiles that repeat one scalar are made anew: a thread of any owner has the scalar.

    They stay as cheap as before: with the owners gone, equal arithmetic on one scalar is one op.
    """

    def __init__(self, ctx: Context, prices: Prices) -> None:
        self.ctx = ctx
        self.prices = prices
        self.made_by: dict[Value, Op] = {}

    def rule(self, item: Op, b: Builder) -> Value | None:
        if isinstance(item, Splat) or (isinstance(item, POINTWISE) and self._is_uniform(item)):
            self.made_by[item.result] = item
        if not isinstance(item, Convert | Permute) or item.src not in self.made_by:
            return None
        if isinstance(item, Permute) or item.layout == layout_of(item.src):
            self.made_by[item.result] = self.made_by[item.src]
            return None
        made = self._again(item.src, item.layout, b)
        proof = f"every element of {_name(item.src)} is one scalar, which all threads have"
        _record(self.ctx, self.prices, "uniform", item, _name(item.src), proof)
        return made

    def _is_uniform(self, item: Op) -> bool:
        tiles = [value for value in item.operands() if isinstance(value.type, TileType)]
        return bool(tiles) and all(value in self.made_by for value in tiles)

    def _again(self, value: Value, layout: ThreadLayout, b: Builder) -> Value:
        """The ops behind `value`, once more, for these owners; operands before their readers."""
        made: dict[Value, Value] = {}
        pending = [value]
        while pending:
            item = self.made_by[pending[-1]]
            missing = [v for v in item.operands() if v in self.made_by and v not in made]
            if missing:
                pending += missing
                continue
            old = pending.pop()
            if old not in made:
                again = item.with_operands(made)
                if isinstance(again, Splat):
                    again = replace(again, layout=layout)
                made[old] = b.add(again)
                self.made_by[made[old]] = again
        return made[value]


class _Sources:
    """What each conversion reads, or what stands in for its result."""

    def __init__(self, func: Func, ctx: Context, prices: Prices) -> None:
        self.ctx = ctx
        self.prices = prices
        found = copies(func)
        self.copy = found.of
        self.written = {item.result: item for item in walk(func.body) if isinstance(item, Convert)}
        self.source: dict[Copy, Copy] = {}
        for family in found.families:
            self._choose(family)

    def _choose(self, family: Family) -> None:
        """Leave copies out while the rest costs no more for it; then each has its best source."""
        kept = family.copies
        if len(kept) == 1 and kept[0].is_read:
            # The usual case has one source only, and asks for no price.
            self.source[kept[0]] = family.root
            return
        written = [self._price(c.source, c) for c in kept if c.source is not None]
        limit = max((price.bytes for price in written), default=0)
        smaller = True
        while smaller:
            smaller = False
            total = self._total(family, kept, limit)
            for copy in reversed([c for c in kept if not c.is_read]):
                rest = [other for other in kept if other is not copy]
                if (without := self._total(family, rest, limit)) <= total:
                    kept, total, smaller = rest, without, True
        for copy in kept:
            self.source[copy] = self._best(family, copy, kept, limit)[1]

    def _best(self, family: Family, copy: Copy, kept: list[Copy], limit: int) -> tuple[Sum, Copy]:
        """The cheapest source and its price; of several the one that was written, else the first.

        `limit` is how many bytes the family may need: the most that a conversion took as written.
        """
        # What goes or stays for the sake of one block is no source for another.
        before = [c for c in family.before(copy, kept) if c.is_read or c.path == copy.path]
        priced = [(self._price(source, copy).within(limit), source) for source in before]
        return min(priced, key=lambda each: (each[0], each[1] is not copy.source))

    def _total(self, family: Family, kept: list[Copy], limit: int) -> Sum:
        sums = [(0, 0, 0), *(self._best(family, copy, kept, limit)[0] for copy in kept)]
        refused, barriers, total = (sum(part) for part in zip(*sums, strict=True))
        return refused, barriers, total

    def _price(self, source: Copy, copy: Copy) -> Price:
        return self.prices.between(source.layout, copy.layout, copy.value)

    def rule(self, item: Op, b: Builder) -> Value | Sequence[Value] | None:
        if not isinstance(item, Convert):
            return None
        written, copy = self.written[item.result], self.copy[item.result]
        if copy.value is not item.result:
            self._stands_in(written, copy)
            return copy.value
        source = self.source.get(copy)
        if source is None:
            readers = ", ".join(_name(v) for v, op in self.written.items() if op.src is item.result)
            proof = f"only conversions read it ({readers}), and none does now"
            _record(self.ctx, self.prices, "intermediate", written, "", proof)
            return item.src
        if source is not copy.source:
            self._composed(written, source)
        if source.value is item.src:
            return None
        b.ops.append(replace(item, src=source.value))
        return item.results

    def _composed(self, item: Convert, source: Copy) -> None:
        """Another copy of the same tile is the source."""
        left = self.prices.between(source.layout, item.layout, item.result).barriers
        proof = f"{self._chain(item.result)}: one tile, and {_name(source.value)} is it too"
        _record(self.ctx, self.prices, "composed", item, _name(source.value), proof, left)

    def _stands_in(self, item: Convert, copy: Copy) -> None:
        """`copy` is what this conversion makes, and is there already."""
        kind = "inverse" if copy.source is None else "repeated"
        if item.layout == layout_of(item.src):
            kind = "identity"
            # Such a conversion is listed among those that were asked for, too (SPEC C1).
            none = Chosen(None, (), "source and destination have the same owners")
            self.ctx.report.layout_conversions.append(conversion_fact(item, none, None))
        proof = f"{self._chain(item.result)}: the tile and the owners of {_name(copy.value)}"
        _record(self.ctx, self.prices, kind, item, _name(copy.value), proof)

    def _chain(self, value: Value) -> str:
        """The conversions that lead to `value`, from the tile that all are of, with the owners."""
        steps = [value]
        while steps[-1] in self.written:
            steps.append(self.written[steps[-1]].src)
        return " -> ".join(f"{_name(step)} {layout_of(step)!r}" for step in reversed(steps))


def _record(
    ctx: Context,
    prices: Prices,
    kind: str,
    item: Convert,
    replacement: str,
    proof: str,
    barriers: int = 0,
) -> None:
    """Report that `item`, as it was written, gives way to something with `barriers`."""
    was = prices.between(layout_of(item.src), item.layout, item.result).barriers
    ctx.report.layout_optimizations.append(
        LayoutOptimization(
            kind, _name(item.result), replacement, proof, place(item.loc), was - barriers
        )
    )


def _name(value: Value) -> str:
    return value.name or f"the tile of line {value.loc.line}"
