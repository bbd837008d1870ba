"""What a compilation is for: the frozen limits of a device, all the compiler asks about it."""

from __future__ import annotations

from dataclasses import dataclass

SIMD_WIDTH = 32
LANE_BITS = SIMD_WIDTH.bit_length() - 1
MAX_THREADS = 1024
MAX_TILE = 32768
THREADGROUP_BYTES = 32768
MAX_BUFFERS = 31


@dataclass(frozen=True)
class Target:
    """Limits of one kind of device.

    Attributes:
        name: `metal`, `cuda`, `cpu` or `emulator`.
        language: `msl` or `cpp`: what `emit` writes.
        max_threads: threads of a threadgroup; on a CPU they are turns of a loop.
        threadgroup_bytes: bytes of threadgroup memory a kernel may ask for.
        max_buffers: buffers a kernel may bind, or None when unlimited.
        index_bits: width of memory offsets, or None when the arrays of the call decide (SPEC X8).
    """

    name: str
    language: str
    max_threads: int = MAX_THREADS
    threadgroup_bytes: int = THREADGROUP_BYTES
    max_buffers: int | None = None
    index_bits: int | None = None


METAL = Target("metal", "msl", max_buffers=MAX_BUFFERS)
CUDA = Target("cuda", "msl")
CPU = Target("cpu", "cpp", max_threads=MAX_TILE, index_bits=64)
# Metal's text, which here may also print.
EMULATOR = Target("emulator", "msl", max_buffers=MAX_BUFFERS)
BY_NAME = {target.name: target for target in (METAL, CUDA, CPU, EMULATOR)}
