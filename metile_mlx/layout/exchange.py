"""How values get from the slots of one layout to those of another: the algebra (SPEC C6).

The problem
-----------
A slot is a thread and a register; its number has the lane in bits 0 to 4, the simdgroup above, the
register on top. `transition(source, destination)` is the map M from a destination slot to the
source slot that holds its element. For thread layouts M moves bits about and XORs a constant. What
hardware has is less: a thread renames its registers for nothing; a shuffle gives each lane one
register of another lane of its simdgroup; threadgroup memory takes anything anywhere, between two
barriers. None lets a lane say *which* register to take: register numbers are part of the program.

Where thread bits stay among thread bits and register bits among register bits, M is one permutation
of threads for each register. The interesting bits are the mixed ones: a destination register bit
that is a source thread bit, and, there being as many, a destination thread bit that is a source
register bit.

Rounds
------
Let k bits be mixed. Pair each destination register bit rho (source thread bit eps) with a
destination thread bit delta (source register bit omega), in any way. Then

    M = Before . X . After        (slots flow from right to left: M maps destination to source)

    Before: register bit omega ^= thread bit eps        for each pair
    After:  register bit rho   ^= thread bit delta      for each pair

and X takes delta to eps and rho to (omega, eps): threads go to threads, registers to registers,
except that the register number XORs into the thread. So for each register X is one permutation of
the threads. `Before` and `After` move nothing between threads: a stage for each pair, in which
register r takes register r ^ 2**omega where bit eps of the thread is set: a select per register.
Both are their own inverses, so X = Before . M . After; constants need no care, they are part of X.

In words: in round i of 2**k a thread sends the register whose mixed bits are its own thread bits
XOR i, and puts what it gets into the register named by its own bits XOR i. All rounds' choices
together are the k stages: 2 k selects per register instead of 2**k.

If the pairs are chosen so that delta == eps wherever a thread bit is on both sides, and all other
thread bits stay, X is thread ^ constant(register), and for one round in 2**k that is the thread
itself: it needs no shuffle. This meets the lower bound: a lane has that many elements already, and
a shuffle brings one. The pairwise exchange of bits (send one of two registers, take one back) is
this with k = 1; done k times it needs k / 2 shuffles per register where rounds need 1 - 2**-k,
never more, so it is no candidate of its own.

Threadgroup memory
------------------
Through memory a slot writes where it likes and reads where it likes, so M needs no selects: write
at the source slot, read at M(destination slot). What limits it is size. A part of the exchange can
go on its own if it is closed: the elements some registers hold before are those some registers hold
after. Register bits that M moves among themselves split it so. Where there are too few of these, a
pair whose stages have been done is such a bit as well (rho to omega). So with c bits chosen, free
ones first, the tile falls into 2**c closed blocks, and as many blocks as fit go in a round: store,
barrier, load, barrier.

Only what crosses
-----------------
If the simdgroup bits that are mixed are the same on both sides and the others stay, the stages of
these pairs make X keep the simdgroup in one block of 2**kg and leave it in all others. That block
goes by shuffles, as above, or needs nothing; the others go through memory, and the address of a
block is its number less one. Otherwise every register crosses in some threads.

Addresses are the source slot, in-block bits first, with the swizzle of `banks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.banks import conflicts, swizzle
from metile_mlx.layout.costs import Cost
from metile_mlx.layout.steps import (
    Choice,
    Exchange,
    Lanes,
    Registers,
    Round,
    is_still,
    selects,
)
from metile_mlx.target import LANE_BITS


@dataclass(frozen=True)
class Memory:
    """Threadgroup memory as a conversion sees it.

    Attributes:
        element_bytes: of what travels, 2 or 4.
        capacity: elements that fit.
        banks: whether lanes conflict; a CPU has no banks.
    """

    element_bytes: int
    capacity: int
    banks: bool = True


@dataclass(frozen=True)
class _Pair:
    """Bits of slots that cross: after the move register bit `rho` is what thread bit `eps` was, and
    thread bit `delta` what register bit `omega` was."""

    rho: int
    eps: int
    delta: int
    omega: int


class _Problem:
    """One transition, taken apart. Bits are bits of slots; `low` of them number the threads."""

    def __init__(self, moves: AffineMap, threads: int) -> None:
        self.moves = moves
        self.low = threads.bit_length() - 1
        self.threads = threads
        self.registers = moves.size // threads
        sources = [column.bit_length() - 1 for column in moves.columns]
        self.free = [
            (bit, source)
            for bit, source in enumerate(sources)
            if bit >= self.low and source >= self.low
        ]
        self.pairs = tuple(self._pairs(sources))
        self.group = tuple(pair for pair in self.pairs if pair.eps >= LANE_BITS)
        self.lane = tuple(pair for pair in self.pairs if pair.eps < LANE_BITS)

    def _pairs(self, sources: Sequence[int]) -> Iterator[_Pair]:
        rhos = {
            sources[bit]: bit for bit in range(self.low, len(sources)) if sources[bit] < self.low
        }
        deltas = [bit for bit in range(self.low) if sources[bit] >= self.low]
        for delta in [delta for delta in deltas if delta in rhos]:
            deltas.remove(delta)
            yield _Pair(rhos.pop(delta), delta, delta, sources[delta])
        for delta, eps in zip(deltas, sorted(rhos), strict=True):
            yield _Pair(rhos[eps], eps, delta, sources[delta])

    def crosses(self) -> bool:
        """Whether some element changes its simdgroup."""
        return any(
            column >> LANE_BITS != (1 << bit if bit < self.low else 0) >> LANE_BITS
            for bit, column in enumerate(_threads_of(self.moves, self.low))
        ) or bool(self.moves.constant % self.threads >> LANE_BITS)

    def splits(self) -> bool:
        """Whether the stages of the `group` pairs leave one block in which nothing crosses."""
        mixed = {pair.delta for pair in self.group}
        fixed = [bit for bit in range(LANE_BITS, self.low) if bit not in mixed]
        return (
            bool(self.group)
            and all(pair.delta == pair.eps for pair in self.group)
            and all(pair.delta < LANE_BITS for pair in self.lane)
            and all(self.moves.columns[bit] == 1 << bit for bit in fixed)
            and not any(self.moves.constant >> bit & 1 for bit in fixed)
        )

    def inner(self, pairs: Sequence[_Pair]) -> AffineMap:
        """X, when the stages of these pairs are done: what is left to be moved."""
        if not pairs:
            return self.moves
        before = [1 << bit for bit in range(self.moves.bits)]
        after = list(before)
        for pair in pairs:
            before[pair.eps] |= 1 << pair.omega
            after[pair.delta] |= 1 << pair.rho
        return AffineMap(tuple(before)) @ self.moves @ AffineMap(tuple(after))

    def before(self, pairs: Iterable[_Pair], among: Registers | None = None) -> list[Choice]:
        return [self._stage(pair.eps, pair.omega, among) for pair in pairs]

    def after(self, pairs: Sequence[_Pair], among: Registers | None = None) -> list[Choice]:
        # In reverse, so that the last stage before and the first one after ask the same bit.
        return [self._stage(pair.delta, pair.rho, among) for pair in reversed(pairs)]

    def _stage(self, bit: int, register_bit: int, among: Registers | None) -> Choice:
        flip = 1 << register_bit - self.low
        moved = range(self.registers) if among is None else among
        taken = [(r, r ^ flip if r in moved else r) for r in range(self.registers)]
        return Choice(bit, tuple(taken))

    def lanes(self, inner: AffineMap, among: Registers) -> tuple[Choice | Lanes, int]:
        """The move within simdgroups of some registers, and how many shuffles it takes."""
        sources = {r: inner.apply(r * self.threads) for r in among}
        still = is_still(inner, self.threads)
        shuffles = sum(not still or source % self.threads != 0 for source in sources.values())
        if shuffles:
            return Lanes(inner, among), shuffles
        names = [sources.get(r, r * self.threads) // self.threads for r in range(self.registers)]
        return Choice(0, tuple((name, name) for name in names)), 0


def _threads_of(moves: AffineMap, low: int) -> list[int]:
    """The columns of a map of slots, thread bits of the image only."""
    return [column & ((1 << low) - 1) for column in moves.columns]


def exchanges(moves: AffineMap, threads: int, memory: Memory) -> tuple[Exchange, ...]:
    """Every lowering that is worth a comparison, for a transition that is not the identity.

    The first of mechanism `threadgroup` has no stages that the size of memory doesn't ask for.

    Args:
        moves: destination slot -> source slot, a permutation of bits and a constant.
        threads: of the threadgroup.
        memory: what there is; one register of all threads fits at least.
    """
    problem = _Problem(moves, threads)
    found = list(_whole(problem, memory))
    if not problem.crosses():
        found.insert(0, _local(problem))
    elif problem.splits():
        found += _partial(problem, memory)
    return tuple(found)


def _local(p: _Problem) -> Exchange:
    """Registers and shuffles only."""
    everything = tuple(range(p.registers))
    before, after = p.before(p.pairs), p.after(p.pairs)
    move, shuffles = p.lanes(p.inner(p.pairs), everything)
    mechanism = "shuffle" if shuffles else "registers"
    made = Exchange(mechanism, Cost(shuffles), local=(*before, move, *after))
    return replace(made, cost=replace(made.cost, selects=selects(made, p.registers, p.threads)))


def _whole(p: _Problem, memory: Memory) -> Iterator[Exchange]:
    """All registers through memory."""
    splits = p.moves.bits - p.low
    fewest = None
    for chosen in range(splits + 1):
        free = p.free[:chosen]
        pairs = p.pairs[: chosen - len(free)]
        inner = p.inner(pairs)
        blocks = [*(source for _, source in free), *(pair.omega for pair in pairs)]
        made = _rounds(p, inner, blocks, memory, keep=None)
        if made is None or (fewest is not None and len(made) >= fewest):
            continue
        fewest = len(made)
        before, after = tuple(p.before(pairs)), tuple(p.after(pairs))
        yield _through(p, Exchange("threadgroup", Cost(), before, (), made, after), memory)


def _partial(p: _Problem, memory: Memory) -> Iterator[Exchange]:
    """Only the blocks that cross through memory."""
    fewest = None
    for chosen in range(len(p.free) + len(p.lane) + 1):
        free = p.free[:chosen]
        lane = p.lane[: chosen - len(free)]
        pairs = (*lane, *p.group)
        inner = p.inner(pairs)
        starts = [inner.apply(r * p.threads) for r in range(p.registers)]
        here = tuple(r for r, start in enumerate(starts) if not start % p.threads >> LANE_BITS)
        blocks = [*(source for _, source in free), *(pair.omega for pair in pairs)]
        made = _rounds(p, inner, blocks, memory, keep=starts[here[0]], groups=len(p.group))
        if made is None or (fewest is not None and len(made) >= fewest):
            continue
        fewest = len(made)
        rest = p.lane[len(lane) :]
        complete = p.inner(p.pairs)
        sources = tuple(sorted(complete.apply(r * p.threads) // p.threads for r in here))
        move, shuffles = p.lanes(complete, here)
        yield _through(
            p,
            Exchange(
                "partial",
                Cost(shuffles),
                tuple(p.before(pairs)),
                (*p.before(rest, sources), move),
                made,
                (*p.after(rest, here), *p.after(pairs)),
            ),
            memory,
        )


def _rounds(
    p: _Problem,
    inner: AffineMap,
    blocks: Sequence[int],
    memory: Memory,
    keep: int | None,
    groups: int = 0,
) -> tuple[Round, ...] | None:
    """The rounds through memory; None where not even one block fits.

    Args:
        blocks: the source register bits that number the blocks, lowest first.
        keep: a source slot of the block that does not travel, or None.
        groups: how many of `blocks`, the highest, tell that block from the others.
    """
    bits = p.moves.bits
    inside = [bit for bit in range(bits) if bit not in blocks]
    size = 1 << len(inside)
    if size > memory.capacity:
        return None
    columns = [0] * bits
    for position, bit in enumerate((*inside, *blocks)):
        columns[bit] = 1 << position
    writes = AffineMap(tuple(columns))
    if keep is not None:
        top = bits - groups
        writes = replace(writes, constant=writes.apply(keep) >> top << top)
    reads = writes @ inner
    if memory.banks:
        lanes = [column.bit_length() - 1 for column in reads.columns[:LANE_BITS]]
        mixed = swizzle(bits, lanes, memory.element_bytes)
        if not mixed.is_identity:
            writes, reads = mixed @ writes, mixed @ reads
    stored = [writes.apply(r * p.threads) // size for r in range(p.registers)]
    loaded = [reads.apply(r * p.threads) // size for r in range(p.registers)]
    first = 0 if keep is None else 1 << len(blocks) - groups
    count = 1 << len(blocks)
    # As many rounds as must be, of blocks as even as can be.
    trips = -(-(count - first) // (memory.capacity // size))
    each = -(-(count - first) // trips)
    return tuple(
        Round(
            writes,
            reads,
            tuple(r for r, block in enumerate(stored) if begin <= block < begin + each),
            tuple(r for r, block in enumerate(loaded) if begin <= block < begin + each),
            begin * size,
        )
        for begin in range(first, count, each)
    )


def _through(p: _Problem, exchange: Exchange, memory: Memory) -> Exchange:
    """The exchange with its size and the whole of its cost."""
    rounds = exchange.rounds
    elements = max(len(each.stored) for each in rounds) * p.threads
    moved = sum(len(each.stored) for each in rounds)
    degrees = (
        conflicts(rounds[0].writes, memory.element_bytes) if memory.banks else 1,
        conflicts(rounds[0].reads, memory.element_bytes) if memory.banks else 1,
    )
    cost = Cost(
        exchange.cost.shuffles,
        selects(exchange, p.registers, p.threads),
        moved,
        moved,
        2 * len(rounds),
        elements * memory.element_bytes,
        *degrees,
    )
    return replace(exchange, cost=cost, elements=elements)
