"""What a kernel falls into on a CPU: segments, phases, loops and branches around them (X4)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from metile_mlx.emit.thread_tables import is_uniform
from metile_mlx.ir.core import Effect, Op, Value, op, walk
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.metal import (
    If,
    Load,
    LoadGroup,
    Shuffle,
    SimdReduce,
    Store,
    StoreGroup,
    ThreadgroupAlloc,
    ThreadgroupLoad,
    ThreadgroupStore,
)
from metile_mlx.layout.affine import AffineMap


class Targets(tuple[Value, ...]):
    """Values that an op writes: operands are what it reads."""

    __slots__ = ()


@op("cpp.assign", Effect.WRITE)
class Assign(Op):
    """What a loop carries, or a branch gives, takes these values, all at once.

    `carried`: what a loop has bound, as values.
    """

    targets: Targets
    values: tuple[Value, ...]
    carried: Targets

    def pairs(self) -> list[tuple[Value, Value]]:
        """Each target with what it takes."""
        return list(zip(self.targets, self.values, strict=True))


@op("cpp.copy", Effect.WRITE)
class Copy(Op):
    """A slot of an operand of a product takes a value, as f32."""

    target: Targets
    value: Value


@op("cpp.multiply", Effect.WRITE)
class Multiply(Op):
    """targets += a @ b: row-major tiles of f32; `shape` is M, N and K."""

    a: tuple[Value, ...]
    b: tuple[Value, ...]
    targets: Targets
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class Row:
    """How the threads of a loop fall into rows.

    Attributes:
        threads: of a row.
        fixed: what is the same in all threads of a row, of the index shifted or masked.
        counting: what counts by one, with whether it begins at 0 in each row.
    """

    threads: int
    fixed: frozenset[Value]
    counting: Mapping[Value, bool]


@dataclass
class Segment:
    """One loop over threads, or lines that run once.

    Attributes:
        assigned: the ops that belong here; cheap ones are in no list.
        ops: all to be written, in program order; filled in by the plan.
        permuted: values written as permutations of the thread index.
        kept: values to be put into arrays.
        masks: of its loads and stores: uniform, or computed again from the thread index.
        idle_without: a uniform mask without which the loop does nothing.
        span: the first threads, the only ones in which the masks of its accesses hold.
        extent: the first threads, or lanes of each simdgroup, beyond which nothing has to be done.
        certain: masks that hold in all of those.
        row: the rows of a tile that its loop goes through, if it does.
    """

    assigned: list[Op] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    permuted: dict[Value, AffineMap] = field(default_factory=dict)
    kept: set[Value] = field(default_factory=set)
    masks: tuple[Value, ...] = ()
    idle_without: Value | None = None
    span: int | None = None
    extent: int | None = None
    certain: frozenset[Value] = frozenset()
    row: Row | None = None


@dataclass
class Phase:
    """Segments between two barriers; `grouped` ones run per simdgroup; `once`: no loop at all."""

    segments: list[Segment] = field(default_factory=lambda: [Segment()])
    grouped: bool = False
    once: bool = False


@dataclass
class Around:
    """A loop or a branch around phases, entered by all threads or by none.

    Attributes:
        op: a ThreadFor or an If.
        before: what runs before it: the carried values take their initial ones.
        bodies: of the loop, or of both sides.
    """

    op: ThreadFor | If
    before: Sequence[Part] = ()
    bodies: list[list[Part]] = field(default_factory=list)


Part = Phase | Around


def phases_of(parts: Iterable[Part]) -> Iterator[Phase]:
    """All phases, in program order."""
    for part in parts:
        if isinstance(part, Phase):
            yield part
        else:
            yield from phases_of(part.before)
            for body in part.bodies:
                yield from phases_of(body)


def is_around(item: Op) -> bool:
    """Whether an op stands around phases: a loop, or a branch in which threads meet.

    So does a branch that leaves a uniform value and does more, since others use the value.
    """
    if isinstance(item, ThreadFor):
        return True
    inside = (inner for block in item.blocks() for inner in walk(block))
    if any(isinstance(i, ThreadFor) or bool(i.effect & Effect.CONVERGENT) for i in inside):
        return True
    return isinstance(item, If) and any(map(is_uniform, item.results)) and not runs_once(item)


def hoist(ops: Sequence[Op]) -> tuple[list[Op], list[Op]]:
    """What runs before all loops, and the rest: uniform work on a total directly behind it."""
    before: list[Op] = []
    late: list[Op] = []
    pending: set[Value] = set()
    for item in ops:
        if is_total(item):
            pending.add(item.result)
        elif runs_once(item):
            if pending.isdisjoint(reads(item)):
                before.append(item)
            else:
                late.append(item)
                pending.update(item.results)
    moved = {*before, *late}
    rest: list[Op] = []
    for item in ops:
        if item in moved:
            continue
        rest.append(item)
        if is_total(item):
            pending.discard(item.result)
            waiting = late
            late = []
            for other in waiting:
                if pending.isdisjoint(reads(other)):
                    rest.append(other)
                    pending.difference_update(other.results)
                else:
                    late.append(other)
    return before, rest


def crosses_lanes(item: Op) -> TypeGuard[Shuffle | SimdReduce]:
    """Whether an op reads what other lanes of the simdgroup have."""
    return isinstance(item, Shuffle | SimdReduce)


def is_total(item: Op) -> bool:
    """A reduction over the threadgroup: the same in every thread, known after all of them."""
    return isinstance(item, SimdReduce) and item.uniform


def reads(item: Op) -> Iterator[Value]:
    """The operands of an op and of what its blocks hold."""
    yield from item.operands()
    for block in item.blocks():
        for inner in walk(block):
            yield from inner.operands()


def runs_once(item: Op) -> bool:
    """Computes only values that are the same in every thread, and changes nothing."""
    parts = [item, *(inner for block in item.blocks() for inner in walk(block))]
    return not isinstance(item, ThreadgroupAlloc) and all(
        not part.effect & (Effect.WRITE | Effect.CONVERGENT)
        and not isinstance(part, ThreadgroupLoad)
        and all(is_uniform(value) for value in (*part.operands(), *part.results))
        for part in parts
    )


def masks(item: Op) -> tuple[Value | None, ...]:
    """The masks of an access to arrays."""
    match item:
        case Load() | Store():
            return (item.mask,)
        case LoadGroup() | StoreGroup():
            return item.masks
        case _:
            return ()


def live(
    ops: Sequence[Op], kept: Container[Value], held: Container[Value], failing: Container[Value]
) -> list[Op]:
    """The ops that matter where masks are known: `held` ones hold, `failing` ones don't."""
    needed: set[Value] = set()
    found: list[Op] = []
    for item in reversed(ops):
        if isinstance(item, Store) and item.mask in failing:
            continue
        if has_effect(item) or any(v in needed or v in kept for v in item.results):
            found.append(item)
            needed.update(_read_there(item, held, failing))
    return found[::-1]


def _read_there(item: Op, held: Container[Value], failing: Container[Value]) -> Iterable[Value]:
    match item:
        case Load() if item.mask in failing and item.fill is not None:
            return (item.fill,)
        case Load() if item.mask in held:
            return (item.index,)
        case Store() | ThreadgroupStore() if item.mask in held:
            return (item.index, item.value)
        case _:
            return reads(item)


def has_effect(item: Op) -> bool:
    parts = [item, *(inner for block in item.blocks() for inner in walk(block))]
    return any(bool(part.effect & Effect.WRITE) for part in parts)


def accesses(ops: Iterable[Op]) -> tuple[set[Value], set[Value]]:
    """Memory read and written that others may write or read: threadgroup arrays and outputs."""
    reads: set[Value] = set()
    writes: set[Value] = set()
    for item in ops:
        for part in (item, *(inner for block in item.blocks() for inner in walk(block))):
            if isinstance(part, ThreadgroupLoad):
                reads.add(part.buffer)
            elif isinstance(part, ThreadgroupStore | Store | StoreGroup):
                writes.add(part.buffer)
    return reads, writes
