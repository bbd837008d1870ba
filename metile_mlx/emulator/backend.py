"""The emulator as a backend: kernels as MSL that runs thread by thread on the CPU.

The text, the arguments, the zero fill, the written masks, gradients and batching are those of the
`metal` backend; only `mx.fast.metal_kernel` is replaced. A launch is checked inside
`metile_mlx.emulator.checked()`, and unchecked elsewhere. Never chosen unless it is named.
"""

from __future__ import annotations

from collections import OrderedDict

from metile_mlx.emit.source import KernelSource
from metile_mlx.emulator import kernel, toolchain
from metile_mlx.locks import Lock
from metile_mlx.runtime import metal
from metile_mlx.runtime.backend import Request
from metile_mlx.runtime.backends import MetalBackend, registered_source
from metile_mlx.runtime.optional import MLX_MISSING
from metile_mlx.target import EMULATOR, Target

# Kernels kept, as many as of Metal's (F04).
_KEPT = 1024


class EmulatorBackend(MetalBackend):
    """Kernels as MSL through `metile_mlx.emulator.metal_kernel`."""

    name = "emulator"
    target: Target | None = EMULATOR

    def __init__(self) -> None:
        self._registered: OrderedDict[KernelSource, metal.MetalKernel] = OrderedDict()
        self._lock = Lock()

    def available(self) -> str | None:
        return f"mlx is not installed: {MLX_MISSING}" if MLX_MISSING else toolchain.available()

    def check_stream(self, request: Request) -> None:
        """Any will do: a launch runs on the CPU wherever it was meant for."""

    def register(self, request: Request) -> metal.MetalKernel:
        """No pipeline limits it."""
        source = registered_source(request)
        with self._lock:
            found = self._registered.get(source)
            if found is None:
                found = metal.build(source, kernel.metal_kernel)
                self._registered[source] = found
                if len(self._registered) > _KEPT:
                    self._registered.popitem(last=False)
            self._registered.move_to_end(source)
            return found
