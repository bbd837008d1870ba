"""Gradients of kernels: their own, or through their reference meaning (SPEC X7)."""

from __future__ import annotations

from collections.abc import Sequence

from metile_mlx.runtime.backend import Launch, Request
from metile_mlx.runtime.optional import mx
from metile_mlx.runtime.reference import evaluate


def reference_launch(request: Request) -> Launch:
    """The launch as a graph of MLX operations. Only float inputs have gradients (SPEC X7)."""
    outputs = {out.param: (out.shape, out.dtype) for out in request.outputs}

    def launch(arrays: Sequence[mx.array]) -> Sequence[mx.array]:
        named = {
            name: x if mx.issubdtype(x.dtype, mx.floating) else mx.stop_gradient(x)
            for name, x in zip(request.inputs, arrays, strict=True)
        }
        made = evaluate(
            request.func, named, request.scalars, outputs, request.grid, stream=request.stream
        )
        return [made[out.param] for out in request.outputs]

    return launch


class Transforms:
    """VJP and JVP of a launch by differentiating its reference graph; the request may have a VJP.

    Integer and bool inputs have zero cotangents.
    """

    def __init__(self, request: Request) -> None:
        self._launch = reference_launch(request)
        self._pull = request.pull

    def vjp(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        argnums: Sequence[int],
        outputs: Sequence[mx.array],
    ) -> list[mx.array]:
        """Cotangents of `primals[i] for i in argnums`."""
        if self._pull is not None:
            found = self._pull(primals, cotangents, outputs)
            return [found[i] for i in argnums]
        floats = [i for i in argnums if mx.issubdtype(primals[i].dtype, mx.floating)]

        def forward(*chosen: mx.array) -> Sequence[mx.array]:
            return self._launch(_placed(primals, floats, chosen))

        pulled: dict[int, mx.array] = {}
        if floats:
            _, made = mx.vjp(forward, [primals[i] for i in floats], list(cotangents))
            pulled = dict(zip(floats, made, strict=True))
        return [pulled[i] if i in pulled else mx.zeros_like(primals[i]) for i in argnums]

    def jvp(
        self,
        primals: Sequence[mx.array],
        tangents: Sequence[mx.array],
        argnums: Sequence[int],
    ) -> list[mx.array]:
        """Tangents of the outputs."""
        floats = [i for i in argnums if mx.issubdtype(primals[i].dtype, mx.floating)]
        by_index = dict(zip(argnums, tangents, strict=True))

        def forward(*chosen: mx.array) -> Sequence[mx.array]:
            return self._launch(_placed(primals, floats, chosen))

        if not floats:
            return [mx.zeros_like(out) for out in self._launch(primals)]
        _, pushed = mx.jvp(forward, [primals[i] for i in floats], [by_index[i] for i in floats])
        return list(pushed)


def _placed(
    primals: Sequence[mx.array], indices: Sequence[int], values: Sequence[mx.array]
) -> list[mx.array]:
    arrays = list(primals)
    for index, value in zip(indices, values, strict=True):
        arrays[index] = value
    return arrays


def with_gradient(launch: Launch, request: Request) -> Launch:
    """`launch` under `mx.custom_function`, for primitives that know no gradient of their own."""
    transforms = Transforms(request)
    wrapped = mx.custom_function(lambda *arrays: tuple(launch(arrays)))

    def vjp(primals: object, cotangents: object, outputs: object) -> tuple[mx.array, ...]:
        arrays = _flat(primals)
        pulled = transforms.vjp(arrays, _flat(cotangents), range(len(arrays)), _flat(outputs))
        return tuple(pulled)

    def jvp(primals: object, tangents: Sequence[mx.array | None]) -> tuple[mx.array, ...]:
        arrays = _flat(primals)
        given = tangents if isinstance(tangents, (list, tuple)) else (tangents,)
        indices = [i for i, tangent in enumerate(given) if tangent is not None]
        known = [tangent for tangent in given if tangent is not None]
        return tuple(transforms.jvp(arrays, known, indices))

    wrapped.vjp(vjp)
    wrapped.jvp(jvp)
    return lambda arrays: _flat(wrapped(*arrays))


def _flat(tree: object) -> list[mx.array]:
    """MLX hands a single argument over bare and several as a tuple."""
    return list(tree) if isinstance(tree, (list, tuple)) else [tree]  # type: ignore[list-item]
