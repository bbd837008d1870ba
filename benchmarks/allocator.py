"""Memory that costs every arm the same: fresh pages would cost more than many a kernel.

glibc hands freed memory back to the system by rules that depend on all that was freed before, and
the next result then pays for new, zeroed pages. Benchmarks keep it instead, so that a case does not
depend on the cases before it; results are still allocated and freed at each launch.
"""

from __future__ import annotations

import ctypes

# From glibc's malloc.h: name of each option, and the value that keeps memory.
_M_ARENA_MAX = (-8, 1)
_M_MMAP_THRESHOLD = (-3, 32 * 2**20)
_M_TRIM_THRESHOLD = (-1, 2**31 - 1)

KEPT = "glibc, told to keep freed memory"
DEFAULT = "the system's default"


def keep_freed_memory() -> str:
    """Set the allocator up, before anything is measured; says how it works from now on."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return DEFAULT
    options = (_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD)
    return KEPT if all([mallopt(name, value) for name, value in options]) else DEFAULT
