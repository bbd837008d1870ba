"""`@metile.autotune`: the fastest of several configs of a kernel, found once per key and kept."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from metile_mlx.context import Schedule
from metile_mlx.dispatch import Dispatch
from metile_mlx.doctor import versions
from metile_mlx.errors import CompileError, LaunchError, MetileError
from metile_mlx.kernel import Kernel, keep
from metile_mlx.locks import Lock
from metile_mlx.runtime import cache, toolchain
from metile_mlx.runtime.backend import Backend, Place
from metile_mlx.runtime.optional import mx
from metile_mlx.tuned_call import AnyGrid, Call, Space, configs_of, key_of, wrong
from metile_mlx.tuning import (
    ROUNDS,
    Candidate,
    Clock,
    Results,
    Store,
    TuningReport,
    Work,
    are_traced,
    disagreement,
    measured,
    progress,
)

Check = Callable[[Results, Results], bool]
# One thing is measured at a time.
_measuring = Lock()


class Autotuned:
    """A kernel with configs: `tuned[grid](...)` launches the fastest (`@metile.autotune`)."""

    def __init__(self, space: Space, check: Check | None, rounds: int, clock: Clock) -> None:
        self.kernel = space.kernel
        self.space = space
        self._check = check
        self._rounds = rounds
        self._clock = clock
        self._chosen: OrderedDict[object, tuple[int, TuningReport]] = OrderedDict()
        self._reports: OrderedDict[object, TuningReport] = OrderedDict()

    def __getitem__(self, grid: AnyGrid) -> TunedLauncher:
        """Over a grid of programs: as a kernel's, or a function of the config's constexprs."""
        return TunedLauncher(self, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise LaunchError(
            f"[{self.name}] a kernel is launched over a grid of programs",
            hint=f"{self.name}[lambda config: (programs,)](...)",
        )

    def __repr__(self) -> str:
        return f"<autotuned {self.kernel!r}, {len(self.space.configs)} configs>"

    @property
    def name(self) -> str:
        """The kernel's."""
        return self.kernel.definition.name

    @property
    def reports(self) -> tuple[TuningReport, ...]:
        """One for each key that was asked for in this process, in order; of the last 512."""
        return tuple(self._reports.values())

    def choose(self, call: Call) -> tuple[int, TuningReport]:
        """The config for a call: known, read, or measured now."""
        key = (call.key(), self.kernel.definition.environment())
        found = self._chosen.get(key)
        return found if found is not None else self._find(key, call)

    def _find(self, key: object, call: Call) -> tuple[int, TuningReport]:
        store = self._store(call)
        if call.only_compiles or are_traced(call.arrays):
            # A choice on disk needs no values.
            kept = store.read(self.space.texts)
            if kept is not None:
                return self._keep(key, kept)
            why = "this backend can't run here" if call.only_compiles else "a traced call can't"
            report = self._report(call, 0, f"the first config: nothing was measured, since {why}")
            # Not remembered as chosen: the next call may be able to measure.
            keep(self._reports, key, report)
            return 0, report
        with _measuring:
            found = self._chosen.get(key)
            if found is None:
                with store.locked():
                    kept = store.read(self.space.texts)
                    found = self._keep(key, kept or self._measure(call))
                    if kept is None:
                        store.write(found[1])
        return found

    def _keep(self, key: object, found: tuple[int, TuningReport]) -> tuple[int, TuningReport]:
        keep(self._chosen, key, found)
        keep(self._reports, key, found[1])
        return found

    def _report(
        self, call: Call, index: int, how: str, candidates: tuple[Candidate, ...] = ()
    ) -> TuningReport:
        shown = call.shown()
        return TuningReport(
            self.name, call.backend.name, shown, self.space.texts[index], how, candidates
        )

    def _store(self, call: Call) -> Store:
        parts = [self.kernel.definition.text(), *self.space.texts, repr(call.key())]
        return Store(cache.key(*parts, *measured_on(call.backend)))

    def _measure(self, call: Call) -> tuple[int, TuningReport]:
        """Run every config, leave out what fails or disagrees, and time the rest.

        Raises:
            LaunchError: none is left; says why for each.
        """
        with progress(self.name, len(self.space.configs)) as show:
            works, left_out = self._checked(call, show)
            if not works:
                reasons = "; ".join(f"{self.space.texts[i]}: {why}" for i, why in left_out.items())
                raise LaunchError(
                    f"[{self.name}] none of its {len(self.space.configs)} configs runs: {reasons}",
                    hint="call the kernel with one of them to see the whole error",
                )
            show(f"measuring {len(works)}")
            times = measured(works, self._clock, self._rounds)
            best = min(times, key=lambda index: (times[index], index))
            show(f"{self.space.texts[best]}, {times[best] * 1e6:.1f} us")
        candidates = tuple(
            Candidate(text, times.get(index), left_out.get(index, ""))
            for index, text in enumerate(self.space.texts)
        )
        how = f"the fastest of {len(works)}, by the medians of {self._rounds} rounds"
        return best, self._report(call, best, how, candidates)

    def _checked(
        self, call: Call, show: Callable[[str], None]
    ) -> tuple[dict[int, Work], dict[int, str]]:
        """The configs that run and agree with the first that does, and why the others are left
        out."""
        works: dict[int, Work] = {}
        left_out: dict[int, str] = {}
        expected: Results | None = None
        for index, text in enumerate(self.space.texts):
            show(f"checking {text}")
            work = call.work(index)
            try:
                made = work()
            except (MetileError, RuntimeError) as error:
                left_out[index] = f"left out: {str(error).splitlines()[0]}"
                continue
            problem = None if expected is None else self._problem(made, expected)
            if problem is None:
                expected = made if expected is None else expected
                works[index] = work
            else:
                left_out[index] = f"left out: {problem}"
        return works, left_out

    def _problem(self, made: Results, expected: Results) -> str | None:
        if self._check is None:
            return disagreement(made, expected)
        agrees = self._check(made, expected)
        return None if agrees else "its outputs do not pass the check beside the first config's"


class TunedLauncher:
    """An autotuned kernel over a grid; call it, or `prepare` a Dispatch for many calls."""

    __slots__ = ("_grid", "_tuned")

    def __init__(self, tuned: Autotuned, grid: AnyGrid) -> None:
        self._tuned = tuned
        self._grid = grid

    def __call__(
        self,
        *args: Any,
        schedule: Schedule | None = None,
        backend: str | None = None,
        target: str | None = None,
        stream: Place = None,
        math_mode: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Launch the fastest config, measured first where its key is new; else as a kernel's call.

        To measure evaluates the arguments and takes up to seconds.

        Raises:
            LaunchError: what the configs set is given, or none of them runs.
            MetileError: as the kernel's call.
        """
        asked = _asked(schedule, backend, target, stream, math_mode)
        call = self._call(args, kwargs, asked, compile_only=False)
        return call.launch(self._tuned.choose(call)[0])

    def prepare(
        self,
        *args: Any,
        schedule: Schedule | None = None,
        backend: str | None = None,
        target: str | None = None,
        stream: Place = None,
        math_mode: str | None = None,
        **kwargs: Any,
    ) -> Dispatch:
        """The dispatch of the fastest config; its report has the choice among its notes.

        With `target=` of a backend that can't run here nothing is measured: see `reports`.
        """
        asked = _asked(schedule, backend, target, stream, math_mode)
        call = self._call(args, kwargs, asked, compile_only=backend is None)
        index, report = self._tuned.choose(call)
        return call.prepare(index, f"autotune: {report.chosen}: {report.how}")

    def tune(self, *args: Any, **kwargs: Any) -> TuningReport:
        """Choose for these arguments, as a call would, without a launch of the choice."""
        asked = {name: kwargs.pop(name, None) for name in _asked()}
        call = self._call(args, kwargs, asked, compile_only=False)
        return self._tuned.choose(call)[1]

    def _call(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        asked: dict[str, Any],
        compile_only: bool,
    ) -> Call:
        return Call(self._tuned.space, self._grid, args, kwargs, asked, compile_only)


def _asked(
    schedule: Schedule | None = None,
    backend: str | None = None,
    target: str | None = None,
    stream: Place = None,
    math_mode: str | None = None,
) -> dict[str, Any]:
    return {
        "schedule": schedule,
        "backend": backend,
        "target": target,
        "stream": stream,
        "math_mode": math_mode,
    }


def autotune(
    configs: Sequence[Mapping[str, Any]],
    *,
    key: Sequence[str] = (),
    check: Check | None = None,
    rounds: int = ROUNDS,
    clock: Clock = time.perf_counter,
) -> Callable[[Kernel], Autotuned]:
    """Choose among configs of a kernel by measuring, once for each key (above `@metile.kernel`).

    At the first call with a new key every config runs on the arguments given. One that can't be
    compiled or launched, or whose outputs differ from those of the first that can, is left out and
    reported; the others are timed in alternating rounds, and the smallest median wins. The choice
    is kept in the process and in the cache folder, for this device, these versions, and this text
    of the kernel. While MLX traces a function (`mx.compile`, `mx.vmap`, export) arguments have no
    values: a known choice is used, else the first config.

    Args:
        configs: each a value for some constexprs, and for `schedule` if it is to have one.
        key: parameters whose change asks for a new choice: an array's shape, a scalar's value.
            Dtypes, other constexprs, the backend and keywords of the call always count.
        check: `check(outputs, expected) -> bool`: whether a config's outputs, a tuple of arrays,
            agree with the first's. By default `metile.testing.TOLERANCES` decide, and integers are
            equal.
        rounds: timed samples of each config.
        clock: seconds; for tests.

    Raises:
        CompileError: configs or a key that do not fit the kernel.
    """

    def decorate(kernel: Kernel) -> Autotuned:
        if not isinstance(kernel, Kernel):
            raise CompileError(
                f"@metile.autotune takes a kernel, got {type(kernel).__name__}",
                hint="write it above @metile.kernel",
            )
        if type(rounds) is not int or rounds < 1:
            raise wrong(kernel, f"rounds is {rounds!r}", "an int of 1 or more")
        made = configs_of(kernel, configs)
        space = Space(kernel, made, key_of(kernel, made, key))
        return Autotuned(space, check, rounds, clock)

    return decorate


def measured_on(backend: Backend) -> list[str]:
    """What a measurement is good for: the device, and versions."""
    return [_device(backend), *_versions()]


def _device(backend: Backend) -> str:
    if backend.name in ("metal", "cuda"):
        return _gpu() if backend.available() is None else ""
    compiler = toolchain.find().identity() if backend.name == "cpu" else ""
    return f"{cache.cpu_features()} {os.cpu_count()} {compiler}"


def _gpu() -> str:
    """Its kind; free memory, and which of several it is, do not count."""
    info = mx.device_info()
    return " ".join(str(info.get(name, "")) for name in ("device_name", "architecture"))


def _versions() -> list[str]:
    found = versions()
    return [found["mlx"], found["metile-mlx"]]
