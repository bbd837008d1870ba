"""`KernelFunction`: a function of MLX arrays that kernels compute, gradients too (SPEC X7, F28)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from metile_mlx.backends import BACKENDS
from metile_mlx.dispatch import Dispatch, Empty
from metile_mlx.runtime import export
from metile_mlx.runtime.backend import Launch, Place, choose
from metile_mlx.runtime.optional import mx

Made = TypeVar("Made")
Function = TypeVar("Function", bound="KernelFunction")

# Kept per class, one for each set of options, and per function, one for each of the facts that a
# kernel is made ready for; dropped all at once when full (F04).
KEPT_FUNCTIONS = 64
KEPT_KERNELS = 256


class KernelFunction:
    """A function for one set of options; a subclass is the family. Take one from `of`.

    A subclass defines `forward`, from arrays to an array or a tuple of them, and `backward`, on
    arrays whose shapes and dtypes its user function
    has checked, and takes its kernels from `ready`. Calls are lazy, have `backward` as their
    gradient, and work in mx.compile, mx.vmap where the backend's kernels do, metile.vmap and
    metile.export. Second derivatives and mx.jvp go through the reference meaning of the kernels.

    Attributes:
        stream: an MLX stream or device for all kernels, or None.
    """

    # Of arrays, to an array or a tuple of arrays.
    forward: ClassVar[Callable[..., Any]]
    _kept: ClassVar[dict[object, Any]]

    def __init_subclass__(cls) -> None:
        cls._kept = {}

    def __init__(self, *, stream: Place) -> None:
        self.stream = stream
        self._ready: dict[object, Any] = {}

    @classmethod
    def of(cls: type[Function], *options: Any, stream: Place) -> Function:
        """The function of these options, which are hashable: made once, and kept."""
        # MLX's streams are equal by value and hash by identity: each answer is another object.
        key = (options, None if stream is None else repr(stream))
        found: Function | None = cls._kept.get(key)
        if found is None:
            if len(cls._kept) >= KEPT_FUNCTIONS:
                # Launches hold the function whose gradient they have, where no collector looks.
                for dropped in cls._kept.values():
                    dropped._ready.clear()
                cls._kept.clear()
            found = cls._kept[key] = cls(*options, stream=stream)
        return found

    def __call__(self, *arrays: mx.array) -> Any:
        """`forward`, with `backward` as its gradient."""
        # MLX can't write a custom_function to a file.
        if export.active_target() is None:
            return self._differentiable(*arrays)
        return self.forward(*arrays)

    @cached_property
    def _differentiable(self) -> Any:
        made = mx.custom_function(self.forward)
        made.vjp(self._vjp)
        return made

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """A gradient for each of the arrays of a call, of its shape and dtype.

        Args:
            primals: the arrays.
            cotangents: one for each output, zeros where nothing depends on it.
            outputs: what the call gave.
        """
        raise NotImplementedError

    def ready(self, facts: tuple[object, ...], make: Callable[[str], Made]) -> Made:
        """What `make(backend)` gives: kernels made ready, which saves most of a call's time.

        Args:
            facts: all that `make` depends on besides the options: shapes, dtypes, a direction.
            make: from the name of the backend that a call runs on.
        """
        backend = export.active_target() or choose(None, self.stream, BACKENDS).name
        key = (backend, facts)
        found: Made | None = self._ready.get(key)
        if found is None:
            if len(self._ready) >= KEPT_KERNELS:
                self._ready.clear()
            found = self._ready[key] = make(backend)
        return found

    def launch(
        self,
        kernel: Any,
        grid: int | tuple[int, ...],
        *arguments: Any,
        block: Callable[[str], int] | None = None,
        **constexprs: Any,
    ) -> Any:
        """`kernel[grid](*arguments, **constexprs)`, made ready once for arrays like these.

        Args:
            block: gives BLOCK for the name of a backend, as the tables of `nn/layouts.py` have it.
        """
        arrays = tuple([(a.shape, a.dtype) for a in arguments if isinstance(a, (mx.array, Empty))])

        def make(backend: str) -> Dispatch:
            held = constexprs if block is None else {**constexprs, "BLOCK": block(backend)}
            made: Dispatch = kernel[grid].prepare(*arguments, **held, stream=self.stream)
            return made

        return self.ready((kernel, grid, arrays, *constexprs.items()), make)(*arguments)

    def _vjp(self, primals: object, cotangents: object, outputs: object) -> object:
        gradients = self.backward(_flat(primals), _flat(cotangents), _flat(outputs))
        return tuple(gradients) if isinstance(primals, (list, tuple)) else gradients[0]


class OneKernel(KernelFunction):
    """A function that is one launch; the arrays of the two are the same, in the same order.

    Its gradient is the launch's own, so that a call needs nothing around it. A subclass defines
    `prepared` and `backward`.
    """

    def __call__(self, *arrays: mx.array) -> Any:
        """What the kernel writes: an array, or a tuple of arrays."""
        facts = tuple([(array.shape, array.dtype) for array in arrays])
        made = self.ready(facts, lambda backend: self._launch(backend, arrays))(arrays)
        return made[0] if len(made) == 1 else tuple(made)

    # From the backend's name and arrays to the kernel made ready for arrays like these; or to a
    # function of them, which returns what it writes, where only a call chooses (`metile.autotune`).
    prepared: ClassVar[Callable[..., Dispatch | Callable[..., Any]]]

    def _launch(self, backend: str, arrays: Sequence[mx.array]) -> Launch:
        made = self.prepared(backend, *arrays)
        if isinstance(made, Dispatch):
            return made.unchecked(self.backward)
        tuned = mx.custom_function(lambda *arrays: tuple(_flat(made(*arrays))))
        tuned.vjp(self._vjp)
        return lambda arrays: _flat(tuned(*arrays))


def _flat(tree: Any) -> Sequence[mx.array]:
    """MLX hands a single array over bare."""
    return tree if isinstance(tree, (list, tuple)) else (tree,)
