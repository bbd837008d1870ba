"""Modules of a model with swapped operations: a subclass for each, put in and taken out.

A module with parameters keeps its identity: only its class becomes a subclass of its own, of the
same name, which differs in `__call__`. A module without any array or child, such as an activation,
may be shared with other models (mlx-lm has one as a default argument): a copy takes its place in
this model.
"""

from __future__ import annotations

import copy
import dis
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import FunctionType
from typing import Any

from metile_mlx.nn.optional import Module
from metile_mlx.patching.forms import MARK, form_of, method_of, norm_form
from metile_mlx.patching.operations import Operations
from metile_mlx.patching.rewriting import Site, rewritten
from metile_mlx.runtime.optional import mx


@dataclass
class Place:
    """A module of the model, and where it hangs.

    Attributes:
        paths: its names, more than one where it is used several times.
        slots: the containers that hold it, with its key or index; None for one in a tuple.
    """

    module: Any
    paths: list[str] = field(default_factory=list)
    slots: list[tuple[Any, Any] | None] = field(default_factory=list)

    @property
    def is_stateless(self) -> bool:
        """Whether it holds neither arrays nor modules."""
        return not any(isinstance(v, (mx.array, dict, list, tuple)) for v in self.module.values())

    @property
    def name(self) -> str:
        """The name of its class."""
        return type(self.module).__name__


@dataclass(frozen=True, eq=False)
class Candidate:
    """One kind of operation in one module."""

    place: Place
    kind: str
    sites: tuple[Site, ...]

    def norms(self) -> list[Any]:
        """The norm modules that residuals need."""
        return [getattr(self.place.module, s.norm) for s in self.sites if s.norm is not None]


def places(model: Any) -> list[Place]:
    """Every module once, parents before children."""
    found: dict[int, Place] = {}

    def visit(value: Any, path: str, slot: tuple[Any, Any] | None) -> None:
        if isinstance(value, Module):
            is_new = id(value) not in found
            place = found.setdefault(id(value), Place(value))
            place.paths.append(path)
            if value is not model:
                place.slots.append(slot)
            if not is_new:
                return
        for key, item in _items(value):
            inner = None if isinstance(value, tuple) else (value, key)
            visit(item, f"{path}.{key}" if path else str(key), inner)

    visit(model, "", None)
    found[id(model)].paths[0] = "(model)"
    return list(found.values())


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value)


class Installation:
    """The swaps that a model has at the moment; one `put` takes the place of the one before."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, chosen: Iterable[Candidate], operations: Operations) -> None:
        """Only these operations are swapped.

        Raises:
            TypeError: Python refuses the subclass.
        """
        self.take_out()
        kinds: dict[int, set[str]] = {}
        by_id: dict[int, Place] = {}
        for candidate in chosen:
            by_id[id(candidate.place)] = candidate.place
            kinds.setdefault(id(candidate.place), set()).add(candidate.kind)
        for key, place in by_id.items():
            original, norms = type(place.module), fusible_norms(place.module)
            self._put_one(place, _derived(original, frozenset(kinds[key]), operations, norms))

    def _put_one(self, place: Place, derived: type) -> None:
        module, original = place.module, type(place.module)
        slots = [slot for slot in place.slots if slot is not None]
        if not place.is_stateless or len(slots) < len(place.slots) or not slots:
            object.__setattr__(module, "__class__", derived)
            self._undo.append(partial(_reset, module, derived, original))
            return
        stand_in = copy.copy(module)
        object.__setattr__(stand_in, "__class__", derived)
        for container, key in slots:
            # Not the module's own setter, which knows nothing new here.
            container.__setitem__(key, stand_in)
            self._undo.append(partial(_give_back, container, key, stand_in, module))

    def take_out(self) -> None:
        """The model as it was. What was assigned to it in the meantime stays."""
        while self._undo:
            self._undo.pop()()


def _reset(module: Any, derived: type, original: type) -> None:
    if type(module) is derived:
        object.__setattr__(module, "__class__", original)


def _give_back(container: Any, key: Any, stand_in: Any, module: Any) -> None:
    held: Any = container.get(key) if isinstance(container, dict) else container[key]
    if held is stand_in:
        # Flags, such as training or frozen, may have been set on the model since.
        vars(module).update(vars(stand_in))
        # And arrays that it kept when it ran; Module.update takes parameters only.
        dict.update(module, dict(stand_in))
        container[key] = module


# Classes kept; dropped all at once (F04).
_KEPT = 256
_refusals: dict[type, str | None] = {}


def refusal(place: Place) -> str | None:
    """Why Python refuses this module a subclass of its class; None where it doesn't.

    Each class is asked once: its `__init_subclass__` may note who asks.
    """
    original: Any = type(place.module)
    if original not in _refusals:
        if len(_refusals) >= _KEPT:
            _refusals.clear()
        _refusals[original] = _refusal(place.module, original)
    return _refusals[original]


def _refusal(module: Any, original: Any) -> str | None:
    try:
        made = type(original)(original.__name__, (original,), {"__module__": original.__module__})
        object.__setattr__(module, "__class__", made)
        object.__setattr__(module, "__class__", original)
    except Exception as error:
        # Whatever its metaclass or __init_subclass__ does; Python itself raises TypeError.
        return str(error)
    return None


def fusible_norms(module: Any) -> frozenset[str]:
    """Attributes that hold a norm which can be computed with the sum before it."""
    kind: Any = type(module)
    moving = _set_by_methods(kind)
    return frozenset(
        key
        for key, value in module.items()
        if isinstance(value, Module) and key not in moving and form_of(value) is not None
    )


@lru_cache(maxsize=_KEPT)
def _set_by_methods(kind: type) -> frozenset[str]:
    """Attributes that a method sets, which `__call__` may call between a sum and its norm."""
    found: set[str] = set()
    for base in kind.__mro__[: kind.__mro__.index(Module)]:
        for name, value in vars(base).items():
            if isinstance(value, FunctionType) and name not in ("__init__", "__call__"):
                instructions = dis.get_instructions(value)
                found |= {i.argval for i in instructions if i.opname == "STORE_ATTR"}
    return frozenset(found)


_classes: dict[object, type] = {}


def read_anew() -> None:
    """Forget what methods were read as: a global that one calls may mean something else by now."""
    norm_form.cache_clear()
    _classes.clear()


def _derived(
    original: type, kinds: frozenset[str], operations: Operations, norms: frozenset[str]
) -> type:
    """The class of a module with these kinds of operations swapped."""
    method = method_of(original)
    key = (original, method, kinds, operations, norms)
    made = _classes.get(key)
    if made is None:
        if len(_classes) >= _KEPT:
            _classes.clear()
        members = {
            "__call__": rewritten(method, kinds, operations, norms).function,
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
            "__reduce_ex__": _reduced_as(original),
            MARK: True,
        }
        made = _classes[key] = type(original)(original.__name__, (original,), members)
    return made


def _reduced_as(original: type) -> Callable[[Any, Any], Any]:
    def reduce(self: Any, protocol: Any) -> Any:
        """Copies and pickles hold the original class."""
        as_usual: Any = original.__reduce_ex__
        made = as_usual(self, protocol)
        if not isinstance(made, tuple):
            return made
        function, arguments, *rest = made
        swapped = tuple(original if a is type(self) else a for a in arguments)
        # pickle compares what `copyreg.__newobj__` is given with the class of the object.
        is_usual = getattr(function, "__name__", "") == "__newobj__"
        return (original.__new__ if is_usual else function, swapped, *rest)

    return reduce
