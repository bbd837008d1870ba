"""Which C++ compiler makes the CPU kernels, and with which flags (SPEC X4, X6)."""

from __future__ import annotations

import functools
import os
import platform
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from metile_mlx import config
from metile_mlx.errors import BackendError
from metile_mlx.runtime import cache

# The faster one first: clang++ makes the lane loops of f16 kernels about twice as fast.
CANDIDATES = ("clang++", "g++", "c++")

_NATIVE = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
# Values are IEEE's: no contraction, no reassociation, wrapping integers. Not -ffast-math, which
# also flushes subnormals in the whole process. The last two only drop errno and trap flags.
KERNEL_FLAGS = (
    "-std=gnu++14 -O3 -ffp-contract=off -fwrapv -fno-math-errno -fno-trapping-math "
    "-fno-exceptions -fno-rtti -fno-asynchronous-unwind-tables -fno-strict-aliasing "
    f"{_NATIVE} -fPIC -shared -pipe -w"
).split()

HEADERS = ("metile_cpu.h", "metile_cpu_math.h", "metile_cpu_trig.h")
# Those that a kernel includes itself.
MORE_HEADERS = ("metile_cpu_multiply.h",)
PROBE = """
extern "C" void metile_probe(const uint16_t* in, float* out) {
  for (int i = 0; i < 32; ++i) out[i] = metile_exp(metile_f16_to_f32(in[i]));
}
"""


class CompilerFailed(Exception):
    """The compiler refused a text; `str()` is what it said."""


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler that was seen to work.

    Attributes:
        command: the compiler and its own arguments, as `CXX` gives them.
        version: first line of its `--version`.
    """

    command: tuple[str, ...]
    version: str

    @property
    def name(self) -> str:
        """What a user calls it."""
        return shlex.join(self.command)

    def identity(self) -> str:
        """All that decides what it makes of a text: part of every cache key."""
        path = os.path.realpath(shutil.which(self.command[0]) or self.command[0])
        return "\n".join([*self.command, path, self.version, *self.own_flags, cache.cpu_features()])

    def run(self, arguments: Sequence[str]) -> None:
        """Runs the compiler.

        Raises:
            CompilerFailed: it exited with an error.
        """
        try:
            done = subprocess.run(
                [*self.command, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            raise CompilerFailed(f"{self.name}: {error.strerror}") from error
        if done.returncode:
            raise CompilerFailed(done.stderr.strip() or f"exit status {done.returncode}")

    def compile_kernel(self, text: str, folder: Path) -> Path:
        """Makes a shared object of `text` in `folder`.

        Raises:
            CompilerFailed: with the compiler's message.
        """
        source, shared = folder / "kernel.cpp", folder / "kernel.so"
        source.write_text(text, encoding="utf-8")
        self.run([*KERNEL_FLAGS, *self.own_flags, str(source), "-o", str(shared)])
        return shared

    @property
    def own_flags(self) -> tuple[str, ...]:
        """What only this compiler understands.

        Kernels use nothing of the C++ library; looking it up is a sixth of a build with clang 14.
        g++ threads the jumps of the f16 conversions apart and then vectorises no loop over them:
        x + x of f16 took 7 times as long with g++ 12.
        """
        if self.is_clang:
            return ("-nostdlib++",)
        return ("-fno-thread-jumps",) if self.version else ()

    @property
    def is_clang(self) -> bool:
        """Whether it is a clang, Apple's included."""
        return "clang" in self.version.lower()


def included(text: str) -> tuple[str, ...]:
    """The headers of ours that a kernel's text includes, beside those that all have."""
    return tuple(name for name in MORE_HEADERS if f'#include "{name}"' in text)


@functools.cache
def prelude(more: tuple[str, ...] = ()) -> str:
    """The text of the headers, which stands before every kernel, and of `more` that it includes."""
    folder = Path(__file__).parent
    texts = [(folder / name).read_text(encoding="utf-8") for name in (*HEADERS, *more)]
    lines = "".join(texts).splitlines()
    return "\n".join([line for line in lines if not line.startswith('#include "')] + [""])


def find() -> Toolchain:
    """The compiler `CXX` names, else the first of `CANDIDATES` that works.

    Raises:
        BackendError: none works; says why for each that was tried. A `CXX` that is set is never
            replaced by another.
    """
    chosen = config.compiler()
    if chosen:
        try:
            found = _examine(tuple(shlex.split(chosen)))
        except ValueError as error:
            found = f"it can't be read as a command: {error}"
        if isinstance(found, str):
            raise BackendError(
                f"the C++ compiler CXX={chosen} can't be used: {found}",
                hint="set CXX to a working C++ compiler, or unset it",
            )
        return found
    reasons = []
    for candidate in CANDIDATES:
        found = _examine((candidate,))
        if isinstance(found, Toolchain):
            return found
        reasons.append(f"{candidate}: {found}")
    raise BackendError(
        f"no C++ compiler works ({'; '.join(reasons)})",
        hint="install g++ or clang++, or set CXX",
    )


def _examine(command: tuple[str, ...]) -> Toolchain | str:
    """The compiler, or why it can't be used."""
    if not command or not shutil.which(command[0]):
        return "not found"
    return _probe(command, str(cache.folder()))


@functools.cache
def _probe(command: tuple[str, ...], _folder: str) -> Toolchain | str:
    """Runs the compiler once per cache folder on a text like a kernel's."""
    try:
        shown = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, errors="replace", check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        return f"its --version failed: {error}"
    lines = shown.stdout.strip().splitlines()
    toolchain = Toolchain(command, lines[0] if lines else "")
    text = prelude() + PROBE
    name = f"probe-{cache.key(text, ' '.join(KERNEL_FLAGS), toolchain.identity())}.so"
    try:
        cache.publish(name, functools.partial(toolchain.compile_kernel, text))
    except CompilerFailed as error:
        return f"it fails on a small kernel: {error}"
    return toolchain
