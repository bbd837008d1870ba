"""The limit that a pipeline has on its own device, asked before a kernel runs (SPEC X9, F17).

1024 threads are what Metal allows at most; a kernel that needs many registers is allowed fewer, and
only the compiled pipeline knows. It is compiled here as MLX compiles it, through pyobjc: its
prelude and the text that it records, with its options. What MLX 0.32.4 sets, read from the code of
its macOS wheel:

- Math mode: from macOS 15 on `setMathMode` with 0, 1 or 2 (safe, relaxed, fast). Before,
  `setFastMathEnabled`, true for fast; relaxed is refused.
- Language version: Metal 4.1 from macOS 27 on, 4.0 from 26, 3.2 from 15, else 3.1.
- The device is the first of all devices, else the system's default device.

A check that can't be made stops nothing: the report then says why, and MLX itself still refuses to
launch more threads than the pipeline has.
"""

from __future__ import annotations

import platform
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from metile_mlx.emit.source import KernelSource
from metile_mlx.errors import CompileError, MetileError, OutOfResources
from metile_mlx.locks import Lock
from metile_mlx.runtime import metal, metal_prelude, optional
from metile_mlx.runtime.metal_prelude import Prelude
from metile_mlx.runtime.optional import mx
from metile_mlx.runtime.record import MATH_MODES, CapturedKernel
from metile_mlx.target import SIMD_WIDTH

NO_DEVICE = "the pipeline's own limit needs the Metal device"
_CACHE_SIZE = 1024
_SHOWN_ERRORS = 3
_SHOWN_LINES = 40

# First macOS version -> MTLLanguageVersion.
_LANGUAGES = ((27, 0x40001), (26, 0x40000), (15, 0x30002), (0, 0x30001))


@dataclass(frozen=True)
class PipelineLimit:
    """Threads a pipeline may have; None where it could not be asked, with the reason in `note`."""

    allowed: int | None
    note: str = ""


_known: OrderedDict[KernelSource, PipelineLimit] = OrderedDict()
_lock = Lock()


def check(source: KernelSource, record: Callable[[], CapturedKernel]) -> PipelineLimit:
    """The limit of the pipeline of `source`, asked of Metal once and then remembered.

    Args:
        source: the kernel.
        record: what MLX records for a launch of it; called only when Metal is asked.

    Raises:
        OutOfResources: the kernel has more threads than its pipeline allows.
        CompileError: Metal's compiler refuses the text; shows its message and the lines.
            After either nothing is remembered, so the next call asks again.
    """
    reason = unavailable()
    if reason is not None:
        return PipelineLimit(None, reason)
    with _lock:
        found = _known.get(source)
        if found is None:
            found = _ask(source, record)
            _known[source] = found
            if len(_known) > _CACHE_SIZE:
                _known.popitem(last=False)
        _known.move_to_end(source)
        return found


def unavailable() -> str | None:
    """Why no pipeline can be compiled here, or None."""
    if metal.available() is not None:
        return NO_DEVICE
    if optional.METAL_MISSING is not None:
        return f"pyobjc-framework-Metal is not installed: {optional.METAL_MISSING}"
    prelude = _prelude()
    return prelude if isinstance(prelude, str) else None


@cache
def _prelude() -> Prelude | str:
    return metal_prelude.find(Path(mx.__file__).parent)


def _ask(source: KernelSource, record: Callable[[], CapturedKernel]) -> PipelineLimit:
    recorded = record()
    prelude = _prelude()
    assert isinstance(prelude, Prelude)
    try:
        allowed = _compile(source, recorded, prelude)
    except MetileError:
        raise
    except Exception as error:
        # Also objc.error: pyobjc or Metal answer otherwise than expected, which stops no kernel.
        return PipelineLimit(None, f"asking Metal failed: {type(error).__name__}: {error}")
    if isinstance(allowed, int) and source.threads > allowed:
        raise OutOfResources(
            f"[metal] kernel {source.name} has {source.threads} threads per threadgroup; its "
            f"pipeline on this device allows {allowed}, because of the registers a thread needs",
            hint=_change(source.threads, allowed),
        )
    if isinstance(allowed, str):
        return PipelineLimit(None, allowed)
    return PipelineLimit(allowed)


def _change(asked: int, allowed: int) -> str:
    """What to change for a kernel of `asked` threads to fit."""
    fitting = 1 << (max(allowed, 1).bit_length() - 1)
    if fitting < SIMD_WIDTH:
        return "hold fewer values at once: not even one simdgroup fits"
    fewer = asked // fitting
    return (
        f"use {fitting} threads: 1/{fewer} of the elements in a tile, or a ThreadLayout with "
        f"{fewer} times as many registers per thread, if a thread has room for them"
    )


def _compile(source: KernelSource, recorded: CapturedKernel, prelude: Prelude) -> int | str:
    """maxTotalThreadsPerThreadgroup, or why it is not known.

    Raises:
        CompileError: the text does not compile.
    """
    api = optional.pyobjc_metal
    device = _device(api)
    if device is None:
        return "pyobjc finds no Metal device"
    label = f"{source.name}.metal"
    # The directive gives the kernel's own line numbers to Metal's messages and changes no code.
    text = f'{prelude.text}\n#line 1 "{label}"\n{recorded.text}'
    options = api.MTLCompileOptions.alloc().init()
    _set_options(options, recorded.math_mode)
    library, error = device.newLibraryWithSource_options_error_(text, options, None)
    if library is None:
        message = _message(error)
        if not prelude.exact and f"{label}:" not in message:
            return f"the prelude made of MLX's headers does not compile: {_first(message)}"
        raise _refused(source, recorded.text, label, message)
    function = library.newFunctionWithName_(recorded.name)
    if function is None:
        return f"Metal finds no function {recorded.name} in the text that MLX recorded"
    pipeline, error = device.newComputePipelineStateWithFunction_error_(function, None)
    if pipeline is None:
        raise _refused(source, recorded.text, label, _message(error))
    return int(pipeline.maxTotalThreadsPerThreadgroup())


def _device(api: Any) -> Any:
    devices = api.MTLCopyAllDevices()
    return devices[0] if devices else api.MTLCreateSystemDefaultDevice()


def _set_options(options: Any, math_mode: str | None) -> None:
    """Options of the compilation as MLX sets them; `math_mode` is None where MLX has no such."""
    major = int(platform.mac_ver()[0].partition(".")[0])
    if math_mode is None or major < 15:
        options.setFastMathEnabled_(math_mode == "fast")
    else:
        options.setMathMode_(MATH_MODES.index(math_mode))
    options.setLanguageVersion_(next(version for first, version in _LANGUAGES if major >= first))


def _message(error: Any) -> str:
    return str(error.localizedDescription()) if error is not None else "no message"


def _first(message: str) -> str:
    return next((line for line in message.splitlines() if "error" in line), message[:200])


def _refused(source: KernelSource, text: str, label: str, message: str) -> CompileError:
    """The error for a text that Metal refuses: its message, and the lines it speaks of."""
    shown = message.splitlines()
    if len(shown) > _SHOWN_LINES:
        shown = [*shown[:_SHOWN_LINES], f"... and {len(shown) - _SHOWN_LINES} lines more"]
    lines = text.splitlines()
    excerpt: list[str] = []
    for found in re.finditer(rf"{re.escape(label)}:(\d+):(\d+): (.*error: .*)", message):
        number, column = int(found[1]), int(found[2])
        if number <= len(lines) and len(excerpt) < _SHOWN_ERRORS * 2:
            excerpt += [f"  {number:4} | {lines[number - 1]}", f"       | {' ' * (column - 1)}^"]
    return CompileError(
        "\n".join([f"[metal] kernel {source.name}: Metal refuses the text:", *shown, *excerpt]),
        hint="METILE_DUMP=msl prints the whole text; please report it, for a kernel that compiles "
        "to text Metal refuses is a fault of metile_mlx",
    )
