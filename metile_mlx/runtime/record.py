"""The metal kernels of a graph as MLX records them, with their complete text (SPEC X2).

What MLX 0.32.4 does, each fact held by a test:

- The callback form of `mx.export_function` hands over a CustomKernel as [name, text, grid x y z in
  threads, threadgroup x y z, (shape, strides, ndim) flags of each input, ensure_row_contiguous,
  scalar arguments, is_precompiled, shared memory, math mode]. `init_value` is not handed over,
  though a file holds it.
- The recorded name is `custom_kernel_<name>` plus, for each input, `_<type>` with `c` for fewer
  than 8 elements (`constant` address space) or `s` for 0 dimensions (a reference), then `_<type>`
  of each output.
- A kernel whose outputs nobody uses is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from metile_mlx.runtime.optional import mx

MATH_MODES = ("safe", "relaxed", "fast")

Grid = tuple[int, int, int]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class CapturedKernel:
    """A CustomKernel as MLX recorded it in a graph.

    Attributes:
        name: the kernel's name in `text`.
        text: the complete text MLX recorded: header, generated signature, body. Metal sees it after
            `metal::utils()`, MLX's prelude.
        grid: threads along x, y, z.
        threadgroup: threads of a threadgroup.
        shape_flags: per input, whether its shape, strides and number of dimensions are bound as
            buffers.
        ensure_row_contiguous: whether MLX copies inputs that are not row-contiguous.
        math_mode: `safe`, `relaxed` or `fast`; None where this MLX does not record it.
        init_value: fill of the outputs before the launch. MLX does not hand it over, so it is set
            by `record_msl` and always None from `capture`.
        inputs: shape and MLX dtype name of each input.
        outputs: shape and MLX dtype name of each output.
    """

    name: str
    text: str
    grid: Grid
    threadgroup: Grid
    shape_flags: tuple[tuple[bool, bool, bool], ...]
    ensure_row_contiguous: bool
    math_mode: str | None
    init_value: float | None
    inputs: tuple[tuple[Shape, str], ...]
    outputs: tuple[tuple[Shape, str], ...]


def _arrays(
    entries: Sequence[tuple[str, Sequence[int], mx.Dtype]],
) -> tuple[tuple[Shape, str], ...]:
    return tuple((tuple(shape), str(dtype).rpartition(".")[2]) for _name, shape, dtype in entries)


def _parse(event: Mapping[str, Any]) -> CapturedKernel:
    """A CapturedKernel from MLX's flat list of the primitive's state."""
    name, text, gx, gy, gz, tx, ty, tz, flags, contiguous, *rest = event["arguments"]
    # `rest` starts with init_value in an MLX that hands it over; what follows is counted from the
    # list of scalar arguments: is_precompiled, shared memory, and the math mode in newer releases.
    scalars = next(i for i, value in enumerate(rest) if isinstance(value, (list, tuple)))
    options = rest[scalars + 3 :]
    return CapturedKernel(
        name,
        text,
        (gx, gy, gz),
        (tx, ty, tz),
        tuple((bool(a), bool(b), bool(c)) for a, b, c in flags),
        bool(contiguous),
        MATH_MODES[options[0]] if options else None,
        None,
        _arrays(event["inputs"]),
        _arrays(event["outputs"]),
    )


def capture(fn: Callable[..., Any], *examples: mx.array) -> list[CapturedKernel]:
    """The metal kernels in the graph of `fn(*examples)`, in execution order; nothing is evaluated.

    Works with and without a Metal device: see the facts at the top of this module.
    """
    captured: list[CapturedKernel] = []

    def record(event: Mapping[str, Any]) -> None:
        if event["type"] == "primitive" and event["name"] == "CustomKernel":
            captured.append(_parse(event))

    mx.export_function(record, fn, *examples)
    return captured
