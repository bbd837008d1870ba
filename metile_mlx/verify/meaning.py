"""What values mean, wherever they are: one number for equal logical tiles, in two programs.

A value's number follows from its op and the numbers of its operands, not from the owners of its
result. A conversion, whatever became of it, has the number of what it moves. So the programs before
and after planning store the same numbers, or planning was wrong.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from metile_mlx.dtypes import DType, bool_
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.tile import Bitcast, Cast, Store
from metile_mlx.ir.types import TileType
from metile_mlx.verify.findings import Finding


class Numbering:
    """Numbers by what they stand for; share one between the programs to compare."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._casts: dict[int, tuple[str, DType, int]] = {}

    def of(self, *key: Hashable) -> int:
        """The number of `key`, new if the key is."""
        return self._numbers.setdefault(key, len(self._numbers))

    def cast(self, item: Cast | Bitcast, src: int) -> int:
        """A cast; going back loses nothing after a bitcast, and after a bool became a number."""
        source = element(item.src)
        kind, origin, number = self._casts.get(src, ("", source, src))
        exact = isinstance(item, Bitcast) or origin == bool_
        if kind == item.opcode and origin == item.dtype and exact:
            return number
        made = self.of(item.opcode, item.dtype, src)
        self._casts[made] = (item.opcode, source, src)
        return made


@dataclass(frozen=True)
class Stored:
    """One store and the conditions it stands under; `parts` are (field, number, layout)."""

    op: Op
    path: tuple[Hashable, ...]
    parts: tuple[tuple[str, Hashable, Hashable], ...]


class Meaning:
    """The numbers of one program's values, and its stores in order."""

    def __init__(self, numbering: Numbering) -> None:
        self.numbering = numbering
        self.numbers: dict[Value, int] = {}
        self.stores: list[Stored] = []

    def default(self, item: Op) -> None:
        """Number the results of an op by its fields."""
        if not item.results:
            return
        key = (item.opcode, *(self._field(getattr(item, name)) for name in item.field_names))
        for position, value in enumerate(item.results):
            self.numbers[value] = self.numbering.of(key, position)

    def cast(self, item: Cast | Bitcast) -> None:
        self.numbers[item.result] = self.numbering.cast(item, self.numbers[item.src])

    def store(self, item: Store, path: tuple[Hashable, ...]) -> None:
        parts = [
            (name, self._field(part), _layouts(part))
            for name in item.field_names
            if (part := getattr(item, name)) is not None
        ]
        self.stores.append(Stored(item, path, tuple(parts)))

    def _field(self, item: object) -> Hashable:
        if isinstance(item, Value):
            return self.numbers[item]
        if isinstance(item, tuple):
            return tuple(self._field(part) for part in item)
        if isinstance(item, float | bool):
            return (type(item), repr(item))
        assert isinstance(item, Hashable)
        return item


def _layouts(item: object) -> Hashable:
    if isinstance(item, tuple):
        return tuple(_layouts(part) for part in item)
    return item.type.layout if isinstance(item, Value) and isinstance(item.type, TileType) else None


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
    source = f"as in the program before (line {old.op.loc.line})"
    if old.path != new.path:
        return [Finding(new.op, f"stores under other conditions, expected the same {source}")]
    if [part[0] for part in old.parts] != [part[0] for part in new.parts]:
        return [Finding(new.op, f"has other operands, expected the same {source}")]
    findings = []
    for (name, number, layout), (_, number_now, layout_now) in zip(
        old.parts, new.parts, strict=True
    ):
        if number != number_now:
            findings.append(Finding(new.op, f"its {name} is another, expected the same {source}"))
        elif layout != layout_now:
            findings.append(
                Finding(
                    new.op, f"its {name} has owners {layout_now!r}, expected {layout!r} {source}"
                )
            )
    return findings
