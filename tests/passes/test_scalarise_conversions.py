"""Every element reaches its new owner, for each mechanism and dtype (SPEC C1, C3, L5)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Context, Schedule
from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u32
from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.core import Func, walk
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout, transition
from metile_mlx.passes.scalarise import scalarise
from metile_mlx.target import METAL
from tests.support import simulate
from tests.support.arithmetic import NUMPY
from tests.support.build import Program, chain_program, conversion_program
from tests.support.execute import execute, random_bits, same_bits
from tests.support.profile import count
from tests.support.register_layouts import KINDS, pair

DTYPES = (f16, bf16, f32, i32, u32, bool_)
CHAIN = 12
WITHIN = ThreadLayout((1, 0, 2, 3, 4, 5), 9)
ACROSS = ThreadLayout((3, 4, 5, 0, 1, 2), 33)


def check(source: ThreadLayout, steps: Sequence[tuple[ThreadLayout, DType]], seed: int) -> None:
    """Each array of a chain of conversions arrives bit for bit, all elements stored."""
    size = source.size
    arrays = {f"x{k}": random_bits(dtype, size, seed + k) for k, (_, dtype) in enumerate(steps)}
    outputs = {f"y{k}": np.zeros(size, NUMPY[dtype]) for k, (_, dtype) in enumerate(steps)}
    found, written = execute(chain_program(source, steps), arrays | outputs)
    for k in range(len(steps)):
        assert same_bits(found[f"y{k}"], arrays[f"x{k}"]), (source, steps[: k + 1])
        assert written[f"y{k}"].all()


def check_all(layouts: Sequence[ThreadLayout], seed: int) -> None:
    """Conversions between neighbours, a chain of them in one program."""
    rng = random.Random(seed)
    for first in range(0, len(layouts) - 1, CHAIN):
        source, *rest = layouts[first : first + CHAIN + 1]
        check(source, [(layout, rng.choice(DTYPES)) for layout in rest], first)


def neighbours(bits: int, pairs: int, seed: int) -> list[ThreadLayout]:
    """Layouts with random XOR constants whose neighbours are `pairs` random pairs of permutations.

    Where so many pairs are wanted, they are all pairs, each once: a de Bruijn sequence.
    """
    rng = random.Random(seed)
    orders = list(permutations(range(bits)))
    walk: list[int] = []
    if pairs >= len(orders) ** 2:
        for first in range(len(orders)):
            walk += [first, *(k for next_ in range(first + 1, len(orders)) for k in (first, next_))]
        walk.append(walk[0])
    else:
        walk = rng.choices(range(len(orders)), k=pairs + 1)
    return [ThreadLayout(orders[k], rng.randrange(1 << bits)) for k in walk]


def test_every_pair_of_permutations_of_32_threads() -> None:
    """All 14,400 in the full profile: shuffles and unchanged values only."""
    check_all(neighbours(5, count(ci=300, full=14_400), seed=1), seed=2)


def test_the_sequence_of_all_pairs_is_complete() -> None:
    walk = [layout.bit_order for layout in neighbours(5, 14_400, seed=0)]
    assert len(set(pairwise(walk))) == len(walk) - 1 == 14_400


def test_permutations_of_64_threads() -> None:
    """Scratch where the simdgroup changes."""
    check_all(neighbours(6, count(ci=150, full=14_400), seed=3), seed=4)


@pytest.mark.parametrize("bits", [7, 8, 9, 10])
def test_random_pairs_up_to_1024_threads(bits: int) -> None:
    rng = random.Random(bits)
    layouts: list[ThreadLayout] = []
    for _ in range(count(ci=20, full=250)):
        layout = ThreadLayout(rng.sample(range(bits), bits), rng.randrange(1 << bits))
        # Random permutations hardly ever keep the simdgroup: every other neighbour does.
        layouts += [layout, ThreadLayout(_shuffled_lanes(layout, rng), layout.xor_mask)]
    check_all(layouts, seed=bits)


def _shuffled_lanes(layout: ThreadLayout, rng: random.Random) -> list[int]:
    """The bit order with its lane bits permuted among themselves."""
    lanes = rng.sample(range(5), 5)
    return [lanes[bit] if bit < 5 else bit for bit in layout.bit_order]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [WITHIN, ACROSS])
def test_a_payload_of_any_bits_survives(layout: ThreadLayout, dtype: DType) -> None:
    """Signalling NaNs, -0.0 and subnormals keep their bits (SPEC C3)."""
    check(ThreadLayout.identity(64), [(layout, dtype), (ThreadLayout.identity(64), dtype)], 5)


@pytest.mark.parametrize(
    ("layout", "dtype", "wire"),
    [(WITHIN, bool_, "u32"), (ACROSS, bool_, "u32"), (WITHIN, bf16, "u16"), (ACROSS, bf16, "u16")],
)
def test_bool_travels_as_u32_and_bf16_as_u16(layout: ThreadLayout, dtype: DType, wire: str) -> None:
    """SPEC C3."""
    func = lower(conversion_program(None, layout, dtype), Context(METAL))
    moved = [
        item.result.type
        for item in walk(func.body)
        if isinstance(item, metal.Shuffle | metal.ThreadgroupLoad)
    ]
    assert [str(type_) for type_ in moved] == [f"thread<{wire}>"]


def test_the_lane_of_a_shuffle_is_u16_and_below_32() -> None:
    """SPEC C3: ushort on the wire, for several simdgroups."""
    layout = ThreadLayout((4, 3, 2, 1, 0, 5, 6, 7), 21)
    func = lower(conversion_program(None, layout), Context(METAL))
    (shuffle,) = (item for item in walk(func.body) if isinstance(item, metal.Shuffle))
    assert str(shuffle.lane.type) == "thread<u16>"
    check(ThreadLayout.identity(256), [(layout, f32)], 6)


def test_scratch_is_forced_where_the_schedule_says_so() -> None:
    """SPEC K8: the same values through the other mechanism (F38)."""
    ctx = Context(METAL, Schedule(conversion="scratch"))
    func = conversion_program(None, WITHIN)
    assert any(isinstance(item, metal.ThreadgroupLoad) for item in walk(lower(func, ctx).body))
    x = np.arange(64, dtype=np.float32)
    found, _ = execute(func, {"x0": x, "y0": x}, ctx=ctx)
    assert same_bits(found["y0"], x)


def across_twice() -> Func:
    steps = [(ACROSS, f32), (ThreadLayout.identity(64), f32)]
    return lower(chain_program(None, steps), Context(METAL))


ARRAYS = {name: np.arange(64, dtype=np.float32) for name in ("x0", "y0", "x1", "y1")}


@pytest.mark.parametrize(
    ("dropped", "message"),
    [
        (0, "read after a write"),  # publish of the first conversion
        (1, "write after a read"),  # its release: the second reuses the scratch
        (2, "read after a write"),  # publish of the second
    ],
)
def test_a_dropped_barrier_is_a_race(dropped: int, message: str) -> None:
    """SPEC C1, F43: each barrier is needed, and the simulator names the access that needs it."""
    func = across_twice()
    simulate.run(func, ARRAYS, {}, (1,))
    barriers = [item for item in func.body.ops if isinstance(item, metal.Barrier)]
    assert [item.role for item in barriers] == ["publish", "release"] * 2
    kept = tuple(item for item in func.body.ops if item is not barriers[dropped])
    broken = func.with_body(replace(func.body, ops=kept))
    with pytest.raises(simulate.SimulationError, match=message) as caught:
        simulate.run(broken, ARRAYS, {}, (1,))
    assert caught.value.op is not None
    assert "kernel.py:" in str(caught.value)


def test_a_general_map_of_slots_is_xor_of_masked_shifts() -> None:
    """A bank swizzle is no bit permutation; stores and loads through it still meet (F40)."""
    swizzle = AffineMap((1, 2, 4, 8, 16, 32 ^ 1 ^ 4), 7)
    assert not swizzle.is_permutation
    moves = transition(ThreadLayout.identity(64), ACROSS)
    p = Program()
    x, y = p.array("x", f32, 64, "read"), p.array("y", f32, 64, "write")
    value = p.add(tile.Load(x, (p.arange(64, ThreadLayout.identity(64)),)))
    buffer = p.add(planned.Scratch(f32, 64, "scratch_f32"))
    p.emit(planned.ScratchStore(buffer, value, swizzle))
    p.emit(planned.Barrier("publish"))
    moved = p.add(planned.ScratchLoad(buffer, (64,), ACROSS, swizzle @ moves))
    p.emit(planned.Barrier("release"))
    p.emit(tile.Store(y, (p.arange(64, ACROSS),), moved))
    func = scalarise(replace(p.func(), threads=64), Context(METAL))
    given = np.arange(64, dtype=np.float32)
    found, _ = simulate.run(func, {"x": given, "y": given}, {}, (1,))
    assert same_bits(found["y"], given)


@pytest.mark.parametrize("kind", KINDS)
def test_c6_register_tiles_of_every_kind(kind: str) -> None:
    """20,000 pairs up to 1024 threads x 32 registers in the full profile, six dtypes."""
    rng = random.Random(f"simulated {kind}")
    for seed in range(count(ci=24, full=5000)):
        registers = rng.randrange(1, 6)
        threads = rng.randrange(6, 11 if seed % 40 == 39 else 8) if registers < 4 else 6
        if seed % 200 == 199:
            threads, registers = 10, 5
        source, destination = pair(rng, threads + registers, 1 << registers, kind)
        wish = rng.choice(["auto", "scratch", "auto", *["shuffle"] * (kind in LOCAL)])
        simulated(source, destination, rng.choice(DTYPES), wish, seed)


LOCAL = ("local", "registers")


def test_c6_all_maps_of_32_threads_with_up_to_four_registers() -> None:
    """5,040 bit permutations of 4 registers and 720 of 2, 8 constants each, in the full profile."""
    rng = random.Random(32)
    every = [order for bits in (6, 7) for order in permutations(range(bits))]
    chosen = every if count(ci=0, full=1) else rng.sample(every, count(ci=40, full=0))
    for seed, order in enumerate(chosen):
        registers = 1 << len(order) - 5
        for constant in rng.sample(range(1 << len(order)), count(ci=1, full=8)):
            source = ThreadLayout.identity(1 << len(order), elements_per_thread=registers)
            destination = ThreadLayout(order, constant, registers)
            mechanism = simulated(source, destination, rng.choice(DTYPES), "auto", seed)
            assert mechanism in ("unchanged", "registers", "shuffle")


def simulated(
    source: ThreadLayout, destination: ThreadLayout, dtype: DType, wish: str, seed: int
) -> str:
    """Convert random bits and compare; the cost in the report is what the program has."""
    ctx = Context(METAL, Schedule(conversion=wish))
    x = random_bits(dtype, source.size, seed)
    func = lower(conversion_program(source, destination, dtype), ctx)
    found, written = simulate.run(func, {"x0": x, "y0": np.zeros_like(x)}, {}, (1,))
    assert same_bits(found["y0"], x), (source, destination, dtype, wish)
    assert written["y0"].all()
    (fact,) = ctx.report.layout_conversions
    if fact.cost is not None:
        counts = Counter(type(item) for item in func.body.ops)
        assert counts[metal.Shuffle] == fact.cost.shuffles
        assert counts[metal.Select] == fact.cost.selects
        assert counts[metal.ThreadgroupStore] == fact.cost.stores
        assert counts[metal.ThreadgroupLoad] == fact.cost.loads
        assert counts[metal.Barrier] == fact.cost.barriers == 2 * fact.cost.rounds
    return fact.mechanism
