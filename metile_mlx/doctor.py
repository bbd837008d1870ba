"""What this machine can run, and why not the rest: `python -m metile_mlx doctor` (SPEC X6).

Every fact is asked of the code that decides it at run time; nothing here decides anything. The
first run on a machine builds the module of the cpu backend, which takes seconds.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from metile_mlx import config
from metile_mlx.backends import BACKENDS
from metile_mlx.emulator import toolchain as emulator_toolchain
from metile_mlx.errors import MetileError
from metile_mlx.runtime import cache, cpu_module, extension, toolchain
from metile_mlx.runtime.backend import Backend, wanted
from metile_mlx.runtime.optional import MLX_MISSING, NANOBIND_MISSING, mx, nanobind
from metile_mlx.target import BY_NAME, MAX_TILE, SIMD_WIDTH

# Variable -> what it does. Other METILE_* variables are shown as unknown: likely misspelt.
VARIABLES = {
    "METILE_AUTOTUNE": "1 measures the layouts of rows in metile.nn",
    "METILE_BACKEND": "backend of calls that name none",
    "METILE_CACHE_DIR": "folder of compiled code",
    "METILE_DUMP": "steps to print",
    "METILE_DUMP_DIR": "folder that receives the dumps",
    "METILE_VERIFY": "0 turns the verifiers off, 1 is the default, full adds the longest",
    "METILE_VERBOSE": "1 tells on standard error what is tuned",
    "XDG_CACHE_HOME": "parent of the cache folder",
    "CXX": "C++ compiler of the cpu backend",
}


@dataclass(frozen=True)
class BackendState:
    """One backend; `reason` is why it can't run, empty when it can."""

    name: str
    available: bool
    reason: str


@dataclass(frozen=True)
class CompilerState:
    """One C++ compiler. `used` marks the one that makes the kernels; `version` is known for it."""

    command: str
    path: str
    used: bool
    version: str
    note: str


@dataclass(frozen=True)
class CacheState:
    """The folder of compiled code. `bytes` and `entries` count files; no `problem`: empty."""

    path: str
    mode: str
    bytes: int
    entries: int
    problem: str


@dataclass(frozen=True)
class DefaultBackend:
    """The backend of a call that names none.

    Attributes:
        name: empty where no backend can run.
        reason: why this one.
        error: set where the environment asks for what can't run.
    """

    name: str
    reason: str
    error: str


@dataclass(frozen=True)
class Diagnosis:
    """All the doctor finds; `to_dict()` is what `--json` prints.

    Attributes:
        versions: name -> version, or why there is none.
        machine: processor, cores and threads.
        compilers: of the cpu backend.
        emulator_compiler: a clang of its own; `used` is False where there is none.
        limits: target -> limit -> value; None where there is no limit.
        environment: variables in force -> (value, meaning).
    """

    versions: Mapping[str, str]
    machine: Mapping[str, str | int]
    backends: Sequence[BackendState]
    default: DefaultBackend
    compilers: Sequence[CompilerState]
    emulator_compiler: CompilerState
    cache: CacheState
    limits: Mapping[str, Mapping[str, int | None]]
    environment: Mapping[str, tuple[str, str]]

    @property
    def ok(self) -> bool:
        """False when METILE_BACKEND names a backend that can't run, or none at all."""
        return not self.default.error

    def to_dict(self) -> dict[str, object]:
        """Plain lists, dicts, strings and numbers, as `json.dumps` takes them."""
        plain = asdict(self)
        plain["ok"] = self.ok
        return plain


def examine(backends: Mapping[str, Backend] = BACKENDS) -> Diagnosis:
    """Look at everything. Raises nothing: what is wrong is part of the findings."""
    states = [_backend_state(name, backends.get(name)) for name in config.BACKENDS]
    return Diagnosis(
        versions=versions(),
        machine=_machine({state.name for state in states if state.available}),
        backends=states,
        default=_default(states),
        compilers=_compilers(),
        emulator_compiler=_emulator_compiler(),
        cache=_cache(),
        limits=_limits(),
        environment=_environment(),
    )


def _backend_state(name: str, backend: Backend | None) -> BackendState:
    reason = backend.available() if backend else f"the {name} backend is not supported yet"
    return BackendState(name, reason is None, reason or "")


def _default(states: Sequence[BackendState]) -> DefaultBackend:
    try:
        name, named = wanted(None, None)
    except MetileError as error:
        return DefaultBackend("", "", str(error))
    why = f"METILE_BACKEND={name}" if named else f"MLX's default device is {_device()}"
    reasons = {state.name: state.reason for state in states}
    reason = reasons[name]
    if not reason:
        return DefaultBackend(name, why, "")
    if named:
        return DefaultBackend("", why, f"METILE_BACKEND={name}, which can't run here: {reason}")
    if reasons["reference"]:
        return DefaultBackend("", f"no backend can run here: {reasons['reference']}", "")
    return DefaultBackend("reference", f"{why}, and {name} can't run here", "")


def _device() -> str:
    return "missing" if MLX_MISSING else str(mx.default_device())


def _compilers() -> list[CompilerState]:
    """What `CXX` names, else each candidate; the first that works is used."""
    chosen = config.compiler()
    commands = [chosen] if chosen else list(toolchain.CANDIDATES)
    problem, used, version = "", "", ""
    try:
        found = toolchain.find()
        used, version = found.name, found.version
    except MetileError as error:
        problem = error.message
    states = []
    for command in commands:
        path = _program(command)
        is_used = bool(used) and (bool(chosen) or command == used)
        note = _compiler_note(path, is_used, bool(chosen), problem)
        states.append(CompilerState(command, path, is_used, version if is_used else "", note))
    return states


def _emulator_compiler() -> CompilerState:
    try:
        found = emulator_toolchain.find()
    except MetileError as error:
        return CompilerState("", "", False, "", str(error))
    return CompilerState(found.name, _program(found.name), True, found.version, "used")


def _program(command: str) -> str:
    """Path of the program a command starts; empty where there is none."""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    return shutil.which(words[0]) or "" if words else ""


def _compiler_note(path: str, used: bool, by_name: bool, problem: str) -> str:
    if used:
        why = "named by CXX" if by_name else "the first of the list that works"
        return f"used: {why}; it compiled a small kernel"
    if not path:
        return problem if by_name else "not found"
    # Only the first that works is probed, so one that follows it is merely there.
    return problem or "found, not used"


def _cache() -> CacheState:
    path = config.cache_dir()
    problem = ""
    try:
        path = cache.folder()
    except MetileError as error:
        problem = error.message
    mode, total, entries = "", 0, 0
    try:
        mode = f"{stat.S_IMODE(path.stat().st_mode):04o}"
        for file in path.iterdir():
            if file.is_file():
                entries, total = entries + 1, total + file.stat().st_size
    except OSError as error:
        problem = problem or f"{path} can't be read: {error.strerror}"
    return CacheState(str(path), mode, total, entries, problem)


def _limits() -> dict[str, dict[str, int | None]]:
    return {
        name: {
            "threads per threadgroup": target.max_threads,
            "bytes of threadgroup memory": target.threadgroup_bytes,
            "buffers": target.max_buffers,
            "threads per simdgroup": SIMD_WIDTH,
            "elements per tile": MAX_TILE,
        }
        for name, target in BY_NAME.items()
    }


def _environment() -> dict[str, tuple[str, str]]:
    unknown = sorted(name for name in os.environ if name.startswith("METILE_"))
    names = [*VARIABLES, *(name for name in unknown if name not in VARIABLES)]
    return {
        name: (os.environ[name], VARIABLES.get(name, "unknown: nothing reads it"))
        for name in names
        if os.environ.get(name)
    }


def versions() -> dict[str, str]:
    """Of this package and what it runs on, or why there is none."""
    try:
        own = importlib.metadata.version("metile-mlx")
    except importlib.metadata.PackageNotFoundError:
        own = "not installed: running from a source tree"
    python = f"{platform.python_version()} ({platform.python_implementation()})"
    return {
        "metile-mlx": own,
        "python": python,
        "mlx": extension.MLX_VERSION or f"missing: {MLX_MISSING}",
        "nanobind": f"missing: {NANOBIND_MISSING}"
        if NANOBIND_MISSING
        else str(nanobind.__version__),
        "numpy": np.__version__,
    }


def _machine(available: set[str]) -> dict[str, str | int]:
    cores = os.cpu_count() or 1
    found: dict[str, str | int] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores,
    }
    if "cpu" in available:
        found["threads of the cpu backend"] = cpu_module.load(toolchain.find()).thread_count()
    return found


def _processor() -> str:
    """The model MLX names, else what the system says."""
    if not MLX_MISSING:
        name = mx.device_info().get("device_name")
        if name:
            return str(name)
    return platform.processor() or platform.machine()


def to_json(diagnosis: Diagnosis) -> str:
    """The findings as JSON."""
    return json.dumps(diagnosis.to_dict(), indent=2)


def render(diagnosis: Diagnosis) -> str:
    """The findings as text."""
    lines: list[str] = []
    _section(lines, "versions", list(diagnosis.versions.items()))
    _section(lines, "machine", [(k, str(v)) for k, v in diagnosis.machine.items()])
    _section(
        lines,
        "backends",
        [(b.name, "available" if b.available else f"no: {b.reason}") for b in diagnosis.backends],
    )
    default = diagnosis.default
    lines.append(
        f"default backend: none: {default.error}"
        if default.error
        else f"default backend: {default.name or 'none'}, because {default.reason}"
    )
    _section(
        lines,
        "C++ compilers",
        [
            (c.command, "; ".join(part for part in (c.note, c.version, c.path) if part))
            for c in diagnosis.compilers
        ],
    )
    clang = diagnosis.emulator_compiler
    shown = "; ".join(part for part in (clang.note, clang.version, clang.path) if part)
    _section(lines, "clang of the emulator", [(clang.command or "none", shown)])
    found = diagnosis.cache
    _section(
        lines,
        "cache",
        [
            ("folder", found.path),
            ("permissions", found.mode or "unknown"),
            ("files", f"{found.entries}, {found.bytes / 2**20:.1f} MiB"),
            *([("problem", found.problem)] if found.problem else []),
        ],
    )
    _section(
        lines,
        "limits",
        [
            (
                name,
                ", ".join(f"{v if v is not None else 'any number of'} {k}" for k, v in own.items()),
            )
            for name, own in diagnosis.limits.items()
        ],
    )
    rows = [(name, f"{value}  ({what})") for name, (value, what) in diagnosis.environment.items()]
    _section(lines, "environment", rows or [("none", "no variable that matters is set")])
    return "\n".join(lines)


def _section(lines: list[str], title: str, rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in rows)
    lines.append(f"{title}:")
    for name, text in rows:
        first, *rest = text.splitlines() or [""]
        lines.append(f"  {name:<{width}}  {first}")
        lines += [f"  {'':<{width}}  {line}" for line in rest]
