"""What travels: whose value each thread sends, in the planned program and in the per-thread one.

A tile that no move has made is one *row* per register: the values that its threads hold there. From
there on only moves are followed, and casts of what has moved. So each thread's value is a place in
some row, and the planned program says which place is stored, shuffled or used when.

Choices between registers are selects of the per-thread program that stand in the line of a planned
choice. `correspondence` compares.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import numpy as np

from metile_mlx.errors import Loc
from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.core import Func, Op, Value
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.types import TileType
from metile_mlx.layout.affine import AffineMap, Indices
from metile_mlx.target import SIMD_WIDTH
from metile_mlx.verify.conversions import images
from metile_mlx.verify.thread_values import ThreadValues

Row = tuple[Hashable, int]
NOTHING = -1


class Rows:
    """Numbers for the places of rows: thread t of row k is k * threads + t."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.names: list[Row] = []
        self._numbers: dict[Row, int] = {}

    def places(self, source: Hashable, register: int = 0) -> Indices:
        """All places of one row."""
        name = (source, register)
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name] * self.threads + np.arange(self.threads)

    def is_moved(self, places: Indices) -> bool:
        """Whether the places are others than those of one row."""
        first = places[0] - places[0] % self.threads
        return bool((places != first + np.arange(self.threads)).any())


class PlannedContents:
    """The places that each tile's slots hold, register by register."""

    def __init__(self, func: Func) -> None:
        self.threads = func.threads
        self.rows = Rows(func.threads)
        self.held: dict[Value, Indices] = {}
        self.memory: dict[Value, Indices] = {}

    def of(self, value: Value) -> Indices:
        """(registers, threads) places."""
        if value not in self.held:
            count = planned.held(value).registers
            made = [self.rows.places(value, register) for register in range(count)]
            self.held[value] = np.stack(made)
        return self.held[value]

    def lying_in(self, buffer: Value) -> Indices:
        """What each element of a scratch holds; tiles of several sizes may lie in it in turn."""
        size = getattr(buffer.type, "elements", 0)
        return self.memory.setdefault(buffer, np.full(size, NOTHING))

    def record(self, item: Op) -> None:
        """Follow one move."""
        threads = np.arange(self.threads)
        match item:
            case planned.ScratchStore():
                memory = self.lying_in(item.buffer)
                for register, at in rows(item.slots, item.registers, self.threads):
                    memory[at - item.skip] = self.of(item.value)[register]
            case planned.ScratchLoad():
                memory = self.lying_in(item.buffer)
                shape = (planned.held(item.result).registers, self.threads)
                loaded: Indices = np.full(shape, NOTHING)
                if item.base is not None:
                    loaded = self.of(item.base).copy()
                for register, at in rows(item.slots, item.registers, self.threads):
                    loaded[register] = memory[at - item.skip]
                self.held[item.result] = loaded
            case planned.Shuffle():
                old = self.of(item.src)
                shuffled = old.copy()
                for register, source in rows(item.lanes, item.registers, self.threads):
                    shuffled[register] = old.reshape(-1)[source]
                self.held[item.result] = shuffled
            case planned.Choose():
                old, is_set = self.of(item.src), threads >> item.bit & 1 == 1
                chosen = [np.where(is_set, old[b], old[a]) for a, b in item.registers]
                self.held[item.result] = np.stack(chosen)
            case tile.Reshape() | Permute() if isinstance(item.src.type, TileType):
                self.held[item.result] = self.of(item.src)
            case tile.Cast() | tile.Bitcast() if item.src in self.held:
                cast = [
                    row if self.rows.is_moved(row) else self.rows.places(item.result, register)
                    for register, row in enumerate(self.held[item.src])
                ]
                self.held[item.result] = np.stack(cast)
            case _:
                pass


def rows(
    slots: AffineMap, registers: tuple[int, ...] | None, threads: int
) -> Iterator[tuple[int, Indices]]:
    """The registers that take part, each with the images of its slots."""
    table = images(slots).reshape(-1, threads)
    return ((r, table[r]) for r in (range(len(table)) if registers is None else registers))


class ThreadContents:
    """The places that each thread's value comes from; a row is an SSA value."""

    def __init__(self, func: Func, values: ThreadValues, choices: frozenset[Loc]) -> None:
        self.rows = Rows(func.threads)
        self.values = values
        self.choices = choices
        self.held: dict[Value, Indices] = {}
        self.memory: dict[Value, Indices] = {}

    def of(self, value: Value) -> Indices:
        """The place whose value each thread has."""
        return self.held[value] if value in self.held else self.rows.places(value)

    def record(self, item: Op) -> None:
        """Follow one move; addresses and lanes have been examined before."""
        match item:
            case metal.ThreadgroupStore():
                at = self.values.evaluate(item.index)
                size = getattr(item.buffer.type, "elements", 0)
                memory = self.memory.setdefault(item.buffer, np.full(max(size, 0), NOTHING))
                if at is not None and at.max() < size and at.min() >= 0:
                    memory[at] = self.of(item.value)
            case metal.ThreadgroupLoad():
                at, found = self.values.evaluate(item.index), self.memory.get(item.buffer)
                if at is not None and found is not None and at.max() < found.size:
                    self.held[item.result] = found[at]
            case metal.Shuffle():
                lanes = self.values.evaluate(item.lane)
                if lanes is not None and lanes.max() < SIMD_WIDTH:
                    first = np.arange(self.rows.threads) // SIMD_WIDTH * SIMD_WIDTH
                    self.held[item.result] = self.of(item.src)[first + lanes]
            case metal.Cast() | metal.Bitcast() if self.has_moved(item.src):
                self.held[item.result] = self.held[item.src]
            case metal.Select() if self.is_choice(item):
                chosen = self.values.evaluate(item.condition)
                assert chosen is not None
                on_true, on_false = self.of(item.on_true), self.of(item.on_false)
                self.held[item.result] = np.where(chosen != 0, on_true, on_false)
            case _:
                pass

    def has_moved(self, value: Value) -> bool:
        """Whether threads have values of others, or of several registers."""
        return value in self.held and self.rows.is_moved(self.held[value])

    def is_choice(self, item: Op) -> bool:
        """Whether it is a select between registers, by the thread index."""
        return (
            isinstance(item, metal.Select)
            and item.loc in self.choices
            and self.values.evaluate(item.condition) is not None
        )
