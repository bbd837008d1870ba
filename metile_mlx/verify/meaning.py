"""What values mean, wherever they are: one number for equal logical tiles, in two programs.

A value's number follows from its op and the numbers of its operands, not from the owners of its
result. A conversion, whatever became of it, has the number of what it moves. So the programs before
and after a step that is about owners store and print the same numbers, or the step was wrong.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from metile_mlx.dtypes import DType, bool_
from metile_mlx.ir.core import Block, Effect, Op, Value, literal_key
from metile_mlx.ir.tile import Bitcast, Cast, Print, Store
from metile_mlx.ir.types import ScalarType, TileType, Type
from metile_mlx.layout.operand import Layout
from metile_mlx.verify.findings import Finding


class Numbering:
    """Numbers by what they stand for; share one between the programs to compare."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._casts: dict[int, tuple[str, DType | None, int]] = {}

    def of(self, *key: Hashable) -> int:
        """The number of `key`, new if the key is."""
        return self._numbers.setdefault(key, len(self._numbers))

    def cast(self, item: Cast | Bitcast, src: int) -> int:
        """A cast; going back loses nothing after a bitcast, and after a bool became a number."""
        source = _dtype(item.src.type)
        kind, origin, number = self._casts.get(src, ("", source, src))
        exact = isinstance(item, Bitcast) or origin == bool_
        if kind == item.opcode and origin == item.dtype and exact:
            return number
        made = self.of(item.opcode, item.dtype, src)
        self._casts[made] = (item.opcode, source, src)
        return made


@dataclass(frozen=True)
class Part:
    """An operand of a store or print: the name of its field, and what it means."""

    name: str
    value: Value
    number: int

    @property
    def layout(self) -> Layout | None:
        return self.value.type.layout if isinstance(self.value.type, TileType) else None


@dataclass(frozen=True)
class Stored:
    """One store, print, or yield of a loop, and the conditions it stands under."""

    op: Op
    path: tuple[Hashable, ...]
    parts: tuple[Part, ...]


class Meaning:
    """The numbers of one program's values, and its stores and prints, each in order.

    Args:
        numbering: shared by the programs to compare.
        before: the program this one was made from. As long as no value of it has got another
            number, an op that both hold needs none either.
    """

    def __init__(self, numbering: Numbering, before: Meaning | None = None) -> None:
        self.numbering = numbering
        self.numbers: dict[Value, int] = {} if before is None else dict(before.numbers)
        self.stores: list[Stored] = []
        self.prints: list[Stored] = []
        # Every access to arrays, and every print, with what it means.
        self.accesses: list[tuple[Op, Hashable]] = []
        self._kept: set[Op] = set() if before is None else before._seen
        self._seen: set[Op] = set()
        self._same = True

    def define(self, value: Value, number: int) -> None:
        """Give a value its number."""
        self._same = self._same and self.numbers.get(value, number) == number
        self.numbers[value] = number

    def default(self, item: Op) -> None:
        """Number the results of an op by its fields."""
        self._seen.add(item)
        if item.results and not (self._same and item in self._kept):
            key = (item.opcode, *[self._field(getattr(item, name)) for name in item.field_names])
            for position, value in enumerate(item.results):
                self.define(value, self.numbering.of(key, position))
        if item.effect is Effect.READ:
            self.accesses.append((item, self.numbers[item.result]))

    def cast(self, item: Cast | Bitcast) -> None:
        self.define(item.result, self.numbering.cast(item, self.numbers[item.src]))

    def store(self, item: Store, path: tuple[Hashable, ...]) -> None:
        named = [("tensor", item.tensor), *(("index", index) for index in item.indices)]
        named += [("value", item.value), *([("mask", item.mask)] if item.mask is not None else [])]
        self.stores.append(self._effect(item, path, named))

    def print(self, item: Print, path: tuple[Hashable, ...]) -> None:
        named = [("value", item.value), *([("mask", item.mask)] if item.mask is not None else [])]
        self.prints.append(self._effect(item, path, named))

    def _effect(
        self, item: Store | Print, path: tuple[Hashable, ...], named: Iterable[tuple[str, Value]]
    ) -> Stored:
        parts = tuple(Part(name, value, self.numbers[value]) for name, value in named)
        key = (item.opcode, *[(part.name, part.number) for part in parts])
        self.accesses.append((item, key))
        return Stored(item, path, parts)

    def carried(self, body: Block, path: tuple[Hashable, ...]) -> None:
        """What an iteration hands to the next one is compared like what is stored."""
        end = body.ops[-1]
        parts = tuple(Part("yield", value, self.numbers[value]) for value in end.operands())
        self.stores.append(Stored(end, path, parts))

    def _field(self, item: Any) -> Hashable:
        if isinstance(item, Value):
            return self.numbers[item]
        if isinstance(item, tuple):
            return tuple([self._field(part) for part in item])
        if isinstance(item, Layout):
            return None
        return literal_key(item)


def _dtype(type_: Type) -> DType | None:
    return type_.dtype if isinstance(type_, ScalarType | TileType) else None


def differences(before: Meaning, after: Meaning) -> list[Finding]:
    """Where two programs store or print something else, or access memory in another order."""
    findings = [
        *_differences("stores", before.stores, after.stores),
        *_differences("prints", before.prints, after.prints),
    ]
    return findings or _order(before, after)


def _order(before: Meaning, after: Meaning) -> list[Finding]:
    """The accesses are those of before in their order; loads may be missing."""
    remaining = iter([key for _, key in before.accesses])
    for item, key in after.accesses:
        if key not in remaining:
            text = "accesses memory where the program before did not, or has passed another access"
            return [Finding(item, text)]
    return []


def _differences(what: str, before: list[Stored], after: list[Stored]) -> list[Finding]:
    findings = [
        finding
        for old, new in zip(before, after, strict=False)
        for finding in _compare(what, old, new)
    ]
    if len(before) != len(after):
        findings.append(Finding(None, f"has {len(after)} {what}, expected {len(before)}"))
    return findings


def _compare(what: str, old: Stored, new: Stored) -> list[Finding]:
    line = old.op.loc.line
    if old.path != new.path:
        text = f"{what} under other conditions than before, expected those of line {line}"
        return [Finding(new.op, text)]
    if [part.name for part in old.parts] != [part.name for part in new.parts]:
        return [Finding(new.op, f"has other operands than before, expected those of line {line}")]
    findings = []
    if old.op.attributes() != new.op.attributes():
        text = f"has other attributes than before, expected {old.op.attributes()} of line {line}"
        findings.append(Finding(new.op, text))
    for was, now in zip(old.parts, new.parts, strict=True):
        made = f"made in line {was.value.loc.line}"
        if was.number != now.number:
            text = f"its {was.name} is another than before, expected {was.value!r} {made}"
        elif was.layout != now.layout:
            text = f"its {was.name} has owners {now.layout!r}, expected {was.layout!r} {made}"
        else:
            continue
        findings.append(Finding(new.op, text))
    return findings
