"""What `metile.autotune` measures, keeps and reports."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from metile_mlx import config
from metile_mlx.dtypes import MLX_NAMES
from metile_mlx.errors import BackendError
from metile_mlx.runtime import cache
from metile_mlx.runtime.optional import mx
from metile_mlx.testing import TOLERANCES, beyond, numbers

Results = tuple["mx.array", ...]
Work = Callable[[], Results]
Clock = Callable[[], float]

# Seconds of one timed sample, the most launches and bytes of results in it, and samples of each.
_SECONDS = 0.005
_MOST_LAUNCHES = 100
_MOST_BYTES = 1 << 28
ROUNDS = 7


@dataclass(frozen=True)
class Candidate:
    """One config: its median time, or why it was left out.

    Attributes:
        config: as text.
        seconds: of one launch, the median over rounds; None where it was left out.
        left_out: the reason; empty where it was timed.
    """

    config: str
    seconds: float | None
    left_out: str = ""


@dataclass(frozen=True)
class TuningReport:
    """Which config runs for one key, and why.

    Attributes:
        kernel: its name.
        backend: it was tuned for.
        key: parameter -> what of it counts.
        chosen: the config that runs.
        how: where the choice comes from.
        candidates: all configs in order, as they were measured; empty where nothing was.
    """

    kernel: str
    backend: str
    key: Mapping[str, str]
    chosen: str
    how: str
    candidates: tuple[Candidate, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        key = ", ".join(f"{name}: {value}" for name, value in self.key.items())
        lines = [f"{self.kernel} on {self.backend} ({key})", f"  {self.chosen}: {self.how}"]
        for each in self.candidates:
            shown = each.left_out if each.seconds is None else f"{each.seconds * 1e6:.1f} us"
            lines.append(f"    {each.config}: {shown}")
        return "\n".join(lines)


@contextlib.contextmanager
def progress(kernel: str, count: int) -> Iterator[Callable[[str], None]]:
    """A function that changes one line on standard error: on a terminal or if METILE_VERBOSE=1."""
    if not sys.stderr.isatty() and not config.verbose():
        yield lambda _: None
        return
    moves = sys.stderr.isatty()
    last = ""

    def show(text: str) -> None:
        nonlocal last
        last = f"metile: tuning {kernel}, {count} configs: {text}"
        if moves:
            sys.stderr.write(f"\r\x1b[K{last}")
            sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\n" if moves else f"{last}\n")
        sys.stderr.flush()


def evaluated(made: Any) -> Results:
    """The outputs of a call, evaluated."""
    arrays = tuple(made) if isinstance(made, tuple) else (made,)
    mx.eval(*arrays)
    return arrays


def are_traced(arrays: Sequence[Any]) -> bool:
    """Whether MLX is tracing a function and `arrays` have no values; else evaluates them."""
    try:
        mx.eval(*arrays)
    except ValueError as error:
        if "transformations" not in str(error):
            raise
        return True
    return False


def disagreement(found: Results, expected: Results) -> str | None:
    """Where outputs differ by more than `testing.TOLERANCES`, integers at all; None: nowhere."""
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        dtype = MLX_NAMES[str(one.dtype).rpartition(".")[2]]
        a, b = numbers(other), numbers(one)
        wrong = np.flatnonzero(beyond(a, b, *TOLERANCES.get(dtype, (0.0, 0.0))))
        if wrong.size:
            at = int(wrong[0])
            place = ", ".join(str(int(i)) for i in np.unravel_index(at, one.shape))
            return (
                f"output {number} differs from the first config's in {wrong.size} elements; at "
                f"[{place}] it is {b[at].item()!r}, there {a[at].item()!r}"
            )
    return None


def measured(works: Mapping[int, Work], clock: Clock, rounds: int) -> dict[int, float]:
    """Median seconds of one launch of each, in rounds that begin with another each time."""
    repeats = {}
    for number, work in works.items():
        start = clock()
        size = sum(array.nbytes for array in evaluated(work()))
        once = max(clock() - start, 1e-9)
        most = min(_MOST_LAUNCHES, max(1, _MOST_BYTES // max(size, 1)))
        repeats[number] = max(1, min(most, math.ceil(_SECONDS / once)))
    order = list(works)
    times: dict[int, list[float]] = {number: [] for number in order}
    for turn in range(rounds):
        first = turn % len(order)
        for number in order[first:] + order[:first]:
            work = works[number]
            start = clock()
            made = [work() for _ in range(repeats[number])]
            mx.eval(made)
            times[number].append((clock() - start) / repeats[number])
            del made
    return {number: median(samples) for number, samples in times.items()}


class Store:
    """Choices on disk, one file for each key, beside the compiled kernels."""

    def __init__(self, key: str) -> None:
        self._name = f"tuned-{key}.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """One process measures at a time."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(BackendError):
                held.enter_context(cache.locked("autotune"))
            yield

    def read(self, configs: Sequence[str]) -> tuple[int, TuningReport] | None:
        """The index of the chosen config and the report of its measurement, if one is kept."""
        try:
            path = cache.folder() / self._name
            content = json.loads(path.read_text(encoding="utf-8"))
            candidates = tuple(Candidate(**each) for each in content.pop("candidates"))
            report = TuningReport(**content, candidates=candidates)
            index = configs.index(report.chosen)
        except (OSError, BackendError):
            return None
        except (ValueError, TypeError, KeyError, AttributeError):
            # A damaged file is measured anew and replaced.
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return index, report

    def write(self, report: TuningReport) -> None:
        """Keep a report; where there is no folder for it, it lasts as long as the process."""

        def build(folder: Path) -> Path:
            path = folder / self._name
            path.write_text(json.dumps(report.to_dict(), indent=1), encoding="utf-8")
            return path

        with contextlib.suppress(OSError, BackendError):
            cache.publish(self._name, build)
