"""CUDA texts compiled by nvcc, on machines without a GPU too: what they need of a device.

Registers, spills, shared memory and the bound on threads are what ptxas reports for one
architecture; widths of memory instructions and branches are counted in the PTX it is given. Many
kernels share one compiler run, each in a namespace of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from metile_mlx.emit.source import KernelSource
from metile_mlx.errors import BackendError
from metile_mlx.runtime import cuda

ARCHITECTURE = "sm_90"

# What MLX's own headers give a kernel's text, as far as the text can see it.
INCLUDES = """\
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda/std/array>
#include <cooperative_groups.h>
#define MAX_NDIM 10
#define WARP_SIZE 32
namespace mlx::core::cu {
using Shape = cuda::std::array<int32_t, MAX_NDIM>;
using Strides = cuda::std::array<int64_t, MAX_NDIM>;
}
"""
_ENTRY = re.compile(r"\.entry (?P<name>\w+)\(")
_WIDE = r"\b{what}(?:\.[a-z_:0-9]+)*\.(?:v4\.[a-z]32|v2\.[a-z]64)\b"
_WIDE_LOAD = re.compile(_WIDE.format(what=r"ld(?:\.global|\.param)?"))
_WIDE_STORE = re.compile(_WIDE.format(what="st"))
_LOAD = re.compile(r"\bld\.global")
_STORE = re.compile(r"\bst\.global")
_BRANCH = re.compile(r"@!?%p\d+ bra")
_CONDITION = re.compile(r"\bif \(| \? ")
_BOUND = re.compile(r"\.maxntid (\d+)")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_WHERE = re.compile(r"k(\d+)/(?=\w+\.metal\()")


@dataclass(frozen=True)
class Compiled:
    """What one kernel needs and does on `ARCHITECTURE`.

    Attributes:
        registers: of a thread.
        spilled_bytes: stores and loads of registers that did not fit.
        shared_bytes: of a threadgroup, static.
        bound: threads it was compiled for; 0 where the bound did not reach it.
        loads, stores: instructions on global memory.
        wide_loads, wide_stores: those of 16 bytes a thread.
        branches: conditional ones, in the compiled code.
        conditions: conditional statements and expressions of the MSL text.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    bound: int
    loads: int
    stores: int
    wide_loads: int
    wide_stores: int
    branches: int
    conditions: int


@cache
def toolkit() -> Path | None:
    """The folder that holds nvcc and ptxas, or None: of PATH, else of CUDA_HOME or CUDA_PATH."""
    places = [shutil.which("nvcc")]
    places += [
        f"{os.environ[name]}/bin/nvcc" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ
    ]
    for place in places:
        if place and Path(place).is_file() and shutil.which("ptxas", path=_folders(place)):
            return Path(place)
    return None


def _folders(nvcc: str) -> str:
    return os.pathsep.join([str(Path(nvcc).parent), os.environ.get("PATH", "")])


def available() -> str | None:
    """None where kernels can be compiled, else why not."""
    return None if toolkit() else "nvcc is neither on PATH nor in CUDA_HOME"


def batch_text(sources: Sequence[KernelSource]) -> str:
    """One translation unit of many kernels of one math mode, each in namespace `k<number>`."""
    (strict,) = {int(source.math_mode == "safe") for source in sources}
    parts = [INCLUDES, f"#define METILE_STRICT {strict}", cuda.prelude()]
    for number, source in enumerate(sources):
        kernel = "\n".join(
            [
                cuda.helpers(source),
                f"__global__ void {cuda.signature(source)} {{",
                cuda.body(source),
            ]
        )
        kernel = re.sub(r'(?m)^(#line 1 ")', rf"\1k{number}/", kernel)
        parts += [f"namespace {cuda.NAMESPACE} {{ namespace k{number} {{", kernel, "}}}"]
    return "\n".join(parts)


def compile_all(sources: Sequence[KernelSource]) -> list[Compiled]:
    """Compile many kernels in one run for each math mode.

    Raises:
        BackendError: there is no nvcc.
        CompileError: a text does not compile; shows the message and the MSL lines.
    """
    found: dict[int, Compiled] = {}
    for strict in (True, False):
        numbers = [i for i, s in enumerate(sources) if (s.math_mode == "safe") is strict]
        if numbers:
            made = _compile([sources[i] for i in numbers])
            found.update(zip(numbers, made, strict=True))
    return [found[i] for i in range(len(sources))]


def _compile(sources: Sequence[KernelSource]) -> list[Compiled]:
    nvcc = toolkit()
    if nvcc is None:
        raise BackendError(f"[cuda] no kernel can be compiled here: {available()}")
    with tempfile.TemporaryDirectory() as folder:
        text, ptx = Path(folder, "kernels.cu"), Path(folder, "kernels.ptx")
        text.write_text(batch_text(sources), encoding="ascii")
        command = [str(nvcc), "-ptx", f"-arch={ARCHITECTURE}", "-std=c++17", "-w"]
        done = _run([*command, str(text), "-o", str(ptx)])
        if done.returncode:
            raise _refused(sources, done.stderr + done.stdout)
        ptxas = shutil.which("ptxas", path=_folders(str(nvcc)))
        assert ptxas is not None
        cubin = str(ptx.with_suffix(".cubin"))
        used = _run([ptxas, "-v", f"-arch={ARCHITECTURE}", str(ptx), "-o", cubin])
        if used.returncode:
            raise _refused(sources, used.stderr + used.stdout)
        entries = dict(_split(ptx.read_text()))
    reported = _reported(used.stderr + used.stdout)
    return [
        _counted(entries[name], reported[name], source)
        for source, name in ((source, _mangled(i, source)) for i, source in enumerate(sources))
    ]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _refused(sources: Sequence[KernelSource], message: str) -> Exception:
    """The error of the first kernel the message speaks of."""
    found = _WHERE.search(message)
    if found is None:
        return cuda.refused(sources[0], message)
    number = found[1]
    own = [
        line.replace(f"k{number}/", "") for line in message.splitlines() if f"k{number}/" in line
    ]
    return cuda.refused(sources[int(number)], "\n".join(own))


def _mangled(number: int, source: KernelSource) -> str:
    """The start of the kernel's name in the object file, up to its parameters."""
    space, name = f"k{number}", f"custom_kernel_{source.name}"
    return f"_ZN3mlx4core2cu{len(space)}{space}{len(name)}{name}E"


def _key(mangled: str) -> str:
    """A name in the object file without its parameters: after the prefix two names, each behind
    its length."""
    at = len("_ZN3mlx4core2cu")
    for _ in range(2):
        length = re.match(r"\d+", mangled[at:])
        if length is None:
            return mangled
        # The length of `k<number>` has one digit, and a digit may follow it.
        digits = length[0] if mangled[at + 1] != "k" else length[0][0]
        at += len(digits) + int(digits)
    return mangled[: at + 1]


def symbols(cubin: Path, sources: Sequence[KernelSource]) -> list[str]:
    """Full names, by which a driver finds them, of the kernels of a `batch_text` once compiled."""
    found = re.findall(rb"\0(_ZN3mlx4core2cu\d+k\d+custom_kernel_\w+)(?=\0)", cubin.read_bytes())
    by_key = {_key(name.decode()): name.decode() for name in found}
    return [by_key[_mangled(number, source)] for number, source in enumerate(sources)]


def _split(ptx: str) -> Iterator[tuple[str, str]]:
    """Each kernel's name and its PTX."""
    starts = list(_ENTRY.finditer(ptx))
    ends = [*(start.start() for start in starts[1:]), len(ptx)]
    for start, end in zip(starts, ends, strict=True):
        yield _key(start["name"]), ptx[start.start() : end]


def _reported(message: str) -> dict[str, str]:
    """What ptxas says of each kernel."""
    parts = re.split(r"Compiling entry function '(\w+)'", message)
    return {_key(name): text for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def _counted(ptx: str, used: str, source: KernelSource) -> Compiled:
    spilled, shared = _SPILLS.search(used), _SHARED.search(used)
    registers, bound = _USED.search(used), _BOUND.search(ptx)
    assert registers is not None, used
    return Compiled(
        registers=int(registers[1]),
        spilled_bytes=int(spilled[1]) + int(spilled[2]) if spilled else 0,
        shared_bytes=int(shared[1]) if shared else 0,
        bound=int(bound[1]) if bound else 0,
        loads=len(_LOAD.findall(ptx)),
        stores=len(_STORE.findall(ptx)),
        wide_loads=len(_WIDE_LOAD.findall(ptx)),
        wide_stores=len(_WIDE_STORE.findall(ptx)),
        branches=len(_BRANCH.findall(ptx)),
        conditions=len(_CONDITION.findall(source.body)),
    )
