"""Which clang builds emulated kernels: 16 or newer, for `_Float16` and property swizzles."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess

from metile_mlx import config
from metile_mlx.errors import BackendError
from metile_mlx.runtime.toolchain import Toolchain

OLDEST = 16
NEWEST = 23
CANDIDATES = (*(f"clang++-{version}" for version in range(NEWEST, OLDEST - 1, -1)), "clang++")
HINT = "apt-get install clang-19 (the emulator needs clang 16 or newer)"


@functools.cache
def _probe(command: tuple[str, ...]) -> Toolchain | str:
    """The compiler, or why it can't be used."""
    if not command or not shutil.which(command[0]):
        return "not found"
    try:
        shown = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, errors="replace", check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        return f"its --version failed: {error}"
    match = re.search(r"clang version (\d+)", shown)
    if not match:
        return "not clang"
    if int(match[1]) < OLDEST:
        return f"clang {match[1]} is older than {OLDEST}"
    return Toolchain(command, shown.strip().splitlines()[0])


def _words(command: str | None) -> tuple[str, ...]:
    """Empty where a shell could not read it; the cpu backend, which must use it, complains."""
    try:
        return tuple(shlex.split(command or ""))
    except ValueError:
        return ()


def find() -> Toolchain:
    """The compiler `CXX` names where that is a clang new enough, else the newest installed one.

    Raises:
        BackendError: none is installed; says what each candidate is.
    """
    found = _probe(_words(config.compiler()))
    if isinstance(found, Toolchain):
        return found
    reasons = []
    for candidate in CANDIDATES:
        found = _probe((candidate,))
        if isinstance(found, Toolchain):
            return found
        if found != "not found":
            reasons.append(f"{candidate}: {found}")
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise BackendError(f"the emulator needs clang {OLDEST} or newer: none found{why}", hint=HINT)


def available() -> str | None:
    """None where kernels can be emulated on this machine, else the reason (for `doctor`)."""
    if os.name != "posix" or os.uname().sysname != "Linux":
        return "the emulator runs on Linux"
    try:
        find()
    except BackendError as error:
        return str(error)
    return None
