"""One specialisation of a kernel: its tile program and the texts made from it, each once."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter

from metile_mlx.analysis.coverage import OutputCoverage, coverage
from metile_mlx.analysis.views import ViewChecks, steps, views
from metile_mlx.compiler import compile_kernel, lower
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.emit.source import KernelSource
from metile_mlx.frontend.definition import Definition
from metile_mlx.frontend.translate import translate
from metile_mlx.frontend.values import ArraySpec, ScalarSpec
from metile_mlx.ir.core import Func, walk
from metile_mlx.ir.lanes import Shared
from metile_mlx.locks import Lock
from metile_mlx.report import ExecutionReport, Timing
from metile_mlx.target import METAL, Target

Spec = ArraySpec | ScalarSpec


@dataclass(frozen=True)
class TextKey:
    """What a text depends on besides the tile program."""

    target: Target
    schedule: Schedule
    math_mode: str
    index_bits: int
    masked_outputs: frozenset[str]
    propagate_ranges: bool = True


@dataclass(frozen=True)
class Text:
    """An emitted kernel and what its compilation reported."""

    source: KernelSource
    report: ExecutionReport


@dataclass
class Specialisation:
    """A kernel for given parameter types and constexprs.

    Attributes:
        func: the kernel at Stage.TILE.
        checks: the declared tensors, checked at each call (SPEC X10).
        coverage: per written parameter, when every element is stored (SPEC K7).
        seconds: time of the translation.
    """

    func: Func
    checks: ViewChecks
    coverage: tuple[OutputCoverage, ...]
    seconds: float
    _texts: dict[TextKey, Text] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    @property
    def reads(self) -> frozenset[str]:
        """Array parameters some tensor reads."""
        return frozenset(view.param for view in self.checks.views if view.access != "write")

    @property
    def writes(self) -> frozenset[str]:
        """Array parameters some tensor writes."""
        return frozenset(view.param for view in self.checks.views if view.access != "read")

    def text(self, key: TextKey) -> Text:
        """The text for `key`, compiled at first use.

        Raises:
            CompileError, OutOfResources: see compiler.lower. Nothing is kept then.
        """
        with self._lock:
            if key not in self._texts:
                self._texts[key] = self._compile(key)
            return self._texts[key]

    def _compile(self, key: TextKey) -> Text:
        report = ExecutionReport(
            kernel=self.func.name,
            target=key.target.name,
            index_bits=key.index_bits,
            math_mode=key.math_mode,
        )
        report.timings.append(Timing("translate", "frontend", self.seconds))
        ctx = Context(
            key.target,
            key.schedule,
            key.index_bits,
            key.masked_outputs,
            key.math_mode,
            key.propagate_ranges,
            report,
        )
        source = compile_kernel(self.func, ctx)
        report.threads = source.threads
        report.notes += unused(key.schedule, report)
        return Text(source, report)

    def owned(self, schedule: Schedule) -> ExecutionReport:
        """Check the rules of ownership and conversions without compiling, for the reference.

        Returns:
            A fresh report with owners and threads. No conversion is in it: nothing is moved.

        Raises:
            CompileError: as `text`, so that a kernel is legal on all backends or on none.
        """
        report = ExecutionReport(kernel=self.func.name, target="none")
        report.timings.append(Timing("translate", "frontend", self.seconds))
        # Races on declared memory are found where each thread's elements are known.
        declares = any(isinstance(item, Shared) for item in walk(self.func.body))
        until = Stage.THREAD if declares else Stage.PLANNED
        lowered = lower(self.func, Context(METAL, schedule, report=report), until)
        report.threads = lowered.threads
        report.layout_conversions.clear()
        report.allocations.clear()
        report.pipelines.clear()
        return report

    def fresh_report(self, key: TextKey) -> ExecutionReport:
        """A copy of the text's report, for a dispatch to complete."""
        return deepcopy(self.text(key).report)


def unused(schedule: Schedule, report: ExecutionReport) -> list[str]:
    """A note for each wish of the schedule that had nothing to act on (SPEC K8)."""
    found = []
    if not report.pipelines:
        for name, given, default in (
            ("backend", schedule.backend, None),
            ("double_buffer", schedule.double_buffer, False),
        ):
            if given != default:
                found.append(f"Schedule({name}={given!r}): no matrix loop to apply it to")
    if schedule.staging is not None and not report.layout_conversions and not report.pipelines:
        found.append(f"Schedule(staging={schedule.staging!r}): nothing is staged")
    if schedule.conversion != "auto" and not report.layout_conversions:
        found.append(f"Schedule(conversion={schedule.conversion!r}): no conversion to apply it to")
    return found


def specialise(
    definition: Definition, specs: Mapping[str, Spec], constexprs: Mapping[str, object]
) -> Specialisation:
    """Translate a kernel for given parameter types and constexprs.

    Raises:
        CompileError: at the offending line of the kernel.
    """
    start = perf_counter()
    func = translate(definition, specs, constexprs)
    seconds = perf_counter() - start
    return Specialisation(func, ViewChecks(views(func), steps(func)), coverage(func), seconds)
