"""How every benchmark here measures: arms that alternate in one process, checked before timing.

An arm is a function that does its work and waits for it. `measure` first checks what each arm
returns, then warms all arms up, then times them in rounds; the order rotates from round to round,
so that drift of the machine meets every arm alike. Results are medians with quartiles.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any


class WrongResult(Exception):
    """An arm computes something else than what is to be measured; nothing was timed."""


@dataclass(frozen=True)
class Arm:
    """One way to do the work.

    Attributes:
        name: unique among the arms of a measurement.
        run: does the work `repeats` times and waits for the results, which it returns.
        repeats: times of the work in one `run`.
        prepare: called before each `run`, outside the timed span; what it returns goes to `run`.
    """

    name: str
    run: Callable[..., Any]
    repeats: int = 1
    prepare: Callable[[], Any] | None = None

    def given(self) -> tuple[Any, ...]:
        """Arguments for one `run`."""
        return () if self.prepare is None else (self.prepare(),)


@dataclass(frozen=True)
class Summary:
    """Seconds of one unit of work: median, quartiles and least over `samples` rounds."""

    median: float
    q1: float
    q3: float
    least: float
    samples: int

    @property
    def spread(self) -> float:
        """The interquartile range as a share of the median."""
        return (self.q3 - self.q1) / self.median if self.median else 0.0

    def to_dict(self) -> dict[str, float]:
        """Plain numbers, seconds."""
        return {
            "median_s": self.median,
            "q1_s": self.q1,
            "q3_s": self.q3,
            "least_s": self.least,
            "samples": self.samples,
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Summary:
        """What `to_dict` gave."""
        times = (given[f"{name}_s"] for name in ("median", "q1", "q3", "least"))
        return cls(*times, given["samples"])


@dataclass(frozen=True)
class Goal:
    """A figure that was promised. `value` and `limit` are in `unit`; lower is better."""

    name: str
    value: float
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        """Whether the value is a number within the limit."""
        return math.isfinite(self.value) and self.value <= self.limit

    def line(self) -> str:
        """One line for the terminal."""
        verdict = "PASS" if self.is_met else "MISS"
        unit = f" {self.unit}" if self.unit else ""
        return f"{verdict}  {self.name}: {self.value:.3f}{unit} (target <= {self.limit:g}{unit})"

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        return {
            "name": self.name,
            "value": self.value,
            "limit": self.limit,
            "unit": self.unit,
            "met": self.is_met,
        }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The `share` quantile of sorted values, interpolated between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarise(seconds: Sequence[float]) -> Summary:
    """Median, quartiles and least of some times.

    Raises:
        ValueError: there are none.
    """
    if not seconds:
        raise ValueError("no samples to summarise")
    ordered = sorted(seconds)
    return Summary(
        median(ordered),
        quantile(ordered, 0.25),
        quantile(ordered, 0.75),
        ordered[0],
        len(ordered),
    )


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive values.

    Raises:
        ValueError: there are none, or one is not positive.
    """
    if not values or any(value <= 0 for value in values):
        raise ValueError(f"a geometric mean needs positive values, got {list(values)}")
    return math.exp(sum(math.log(value) for value in values) / len(values))


def rotations(names: Sequence[str], rounds: int) -> list[list[str]]:
    """The order of the arms in each round: each goes first equally often."""
    count = len(names)
    return [[names[(start + i) % count] for i in range(count)] for start in range(rounds)]


def measure(
    arms: Sequence[Arm],
    check: Callable[[Arm, Any], str | None],
    rounds: int,
    warmup: int = 2,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, Summary]:
    """Check every arm, then time all of them in alternation.

    Args:
        arms: with different names.
        check: gets an arm and what its `run` returned; says what is wrong with it, or None.
        rounds: timed runs of each arm.
        warmup: runs of each arm before that.
        clock: seconds.

    Returns:
        Seconds of one unit of work by the name of the arm.

    Raises:
        WrongResult: a check failed. Every arm is checked before any is timed.
    """
    by_name = {arm.name: arm for arm in arms}
    if len(by_name) < len(arms):
        raise ValueError(f"arms share a name: {[arm.name for arm in arms]}")
    for arm in arms:
        problem = check(arm, arm.run(*arm.given()))
        if problem is not None:
            raise WrongResult(f"{arm.name}: {problem}")
    for arm in arms * max(warmup, 0):
        arm.run(*arm.given())
    times: dict[str, list[float]] = {name: [] for name in by_name}
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for order in rotations(list(by_name), rounds):
            for name in order:
                arm = by_name[name]
                given = arm.given()
                start = clock()
                made = arm.run(*given)
                times[name].append((clock() - start) / arm.repeats)
                # Results are freed outside the timed span.
                del made, given
    finally:
        if was_enabled:
            gc.enable()
    return {name: summarise(seconds) for name, seconds in times.items()}


def ratio(results: Mapping[str, Summary], over: str, under: str) -> float:
    """Median of one arm over that of another: below 1, the first is faster."""
    return results[over].median / results[under].median


def calibrated(run_one: Callable[[], Any], target: float, most: int) -> int:
    """Repeats of a piece of work that take `target` seconds together; 1 to `most`."""
    run_one()
    best = math.inf
    for _ in range(3):
        start = perf_counter()
        run_one()
        best = min(best, perf_counter() - start)
    return max(1, min(most, math.ceil(target / best)))
