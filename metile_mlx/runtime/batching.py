"""Whether `metile.vmap` traces on this thread, so that a backend MLX can't batch declines (X7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_tracing: ContextVar[bool] = ContextVar("metile_vmap", default=False)


class NotBatchable(Exception):
    """A kernel without a batching rule was reached; `metile.vmap` falls back to a loop."""


@contextmanager
def tracing() -> Iterator[None]:
    """Kernels launched inside belong to one `metile.vmap` trace."""
    token = _tracing.set(True)
    try:
        yield
    finally:
        _tracing.reset(token)


def decline() -> None:
    """Called by a backend whose kernels MLX can't batch.

    Raises:
        NotBatchable: inside a `metile.vmap` trace.
    """
    if _tracing.get():
        raise NotBatchable
