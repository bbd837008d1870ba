"""Software pipelines: copies, reads, slots and barriers of each phase (SPEC P3, F43, F57, F58).

What the tiles mean is the business of verify/pipeline_meaning.py. Here the phases are taken one by
one, and every finding names its phase. Which slot a phase may touch follows from what it binds:
tiles are copied into the free slot only, and read from the other one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from metile_mlx.dtypes import DType
from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import BinaryKind, CompareKind
from metile_mlx.ir.core import Func, Op, Value, definitions, walk
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.pipeline import Buffer, SoftwarePipeline
from metile_mlx.ir.planned import Barrier, ScratchLoad, ScratchStore
from metile_mlx.ir.types import ScratchType, SlotsType, TileType
from metile_mlx.layout.affine import Indices
from metile_mlx.verify.conversions import ROLES, elements, images
from metile_mlx.verify.findings import Finding

Access = ScratchStore | ScratchLoad


def check_pipelines(func: Func) -> list[Finding]:
    """All faults of the pipelines of a Stage.PLANNED program."""
    made_by = definitions(func)
    found: list[Finding] = []
    for item in walk(func.body):
        if isinstance(item, SoftwarePipeline):
            found += _storage(item)
            found += _guard(item, made_by)
            for phase in _phases(item):
                found += phase.findings()
    return found


def _storage(item: SoftwarePipeline) -> Iterator[Finding]:
    """Each buffer has memory of its own, of its dtype, with all slots."""
    for memory, buffer in zip(item.storage, item.buffers, strict=False):
        wanted = ScratchType(buffer.dtype, buffer.elements * item.slots, item.slots)
        if memory.type != wanted:
            yield Finding(item, f"its phases copy into {memory.type}, expected {wanted}")
    if len(set(item.storage)) < len(item.storage):
        yield Finding(item, "its phases copy two tiles into one memory, expected one for each")


def _guard(item: SoftwarePipeline, made_by: Mapping[Value, Op]) -> Iterator[Finding]:
    if item.guard is None:
        return
    test = made_by.get(item.guard)
    asks = isinstance(test, tile.Compare) and (test.kind, test.lhs, test.rhs)
    if asks != (CompareKind.LT, item.start, item.end):
        text = "phase first: runs where there is no step, expected only where start < end"
        yield Finding(item, text)


@dataclass(frozen=True)
class _Phase:
    """A phase, and the slots that it may copy into and read from; None is none."""

    item: SoftwarePipeline
    name: str
    copies: Value | None
    reads: Value | None

    def findings(self) -> Iterator[Finding]:
        for message, op in self.faults():
            yield Finding(op, f"phase {self.name}: {message}")

    def faults(self) -> Iterator[tuple[str, Op]]:
        ops = self.item.phases[self.name].ops
        for op in ops:
            if op.blocks():
                yield "a branch or a loop stands in it, expected every thread to take part", op
            elif isinstance(op, ScratchStore | ScratchLoad):
                yield from self.access(op)
        for memory, buffer in zip(self.item.storage, self.item.buffers, strict=False):
            stores = [o for o in ops if isinstance(o, ScratchStore) and o.buffer is memory]
            yield from self.copied(memory, buffer, stores)
        yield from self.order()

    def access(self, op: Access) -> Iterator[tuple[str, Op]]:
        """Of which memory and slot, and within it."""
        is_store = isinstance(op, ScratchStore)
        does, slot = ("copies into", self.copies) if is_store else ("reads", self.reads)
        where = dict(zip(self.item.storage, self.item.buffers, strict=False))
        buffer = where.get(op.buffer)
        if buffer is None:
            yield f"{does} {op.buffer!r}, which is no memory of this pipeline", op
            return
        if op.stage is not slot or slot is None:
            wanted = "no slot here" if slot is None else f"only {slot!r}"
            yield f"{does} slot {op.stage!r} of {op.buffer.name}, expected {wanted}", op
        value = op.value if isinstance(op, ScratchStore) else op.result
        if _dtype(value) != buffer.dtype:
            yield f"{does} {op.buffer.name} as {_dtype(value)}, expected {buffer.dtype}", op
        places = _places(op)
        outside = places[(places < 0) | (places >= buffer.elements)]
        if outside.size:
            name, size = op.buffer.name, buffer.elements
            yield f"{does} element {outside[0]} of {name}, whose slots have {size}", op
            return
        owned = (
            elements(value.type.layout)
            if isinstance(value.type, TileType) and (value.type.layout is not None)
            else places[:0]
        )
        order = images(buffer.order)
        if owned.size != places.size or (order[owned] != places).any():
            yield f"{does} {op.buffer.name} in another order than its tile lies in there", op

    def copied(
        self, memory: Value, buffer: Buffer, stores: list[ScratchStore]
    ) -> Iterator[tuple[str, Op]]:
        """Each element of a slot is written once, by one thread, where the phase copies."""
        if self.copies is None:
            return
        places = [_places(op) for op in stores]
        found = np.concatenate([np.empty(0, np.int64), *places])
        inside = found[(found >= 0) & (found < buffer.elements)]
        counts = np.bincount(inside, minlength=buffer.elements)
        if (counts == 0).any():
            at, missing = int(np.argmin(counts)), int((counts == 0).sum())
            text = f"element {at} of {memory.name} is not copied, nor are {missing - 1} others"
            yield (
                text if missing > 1 else f"element {at} of {memory.name} is not copied",
                (stores[0] if stores else self.item),
            )
        if (counts > 1).any():
            at = int(np.argmax(counts))
            owners = counts[at]
            yield (
                f"element {at} of {memory.name} is copied {owners} times, expected once",
                stores[-1],
            )

    def order(self) -> Iterator[tuple[str, Op]]:
        """What is copied is published, and what is read released, before the phase ends."""
        stored: dict[Value, Op] = {}
        loaded: dict[Value, Op] = {}
        same = self.copies is not None and self.item.slots == 1
        for op in self.item.phases[self.name].ops:
            match op:
                case ScratchStore():
                    if same and op.buffer in loaded:
                        yield f"refills {op.buffer.name} before it is released", op
                    stored[op.buffer] = op
                case ScratchLoad():
                    if same and op.buffer in stored:
                        yield f"reads {op.buffer.name} before it is published", op
                    loaded[op.buffer] = op
                case Barrier():
                    does = ROLES.get(op.role, ())
                    stored = {} if "publish" in does else stored
                    loaded = {} if "release" in does else loaded
                case _:
                    pass
        for memory, op in stored.items():
            yield f"no barrier behind it publishes what it copies into {memory.name}", op
        for memory, op in loaded.items():
            yield f"no barrier behind it releases what it reads of {memory.name}", op


def _phases(item: SoftwarePipeline) -> Iterator[_Phase]:
    """Those that do something, with what they bind."""
    if any(len(block.args) < 2 for block in item.blocks()) or len(item.steady.args) < 4:
        return
    slot, free = item.steady.args[2:4]
    if item.slots == 1:
        yield _Phase(item, "first", None, None)
        yield _Phase(item, "steady", free, slot)
        yield _Phase(item, "last", None, None)
        return
    yield _Phase(item, "first", item.first.args[1], None)
    yield _Phase(item, "steady", free, slot)
    yield _Phase(item, "last", None, item.last.args[1])


def _places(op: Access) -> Indices:
    """The elements of a slot that it accesses, one for each slot of the tile that takes part."""
    table = images(op.slots) - op.skip
    if op.registers is None:
        return table
    value = op.value if isinstance(op, ScratchStore) else op.result
    held = value.type
    count = held.layout.elements_per_thread if isinstance(held, TileType) and held.layout else 1
    return table.reshape(count, -1)[[r for r in op.registers if 0 <= r < count]].reshape(-1)


def _dtype(value: Value) -> DType | None:
    return value.type.dtype if isinstance(value.type, TileType | SlotsType) else None


def check_lowered_pipelines(func: Func, before: Func) -> list[Finding]:
    """That a Stage.THREAD program runs the phases of pipelines only where there is a step (F57).

    Their accesses and barriers verify/communication.py compares.
    """
    guarded = [i for i in walk(before.body) if isinstance(i, SoftwarePipeline) and i.guard]
    if not guarded:
        return []
    planned, made_by = definitions(before), definitions(func)
    branches = [i for i in walk(func.body) if isinstance(i, metal.If)]
    found: list[Finding] = []
    for item in guarded:
        branch = next((i for i in branches if i.loc == item.loc), None)
        if branch is None:
            found.append(
                Finding(item, "phase first: stands in no branch, expected one: start < end")
            )
            continue
        branches = branches[branches.index(branch) + 1 :]
        if not _asks(branch, made_by, item, planned):
            text = "phase first: runs under another condition than that there is a step"
            found.append(Finding(branch, text))
    return found


def _asks(
    branch: metal.If,
    made_by: Mapping[Value, Op],
    item: SoftwarePipeline,
    planned: Mapping[Value, Op],
) -> bool:
    """Whether the condition of a branch is that the start of its loop lies before the end."""
    test = made_by.get(branch.condition)
    start, end = (planned.get(value) for value in (item.start, item.end))
    if isinstance(test, metal.Constant):
        if not isinstance(start, tile.Constant) or not isinstance(end, tile.Constant):
            return False
        return bool(test.value) == (start.value < end.value)
    loops = [i for i in branch.then.ops if isinstance(i, ThreadFor) and i.loc == item.loc]
    if not isinstance(test, metal.Compare) or test.kind is not CompareKind.LT or not loops:
        return False
    loop = loops[0]
    if test.rhs is not loop.end:
        return False
    first = made_by.get(test.lhs)
    if isinstance(start, tile.Constant) and isinstance(first, metal.Constant):
        return start.value == first.value
    second = made_by.get(loop.start)
    if isinstance(second, metal.Select):
        second = made_by.get(second.on_true)
    if not isinstance(second, metal.Binary) or second.kind is not BinaryKind.ADD:
        return False
    return {second.lhs, second.rhs} == {test.lhs, loop.step}
