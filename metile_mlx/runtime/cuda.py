"""CUDA: the MSL text of a kernel behind a header, through `mx.fast.cuda_kernel` (SPEC X3, X9).

The one place that knows how MLX builds and launches a CUDA kernel. What MLX 0.32.4 does (read from
its sources and from the strings of its wheel):

- The complete text is MLX's own includes, the header, `namespace mlx::core::cu {`, the signature
  `__global__ void custom_kernel_<name>(...)`, the body. MLX looks the kernel up by that name.
- An input is `const T*`, 0-dimensional ones too, an output `T*`: no address spaces, no references.
  For each `<input>_shape`, `_strides` or `_ndim` that the body mentions a value (not a pointer)
  follows the input; for a 0-dimensional input the signature lacks it though the launch passes it.
- `grid` counts threads; it is rounded up to whole groups. A grid smaller than the group shrinks the
  group. CUDA counts at most 65535 groups along y and z.
- Compiled by NVRTC when the launch is evaluated, for the device's own architecture, with functions
  on the device by default and no other option: contraction is on, so a header decides on rounding.
  Errors are the exception of whoever evaluates; they quote the file and line of the last `#line`.
- A module is cached by name and, in newer releases, by the hash of its text; our names hold that of
  everything, the header included.
- A wheel without CUDA refuses to build a kernel at all, so nothing can be recorded there.
"""

from __future__ import annotations

import ctypes
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from metile_mlx.dtypes import MLX_NAMES, DType
from metile_mlx.emit.naming import unique_name
from metile_mlx.emit.source import KernelSource
from metile_mlx.errors import CompileError, LaunchError, OutOfResources
from metile_mlx.locks import Lock
from metile_mlx.report import Limit
from metile_mlx.runtime import metal
from metile_mlx.runtime.backend import Place, Request
from metile_mlx.runtime.backends import MetalBackend, registered_source
from metile_mlx.runtime.metal import MetalKernel
from metile_mlx.runtime.optional import MLX_MISSING, mx
from metile_mlx.runtime.record import Grid
from metile_mlx.target import CUDA, Target

MAX_THREADS = 2**31 - 1
MAX_GROUPS_YZ = 65535
# File names of `#line`, by which a compiler's message is told from one about the header. No input
# can be called so that one holds `<input>_shape`.
BODY_FILE = "kernel.metal"
HELPERS_FILE = "helpers.metal"
NAMESPACE = "mlx::core::cu"

_CACHE_SIZE = 1024
_SHARED_MEMORY_PER_BLOCK = 8
_ERROR = re.compile(
    rf"(?P<file>{re.escape(BODY_FILE)}|{re.escape(HELPERS_FILE)})\((?P<line>\d+)\): "
    r"(?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)"
)
_SPELLED = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "bool": "bool"}
# What MLX writes into the signature.
TYPES: dict[DType, str] = {
    dtype: _SPELLED.get(name) or f"{name}_t" for name, dtype in MLX_NAMES.items()
}


def available() -> str | None:
    """None when CUDA kernels run here, else why not (SPEC X6)."""
    if MLX_MISSING is not None:
        return f"mlx is not installed: {MLX_MISSING}"
    if mx.cuda.is_available():
        return None
    return "MLX finds no CUDA device (mx.cuda.is_available() is False)"


@cache
def prelude() -> str:
    """The meaning of MSL's words, in one text: MLX lets a kernel include no files of ours."""
    names = ("msl_cuda_numbers.h", "msl_cuda.h")
    return "".join(Path(__file__).with_name(n).read_text(encoding="ascii") for n in names)


def signature(source: KernelSource) -> str:
    """`custom_kernel_<name>(...)` as MLX writes it for arrays that all have dimensions."""
    inputs = [f"    const {TYPES[a.dtype]}* {a.name}" for a in source.inputs]
    outputs = [f"    {TYPES[a.dtype]}* {a.name}" for a in source.outputs]
    return f"custom_kernel_{source.name}(\n" + ",\n".join([*inputs, *outputs]) + ")"


def helpers(source: KernelSource) -> str:
    """The kernel's own helper functions, then its declaration with the bound on its threads.

    A declaration of the same name, namespace and signature before the definition is how the bound
    reaches a kernel whose definition MLX writes: with it the compiler keeps the registers of a
    thread so few that a threadgroup always fits.
    """
    lines = []
    if source.header:
        lines += ["#define inline METILE_INLINE", f'#line 1 "{HELPERS_FILE}"']
        lines += [source.header.rstrip("\n"), "#undef inline"]
    lines += [f"__global__ void __launch_bounds__({source.threads})", f"{signature(source)};"]
    return "\n".join(lines)


def header(source: KernelSource) -> str:
    """What MLX is given as the header of a kernel."""
    strict = int(source.math_mode == "safe")
    lines = [f"#define METILE_STRICT {strict}", prelude(), f"namespace {NAMESPACE} {{"]
    return "\n".join([*lines, helpers(source), "}", ""])


def body(source: KernelSource) -> str:
    """What MLX is given as the body: the MSL lines, by their own numbers."""
    return f'#line 1 "{BODY_FILE}"\n{source.body}'


def named(source: KernelSource) -> KernelSource:
    """The source under a name that also covers the header (F01)."""
    name = unique_name(source.name.rpartition("_")[0], source.name, header(source))
    return replace(source, name=name)


def complete_text(source: KernelSource) -> str:
    """What MLX hands to the compiler, but for its own includes."""
    return "\n".join(
        [
            header(source) + f"namespace {NAMESPACE} {{\n",
            "namespace cg = cooperative_groups;\n",
            f"__global__ void {signature(source)} {{",
            body(source),
            f"}}\n\n}} // namespace {NAMESPACE}\n",
        ]
    )


def refused(source: KernelSource, message: str) -> CompileError:
    """The error for a text that CUDA's compiler refuses, with the MSL lines its message speaks of.

    Args:
        source: the kernel, as registered.
        message: of NVRTC (the text of MLX's exception) or of nvcc.
    """
    texts = {BODY_FILE: source.body.splitlines(), HELPERS_FILE: source.header.splitlines()}
    shown = []
    for found in _ERROR.finditer(message):
        lines, number = texts[found["file"]], int(found["line"])
        quoted = lines[number - 1].strip() if number <= len(lines) else ""
        shown.append(f"  {found['file']}:{number}: {found['text']}\n    {quoted}")
    return CompileError(
        "\n".join(
            [f"[cuda] kernel {source.name}: the compiler refuses the text:", *(shown or [message])]
        ),
        hint="METILE_DUMP=msl prints the whole text; please report it, for a kernel that compiles "
        "to text CUDA refuses is a fault of metile_mlx",
    )


def grid_in_threads(name: str, grid: Sequence[int], threads: int) -> Grid:
    """MLX's grid for `grid` programs of `threads` threads each (F15).

    Raises:
        LaunchError: not three non-negative integers.
        OutOfResources: more than MLX or CUDA can count along an axis (SPEC X8).
    """
    if len(grid) != 3 or any(n < 0 for n in grid):
        raise LaunchError(
            f"[cuda] kernel {name}: grid is {grid!r}; expected three integers >= 0, in programs"
        )
    counts = (
        (grid[0] * threads, MAX_THREADS, "threads along x"),
        (grid[1], MAX_GROUPS_YZ, "programs along y"),
        (grid[2], MAX_GROUPS_YZ, "programs along z"),
    )
    for count, allowed, what in counts:
        if count > allowed:
            raise OutOfResources(
                f"[cuda] kernel {name}: grid {tuple(grid)} has {count} {what}; allowed are "
                f"{allowed}",
                hint="use axis 0 for the longest axis, or give each program more work",
            )
    return grid[0] * threads, grid[1], grid[2]


@cache
def shared_memory() -> int | str:
    """Bytes of shared memory a threadgroup may have on device 0, of the driver; or why unknown."""
    try:
        driver: Any = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no driver: {error}"
    found, device = ctypes.c_int(), ctypes.c_int()
    failed = (
        driver.cuInit(0)
        or driver.cuDeviceGet(ctypes.byref(device), 0)
        or driver.cuDeviceGetAttribute(ctypes.byref(found), _SHARED_MEMORY_PER_BLOCK, device)
    )
    return f"the driver answers error {failed}" if failed else found.value


def limits(source: KernelSource) -> list[Limit]:
    """What the report says of the limits of the device itself (SPEC X9)."""
    asked = shared_memory()
    known = isinstance(asked, int)
    return [
        Limit(
            "threads by __launch_bounds__", source.threads, source.threads, True, "by construction"
        ),
        Limit(
            "shared memory of the device, bytes",
            source.threadgroup_bytes,
            asked if isinstance(asked, int) else CUDA.threadgroup_bytes,
            known,
            "" if known else str(asked),
        ),
    ]


def check_device(source: KernelSource) -> None:
    """Ask the driver before anything is registered (SPEC X9, F18).

    Raises:
        OutOfResources: the kernel has more threadgroup memory than the device.
    """
    allowed = shared_memory()
    if isinstance(allowed, int) and source.threadgroup_bytes > allowed:
        raise OutOfResources(
            f"[cuda] kernel {source.name} needs {source.threadgroup_bytes} bytes of threadgroup "
            f"memory; the device allows {allowed}",
            hint="use smaller tiles or fewer cross-group conversions at once",
        )


class CudaKernel(MetalKernel):
    """A registered kernel. Make one with `register`."""

    label: ClassVar[str] = "cuda"

    def _stream(self, stream: Place) -> Place:
        # MLX would take the default device, which may be a CPU.
        return mx.gpu if stream is None else stream

    def _threads(self, grid: Grid) -> Grid:
        return grid_in_threads(self.source.name, grid, self.source.threads)

    def _place(self, stream: Place) -> dict[str, Any]:
        return {"stream": stream}


def build(source: KernelSource, cuda_kernel: Callable[..., Any]) -> CudaKernel:
    """`source` registered through `cuda_kernel`: `mx.fast.cuda_kernel` or one like it.

    Raises:
        CompileError: an argument whose name MLX would misread.
        OutOfResources: a limit is exceeded; nothing is registered.
    """
    assert source.language == "msl", source.language
    metal.check_text(source)
    metal.check_limits(source, CUDA)
    check_device(source)
    function = cuda_kernel(
        name=source.name,
        input_names=[argument.name for argument in source.inputs],
        output_names=[argument.name for argument in source.outputs],
        source=body(source),
        header=header(source),
    )
    return CudaKernel(source, function, source.math_mode)


class CudaBackend(MetalBackend):
    """Kernels as MSL through `mx.fast.cuda_kernel`; the rest as on Metal (SPEC X3)."""

    name = "cuda"
    target: Target | None = CUDA

    def __init__(self) -> None:
        self._registered: OrderedDict[KernelSource, CudaKernel] = OrderedDict()
        self._lock = Lock()

    def available(self) -> str | None:
        return available()

    def register(self, request: Request) -> CudaKernel:
        """The kernel of a request, registered once."""
        source = named(registered_source(request))
        with self._lock:
            found = self._registered.get(source)
            if found is None:
                found = build(source, mx.fast.cuda_kernel)
                self._registered[source] = found
                if len(self._registered) > _CACHE_SIZE:
                    self._registered.popitem(last=False)
            self._registered.move_to_end(source)
            return found
