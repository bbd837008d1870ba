"""`Product`: products of matrices by kernels, and their gradients (SPEC B2, X7)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from metile_kernels import activations
from metile_kernels.gemm import gemm, grid
from metile_kernels.gemm_split import add_parts, gemm_split
from metile_mlx.context import Schedule
from metile_mlx.dispatch import Dispatch, empty
from metile_mlx.nn.kernel_function import KernelFunction
from metile_mlx.nn.layouts import FLAT_BLOCK, flat_layout
from metile_mlx.nn.reduce import reduce
from metile_mlx.nn.tiles import Tiles, product_tiles
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx


def kernel_texts() -> list[str]:
    """All that a measurement of `matmul` is of, but for tiles, device and versions."""
    return [kernel.definition.text() for kernel in (gemm, gemm_split, add_parts)]


class Product(KernelFunction):
    """The product of matrices of (batches, rows, columns), either of which may be one for all."""

    def __init__(
        self,
        dtype: mx.Dtype,
        transposed: tuple[bool, bool],
        scale: float,
        is_biased: bool,
        function: Any,
        has_residual: bool,
        schedule: Schedule | None,
        *,
        stream: Place,
    ) -> None:
        super().__init__(stream=stream)
        self._dtype = dtype
        self._transposed = transposed
        self._scale = scale
        self._is_biased = is_biased
        self._function = function
        self._has_residual = has_residual
        self._schedule = schedule

    def forward(self, a: mx.array, b: mx.array, *rest: mx.array) -> mx.array:
        """(batches, M, K), (batches, K, N), and (N,) and (batches, M, N) where there are -> the
        product, of `dtype`."""
        arrays = [*rest]
        bias = arrays.pop(0) if self._is_biased else a
        residual = arrays.pop(0) if self._has_residual else a
        facts = tuple((x.shape, x.dtype) for x in (a, b, *rest))
        given = (a, b, bias, residual)
        made: mx.array = self.ready(facts, lambda backend: self._make(backend, given))(*given)
        return made

    def _make(self, backend: str, given: tuple[mx.array, ...]) -> Callable[..., mx.array]:
        a, b = given[:2]
        left, right = self._transposed
        m, k = a.shape[1:][::-1] if left else a.shape[1:]
        n, batches = b.shape[1 if right else 2], max(len(a), len(b))
        tiles = product_tiles(backend, batches, m, n, k)
        steps = [0 if len(x) == 1 else x.shape[1] * x.shape[2] for x in (a, b)]
        sizes = (batches, m, n, k, steps[0], a.shape[2], steps[1], b.shape[2])
        out = empty((batches, m, n), self._dtype)
        if tiles.splits > 1:
            return self._make_split(tiles, given, sizes, out)
        launch = gemm[grid(batches, m, n, tiles.bm, tiles.bn)].prepare(
            *given, out, *sizes, self._scale, **self._cut(tiles), **self._follow()
        )
        return lambda *given: launch(*given, out, *sizes, self._scale)

    def _make_split(
        self, tiles: Tiles, given: tuple[mx.array, ...], sizes: tuple[int, ...], out: Any
    ) -> Callable[..., mx.array]:
        """The parts of K first, then their sums with what follows."""
        a, b, *rest = given
        batches, m, n = sizes[:3]
        programs = grid(batches * tiles.splits, m, n, tiles.bm, tiles.bn)
        parts = empty((batches * tiles.splits, m, n), mx.float32)
        first = gemm_split[programs].prepare(
            a, b, parts, *sizes, tiles.chunk, SPLITS=tiles.splits, **self._cut(tiles)
        )
        numbers = (tiles.splits, m * n, n, self._scale)
        block = min(1024, max(32, 1 << (m * n - 1).bit_length()))
        second = add_parts[-(-m * n // block), batches].prepare(
            mx.zeros(parts.shape), *rest, out, *numbers, BLOCK=block, stream=self.stream,
            **self._follow(),
        )  # fmt: skip

        def run(a: mx.array, b: mx.array, *rest: mx.array) -> mx.array:
            made: mx.array = second(first(a, b, parts, *sizes, tiles.chunk), *rest, out, *numbers)
            return made

        return run

    def _cut(self, tiles: Tiles) -> dict[str, Any]:
        return {
            "BM": tiles.bm,
            "BN": tiles.bn,
            "BK": tiles.bk,
            "A_TRANSPOSED": self._transposed[0],
            "B_TRANSPOSED": self._transposed[1],
            "schedule": self._schedule,
            "stream": self.stream,
        }

    def _follow(self) -> dict[str, Any]:
        return {
            "SCALED": self._scale != 1,
            "BIASED": self._is_biased,
            "FUNCTION": self._function,
            "RESIDUAL": self._has_residual,
        }

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """Products of the cotangents with the other matrix, and sums of them."""
        a, b, *rest = primals
        given = self._before_function(primals, cotangents[0])
        left, right = self._transposed
        # Of the matrix as it is stored: c @ b' or b @ c', and a' @ c or c' @ a.
        of_a = (b, given, (right, True)) if left else (given, b, (False, not right))
        of_b = (given, a, (True, left)) if right else (a, given, (not left, False))
        found = [
            self._gradient(one, other, how, like)
            for (one, other, how), like in ((of_a, a), (of_b, b))
        ]
        if self._is_biased:
            rows = mx.reshape(given, (-1, given.shape[-1]), stream=self.stream)
            found.append(reduce(rows, "sum", axis=0, stream=self.stream).astype(rest[0].dtype))
        if self._has_residual:
            found.append(cotangents[0].astype(rest[-1].dtype, stream=self.stream))
        return found

    def _gradient(
        self, one: mx.array, other: mx.array, how: tuple[bool, bool], like: mx.array
    ) -> mx.array:
        """scale * one @ other, summed over the batches where all have the same matrix."""
        is_shared = len(like) < max(len(one), len(other))
        dtype = mx.float32 if is_shared else like.dtype
        made: mx.array = self._product(dtype, how)(one, other)
        if is_shared:
            made = mx.sum(made, axis=0, keepdims=True, stream=self.stream)
        return made.astype(like.dtype, stream=self.stream)

    def _product(self, dtype: mx.Dtype, how: tuple[bool, bool], is_biased: bool = False) -> Product:
        return Product.of(
            dtype, how, self._scale, is_biased, None, False, self._schedule, stream=self.stream
        )

    def _before_function(self, primals: Sequence[mx.array], cotangent: mx.array) -> mx.array:
        """The cotangent of what the function is given, which is computed again."""
        if self._function is None:
            return cotangent
        number = 3 if self._is_biased else 2
        again = self._product(mx.float32, self._transposed, self._is_biased)
        inner = again(*primals[:number])
        flat = [mx.reshape(x, (-1,), stream=self.stream) for x in (inner, cotangent)]
        arguments = (*flat, empty(cotangent.size, self._dtype), cotangent.size)

        def make(backend: str) -> Dispatch:
            return activations.activation_gradient[-(-cotangent.size // FLAT_BLOCK)].prepare(
                *arguments, SLOPE=activations.SLOPES[self._function], BLOCK=FLAT_BLOCK,
                LAYOUT=flat_layout(backend), stream=self.stream,
            )  # fmt: skip

        made = self.ready(("slope", cotangent.size), make)(*arguments)
        return mx.reshape(made, cotangent.shape, stream=self.stream)
