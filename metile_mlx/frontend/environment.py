"""The values a kernel takes from its surroundings, and whether they have changed (SPEC K1)."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from operator import is_
from types import CellType, FunctionType, ModuleType
from typing import Any, Protocol

from metile_mlx.frontend.scope import Reference
from metile_mlx.frontend.values import MISSING, as_constant, constant_key

PACKAGE = __name__.partition(".")[0]
MISSINGS = repeat(MISSING)
Snapshot = tuple[tuple[str, object], ...]


class Names:
    """Looks names up as the function would: closure cells, module globals, builtins."""

    def __init__(self, fn: FunctionType) -> None:
        self.globals = fn.__globals__
        self.cells: dict[str, CellType] = dict(
            zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        )

    def lookup(self, name: str) -> object:
        """The present value of a name from outside the function; MISSING without one."""
        cell = self.cells.get(name)
        if cell is not None:
            try:
                return cell.cell_contents
            except ValueError:  # the enclosing function has not assigned it yet
                return MISSING
        return self.globals.get(name, getattr(builtins, name, MISSING))

    def known(self) -> Iterator[str]:
        """All names in reach, to propose one that is spelled nearly the same."""
        yield from self.cells
        yield from self.globals


class Reader(Protocol):
    """A definition, as far as this module needs it."""

    @property
    def names(self) -> Names: ...

    @property
    def references(self) -> tuple[Reference, ...]: ...


@dataclass(frozen=True)
class _Plan:
    """How to read all outside values fast, what they were, and their snapshot."""

    scopes: tuple[tuple[Callable[..., object], tuple[str, ...]], ...]
    cells: tuple[CellType, ...]
    owners: tuple[ModuleType | type, ...]
    attributes: tuple[str, ...]
    objects: tuple[object, ...]
    snapshot: Snapshot
    is_complete: bool

    def read(self) -> list[object]:
        """Called at every kernel call: loops run in C, empty parts cost nothing."""
        found: list[object] = []
        for get, names in self.scopes:
            found += map(get, names, MISSINGS)
        if self.cells:
            found += [cell.cell_contents for cell in self.cells]
        if self.owners:
            found += map(getattr, self.owners, self.attributes)
        return found


class Environment:
    """Snapshots of the outside values of one definition and of the inline functions it reaches.

    Reading compares identities; only a change rebuilds the snapshot. Safe from several threads: the
    plan is replaced as a whole.
    """

    def __init__(self, definition: Reader, inlined: Callable[[object], Reader | None]) -> None:
        self._definition = definition
        self._inlined = inlined
        self._plan: _Plan | None = None

    def snapshot(self) -> Snapshot:
        """(name, key) of each outside value; the same object while nothing changed."""
        plan = self._plan
        if plan is not None:
            try:
                if all(map(is_, plan.read(), plan.objects)):
                    return plan.snapshot
            except (ValueError, AttributeError):  # a cell was emptied or an attribute removed
                pass
        plan = self._build()
        old = self._plan
        if old is not None and old.snapshot == plan.snapshot:
            # Equal values in new objects (1000 is not 1000): keep the key that callers hold.
            plan = replace(plan, snapshot=old.snapshot)
        # What is not assigned yet can't be watched: look again at the next call.
        self._plan = plan if plan.is_complete else None
        return plan.snapshot

    def _build(self) -> _Plan:
        scopes: dict[int, tuple[dict[str, Any], list[str]]] = {}
        cells: list[CellType] = []
        members: list[tuple[ModuleType | type, str]] = []
        snapshot: dict[tuple[str, object], None] = {}
        seen = {id(self._definition)}
        queue = [self._definition]
        is_complete = True
        for definition in queue:
            for reference in definition.references:
                value = self._root(definition.names, reference.root, scopes, cells)
                label = reference.root
                for attribute in reference.attributes:
                    if not isinstance(value, ModuleType | type) or _is_ours(value):
                        break
                    label = f"{label}.{attribute}"
                    if hasattr(value, attribute):
                        members.append((value, attribute))
                    value = getattr(value, attribute, MISSING)
                is_global = reference.root not in definition.names.cells
                is_complete &= value is not MISSING or (is_global and label == reference.root)
                snapshot.setdefault((label, constant_key(as_constant(value))))
                inner = self._inlined(value)
                if inner is not None and id(inner) not in seen:
                    seen.add(id(inner))
                    queue.append(inner)
        plan = _Plan(
            tuple((found.get, tuple(names)) for found, names in scopes.values()),
            tuple(cells),
            tuple(owner for owner, _ in members),
            tuple(attribute for _, attribute in members),
            (),
            tuple(snapshot),
            is_complete,
        )
        return replace(plan, objects=tuple(plan.read()))

    def _root(
        self,
        names: Names,
        name: str,
        scopes: dict[int, tuple[dict[str, Any], list[str]]],
        cells: list[CellType],
    ) -> object:
        """Note where a name lives, and its value."""
        value = names.lookup(name)
        cell = names.cells.get(name)
        if cell is None:
            found = scopes.setdefault(id(names.globals), (names.globals, []))[1]
            if name not in found:
                found.append(name)
        elif value is not MISSING and cell not in cells:
            cells.append(cell)
        return value


def _is_ours(owner: ModuleType | type) -> bool:
    """This package's own names never change: they need no watching."""
    name = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    return name.partition(".")[0] == PACKAGE
