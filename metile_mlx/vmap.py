"""`metile.vmap`: `mx.vmap` that also takes kernels on backends MLX can't batch (SPEC X7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from metile_mlx.errors import LaunchError
from metile_mlx.runtime import batching
from metile_mlx.runtime.optional import mx


def vmap(fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """Batch `fn` over an axis of its arguments, as `mx.vmap` does.

    On the cpu and reference backends this is `mx.vmap`. MLX 0.32.4 can't batch Metal kernels; there
    `fn` is called once per batch entry on slices, and the results are stacked: the same values, one
    launch each.

    Args:
        fn: takes and returns arrays, or trees (dict, list, tuple) of arrays.
        in_axes: the batched axis of each argument, or None; one entry for all, or a tuple.
        out_axes: where the batch axis goes in each result.

    Raises:
        LaunchError: no argument is batched, or batch sizes differ (loop only; mx.vmap's own errors
            otherwise).
    """

    def batched(*args: Any) -> Any:
        try:
            with batching.tracing():
                return mx.vmap(fn, in_axes, out_axes)(*args)
        except batching.NotBatchable:
            return _loop(fn, in_axes, out_axes, args)

    return batched


def _loop(fn: Callable[..., Any], in_axes: Any, out_axes: Any, args: tuple[Any, ...]) -> Any:
    axes = in_axes if isinstance(in_axes, (list, tuple)) else [in_axes] * len(args)
    if len(axes) != len(args):
        raise LaunchError(f"[vmap] {len(axes)} in_axes for {len(args)} arguments")
    sizes: set[int] = set()
    for arg, axis in zip(args, axes, strict=True):
        _map(lambda x, a: sizes.add(x.shape[a]) if a is not None else None, arg, axis)
    if len(sizes) != 1:
        raise LaunchError(f"[vmap] batch sizes are {sorted(sizes)}; expected one, the same for all")
    results = [
        fn(*(_map(_slicer(i), arg, axis) for arg, axis in zip(args, axes, strict=True)))
        for i in range(sizes.pop())
    ]
    if not results:
        raise LaunchError("[vmap] the batch is empty; there is no result to take a shape from")
    return _stack(results, out_axes)


def _slicer(index: int) -> Callable[[Any, Any], Any]:
    def take(x: Any, axis: Any) -> Any:
        return x if axis is None else mx.take(x, index, axis=axis)

    return take


def _map(leaf: Callable[[Any, Any], Any], tree: Any, axes: Any) -> Any:
    """`leaf` over the arrays of a tree; `axes` is one axis for all, or a tree of the same form."""
    if isinstance(tree, dict):
        return {
            k: _map(leaf, v, axes[k] if isinstance(axes, dict) else axes) for k, v in tree.items()
        }
    if isinstance(tree, (list, tuple)):
        each = axes if isinstance(axes, (list, tuple)) else [axes] * len(tree)
        return type(tree)(_map(leaf, v, a) for v, a in zip(tree, each, strict=True))
    return leaf(tree, axes)


def _stack(results: list[Any], axes: Any) -> Any:
    first = results[0]
    if isinstance(first, dict):
        return {
            k: _stack([r[k] for r in results], axes[k] if isinstance(axes, dict) else axes)
            for k in first
        }
    if isinstance(first, (list, tuple)):
        each = axes if isinstance(axes, (list, tuple)) else [axes] * len(first)
        return type(first)(_stack([r[i] for r in results], axis) for i, axis in enumerate(each))
    return mx.stack(results, axis=axes)
