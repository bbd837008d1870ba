"""Whether a model is slower with some swaps than without them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from metile_mlx.patching.report import Measured

ROUNDS = 7
# What two equal arms may differ by on a busy machine.
SLOWER = 1.02


def compare(
    kind: str,
    with_it: Callable[[], None],
    without: Callable[[], None],
    run: Callable[[], object],
    clock: Callable[[], float] = perf_counter,
) -> Measured:
    """Medians of alternating runs; kept unless slower by more than 2 percent.

    Args:
        kind: what is measured.
        with_it, without: put the model into either state, before the clock starts.
        run: runs the sample and waits for it.
        clock: seconds.
    """
    states = {"with": with_it, "without": without}
    times: dict[str, list[float]] = {name: [] for name in states}
    for round_ in range(ROUNDS + 1):
        for name in sorted(states, reverse=round_ % 2 == 1):
            states[name]()
            start = clock()
            run()
            # The first round compiles, and finds what is not in any cache.
            if round_:
                times[name].append(clock() - start)
    ours, theirs = median(times["with"]), median(times["without"])
    return Measured(kind, ours, theirs, ours <= SLOWER * theirs)
