"""Collects what checked launches found, and finds the lines of the kernel's text."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from metile_mlx.emulator import host_module, toolchain
from metile_mlx.emulator.report import EmulatorError, Finding, Report, finding, merged
from metile_mlx.locks import Lock
from metile_mlx.runtime.optional import mx

_VERSIONS = range(toolchain.NEWEST, toolchain.OLDEST - 1, -1)
_TOOLS = ("addr2line", *(f"llvm-symbolizer-{v}" for v in _VERSIONS), "llvm-symbolizer")
_lock = Lock()
_kernels: dict[str, tuple[str, str, Path]] = {}


def register(name: str, text: str, path: Path) -> str:
    """The key under which the runtime reports on a kernel."""
    key = path.name
    with _lock:
        _kernels[key] = (name, text, path)
    return key


def completed_runs() -> int:
    """Launches that have run since the process began. Waits for all that runs on the CPU."""
    mx.synchronize(mx.default_stream(mx.Device(mx.DeviceType.cpu, 0)))
    return host_module.load().completed_runs()


@functools.lru_cache(maxsize=4096)
def line_of(path: Path, code: int) -> int:
    """The line of the kernel's text that made the instruction before `code`; 0 if not known."""
    tool = next((t for t in _TOOLS if shutil.which(t)), None)
    if not code or tool is None:
        return 0
    arguments = ["-i", "-e", str(path), hex(code - 1)]
    if tool != "addr2line":
        arguments = ["--no-demangle", "--output-style=GNU", f"--obj={path}", "-i", hex(code - 1)]
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, check=False)
    for place in done.stdout.splitlines():
        file, _, line = place.partition(" ")[0].rpartition(":")
        if file.endswith("kernel.metal") and line.isdigit():
            return int(line)
    return 0


def take() -> Report:
    """What has been found since the last call. Waits for all that runs on the CPU."""
    mx.synchronize(mx.default_stream(mx.Device(mx.DeviceType.cpu, 0)))
    found: list[Finding] = []
    texts: dict[str, str] = {}
    runs = host_module.load().take_results()
    for key, raws in runs:
        name, text, path = _kernels[key]
        texts[name] = text
        found += [finding(name, raw, line_of(path, int(raw["code"]))) for raw in raws]
    return Report(merged(found), len(runs), tuple(texts.items()))


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Raises on leaving the block if what ran in it has faults.

    Raises:
        EmulatorError: with the report.
    """
    take()
    yield
    report = take()
    if report:
        raise EmulatorError(report)
