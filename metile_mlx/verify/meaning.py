"""What values mean, wherever they are: one number for equal logical tiles, in two programs.

A value's number follows from its op and the numbers of its operands, not from the owners of its
result. A conversion, whatever became of it, has the number of what it moves. So the programs before
and after planning store the same numbers, or planning was wrong.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from metile_mlx.dtypes import DType, bool_
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.tile import Bitcast, Cast, Store
from metile_mlx.ir.types import ScalarType, TileType, Type
from metile_mlx.layout.thread_layout import ThreadLayout
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
    """An operand of a store: the name of its field, and what it means."""

    name: str
    value: Value
    number: int

    @property
    def layout(self) -> ThreadLayout | None:
        return self.value.type.layout if isinstance(self.value.type, TileType) else None


@dataclass(frozen=True)
class Stored:
    """One store and the conditions it stands under."""

    op: Store
    path: tuple[Hashable, ...]
    parts: tuple[Part, ...]


class Meaning:
    """The numbers of one program's values, and its stores in order.

    Args:
        numbering: shared by the programs to compare.
        before: the program this one was made from. As long as no value of it has got another
            number, an op that both hold needs none either.
    """

    def __init__(self, numbering: Numbering, before: Meaning | None = None) -> None:
        self.numbering = numbering
        self.numbers: dict[Value, int] = {} if before is None else dict(before.numbers)
        self.stores: list[Stored] = []
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
        if not item.results or (self._same and item in self._kept):
            return
        key = (item.opcode, *[self._field(getattr(item, name)) for name in item.field_names])
        for position, value in enumerate(item.results):
            self.define(value, self.numbering.of(key, position))

    def cast(self, item: Cast | Bitcast) -> None:
        self.define(item.result, self.numbering.cast(item, self.numbers[item.src]))

    def store(self, item: Store, path: tuple[Hashable, ...]) -> None:
        named = [("tensor", item.tensor), *(("index", index) for index in item.indices)]
        named += [("value", item.value), *([("mask", item.mask)] if item.mask is not None else [])]
        parts = tuple(Part(name, value, self.numbers[value]) for name, value in named)
        self.stores.append(Stored(item, path, parts))

    def _field(self, item: Any) -> Hashable:
        if isinstance(item, Value):
            return self.numbers[item]
        if isinstance(item, tuple):
            return tuple([self._field(part) for part in item])
        # 0.0 and -0.0 are equal, True and 1 too, and they are not the same constant.
        return (type(item), repr(item)) if isinstance(item, float | bool) else item


def _dtype(type_: Type) -> DType | None:
    return type_.dtype if isinstance(type_, ScalarType | TileType) else None


def differences(before: Meaning, after: Meaning) -> list[Finding]:
    """Where the stores of two programs differ: values, addresses, masks, owners, conditions."""
    findings = [
        finding
        for old, new in zip(before.stores, after.stores, strict=False)
        for finding in _compare(old, new)
    ]
    if len(before.stores) != len(after.stores):
        findings.append(
            Finding(None, f"has {len(after.stores)} stores, expected {len(before.stores)}")
        )
    return findings


def _compare(old: Stored, new: Stored) -> list[Finding]:
    line = old.op.loc.line
    if old.path != new.path:
        text = f"stores under other conditions than before, expected those of line {line}"
        return [Finding(new.op, text)]
    if [part.name for part in old.parts] != [part.name for part in new.parts]:
        return [Finding(new.op, f"has other operands than before, expected those of line {line}")]
    findings = []
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
