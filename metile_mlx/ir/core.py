"""The SSA core both op sets share: Value, Op, Block, Func and the Builder that makes them.

An op is one frozen dataclass. Its fields say everything: a `Value` (or a tuple of them, or None) is
an operand, a `Block` a region, anything else an attribute. Printing, keying, cloning and rewriting
follow from the fields. The IR is immutable: a pass rebuilds, and an op it keeps keeps its result
Values. Names and locations ride along; they never enter equality, hashing or keys.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Flag, auto
from typing import Any, ClassVar, TypeVar, dataclass_transform

from metile_mlx.errors import Loc
from metile_mlx.ir.types import Type

NOWHERE = Loc("<generated>", 0, 0, 0, "")


class Effect(Flag):
    """What an op does besides computing its results."""

    PURE = 0
    READ = auto()
    WRITE = auto()
    # Every thread of the threadgroup has to execute the op together: barriers, shuffles.
    CONVERGENT = auto()
    TERMINATOR = auto()


class Value:
    """One SSA value, compared by identity. `name` is stable across passes: report facts use it."""

    __slots__ = ("loc", "name", "type")

    def __init__(self, type: Type, name: str = "", loc: Loc = NOWHERE) -> None:
        self.type = type
        self.name = name
        self.loc = loc

    def __repr__(self) -> str:
        return f"%{self.name or '_'}: {self.type}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Op:
    """Base of all ops; see the module docstring for what the fields of a subclass mean."""

    opcode: ClassVar[str] = "op"
    effect: ClassVar[Effect] = Effect.PURE
    field_names: ClassVar[tuple[str, ...]] = ()
    # The fields that may hold operands and regions, by their annotations: every pass asks for them.
    operand_fields: ClassVar[tuple[str, ...]] = ()
    block_fields: ClassVar[tuple[str, ...]] = ()

    # Whether a Builder has checked this very op and made its results; a copy is another op.
    is_typed: ClassVar[bool] = False

    results: tuple[Value, ...] = field(default=(), repr=False)
    loc: Loc = field(default=NOWHERE, repr=False)

    def infer(self) -> tuple[Type, ...]:
        """The types of the results, from the operands and attributes."""
        return ()

    def verify(self) -> None:
        """Raise CompileError for what the types can't say."""

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def operands(self) -> tuple[Value, ...]:
        """All operands in field order."""
        known: tuple[Value, ...] | None = self.__dict__.get("_operands")
        if known is not None:
            return known
        found: list[Value] = []
        for name in self.operand_fields:
            item = getattr(self, name)
            if isinstance(item, Value):
                found.append(item)
            elif isinstance(item, tuple):
                found.extend(part for part in item if isinstance(part, Value))
        # Every pass and verifier asks, and the fields never change.
        object.__setattr__(self, "_operands", tuple(found))
        return tuple(found)

    def blocks(self) -> tuple[Block, ...]:
        """All regions in field order."""
        if not self.block_fields:
            return ()
        return tuple([getattr(self, name) for name in self.block_fields])

    def attributes(self) -> dict[str, object]:
        """What is neither operand nor region, by field name."""
        found: dict[str, object] = {}
        for name in self.field_names:
            item = getattr(self, name)
            if item is None or isinstance(item, Value | Block):
                continue
            if isinstance(item, tuple) and any(isinstance(part, Value) for part in item):
                continue
            found[name] = item
        return found

    def key(self) -> tuple[object, ...]:
        """Equal for two ops exactly when they compute the same thing from the same Values."""
        return (type(self), *(_key(getattr(self, name)) for name in self.field_names))

    def with_operands(self, mapping: Mapping[Value, Value]) -> Op:
        """This op over mapped operands; the same object when none of them changes."""
        changes: dict[str, Any] = {}
        for name in self.operand_fields:
            item = getattr(self, name)
            new = _mapped(item, mapping)
            if new is not item:
                changes[name] = new
        return replace(self, **changes) if changes else self


def literal_key(item: Any) -> Hashable:
    """What tells one attribute from another: NaN is itself, -0.0 is not 0.0, True is not 1."""
    return (type(item), repr(item)) if isinstance(item, float | bool) else item


def _key(item: object) -> object:
    if isinstance(item, Value | Block):
        return id(item)
    if isinstance(item, tuple):
        return tuple(_key(part) for part in item)
    return literal_key(item)


def _mapped(item: Any, mapping: Mapping[Value, Value]) -> Any:
    if isinstance(item, Value):
        return mapping.get(item, item)
    if isinstance(item, tuple) and any(
        isinstance(part, Value) and part in mapping for part in item
    ):
        return tuple(_mapped(part, mapping) for part in item)
    return item


OpClass = TypeVar("OpClass", bound=Op)


@dataclass_transform(frozen_default=True, eq_default=False)
def op(opcode: str, effect: Effect = Effect.PURE) -> Callable[[type[OpClass]], type[OpClass]]:
    """Class decorator that makes an Op: a frozen dataclass with its opcode and effect."""

    def decorate(cls: type[OpClass]) -> type[OpClass]:
        made = dataclass(frozen=True, eq=False)(cls)
        made.opcode = opcode
        made.effect = effect
        own = [f for f in fields(made) if f.name not in ("results", "loc")]
        made.field_names = tuple(f.name for f in own)
        made.operand_fields = tuple(f.name for f in own if "Value" in str(f.type))
        made.block_fields = tuple(f.name for f in own if str(f.type) == "Block")
        return made

    return decorate


@dataclass(frozen=True, eq=False)
class Block:
    """Ops in order; `args` are Values the block binds."""

    ops: tuple[Op, ...]
    args: tuple[Value, ...] = ()


@dataclass(frozen=True, eq=False)
class Func:
    """A kernel: parameters (array pointers and runtime scalars) and one body.

    `threads` is the size of the threadgroup, 0 until ownership has decided it.
    """

    name: str
    params: tuple[Value, ...]
    body: Block
    loc: Loc = NOWHERE
    threads: int = 0

    def with_body(self, body: Block) -> Func:
        return self if body is self.body else replace(self, body=body)


def walk(block: Block) -> Iterator[Op]:
    """Every op, outer before inner, in program order."""
    known: tuple[Op, ...] | None = block.__dict__.get("_walked")
    if known is None:
        found: list[Op] = []
        for item in block.ops:
            found.append(item)
            for inner in item.blocks():
                found += walk(inner)
        known = tuple(found)
        # Every pass and verifier asks, and blocks never change.
        object.__setattr__(block, "_walked", known)
    return iter(known)


def definitions(func: Func) -> dict[Value, Op]:
    """Which op defines each result."""
    return {value: item for item in walk(func.body) for value in item.results}


class Builder:
    """Appends verified ops to a block under construction. `loc` is given to each new op."""

    def __init__(self, loc: Loc = NOWHERE) -> None:
        self.ops: list[Op] = []
        self.loc = loc

    def add(self, item: Op, name: str = "") -> Value:
        """Append an op with exactly one result and return it."""
        (value,) = self.emit(item, (name,))
        return value

    def emit(self, item: Op, names: Sequence[str] = ()) -> tuple[Value, ...]:
        """Append an op and return its results, named in order.

        Raises:
            CompileError: the op's own verify rejects it, at the builder's location.
        """
        if item.loc is NOWHERE:
            object.__setattr__(item, "loc", self.loc)
        item.verify()
        types = item.infer()
        padded = (*names, *[""] * (len(types) - len(names)))
        made = tuple(
            Value(type_, name, item.loc) for type_, name in zip(types, padded, strict=False)
        )
        object.__setattr__(item, "results", made)
        object.__setattr__(item, "is_typed", True)
        self.ops.append(item)
        return made

    def child(self) -> Builder:
        """A builder for a nested block, at the same location."""
        return Builder(self.loc)

    def block(self, args: tuple[Value, ...] = ()) -> Block:
        """The finished block."""
        return Block(tuple(self.ops), args)
