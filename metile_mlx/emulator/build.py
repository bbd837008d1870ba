"""Shared objects of emulated kernels, and of the runtime they are linked to; all cached."""

from __future__ import annotations

import functools
import os
import platform
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from metile_mlx.emulator import front, toolchain
from metile_mlx.emulator import text as texts
from metile_mlx.errors import CompileError
from metile_mlx.locks import Lock
from metile_mlx.runtime import cache
from metile_mlx.runtime.toolchain import CompilerFailed, Toolchain

HERE = Path(__file__).parent
HEADERS = HERE / "headers"
RUNTIME = (
    "switch.cpp",
    "worker.cpp",
    "checker.cpp",
    "findings.cpp",
    "callbacks.cpp",
    "run.cpp",
    "measure.cpp",
    "print.cpp",
)

_NATIVE = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
RUNTIME_FLAGS = f"-std=c++17 -O2 {_NATIVE} -fPIC -fvisibility=default -w".split()
KERNEL_FLAGS = (
    f"-std=c++17 {_NATIVE} -fPIC -fvisibility=hidden -fdeclspec -fsigned-char -fwrapv "
    "-fno-strict-aliasing -fno-exceptions -fno-rtti -fno-threadsafe-statics -nostdinc++ "
    "-fno-math-errno -Xclang -ffloat16-excess-precision=none -w -Wno-c++11-narrowing "
    "-fno-caret-diagnostics -fno-asynchronous-unwind-tables "
    "-fstack-clash-protection"
).split()
FAST_FLAGS = ("-O2",)
CHECK_COPIES = "-DMETILE_CHECK_COPIES"
CHECK_FLAGS = (
    f"-O1 -DMETILE_CHECKED {CHECK_COPIES} -gdwarf-4 -gline-tables-only "
    "-fno-vectorize -fno-slp-vectorize -fsanitize=thread,alignment,array-bounds "
    "-mllvm -tsan-instrument-func-entry-exit=0 -mllvm -tsan-instrument-atomics=0 "
    "-mllvm -tsan-instrument-read-before-write=1"
).split()
# What Metal's math modes allow the compiler; which of it Apple's uses is not known.
MATH_FLAGS = {
    "safe": ("-ffp-contract=off",),
    "relaxed": ["-ffp-contract=fast", "-fno-signed-zeros", "-freciprocal-math"],
    "fast": ["-ffp-contract=fast", "-fno-signed-zeros", "-freciprocal-math", "-fassociative-math"],
}


# Kernels per compiler run of `prebuild`: enough to share what a run costs by itself.
BATCH = 50


@dataclass(frozen=True)
class Built:
    """A kernel that can be loaded.

    Attributes:
        path: its shared object.
        symbol: the function `metile_u32 symbol(metile_launch*)` in it.
        signature: the kernel's parameters.
    """

    path: Path
    symbol: str
    signature: texts.Signature


@functools.cache
def _header_text() -> str:
    files = sorted(path for path in HEADERS.rglob("*") if path.is_file())
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


@functools.cache
def _runtime_text() -> str:
    files = sorted((HERE / "runtime").glob("*"))
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def runtime_library(chain: Toolchain) -> Path:
    """The shared object with fibers and checker that every kernel is linked to.

    Raises:
        CompileError: the compiler refused it.
    """
    key = cache.key(_runtime_text(), _header_text(), " ".join(RUNTIME_FLAGS), chain.identity())
    with cache.locked("metile_emulator_runtime"):
        return cache.publish(f"metile_emulator-{key}.so", functools.partial(_build_runtime, chain))


def _build_runtime(chain: Toolchain, folder: Path) -> Path:
    objects = [str(folder / f"{name}.o") for name in RUNTIME]
    flags = [*RUNTIME_FLAGS, f"-I{HEADERS / 'msl'}"]

    def compile_one(name: str, target: str) -> None:
        chain.run([*flags, "-c", str(HERE / "runtime" / name), "-o", target])

    shared = folder / "runtime.so"
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, RUNTIME, objects))
        chain.run(["-shared", *objects, "-lpthread", "-ldl", "-o", str(shared)])
    except CompilerFailed as error:
        raise CompileError(f"{chain.name} can't build the emulator's runtime:\n{error}") from error
    return shared


def _precompiled(chain: Toolchain, flags: Sequence[str]) -> Path:
    """The headers, parsed once for all kernels with these flags: half the time of a build."""
    key = cache.key(_header_text(), str(HEADERS), " ".join(flags), chain.identity())

    def make(folder: Path) -> Path:
        target = folder / "headers.pch"
        header = HEADERS / "msl" / "mlx_utils.h"
        chain.run(
            [*flags, f"-I{HEADERS}", "-Xclang", "-fno-pch-timestamp", "-x", "c++-header",
             str(header), "-o", str(target)]
        )  # fmt: skip
        return target

    return cache.publish(f"emulator-headers-{key}.pch", make)


def translation_unit(name: str, text: str, symbol: str) -> tuple[str, texts.Signature]:
    """The C++ of a kernel's text and what its parameters are."""
    signature = texts.signature(name, text)
    parts = [
        '#include "msl/mlx_utils.h"\n#line 1 "kernel.metal"\n',
        texts.rewrite(text),
        texts.entry(signature, symbol),
    ]
    return "".join(parts), signature


_lock = Lock()
_built: dict[str, Built] = {}


def build(name: str, text: str, *, checked: bool, math_mode: str | None = "safe") -> Built:
    """The shared object of kernel `name` in the text MLX recorded for it.

    Raises:
        BackendError: no compiler that can.
        CompileError: Apple's compiler rejects the text (`front`), or the emulator can't compile
            it; shows the compiler's message with the lines of the text.
    """
    chain = toolchain.find()
    flags = _flags(checked, math_mode)
    library = runtime_library(chain)
    key = _key(name, text, flags, library, chain)
    with _lock:
        if key in _built:
            return _built[key]
    symbol = f"metile_emulate_{key}"
    source, signature = translation_unit(name, text, symbol)

    def make(folder: Path) -> Path:
        front.require(text, name)
        return _build_kernel(chain, flags, library, source, text, folder)

    path = cache.publish(f"emulated-{key}.so", make)
    with _lock:
        return _built.setdefault(key, Built(path, symbol, signature))


def _flags(checked: bool, math_mode: str | None) -> list[str]:
    mode = MATH_FLAGS[math_mode or "safe"]
    return [*KERNEL_FLAGS, *(CHECK_FLAGS if checked else FAST_FLAGS), *mode]


def _key(name: str, text: str, flags: Sequence[str], library: Path, chain: Toolchain) -> str:
    return cache.key(name, text, " ".join(flags), _header_text(), library.name, chain.identity())


def build_many(kernels: Sequence[tuple[str, str, bool]]) -> list[Built]:
    """As `build` for each (name, text, checked), several compiler runs at once."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda each: build(each[0], each[1], checked=each[2]), kernels))


def _build_kernel(
    chain: Toolchain, flags: Sequence[str], library: Path, source: str, text: str, folder: Path
) -> Path:
    unit, target, shared = folder / "kernel.cpp", folder / "kernel.o", folder / "kernel.so"
    unit.write_text(source, encoding="utf-8")
    try:
        try:
            _compile(chain, flags, unit, target)
        except CompilerFailed:
            # Vectors whose copies are checked can't be copied as members of a union.
            if CHECK_COPIES not in flags:
                raise
            _compile(chain, [flag for flag in flags if flag != CHECK_COPIES], unit, target)
        chain.run(["-shared", "-nostdlib++", str(target), str(library), "-lm", "-o", str(shared)])
    except CompilerFailed as error:
        message = "\n".join(str(error).splitlines()[:30])
        raise CompileError(
            f"the emulator can't compile the kernel:\n{message}\n{numbered(text)}"
        ) from error
    return shared


def _compile(chain: Toolchain, flags: Sequence[str], unit: Path, target: Path) -> None:
    arguments = [*flags, f"-I{HEADERS}", "-c", str(unit), "-o", str(target)]
    try:
        chain.run(["-include-pch", str(_precompiled(chain, flags)), *arguments])
    except CompilerFailed as error:
        # The package was replaced while this process ran.
        if "precompiled header" not in str(error):
            raise
        chain.run(arguments)


def numbered(text: str) -> str:
    """The text with line numbers, as reports refer to it."""
    lines = text.splitlines()
    width = len(str(len(lines)))
    return "\n".join(f"{number:>{width}} | {line}" for number, line in enumerate(lines, 1))


def prebuild(kernels: Sequence[tuple[str, str]], *, checked: bool, math_mode: str = "safe") -> None:
    """Puts the shared objects of many kernels into the cache, `BATCH` of them per compiler run.

    Args:
        kernels: (name, text) of texts that `emit_msl` wrote: each goes into a namespace of its own,
            so they may not define macros.

    Raises:
        BackendError, CompileError: as `build`, for the first kernel that is refused.
    """
    chain = toolchain.find()
    flags = _flags(checked, math_mode)
    library = runtime_library(chain)
    keys = {_key(name, text, flags, library, chain): (name, text) for name, text in kernels}
    folder = cache.folder()
    missing = sorted(key for key in keys if not (folder / f"emulated-{key}.so").exists())
    groups = [missing[start : start + BATCH] for start in range(0, len(missing), BATCH)]

    def build_group(group: Sequence[str]) -> None:
        parts = ['#include "msl/mlx_utils.h"\n']
        for key in group:
            # The includes are there already; within the namespace they would be empty.
            unit, _ = translation_unit(*keys[key], f"metile_emulate_{key}")
            parts.append(f"namespace metile_{key} {{\n{unit}}}\n")
        compiled = functools.partial(_build_kernel, chain, flags, library, "".join(parts), "")
        try:
            front.require(in_namespaces([keys[key][1] for key in group]))
            shared = cache.publish(f"emulated-batch-{cache.key(*group)}.so", compiled)
        except CompileError:
            for key in group:
                build(*keys[key], checked=checked, math_mode=math_mode)
            return
        for key in group:
            cache.publish(f"emulated-{key}.so", functools.partial(_linked, shared))
        shared.unlink(missing_ok=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build_group, groups))


def in_namespaces(texts: Sequence[str]) -> str:
    """Many texts as one: the strict front takes a tenth of the time for each."""
    return "".join(f"namespace n{i} {{\n{text}\n}}\n" for i, text in enumerate(texts))


def _linked(shared: Path, folder: Path) -> Path:
    """The file under another name."""
    target = folder / "kernel.so"
    try:
        os.link(shared, target)
    except OSError:
        shutil.copy(shared, target)
    return target
