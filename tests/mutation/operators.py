"""The operators: each damages a program at one place, at every place it can, one mutant each.

They read what an op is from its fields and its effect, so a new op is damaged without a new line
here: a barrier is what communicates and has neither operand nor result, lanes are maps of what
communicates, slots are maps and indices of what accesses memory, scratch is what has its type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u16, u32
from metile_mlx.errors import MetileError
from metile_mlx.ir.arith import BinaryKind, CompareKind, element
from metile_mlx.ir.core import Block, Effect, Func, Op, Value, definitions
from metile_mlx.ir.types import ScratchType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout
from tests.mutation.editing import (
    MEMORY,
    Place,
    is_ordered,
    made,
    moved,
    op_set,
    places,
    put,
    uses,
    with_ops,
)


@dataclass(frozen=True)
class Mutant:
    """A damaged program.

    Attributes:
        func: the program.
        op: what was damaged, as it stood before.
        how: what was done to it.
        passed: the ops that it passed, where it was moved.
        others: the ops that gave it something else, or got something from it.
        kept: what is left of a mask that lost a condition.
    """

    func: Func
    op: Op
    how: str
    passed: tuple[Op, ...] = ()
    others: tuple[Op, ...] = ()
    kept: Value | None = None


Found = Iterator[Mutant]


def is_barrier(item: Op) -> bool:
    bare = not item.operands() and not item.results and not item.blocks()
    return bool(item.effect & Effect.CONVERGENT) and bare


def is_scratch(item: Op) -> bool:
    return any(isinstance(value.type, ScratchType) for value in item.results)


def scratch_of(item: Op) -> frozenset[tuple[Value, Value | None]]:
    """The scratch that an op accesses, and which stage of it: those of the phase of a pipeline are
    different ones, as verify/pipelines.py shows."""
    memory = [value for value in item.operands() if isinstance(value.type, ScratchType)]
    return frozenset((value, getattr(item, "stage", None)) for value in memory)


def fields_of(item: Op, kind: type) -> Iterator[tuple[str, Any]]:
    """The fields of an op that hold a `kind`, and one of each tuple's members."""
    for name in item.field_names:
        value = getattr(item, name)
        if isinstance(value, kind):
            yield name, value


def changed(item: Op, **fields: Any) -> Op:
    """The op with other fields."""
    return replace(item, **fields)


def drop_barrier(func: Func) -> Found:
    for place, item, block in places(func):
        if is_barrier(item):
            yield Mutant(put(func, place, block), item, "dropped")


def duplicate_barrier(func: Func) -> Found:
    for place, item, block in places(func):
        if is_barrier(item):
            yield Mutant(put(func, place, block, item, item), item, "duplicated")


def move_barrier(func: Func) -> Found:
    """Past its neighbours in memory and communication: past pure work nothing would change."""
    for place, item, block in places(func):
        if not is_barrier(item):
            continue
        ordered = [i for i, other in enumerate(block.ops) if is_ordered(other)]
        for index in [i for i in ordered if i < place.index][-1:]:
            func_ = moved(func, place.path, block, place.index, index)
            yield Mutant(func_, item, "moved up", (block.ops[index],))
        for index in [i for i in ordered if i > place.index][:1]:
            func_ = moved(func, place.path, block, place.index, index)
            yield Mutant(func_, item, "moved down", (block.ops[index],))


def guard(func: Func) -> Found:
    """What communicates, or accesses scratch, under a condition: always true, or of one program."""
    for place, item, block in places(func):
        touches = any(isinstance(value.type, ScratchType) for value in item.operands())
        if not (item.effect & Effect.CONVERGENT or touches):
            continue
        for how in ("always true", "the first program"):
            ops = _guarded(item, how)
            if ops is not None:
                yield Mutant(put(func, place, block, *ops), item, f"guarded: {how}")


def _guarded(item: Op, how: str) -> Sequence[Op] | None:
    ops = op_set(item)
    if how == "always true":
        head = [made(ops.Constant(True, bool_), item)]
    else:
        program = made(ops.ProgramId(0), item)
        zero = made(ops.Constant(0, i32), item)
        first = made(ops.Compare(CompareKind.EQ, program.result, zero.result), item)
        head = [program, zero, first]
    others = []
    for value in item.results:
        other = next((v for v in item.operands() if v.type == value.type), None)
        if other is None:
            return None
        others.append(other)
    inner = replace(item, results=tuple(Value(v.type, v.name, v.loc) for v in item.results))
    then = Block((inner, ops.Yield(inner.results, loc=item.loc)))
    otherwise = Block((ops.Yield(tuple(others), loc=item.loc),))
    branch = ops.If(head[-1].result, then, otherwise, results=item.results, loc=item.loc)
    return [*head, branch]


def tampered(original: AffineMap) -> Iterator[tuple[str, AffineMap]]:
    """Other maps of as many bits: each constant bit flipped, bits exchanged, shifted, two the same.

    Those that are the original by accident are left out.
    """
    columns, constant = original.columns, original.constant
    candidates = [(f"bit {b} flipped", columns, constant ^ 1 << b) for b in range(len(columns))]
    for a, b in ((0, 1), (0, len(columns) - 1), (len(columns) - 2, len(columns) - 1)):
        swapped = list(columns)
        swapped[a], swapped[b] = swapped[b], swapped[a]
        candidates.append((f"bits {a} and {b} swapped", tuple(swapped), constant))
    candidates.append(("bits shifted", (*columns[1:], columns[0]), constant))
    candidates.append(("two bits the same", (columns[1], *columns[1:]), constant))
    seen = {original}
    for how, made_columns, made_constant in candidates:
        other = AffineMap(made_columns, made_constant)
        if other not in seen:
            seen.add(other)
            yield how, other


def change_lanes(func: Func) -> Found:
    """Other lanes: of the maps of what communicates, and of the lanes that one thread computes."""
    for place, item, block in places(func):
        if not item.effect & Effect.CONVERGENT:
            continue
        for name, lanes in fields_of(item, AffineMap):
            for how, other in tampered(lanes):
                yield Mutant(put(func, place, block, changed(item, **{name: other})), item, how)
        if "lane" in item.operand_fields:
            yield from _other_number(func, place, item, block, "lane", 31)


def _other_number(
    func: Func, place: Place, item: Op, block: Block, name: str, mask: int | None
) -> Found:
    """An integer operand with a bit flipped, and one more (below a power of two, where it has to
    stay there)."""
    ops = op_set(item)
    old: Value = getattr(item, name)
    dtype = element(old)
    one = made(ops.Constant(1, dtype), item)
    flipped = made(ops.Binary(BinaryKind.XOR, old, one.result), item)
    use = changed(item, **{name: flipped.result})
    yield Mutant(put(func, place, block, one, flipped, use), item, f"{name} flipped")
    added = made(ops.Binary(BinaryKind.ADD, old, one.result), item)
    new, more = added, [one, added]
    if mask is not None:
        limit = made(ops.Constant(mask, dtype), item)
        new = made(ops.Binary(BinaryKind.AND, added.result, limit.result), item)
        more += [limit, new]
    use = changed(item, **{name: new.result})
    yield Mutant(put(func, place, block, *more, use), item, f"{name} shifted")


def change_slot(func: Func) -> Found:
    """Other slots: of maps and indices of accesses, of vectors, and between sibling registers."""
    for place, item, block in places(func):
        if item.effect & MEMORY:
            for name, slots in fields_of(item, AffineMap):
                for how, other in tampered(slots):
                    use = changed(item, **{name: other})
                    yield Mutant(put(func, place, block, use), item, how)
            if "index" in item.operand_fields and isinstance(getattr(item, "index", None), Value):
                yield from _other_number(func, place, item, block, "index", None)
        yield from _renumbered(func, place, item, block)
        if isinstance(getattr(item, "lane", None), int):
            other_lane = changed(item, lane=item.lane ^ 1)  # type: ignore[attr-defined]
            yield Mutant(put(func, place, block, other_lane), item, "another lane of the vector")
        yield from _exchanged(func, place, item, block)


def _renumbered(func: Func, place: Place, item: Op, block: Block) -> Found:
    """Other registers, distances and bits of a move."""
    for name in ("skip", "bit"):
        if isinstance(getattr(item, name, None), int):
            use = changed(item, **{name: getattr(item, name) + 1})
            yield Mutant(put(func, place, block, use), item, f"{name} one more")
    registers = getattr(item, "registers", None)
    if isinstance(registers, tuple) and len(set(registers)) > 1:
        turned = (*registers[1:], registers[0])
        named = all(isinstance(register, int) for register in registers)
        other = registers[:-1] if named else turned
        use = changed(item, registers=other)
        how = "a register left out" if named else "registers turned"
        yield Mutant(put(func, place, block, use), item, how)


def _exchanged(func: Func, place: Place, item: Op, block: Block) -> Found:
    """The next op of the same kind, its sibling in another register as a rule, gives an operand or
    takes the result."""
    if not is_ordered(item) or item.blocks():
        return
    later = [other for other in block.ops[place.index + 1 :] if type(other) is type(item)]
    if not later:
        return
    sibling = later[0]
    for name in ("value", "src"):
        mine, other = getattr(item, name, None), getattr(sibling, name, None)
        if isinstance(mine, Value) and isinstance(other, Value) and mine is not other:
            defined = {v for op in block.ops[place.index :] for v in op.results}
            if mine.type == other.type and other not in defined:
                use = changed(item, **{name: other})
                func_ = put(func, place, block, use)
                yield Mutant(func_, item, f"{name} of the next one", others=(sibling,))
    one, two = item.results, sibling.results
    if len(one) == len(two) == 1 and one[0].type == two[0].type:
        swap = {item: replace(item, results=two), sibling: replace(sibling, results=one)}
        if not any(uses(op, (*one, *two)) for op in block.ops[: block.ops.index(sibling)]):
            ops = [swap.get(op, op) for op in block.ops]
            func_ = with_ops(func, place.path, ops)
            yield Mutant(func_, item, "results exchanged with the next", others=(sibling,))


def shrink_scratch(func: Func) -> Found:
    for place, item, block in places(func):
        if is_scratch(item):
            elements: int = item.elements  # type: ignore[attr-defined]
            for fewer in sorted({elements // 2, elements - 1} - {elements}):
                use = changed(item, elements=fewer)
                yield Mutant(put(func, place, block, use), item, f"{fewer} elements")


def alias_scratch(func: Func) -> Found:
    """A use of scratch goes to another one; two pieces get one id."""
    for place, item, block in places(func):
        before = [value for op in block.ops[: place.index] for value in op.results]
        others = [value for value in before if isinstance(value.type, ScratchType)]
        for value in item.operands():
            for other in others:
                if isinstance(value.type, ScratchType) and other is not value:
                    use = item.with_operands({value: other})
                    yield Mutant(put(func, place, block, use), item, f"uses {other.name}")
        if is_scratch(item):
            for op in block.ops[: place.index]:
                if is_scratch(op):
                    use = changed(item, slot=op.slot)  # type: ignore[attr-defined]
                    yield Mutant(put(func, place, block, use), item, "the id of another")


RETYPED: dict[DType, tuple[DType, ...]] = {
    f32: (u32, f16), i32: (f32, u16), u32: (i32, bool_), f16: (u16, f32), u16: (f16, bf16),
}  # fmt: skip


def retype_scratch(func: Func) -> Found:
    for place, item, block in places(func):
        if is_scratch(item):
            for dtype in RETYPED.get(item.dtype, (f32,)):  # type: ignore[attr-defined]
                use = changed(item, dtype=dtype)
                yield Mutant(put(func, place, block, use), item, f"of {dtype}")


def drop_mask(func: Func) -> Found:
    """A mask, or one of the conditions it joins, is left out."""
    defined = definitions(func)
    for place, item, block in places(func):
        for new, how, kept in _unmasked(item, defined):
            yield Mutant(put(func, place, block, new), item, how, kept=kept)


def _unmasked(item: Op, defined: dict[Value, Op]) -> Iterator[tuple[Op, str, Value | None]]:
    for name in item.operand_fields:
        held = getattr(item, name)
        if name == "mask" and isinstance(held, Value):
            yield _without(item, {name: None}, {"fill": None}), "mask dropped", None
            for part in _conditions(held, defined):
                yield changed(item, **{name: part}), "a condition of the mask dropped", part
        if name == "masks" and isinstance(held, tuple):
            for lane, mask in enumerate(held):
                if not isinstance(mask, Value):
                    continue
                fills = getattr(item, "fills", ())
                fewer = {"fills": _at(fills, lane, None)} if fills else {}
                new = changed(item, **{name: _at(held, lane, None)}, **fewer)
                yield new, f"mask of lane {lane} dropped", None
                for part in _conditions(mask, defined):
                    new = changed(item, **{name: _at(held, lane, part)})
                    yield new, f"a condition of the mask of lane {lane} dropped", part


def _at(values: tuple[Any, ...], position: int, value: Any) -> tuple[Any, ...]:
    return (*values[:position], value, *values[position + 1 :])


def _without(item: Op, fields: dict[str, None], more: dict[str, None]) -> Op:
    """The op without some operands; without others too, where it takes all or none."""
    new = changed(item, **fields)
    try:
        new.verify()
    except MetileError:
        return changed(item, **fields, **more)
    return new


def _conditions(mask: Value, defined: dict[Value, Op]) -> list[Value]:
    item = defined.get(mask)
    joined = getattr(item, "kind", None) is BinaryKind.AND
    if item is None or not joined:
        return []
    return [value for value in item.operands() if value.type == mask.type]


def reorder_access(func: Func) -> Found:
    """An access of memory changes places with what comes next in memory or communication.

    Barriers have operators of their own. An access of scratch changes nothing where it passes what
    does not access the same stage of the same scratch.
    """
    for place, item, block in places(func):
        later = [i for i, other in enumerate(block.ops) if i > place.index and is_ordered(other)]
        if not is_ordered(item) or item.blocks() or not later:
            continue
        index = later[0]
        other = block.ops[index]
        if is_barrier(item) or is_barrier(other) or not (item.effect | other.effect) & MEMORY:
            continue
        mine, theirs = scratch_of(item), scratch_of(other)
        if (mine or theirs) and not mine & theirs and not other.blocks():
            continue
        between = block.ops[place.index + 1 : index + 1]
        values = [value for op in block.ops[place.index : index] for value in op.results]
        if not any(uses(op, item.results) for op in between):
            func_ = moved(func, place.path, block, place.index, index)
            yield Mutant(func_, item, "behind the next one", (other,))
        elif not uses(other, values):
            func_ = moved(func, place.path, block, index, place.index)
            yield Mutant(func_, other, "before the last one", (item,))


def change_layout(func: Func) -> Found:
    """Other owners, and all that follows from them."""
    for place, item, block in places(func):
        for name, layout in fields_of(item, ThreadLayout):
            order, registers = layout.bit_order, layout.elements_per_thread
            first_last = (order[-1], *order[1:-1], order[0])
            for how, other in (
                ("XOR 1", ThreadLayout(order, layout.xor_mask ^ 1, registers)),
                ("the highest bit flipped",
                 ThreadLayout(order, layout.xor_mask ^ layout.size // 2, registers)),
                ("lowest bits swapped",
                 ThreadLayout((order[1], order[0], *order[2:]), layout.xor_mask, registers)),
                ("lowest and highest bit swapped",
                 ThreadLayout(first_last, layout.xor_mask, registers)),
            ):  # fmt: skip
                use = changed(item, **{name: other})
                yield Mutant(put(func, place, block, use), item, how)
        order = getattr(item, "bit_order", None)
        if isinstance(order, tuple) and len(order) > 1:
            use = changed(item, bit_order=(order[1], order[0], *order[2:]))
            yield Mutant(put(func, place, block, use), item, "lowest bits swapped")


def leave_move_out(func: Func) -> Found:
    """What a move of values gives is replaced by what it was given."""
    for place, item, block in places(func):
        maps = [*fields_of(item, ThreadLayout), *fields_of(item, AffineMap)]
        moves = bool(maps) or bool(item.effect & Effect.CONVERGENT)
        if not moves or len(item.results) != 1 or not item.operands():
            continue
        source = item.operands()[0]
        if type(source.type) is not type(item.result.type):
            continue
        kept = {item.result: source}
        rest = [op.with_operands(kept) for op in block.ops[place.index + 1 :]]
        ops = [*block.ops[: place.index], *rest]
        yield Mutant(with_ops(func, place.path, ops), item, "left out")


def break_dominance(func: Func) -> Found:
    """A definition stands behind its first use in the block."""
    for place, item, block in places(func):
        if not item.results:
            continue
        users = (
            i for i, other in enumerate(block.ops) if i > place.index and uses(other, item.results)
        )
        first = next(users, None)
        if first is not None and not block.ops[first].effect & Effect.TERMINATOR:
            func_ = moved(func, place.path, block, place.index, first)
            yield Mutant(func_, item, "behind its first use")


OPERATORS: dict[str, Callable[[Func], Found]] = {
    "barrier dropped": drop_barrier,
    "barrier duplicated": duplicate_barrier,
    "barrier moved": move_barrier,
    "barrier or exchange guarded": guard,
    "lanes swapped or shifted": change_lanes,
    "slot changed": change_slot,
    "scratch shrunk": shrink_scratch,
    "scratch aliased": alias_scratch,
    "scratch retyped": retype_scratch,
    "mask dropped": drop_mask,
    "access reordered": reorder_access,
    "layout changed": change_layout,
    "move left out": leave_move_out,
    "dominance broken": break_dominance,
}
