"""Which tiles are one tile with several owners: what conversions make of it, directly or in chains.

A conversion changes no value, so whatever its source is a conversion of, it is one of that too. Of
a family any member that is there already can be the source of a later one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from metile_mlx.ir.core import Block, Func, Op, Value
from metile_mlx.ir.tile import Convert
from metile_mlx.ir.types import TileType
from metile_mlx.layout.thread_layout import ThreadLayout


@dataclass(eq=False)
class Copy:
    """A tile as some owners hold it.

    Attributes:
        value: the family's root, or the result of a conversion.
        path: the blocks it stands in, outermost first; the root counts as standing before all.
        source: the copy it is converted from; None for the root.
        is_read: whether anything reads it but conversions in its own block.
    """

    value: Value
    path: tuple[int, ...]
    source: Copy | None = None
    is_read: bool = False

    @property
    def layout(self) -> ThreadLayout:
        return layout_of(self.value)

    def dominates(self, other: Copy) -> bool:
        """Whether it is there wherever `other` is; given that it stands before it."""
        return self.path == other.path[: len(self.path)]


@dataclass(eq=False)
class Family:
    """A tile and its copies with other owners, in program order; no two that are the same one."""

    root: Copy
    copies: list[Copy] = field(default_factory=list)

    def before(self, copy: Copy, among: list[Copy]) -> Iterator[Copy]:
        """The root, and each of `among` that stands before `copy` and dominates it."""
        yield self.root
        for other in among:
            if other is copy:
                return
            if other.dominates(copy):
                yield other


@dataclass
class Copies:
    """All families of a program. `of` maps a root and each result of a conversion to its copy."""

    families: list[Family] = field(default_factory=list)
    of: dict[Value, Copy] = field(default_factory=dict)


def copies(func: Func) -> Copies:
    """The families of a Stage.OWNED program.

    A conversion to the owners of its root, or of a copy that dominates it, has that one's copy.
    """
    walk = _Walk()
    walk.block(func.body, ())
    return walk.found


class _Walk:
    def __init__(self) -> None:
        self.found = Copies()
        self.family_of: dict[Copy, Family] = {}
        self.blocks = 0

    def block(self, block: Block, path: tuple[int, ...]) -> None:
        self.blocks += 1
        path = (*path, self.blocks)
        for item in block.ops:
            if isinstance(item, Convert):
                self.convert(item, path)
            else:
                self.reads(item)
            for inner in item.blocks():
                self.block(inner, path)

    def reads(self, item: Op) -> None:
        for value in item.operands():
            if value in self.found.of:
                self.found.of[value].is_read = True

    def convert(self, item: Convert, path: tuple[int, ...]) -> None:
        source = self.found.of.get(item.src)
        if source is None:
            source = self.found.of[item.src] = Copy(item.src, (), is_read=True)
            family = self.family_of[source] = Family(source)
            self.found.families.append(family)
        family = self.family_of[source]
        made = Copy(item.result, path, source)
        same = next(
            (other for other in family.before(made, family.copies) if other.layout == item.layout),
            None,
        )
        if same is None:
            same = made
            family.copies.append(made)
            self.family_of[made] = family
            source.is_read = source.is_read or source.path != path
        self.found.of[item.result] = same


def layout_of(value: Value) -> ThreadLayout:
    """The owners of a tile that has some."""
    assert isinstance(value.type, TileType)
    return value.type.owners
