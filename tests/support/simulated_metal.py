"""A Metal device on any machine: what MLX would launch runs on the simulator instead.

Only the shader itself is replaced: registration, arguments, zero fill, written masks, gradients and
batching are those of the `metal` backend. Launches are eager, so not for use inside `mx.compile`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx import compiler
from metile_mlx.context import Context
from metile_mlx.dtypes import MLX_NAMES, bf16
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir.core import Func
from metile_mlx.runtime import backend, metal
from tests.support import simulate
from tests.support.arithmetic import Array

POISON = 0xA5


def to_numpy(x: mx.array) -> Array:
    """Contiguous elements; bf16 as its bits."""
    x = mx.contiguous(x)
    return np.array(x.view(mx.uint16) if x.dtype == mx.bfloat16 else x)


def to_mlx(data: Array, dtype: mx.Dtype) -> mx.array:
    made = mx.array(data)
    return made.view(dtype) if dtype == mx.bfloat16 else made


# By text. Kernels keep their texts, so a device meets those of any earlier test.
_PROGRAMS: dict[str, Func] = {}


@contextmanager
def remembering() -> Iterator[None]:
    """Which program each Metal text emitted inside stands for is known to every `Device`."""
    emit = compiler.EMITTERS["msl"]

    @wraps(emit)
    def emit_and_remember(func: Func, ctx: Context) -> KernelSource:
        made = emit(func, ctx)
        _PROGRAMS[made.body] = func
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(compiler.EMITTERS, "msl", emit_and_remember)
        yield


class Device:
    """Stands for Metal. `sources` are the registered kernels, `launches` counts."""

    def __init__(self) -> None:
        self.sources: list[KernelSource] = []
        self.calls: list[dict[str, Any]] = []
        self._kernels: dict[KernelSource, metal.MetalKernel] = {}

    def register(self, source: KernelSource) -> metal.MetalKernel:
        """As `metal.register`."""
        if source not in self._kernels:

            def metal_kernel(**arguments: Any) -> Callable[..., list[mx.array]]:
                return lambda **call: self._launch(source, **call)

            self._kernels[source] = metal.build(source, metal_kernel)
            self.sources.append(source)
        return self._kernels[source]

    def _launch(self, source: KernelSource, **call: Any) -> list[mx.array]:
        self.calls.append(call)
        func = _PROGRAMS[source.body]
        scalars: dict[str, Any] = {}
        arrays: dict[str, Array] = {}
        for argument, given in zip(source.inputs, call["inputs"], strict=True):
            if argument.is_scalar:
                scalars[argument.param] = given.item()
            else:
                arrays[argument.param] = to_numpy(given).reshape(-1)
        shapes, dtypes = call["output_shapes"], call["output_dtypes"]
        for argument, shape, dtype in zip(source.outputs, shapes, dtypes, strict=True):
            assert MLX_NAMES[str(dtype).rpartition(".")[2]] == argument.dtype
            kind = np.uint16 if argument.dtype == bf16 else to_numpy(mx.zeros(1, dtype)).dtype
            arrays[argument.param] = np.zeros(shape, kind)
        threads = call["threadgroup"][0]
        assert call["grid"][0] % threads == 0
        grid = (call["grid"][0] // threads, *call["grid"][1:])
        made, stored = simulate.run(func, arrays, scalars, grid)
        outputs = []
        for argument, dtype in zip(source.outputs, dtypes, strict=True):
            data, kept = made[argument.param], stored[argument.param]
            if "init_value" in call:
                data = np.where(kept, data, np.zeros((), data.dtype))
            elif data.dtype == np.bool_:
                # The simulator leaves False; unset memory may just as well be True.
                data = np.where(kept, data, True)
            outputs.append(to_mlx(data.reshape(arrays[argument.param].shape), dtype))
        return outputs


@contextmanager
def device() -> Iterator[Device]:
    """Kernels of the `metal` backend run on a `Device` inside, if compiled in `remembering`."""
    with pytest.MonkeyPatch.context() as patch:
        made = Device()
        patch.setattr(metal, "available", lambda: None)
        patch.setattr(backend, "_proven", {})
        patch.setattr(metal, "register", made.register)
        yield made
