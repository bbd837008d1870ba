"""Runs hand-written MSL under the checker and hands back what it found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from metile_mlx import emulator
from metile_mlx.emulator import Report


def launch(
    source: str,
    inputs: dict[str, mx.array],
    shape: Sequence[int],
    *,
    threads: int = 64,
    grid: Sequence[int] | None = None,
    threadgroup: Sequence[int] | None = None,
    dtype: mx.Dtype = mx.float32,
    header: str = "",
    name: str = "planted",
    init_value: float | None = None,
    **options: Any,
) -> mx.array:
    """The output `y` of a kernel with this body; lazy. `threads` is the grid of one dimension."""
    kernel = emulator.metal_kernel(
        name=name,
        input_names=list(inputs),
        output_names=["y"],
        source=source,
        header=header,
        **options,
    )
    size = tuple(grid or (threads, 1, 1))
    return kernel(
        inputs=list(inputs.values()),
        output_shapes=[tuple(shape)],
        output_dtypes=[dtype],
        grid=size,
        threadgroup=tuple(threadgroup or (min(size[0], 64), 1, 1)),
        init_value=init_value,
    )[0]


def check(
    source: str,
    inputs: dict[str, mx.array],
    shape: Sequence[int],
    *,
    schedules: int = 1,
    **call: Any,
) -> tuple[Report, mx.array]:
    """The checker's report of one launch, and the output."""
    emulator.take()
    with emulator.options(checked=True, schedules=schedules):
        output = launch(source, inputs, shape, **call)
        mx.eval(output)
    return emulator.take(), output
