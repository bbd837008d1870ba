"""A loop with runtime bounds: what its body carries from one iteration to the next (SPEC K5).

The names a body may assign are found by syntax. One that holds a number, scalar or tile before the
loop becomes a carried value while the body is translated. Afterwards it is carried if the body has
changed it, and what it was before the loop if not.

A scalar that turns out to be each thread's own is one from the start. What depends on it may be
typed otherwise then, so the outermost loop is translated again, with all that was found in it and
in the loops inside, until nothing more is found: once more, as a rule, however deep they nest.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from metile_mlx.dtypes import i32
from metile_mlx.errors import CompileError, Loc, OwnershipError
from metile_mlx.frontend.build import Build, Scope
from metile_mlx.frontend.scope import bindings
from metile_mlx.frontend.source import Source
from metile_mlx.frontend.values import (
    MISSING,
    Unbound,
    constant_key,
    describe,
    is_number,
    meet,
)
from metile_mlx.ir import tile
from metile_mlx.ir.arith import CompareKind, element
from metile_mlx.ir.core import Block, Op, Value, walk
from metile_mlx.ir.loops import For, fits
from metile_mlx.ir.types import ScalarType, TileType


@dataclass(frozen=True)
class TileRange:
    """What `metile.tile_range(...)` is in a kernel: the bounds of a loop, i32 scalars."""

    start: Value
    end: Value
    step: Value


def tile_range(build: Build, start: object, end: object, step: object) -> TileRange:
    """The bounds of a loop.

    A runtime step that the call can't check runs no iteration where it is below 1: it would never
    come to an end.

    Raises:
        CompileError: a bound that is no uniform i32 scalar, or a constant step below 1.
    """
    if end is None:
        start, end = 0, start
    if isinstance(step, int) and step < 1:
        raise build.error(
            f"step is {step}, expected at least 1",
            "step",
            "count up, and compute what counts down from it: n - 1 - i",
        )
    first, last, by = (
        _bound(build, name, value)
        for name, value in (("start", start), ("end", end), ("step", step))
    )
    if not isinstance(step, int) and step not in (*build.params, *build.grid_extents):
        zero = build.constant(0, i32)
        counts_up = build.add(tile.Compare(CompareKind.GT, by, zero), "counts_up")
        last = build.add(tile.Select(counts_up, last, first), "end")
    return TileRange(first, last, by)


def _bound(build: Build, name: str, value: object) -> Value:
    if isinstance(value, int) and not isinstance(value, bool):
        return build.constant(value, i32)
    if isinstance(value, Value) and value.type == ScalarType(i32):
        return value
    hint = "bounds are ints, runtime ints, program_id, and arithmetic on them"
    if isinstance(value, Value) and isinstance(value.type, ScalarType) and value.type.uniform:
        hint = "cast it: metile.cast(value, metile.i32)"
    raise build.error(f"{name} is {describe(value)}, expected a uniform i32 scalar", name, hint)


class Carried:
    """The values that one loop carries.

    Args:
        build: the kernel under construction, before the body.
        source: of the loop.
        node: the loop.
        before: what names hold before it.
        own: names of scalars that become each thread's own in the body: they are from the start.
    """

    def __init__(
        self,
        build: Build,
        source: Source,
        node: ast.For,
        before: Mapping[str, object],
        own: Iterable[str] = (),
    ) -> None:
        self._build = build
        self._line = source.line(node)
        self._before = before
        # Where each name is assigned last.
        self._places: dict[str, Loc] = {}
        for place in bindings(node.body):
            self._places[place.id] = source.loc(place)
        if isinstance(node.target, ast.Name):
            self._places.pop(node.target.id, None)
        self._inits: dict[str, Value] = {}
        self._args: dict[str, Value] = {}
        for name in self._places:
            if is_number(before.get(name, MISSING)):
                init = build.number(before[name])
                self._inits[name] = init
                self._args[name] = Value(init.type, name, build.loc)
        self.make_own(own)

    def entry(self) -> dict[str, object]:
        """What the assigned names hold when an iteration starts."""
        held: dict[str, object] = dict(self._args)
        for name in self._places:
            value = self._before.get(name, MISSING)
            if name not in held and value is not MISSING and not isinstance(value, Unbound):
                held[name] = Unbound(
                    f"{name!r} is {describe(value)} before the loop of line {self._line} and "
                    "assigned in it: a loop carries tiles, scalars and numbers",
                    "give it another name in the loop, or unroll over range(constexpr)",
                )
        return held

    def becoming_own(self, left: Mapping[str, object]) -> set[str]:
        """The uniform scalars that the body, at its end, leaves as values of each thread's own."""
        return {
            name
            for name, arg in self._args.items()
            if isinstance(arg.type, ScalarType)
            and arg.type.uniform
            and isinstance(value := left.get(name), Value)
            and value.type == replace(arg.type, uniform=False)
        }

    def make_own(self, names: Iterable[str]) -> None:
        """Carry these scalars as values of each thread's own.

        A body that was translated before reads what they were: it serves to type what follows.
        """
        for name in names:
            type_ = self._args[name].type
            assert isinstance(type_, ScalarType)
            self._args[name] = Value(replace(type_, uniform=False), name, self._build.loc)

    def close(
        self, bounds: TileRange, index: Value, scope: Scope, left: Mapping[str, object]
    ) -> dict[str, object]:
        """Append the loop; what each assigned name holds after it.

        Args:
            index: the induction variable.
            scope: the body's, without its yield.
            left: what names hold at the end of the body.

        Raises:
            CompileError: a carried value changes its type.
        """
        after: dict[str, object] = {}
        yields: dict[str, Value] = {}
        unchanged: dict[Value, Value] = {}
        used = {value for item in scope.builder.ops for value in _reads(item)}
        used.update(v for n in self._args if isinstance(v := left[n], Value))
        for name in self._places:
            value = left.get(name, MISSING)
            arg = self._args.get(name)
            if arg is None:
                after[name] = self._lost(name, value)
            elif value is arg:
                after[name] = self._before[name]
                unchanged[arg] = self._inits[name]
            elif arg not in used and self._is_same(name, value):
                after[name] = self._before[name]
            elif (made := self._next(scope, name, value)) is not None:
                yields[name] = made
            elif arg in used:
                raise self._changed(name, value)
            else:
                after[name] = self._other(name, value)
        with self._build.inside(scope):
            self._build.run(tile.Yield(tuple(yields.values())))
        block = scope.builder.block((index, *(self._args[name] for name in yields)))
        inits = tuple(self._inits[name] for name in yields)
        item = For(bounds.start, bounds.end, bounds.step, inits, _replaced(block, unchanged))
        after.update(zip(yields, self._build.branch(item, tuple(yields)), strict=True))
        return after

    def _lost(self, name: str, value: object) -> object:
        """A name that held nothing a loop carries."""
        before = self._before.get(name, MISSING)
        if before is MISSING or isinstance(before, Unbound):
            return Unbound(
                f"{name!r} is assigned in the loop of line {self._line}, which may run no "
                "iteration",
                "assign it before the loop too",
            )
        return before if self._is_same(name, value) else self._other(name, value)

    def _is_same(self, name: str, value: object) -> bool:
        before = self._before[name]
        if isinstance(before, Value) or isinstance(value, Value):
            return before is value
        return constant_key(before) == constant_key(value)

    def _next(self, scope: Scope, name: str, value: object) -> Value | None:
        """The value for the next iteration, None where it is of another type."""
        type_ = self._args[name].type
        if isinstance(value, Value):
            return value if fits(value.type, type_) else None
        if not isinstance(value, bool | int | float) or not isinstance(type_, ScalarType):
            return None
        if isinstance(value, bool) != (type_.dtype.name == "bool"):
            return None
        if meet(value, type_.dtype) != type_.dtype:
            return None
        with self._build.inside(scope):
            return self._build.lift(value, type_.dtype)

    def _types(self, name: str, value: object) -> tuple[str, str]:
        was = describe(Value(self._args[name].type)) if name in self._args else ""
        now = describe(Value(value.type)) if isinstance(value, Value) else describe(value)
        return was or describe(self._before[name]), now

    def _changed(self, name: str, value: object) -> CompileError:
        loc = self._places[name]
        if isinstance(value, Unbound):
            return CompileError(value.message, loc, value.hint)
        was, now = self._types(name, value)
        old, new = self._args[name].type, value.type if isinstance(value, Value) else None
        if isinstance(old, TileType) and isinstance(new, TileType) and was == now:
            return OwnershipError(
                f"{name!r} has another stated layout after an iteration of the loop in line "
                f"{self._line}: {new.layout!r}, and {old.layout or 'none'} before",
                loc,
                "a runtime loop is not available beside explicit thread layouts; unroll it over "
                "range(constexpr)",
            )
        hint = "give one of them another name"
        if isinstance(new, TileType) and isinstance(old, ScalarType):
            hint = f"start with a tile: {name} = metile.full({new.shape}, ..., {new.dtype!r})"
        elif isinstance(value, Value) and element(value) != element(self._args[name]):
            to, start = element(self._args[name]), element(value)
            hint = f"cast it: metile.cast({name}, {to!r}), or start with {start}"
        return CompileError(
            f"{name!r} changes its type in the loop of line {self._line}: {was} before it, {now} "
            "after an iteration",
            loc,
            hint,
        )

    def _other(self, name: str, value: object) -> Unbound:
        if isinstance(value, Unbound):
            return value
        was, now = self._types(name, value)
        return Unbound(
            f"{name!r} is {was} before the loop of line {self._line} and {now} after an "
            "iteration: after the loop it is neither",
            "give one of them another name",
        )


def _reads(item: Op) -> Iterator[Value]:
    yield from item.operands()
    for block in item.blocks():
        for inner in walk(block):
            yield from inner.operands()


def _replaced(block: Block, mapping: Mapping[Value, Value]) -> Block:
    """The block over mapped operands, nested ones too."""
    if not mapping:
        return block
    ops: list[Op] = []
    for item in block.ops:
        changes: dict[str, Any] = {
            name: _replaced(getattr(item, name), mapping) for name in item.block_fields
        }
        new = item.with_operands(mapping)
        ops.append(replace(new, **changes) if changes else new)
    return Block(tuple(ops), block.args)
