"""All backends by name: what `backend=` and METILE_BACKEND choose from (SPEC X6)."""

from __future__ import annotations

from metile_mlx.emulator.backend import EmulatorBackend
from metile_mlx.runtime.backend import Backend
from metile_mlx.runtime.backends import CpuBackend, MetalBackend, ReferenceBackend
from metile_mlx.runtime.cuda import CudaBackend

BACKENDS: dict[str, Backend] = {
    "metal": MetalBackend(),
    "cuda": CudaBackend(),
    "cpu": CpuBackend(),
    "emulator": EmulatorBackend(),
    "reference": ReferenceBackend(),
}
