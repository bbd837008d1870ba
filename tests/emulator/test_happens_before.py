"""The checker's races are exactly those of the definition, on random programs."""

from __future__ import annotations

import itertools

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx import emulator
from metile_mlx.emulator import Access, Fault, Finding

pytestmark = pytest.mark.emulator

THREADS = 96  # three simdgroups
STEPS = 6
READ, WRITE, ATOMIC = 1, 2, 3
# What follows a step: nothing, barriers of a threadgroup, barriers of a simdgroup; each of
# threadgroup memory, device memory, none.
SYNCS = {0: "none", 1: "threadgroup", 2: "device", 3: "order-less", 4: "simdgroup", 5: "exchange"}

BODY = """
threadgroup int s[1];
threadgroup atomic_int* a = (threadgroup atomic_int*)s;
uint t = thread_index_in_threadgroup;
int sum = 0;
if (t == 0) s[0] = 1;
threadgroup_barrier(mem_flags::mem_threadgroup);
for (int k = 0; k < STEPS; ++k) {
  int op = ops[k * THREADS + t];
  if (op == 1) sum += s[0];
  else if (op == 2) s[0] = k;
  else if (op == 3) atomic_fetch_add_explicit(a, 1, memory_order_relaxed);
  switch (syncs[k]) {
    case 1: threadgroup_barrier(mem_flags::mem_threadgroup); break;
    case 2: threadgroup_barrier(mem_flags::mem_device); break;
    case 3: threadgroup_barrier(mem_flags::mem_none); break;
    case 4: simdgroup_barrier(mem_flags::mem_threadgroup); break;
    case 5: sum += simd_sum(1); break;
  }
}
y[t] = sum;
""".replace("STEPS", str(STEPS)).replace("THREADS", str(THREADS))

Event = tuple[int, int, int]  # step, thread, operation


def is_ordered(first: Event, second: Event, syncs: np.ndarray) -> bool:
    """Whether a barrier that both pass, of threadgroup memory, lies between."""
    between = syncs[first[0] : second[0]]
    is_near = first[1] // 32 == second[1] // 32
    return 1 in between or (is_near and 4 in between)


def races(ops: np.ndarray, syncs: np.ndarray) -> set[frozenset[tuple[int, int]]]:
    """Every pair of (thread, operation) that races, by the definition."""
    events = [(k, t, int(ops[k, t])) for k, t in itertools.product(range(STEPS), range(THREADS))]
    events = [event for event in events if event[2]]
    found = set()
    for one, two in itertools.combinations(events, 2):
        kinds = {one[2], two[2]}
        is_conflict = WRITE in kinds or kinds == {READ, ATOMIC}
        if one[1] != two[1] and is_conflict and not is_ordered(one, two, syncs):
            found.add(frozenset({(one[1], one[2]), (two[1], two[2])}))
    return found


def program(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Few accesses, mostly in few simdgroups, so that about half of the programs are clean."""
    ops = np.zeros((STEPS, THREADS), np.int32)
    for _ in range(rng.integers(2, 7)):
        thread = rng.integers(3) * 32 + rng.integers(3)
        ops[rng.integers(STEPS), thread] = rng.choice([READ, READ, WRITE, ATOMIC])
    return ops, rng.choice([0, 1, 1, 2, 3, 4, 4, 5], STEPS).astype(np.int32)


KERNEL = emulator.metal_kernel(
    name="random_program", input_names=["ops", "syncs"], output_names=["y"], source=BODY
)
KINDS = {Access.READ: READ, Access.WRITE: WRITE, Access.ATOMIC: ATOMIC}


def reported(ops: np.ndarray, syncs: np.ndarray, schedules: int) -> list[Finding]:
    emulator.take()
    padded = np.concatenate([syncs, np.zeros(8, np.int32)])
    with emulator.options(checked=True, schedules=schedules):
        (y,) = KERNEL(
            inputs=[mx.array(ops), mx.array(padded)],
            output_shapes=[(THREADS,)],
            output_dtypes=[mx.int32],
            grid=(THREADS, 1, 1),
            threadgroup=(THREADS, 1, 1),
        )
        mx.eval(y)
    return [each for each in emulator.take().findings if each.fault is Fault.RACE]


@pytest.mark.parametrize("schedules", [1, 3])
def test_races_are_reported_exactly_where_they_are(schedules: int) -> None:
    rng = np.random.default_rng(schedules)
    outcomes = []
    for _ in range(120):
        ops, syncs = program(rng)
        expected = races(ops, syncs)
        found = reported(ops, syncs, schedules)
        assert bool(found) == bool(expected), (ops.nonzero(), ops[ops > 0], syncs, expected)
        for race in found:
            assert race.thread is not None
            assert race.other is not None
            pair = {
                (race.thread.index, KINDS[race.access]),
                (race.other.index, KINDS[race.other_access]),
            }
            assert frozenset(pair) in expected
        outcomes.append(bool(found))
    assert 20 < sum(outcomes) < 100, "the programs are nearly all clean or nearly all racy"
