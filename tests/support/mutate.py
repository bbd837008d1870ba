"""Faults planted in a planned or per-thread program: each function gives every variant it can make.

A verifier that accepts one of them has a hole. `FAULTS` maps the name of a fault to its function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u16, u32
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.core import Block, Func, Op, Value, walk
from metile_mlx.ir.types import SlotsType, TileType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
"""As MSL text has it."""

BARRIERS = (planned.Barrier, metal.Barrier)
STORES = (planned.ScratchStore, metal.ThreadgroupStore)
LOADS = (planned.ScratchLoad, metal.ThreadgroupLoad)
SHUFFLES = (planned.Shuffle, metal.Shuffle)
MOVES = (planned.ScratchLoad, planned.Shuffle, planned.Choose)


@dataclass(frozen=True)
class Mutant:
    """A faulty program; `line` is the source line of the op that was tampered with."""

    func: Func
    line: int


def edit(func: Func, changes: Mapping[Op, Sequence[Op]]) -> Func:
    """Each op that is a key gives way to its ops; results and uses are typed anew behind it."""
    mapping: dict[Value, Value] = {}

    def visit(block: Block) -> Block:
        ops: list[Op] = []
        for old in block.ops:
            for new in changes.get(old, (old,)):
                made = new.with_operands(mapping)
                if new is old:
                    inner: dict[str, Any] = {n: visit(getattr(old, n)) for n in old.block_fields}
                    made = replace(made, **inner) if inner else made
                ops.append(_retyped(made, mapping))
        return Block(tuple(ops), block.args)

    return func.with_body(visit(func.body))


def _retyped(item: Op, mapping: dict[Value, Value]) -> Op:
    results = []
    for value, type_ in zip(item.results, item.infer(), strict=True):
        made = value if value.type == type_ else Value(type_, value.name, value.loc)
        if made is not value:
            mapping[value] = made
        results.append(made)
    return replace(item, results=tuple(results))


def ops_of(func: Func, *kinds: type[Op]) -> list[Op]:
    """The ops of these kinds, in blocks too."""
    return [item for item in walk(func.body) if isinstance(item, kinds)]


def drop_barrier(func: Func) -> Iterator[Mutant]:
    for item in ops_of(func, *BARRIERS):
        yield Mutant(edit(func, {item: ()}), item.loc.line)


def condition_barrier(func: Func) -> Iterator[Mutant]:
    """A barrier, a shuffle, a load or a store of scratch moves under a condition that is true."""
    for item in ops_of(func, *BARRIERS, *STORES):
        yield Mutant(edit(func, {item: under_condition(item)}), item.loc.line)


def under_condition(item: Op) -> tuple[Op, Op]:
    """The op inside `if True`, in the op set it belongs to."""
    ops = metal if item.opcode.startswith("metal.") else tile
    constant = ops.Constant(True, bool_, loc=item.loc)
    constant = replace(constant, results=(Value(constant.infer()[0], "always", item.loc),))
    end = ops.Yield(loc=item.loc)
    branch = ops.If(constant.result, Block((item, end)), Block((end,)), loc=item.loc)
    return constant, branch


def shrink_scratch(func: Func) -> Iterator[Mutant]:
    for item in ops_of(func, planned.Scratch, metal.ThreadgroupAlloc):
        for elements in (item.elements // 2, item.elements - 1, 0):  # type: ignore[attr-defined]
            changed = replace(item, elements=elements)  # type: ignore[call-arg]
            yield Mutant(edit(func, {item: (changed,)}), item.loc.line)


def _tampered(original: AffineMap) -> Iterator[AffineMap]:
    """Other maps: a flipped constant bit (each), two bits exchanged, two slots made one."""
    columns = original.columns
    for bit in range(original.bits):
        yield AffineMap(columns, original.constant ^ 1 << bit)
    yield AffineMap((columns[1], columns[0], *columns[2:]), original.constant)
    yield AffineMap((*columns[:-2], columns[-1], columns[-2]), original.constant)
    yield AffineMap((columns[1], *columns[1:]), original.constant)


def wrong_source_lane(func: Func) -> Iterator[Mutant]:
    for item in ops_of(func, planned.Shuffle):
        assert isinstance(item, planned.Shuffle)
        for lanes in _tampered(item.lanes):
            yield Mutant(edit(func, {item: (replace(item, lanes=lanes),)}), item.loc.line)


def wrong_owner_slot(func: Func) -> Iterator[Mutant]:
    for item in ops_of(func, planned.ScratchStore, planned.ScratchLoad):
        assert isinstance(item, planned.ScratchStore | planned.ScratchLoad)
        for slots in _tampered(item.slots):
            changed = replace(item, slots=slots)
            # A map may differ in the slots of other rounds only.
            if _places(changed, func.threads) != _places(item, func.threads):
                yield Mutant(edit(func, {item: (changed,)}), item.loc.line)


def _places(item: planned.ScratchStore | planned.ScratchLoad, threads: int) -> list[int]:
    """The scratch element of each slot that takes part."""
    registers = item.registers or range(item.slots.size // threads)
    slots = [r * threads + thread for r in registers for thread in range(threads)]
    return [item.slots.apply(slot) for slot in slots]


def reuse_before_release(func: Func) -> Iterator[Mutant]:
    """A release moves behind the store that comes next to the same scratch."""
    releases = [item for item in ops_of(func, *BARRIERS) if _role(item) == "release"]
    stores = ops_of(func, *STORES)
    order = {item: position for position, item in enumerate(func.body.ops)}
    for release in releases:
        before = [item for item in stores if order[item] < order[release]]
        after = [item for item in stores if order[item] > order[release]]
        if after and _buffer(after[0]) is _buffer(before[-1]):
            moved = {release: (), after[0]: (after[0], release)}
            yield Mutant(edit(func, moved), after[0].loc.line)


def _role(item: Op) -> object:
    return item.attributes()["role"]


def _buffer(item: Op) -> Value:
    return item.operands()[0]


OTHER_DTYPE: dict[DType, DType] = {f16: u16, u16: f16, f32: u32, i32: f32, u32: bool_}


def wrong_dtype(func: Func) -> Iterator[Mutant]:
    """Scratch of another dtype; and values that travel undisguised or come back by a conversion."""
    for item in ops_of(func, planned.Scratch):
        assert isinstance(item, planned.Scratch)
        other = replace(item, dtype=OTHER_DTYPE[item.dtype])
        yield Mutant(edit(func, {item: (other,)}), item.loc.line)
    for item in ops_of(func, tile.Bitcast):
        assert isinstance(item, tile.Bitcast)
        cast = tile.Cast(item.src, item.dtype, results=item.results, loc=item.loc)
        yield Mutant(edit(func, {item: (cast,)}), item.loc.line)
    for item in ops_of(func, planned.Shuffle):
        assert isinstance(item, planned.Shuffle)
        maker = next(other for other in func.body.ops if item.src in other.results)
        if isinstance(maker, tile.Cast | tile.Bitcast):
            bare = replace(item, src=maker.src)
            user = next(other for other in func.body.ops if item.result in other.operands())
            changes: dict[Op, Sequence[Op]] = {maker: (), item: (bare,), user: ()}
            yield Mutant(_renamed(edit(func, changes), user.result, bare.result), item.loc.line)


def _renamed(func: Func, old: Value, like: Value) -> Func:
    """Uses of `old` become uses of the value that stands for `like`."""
    new = next(
        value
        for item in func.body.ops
        if isinstance(item, planned.Shuffle)
        for value in item.results
        if value.loc == like.loc
    )
    ops = tuple(item.with_operands({old: new}) for item in func.body.ops)
    return func.with_body(Block(ops, func.body.args))


def leave_conversion_out(func: Func) -> Iterator[Mutant]:
    """What a conversion made is replaced by what it was made from; its barriers go too."""
    for line in sorted({item.loc.line for item in ops_of(func, *MOVES)}):
        source = _source(func, line)
        gone = [
            other
            for other in func.body.ops
            if other.loc.line == line and not isinstance(other, planned.Scratch)
        ]
        (kept,) = [
            value
            for other in gone
            for value in other.results
            if any(value in user.operands() for user in func.body.ops if user not in gone)
        ]
        ops = tuple(
            other.with_operands({kept: source}) for other in func.body.ops if other not in gone
        )
        yield Mutant(func.with_body(Block(ops, func.body.args)), line)


def _source(func: Func, line: int) -> Value:
    """What the conversion in this line reads."""
    ops = [other for other in func.body.ops if other.loc.line == line]
    made = {value for other in ops for value in other.results}
    (source,) = {
        value
        for other in ops
        for value in other.operands()
        if value not in made and isinstance(value.type, TileType)
    }
    return source


def swap_store_and_load(func: Func) -> Iterator[Mutant]:
    """A load changes places with the store it reads from."""
    stores, loads = ops_of(func, *STORES), ops_of(func, *LOADS)
    for store, load in zip(stores, loads, strict=True):
        yield Mutant(edit(func, {store: (load,), load: (store,)}), load.loc.line)


def wrong_layout(func: Func) -> Iterator[Mutant]:
    """A move says that its result has other owners than it delivers to."""
    for item in ops_of(func, *MOVES):
        assert isinstance(item, planned.ScratchLoad | planned.Shuffle | planned.Choose)
        if item.layout is None:
            continue
        order, registers = item.layout.bit_order, item.layout.elements_per_thread
        for other in (
            ThreadLayout(order, item.layout.xor_mask ^ 1, registers),
            ThreadLayout((order[1], order[0], *order[2:]), item.layout.xor_mask, registers),
        ):
            yield Mutant(edit(func, {item: (replace(item, layout=other),)}), item.loc.line)


def wrong_result_type(func: Func) -> Iterator[Mutant]:
    """A result's type is not what its op computes; its uses agree with the lie."""
    for item in ops_of(func, *MOVES):
        (value,) = item.results
        assert isinstance(value.type, TileType | SlotsType)
        for dtype in {f16, bf16, u32} - {value.type.dtype}:
            lie = Value(replace(value.type, dtype=dtype), value.name, value.loc)
            ops = tuple(
                replace(other, results=(lie,))
                if other is item
                else other.with_operands({value: lie})
                for other in func.body.ops
            )
            yield Mutant(func.with_body(Block(ops, func.body.args)), item.loc.line)


def wrong_choice(func: Func) -> Iterator[Mutant]:
    """Sides exchanged, in one register and in all; another bit; a register out of its place."""
    for item in ops_of(func, planned.Choose):
        assert isinstance(item, planned.Choose)
        taken = item.registers
        real = [r for r, (a, b) in enumerate(taken) if a != b]
        wrong: list[Op] = []
        for register in real[:2]:
            swapped = [(b, a) if r == register else (a, b) for r, (a, b) in enumerate(taken)]
            wrong.append(replace(item, registers=tuple(swapped)))
            narrowed = [(a, a) if r == register else (a, b) for r, (a, b) in enumerate(taken)]
            wrong.append(replace(item, registers=tuple(narrowed)))
        if real:
            wrong.append(replace(item, registers=tuple((b, a) for a, b in taken)))
            wrong.append(replace(item, bit=(item.bit + 1) % 5))
        wrong.append(replace(item, registers=(taken[1], taken[0], *taken[2:])))
        for other in wrong:
            yield Mutant(edit(func, {item: (other,)}), item.loc.line)


def wrong_registers(func: Func) -> Iterator[Mutant]:
    """Of a store, load or shuffle: one register fewer, one more, and one for another."""
    for item in ops_of(func, planned.ScratchStore, planned.ScratchLoad, planned.Shuffle):
        assert isinstance(item, planned.ScratchStore | planned.ScratchLoad | planned.Shuffle)
        if item.registers is None:
            continue
        value = item.value if isinstance(item, planned.ScratchStore) else item.results[0]
        others = [r for r in range(planned.held(value).registers) if r not in item.registers]
        wrong = [(*item.registers[1:], others[0]), (*item.registers, others[0])]
        if len(item.registers) > 1:
            wrong.append(item.registers[1:])
        for registers in wrong:
            changed = replace(item, registers=registers)
            yield Mutant(edit(func, {item: (changed,)}), item.loc.line)


def swapped_rounds(func: Func) -> Iterator[Mutant]:
    """The store, or the load, of one round of a conversion does what that of the next one does."""
    for kind in (planned.ScratchStore, planned.ScratchLoad):
        found = ops_of(func, kind)
        for one, next_ in pairwise(found):
            assert isinstance(one, planned.ScratchStore | planned.ScratchLoad)
            assert isinstance(next_, planned.ScratchStore | planned.ScratchLoad)
            if one.loc.line == next_.loc.line:
                first = replace(one, registers=next_.registers, skip=next_.skip)
                second = replace(next_, registers=one.registers, skip=one.skip)
                yield Mutant(edit(func, {one: (first,), next_: (second,)}), one.loc.line)


def wrong_skip(func: Func) -> Iterator[Mutant]:
    for item in ops_of(func, planned.ScratchStore, planned.ScratchLoad):
        assert isinstance(item, planned.ScratchStore | planned.ScratchLoad)
        for skip in (item.skip + 1, item.skip - 32):
            yield Mutant(edit(func, {item: (replace(item, skip=skip),)}), item.loc.line)


def wrong_base(func: Func) -> Iterator[Mutant]:
    """A round puts its elements among those from before the round before it."""
    made = {value: item for item in func.body.ops for value in item.results}
    for item in ops_of(func, planned.ScratchLoad):
        assert isinstance(item, planned.ScratchLoad)
        step = None if item.base is None else made[item.base]
        earlier = None
        if isinstance(step, planned.ScratchLoad):
            earlier = step.base
        if earlier is not None:
            changed = replace(item, base=earlier)
            yield Mutant(edit(func, {item: (changed,)}), item.loc.line)


FAULTS: dict[str, Callable[[Func], Iterator[Mutant]]] = {
    "barrier dropped": drop_barrier,
    "barrier or store made conditional": condition_barrier,
    "scratch too small": shrink_scratch,
    "wrong source lane": wrong_source_lane,
    "wrong owner slot": wrong_owner_slot,
    "scratch reused before release": reuse_before_release,
    "wrong dtype": wrong_dtype,
    "conversion left out": leave_conversion_out,
    "store and load swapped": swap_store_and_load,
    "wrong layout on a result": wrong_layout,
    "wrong type on a result": wrong_result_type,
}

REGISTER_FAULTS: dict[str, Callable[[Func], Iterator[Mutant]]] = {
    "wrong choice": wrong_choice,
    "wrong registers": wrong_registers,
    "swapped rounds": swapped_rounds,
    "wrong skip": wrong_skip,
    "wrong base": wrong_base,
}
"""What can go wrong only with several values per thread."""


def without_barrier(source: KernelSource, number: int) -> KernelSource:
    """An MSL text without one of its threadgroup barriers, counted from the first."""
    lines = source.body.split("\n")
    barriers = [n for n, line in enumerate(lines) if line.strip() == BARRIER]
    assert 0 <= number < len(barriers), f"{source.name} has {len(barriers)} barriers"
    del lines[barriers[number]]
    return replace(source, body="\n".join(lines))
