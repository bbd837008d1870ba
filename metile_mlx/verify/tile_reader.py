"""A Stage.PLANNED program read with numbers: each op's meaning over the elements of its tiles.

The elements of a tile are in row-major order, whoever owns them; moves go through slots, as the
docstrings of ir/planned.py say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from metile_mlx.ir import planned, tile
from metile_mlx.ir.arith import COMBINE, element
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.lanes import Sync
from metile_mlx.ir.loops import For
from metile_mlx.ir.matrix import Coordinate, Dot
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.ir.types import ScalarType, ScratchType, SlotsType, TileType, Type
from metile_mlx.layout.affine import Indices
from metile_mlx.layout.operand import Layout
from metile_mlx.verify import numbers
from metile_mlx.verify.conversions import elements, images
from metile_mlx.verify.decisions import Decisions
from metile_mlx.verify.lane_reader import LaneReader, is_own
from metile_mlx.verify.matrix_numbers import coordinates, product
from metile_mlx.verify.numbers import Numbers
from metile_mlx.verify.pipeline_reader import piped
from metile_mlx.verify.reading import (
    Access,
    Unreadable,
    access,
    along,
    barrier,
    combined,
    elementwise,
    repeated,
)


@dataclass(frozen=True)
class _View:
    """A declared tensor: its parameter, extents and strides, and whether it has no bounds."""

    param: Value
    shape: tuple[Numbers, ...]
    strides: tuple[Numbers, ...]
    is_open: bool


class TileReader:
    """The walk over one program.

    Args:
        func: the program.
        index_bits: width of memory offsets in the thread's program.
        bounded: whether pointers, too, end where their array does.
        decisions: what comparisons of floats give, and what memory holds.
        masked: parameters with an output that says which elements are stored (SPEC K7).
    """

    def __init__(
        self,
        func: Func,
        index_bits: int,
        decisions: Decisions,
        masked: frozenset[str],
        bounded: bool = True,
    ) -> None:
        self.func = func
        self.bounded = bounded
        self.bits = index_bits
        self.decisions = decisions
        self.masked = masked
        self.numbers: dict[Value, Numbers] = {}
        self.views: dict[Value, _View] = {}
        self.held: dict[Value, Numbers] = {}
        self.accesses: list[Access] = []
        self.lanes = LaneReader(func.threads, self.numbers)
        results = (value.type for item in walk(func.body) for value in item.results)
        self.size = max((t.size for t in results if isinstance(t, TileType)), default=1)

    def run(self) -> None:
        """Read the whole program.

        Raises:
            Unreadable: it holds an op that is not known here.
        """
        extents = _extents(self.func)
        scalars = {p: p.type.dtype for p in self.func.params if isinstance(p.type, ScalarType)}
        given = [(param.name, dtype, param in extents) for param, dtype in scalars.items()]
        self.numbers.update(zip(scalars, numbers.arguments(given, self.size), strict=True))
        self.block(self.func.body, np.ones((1, 1), np.int64))

    def block(self, block: Block, path: Numbers) -> tuple[Numbers, ...]:
        """Read a block that runs where `path`; what it yields."""
        for item in block.ops:
            if isinstance(item, tile.Yield):
                return tuple(self.numbers[value] for value in item.values)
            found = elementwise(item, self.numbers.__getitem__, self.decisions)
            results = self.op(item, path) if found is None else (found,)
            self.numbers.update(zip(item.results, results, strict=True))
        return ()

    def op(self, item: Op, path: Numbers) -> Sequence[Numbers]:
        match item:
            case tile.Arange():
                start = self.numbers[item.start]
                return (numbers.canonical(start + np.arange(item.size), element(item.result)),)
            case tile.Splat() | tile.Reshape():
                return (self.numbers[item.src],)
            case Permute():
                return (self.permuted(item),)
            case Coordinate() | Dot():
                return (self.matrix(item),)
            case tile.Tensor():
                shape = tuple(self.numbers[value] for value in item.shape)
                strides = tuple(self.numbers[value] for value in item.strides)
                is_open = item.whole and not self.bounded
                self.views[item.result] = _View(item.param, shape, strides, is_open)
                return (np.zeros((1, 1), np.int64),)
            case tile.Load():
                return (self.load(item, path),)
            case tile.Store():
                self.store(item, path)
                return ()
            case tile.Print():
                self.print(item, path)
                return ()
            case tile.If():
                return self.branch(item, path)
            case For():
                return repeated(item, self.numbers, path, self.block)
            case SoftwarePipeline():
                return piped(item, self.numbers, path, self.block)
            case _:
                return self.communicate(item)

    def matrix(self, item: Coordinate | Dot) -> Numbers:
        if isinstance(item, Coordinate):
            return coordinates(item.shape, item.axis)
        a, b, acc = (self.wide(value) for value in (item.a, item.b, item.acc))
        return product(a, b, acc, item.shape)

    def communicate(self, item: Op) -> Sequence[Numbers]:
        match item:
            case planned.Scratch():
                self.held[item.result] = np.zeros((numbers.TRIALS, item.elements), np.int64)
                return (np.zeros((1, 1), np.int64),)
            case planned.ScratchStore():
                slots = self.named(item.registers, item.slots.size)
                held = self.held[item.buffer].copy()
                held[self.places(item, slots)] = self.slots(item.value)[:, slots]
                self.held[item.buffer] = held
                return ()
            case planned.ScratchLoad():
                slots = self.named(item.registers, item.slots.size)
                found = self.base(item.base, item.slots.size)
                found[:, slots] = self.held[item.buffer][self.places(item, slots)]
                return (self.owned(found, item.layout),)
            case planned.Barrier():
                self.accesses.append(barrier(item, item.role))
                return ()
            case planned.Shuffle():
                slots = self.named(item.registers, item.lanes.size)
                found = self.base(item.src, item.lanes.size)
                found[:, slots] = self.slots(item.src)[:, images(item.lanes)[slots]]
                return (self.owned(found, item.layout),)
            case planned.Choose():
                return (self.owned(self.choose(item), item.layout),)
            case planned.Reduce():
                return (self.reduce(item),)
            case Sync():
                self.accesses.append(barrier(item, "declared"))
                return ()
            case _:
                return self.lanes.op(item)

    def places(
        self, item: planned.ScratchStore | planned.ScratchLoad, slots: Indices
    ) -> tuple[Indices, Indices]:
        """Per trial and slot, the element of memory: an index of what it holds.

        Raises:
            Unreadable: there is no such element.
        """
        at = images(item.slots)[slots][None] - item.skip
        if item.stage is not None:
            assert isinstance(item.buffer.type, ScratchType)
            at = at + self.numbers[item.stage] * item.buffer.type.pitch
        if at.min() < 0 or at.max() >= self.held[item.buffer].shape[1]:
            raise Unreadable(item.opcode)
        return np.arange(numbers.TRIALS)[:, None], at

    def permuted(self, item: Permute) -> Numbers:
        """Element i is element j of the operand: bit b of j is bit `bit_order[b]` of i."""
        here = np.arange(1 << len(item.bit_order))
        source = np.full_like(here, item.xor_mask)
        for bit, other in enumerate(item.bit_order):
            source ^= (here >> other & 1) << bit
        return self.wide(item.src)[:, source]

    def named(self, registers: tuple[int, ...] | None, size: int) -> Indices:
        """The slots of these registers; None: all."""
        slots = np.arange(size)
        return slots if registers is None else slots[np.isin(slots // self.func.threads, registers)]

    def base(self, value: Value | None, size: int) -> Numbers:
        """What the slots hold that a step leaves alone."""
        if value is None:
            return np.zeros((numbers.TRIALS, size), np.int64)
        return np.array(np.broadcast_to(self.slots(value), (numbers.TRIALS, size)))

    def choose(self, item: planned.Choose) -> Numbers:
        """Each register is one of two of its thread, by a bit of the thread."""
        threads = self.func.threads
        held = self.slots(item.src).reshape(-1, len(item.registers), threads)
        bit = np.arange(threads) >> item.bit & 1
        rows = [np.where(bit, held[:, taken], held[:, clear]) for clear, taken in item.registers]
        return np.concatenate(rows, axis=1)

    def reduce(self, item: planned.Reduce) -> Numbers:
        """Registers as a tree, neighbours first, then lanes and simdgroups in any order (R2)."""
        if item.scratch is not None:
            self.accesses.append(barrier(item, "publish"))
        if item.release:
            self.accesses.append(barrier(item, "release"))
        if item.axis is not None:
            assert isinstance(item.src.type, TileType)
            shape = item.src.type.shape
            return along(item.kind, self.wide(item.src), shape, item.axis, item.src)
        slots = self.slots(item.src)
        values = slots.reshape(slots.shape[0], -1, self.func.threads)
        while values.shape[1] > 1:
            pairs = values[:, ::2], values[:, 1::2]
            values = numbers.binary(COMBINE[item.kind], *pairs, element(item.src))
        return combined(item.kind, values[:, 0], item.src)

    def wide(self, value: Value) -> Numbers:
        """One column per element of a tile."""
        found = self.numbers[value]
        assert isinstance(value.type, TileType)
        return np.broadcast_to(found, (found.shape[0], value.type.size))

    def slots(self, value: Value) -> Numbers:
        """One column per physical slot: the element it holds."""
        if isinstance(value.type, SlotsType):
            found = self.numbers[value]
            return np.broadcast_to(found, (found.shape[0], value.type.size))
        return self.wide(value)[:, elements(_layout(value.type))]

    def owned(self, slots: Numbers, layout: Layout | None) -> Numbers:
        """One column per element, from one per slot of `layout`; per slot while there is none."""
        if layout is None:
            return slots
        found = np.empty((slots.shape[0], layout.size), slots.dtype)
        found[:, elements(layout)] = slots
        return found

    def branch(self, item: tile.If, path: Numbers) -> Sequence[Numbers]:
        condition = self.numbers[item.condition]
        then = self.block(item.then, path & condition)
        otherwise = self.block(item.otherwise, path & (condition ^ 1))
        pairs = zip(then, otherwise, strict=True)
        return [numbers.select(condition, a, b) for a, b in pairs]

    def where(
        self, view: _View, indices: Sequence[Value], mask: Value | None, path: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Which elements take part in an access, and their offsets."""
        active, offset = path, np.zeros((1, 1), np.int64)
        for value, extent, stride in zip(indices, view.shape, view.strides, strict=True):
            index = self.numbers[value]
            if not view.is_open:
                active = active & (index >= 0) & (index < extent)
            offset = offset + index * stride
        if mask is not None:
            active = active & self.numbers[mask]
        return active, offset & 0xFFFFFFFF if self.bits == 32 else offset

    def load(self, item: tile.Load, path: Numbers) -> Numbers:
        if item.tensor in self.lanes.memory:
            return self.lanes.load(item, path)
        view, dtype = self.views[item.tensor], element(item.result)
        active, offset = self.where(view, item.indices, item.mask, path)
        self.note(item, "load", (view.param.name, "in"), active, offset, None, item.operands())
        fill = numbers.constant(0, dtype) if item.fill is None else self.numbers[item.fill]
        there = self.decisions.memory(view.param.name, dtype, offset)
        return numbers.select(active, there, fill)

    def store(self, item: tile.Store, path: Numbers) -> None:
        if item.tensor in self.lanes.memory:
            self.lanes.store(item, path)
            return
        view = self.views[item.tensor]
        active, offset = self.where(view, item.indices, item.mask, path)
        value = self.numbers[item.value]
        self.note(item, "store", (view.param.name, "out"), active, offset, value, item.operands())

    def print(self, item: tile.Print, path: Numbers) -> None:
        active = path if item.mask is None else path & self.numbers[item.mask]
        label = (item.label, str(element(item.value)))
        who = np.arange(self.func.threads)[None]
        here = (*map(numbers.program, range(3)), who)
        value = self.numbers[item.value]
        if not isinstance(item.value.type, TileType):
            first = active if is_own(item.value) else active & (who == 0)
            register = np.zeros((1, 1), np.int64)
            self.accesses.append(access(item, "print", label, first, register, value, *here))
            return
        for number, own in enumerate(self.registers(item.value)):
            taken, shown = _columns(active, own), _columns(value, own)
            register = np.full((1, 1), number)
            self.accesses.append(access(item, "print", label, taken, register, shown, *here))

    def registers(self, value: Value) -> Sequence[Indices]:
        """Per register slot, the element that each thread holds of a tile."""
        return list(elements(_layout(value.type)).reshape(-1, self.func.threads))

    def note(
        self,
        item: Op,
        kind: str,
        array: tuple[str, str],
        active: Numbers,
        offset: Numbers,
        value: Numbers | None,
        operands: Sequence[Value],
    ) -> None:
        """Remember an access, by the threads that own its elements.

        Where all is uniform every thread loads, and the first one stores.
        """
        shaped = next((v for v in operands if isinstance(v.type, TileType)), None)
        if shaped is None:
            everyone = kind == "load" or any(map(is_own, operands))
            first = np.arange(self.func.threads)[None] == 0
            self.part(item, kind, array, active if everyone else active & first, offset, value)
            return
        for own in self.registers(shaped):
            stored = None if value is None else _columns(value, own)
            self.part(item, kind, array, _columns(active, own), _columns(offset, own), stored)

    def part(
        self,
        item: Op,
        kind: str,
        array: tuple[str, str],
        active: Numbers,
        offset: Numbers,
        value: Numbers | None,
    ) -> None:
        """One register slot of an access, and that it is stored."""
        self.accesses.append(access(item, kind, array, active, offset, value))
        if kind == "store" and array[0] in self.masked:
            true = np.ones((1, 1), np.int64)
            written = (array[0], "written")
            self.accesses.append(access(item, kind, written, active, offset, true))


def _columns(numbers: Numbers, own: Indices) -> Numbers:
    """The elements that threads hold; what is uniform has one column."""
    return numbers[:, own] if numbers.shape[1] > 1 else numbers


def _layout(type_: Type) -> Layout:
    assert isinstance(type_, TileType)
    assert type_.layout is not None
    return type_.layout


def _extents(func: Func) -> frozenset[Value]:
    """What the extents of tensors are computed from."""
    found: set[Value] = set()
    for item in reversed(list(walk(func.body))):
        if isinstance(item, tile.Tensor):
            found.update(item.shape)
        elif not found.isdisjoint(item.results):
            found.update(item.operands())
    return frozenset(found)
