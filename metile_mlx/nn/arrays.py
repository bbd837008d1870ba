"""What the user functions of `metile_mlx.nn` ask of their arrays."""

from __future__ import annotations

from metile_mlx.errors import LaunchError
from metile_mlx.runtime.optional import mx


def result_dtype(name: str, *arrays: mx.array) -> mx.Dtype:
    """The dtype in which the arrays meet, as in MLX, where it is a float that kernels compute in.

    Raises:
        LaunchError: it is another one.
    """
    dtype = arrays[0].dtype if len(arrays) == 1 else mx.result_type(*arrays)
    if dtype not in (mx.float16, mx.bfloat16, mx.float32):
        raise LaunchError(
            f"[{name}] the result would be {str(dtype).rpartition('.')[2]}; expected float16, "
            "bfloat16 or float32"
        )
    return dtype


def as_float(x: mx.array, dtype: mx.Dtype) -> mx.array:
    """Floats as they are, since kernels widen them themselves; others in `dtype`."""
    return x if mx.issubdtype(x.dtype, mx.floating) else x.astype(dtype)
