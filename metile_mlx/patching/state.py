"""What a model holds, to put it back after it ran.

A model may change when it runs: BatchNorm moves its statistics, a module may keep its last result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from metile_mlx.nn.optional import Module
from metile_mlx.runtime.optional import mx


@contextmanager
def kept(model: Any) -> Iterator[None]:
    """The model holds the same objects with the same values after the block as before.

    These are the modules' attributes, dicts and lists, and the values of all arrays in them.
    """
    before = _Held(model)
    try:
        yield
    finally:
        before.put_back()


@contextmanager
def random_kept() -> Iterator[None]:
    """MLX's own stream of random numbers goes on after the block as it would have before."""
    state: Any = mx.random.state
    keys = [_same(key) for key in state]
    try:
        yield
    finally:
        for key, before in zip(state, keys, strict=True):
            key[...] = before


def _same(x: mx.array) -> mx.array:
    """Another array of the same buffer."""
    return x.astype(x.dtype)


def _put_back_values(arrays: list[tuple[mx.array, mx.array]]) -> None:
    """Only where they differ: other arrays stay in their buffers."""
    same = [
        mx.array_equal(now, before, equal_nan=mx.issubdtype(now.dtype, mx.inexact))
        if now.shape == before.shape and now.dtype == before.dtype
        else mx.array(False)
        for now, before in arrays
    ]
    mx.eval(same)
    for (now, before), is_same in zip(arrays, same, strict=True):
        if not is_same.item():
            now[...] = before


class _Held:
    """What is in the containers of a model, and in its arrays."""

    def __init__(self, model: Any) -> None:
        self._dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self._lists: list[tuple[list[Any], list[Any]]] = []
        # With what an array holds now, which `a[...] = b` and `a += b` leave alone.
        self._arrays: list[tuple[mx.array, mx.array]] = []
        self._seen: set[int] = set()
        self._visit(model)

    def _visit(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        if isinstance(value, mx.array):
            self._arrays.append((value, _same(value)))
        elif isinstance(value, dict):
            if isinstance(value, Module):
                self._dicts.append((vars(value), dict(vars(value))))
            self._dicts.append((value, dict(value)))
            self._visit_all(value.values())
        elif isinstance(value, (list, tuple)):
            if isinstance(value, list):
                self._lists.append((value, list(value)))
            self._visit_all(value)

    def _visit_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self._visit(value)

    def put_back(self) -> None:
        for mapping, items in self._dicts:
            # Module.update takes parameters only.
            kind = dict if isinstance(mapping, Module) else type(mapping)
            kind.clear(mapping)
            kind.update(mapping, items)
        for entries, before in self._lists:
            entries[:] = before
        _put_back_values(self._arrays)
