"""Every environment variable this package reads, typed. Read at use, never at import."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from metile_mlx.errors import MetileError

BACKENDS = ("metal", "cuda", "cpu", "emulator", "reference")
VERIFY = ("0", "1", "full")
_BACKEND, _COMPILER = (os.environ.encodekey(name) for name in ("METILE_BACKEND", "CXX"))


def backend() -> str | None:
    """`METILE_BACKEND`: the backend to use when a call names none (SPEC X6).

    Raises:
        MetileError: the value names no backend.
    """
    name = os.environ.get("METILE_BACKEND", "").strip()
    if not name:
        return None
    if name not in BACKENDS:
        raise MetileError(
            f"METILE_BACKEND={name!r} names no backend; expected one of {', '.join(BACKENDS)}"
        )
    return name


def backend_texts() -> tuple[object, object]:
    """`METILE_BACKEND` and `CXX` as they stand: what was answered for the same two still holds.

    `os.environ.get` takes a microsecond to find that a variable is not set, and each call of a
    kernel asks for both: the dictionary that it looks into is asked directly, where there is one.
    """
    texts: Any = getattr(os.environ, "_data", None)
    if texts is None:
        return os.environ.get("METILE_BACKEND"), os.environ.get("CXX")
    return texts.get(_BACKEND), texts.get(_COMPILER)


def dump() -> frozenset[str]:
    """`METILE_DUMP`: comma-separated steps to print: stages, passes, `msl`, `cpp` or `all`."""
    return frozenset(
        part.strip() for part in os.environ.get("METILE_DUMP", "").split(",") if part.strip()
    )


def dump_dir() -> Path | None:
    """`METILE_DUMP_DIR`: folder that receives the dumps instead of standard error."""
    value = os.environ.get("METILE_DUMP_DIR", "")
    return Path(value) if value else None


def verify() -> str:
    """`METILE_VERIFY`: `0` turns the verifiers off, `1` is the default, `full` adds the longest.

    Those are: both programs of the lowering to threads are read, thread by thread, and compared;
    where threads hold one value each, what they send and what later passes keep is followed too.

    Raises:
        MetileError: another value.
    """
    level = os.environ.get("METILE_VERIFY", "").strip() or "1"
    if level not in VERIFY:
        raise MetileError(f"METILE_VERIFY={level!r}; expected one of {', '.join(VERIFY)}")
    return level


def cache_dir() -> Path:
    """`METILE_CACHE_DIR`, else `$XDG_CACHE_HOME/metile_mlx`, else `~/.cache/metile_mlx`."""
    value = os.environ.get("METILE_CACHE_DIR", "")
    if value:
        return Path(value)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "metile_mlx"


def compiler() -> str | None:
    """`CXX`: the C++ compiler of the cpu backend; None leaves the choice to the backend."""
    return os.environ.get("CXX", "").strip() or None


def verbose() -> bool:
    """`METILE_VERBOSE`: `1` says on standard error what takes time, on a terminal or not.

    Raises:
        MetileError: neither that nor `0`.
    """
    return _switch("METILE_VERBOSE")


def autotune() -> bool:
    """`METILE_AUTOTUNE`: `1` measures the layouts of rows in `metile.nn` where they are first met.

    What a process has met before it is set stays as it is.

    Raises:
        MetileError: neither that nor `0`.
    """
    return _switch("METILE_AUTOTUNE")


def _switch(name: str) -> bool:
    value = os.environ.get(name, "").strip() or "0"
    if value not in ("0", "1"):
        raise MetileError(f"{name}={value!r}; expected 0 or 1")
    return value == "1"
