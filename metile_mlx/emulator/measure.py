"""How fast fibers switch on this machine: the floor under the time of every emulated barrier."""

from __future__ import annotations

import ctypes
import time

from metile_mlx.emulator import build, toolchain


def fiber_switches(fibers: int = 256, rounds: int = 4000) -> float:
    """Seconds to enter a fiber and leave it again, in a loop over `fibers` that do nothing else."""
    library = ctypes.CDLL(str(build.runtime_library(toolchain.find())))
    measure = library.metile_measure_switches
    measure.argtypes = [ctypes.c_uint32, ctypes.c_uint64]
    measure.restype = None
    measure(fibers, 10)
    start = time.perf_counter()
    measure(fibers, rounds)
    return (time.perf_counter() - start) / (fibers * rounds)
