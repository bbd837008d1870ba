"""Every lowering of a conversion delivers every element; none costs more than it must (SPEC C6)."""

from __future__ import annotations

from itertools import permutations
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.banks import conflicts, spread, swizzle
from metile_mlx.layout.costs import BARRIER, Cost, groups_gained
from metile_mlx.layout.exchange import Memory, exchanges
from metile_mlx.layout.steps import Choice, Exchange, Lanes
from metile_mlx.layout.thread_layout import ThreadLayout, transition
from tests.support.profile import count
from tests.support.register_layouts import KINDS, pair

Slots = NDArray[np.int64]
WHOLE = 32768


def carried_out(x: Exchange, size: int, threads: int) -> Slots:
    """The source slot whose value each destination slot ends with, step by step."""
    thread = np.arange(threads)

    def step(rows: Slots, each: Choice | Lanes) -> Slots:
        if isinstance(each, Choice):
            is_set = thread >> each.bit & 1 == 1
            return np.stack([np.where(is_set, rows[b], rows[a]) for a, b in each.registers])
        made = rows.copy()
        for register in each.registers:
            source = each.moves.apply(register * threads + thread)
            assert (source % threads // 32 == thread // 32).all(), "crosses simdgroups"
            assert len(set(source // threads)) == 1, "registers differ between threads"
            made[register] = rows[source // threads, source % threads]
        return made

    rows = np.arange(size).reshape(-1, threads)
    for choice in x.before:
        rows = step(rows, choice)
    held = rows
    for each in x.local:
        rows = step(rows, each)
    for one in x.rounds:
        memory = np.full(x.elements, -1)
        for register in one.stored:
            at = one.writes.apply(register * threads + thread) - one.skip
            assert (memory[at] == -1).all(), "written twice"
            memory[at] = held[register]
        rows = rows.copy()
        for register in one.loaded:
            rows[register] = memory[one.reads.apply(register * threads + thread) - one.skip]
    for choice in x.after:
        rows = step(rows, choice)
    return rows.reshape(-1)


def turns(addresses: Slots, element_bytes: int) -> int:
    """The most different words that one bank gives to one simdgroup's access: by counting."""
    worst = 1
    for row in addresses.reshape(-1, 32):
        words = np.unique(row * element_bytes // 4)
        worst = max(worst, int(np.bincount(words % 32).max()))
    return worst


def check(moves: AffineMap, threads: int, memory: Memory) -> tuple[Exchange, ...]:
    """All lowerings: right, within memory, conflict-free, and no worse than the naive one."""
    found = exchanges(moves, threads, memory)
    registers = moves.size // threads
    expected = moves.apply(np.arange(moves.size))
    needed = -(-moves.size // (memory.capacity // threads * threads))
    for x in found:
        assert (carried_out(x, moves.size, threads) == expected).all(), (moves, threads, x)
        assert x.elements <= min(memory.capacity, moves.size)
        assert x.cost.shuffles <= registers
        assert x.cost.stores == x.cost.loads <= registers
        assert x.cost.barriers == 2 * len(x.rounds)
        for one in x.rounds[:1]:
            slots = np.arange(moves.size)
            if memory.banks:
                assert turns(one.writes.apply(slots), memory.element_bytes) == 1
                assert turns(one.reads.apply(slots), memory.element_bytes) == 1
            assert (x.cost.write_conflicts, x.cost.read_conflicts) == (1, 1)
    rounds = [len(x.rounds) for x in found if x.mechanism == "threadgroup"]
    assert min(rounds) >= needed
    if memory.capacity & memory.capacity - 1 == 0:
        assert min(rounds) == needed
    slot = np.arange(moves.size)
    stays = expected % threads // 32 == slot % threads // 32
    local = [x for x in found if not x.rounds]
    assert bool(local) == bool(stays.all())
    return found


def test_c6_every_map_of_32_threads_with_up_to_four_registers() -> None:
    """5,040 bit permutations and 8 constants in the full profile: never a barrier, never memory."""
    rng = Random(7)
    every = [order for bits in (6, 7) for order in permutations(range(bits))]
    chosen = every if count(ci=0, full=1) else rng.sample(every, count(ci=300, full=0))
    for order in chosen:
        for constant in rng.sample(range(1 << len(order)), count(ci=1, full=8)):
            moves = AffineMap.from_bit_order(order, constant)
            if moves.is_identity:
                continue
            best = min(check(moves, 32, Memory(4, 8192)), key=lambda x: x.cost.total)
            assert best.cost.barriers == best.elements == 0
            assert best.cost.shuffles <= _foreign(moves)


def _foreign(moves: AffineMap) -> int:
    """The most elements that a lane has to get from other lanes."""
    slots = np.arange(moves.size)
    return int((moves.apply(slots) % 32 != slots % 32).reshape(-1, 32).sum(axis=0).max())


@pytest.mark.parametrize("kind", KINDS)
def test_c6_random_pairs_up_to_1024_threads_and_32_registers(kind: str) -> None:
    rng = Random(f"exchange {kind}")
    met: set[str] = set()
    for number in range(count(ci=30, full=1000)):
        registers = rng.randrange(6)
        low = 6 if kind == "partial" else 5
        threads = rng.randrange(low, 11 if number % 10 == 0 else 8)
        if kind == "partial":
            registers = max(registers, 1)
        a, b = pair(rng, threads + registers, 1 << registers, kind)
        moves = transition(a, b)
        if moves.is_identity:
            continue
        element_bytes = rng.choice([2, 4])
        capacity = rng.choice([32768, 32640, 16384, 4096]) // element_bytes
        memory = Memory(element_bytes, capacity, rng.random() < 0.9)
        met.update(x.mechanism for x in check(moves, 1 << threads, memory))
    expected = {"any": "threadgroup", "local": "shuffle"}.get(kind, kind)
    assert expected in met


def test_c6_only_what_crosses_goes_through_memory() -> None:
    """A simdgroup bit for a register bit: of four registers two stay, and memory is for two."""
    order = [*range(5), 7, 6, 5]
    (whole, partial) = exchanges(AffineMap.from_bit_order(order), 64, Memory(4, WHOLE // 4))
    assert (whole.mechanism, whole.elements, whole.cost.stores) == ("threadgroup", 256, 4)
    assert (partial.mechanism, partial.elements, partial.cost.stores) == ("partial", 128, 2)
    assert partial.cost.shuffles == 0
    # Two bits of each: three of four registers cross, which is no power of two.
    order = [*range(5), 7, 8, 5, 6]
    (whole, partial) = exchanges(AffineMap.from_bit_order(order), 128, Memory(4, WHOLE // 4))
    assert (whole.elements, partial.elements) == (512, 384)
    assert len(partial.rounds) == 1


def test_c6_rounds_need_no_selects_where_registers_split_the_tile() -> None:
    """128 KiB through 32 KiB are four rounds; two register bits that stay such bits split it."""
    rotated = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 14, 13]
    free = exchanges(AffineMap.from_bit_order(rotated), 1024, Memory(4, WHOLE // 4))
    assert [(len(x.rounds), x.cost.selects) for x in free] == [(4, 0)]
    mixed = [*range(5, 15), *range(5)]
    (bound, *_) = exchanges(AffineMap.from_bit_order(mixed), 1024, Memory(4, WHOLE // 4))
    assert (len(bound.rounds), bound.cost.selects) == (4, 2 * 2 * 32)


def test_c6_what_stays_in_its_simdgroups_never_takes_a_barrier() -> None:
    """Not even where 32 registers all change places with lanes: simplification relies on it."""
    for order in ([*range(5, 10), *range(5)], [6, 7, 8, 9, 5, 1, 2, 3, 4, 0]):
        for element_bytes in (2, 4):
            memory = Memory(element_bytes, WHOLE // element_bytes)
            found = exchanges(AffineMap.from_bit_order(order, 3), 32, memory)
            assert min(found, key=lambda x: x.cost.total).mechanism == "shuffle"


def test_c6_the_mixed_bits_save_one_round_of_shuffles_in_two_to_the_k() -> None:
    for k in range(1, 6):
        bits = list(range(5 + k))
        for pair_ in range(k):
            bits[pair_], bits[5 + pair_] = bits[5 + pair_], bits[pair_]
        local = exchanges(AffineMap.from_bit_order(bits), 32, Memory(4, WHOLE // 4))[0]
        # All but one of the last choices of registers that stay and the first ones after.
        assert local.cost == Cost(2**k - 1, 2 * k * 2**k - 1)
    # Where lanes move as well, every round needs its shuffle.
    local = exchanges(AffineMap.from_bit_order([5, 2, 1, 3, 4, 0]), 32, Memory(4, WHOLE // 4))[0]
    assert local.cost == Cost(2, 4)


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_the_degree_of_conflict_is_what_counting_gives(element_bytes: int) -> None:
    """F42: any affine map, singular ones too; brute force is the oracle."""
    rng = Random(element_bytes)
    for _ in range(count(ci=200, full=5000)):
        bits = rng.randrange(5, 11)
        map_ = AffineMap(
            tuple(
                rng.choice([rng.randrange(1 << bits), 1 << rng.randrange(bits)])
                for _ in range(bits)
            ),
            rng.randrange(1 << bits),
        )
        lanes = map_.apply(np.arange(32))
        assert conflicts(map_, element_bytes) == turns(lanes, element_bytes)


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_a_swizzle_frees_reads_at_any_five_bits_and_keeps_writes_free(element_bytes: int) -> None:
    rng = Random(element_bytes)
    for _ in range(count(ci=200, full=5000)):
        bits = rng.randrange(5, 16)
        reads = rng.sample(range(bits), 5)
        made = swizzle(bits, reads, element_bytes)
        assert conflicts(made, element_bytes) == 1
        assert made.inverse() @ made == AffineMap.identity(bits)
        reading = AffineMap(tuple(made.columns[bit] for bit in reads) + (0,) * (bits - 5))
        assert turns(reading.apply(np.arange(32)), element_bytes) == 1


@pytest.mark.parametrize("element_bytes", [2, 4])
def test_a_tile_that_is_stored_and_read_lies_free_of_conflicts(element_bytes: int) -> None:
    """P3: lanes that stand for any bits of the number, or for none; brute force counts."""
    rng = Random(element_bytes)
    for _ in range(count(ci=100, full=2000)):
        bits = rng.randrange(5, 14)
        accesses = [
            [1 << bit if rng.random() < 0.9 else 0 for bit in rng.sample(range(bits), 5)]
            for _ in range(2)
        ]
        made = spread(bits, accesses, element_bytes)
        assert made.inverse() @ made == AffineMap.identity(bits)
        assert made.constant == 0
        for lanes in accesses:
            stands = AffineMap((*lanes, *[0] * (bits - 5)))
            assert turns(made.apply(stands.apply(np.arange(32))), element_bytes) == 1


def test_a_tile_that_has_no_conflicts_lies_row_by_row() -> None:
    rows = [1 << bit for bit in range(5)]
    assert spread(10, [rows, rows], 4) == AffineMap.identity(10)
    assert spread(5, [rows, rows[::-1]], 4) == AffineMap.identity(5)
    # Lanes 128 bytes apart share a bank, and only then; one XOR frees them.
    assert turns(np.arange(0, 1024, 32), 4) == 32
    assert spread(10, [[32, 64, 128, 256, 512]], 4) != AffineMap.identity(10)


def test_the_cost_is_the_weighted_sum_and_counts_conflicts_as_turns() -> None:
    assert Cost(shuffles=3, selects=2).total == 3 * 4 + 2
    assert Cost(stores=2, loads=2, barriers=2, bytes=1025).total == 4 * 4 + 2 * BARRIER + 2 * 2
    assert Cost(stores=2, loads=2, read_conflicts=8).total == 4 * (2 + 16)
    neighbours = ThreadLayout((5, 6, 0, 1, 2, 3, 4), elements_per_thread=4)
    striped = ThreadLayout.identity(128, elements_per_thread=4)
    assert (groups_gained(striped, neighbours), groups_gained(neighbours, striped)) == (1, -1)
