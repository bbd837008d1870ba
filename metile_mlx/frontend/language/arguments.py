"""Checks of arguments that several functions of the language share."""

from __future__ import annotations

from metile_mlx.dtypes import ALL, DType
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.values import describe
from metile_mlx.layout.thread_layout import ThreadLayout


def dtype_argument(build: Build, dtype: object) -> DType:
    """A metile dtype; MLX's have become ours where the name was resolved."""
    if not isinstance(dtype, DType):
        names = ", ".join(item.name for item in ALL)
        raise build.error(
            f"dtype is {describe(dtype)}, expected a dtype",
            "dtype",
            f"use metile.f32 or mx.float32; known are {names}",
        )
    return dtype


def layout_argument(build: Build, layout: object) -> ThreadLayout | None:
    """A `ThreadLayout` or None."""
    if layout is not None and not isinstance(layout, ThreadLayout):
        raise build.error(f"layout is {describe(layout)}, expected a ThreadLayout", "layout")
    return layout


def shape_argument(build: Build, shape: object) -> tuple[int, ...]:
    """Extents known at compile time, each at least 1."""
    parts = shape if isinstance(shape, tuple) else (shape,)
    extents = tuple(part for part in parts if isinstance(part, int) and not isinstance(part, bool))
    if len(extents) != len(parts) or not parts:
        bad = next((part for part in parts if part not in extents), shape)
        raise build.error(
            f"an entry of shape is {describe(bad)}, expected an int known at compile time",
            "shape",
            "annotate the parameter metile.constexpr",
        )
    if min(extents) < 1:
        raise build.error(f"shape is {extents}, expected extents of at least 1", "shape")
    return extents
