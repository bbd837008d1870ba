"""`check`: a kernel on the reference, on a backend, and as emulated MSL, compared in one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metile_mlx import emulator
from metile_mlx.analysis.exact import exact_outputs
from metile_mlx.context import Schedule
from metile_mlx.dtypes import MLX_NAMES, DType, bf16, f16, f32
from metile_mlx.errors import MetileError
from metile_mlx.kernel import Kernel
from metile_mlx.owners import Owner, find_owner
from metile_mlx.runtime.backend import Request
from metile_mlx.runtime.optional import mx

__all__ = ["TOLERANCES", "CheckError", "CheckReport", "Comparison", "Difference", "Owner", "check"]

# (relative, absolute) per dtype, where a kernel computes in floating point; integers are exact.
TOLERANCES: Mapping[DType, tuple[float, float]] = {
    f32: (1e-5, 1e-6),
    f16: (4e-3, 1e-3),
    bf16: (3e-2, 1e-2),
}


@dataclass(frozen=True)
class Difference:
    """The first element, in row-major order, in which a run differs from the reference.

    Attributes:
        index: of the element.
        expected: what the reference has.
        found: what the run has.
        count: how many elements differ.
        owner: who stores the element; None where no program does.
    """

    index: tuple[int, ...]
    expected: float | int | bool
    found: float | int | bool
    count: int
    owner: Owner | None


@dataclass(frozen=True)
class Comparison:
    """One output of one run beside the reference's.

    Attributes:
        run: the backend that ran.
        output: the kernel parameter.
        bitwise: compared bit by bit, because its values only move.
        rtol, atol: else, what was allowed.
        largest: the largest absolute difference of finite elements.
        difference: None where they agree.
    """

    run: str
    output: str
    bitwise: bool
    rtol: float
    atol: float
    largest: float
    difference: Difference | None

    def __str__(self) -> str:
        how = "bitwise" if self.bitwise else f"rtol {self.rtol:g}, atol {self.atol:g}"
        if self.difference is None:
            return f"{self.run}: {self.output} agrees with the reference ({how})"
        found = self.difference
        place = ", ".join(map(str, found.index))
        owner = f"stored by {found.owner}" if found.owner else "stored by no program"
        return (
            f"{self.run}: {self.output} differs from the reference in {found.count} elements "
            f"({how}); the first is\n"
            f"  {self.output}[{place}]: expected {found.expected!r}, found {found.found!r}\n"
            f"  {owner}"
        )


@dataclass(frozen=True)
class CheckReport:
    """What `check` did and found.

    Attributes:
        kernel: its name.
        grid: programs.
        backend: the backend chosen.
        not_emulated: why the emulated run was not made; empty where it was.
        schedules: orders of threads the emulated run tried.
        comparisons: one for each run and output.
        findings: of the checker; None without an emulated run.
    """

    kernel: str
    grid: tuple[int, int, int]
    backend: str
    not_emulated: str
    schedules: int
    comparisons: tuple[Comparison, ...]
    findings: emulator.Report | None

    @property
    def ok(self) -> bool:
        """Whether all runs agree and the checker found nothing."""
        return not self.findings and not any(each.difference for each in self.comparisons)

    def __str__(self) -> str:
        lines = [f"kernel {self.kernel} over {self.grid} programs: {'ok' if self.ok else 'FAULTS'}"]
        lines += [str(each) for each in self.comparisons]
        if self.findings is None:
            lines.append(f"emulator: not run: {self.not_emulated}")
        else:
            lines.append(f"emulator, {self.schedules} orders of threads: {self.findings}")
        return "\n".join(lines)


class CheckError(MetileError):
    """Runs of a kernel differ, or the checker found faults. Has the `report`."""

    def __init__(self, report: CheckReport) -> None:
        super().__init__(str(report))
        self.report = report


def check(
    kernel: Kernel,
    grid: int | Sequence[int],
    *args: Any,
    backend: str | None = None,
    schedule: Schedule | None = None,
    math_mode: str = "safe",
    schedules: int = 3,
    rtol: float | None = None,
    atol: float | None = None,
    **constexprs: Any,
) -> CheckReport:
    """Run a kernel on the reference, on a backend, and as MSL in the emulator; compare.

    The emulated run is checked for races, bounds and the like, in several orders of threads. Where
    the emulator can't run, the report says that this run was not made. Outputs whose values only
    move are compared bit by bit, others with TOLERANCES: NaN equals NaN, infinities are exact.

    Args:
        kernel: a metile kernel.
        grid: programs.
        args, constexprs: the arguments of the kernel. One that is named like a parameter here is
            passed by position.
        backend: what to compare with besides the emulator; by default what a call would choose.
        schedule, math_mode: as in a call.
        schedules: orders of threads of the emulated run.
        rtol, atol: instead of TOLERANCES, for all outputs that are not compared bit by bit.

    Raises:
        CheckError: something differs, or was found; shows the first differing element, both values
            and who stores it.
        MetileError: as a call.
    """
    launcher = kernel[grid]
    options: dict[str, Any] = {"schedule": schedule, "math_mode": math_mode, **constexprs}
    dispatch = launcher.prepare(*args, backend=backend, **options)
    request = dispatch.reference_request()
    name = dispatch.execution_report.backend

    def results(backend: str) -> tuple[mx.array, ...]:
        return _results(launcher(*args, backend=backend, **options))

    expected = results("reference")
    runs = {} if name in ("reference", "emulator") else {name: results(name)}
    findings = None
    reason = emulator.available()
    if reason is None:
        emulator.take()
        with emulator.options(checked=True, schedules=schedules):
            runs["emulator"] = results("emulator")
        findings = emulator.take()
    arrays = dict(zip(request.inputs, kernel.read_arrays(dispatch, args, constexprs), strict=True))
    judge = _Judge(request, arrays, schedule or kernel.schedule, rtol, atol)
    compared = judge.compare_all(runs, expected)
    report = CheckReport(
        request.func.name, request.grid, name, reason or "", schedules, compared, findings
    )
    if not report.ok:
        raise CheckError(report)
    return report


def _results(made: Any) -> tuple[mx.array, ...]:
    arrays = tuple(made) if isinstance(made, tuple) else (made,)
    mx.eval(*arrays)
    return arrays


class _Judge:
    """Compares outputs of one launch."""

    def __init__(
        self,
        request: Request,
        arrays: Mapping[str, mx.array],
        schedule: Schedule,
        rtol: float | None,
        atol: float | None,
    ) -> None:
        self._request = request
        self._arrays = arrays
        self._schedule = schedule
        self._limits = (rtol, atol)
        self._exact = exact_outputs(request.func)

    def compare_all(
        self, runs: Mapping[str, Sequence[mx.array]], expected: Sequence[mx.array]
    ) -> tuple[Comparison, ...]:
        """Every output of every run."""
        return tuple(
            self.compare(run, position, made[position], expected[position])
            for run, made in runs.items()
            for position in range(len(expected))
        )

    def compare(self, run: str, position: int, found: mx.array, expected: mx.array) -> Comparison:
        """One output of a run beside the reference's."""
        out = self._request.outputs[position]
        bitwise = out.param in self._exact
        rtol, atol = (0.0, 0.0) if bitwise else TOLERANCES.get(out.dtype, (0.0, 0.0))
        if not bitwise:
            rtol = rtol if self._limits[0] is None else self._limits[0]
            atol = atol if self._limits[1] is None else self._limits[1]
        a, b = numbers(expected), numbers(found)
        differs = _bits(expected) != _bits(found) if bitwise else beyond(a, b, rtol, atol)
        wrong = np.flatnonzero(differs)
        difference = None
        if wrong.size:
            at = int(wrong[0])
            owner = find_owner(self._request, self._arrays, self._schedule, out.param, at)
            index = tuple(int(i) for i in np.unravel_index(at, expected.shape))
            difference = Difference(index, a[at].item(), b[at].item(), int(wrong.size), owner)
        return Comparison(run, out.param, bitwise, rtol, atol, _largest(a, b), difference)


def numbers(x: mx.array) -> NDArray[Any]:
    """The elements, flat; bf16 as f32."""
    return np.array(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x).reshape(-1)


def _bits(x: mx.array) -> NDArray[Any]:
    if MLX_NAMES[str(x.dtype).rpartition(".")[2]].name == "bool":
        return np.array(x).reshape(-1)
    unsigned = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[x.dtype.size]
    return np.array(mx.contiguous(mx.reshape(x, (-1,))).view(unsigned))


def beyond(a: NDArray[Any], b: NDArray[Any], rtol: float, atol: float) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (a == b) | ((a != a) & (b != b))
    if a.dtype.kind != "f" and rtol == atol == 0:
        return ~same
    with np.errstate(all="ignore"):
        wide, other = a.astype(np.float64), b.astype(np.float64)
        near = np.abs(wide - other) <= atol + rtol * np.abs(wide)
    return ~(same | (near & np.isfinite(wide) & np.isfinite(other)))


def _largest(a: NDArray[Any], b: NDArray[Any]) -> float:
    with np.errstate(all="ignore"):
        wide, other = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(wide) & np.isfinite(other)
        return float(np.max(np.abs(wide[finite] - other[finite]), initial=0.0))
