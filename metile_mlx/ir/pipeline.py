"""Software pipelines: loops that copy tiles through threadgroup memory, step by step (SPEC P2)."""

from __future__ import annotations

from dataclasses import dataclass

from metile_mlx.dtypes import DType, bool_, i32
from metile_mlx.errors import CompileError
from metile_mlx.ir.core import Block, Op, Value, op
from metile_mlx.ir.loops import fits
from metile_mlx.ir.types import ScalarType, ScratchType, Type
from metile_mlx.layout.affine import AffineMap


@dataclass(frozen=True)
class Buffer:
    """Memory of one operand: its dtype as it lies there, and elements and order of one slot.

    Element i of the tile lies at `order(i)`, in each slot.
    """

    dtype: DType
    elements: int
    order: AffineMap


@op("tile.pipeline")
class SoftwarePipeline(Op):
    """For k = start, start + step, ... below `end`: copy tiles into memory, and consume them.

    Tiles are copied `slots` - 1 steps before they are consumed:

        first   (k, slot)                        copies the first tiles, for slots = 2
        steady  (k, ahead, slot, free, *carried) consumes `slot`, copies the tiles of step `ahead`
                                                 into `free`, and yields what is carried
        last    (k, slot, *carried)              consumes the last tiles, for slots = 2

    With one slot `ahead` is k and `free` is `slot`: a step copies, then consumes; `first` and
    `last` are empty. With two, `first` runs for start, `steady` for every k that another follows,
    with slots 0 and 1 in turns, `last` for the last one; all of it only where `guard`: start < end.
    The results are what is carried in the end, or `inits` where no step runs.

    `storage`: for each of `buffers` its tile.scratch, which has as many slots.
    """

    start: Value
    end: Value
    step: Value
    inits: tuple[Value, ...]
    storage: tuple[Value, ...]
    buffers: tuple[Buffer, ...]
    slots: int
    first: Block
    steady: Block
    last: Block
    guard: Value | None = None

    @property
    def carried(self) -> tuple[Value, ...]:
        """What the carried values are at the start of a steady step."""
        return self.steady.args[4:]

    def infer(self) -> tuple[Type, ...]:
        return tuple(value.type for value in self.carried)

    def verify(self) -> None:
        for name in ("start", "end", "step"):
            if getattr(self, name).type != ScalarType(i32):
                raise CompileError(f"{self.opcode}: {name} is no uniform i32 scalar")
        if self.guard is not None and self.guard.type != ScalarType(bool_):
            raise CompileError(f"{self.opcode}: the guard is {self.guard.type}, expected a bool")
        if self.slots not in (1, 2) or (self.slots == 2) != (self.guard is not None):
            raise CompileError(f"{self.opcode}: {self.slots} slots, expected 1, or 2 and a guard")
        memory = [value.type for value in self.storage]
        if not all(isinstance(type_, ScratchType) for type_ in memory):
            raise CompileError(f"{self.opcode}: storage is {memory}, expected threadgroup memory")
        if len(self.buffers) != len(memory):
            raise CompileError(f"{self.opcode}: {len(memory)} storages for {self.buffers}")
        self._check_phases()

    def _check_phases(self) -> None:
        """What each phase binds and yields."""
        carried = self.infer()
        given = tuple(value.type for value in self.inits)
        if len(given) != len(carried) or not all(map(fits, given, carried)):
            raise CompileError(f"{self.opcode}: starts with {given}, expected {carried}")
        number = ScalarType(i32)
        for phase, bound, yields in (
            ("first", (number,) * 2, ()),
            ("steady", (number,) * 4 + carried, carried),
            ("last", (number,) * 2 + carried, carried if self.slots == 2 else ()),
        ):
            block = self.phases[phase]
            made = tuple(value.type for value in block.ops[-1].operands()) if block.ops else ()
            if tuple(value.type for value in block.args) != bound or made != yields:
                raise CompileError(f"{self.opcode}: {phase} binds or yields other values")

    @property
    def phases(self) -> dict[str, Block]:
        """The phases by name, in their order."""
        return {"first": self.first, "steady": self.steady, "last": self.last}
