"""`KernelSource`: the only thing the compiler hands to a runtime."""

from __future__ import annotations

from dataclasses import dataclass

from metile_mlx.dtypes import DType


@dataclass(frozen=True)
class Argument:
    """A kernel argument as the emitted text names it.

    Attributes:
        name: identifier in the text (pure ASCII, reserved words avoided; SPEC X1).
        param: name of the Python parameter it comes from.
        dtype: element type.
        is_scalar: a runtime scalar. On Metal it is an input of shape (1,); on the CPU a host value.
    """

    name: str
    param: str
    dtype: DType
    is_scalar: bool = False


@dataclass(frozen=True)
class KernelSource:
    """Text of one specialised kernel and what a runtime needs to launch it.

    Attributes:
        name: function name plus a hash of all that changes the text (SPEC X1).
        language: `msl` (a body for `mx.fast.metal_kernel`) or `cpp` (a whole function).
        body: the statements of the kernel (`msl`), or the whole function (`cpp`).
        header: helper functions placed before the kernel.
        inputs: arrays and scalars read, in the order of the signature.
        outputs: arrays written, in the order of the signature.
        threads: threads of a threadgroup, one dimension.
        threadgroup_bytes: scratch the text declares.
        math_mode: MLX's `math_mode` option: `safe`, `relaxed` or `fast`.
    """

    name: str
    language: str
    body: str
    header: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    threads: int
    threadgroup_bytes: int
    math_mode: str = "safe"
