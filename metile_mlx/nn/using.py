"""`using`: modules of mlx.nn on our kernels, for the length of a block (SPEC B2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeAlias

from metile_mlx.locks import Lock
from metile_mlx.nn.activations import gelu, silu
from metile_mlx.nn.arrays import are_floats
from metile_mlx.nn.embedding_layer import embedded
from metile_mlx.nn.layer_norm import layer_norm
from metile_mlx.nn.optional import mlx_nn
from metile_mlx.nn.rms_norm import rms_norm
from metile_mlx.nn.rope import rope
from metile_mlx.nn.softmax import log_softmax, softmax

Method: TypeAlias = Callable[..., Any]

# Where a method that `using` put in place keeps MLX's.
EXCHANGED = "_metile_exchanged"


class _Block:
    """One block; it may be left in another context than it was entered in."""

    def __init__(self, outer: _Block | None) -> None:
        self.outer = outer
        self.is_open = True


_inside: ContextVar[_Block | None] = ContextVar("metile_nn_using", default=None)
_lock = Lock()
_users = 0
# (class, MLX's method, ours that asks first), while anyone is inside.
_exchanged: list[tuple[type, Method, Method]] = []


def _rms_norm(self: Any, x: Any) -> Any:
    return rms_norm(x, self["weight"], self.eps)


def _layer_norm(self: Any, x: Any) -> Any:
    return layer_norm(x, self.get("weight"), self.get("bias"), self.eps)


def _silu(_: Any, x: Any) -> Any:
    return silu(x)


def _gelu(self: Any, x: Any) -> Any:
    return gelu(x, self._approx)


def _softmax(_: Any, x: Any) -> Any:
    return softmax(x)


def _log_softmax(_: Any, x: Any) -> Any:
    return log_softmax(x)


def _embedding(self: Any, x: Any) -> Any:
    return embedded(self["weight"], x)


def _rope(self: Any, x: Any, offset: Any = 0) -> Any:
    return rope(
        x, self.dims, traditional=self.traditional, base=self.base, scale=self.scale, offset=offset
    )


def _methods() -> dict[type, Method]:
    """What runs in the place of MLX's own `__call__`."""
    return {
        mlx_nn.RMSNorm: _rms_norm,
        mlx_nn.LayerNorm: _layer_norm,
        mlx_nn.SiLU: _silu,
        mlx_nn.GELU: _gelu,
        mlx_nn.Softmax: _softmax,
        mlx_nn.LogSoftmax: _log_softmax,
        mlx_nn.Embedding: _embedding,
        mlx_nn.RoPE: _rope,
    }


@contextmanager
def using() -> Iterator[None]:
    """Inside the block, calls of these mlx.nn modules run on our kernels.

        with metile.nn.using():
            y = model(x)

    The modules are mlx.nn.RMSNorm, LayerNorm, SiLU, GELU, Softmax, LogSoftmax, Embedding and RoPE,
    and subclasses that leave their `__call__` as it is. Only calls of this thread, or of this
    asyncio task, change; blocks may be nested. When the last one in any thread is left, the classes
    have MLX's methods again.

    Nothing is checked against MLX: `metile.patch` does that, and knows more operations. A function
    that mx.compile traces inside the block keeps our kernels afterwards, and one that it traced
    before keeps MLX's.

    Where the dtype is none of f16, bf16 and f32, MLX's methods run. Inside, `metile.patch` still
    compares with MLX.

    Raises:
        LaunchError: from the modules, for shapes that don't fit.
    """
    _enter()
    block = _Block(_inside.get())
    try:
        with _set(block):
            yield
    finally:
        block.is_open = False
        _leave()


@contextmanager
def suspended() -> Iterator[None]:
    """Calls of this thread or task are MLX's, inside of `using` too."""
    with _set(None):
        yield


@contextmanager
def _set(block: _Block | None) -> Iterator[None]:
    token = _inside.set(block)
    try:
        yield
    finally:
        # A block that was entered later may be open still, and knows which one it is in.
        if _inside.get() is block:
            # Left in another context, as by a generator of asyncio's: it has its own value.
            with suppress(ValueError):
                _inside.reset(token)


def _is_active() -> bool:
    block = _inside.get()
    while block is not None and not block.is_open:
        block = block.outer
    return block is not None


def _enter() -> None:
    global _users
    with _lock:
        _users += 1
        if _users > 1:
            return
        for kind, ours in _methods().items():
            theirs = vars(kind)["__call__"]
            # Somebody else's method does something that we don't know.
            if theirs.__module__.startswith("mlx.nn."):
                method = _asking(theirs, ours)
                _exchanged.append((kind, theirs, method))
                setattr(kind, "__call__", method)  # noqa: B010


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users:
            return
        while _exchanged:
            kind, theirs, method = _exchanged.pop()
            if vars(kind).get("__call__") is method:
                setattr(kind, "__call__", theirs)  # noqa: B010


def _asking(theirs: Method, ours: Method) -> Method:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        is_ours = _is_active() and are_floats(*arguments, *named.values(), *self.values())
        return (ours if is_ours else theirs)(self, *arguments, **named)

    setattr(call, EXCHANGED, theirs)
    return call
