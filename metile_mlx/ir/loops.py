"""Loops with uniform runtime bounds, in both op sets (SPEC K5).

The body binds the induction variable and the carried values: its arguments. It ends in a yield of
what they are in the next iteration; what the last one leaves, or the initial values where no
iteration runs, are the results.
"""

from __future__ import annotations

from metile_mlx.dtypes import i32
from metile_mlx.errors import CompileError
from metile_mlx.ir.core import Block, Op, Value, op
from metile_mlx.ir.types import ScalarType, TileType, Type


@op("loop")
class Loop(Op):
    """start, start + step, ... as long as it is below `end`; step is above 0.

    A carried value keeps its type; a scalar of each thread's own may start uniform.

    The induction variable never passes `end`: where start + k * step leaves i32, the loop is over.
    """

    start: Value
    end: Value
    step: Value
    inits: tuple[Value, ...]
    body: Block

    @property
    def index(self) -> Value:
        """The induction variable."""
        return self.body.args[0]

    @property
    def carried(self) -> tuple[Value, ...]:
        """What the carried values are at the start of an iteration."""
        return self.body.args[1:]

    @property
    def yields(self) -> tuple[Value, ...]:
        """What the carried values are at its end."""
        return self.body.ops[-1].operands()

    def infer(self) -> tuple[Type, ...]:
        return tuple(value.type for value in self.carried)

    def verify(self) -> None:
        for name, value in (("start", self.start), ("end", self.end), ("step", self.step)):
            if value.type != ScalarType(i32):
                raise CompileError(
                    f"[tile_range] {name} is {value.type}, expected a uniform i32 scalar",
                    hint="bounds are the same in all threads: ints, runtime ints, program_id",
                )


@op("tile.for")
class For(Loop):
    """A loop over whole tiles."""


@op("metal.for")
class ThreadFor(Loop):
    """A loop of one thread's program."""


def fits(value: Type, arg: Type) -> bool:
    """Whether a carried value of type `arg` may become a value of type `value`."""
    if isinstance(arg, ScalarType) and isinstance(value, ScalarType):
        return value.dtype == arg.dtype and (value.uniform or not arg.uniform)
    return isinstance(arg, TileType) and value == arg
