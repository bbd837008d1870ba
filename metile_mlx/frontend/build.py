"""What rules build with: verified ops at the right place, names, constants, casts, tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from metile_mlx import dtypes
from metile_mlx.analysis.views import size_name
from metile_mlx.dtypes import DType
from metile_mlx.errors import CompileError, Loc
from metile_mlx.frontend.naming import constant_name, suffix
from metile_mlx.frontend.values import (
    Number,
    convert,
    default_dtype,
    describe,
    is_number,
    meet,
    represent,
)
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Builder, Effect, Op, Value, walk
from metile_mlx.ir.tile import Cast, Constant, Tensor
from metile_mlx.ir.types import ScalarType


@dataclass
class Scope:
    """A block under construction and the constants already built in it or around it."""

    builder: Builder
    constants: dict[tuple[str, DType], Value] = field(default_factory=dict)

    def writes(self) -> bool:
        """Whether an op of it writes memory or prints."""
        return any(item.effect & Effect.WRITE for item in walk(self.builder.block()))


@dataclass(frozen=True)
class Call:
    """The call being translated: its name, place, and the places of its arguments as written."""

    name: str
    loc: Loc
    arguments: Mapping[str, Loc] = field(default_factory=dict)


@dataclass
class Tensors:
    """What the kernel has done with its tensors so far (SPEC K2, K7).

    Attributes:
        params: which array each tensor value views.
        access: the access each array is declared with.
        stored: where each array was stored to.
        loaded: where each array was loaded from in the runtime loops that are open.
    """

    params: dict[Value, Value] = field(default_factory=dict)
    access: dict[Value, str] = field(default_factory=dict)
    stored: dict[Value, Loc] = field(default_factory=dict)
    loaded: dict[Value, Loc] = field(default_factory=dict)

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """What is translated inside runs again and again.

        Raises:
            CompileError: an array is loaded that an earlier iteration has stored to (SPEC K7).
        """
        outer, self.loaded = self.loaded, {}
        yield
        for param, loc in self.loaded.items():
            if param in self.stored:
                raise CompileError(
                    f"[load] {param.name} is stored to in line {self.stored[param].line}; in the "
                    "next iteration of the loop a load can't see stores of the same launch",
                    loc,
                    "store to another array, or load all that is needed before the loop",
                )
        self.loaded = {**self.loaded, **outer}


class OwnScalars:
    """The names of scalars that are each thread's own in an outermost loop and the loops in it.

    Translated again, it has the same loops in the same order: no type decides what is translated.
    """

    def __init__(self) -> None:
        self.is_settled = True
        self._loops: list[set[str]] = []
        self._at = 0

    def again(self) -> None:
        """A translation begins."""
        self.is_settled, self._at = True, 0

    def of_next(self) -> set[str]:
        """What was found in the next loop, outer before inner."""
        if self._at == len(self._loops):
            self._loops.append(set())
        self._at += 1
        return self._loops[self._at - 1]


class Build:
    """The state of one translation, handed to every rule as its first argument.

    Attributes:
        params: the kernel's runtime parameters.
        call: the call being translated, for messages.
        tensors: declarations, loads and stores so far.
        lazy_scalars: runtime scalars that came as MLX arrays, as loaded at entry.
        grid_extents: results of num_programs, which the host knows too.
        loops, branches: how many unrolled loops and runtime branches are open.
        own: what is each thread's own in the runtime loops that are open; None outside of all.
        shared: declared threadgroup memory.
        sizes: scalars that no parameter is: elements of an array, by array.
        entry: what stands before everything else.
    """

    def __init__(self, loc: Loc, params: tuple[Value, ...]) -> None:
        self.params = params
        self.call = Call("kernel", loc)
        self.tensors = Tensors()
        self.lazy_scalars: set[Value] = set()
        self.grid_extents: set[Value] = set()
        self.loops = 0
        self.branches = 0
        self.own: OwnScalars | None = None
        self.sizes: dict[Value, Value] = {}
        self.shared: set[Value] = set()
        self.entry = Builder(loc)
        self._wholes: dict[tuple[Value, str], Value] = {}
        self._scope = Scope(Builder(loc))
        self._derived: set[Value] = set()

    @property
    def loc(self) -> Loc:
        """The place given to new ops."""
        return self._scope.builder.loc

    @loc.setter
    def loc(self, loc: Loc) -> None:
        self._scope.builder.loc = loc

    @property
    def ops(self) -> list[Op]:
        """The ops of the present block."""
        return self._scope.builder.ops

    def add(self, item: Op, name: str) -> Value:
        """Append an op and return its result under a derived name, which an assignment replaces."""
        value = self._scope.builder.add(item, name)
        self._derived.add(value)
        return value

    def run(self, item: Op) -> None:
        """Append an op without results."""
        self._scope.builder.emit(item)

    def branch(self, item: Op, names: tuple[str, ...]) -> tuple[Value, ...]:
        """Append an op with several results."""
        return self._scope.builder.emit(item, names)

    def whole(self, array: Value, access: str) -> Value:
        """The view of all elements of an array, made at kernel entry at its first use (SPEC K6)."""
        found = self._wholes.get((array, access))
        if found is None:
            if array not in self.sizes:
                name = size_name(array.name)
                self.sizes[array] = Value(ScalarType(dtypes.i32), name, array.loc)
            self.entry.loc = self.call.loc
            one = self.entry.add(Constant(1, dtypes.i32), "c1")
            item = Tensor(array, (self.sizes[array],), (one,), access, whole=True)
            found = self.entry.add(item, array.name)
            self._wholes[array, access] = found
            self.tensors.params[found] = array
        return found

    def rename(self, value: object, name: str) -> None:
        """Give the user's name to a value that only has a derived one."""
        if isinstance(value, Value) and value in self._derived:
            value.name = name
            self._derived.discard(value)

    @contextmanager
    def inside(self, scope: Scope | None = None, is_branch: bool = True) -> Iterator[Scope]:
        """Build into a nested block: a fresh one, or one that was left before.

        `is_branch`: it is known already that it may not run.
        """
        outer = self._scope
        self._scope = scope or Scope(outer.builder.child(), dict(outer.constants))
        self._scope.builder.loc = outer.builder.loc
        self.branches += is_branch
        try:
            yield self._scope
        finally:
            self._scope = outer
            self.branches -= is_branch

    def splice(self, scope: Scope) -> None:
        """Append what was built in a nested block, so that it runs in any case."""
        self.ops.extend(scope.builder.ops)
        self._scope.constants.update(scope.constants)

    def constant(self, value: Number, dtype: DType) -> Value:
        """A number of `dtype`, built once per block.

        Raises:
            CompileError: the number does not fit the dtype.
        """
        held = represent(value, dtype)
        key = (repr(held), dtype)
        found = self._scope.constants.get(key)
        if found is None:
            found = self._scope.builder.add(Constant(held, dtype), constant_name(held))
            self._scope.constants[key] = found
        return found

    def number(self, value: object, argument: str | None = None) -> Value:
        """A tile or scalar; a Python number in its default dtype (bool, i32, f32).

        Raises:
            CompileError: anything else.
        """
        self.expect_number(value, argument)
        if isinstance(value, Value):
            return value
        assert isinstance(value, bool | int | float)
        return self.constant(value, default_dtype(value))

    def expect_number(self, value: object, argument: str | None = None) -> None:
        """Raise unless `value` takes part in arithmetic."""
        if not is_number(value):
            what = f"{argument} is" if argument else "got"
            raise self.error(
                f"{what} {describe(value)}, expected a tile, a scalar or a number", argument
            )

    def common(self, *values: object) -> DType:
        """The dtype in which operands meet (SPEC K4); Python numbers alone take their default.

        Raises:
            CompileError: u32 with i32, a dtype without arithmetic, or not a number.
        """
        for value in values:
            self.expect_number(value)
        typed = [element(value) for value in values if isinstance(value, Value)]
        plain = [value for value in values if isinstance(value, bool | int | float)]
        if typed:
            dtype = typed[0]
            for other in typed[1:]:
                dtype = dtypes.promote(dtype, other)
        else:
            kinds = [default_dtype(value) for value in plain]
            dtype = max(kinds, key=(dtypes.bool_, dtypes.i32, dtypes.f32).index)
        for value in plain:
            dtype = meet(value, dtype)
        return dtype

    def lift(self, value: object, dtype: DType) -> Value:
        """An operand as a Value of `dtype`: Python numbers become constants, others are cast."""
        if isinstance(value, Value):
            return self.cast(value, dtype)
        assert isinstance(value, bool | int | float)
        return self.constant(value, dtype)

    def cast(self, value: object, dtype: DType) -> Value:
        """`value` converted to `dtype`; the same Value when it already is."""
        if not isinstance(value, Value):
            assert isinstance(value, bool | int | float)
            return self.constant(convert(value, dtype), dtype)
        if element(value) == dtype:
            return value
        return self.add(Cast(value, dtype), suffix(value, dtype.name))

    def error(
        self, message: str, argument: str | None = None, hint: str | None = None
    ) -> CompileError:
        """An error of the call being translated, at the named argument if that was written out."""
        loc = self.call.arguments.get(argument or "", self.call.loc)
        return CompileError(f"[{self.call.name}] {message}", loc, hint)
