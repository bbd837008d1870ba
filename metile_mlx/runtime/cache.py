"""The folder of compiled code: private, keyed by all that matters, safe for many processes (X4).

A file appears in it complete or not at all: it is made under a temporary name and then renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from metile_mlx import config
from metile_mlx.errors import BackendError


def folder() -> Path:
    """`config.cache_dir()`, made with mode 0700 where it is missing.

    Raises:
        BackendError: it can't be made, another user owns it, or others may write to it: code that
            someone else can replace is never loaded.
    """
    path = config.cache_dir()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = path.stat()
    except OSError as error:
        raise BackendError(
            f"the cache folder {path} can't be made: {error.strerror}",
            hint="set METILE_CACHE_DIR to a folder of your own",
        ) from error
    if info.st_uid != os.geteuid():
        raise BackendError(
            f"the cache folder {path} belongs to user {info.st_uid}, and this process is user "
            f"{os.geteuid()}; compiled code is only loaded from a folder of one's own",
            hint="set METILE_CACHE_DIR to a folder of your own",
        )
    if stat.S_IMODE(info.st_mode) & 0o022:
        raise BackendError(
            f"other users may write to the cache folder {path} "
            f"(mode {stat.S_IMODE(info.st_mode):04o}, expected 0700)",
            hint=f"chmod 700 {path}, or set METILE_CACHE_DIR to another folder",
        )
    return path


def key(*parts: str) -> str:
    """A name for the combination of `parts`: 32 hexadecimal digits of their SHA-256."""
    digest = hashlib.sha256()
    for part in parts:
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        data = part.encode()
        digest.update(f"{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()[:32]


@functools.cache
def cpu_features() -> str:
    """What the processor can do: code made with -march=native is only right where this is equal."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {line.partition(':')[2].strip()}"
    return f"{platform.machine()} {platform.processor()}"


def publish(filename: str, build: Callable[[Path], Path]) -> Path:
    """The cached file of that name; where it is missing, `build` makes it.

    Args:
        filename: its final name in the folder.
        build: gets a new empty folder and returns the finished file in it. What it raises is
            passed on, and nothing is published.
    """
    target = folder() / filename
    if target.exists():
        return target
    scratch = Path(tempfile.mkdtemp(prefix="build-", dir=target.parent))
    try:
        os.replace(build(scratch), target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def keep_failed(filename: str, text: str) -> Path:
    """Keeps a text that did not compile, for its author to read, and returns where."""
    path = folder() / "failed" / filename
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the lock of that name between processes, so that long builds are done once.

    Where the file system has no locks the work is done twice, which `publish` makes harmless.
    """
    descriptor = os.open(folder() / f"{name}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
