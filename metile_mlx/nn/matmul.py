"""`matmul`: products of matrices with what follows them in one kernel (SPEC B2, P4, X7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

from metile_kernels import activations
from metile_kernels.gemm import gemm_reference
from metile_mlx.context import Schedule
from metile_mlx.errors import LaunchError
from metile_mlx.nn.arrays import result_dtype
from metile_mlx.nn.product import Product
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx

Follow = Literal["relu", "silu", "gelu", "gelu_tanh", "gelu_sigmoid"]
_FOLLOW = {
    "relu": activations.relu,
    "silu": activations.silu,
    "gelu": activations.gelu,
    "gelu_tanh": activations.gelu_tanh,
    "gelu_sigmoid": activations.gelu_sigmoid,
}


def matmul(
    x: mx.array,
    y: mx.array,
    *,
    bias: mx.array | None = None,
    activation: Follow | None = None,
    residual: mx.array | None = None,
    scale: float = 1.0,
    transpose_x: bool = False,
    transpose_y: bool = False,
    schedule: Schedule | None = None,
    stream: Place = None,
) -> mx.array:
    """`activation(scale * (x @ y) + bias) + residual` in one kernel: `mx.matmul`, and `mx.addmm`.

    Products are added up in f32, whatever the dtype, and the result is rounded once. It depends on
    its row of x and its column of y alone, to the bit, as long as the sizes are the same. Few rows
    and columns with a long K are made in parts, which are added in a fixed order.
    Gradients are products too, and so are theirs. Lazy; works in mx.compile, mx.vmap on the cpu
    and reference backends, metile.vmap everywhere, and metile.export.

    Args:
        x, y: (..., M, K) and (..., K, N), or a vector of K for either; the axes before broadcast,
            and a vector's own axis is left out of the result, as in `mx.matmul`.
        bias: (N,).
        activation: as `metile.nn.gelu` and others compute it in f32: "relu", "silu", "gelu" by erf,
            "gelu_tanh", "gelu_sigmoid".
        residual: an array that broadcasts to the result.
        scale: a number.
        transpose_x, transpose_y: x is (..., K, M), y is (..., N, K): read as it lies. (MLX shows
            nobody how an array lies: of `x.T` it makes a copy first.)
        schedule: how to compile: `metile.Schedule(staging=, double_buffer=)`.
        stream: an MLX stream or device.

    Returns:
        An array of the dtype in which all arrays given meet: f16, bf16 or f32.

    Raises:
        LaunchError: shapes or dtypes that don't fit, or an unknown activation.
        CompileError: a schedule that the backend has not.
    """
    function = _function(activation)
    dtype = result_dtype("matmul", x, y, optional=(bias, residual))
    shape = _shape(x, y, transpose_x, transpose_y)
    a, b = _matrix(x, transpose_x, 0, stream), _matrix(y, transpose_y, -1, stream)
    full, k = _full_shape(a, b, transpose_x, transpose_y), a.shape[-2 if transpose_x else -1]
    _check_bias(bias, full[-1])
    rest = None if residual is None else _broadcast(residual, shape, full, stream)
    if k == 0 or 0 in full:
        return mx.reshape(_of_nothing(full, bias, function, rest, dtype), shape, stream=stream)
    a, b = _batches(a, b, transpose_x, stream)
    given = [x.astype(dtype, stream=stream) for x in (a, b)]
    size = (max(len(a), len(b)), -1, full[-1])
    given += [] if bias is None else [bias]
    given += [] if rest is None else [mx.reshape(rest, size, stream=stream)]
    made = Product.of(
        dtype, (transpose_x, transpose_y), float(scale), bias is not None, function,
        rest is not None, schedule, stream=stream,
    )(*given)  # fmt: skip
    return mx.reshape(made, shape, stream=stream)


def _function(activation: str | None) -> Any:
    if activation is None:
        return None
    found = _FOLLOW.get(activation)
    if found is None:
        raise LaunchError(
            f"[matmul] activation is {activation!r}; expected None or one of {', '.join(_FOLLOW)}"
        )
    return found


def _shape(x: mx.array, y: mx.array, transpose_x: bool, transpose_y: bool) -> tuple[int, ...]:
    """Of the result.

    Raises:
        LaunchError: the arrays have no product.
    """
    for name, array, is_transposed in (("x", x, transpose_x), ("y", y, transpose_y)):
        if array.ndim < (2 if is_transposed else 1):
            what = f"transpose_{name} is given and " if is_transposed else ""
            raise LaunchError(
                f"[matmul] {what}{name} has shape {tuple(array.shape)}; expected "
                f"{'two axes or more' if is_transposed else 'a vector, or matrices'}"
            )
    inner_x = x.shape[-2] if transpose_x else x.shape[-1]
    inner_y = y.shape[-1] if transpose_y or y.ndim == 1 else y.shape[-2]
    if inner_x != inner_y:
        raise LaunchError(
            f"[matmul] x has {inner_x} columns and y {inner_y} rows: their shapes are "
            f"{tuple(x.shape)} and {tuple(y.shape)}"
            + (", with transpose_x" if transpose_x else "")
            + (", with transpose_y" if transpose_y else "")
        )
    rows = () if x.ndim == 1 else (x.shape[-1 if transpose_x else -2],)
    columns = () if y.ndim == 1 else (y.shape[-2 if transpose_y else -1],)
    return (*_broadcast_shapes(x.shape[:-2], y.shape[:-2]), *rows, *columns)


def _broadcast_shapes(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Raises LaunchError where they don't."""
    rank = max(len(one), len(other))
    pairs = zip(*((1,) * (rank - len(s)) + tuple(s) for s in (one, other)), strict=True)
    found = []
    for a, b in pairs:
        if a != b and 1 not in (a, b):
            raise LaunchError(
                f"[matmul] the axes before the matrices, {tuple(one)} and {tuple(other)}, do not "
                "broadcast"
            )
        found.append(b if a == 1 else a)
    return tuple(found)


def _full_shape(a: mx.array, b: mx.array, transpose_x: bool, transpose_y: bool) -> tuple[int, ...]:
    """Of the result, with the axes of vectors."""
    batch = _broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return (*batch, a.shape[-1 if transpose_x else -2], b.shape[-2 if transpose_y else -1])


def _matrix(x: mx.array, is_transposed: bool, axis: int, stream: Place) -> mx.array:
    """A vector as a row or a column."""
    return mx.expand_dims(x, axis, stream=stream) if x.ndim == 1 else x


def _check_bias(bias: mx.array | None, n: int) -> None:
    if bias is not None and bias.shape != (n,):
        raise LaunchError(
            f"[matmul] bias has shape {tuple(bias.shape)}; expected ({n},), one value for each "
            "column of y"
        )


def _broadcast(
    residual: mx.array, shape: tuple[int, ...], full: tuple[int, ...], stream: Place
) -> mx.array:
    """Raises LaunchError where the residual does not fit the result."""
    try:
        whole = mx.broadcast_to(residual, shape, stream=stream)
    except ValueError:
        raise LaunchError(
            f"[matmul] residual has shape {tuple(residual.shape)}, which does not broadcast to "
            f"that of the result, {shape}"
        ) from None
    return mx.reshape(whole, full, stream=stream)


def _of_nothing(
    full: tuple[int, ...], bias: mx.array | None, function: Any, rest: mx.array | None, dtype: Any
) -> mx.array:
    """Zeros, and what follows them: nothing is launched (F12)."""
    a, b = mx.zeros((*full[:-1], 1)), mx.zeros((1, full[-1]))
    return gemm_reference(a, b, bias, rest, function).astype(dtype)


def _batches(
    a: mx.array, b: mx.array, transpose_x: bool, stream: Place
) -> tuple[mx.array, mx.array]:
    """Both with one axis before the matrices, of 1 or of all batches.

    Where all batches have one y, their rows are rows of one matrix.
    """
    batch = _broadcast_shapes(a.shape[:-2], b.shape[:-2])
    of_a, of_b = math.prod(a.shape[:-2]), math.prod(b.shape[:-2])
    if of_b == 1 and not transpose_x:
        a = mx.reshape(a, (1, -1, a.shape[-1]), stream=stream)
        return a, mx.reshape(b, (1, *b.shape[-2:]), stream=stream)
    made = []
    for x, own in ((a, of_a), (b, of_b)):
        if own != 1 and x.shape[:-2] != batch:
            x = mx.broadcast_to(x, (*batch, *x.shape[-2:]), stream=stream)
        made.append(mx.reshape(x, (-1, *x.shape[-2:]), stream=stream))
    return made[0], made[1]
