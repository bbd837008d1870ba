"""A pass over per-thread programs keeps what they do: the same accesses of the same values.

A value's number follows from its op and the numbers of its operands; what is computed twice has one
number, and so has a lane of a group and the scalar load it stands for. Loads whose value nobody
uses may have gone; all else stays, in order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from metile_mlx.ir import metal
from metile_mlx.ir.core import Block, Effect, Func, Op, Value, literal_key, walk
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.verify.findings import Finding
from metile_mlx.verify.meaning import Numbering

Path = tuple[Hashable, ...]
NOTHING = -1


def check_kept(func: Func, before: Func) -> list[Finding]:
    """Where a Stage.THREAD program does something else than the one it was made from."""
    if [(p.name, p.type) for p in func.params] != [(p.name, p.type) for p in before.params]:
        return [Finding(None, "has other parameters than before")]
    if func.threads != before.threads:
        return [Finding(None, f"has {func.threads} threads, expected {before.threads} as before")]
    numbering = Numbering()
    source, made = _Numbered(before, numbering), _Numbered(func, numbering)
    text = "has blocks that are no branch and no loop, expected an op that passes may keep"
    unknown = [Finding(item, text) for item in (*source.unknown, *made.unknown)]
    return unknown or _differences(source.runs, made.runs)


_SPECIAL = (
    *(metal.Load, metal.LoadGroup, metal.Store, metal.StoreGroup, metal.Print, metal.Extract),
    *(metal.ThreadgroupStore, metal.ThreadgroupLoad, metal.If, ThreadFor),
)


_PLAIN: dict[type[Op], bool] = {}


def _is_plain(kind: type[Op]) -> bool:
    """Whether nothing about such an op matters but what it computes."""
    known = _PLAIN.get(kind)
    if known is None:
        is_special = issubclass(kind, _SPECIAL) or bool(kind.block_fields)
        known = _PLAIN[kind] = not is_special and not kind.effect & Effect.CONVERGENT
    return known


def holds_registers(func: Func) -> bool:
    """Whether some access of a per-thread program is one of several register slots."""
    return any(getattr(item, "access", None) is not None for item in walk(func.body))


@dataclass
class _Run:
    """The parts of one tensor access, each with how often it is done."""

    number: int | None
    kind: str
    op: Op
    parts: list[Hashable] = field(default_factory=list)
    is_grouped: bool = False

    def does(self, other: _Run) -> bool:
        """Whether this does what `other` did, or, where it reads only, a part of it.

        Only who groups parts of an access may do them in another order.
        """
        if self.kind != other.kind:
            return False
        if self.is_grouped and not other.is_grouped:
            mine, theirs = Counter(self.parts), Counter(other.parts)
            return not mine - theirs if self.kind == "load" else mine == theirs
        if self.kind != "load":
            return self.parts == other.parts
        rest = iter(other.parts)
        return all(part in rest for part in self.parts)


class _Numbered:
    """The numbers of one program's values, and its accesses in order."""

    def __init__(self, func: Func, numbering: Numbering) -> None:
        self.of = numbering.of
        self.unknown: list[Op] = []
        self.runs: list[_Run] = []
        self.numbers: dict[Value, int] = {
            param: self.of("param", position) for position, param in enumerate(func.params)
        }
        self.lanes: dict[Value, tuple[int, ...]] = {}
        self.memory: dict[Value, int] = {}
        self.block(func.body, ())

    def block(self, block: Block, path: Path) -> None:
        for item in block.ops:
            if _is_plain(type(item)):
                self.default(item)
                continue
            match item:
                case metal.Load() | metal.LoadGroup():
                    self.load(item, path)
                case metal.Store():
                    parts = (item.index, item.value, item.mask)
                    self.note(item, "store", path, [(item.buffer, *parts)])
                case metal.StoreGroup():
                    rows = [(item.buffer, *part) for part in item.parts()]
                    self.note(item, "store", path, rows)
                case metal.Print():
                    what = f"print {item.register} {item.label}"
                    self.note(item, what, path, [(item.value, *item.place, item.mask)])
                case metal.Extract():
                    self.numbers[item.result] = self.lanes[item.vector][item.lane]
                case metal.ThreadgroupStore() | metal.ThreadgroupLoad():
                    self.exchange(item, path)
                case metal.If():
                    self.branch(item, path)
                case ThreadFor():
                    self.loop(item, path)
                case _:
                    self.other(item, path)

    def other(self, item: Op, path: Path) -> None:
        """What threads do together; or an op with blocks that nobody knows."""
        if item.block_fields:
            self.unknown.append(item)
            self.numbers.update((value, self.of(value)) for value in item.results)
            return
        self.default(item)
        if item.effect & Effect.CONVERGENT:
            self.note(item, item.opcode.removeprefix("metal."), path, [item.operands()])

    def number(self, value: Value | None) -> int:
        return NOTHING if value is None else self.numbers[value]

    def default(self, item: Op) -> None:
        """What an op computes follows from its fields."""
        numbers, field = self.numbers, self.field
        parts = [getattr(item, name) for name in item.field_names]
        key = (
            item.opcode,
            *[("value", numbers[p]) if isinstance(p, Value) else field(p) for p in parts],
        )
        for position, value in enumerate(item.results):
            self.numbers[value] = self.of(key, position)

    def field(self, item: object) -> Hashable:
        if isinstance(item, Value):
            return ("value", self.numbers[item])
        if isinstance(item, tuple):
            return tuple(map(self.field, item))
        return literal_key(item)

    def load(self, item: metal.Load | metal.LoadGroup, path: Path) -> None:
        parts = (
            [(item.index, item.mask, item.fill)]
            if isinstance(item, metal.Load)
            else list(item.parts())
        )
        rows = [(item.buffer, *part) for part in parts]
        made = tuple(self.of("load", *map(self.number, row)) for row in rows)
        if isinstance(item, metal.Load):
            (self.numbers[item.result],) = made
        else:
            for at, vector in enumerate(item.results):
                first = at * metal.GROUP_WIDTH
                self.lanes[vector] = made[first : first + metal.GROUP_WIDTH]
        self.note(item, "load", path, rows)

    def exchange(self, item: metal.ThreadgroupStore | metal.ThreadgroupLoad, path: Path) -> None:
        """What memory holds has a number too: that of the last store and of what it held before."""
        held = self.memory.get(item.buffer, self.numbers[item.buffer])
        place = (self.number(item.index), self.number(item.mask))
        if isinstance(item, metal.ThreadgroupStore):
            value = self.numbers[item.value]
            self.memory[item.buffer] = self.of("exchanged", held, *place, value, path)
        else:
            fill = self.number(item.fill)
            self.numbers[item.result] = self.of("received", held, *place, fill, path)

    def branch(self, item: metal.If, path: Path) -> None:
        condition = self.numbers[item.condition]
        self.block(item.then, (*path, condition, True))
        self.block(item.otherwise, (*path, condition, False))
        yields = zip(item.then.ops[-1].operands(), item.otherwise.ops[-1].operands(), strict=True)
        for result, (then, otherwise) in zip(item.results, yields, strict=True):
            key = ("if", condition, self.numbers[then], self.numbers[otherwise])
            self.numbers[result] = self.of(*key)

    def loop(self, item: ThreadFor, path: Path) -> None:
        """What it carries is told by the argument, which passes keep, and by what it begins with.

        What it is in the next iteration is a fact like an access.
        """
        bounds = [self.numbers[value] for value in (item.start, item.end, item.step)]
        here = ("loop", item.index, *bounds)
        stored = self.stored(item)
        for buffer in stored:
            held = self.memory.get(buffer, self.numbers[buffer])
            self.memory[buffer] = self.of(*here, "memory", held)
        self.numbers[item.index] = self.of(*here)
        for arg, init in zip(item.carried, item.inits, strict=True):
            self.numbers[arg] = self.of(*here, arg, self.numbers[init])
        self.block(item.body, (*path, here))
        self.leave(item, (*path, here), stored)
        for buffer in stored:
            self.memory[buffer] = self.of(*here, "left", self.memory[buffer])
        for result, arg, made in zip(item.results, item.carried, item.yields, strict=True):
            self.numbers[result] = self.of(*here, self.numbers[arg], self.numbers[made])
            self.note(item, "load", (*path, here), [(arg, made)])

    def stored(self, item: ThreadFor) -> list[Value]:
        """The threadgroup memory that a loop stores to; a loop that does nothing may go."""
        inner = (part for part in walk(item.body) if isinstance(part, metal.ThreadgroupStore))
        return sorted({part.buffer for part in inner}, key=self.numbers.__getitem__)

    def leave(self, item: ThreadFor, path: Path, stored: Sequence[Value]) -> None:
        """What the body leaves in threadgroup memory the next iteration finds there: a fact too."""
        if stored:
            held = [(self.numbers[buffer], self.memory[buffer]) for buffer in stored]
            self.runs.append(_Run(None, "loop", item, [(path, *held)]))

    def note(
        self, item: Op, kind: str, path: Path, rows: Sequence[tuple[Value | None, ...]]
    ) -> None:
        """Remember parts of an access; those with its number, standing beside it, are one."""
        number = getattr(item, "access", None)
        last = self.runs[-1] if self.runs else None
        if last is None or number is None or (last.number, last.kind) != (number, kind):
            last = _Run(number, kind, item)
            self.runs.append(last)
        last.parts += [(path, *map(self.number, row)) for row in rows]
        last.is_grouped = last.is_grouped or isinstance(item, metal.LoadGroup | metal.StoreGroup)


def _differences(expected: Sequence[_Run], found: Sequence[_Run]) -> list[Finding]:
    """The first access that is not what the program before does there."""
    position = 0
    for here in found:
        while position < len(expected) and not here.does(expected[position]):
            if expected[position].kind != "load":
                line = expected[position].op.loc.line
                text = (
                    f"is not the {expected[position].kind} of line {line} with the values, masks "
                    "and addresses it had before"
                )
                return [Finding(here.op, text)]
            position += 1
        if position == len(expected):
            return [Finding(here.op, "an access that the program before does not do here")]
        position += 1
    missing = [run for run in expected[position:] if run.kind != "load"]
    return [Finding(missing[0].op, "is missing in the program after")] if missing else []
