"""Graphs for another machine: a function and its Metal kernels in a file (SPEC X2, F34).

What MLX 0.32.4 does, each fact held by a test:

- `mx.export_function` traces anew. A function under `mx.compile` is inlined into that trace, never
  taken from its cache, and the trace does not enter the cache: a function compiled for the CPU
  earlier exports with Metal kernels, and still runs on the CPU afterwards.
- `mx.custom_function` with a vjp, jvp or vmap rule, and `mx.checkpoint`, become a CustomTransforms
  primitive, which MLX can't write; nor can it write an extension's primitive. A failed export
  leaves a broken file behind, so ours writes aside and renames.
- The callback says nothing about streams. On a machine without Metal every MLX operation is
  recorded on a CPU stream and stays there; a custom kernel is recorded on a GPU stream all the
  same. MLX's fast operations (`mx.fast.rms_norm`, ...) traced for the CPU are recorded as their
  plain expansion.
- A file with a custom kernel holds a GPU stream, so `mx.import_function` itself raises "Cannot make
  gpu stream without gpu backend" on a machine without a GPU: such a file loads on a Mac only.
- `shapeless=True` is accepted for custom kernels, but their grid and output shapes stay those of
  the trace; and for the operations that stand for a kernel, but the file can't be used.
"""

from __future__ import annotations

import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from metile_mlx.errors import MetileError, UnsupportedError
from metile_mlx.runtime.metal import available
from metile_mlx.runtime.optional import mx

TARGETS = ("metal", "reference")
KERNEL_PRIMITIVES = ("CustomKernel",)


@dataclass
class _Trace:
    """A function that is traced for a target, and whether kernels were among its operations."""

    target: str
    has_kernels: bool = False


_trace: ContextVar[_Trace | None] = ContextVar("metile_export_trace", default=None)


class ExportWarning(UserWarning):
    """An exported graph that works but will not run wholly on the GPU."""


def active_target() -> str | None:
    """The target kernels must be launched for while a function is traced for a file, else None.

    While it is not None gradient wrapping is off, as MLX can't write `mx.custom_function`.
    """
    trace = _trace.get()
    return None if trace is None else trace.target


def note_kernel() -> None:
    """Called where a kernel becomes plain operations, which the graph does not tell apart."""
    trace = _trace.get()
    if trace is not None:
        trace.has_kernels = True


@contextmanager
def exporting(target: str = "metal") -> Iterator[_Trace]:
    """Kernels called inside are launched for `target`, without gradient wrapping (a contextvar).

    Raises:
        UnsupportedError: the target's kernels can't be written to a file.
    """
    if target not in TARGETS:
        raise UnsupportedError(
            f"[export] target {target!r} can't be exported; expected one of {', '.join(TARGETS)}"
        )
    trace = _Trace(target)
    token = _trace.set(trace)
    try:
        yield trace
    finally:
        _trace.reset(token)


def primitives(
    fn: Callable[..., Any], *examples: Any, target: str = "metal", **kwargs: Any
) -> list[str]:
    """Names of the primitives in the graph of `fn`, traced for `target`, in execution order.

    Raises:
        UnsupportedError: the graph holds a primitive that MLX can't write.
    """
    return _traced(fn, examples, target, kwargs)[0]


def _traced(
    fn: Callable[..., Any], examples: Sequence[Any], target: str, kwargs: Mapping[str, Any]
) -> tuple[list[str], bool]:
    """Names of the primitives, and whether any kernel is among them, as one or as several."""
    names: list[str] = []

    def record(event: Mapping[str, Any]) -> None:
        if event["type"] == "primitive":
            names.append(event["name"])

    with exporting(target) as trace, _explained():
        mx.export_function(record, fn, *examples, **kwargs)
    return names, trace.has_kernels or any(name in KERNEL_PRIMITIVES for name in names)


def export(
    path: str | os.PathLike[str],
    fn: Callable[..., Any],
    *examples: Any,
    target: str = "metal",
    shapeless: bool = False,
    metadata: str | None = None,
    **kwargs: Any,
) -> None:
    """Write the graph of `fn(*examples, **kwargs)` to `path` for `mx.import_function` (SPEC X2).

    The function is traced twice: to inspect the graph, and to write it.

    Args:
        path: the file, usually `*.mlxfn`. An existing file is replaced only by a complete one.
        fn: a function of MLX arrays that returns arrays.
        examples: arrays of the shapes and dtypes the graph is for; only those are used.
        target: `metal`: our kernels go in as Metal kernels; `reference`: as plain MLX operations.
        shapeless: as for `mx.export_function`; not with kernels, for either target.
        metadata: text to store beside the function.

    Raises:
        UnsupportedError: the graph holds a primitive that can't be written, or shapeless
            kernels.
        MetileError: the file can't be written.

    Warns:
        ExportWarning: the trace ran without a Metal device, so the MLX operations in it keep a CPU
            stream.
    """
    names, has_kernels = _traced(fn, examples, target, kwargs)
    if shapeless and has_kernels:
        raise UnsupportedError(
            "[export] shapeless=True with kernels, whose grid and output shapes are fixed by the "
            "trace",
            hint="export once per shape",
        )
    final = os.fspath(path)
    folder, file = os.path.split(os.path.abspath(final))
    try:
        handle, aside = tempfile.mkstemp(prefix=f".{file}.", dir=folder)
    except OSError as error:
        raise MetileError(f"[export] can't write {final!r}: {error.strerror}") from error
    os.close(handle)
    try:
        with exporting(target), _explained():
            mx.export_function(
                aside, fn, *examples, shapeless=shapeless, metadata=metadata, **kwargs
            )
        # mkstemp makes files private; an exported model is an ordinary file.
        os.chmod(aside, 0o644)
        os.replace(aside, final)
    finally:
        if os.path.exists(aside):
            os.unlink(aside)
    _warn_of_cpu_streams(names)


def _warn_of_cpu_streams(names: Sequence[str]) -> None:
    others = Counter(name for name in names if name not in KERNEL_PRIMITIVES)
    if not others or available() is None:
        return
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(others.items()))
    warnings.warn(
        f"traced without a Metal device: {sum(others.values())} MLX operations keep a CPU stream "
        f"and will run on the CPU of the machine that imports the graph: {listed}. Operations of "
        "mx.fast are recorded as their plain expansion. Export on a Mac to have both on the GPU.",
        ExportWarning,
        stacklevel=3,
    )


_HINTS = {
    "CustomTransforms": "leave mx.custom_function and mx.checkpoint out of the exported function",
}
_DEFAULT_HINT = (
    "don't force backend='cpu' inside an exported function: only Metal kernels can be written"
)


@contextmanager
def _explained() -> Iterator[None]:
    """Turn MLX's refusals of a primitive into our error; any other error passes."""
    try:
        yield
    except ValueError as error:
        refused = re.search(r"Unable to (?:get state for|serialize) primitive (\w+)", str(error))
        untraced = re.search(r"\[Primitive::(\w+)\] Not implemented for CustomKernel", str(error))
        if refused is not None:
            name = refused[1]
            raise UnsupportedError(
                f"[export] the function contains {name}, which MLX can't write to a file",
                hint=_HINTS.get(name, _DEFAULT_HINT),
            ) from error
        if untraced is not None:
            raise UnsupportedError(
                f"[export] the function takes the {untraced[1]} of a Metal kernel, which MLX does "
                "not know, and ours is a custom_function that it can't write to a file",
                hint="use metile.vmap"
                if untraced[1] == "vmap"
                else "export the function without its gradient, or with target='reference'",
            ) from error
        raise
