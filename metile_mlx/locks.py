"""Locks that are open in the child of a fork.

A lock that another thread holds during a fork has no owner in the child and would stay held for
ever, so every lock of this package is one of these.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from weakref import WeakSet

_made: WeakSet[Lock] = WeakSet()


class Lock:
    """A `threading.Lock` for `with`, not reentrant; a new one in the child of a fork."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _made.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def locked(self) -> bool:
        """Whether someone holds it now."""
        return self._lock.locked()


def _renew() -> None:
    for lock in _made:
        lock._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew)
