"""Small tile programs for the tests of passes and verifiers; each op has its own source line."""

from __future__ import annotations

from collections.abc import Sequence

from metile_mlx.context import Context, Schedule
from metile_mlx.dtypes import DType, f32, i32
from metile_mlx.errors import Loc
from metile_mlx.ir import tile
from metile_mlx.ir.core import Builder, Func, Op, Value
from metile_mlx.ir.types import PointerType, ScalarType, Type
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import METAL, Target

FILE = "kernel.py"


def context(target: Target = METAL, **schedule: object) -> Context:
    """A context for `target` with a schedule of these options."""
    return Context(target, Schedule(**schedule))  # type: ignore[arg-type]


class Program:
    """Builds a Stage.TILE kernel. The n-th op stands in line n of `kernel.py`, from column 5 on."""

    def __init__(self, name: str = "kernel") -> None:
        self.name = name
        self.params: list[Value] = []
        self.builder = Builder()
        self.line = 0

    def param(self, name: str, type: Type) -> Value:
        """Declare a parameter of the kernel."""
        value = Value(type, name)
        self.params.append(value)
        return value

    def add(self, item: Op, name: str = "") -> Value:
        """Append an op with one result, in a new line."""
        self._next(name)
        return self.builder.add(item, name)

    def emit(self, item: Op) -> tuple[Value, ...]:
        """Append an op with any number of results, in a new line."""
        self._next("")
        return self.builder.emit(item)

    def _next(self, name: str) -> None:
        self.line += 1
        text = f"    {name or 'line'} = line_{self.line}()"
        self.builder.loc = Loc(FILE, self.line, 5, len(text) + 1, text)

    def number(self, value: float, dtype: DType = i32) -> Value:
        """A compile-time scalar."""
        return self.add(tile.Constant(value, dtype))

    def array(self, name: str, dtype: DType, size: int, access: str) -> Value:
        """A parameter `name` declared as a contiguous 1-D tensor of `size` elements."""
        param = self.param(name, PointerType(dtype))
        shape = (self.number(size),)
        return self.add(tile.Tensor(param, shape, (self.number(1),), access), f"{name}_tensor")

    def arange(self, size: int, layout: ThreadLayout | None = None, name: str = "") -> Value:
        """0, 1, ..., size - 1."""
        return self.add(tile.Arange(self.number(0), size, layout), name)

    def scalar(self, name: str, dtype: DType = i32) -> Value:
        """A runtime scalar parameter."""
        return self.param(name, ScalarType(dtype))

    def func(self) -> Func:
        """The kernel."""
        return Func(self.name, tuple(self.params), self.builder.block())


def conversion_program(
    source: ThreadLayout | None, destination: ThreadLayout, dtype: DType = f32
) -> Func:
    """y[i] = x[i], loaded by the owners of `source` and stored by those of `destination`."""
    return chain_program(source, [(destination, dtype)])


def chain_program(source: ThreadLayout | None, steps: Sequence[tuple[ThreadLayout, DType]]) -> Func:
    """One array per step: x<k> is loaded by the present owners, converted, and stored to y<k>.

    Conversion k goes from the layout of step k - 1 (`source` before the first) to that of step k.
    """
    p = Program()
    size = steps[0][0].size
    arrays = [
        (p.array(f"x{k}", dtype, size, "read"), p.array(f"y{k}", dtype, size, "write"))
        for k, (_, dtype) in enumerate(steps)
    ]
    here = source
    for k, (layout, _) in enumerate(steps):
        x, y = arrays[k]
        positions = p.arange(size, here, f"positions{k}")
        value = p.add(tile.Load(x, (positions,)), f"value{k}")
        converted = p.add(tile.Convert(value, layout), f"converted{k}")
        owned = p.arange(size, layout, f"owned{k}")
        p.emit(tile.Store(y, (owned,), converted))
        here = layout
    return p.func()
