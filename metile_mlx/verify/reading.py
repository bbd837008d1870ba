"""What the readers of tile and of thread programs share: elementwise ops, accesses, comparison.

An access is what a program does to device memory, or prints: the threads, places and values of its
elements, each as one hash. Two programs agree when they do the same accesses in the same order. A
load whose value nobody uses may have gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import COMBINE, CombineKind, element
from metile_mlx.ir.core import Block, Op, Value
from metile_mlx.ir.loops import Loop
from metile_mlx.verify import numbers
from metile_mlx.verify.decisions import Decisions
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.numbers import Numbers

Read: TypeAlias = "Callable[[Value], Numbers]"


ITERATIONS = 3


class Unreadable(Exception):
    """An op that the readers don't know: nothing is said of the program."""


@dataclass(frozen=True)
class Access:
    """One access, or print.

    Attributes:
        op: for the finding.
        kind: load, store, print or barrier.
        array: which array and in which role, the label of a print, the role of a barrier.
        elements: per trial and thread the hash of its place and value, 0 where it takes no part.
    """

    op: Op
    kind: str
    array: tuple[str, str]
    elements: NDArray[np.uint64]

    def does(self, other: Access) -> bool:
        """Whether this does what `other` did, or, of a load, a part of it."""
        if (self.kind, self.array) != (other.kind, other.array):
            return False
        # Either may have one row for all trials, or one column for all threads.
        same = self.elements == other.elements
        return bool((same | (self.elements == 0) if self.kind == "load" else same).all())

    @property
    def is_nothing(self) -> bool:
        """Whether no thread takes part in any trial."""
        return not self.elements.any()


def access(
    item: Op, kind: str, array: tuple[str, str], active: Numbers, *about: Numbers | None
) -> Access:
    """The access of the threads where `active`, one column for each; `about` it: place, value."""
    parts = [part for part in about if part is not None]
    hashes = np.where(active != 0, numbers.mix(kind, *parts) | np.uint64(1), np.uint64(0))
    return Access(item, kind, array, hashes)


def barrier(item: Op, role: str) -> Access:
    """A place that no access passes."""
    return Access(item, "barrier", (role, ""), np.ones((1, 1), np.uint64))


def elementwise(item: Op, read: Read, decisions: Decisions) -> Numbers | None:
    """What an op of either op set gives from the elements of its operands, None for others."""
    match item:
        case tile.Constant() | metal.Constant():
            return numbers.constant(item.value, item.dtype)
        case tile.ProgramId() | metal.ProgramId():
            return numbers.program(item.axis)
        case tile.NumPrograms() | metal.NumPrograms():
            return numbers.programs(item.axis)
        case tile.Unary() | metal.Unary():
            return numbers.unary(item.kind, read(item.src), element(item.src))
        case tile.Binary() | metal.Binary():
            dtype = element(item.lhs)
            return numbers.binary(
                item.kind, read(item.lhs), read(item.rhs), dtype, decisions.of(item)
            )
        case tile.Compare() | metal.Compare():
            dtype = element(item.lhs)
            return decisions.of(item)(item.kind, read(item.lhs), read(item.rhs), dtype)
        case tile.Select() | metal.Select():
            parts = (item.condition, item.on_true, item.on_false)
            return numbers.select(*map(read, parts))
        case tile.Cast() | metal.Cast():
            return numbers.cast(read(item.src), element(item.src), item.dtype)
        case tile.Bitcast() | metal.Bitcast():
            return numbers.bitcast(read(item.src), item.dtype)
        case tile.Fma() | metal.Fma():
            return numbers.fma(read(item.a), read(item.b), read(item.c), element(item.a))
        case _:
            return None


def repeated(
    item: Loop,
    known: dict[Value, Numbers],
    path: Numbers,
    run: Callable[[Block, Numbers], tuple[Numbers, ...]],
) -> Sequence[Numbers]:
    """What a loop leaves of its carried values, where it runs no more than ITERATIONS times.

    The rest is left out of both programs: a loop that is right so often is right.
    """
    index, end, step = known[item.start], known[item.end], known[item.step]
    carried = [known[value] for value in item.inits]
    for _ in range(ITERATIONS):
        active = path & (index < end)
        if not active.any():
            break
        known[item.index] = index
        known.update(zip(item.carried, carried, strict=True))
        made = run(item.body, active)
        carried = [numbers.select(active, a, b) for a, b in zip(made, carried, strict=True)]
        index = index + step
    return carried


def combined(kind: CombineKind, values: Numbers, value: Value) -> Numbers:
    """The elements of each row combined, in any order."""
    return numbers.combine(COMBINE[kind], values, element(value))


def along(
    kind: CombineKind, values: Numbers, shape: Sequence[int], axis: int, of: Value
) -> Numbers:
    """Each element of a tile of `shape` becomes the total of its row along `axis`."""
    rows = np.moveaxis(values.reshape(-1, *shape), axis + 1, -1)
    totals = np.broadcast_to(combined(kind, rows, of), rows.shape)
    return np.moveaxis(totals, -1, axis + 1).reshape(values.shape)


def differences(expected: Sequence[Access], found: Sequence[Access]) -> list[Finding]:
    """The first access that is not what the program before does there."""
    wanted = [item for item in expected if not item.is_nothing]
    position = 0
    for here in found:
        if here.is_nothing:
            continue
        start = position
        while position < len(wanted) and not here.does(wanted[position]):
            if wanted[position].kind != "load":
                return [Finding(here.op, _message(here, wanted[start : position + 1]))]
            position += 1
        if position == len(wanted):
            return [Finding(here.op, _message(here, wanted[start:]))]
        position += 1
    missing = [item for item in wanted[position:] if item.kind != "load"]
    return [Finding(missing[0].op, "is missing in the program after")] if missing else []


def _message(here: Access, wanted: Sequence[Access]) -> str:
    """Which access of the program before was meant, and what is other about it."""
    for other in wanted:
        if (other.kind, other.array) == (here.kind, here.array):
            return (
                f"other elements, addresses or values than the {other.kind} of line "
                f"{other.op.loc.line} has, expected the same in every thread"
            )
    where = f", where that of line {wanted[-1].op.loc.line} is expected" if wanted else ""
    return f"an access that the program before does not do here{where}"
