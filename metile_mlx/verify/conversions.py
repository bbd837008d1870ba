"""Re-derive, from the planned program alone, where every element goes (SPEC C2-C4, F37, F43).

The walk knows nothing of the pass that planned. It keeps, for each scratch and each register slot,
which element of which tile lies there, through any sequence of choices, shuffles and rounds, and
checks that each slot of a tile has received the element its layout owns. The owner of an element is
computed here from SPEC L2, not by the algebra the pass uses.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from metile_mlx.ir import planned, tile
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.loops import For
from metile_mlx.ir.matrix import Dot, Operand
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.ir.planned import (
    Barrier,
    Choose,
    Scratch,
    ScratchLoad,
    ScratchStore,
    Shuffle,
)
from metile_mlx.ir.tile import Bitcast, Cast, Convert, If, Print, Store
from metile_mlx.ir.types import SlotsType, TileType
from metile_mlx.layout.affine import AffineMap, Indices
from metile_mlx.layout.operand import Layout, OperandLayout
from metile_mlx.target import SIMD_WIDTH
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.meaning import Meaning, Numbering, differences
from metile_mlx.verify.pipeline_meaning import follow
from metile_mlx.verify.scratch import WIRE_DTYPES, ScratchOrder

ROLES = {"publish": ("publish",), "release": ("release",), "rotate": ("publish", "release")}
"""What a barrier of each role does."""

# Communication, and what means something else than its op and operands.
_SPECIAL = frozenset({
    Cast, Bitcast, Store, Print, Convert, Permute, If, Scratch, ScratchStore, ScratchLoad,
    Barrier, Shuffle, Choose, tile.Reduce, planned.Reduce, For, Operand, SoftwarePipeline,
})  # fmt: skip


def check_conversions(func: Func, before: Func | None) -> list[Finding]:
    """All faults of a Stage.PLANNED program; with `before`, also what it stores otherwise.

    Of a Stage.OWNED program only the latter: it communicates by tile.convert alone.
    """
    numbering = Numbering()
    if before is None:
        return _Planned(func, Meaning(numbering)).run()
    source = _Planned(before, Meaning(numbering))
    source.run()
    walker = _Planned(func, Meaning(numbering, source.meaning))
    return walker.run() + differences(source.meaning, walker.meaning)


@lru_cache(maxsize=512)
def elements(layout: Layout) -> Indices:
    """The element of each physical slot, by SPEC L2: bit b is bit bit_order[b] of the slot."""
    if isinstance(layout, OperandLayout):
        slots = np.arange(1 << len(layout.columns))
        owned = np.zeros_like(slots)
        for bit, column in enumerate(layout.columns):
            owned |= (slots >> bit & 1) * column
        return owned
    slots = np.arange(layout.size)
    image = np.full(layout.size, layout.xor_mask)
    for bit, source in enumerate(layout.bit_order):
        image ^= (slots >> source & 1) << bit
    return image


@lru_cache(maxsize=512)
def images(slots: AffineMap) -> Indices:
    """The image of each slot."""
    return slots.apply(np.arange(slots.size))


@dataclass
class _Buffer:
    """A scratch: the order of its accesses, and what lies in it (element -1: nothing)."""

    order: ScratchOrder
    held: Indices
    origin: int
    shape: tuple[int, ...] = ()


Registers = tuple[int, ...]


def _multiplies(block: Block) -> bool:
    return any(isinstance(item, Dot) for item in walk(block))


class _Planned:
    """The walk over one program."""

    def __init__(self, func: Func, meaning: Meaning) -> None:
        self.func = func
        self.meaning = meaning
        self.findings: list[Finding] = []
        self.buffers: dict[tuple[Value, int], _Buffer] = {}
        # Which stage the slots of a pipeline are.
        self.stages: dict[Value, int] = {}
        # The element in each slot, in the middle of a conversion.
        self.held: dict[Value, Indices] = {}
        self.loops = 0
        # In loops and branches too, around products: convergence.py and order.py ask who does.
        self.anywhere = _multiplies(func.body)

    def run(self) -> list[Finding]:
        for position, param in enumerate(self.func.params):
            self.meaning.define(param, self.meaning.numbering.of("param", position))
        self.block(self.func.body, ())
        for buffer in self.buffers.values():
            self.findings += buffer.order.end()
        return self.findings

    def block(self, block: Block, path: tuple[Hashable, ...]) -> None:
        for item in block.ops:
            if type(item) not in _SPECIAL:
                self.meaning.default(item)
                continue
            match item:
                case Cast() | Bitcast():
                    self.meaning.cast(item)
                case Store():
                    self.meaning.store(item, path)
                case Print():
                    self.meaning.print(item, path)
                case Convert() | Operand():
                    self.meaning.define(item.result, self.meaning.numbers[item.src])
                case If():
                    self.branch(item, path)
                case Permute():
                    self.permute(item)
                case For():
                    self.loop(item, path)
                case SoftwarePipeline():
                    follow(item, self, path)
                case tile.Reduce() | planned.Reduce():
                    self.reduce(item)
                case _:
                    self.communicate(item, path)

    def branch(self, item: If, path: tuple[Hashable, ...]) -> None:
        numbers = self.meaning.numbers
        condition = numbers[item.condition]
        outside = self.anywhere
        self.anywhere = outside and any(map(_multiplies, item.blocks()))
        self.block(item.then, (*path, condition, True))
        self.block(item.otherwise, (*path, condition, False))
        self.anywhere = outside
        yields = zip(item.then.ops[-1].operands(), item.otherwise.ops[-1].operands(), strict=True)
        for result, (then, otherwise) in zip(item.results, yields, strict=True):
            key = (If, condition, numbers[then], numbers[otherwise])
            self.meaning.define(result, self.meaning.numbering.of(*key))

    def permute(self, item: Permute) -> None:
        """Named anew in place: each slot holds what it held."""
        self.meaning.default(item)
        old, new = item.src.type, item.result.type
        if not (isinstance(old, TileType) and old.layout and isinstance(new, TileType)):
            return
        if new.layout is None or new.layout.size != old.layout.size:
            self.add(item, f"makes {new} of {old}, expected a tile of its size with owners")
            return
        named, source = elements(new.layout), np.full(new.layout.size, item.xor_mask)
        for bit, other in enumerate(item.bit_order):
            source ^= (named >> other & 1) << bit
        if (source != elements(old.layout)).any():
            self.add(item, "a slot holds another element after it, expected what it held before")

    def loop(self, item: For, path: tuple[Hashable, ...]) -> None:
        """Alike are loops at the same place, over the same bounds, that carry the same."""
        key = self.enter(item)
        for position, arg in enumerate(item.body.args):
            self.meaning.define(arg, self.meaning.numbering.of(*key, "argument", position))
        self.block(item.body, (*path, key))
        self.leave(item, item.body, (*path, key))

    def enter(self, item: For | SoftwarePipeline) -> tuple[Hashable, ...]:
        """What tells a loop from others."""
        self.loops += 1
        given = (item.start, item.end, item.step, *item.inits)
        return (For, self.loops, *[self.meaning.numbers[value] for value in given])

    def leave(self, item: For | SoftwarePipeline, body: Block, path: tuple[Hashable, ...]) -> None:
        """Note what an iteration hands on, and what the last one leaves."""
        self.meaning.carried(body, path)
        left = [self.meaning.numbers[value] for value in body.ops[-1].operands()]
        key = path[-1]
        assert isinstance(key, tuple)
        for position, result in enumerate(item.results):
            self.meaning.define(result, self.meaning.numbering.of(*key, *left, position))

    def origins(self, storage: tuple[Value, ...], stage: int) -> list[int]:
        """Which tile lies in a stage of each memory, -1 for none."""
        found = (self.buffers.get((memory, stage)) for memory in storage)
        return [-1 if buffer is None else buffer.origin for buffer in found]

    def reduce(self, item: tile.Reduce | planned.Reduce) -> None:
        """Its memory is the business of verify/reductions.py; its barrier orders all memory."""
        number = self.meaning.numbers[item.src]
        type_ = item.src.type
        owners = None
        if isinstance(type_, TileType):
            # The order in which floats add follows from the owners.
            owners = type_.layout
            if item.axis is not None and type_.shape[item.axis] == 1:
                # Nothing to combine.
                self.meaning.define(item.result, number)
                return
        key = ("reduce", item.kind, item.axis, number, owners)
        self.meaning.define(item.result, self.meaning.numbering.of(*key))
        if isinstance(item, planned.Reduce) and item.scratch is not None:
            for buffer in self.buffers.values():
                self.findings += buffer.order.barrier("publish")
                if item.release:
                    self.findings += buffer.order.barrier("release")

    def communicate(self, item: Op, path: tuple[Hashable, ...]) -> None:
        if path and not self.anywhere and not isinstance(item, Choose):
            self.add(item, "stands under a condition, expected where every thread takes part")
        match item:
            case Scratch():
                self.allocate(item)
            case ScratchStore():
                self.store(item)
            case ScratchLoad():
                self.load(item)
            case Shuffle():
                self.shuffle(item)
            case Choose():
                self.choose(item)
            case Barrier() if not path or self.anywhere:
                self.barrier(item)
            case _:
                pass
        for value in item.results:
            if value not in self.meaning.numbers:
                self.meaning.define(value, self.meaning.numbering.of("unknown", id(item)))

    def add(self, item: Op, message: str) -> None:
        if message:
            self.findings.append(Finding(item, message))

    def allocate(self, item: Scratch) -> None:
        if item.dtype not in WIRE_DTYPES:
            self.add(item, f"holds {item.dtype}, expected {wires()}")
        if any(item.slot == buffer.order.slot for buffer in self.buffers.values()):
            self.add(item, f"{item.slot} is allocated twice, expected one allocation per slot id")
        stages = 1 if item.stages is None else item.stages
        if stages < 1 or item.elements % stages:
            self.add(item, f"has {stages} stages of {item.elements} elements, expected alike")
            return
        for stage in range(stages):
            order = ScratchOrder(item.slot, item.dtype, item.elements // stages)
            held = np.full(max(order.elements, 0), -1)
            self.buffers[item.result, stage] = _Buffer(order, held, -1)

    def barrier(self, item: Barrier) -> None:
        orders = [buffer.order for buffer in self.buffers.values()]
        if item.role not in ROLES:
            self.add(item, f"role is {item.role!r}, expected one of {', '.join(ROLES)}")
            return
        does = ROLES[item.role]
        if "publish" in does and all(order.stored is None for order in orders):
            self.add(item, "publishes nothing: no store precedes it since the last barrier")
        elif "release" in does and all(order.loaded is None for order in orders):
            self.add(item, "releases nothing: no load precedes it since the last barrier")
        for order in orders:
            self.findings += order.barrier(item.role)

    def store(self, item: ScratchStore) -> None:
        table = self.elements(item.value)
        if table is None:
            self.add(item, f"stores {item.value.type}, expected a tile with a layout")
            return
        found = self.access(item, table.size, "writes")
        if found is None:
            return
        buffer, part, places = found
        type_ = item.value.type
        assert isinstance(type_, TileType | SlotsType)
        if type_.dtype != buffer.order.dtype:
            self.add(item, f"stores {type_.dtype} to {buffer.order.slot} of {buffer.order.dtype}")
        self.add(item, buffer.order.store(item, places))
        buffer.held[:] = -1
        buffer.held[places] = table[part]
        buffer.origin = self.meaning.numbers[item.value]
        buffer.shape = type_.shape
        if np.bincount(places).max() > 1:
            self.add(item, f"two slots write one element of {buffer.order.slot}")

    def load(self, item: ScratchLoad) -> None:
        base = None if item.base is None else self.elements(item.base)
        size = item.slots.size if item.layout is None else elements(item.layout).size
        if base is not None and base.size != size:
            self.add(item, f"puts {size} slots into {base.size}, expected as many")
            return
        found = self.access(item, size, "reads")
        if found is None:
            return
        buffer, part, places = found
        message = buffer.order.load(item)
        self.add(item, message)
        if item.shape != buffer.shape and not message:
            self.add(item, f"shape is {item.shape}, {buffer.order.slot} holds {buffer.shape}")
        received = np.full(size, -1) if base is None else base.copy()
        received[part] = buffer.held[places]
        if item.base is not None and self.meaning.numbers[item.base] != buffer.origin:
            self.add(item, "puts elements of one tile among those of another")
        self.deliver(item, received, buffer.origin, not message)

    def access(
        self, item: ScratchStore | ScratchLoad, size: int, verb: str
    ) -> tuple[_Buffer, Indices, Indices] | None:
        """The accessed scratch, the slots that take part and their scratch elements, if all of
        that exists."""
        stage = 0 if item.stage is None else self.stages.get(item.stage, -1)
        buffer = self.buffers.get((item.buffer, stage))
        if buffer is None:
            what = f"stage {item.stage!r} of " if item.stage is not None else ""
            self.add(item, f"accesses {what}{item.buffer!r}, expected the result of tile.scratch")
            return None
        part = self.part(item, item.slots, size, item.registers)
        if part is None:
            return None
        places = images(item.slots)[part] - item.skip
        first, last, order = int(places.min()), int(places.max()), buffer.order
        if last >= order.elements or first < 0:
            outside = last if last >= order.elements else first
            self.add(item, f"{verb} element {outside} of {order.slot}, which has {order.elements}")
            return None
        return buffer, part, places

    def part(
        self, item: Op, slots: AffineMap, size: int, registers: Registers | None
    ) -> Indices | None:
        """The slots of the registers that take part, if the map and the registers are right."""
        if slots.size != size:
            self.add(item, f"its map has {slots.size} slots, the tile has {size}")
            return None
        if registers is None:
            return np.arange(size)
        count = size // self.func.threads
        if not registers or len(set(registers)) < len(registers):
            self.add(item, f"names registers {registers}, expected each once and one at least")
            return None
        if not all(0 <= register < count for register in registers):
            self.add(item, f"names registers {registers} of {count}")
            return None
        threads = np.arange(self.func.threads)
        return (np.array(registers)[:, None] * self.func.threads + threads).reshape(-1)

    def elements(self, value: Value) -> Indices | None:
        """The element in each slot of a tile, or of slots."""
        if isinstance(value.type, TileType) and value.type.layout is not None:
            return elements(value.type.layout)
        return self.held.get(value)

    def deliver(self, item: Op, received: Indices, origin: int, check: bool = True) -> None:
        """The result of a move: right for its layout, or yet to be moved on."""
        (result,) = item.results
        if origin >= 0:
            self.meaning.define(result, origin)
        self.held[result] = received
        layout = item.attributes().get("layout")
        if check and isinstance(layout, Layout):
            if elements(layout).size != received.size:
                self.add(item, f"its map has {received.size} slots, expected those of {layout!r}")
            else:
                self.add(item, _misplaced(received, layout))

    def choose(self, item: Choose) -> None:
        table = self.elements(item.src)
        if table is None:
            self.add(item, f"chooses from {item.src.type}, expected a tile with a layout")
            return
        threads = self.func.threads
        if not 0 <= item.bit < threads.bit_length() - 1:
            self.add(item, f"asks bit {item.bit} of the thread, there are {threads} threads")
            return
        rows = table.reshape(-1, threads)
        if len(rows) != len(item.registers):
            self.add(item, f"chooses {len(item.registers)} registers, expected {len(rows)}")
            return
        is_set = (np.arange(threads) >> item.bit & 1).astype(np.bool_)
        made = [np.where(is_set, rows[taken], rows[clear]) for clear, taken in item.registers]
        self.deliver(item, np.concatenate(made), self.meaning.numbers[item.src])

    def shuffle(self, item: Shuffle) -> None:
        type_, table = item.src.type, self.elements(item.src)
        if table is None or not isinstance(type_, TileType | SlotsType):
            self.add(item, f"shuffles {type_}, expected a tile with a layout")
            return
        self.meaning.define(item.result, self.meaning.numbers[item.src])
        if type_.dtype not in WIRE_DTYPES:
            self.add(item, f"shuffles {type_.dtype}, expected {wires()}")
        part = self.part(item, item.lanes, table.size, item.registers)
        if part is None:
            return
        threads = self.func.threads
        sources = images(item.lanes)[part]
        here, there = part % threads // SIMD_WIDTH, sources % threads // SIMD_WIDTH
        outside = np.flatnonzero(here != there)
        if outside.size:
            slot, source = int(part[outside[0]]), int(sources[outside[0]])
            self.add(
                item,
                f"slot {slot} takes from slot {source} of another simdgroup, expected one of "
                f"simdgroup {slot % threads // SIMD_WIDTH}",
            )
            return
        registers = (sources // threads).reshape(-1, threads)
        if (registers != registers[:, :1]).any():
            self.add(item, "threads take from different registers, expected one for all")
            return
        received = table.copy()
        received[part] = table[sources]
        self.deliver(item, received, self.meaning.numbers[item.src])


def _misplaced(received: Indices, layout: Layout) -> str:
    """What is wrong with the elements received, slot by slot."""
    owned = elements(layout)
    wrong = np.flatnonzero(received != owned)
    if not wrong.size:
        return ""
    slot = int(wrong[0])
    got = f"element {received[slot]}" if received[slot] >= 0 else "what nobody has written"
    return (
        f"slot {slot} receives {got}, expected element {owned[slot]} "
        f"({wrong.size} of {owned.size} slots are wrong)"
    )


def wires() -> str:
    names = ", ".join(str(dtype) for dtype in WIRE_DTYPES)
    return f"one of {names} (bool travels as u32, bf16 as u16)"
