"""Of two programs with owners, the second does the same and converts no more than the first (S3).

That both store and print the same, and access memory in the same order, verify/conversions.py and
verify/meaning.py derive. Here conversions are counted: those that move anything, those that leave
their simdgroup, those under a condition. No tile has owners that none had before. Where an element
goes is read off the layouts one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from metile_mlx.ir.core import Block, Func, walk
from metile_mlx.ir.tile import Convert
from metile_mlx.ir.types import TileType
from metile_mlx.layout.operand import Layout
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import SIMD_WIDTH
from metile_mlx.verify.conversions import check_conversions, elements
from metile_mlx.verify.findings import Finding


def check_simplification(func: Func, before: Func) -> list[Finding]:
    """All faults of a Stage.OWNED program made from another one."""
    had, has = Counter(_kinds(before.body)), Counter(_kinds(func.body))
    new = set(_owners(func.body)) - set(_owners(before.body))
    return [
        *check_conversions(func, before),
        *(Finding(None, f"has tiles of {layout!r}, which no tile had before") for layout in new),
        *(
            Finding(None, f"has {has[kind]} conversions that {kind}, expected at most {had[kind]}")
            for kind in has
            if has[kind] > had[kind]
        ),
    ]


def _owners(block: Block) -> Iterator[Layout]:
    for item in walk(block):
        for value in item.results:
            if isinstance(value.type, TileType) and value.type.layout is not None:
                yield value.type.layout


def _kinds(block: Block, depth: int = 0) -> Iterator[str]:
    """What each conversion does, and how deep in branches and loops it stands."""
    where = f" under {depth} branches or loops" if depth else ""
    for item in block.ops:
        if isinstance(item, Convert) and isinstance(item.src.type, TileType):
            moves, crosses = _movement(item.src.type.layout, item.layout)
            if moves:
                yield f"move elements{where}"
            if crosses:
                yield f"cross simdgroups{where}"
        for inner in item.blocks():
            yield from _kinds(inner, depth + 1)


@lru_cache(maxsize=512)
def _movement(source: ThreadLayout | None, destination: ThreadLayout) -> tuple[bool, bool]:
    """Whether any element changes its slot, and whether any changes its simdgroup."""
    if source is None or source.size != destination.size:
        return True, True
    was, now = elements(source), elements(destination)
    slot = np.empty_like(was)
    slot[was] = np.arange(was.size)
    # The slot that held what each slot gets.
    origin, slots = slot[now], np.arange(was.size)
    groups = [
        p % layout.thread_count // SIMD_WIDTH
        for p, layout in ((origin, source), (slots, destination))
    ]
    return bool((origin != slots).any()), bool((groups[0] != groups[1]).any())
