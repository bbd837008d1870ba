"""Runs what the verifiers accept: as the MSL that MLX generates, under the checker, many at once.

A mutant is told from the program it was made from by its results, bit by bit, in every order of
threads that the emulator tries, or by a finding of the checker.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from metile_mlx import emulator
from metile_mlx.backends import BACKENDS
from metile_mlx.context import Schedule
from metile_mlx.emit.msl import emit_msl
from metile_mlx.emit.source import KernelSource
from metile_mlx.emulator import build
from metile_mlx.errors import MetileError
from metile_mlx.ir.core import Func
from metile_mlx.runtime.record import CapturedKernel
from tests.mutation.corpus import Program
from tests.support.emulated import Launch

SCHEDULES = 6


@dataclass(frozen=True)
class Text:
    """A program as text, ready to launch."""

    launch: Launch
    captured: CapturedKernel

    @property
    def statements(self) -> str:
        """What it does: the text without the kernel's name."""
        source = self.launch.request.source
        assert source is not None
        return f"{source.header}\n{source.body}"


@dataclass(frozen=True)
class Outcome:
    """What a run gave: the bits of each output, and what the checker found."""

    bits: tuple[bytes, ...]
    finding: str


def text(program: Program, func: Func) -> Text | str:
    """The text of a Stage.THREAD program, or why there is none."""
    try:
        source: KernelSource = emit_msl(func, program.context())
        launch = Launch(program.request(source), program.arrays, Schedule())
        return Text(launch, launch.recorded())
    except (MetileError, AssertionError, KeyError, TypeError, ValueError) as error:
        return f"no text: {type(error).__name__}"


def build_all(texts: Sequence[Text]) -> None:
    """Compiles them, many in one translation unit."""
    # A text that is refused is built again, alone, and reported when it runs.
    with suppress(MetileError):
        kernels = {(each.captured.name, each.captured.text) for each in texts}
        build.prebuild(sorted(kernels), checked=True)


def run(made: Text) -> Outcome:
    """One run under the checker, in SCHEDULES orders of threads."""
    emulator.take()
    try:
        with emulator.options(checked=True, schedules=SCHEDULES):
            outputs = BACKENDS["emulator"].bind(made.launch.request)(
                list(made.launch.arrays.values())
            )
            mx.eval(*outputs)
    except MetileError as error:
        return Outcome((), f"refused: {str(error).splitlines()[0]}")
    report = emulator.take()
    found = report.findings[0].fault.value if report.findings else ""
    return Outcome(tuple(_bits(array) for array in outputs), found)


def _bits(array: mx.array) -> bytes:
    unsigned = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[array.dtype.size]
    flat = mx.contiguous(array.reshape(-1))
    return np.array(flat if array.dtype == mx.bool_ else flat.view(unsigned)).tobytes()
