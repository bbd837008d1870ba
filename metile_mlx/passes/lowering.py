"""What `scalarise` carries from op to op: register slots, views, and the split parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metile_mlx.analysis.ranges import Interval
from metile_mlx.analysis.views import size_name
from metile_mlx.context import Context
from metile_mlx.dtypes import DType, bool_, i32
from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.types import PointerType, ScalarType, TileType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.passes.addresses import View
from metile_mlx.passes.lane_builder import LaneBuilder

Slots = tuple[Value, ...]
Lowered = tuple[Slots, ...]
Rules = Mapping[type[Op], Callable[["Lowering", Any], Lowered]]
_ACCESS = {"read": {"read"}, "write": {"write"}, "read_write": {"read", "write"}}


@dataclass(frozen=True)
class Pointers:
    """What became of an array parameter; see `View`."""

    source: Value | None
    target: Value | None
    written: Value | None


class Lowering:
    """The state of one call of `scalarise`: what each value of the tile program has become.

    Attributes:
        func: the tile program.
        ctx: of the compilation.
        rules: by tile op class, what lowers it and returns the slots of each result.
        b: where the thread's program is built.
        slots: the register slots of each tile, the one value of each scalar.
        views: each declared tensor.
        shared: the memory of those in threadgroup memory.
    """

    def __init__(self, func: Func, ctx: Context, rules: Rules) -> None:
        self.func = func
        self.ctx = ctx
        self.rules = rules
        self.b = LaneBuilder(func.threads, func.loc, _holds_registers(func), ctx.propagate_ranges)
        self.slots: dict[Value, Slots] = {}
        self.views: dict[Value, View] = {}
        self.shared: dict[Value, Value] = {}
        self.pointers: dict[Value, Pointers] = {}
        self._accesses = 0
        access: dict[Value, set[str]] = {}
        for item in walk(func.body):
            if isinstance(item, tile.Tensor):
                access.setdefault(item.param, set()).update(_ACCESS[item.access])
        arrays = [param for param in func.params if isinstance(param.type, PointerType)]
        names = {size_name(array.name) for array in arrays}
        sizes = {param for param in func.params if param.name in names}
        for param in func.params:
            if not isinstance(param.type, PointerType):
                self.slots[param] = (param,)
                if param in sizes:
                    self.b.ranges.assume(param, Interval(0, i32.max))
            elif param in access:
                self.pointers[param] = self._split(param, access[param])

    def _split(self, param: Value, access: set[str]) -> Pointers:
        assert isinstance(param.type, PointerType)

        def pointer(name: str, writable: bool, dtype: DType) -> Value:
            return Value(PointerType(dtype, writable), name, param.loc)

        source = target = written = None
        if "read" in access:
            source = pointer(param.name, False, param.type.dtype)
        if "write" in access:
            suffix = "_out" if source else ""
            target = pointer(param.name + suffix, True, param.type.dtype)
            if param.name in self.ctx.masked_outputs:
                written = pointer(f"{param.name}_written", True, bool_)
        return Pointers(source, target, written)

    def params(self) -> tuple[Value, ...]:
        """The parameters of the thread's program."""
        inputs: list[Value | None] = []
        outputs: list[Value | None] = []
        for param in self.func.params:
            if not isinstance(param.type, PointerType):
                inputs.append(param)
            elif param in self.pointers:
                pointers = self.pointers[param]
                inputs.append(pointers.source)
                outputs += [pointers.target, pointers.written]
        return tuple(value for value in (*inputs, *outputs) if value is not None)

    def block(self, block: Block) -> None:
        """Lower the ops of a block where the builder stands."""
        for item in block.ops:
            with self.b.at(item.loc):
                for result, slots in zip(
                    item.results, self.rules[type(item)](self, item), strict=True
                ):
                    self.slots[result] = slots
                    for register, value in enumerate(slots):
                        value.name = value.name or slot_name(result, register)

    def scalar(self, value: Value) -> Value:
        """The one value of a uniform scalar."""
        (only,) = self.slots[value]
        return only

    def new_access(self, parts: int) -> int | None:
        """The number that the parts of one tensor access bear; None for a single one."""
        if parts == 1:
            return None
        self._accesses += 1
        return self._accesses

    def rows(self, *values: Value | None) -> list[list[Value | None]]:
        """Per register slot, the values of that slot; a scalar, or None, is in every row."""
        found = [None if value is None else self.slots[value] for value in values]
        count = max((len(slots) for slots in found if slots is not None), default=1)
        return [
            [None if s is None else s[register if len(s) > 1 else 0] for s in found]
            for register in range(count)
        ]

    def columns(self, map_: AffineMap, register: int) -> tuple[tuple[int, ...], int]:
        """The images of the thread bits in `register`, and of thread 0: a map of slots, in part."""
        width = self.b.forms.width
        return map_.columns[:width], map_.apply(register * self.func.threads)


def _holds_registers(func: Func) -> bool:
    """Whether tiles have several values per thread; if one does, all do (SPEC O5)."""
    types = (value.type for item in func.body.ops for value in item.results)
    tile_type = next((t for t in types if isinstance(t, TileType)), None)
    layout = tile_type.layout if tile_type is not None else None
    return layout is not None and layout.elements_per_thread > 1


def slot_name(value: Value, register: int) -> str:
    """The name of a register slot: the tile's, with the number of the slot behind the first."""
    return f"{value.name}_{register}" if value.name and register else value.name


def registers(value: Value) -> int:
    """Register slots of a tile, 1 for a scalar."""
    if isinstance(value.type, TileType) and value.type.layout is not None:
        return value.type.layout.elements_per_thread
    return 1


def spread(low: Lowering, value: Value, count: int) -> Slots:
    """The register slots of a value; one that is the same in all stands for each."""
    slots = low.slots[value]
    return slots if len(slots) == count else slots * count


def loop(low: Lowering, head: ThreadFor, body: Callable[[], Sequence[Value]]) -> Sequence[Value]:
    """Build a loop with the bounds, initial values and arguments of `head`; its results.

    `body` builds an iteration and returns what it yields.
    """
    b = low.b
    builder = b.child()
    b.ranges.enter(head)
    with b.inside(builder):
        b.emit(metal.Yield(tuple(body())))
    b.ranges.leave(head)
    return b.emit(replace(head, body=builder.block(head.body.args)))


def argument(arg: Value, register: int = 0) -> Value:
    """What a loop binds: uniform for a scalar, each thread's own for a slot of a tile."""
    uniform = isinstance(arg.type, ScalarType) and arg.type.uniform
    return Value(ScalarType(element(arg), uniform), slot_name(arg, register), arg.loc)


def yielded(low: Lowering, block: Block) -> list[Value]:
    """What a block hands to its op, one value per register slot even where all are the same."""
    flat: list[Value] = []
    for value in block.ops[-1].operands():
        flat += spread(low, value, registers(value))
    return flat
