"""What the user functions of `metile_mlx.nn` ask of their arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from metile_mlx.errors import LaunchError
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx

# "mlx": each step of MLX's own function is rounded to the dtype of its arguments; "f32": the
# arithmetic is f32 and rounded once, at the end (F66). In f32 the two are the same.
Rounding = Literal["mlx", "f32"]
FLOATS = (mx.float16, mx.bfloat16, mx.float32)
_ROUNDINGS = ("mlx", "f32")


def checked_rounding(name: str, rounding: Rounding) -> Rounding:
    """The rounding, if it is one.

    Raises:
        LaunchError: it isn't.
    """
    if rounding not in _ROUNDINGS:
        raise LaunchError(f"[{name}] rounding is {rounding!r}; expected 'mlx' or 'f32'")
    return rounding


def check_arrays(name: str, *arrays: object) -> None:
    """Refuse what is no array of MLX's.

    Raises:
        LaunchError: names the type of the first one.
    """
    for array in arrays:
        if not isinstance(array, mx.array):
            kind = type(array)
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            raise LaunchError(
                f"[{name}] an argument is {module}{kind.__name__}; expected an mx.array",
                hint="mx.array(...) makes one of a number, a list or a NumPy array",
            )


def result_dtype(
    name: str, *arrays: mx.array, optional: Sequence[mx.array | None] = ()
) -> mx.Dtype:
    """The dtype in which the given arrays meet, as in MLX, if it is a float that kernels know.

    Raises:
        LaunchError: it is another one, or something is no array.
    """
    given = (*arrays, *[a for a in optional if a is not None])
    try:
        dtype = mx.result_type(*given)
    except (TypeError, ValueError):
        check_arrays(name, *given)
        raise
    if dtype not in FLOATS:
        raise LaunchError(
            f"[{name}] the result would be {str(dtype).rpartition('.')[2]}; expected float16, "
            "bfloat16 or float32"
        )
    return dtype


def broadcast(name: str, x: mx.array, y: mx.array, stream: Place) -> tuple[mx.array, mx.array]:
    """Both in the shape that they have together.

    Raises:
        LaunchError: they have none.
    """
    if x.shape == y.shape:
        return x, y
    try:
        x, y = mx.broadcast_arrays(x, y, stream=stream)
    except ValueError:
        raise LaunchError(
            f"[{name}] arrays of shapes {tuple(x.shape)} and {tuple(y.shape)} do not broadcast"
        ) from None
    return x, y


def are_floats(*values: object) -> bool:
    """Whether the arrays among these meet in a dtype that kernels know."""
    dtypes = [value.dtype for value in values if isinstance(value, mx.array)]
    if all([dtype in FLOATS for dtype in dtypes]):
        return bool(dtypes)
    return mx.result_type(*dtypes) in FLOATS


def as_rows(name: str, x: mx.array, stream: Place) -> mx.array:
    """The rows of x along its last axis, as a matrix.

    Raises:
        LaunchError: x has no axis.
    """
    if x.ndim == 0:
        raise LaunchError(f"[{name}] x has no axis; expected rows along its last one")
    return mx.reshape(x, (x.size // max(x.shape[-1], 1), x.shape[-1]), stream=stream)


def as_indices(name: str, x: mx.array, what: str) -> mx.array:
    """Integers as i32: those outside of its range become its ends, which no table reaches.

    Raises:
        LaunchError: they are no integers.
    """
    check_arrays(name, x)
    if not mx.issubdtype(x.dtype, mx.integer):
        raise LaunchError(
            f"[{name}] {what} are {str(x.dtype).rpartition('.')[2]}; expected integers"
        )
    if x.dtype in (mx.uint32, mx.uint64):
        x = mx.minimum(x, 2**31 - 1)
    elif x.dtype == mx.int64:
        x = mx.clip(x, -(2**31), 2**31 - 1)
    return x.astype(mx.int32)


def as_float(x: mx.array, dtype: mx.Dtype) -> mx.array:
    """Floats as they are, since kernels widen them themselves; others in `dtype`."""
    return x if mx.issubdtype(x.dtype, mx.floating) else x.astype(dtype)


def check_columns(name: str, x: mx.array, **scales: mx.array | None) -> None:
    """Refuse an `x` without an axis, and a weight or bias without one value for each column of it.

    Raises:
        LaunchError: shapes that don't fit.
    """
    if x.ndim == 0:
        raise LaunchError(f"[{name}] x has no axis to normalise over; expected at least one")
    for what, scale in scales.items():
        if scale is not None and scale.shape != x.shape[-1:]:
            raise LaunchError(
                f"[{name}] {what} has shape {tuple(scale.shape)}; expected ({x.shape[-1]},), one "
                f"value for each element of the last axis of x, which is {tuple(x.shape)}"
            )
