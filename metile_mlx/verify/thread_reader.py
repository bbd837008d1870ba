"""A Stage.THREAD program read with numbers, all threads at once, and held against the planned one.

Communication is verified before: accesses of threadgroup memory are ordered and in bounds, so
reading op by op is one of the orders in which threads may run, and all give the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from metile_mlx.dtypes import bool_, u64
from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import BinaryKind, element
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.matrix import BlockMultiply, FragmentMultiply
from metile_mlx.ir.stated import AxisReduction
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.target import EMULATOR, SIMD_WIDTH, Target
from metile_mlx.verify import numbers
from metile_mlx.verify.conversions import elements
from metile_mlx.verify.decisions import Decisions, turns
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.matrix_numbers import fragments, product
from metile_mlx.verify.numbers import TRIALS, Numbers
from metile_mlx.verify.reading import (
    Access,
    Unreadable,
    access,
    along,
    barrier,
    combined,
    differences,
    elementwise,
    repeated,
)
from metile_mlx.verify.tile_reader import TileReader

_READ = ("read", "read_write")
_WRITTEN = ("write", "read_write")
_COMMUTATIVE = (BinaryKind.ADD, BinaryKind.MUL)
# What a parameter that is written becomes; the second where not every element is stored.
_STORED = ("out", "written")


class Outside(Unreadable):
    """An access of declared threadgroup memory, outside of it: there is nothing to be read."""

    def __init__(self, item: Op) -> None:
        super().__init__(item.opcode)
        self.op = item


def check_lowering(func: Func, before: Func, target: Target) -> list[Finding]:
    """Where a Stage.THREAD program does something else than the planned one it was made from.

    Needs programs without other faults. Compared are the loads, stores and prints in their order:
    which thread accesses which element of which array, and with which value. On the emulator,
    whose checker sees where a pointer leaves its array, pointers have no bounds.
    """
    try:
        for turn in range(turns(before)):
            found = _differences(func, before, turn, bounded=target != EMULATOR)
            if found:
                return found
    except Outside as outside:
        return [Finding(outside.op, "accesses an element that its threadgroup memory has not")]
    except Unreadable:
        pass
    return []


def _differences(func: Func, before: Func, turn: int, bounded: bool) -> list[Finding]:
    """The first difference in one turn."""
    found = _read(func, before, turn, bounded=bounded)
    if isinstance(found, list):
        return found
    source, reader = found
    return differences(source.accesses, reader.accesses)


def thread_reader(func: Func, before: Func, turn: int = 0, exact: bool = False) -> ThreadReader:
    """A Stage.THREAD program made from `before`, read in one of its turns; see ThreadReader.

    Raises:
        Unreadable: it holds an op that is not known here.
        ValueError: it takes other arrays.
    """
    found = _read(func, before, turn, exact)
    if isinstance(found, list):
        raise ValueError(found[0].message)
    return found[1]


def _read(
    func: Func, before: Func, turn: int, exact: bool = False, bounded: bool = True
) -> tuple[TileReader, ThreadReader] | list[Finding]:
    """Both programs read, or why their arrays are not the same."""
    arrays, masked, findings = _arrays(func, before)
    if findings:
        return findings
    wide = any(
        element(item.index) == u64
        for item in walk(func.body)
        if isinstance(item, metal.Load | metal.Store)
    )
    decisions = Decisions(before, turn)
    source = TileReader(before, 64 if wide else 32, decisions, masked, bounded)
    source.run()
    reader = ThreadReader(func, arrays, source.numbers, decisions, exact)
    reader.run()
    return source, reader


def _arrays(
    func: Func, before: Func
) -> tuple[dict[Value, tuple[str, str]], frozenset[str], list[Finding]]:
    """What each pointer of the thread's program stands for; the parameters with a written mask."""
    views = [item for item in walk(before.body) if isinstance(item, tile.Tensor)]
    reads = {item.param for item in views if item.access in _READ}
    writes = {item.param for item in views if item.access in _WRITTEN}
    wanted: list[tuple[Value, str]] = [
        *((param, "in") for param in before.params if param in reads or _is_scalar(param)),
        *((param, role) for param in before.params if param in writes for role in _STORED),
    ]
    rest, found, masked = list(func.params), dict[Value, tuple[str, str]](), set[str]()
    for param, role in wanted:
        if rest and _stands_for(rest[0], param, role):
            found[rest.pop(0)] = (param.name, role)
            masked |= {param.name} if role == "written" else set()
        elif role != "written":
            text = f"has {rest[0]!r}" if rest else "ends"
            text = f"its list of parameters {text} where {param!r} ({role}) is expected"
            return found, frozenset(), [Finding(None, text)]
    if rest:
        text = f"has the parameter {rest[0]!r}, which the program before has not"
        return found, frozenset(), [Finding(None, text)]
    return found, frozenset(masked), []


def _is_scalar(param: Value) -> bool:
    return isinstance(param.type, ScalarType)


def _stands_for(here: Value, param: Value, role: str) -> bool:
    """Whether a parameter of the thread's program is this one of the planned program."""
    if _is_scalar(param):
        return here is param
    assert isinstance(param.type, PointerType)
    dtype = bool_ if role == "written" else param.type.dtype
    named = role != "written" or here.name == f"{param.name}_written"
    return named and here.type == PointerType(dtype, role != "in")


class ThreadReader:
    """The walk over one program. A value has one column, or one per thread.

    With `exact` the numbers of a + b and b + a are equal, as they are in bits, and totals are what
    the program computes instead of what it states.
    """

    def __init__(
        self,
        func: Func,
        arrays: Mapping[Value, tuple[str, str]],
        arguments: Mapping[Value, Numbers],
        decisions: Decisions,
        exact: bool,
    ) -> None:
        self.func = func
        self.decisions = decisions
        self.exact = exact
        self.arrays = arrays
        self.threads = np.arange(func.threads)[None]
        self.numbers = {param: arguments[param] for param in func.params if param in arguments}
        self.memory: dict[Value, Numbers] = {}
        self.accesses: list[Access] = []

    def run(self) -> None:
        """Read the whole program.

        Raises:
            Unreadable: it holds an op that is not known here.
        """
        self.block(self.func.body, np.ones((1, 1), np.int64))

    def block(self, block: Block, path: Numbers) -> tuple[Numbers, ...]:
        """Read a block that runs where `path`; what it yields."""
        for item in block.ops:
            if isinstance(item, metal.Yield):
                return tuple(self.numbers[value] for value in item.values)
            found = self.elementwise(item)
            results = self.op(item, path) if found is None else (found,)
            self.numbers.update(zip(item.results, results, strict=True))
        return ()

    def elementwise(self, item: Op) -> Numbers | None:
        """What an op gives in each thread; None: not elementwise."""
        if self.exact and isinstance(item, metal.Binary) and item.kind in _COMMUTATIVE:
            pair = self.numbers[item.lhs], self.numbers[item.rhs]
            smaller, larger = np.minimum(*pair), np.maximum(*pair)
            return numbers.binary(item.kind, smaller, larger, element(item.lhs))
        return elementwise(item, self.numbers.__getitem__, self.decisions)

    def op(self, item: Op, path: Numbers) -> Sequence[Numbers]:
        match item:
            case metal.ThreadIndex():
                return (self.threads,)
            case metal.Load():
                return (self.load(item, path),)
            case metal.Store():
                active = self.active(item.mask, path)
                value = self.numbers[item.value]
                self.note(item, "store", self.arrays[item.buffer], active, item.index, value)
                return ()
            case metal.Print():
                active = self.active(item.mask, path)
                label = (item.label, str(element(item.value)))
                place = np.full((1, 1), item.register)
                shown = self.numbers[item.value]
                where = [self.numbers[value] for value in item.place]
                made = access(item, "print", label, active, place, shown, *where)
                self.accesses.append(made)
                return ()
            case ThreadFor():
                return repeated(item, self.numbers, path, self.block)
            case metal.If():
                condition = self.numbers[item.condition]
                then = self.block(item.then, path & condition)
                otherwise = self.block(item.otherwise, path & (condition ^ 1))
                pairs = zip(then, otherwise, strict=True)
                return [numbers.select(condition, a, b) for a, b in pairs]
            case _:
                return self.communicate(item, path)

    def communicate(self, item: Op, path: Numbers) -> Sequence[Numbers]:
        match item:
            case metal.ThreadgroupAlloc():
                self.memory[item.result] = np.zeros((TRIALS, item.elements), np.int64)
                return (np.zeros((1, 1), np.int64),)
            case metal.ThreadgroupStore():
                active = self.wide(self.active(item.mask, path)) != 0
                rows = np.broadcast_to(np.arange(TRIALS)[:, None], active.shape)[active]
                at = self.inside(item, self.wide(self.numbers[item.index])[active])
                self.memory[item.buffer][rows, at] = self.wide(self.numbers[item.value])[active]
                return ()
            case metal.ThreadgroupLoad():
                return (self.shared_load(item),)
            case metal.Barrier():
                self.accesses.append(barrier(item, item.role))
                return ()
            case metal.Shuffle():
                first = self.threads // SIMD_WIDTH * SIMD_WIDTH
                source = self.wide(first + self.numbers[item.lane])
                return (np.take_along_axis(self.wide(self.numbers[item.src]), source, axis=1),)
            case AxisReduction():
                if not self.exact:
                    self.stated(item)
                return ()
            case metal.SimdReduce():
                lanes = self.wide(self.numbers[item.src]).reshape(TRIALS, -1, SIMD_WIDTH)
                total = combined(item.kind, lanes, item.src)[..., 0]
                return (total[:, :1] if item.uniform else np.repeat(total, SIMD_WIDTH, axis=1),)
            case FragmentMultiply():
                a, b, acc = (self.gathered(values) for values in (item.a, item.b, item.acc))
                return fragments(a, b, acc)
            case BlockMultiply():
                a, b, acc = (self.gathered(values) for values in (item.a, item.b, item.acc))
                made = product(a, b, acc, item.shape)
                return list(made.reshape(TRIALS, len(item.acc), -1).transpose(1, 0, 2))
            case _:
                raise Unreadable(item.opcode)

    def gathered(self, values: Sequence[Value]) -> Numbers:
        """One row per trial, then per value, and one column per thread."""
        return np.stack([self.wide(self.numbers[value]) for value in values], axis=1)

    def stated(self, item: AxisReduction) -> None:
        """Totals that axis_reductions.py proves; partners add in either order, so no tree is."""
        values = [self.wide(self.numbers[value]) for value in item.sources]
        slots = np.stack(values, axis=1).reshape(TRIALS, -1)
        owned = elements(item.layout)
        tile = np.empty_like(slots)
        tile[:, owned] = slots
        totals = along(item.kind, tile, item.shape, item.axis, item.sources[0])[:, owned]
        rows = totals.reshape(TRIALS, len(item.totals), -1)
        self.numbers.update((value, rows[:, at]) for at, value in enumerate(item.totals))

    def wide(self, found: Numbers) -> Numbers:
        """One row per trial and one column per thread."""
        return np.broadcast_to(found, (TRIALS, self.func.threads))

    def active(self, mask: Value | None, path: Numbers) -> Numbers:
        return path if mask is None else path & self.numbers[mask]

    def load(self, item: metal.Load, path: Numbers) -> Numbers:
        dtype, array = element(item.result), self.arrays[item.buffer]
        active = self.active(item.mask, path)
        self.note(item, "load", array, active, item.index, None)
        there = self.decisions.memory(array[0], dtype, self.numbers[item.index])
        return (
            there if item.fill is None else numbers.select(active, there, self.numbers[item.fill])
        )

    def shared_load(self, item: metal.ThreadgroupLoad) -> Numbers:
        active = self.wide(self.active(item.mask, np.ones((1, 1), np.int64)))
        at = np.where(active != 0, self.wide(self.numbers[item.index]), 0)
        self.inside(item, at)
        there = np.take_along_axis(self.memory[item.buffer], at, axis=1)
        return (
            there if item.fill is None else numbers.select(active, there, self.numbers[item.fill])
        )

    def inside(self, item: metal.ThreadgroupStore | metal.ThreadgroupLoad, at: Numbers) -> Numbers:
        """Indices that the memory of an access has.

        Raises:
            Outside: it has not.
        """
        size = self.memory[item.buffer].shape[1]
        if ((at < 0) | (at >= size)).any():
            raise Outside(item)
        return at

    def note(
        self,
        item: metal.Load | metal.Store,
        kind: str,
        array: tuple[str, str],
        active: Numbers,
        index: Value,
        value: Numbers | None,
    ) -> None:
        """Remember an access: of one register slot of a tensor access."""
        at = self.numbers[index]
        self.accesses.append(access(item, kind, array, active, at, value))
