"""Random pairs of layouts with several elements per thread, of every kind of conversion."""

from __future__ import annotations

from random import Random

from metile_mlx.layout.thread_layout import ThreadLayout

KINDS = ("any", "local", "partial", "registers")
"""What a pair differs in: anything; not the simdgroup; some simdgroup bits and register bits
exchanged; the names of registers only."""

LANES = 5


def any_layout(rng: Random, bits: int, registers: int) -> ThreadLayout:
    """Any bit order and constant."""
    return ThreadLayout(rng.sample(range(bits), bits), rng.randrange(1 << bits), registers)


def pair(rng: Random, bits: int, registers: int, kind: str) -> tuple[ThreadLayout, ThreadLayout]:
    """Two layouts of 2**bits elements; `partial` needs two simdgroups, else it is `local`."""
    a = any_layout(rng, bits, registers)
    first = bits - (registers.bit_length() - 1)
    moved = {
        "any": range(bits),
        "local": [*range(min(LANES, first)), *range(first, bits)],
        "partial": [*range(rng.randrange(LANES + 1)), *range(first, bits)],
        "registers": range(first, bits),
    }[kind]
    names = list(range(bits))
    for bit, name in zip(moved, rng.sample(moved, len(moved)), strict=True):
        names[bit] = name
    if kind == "partial":
        _exchange_groups(rng, names, first)
    flips = [1 << bit for bit in (range(bits) if kind == "any" else moved)]
    flip = sum(each for each in flips if rng.getrandbits(1))
    order = [names[slot] for slot in a.bit_order]
    moved_by = ThreadLayout(a.bit_order, 0, registers).logical_index(
        flip % (1 << first), flip >> first
    )
    return a, ThreadLayout(order, a.xor_mask ^ moved_by, registers)


def _exchange_groups(rng: Random, names: list[int], first: int) -> None:
    """One or two simdgroup bits change places with register bits that are still register bits."""
    free = [bit for bit in range(first, len(names)) if names[bit] >= first]
    if not free:
        names[first:] = range(first, len(names))
        names[:LANES] = range(LANES)
        free = list(range(first, len(names)))
    groups = rng.sample(range(LANES, first), min(len(free), first - LANES, rng.randrange(1, 3)))
    for group, top in zip(groups, rng.sample(free, len(groups)), strict=True):
        names[group], names[top] = names[top], names[group]
