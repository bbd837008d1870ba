"""Products of matrices: who multiplies what, enumerated from layouts alone (SPEC P1, P3).

Each element of an accumulator has one owner, and each simdgroup takes its fragments through all
blocks of K, with the rows and columns that they stand for. So every product of an element of a and
one of b is taken once. What a fragment is follows from `matrix_numbers`: what Metal's
simdgroup_matrix does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from metile_mlx.ir.core import Func, Op, Value, walk
from metile_mlx.ir.matrix import BlockMultiply, Dot, FragmentMultiply
from metile_mlx.ir.types import TileType
from metile_mlx.layout.affine import Indices
from metile_mlx.layout.fragments import EDGE
from metile_mlx.layout.operand import Layout, OperandLayout
from metile_mlx.target import SIMD_WIDTH
from metile_mlx.verify.conversions import elements
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.matrix_numbers import LANE_COLUMN, LANE_ROW
from metile_mlx.verify.register_slots import RegisterSlots

Owners = tuple[Layout, Layout, Layout]
# The rows and the columns of a fragment, which need not be neighbours.
Corner = tuple[tuple[int, ...], tuple[int, ...]]
# Where one simdgroup has them: numbers of pairs of registers.
Places = dict[Corner, list[int]]


@dataclass(frozen=True)
class Steps:
    """What each fragment of the accumulator is multiplied from.

    Attributes:
        left, right: by fragment of the accumulator, the fragments of a and of b, as K goes up.
    """

    left: tuple[tuple[int, ...], ...]
    right: tuple[tuple[int, ...], ...]


def product_fault(item: Dot, threads: int) -> str:
    """What is wrong with the owners of a product at Stage.OWNED or Stage.PLANNED, or nothing."""
    found = _steps_of(item, threads)
    return found if isinstance(found, str) else ""


def _steps_of(item: Dot, threads: int) -> Steps | str | None:
    """None: whole tiles in order; text: what is wrong."""
    owners = []
    for value in (item.a, item.b, item.acc):
        layout = value.type.layout if isinstance(value.type, TileType) else None
        if layout is None:
            return f"{value!r} has no owners, expected some"
        owners.append(layout)
    a, b, acc = owners
    return _steps((a, b, acc), item.shape, threads)


@lru_cache(maxsize=256)
def _steps(owners: Owners, shape: tuple[int, int, int], threads: int) -> Steps | str | None:
    rows, columns, depth = shape
    names = ("a", "b", "acc")
    sizes = (rows * depth, depth * columns, rows * columns)
    tables = [elements(layout) for layout in owners]
    if not isinstance(owners[0], OperandLayout):
        for name, table, size in zip(names, tables, sizes, strict=True):
            if table.size != size or (table != np.arange(size)).any():
                return f"the elements of {name} lie in another order than row by row"
        return None
    if tables[2].size != sizes[2]:
        counts = np.bincount(tables[2], minlength=sizes[2])
        at = int(np.argmax(counts))
        return f"element {at} of acc is accumulated by {counts[at]} slots, expected one"
    held: list[list[Places]] = []
    for name, table, width in zip(names, tables, (depth, columns, columns), strict=True):
        found = _places(name, table, width, threads)
        if isinstance(found, str):
            return found
        held.append(found)
    return _matched(held, depth)


def _places(name: str, table: Indices, width: int, threads: int) -> list[Places] | str:
    """The fragments of each simdgroup."""
    registers = table.size // threads
    if registers % 2 or table.size % threads:
        return f"{name} has {registers} values per thread, expected pairs"
    slots = table.reshape(registers // 2, 2, threads // SIMD_WIDTH, SIMD_WIDTH)
    matrices: Indices = np.empty((threads // SIMD_WIDTH, registers // 2, EDGE, EDGE), np.int64)
    for at in range(2):
        matrices[:, :, LANE_ROW, LANE_COLUMN + at] = slots[:, at].swapaxes(0, 1)
    rows, columns = matrices // width, matrices % width
    torn = (rows != rows[..., :1]) | (columns != columns[..., :1, :])
    if torn.any():
        group, at = (int(number) for number in np.argwhere(torn)[0][:2])
        return (
            f"registers {2 * at} and {2 * at + 1} of simdgroup {group} hold elements of {name}, "
            f"but no {EDGE} rows by {EDGE} columns"
        )
    found: list[Places] = []
    for one, other in zip(rows[..., 0].tolist(), columns[..., 0, :].tolist(), strict=True):
        places: Places = {}
        for at, key in enumerate(zip(map(tuple, one), map(tuple, other), strict=True)):
            places.setdefault(key, []).append(at)
        found.append(places)
    return found


def _matched(held: list[list[Places]], depth: int) -> Steps | str:
    """The steps of every simdgroup, the same registers in all."""
    found: list[Steps] = []
    for group, (left, right, sums) in enumerate(zip(*held, strict=True)):
        lines = []
        for _, key in sorted((at, key) for key, places in sums.items() for at in places):
            line = _line(key, left, right, depth)
            if isinstance(line, str):
                return f"simdgroup {group} {line}"
            lines.append(line)
        found.append(Steps(tuple(one for one, _ in lines), tuple(other for _, other in lines)))
    if any(other != found[0] for other in found):
        return "simdgroups need fragments from different registers, expected the same ones"
    return found[0]


def _line(
    key: Corner, left: Places, right: Places, depth: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | str:
    """The fragments of a and of b that one of the accumulator takes, as K goes up."""
    rows, columns = key
    line: dict[str, list[int]] = {"a": [], "b": []}
    for k in range(0, depth, EDGE):
        ks = tuple(range(k, k + EDGE))
        for name, places, needed in (("a", left, (rows, ks)), ("b", right, (ks, columns))):
            at = places.get(needed, [])
            if len(at) != 1:
                return (
                    f"has rows {_span(needed[0])} and columns {_span(needed[1])} of {name} "
                    f"{'twice' if at else 'nowhere'}, expected once: it accumulates rows "
                    f"{_span(rows)} and columns {_span(columns)}"
                )
            line[name].append(at[0])
    return tuple(line["a"]), tuple(line["b"])


def _span(numbers: tuple[int, ...]) -> str:
    first = numbers[0]
    if numbers == tuple(range(first, first + len(numbers))):
        return f"{first} to {numbers[-1]}"
    return str(numbers)


def check_products(func: Func, before: Func) -> list[Finding]:
    """That a per-thread program multiplies as the planned one has it, where slots can be told.

    The multiplications of a product stand together, in the order of K for each fragment of the
    accumulator, and those of the first block of K in the order of its registers. Which register
    slot a value is follows from the order in which values of a tile are made, and for what comes
    through threadgroup memory from the elements that it loads.
    """
    dots = [item for item in walk(before.body) if isinstance(item, Dot)]
    if not dots:
        return []
    done = [i for i in walk(func.body) if isinstance(i, FragmentMultiply | BlockMultiply)]
    slots = RegisterSlots(func, before)
    at = 0
    for dot in dots:
        steps = _steps_of(dot, func.threads)
        if isinstance(steps, str):
            return []
        count = 1 if steps is None else sum(map(len, steps.left))
        part = done[at : at + count]
        at += count
        kind = BlockMultiply if steps is None else FragmentMultiply
        if len(part) < count or any(i.loc != dot.loc or type(i) is not kind for i in part):
            own = sum(i.loc == dot.loc for i in part)
            message = f"the product of line {dot.loc.line} has {own} of its {count} multiplications"
            return [Finding(part[0] if part else None, message)]
        fault = _fault(dot, steps, part, slots)
        if fault is not None:
            return [Finding(*fault)]
    if at < len(done):
        return [Finding(done[at], "multiplies beside all products of the program before")]
    return []


@dataclass(frozen=True)
class _Use:
    """An op that reads these registers of an operand of the product, as these values."""

    op: Op
    operand: str
    registers: tuple[int, ...]
    values: tuple[Value, ...]


def _fault(
    dot: Dot, steps: Steps | None, part: Sequence[Op], slots: RegisterSlots
) -> tuple[Op, str] | None:
    """The first op of a product that does something else, and what is wrong with it."""
    found = _whole(dot, part[0]) if steps is None else _chains(steps, part)
    if isinstance(found, tuple):
        return found
    for use in found:
        of: Value = getattr(dot, use.operand)
        for register, value in zip(use.registers, use.values, strict=True):
            message = slots.fault(of, register, value)
            if message:
                return use.op, f"its {use.operand} {message}"
    return None


def _whole(dot: Dot, item: Op) -> list[_Use] | tuple[Op, str]:
    assert isinstance(item, BlockMultiply)
    if item.shape != dot.shape:
        return item, f"multiplies {item.shape}, expected {dot.shape}"
    operands = {"a": item.a, "b": item.b, "acc": item.acc}
    return [_Use(item, name, tuple(range(len(v))), v) for name, v in operands.items()]


def _chains(steps: Steps, part: Sequence[Op]) -> list[_Use] | tuple[Op, str]:
    """What each multiplication has to read; a chain is the sum of one fragment."""
    uses: list[_Use] = []
    chains: dict[tuple[Value, ...], tuple[int, int]] = {}
    begun = 0
    for item in part:
        assert isinstance(item, FragmentMultiply)
        chain, step = chains.pop(item.acc, (begun, 0))
        if step == 0:
            begun += 1
            uses.append(_Use(item, "acc", (2 * chain, 2 * chain + 1), item.acc))
        if chain >= len(steps.left):
            return item, f"begins a sum of its own, expected {len(steps.left)} sums"
        if step >= len(steps.left[chain]):
            return item, f"adds to fragment {chain} of acc after all its blocks of K"
        for name, at in (("a", steps.left[chain][step]), ("b", steps.right[chain][step])):
            uses.append(_Use(item, name, (2 * at, 2 * at + 1), getattr(item, name)))
        chains[item.results] = chain, step + 1
    for chain, step in chains.values():
        if step != len(steps.left[chain]):
            text = f"fragment {chain} of acc takes {step} of {len(steps.left[chain])} blocks of K"
            return part[-1], text
    return uses
