"""The steps that conversions of layouts are made of; `exchange` finds them, a pass writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.costs import Cost

Registers = tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """Register r becomes register `registers[r][b]` of its thread, b being bit `bit` of the thread.

    Without a real choice, where the two are the same, it is a renaming.
    """

    bit: int
    registers: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Lanes:
    """Slot p becomes slot `moves(p)` of its simdgroup, for `registers`; the others stay."""

    moves: AffineMap
    registers: Registers


@dataclass(frozen=True)
class Round:
    """Slots p of `stored` write to element `writes(p) - skip`, those of `loaded` read `reads(p) -
    skip`: the same elements."""

    writes: AffineMap
    reads: AffineMap
    stored: Registers
    loaded: Registers
    skip: int


@dataclass(frozen=True)
class Exchange:
    """One way to carry out a conversion.

    What `before` makes of the source is stored by the rounds; what `local` makes of that keeps the
    registers that no round loads; `after` ends it.

    Attributes:
        mechanism: `registers`, `shuffle`, `threadgroup` or `partial` (only what crosses simdgroups
            goes through threadgroup memory).
        elements: of threadgroup memory.
    """

    mechanism: str
    cost: Cost
    before: tuple[Choice, ...] = ()
    local: tuple[Choice | Lanes, ...] = ()
    rounds: tuple[Round, ...] = ()
    after: tuple[Choice, ...] = ()
    elements: int = 0


def is_still(moves: AffineMap, threads: int) -> bool:
    """Whether threads stay, but for a constant of the register."""
    return all(moves.columns[bit] == 1 << bit for bit in range(threads.bit_length() - 1))


def selects(exchange: Exchange, registers: int, threads: int) -> int:
    """The selects that are left of an exchange when it is written out."""
    count = _Selects()
    values = [count.opaque() for _ in range(registers)]
    held = count.follow(exchange.before, values, threads)
    for each in exchange.rounds:
        count.needed += [held[register] for register in each.stored]
    values = count.follow(exchange.local, held, threads)
    for each in exchange.rounds:
        for register in each.loaded:
            values[register] = count.opaque()
    count.needed += count.follow(exchange.after, values, threads)
    return count.alive()


class _Selects:
    """Values of registers by number, to count the selects that make them.

    A choice by a bit between values that the same bit has chosen takes what it would find there,
    and values nobody needs are not made.
    """

    def __init__(self) -> None:
        self.made: list[tuple[int, int, int]] = []
        self.needed: list[int] = []

    def opaque(self) -> int:
        """A value that no select makes."""
        self.made.append((-1, 0, 0))
        return len(self.made) - 1

    def choose(self, bit: int, clear: int, taken: int) -> int:
        for_clear, for_taken = self.made[clear], self.made[taken]
        clear = for_clear[1] if for_clear[0] == bit else clear
        taken = for_taken[2] if for_taken[0] == bit else taken
        if clear == taken:
            return clear
        self.made.append((bit, clear, taken))
        return len(self.made) - 1

    def follow(self, steps: Sequence[Choice | Lanes], held: list[int], threads: int) -> list[int]:
        """What the registers hold after the steps."""
        held = list(held)
        for step in steps:
            if isinstance(step, Choice):
                held = [self.choose(step.bit, held[a], held[b]) for a, b in step.registers]
                continue
            before, still = list(held), is_still(step.moves, threads)
            for register in step.registers:
                source = step.moves.apply(register * threads)
                held[register] = before[source // threads]
                if not still or source % threads:
                    self.needed.append(held[register])
                    held[register] = self.opaque()
        return held

    def alive(self) -> int:
        """How many selects the needed values take."""
        found: set[int] = set()
        waiting = list(self.needed)
        while waiting:
            value = waiting.pop()
            bit, clear, taken = self.made[value]
            if bit >= 0 and value not in found:
                found.add(value)
                waiting += [clear, taken]
        return len(found)
