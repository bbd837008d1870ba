"""Whole tiles become one thread's program: one SSA value per register slot (SPEC R1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from metile_mlx.context import Context
from metile_mlx.dtypes import bool_, i32
from metile_mlx.errors import VerificationError
from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.arith import BinaryKind, CompareKind, element
from metile_mlx.ir.core import Block, Func, Op, Value
from metile_mlx.ir.loops import For, ThreadFor
from metile_mlx.ir.matrix import Operand
from metile_mlx.ir.permute import Permute
from metile_mlx.passes.addresses import View
from metile_mlx.passes.integers import floor_divide, modulo
from metile_mlx.passes.lower_lanes import LANES, differs, load_shared, store_shared, where
from metile_mlx.passes.lower_matrix import MATRIX
from metile_mlx.passes.lower_moves import MOVES
from metile_mlx.passes.lower_pipeline import PIPELINE
from metile_mlx.passes.lowering import (
    Lowered,
    Lowering,
    Rules,
    Slots,
    argument,
    loop,
    registers,
    spread,
    yielded,
)
from metile_mlx.passes.reductions import reduce
from metile_mlx.target import EMULATOR


def scalarise(func: Func, ctx: Context) -> Func:
    """The program of one thread. Needs Stage.PLANNED, leaves Stage.THREAD.

    A tile is a tuple of values, one per register slot; a scalar stays one value. An array parameter
    becomes a pointer that is read, one that is written, or both: `name` and `name_out` for a
    read_write parameter. One of `ctx.masked_outputs` also gets `name_written`, where each store
    stores True (SPEC K7). Arrays that no tensor declares are dropped. Inputs precede outputs.

    Raises:
        VerificationError: an op that an earlier pass should have replaced.
    """
    lowering = Lowering(func, ctx, RULES)
    lowering.block(func.body)
    return replace(func, params=lowering.params(), body=lowering.b.finish())


def _constant(low: Lowering, item: tile.Constant) -> Lowered:
    return ((low.b.constant(item.value, item.dtype),),)


def _program_id(low: Lowering, item: tile.ProgramId) -> Lowered:
    return ((low.b.add(metal.ProgramId(item.axis)),),)


def _num_programs(low: Lowering, item: tile.NumPrograms) -> Lowered:
    return ((low.b.add(metal.NumPrograms(item.axis)),),)


def _arange(low: Lowering, item: tile.Arange) -> Lowered:
    assert item.layout is not None
    start = low.scalar(item.start)
    found = []
    for register in range(item.layout.elements_per_thread):
        element_index = low.b.thread_map(*low.columns(item.layout.map, register))
        found.append(low.b.binary(BinaryKind.ADD, start, low.b.cast(element_index, i32)))
    return (tuple(found),)


def _splat(low: Lowering, item: tile.Splat) -> Lowered:
    return (low.slots[item.src] * registers(item.result),)


def _unary(low: Lowering, item: tile.Unary) -> Lowered:
    return (tuple(low.b.unary(item.kind, src) for src in low.slots[item.src]),)


def _binary(low: Lowering, item: tile.Binary) -> Lowered:
    def one(lhs: Value, rhs: Value) -> Value:
        if item.kind is BinaryKind.FLOORDIV:
            return floor_divide(low.b, lhs, rhs)
        if item.kind is BinaryKind.MOD:
            return modulo(low.b, lhs, rhs)
        return low.b.binary(item.kind, lhs, rhs)

    return (_each(low, one, item.lhs, item.rhs),)


def _compare(low: Lowering, item: tile.Compare) -> Lowered:
    return (_each(low, lambda lhs, rhs: low.b.compare(item.kind, lhs, rhs), item.lhs, item.rhs),)


def _select(low: Lowering, item: tile.Select) -> Lowered:
    return (_each(low, low.b.select, item.condition, item.on_true, item.on_false),)


def _fma(low: Lowering, item: tile.Fma) -> Lowered:
    return (_each(low, lambda *abc: low.b.add(metal.Fma(*abc)), item.a, item.b, item.c),)


def _each(low: Lowering, build: Callable[..., Value], *operands: Value) -> Slots:
    return tuple(build(*row) for row in low.rows(*operands))


def _cast(low: Lowering, item: tile.Cast) -> Lowered:
    return (tuple(low.b.cast(src, item.dtype) for src in low.slots[item.src]),)


def _bitcast(low: Lowering, item: tile.Bitcast) -> Lowered:
    return (tuple(low.b.add(metal.Bitcast(src, item.dtype)) for src in low.slots[item.src]),)


def _same_slots(low: Lowering, item: tile.Reshape | Permute) -> Lowered:
    return (low.slots[item.src],)


def _tensor(low: Lowering, item: tile.Tensor) -> Lowered:
    pointers = low.pointers[item.param]
    low.views[item.result] = View(
        pointers.source,
        pointers.target,
        pointers.written,
        tuple(map(low.scalar, item.shape)),
        tuple(map(low.scalar, item.strides)),
        # The emulator's checker sees, and reports, where a pointer leaves its array.
        bounded=not (item.whole and low.ctx.target == EMULATOR),
    )
    return ((),)


def _load(low: Lowering, item: tile.Load) -> Lowered:
    view = low.views[item.tensor]
    if item.tensor in low.shared:
        return load_shared(low, item, view)
    assert view.source is not None
    dtype = element(item.result)
    fill = low.b.constant(0, dtype) if item.fill is None else low.scalar(item.fill)
    found = []
    rows = low.rows(*item.indices, item.mask)
    access, bounded = low.new_access(len(rows)), view.bounded and low.ctx.index_bits == 32
    for *indices, user_mask in rows:
        mask, at = where(low, view, [i for i in indices if i is not None], user_mask)
        if mask is not None and low.b.number(mask) == 0:
            found.append(fill)
            continue
        other = None if mask is None else fill
        load = metal.Load(view.source, at, mask, other, access, bounded, item.given)
        found.append(low.b.add(load))
    return (tuple(found),)


def _store(low: Lowering, item: tile.Store) -> Lowered:
    view = low.views[item.tensor]
    if item.tensor in low.shared:
        return store_shared(low, item, view)
    assert view.target is not None
    b = low.b
    rows = low.rows(*item.indices, item.value, item.mask)
    access, bounded = low.new_access(len(rows)), view.bounded and low.ctx.index_bits == 32
    for *indices, value, user_mask in rows:
        assert value is not None
        mask, at = where(low, view, [i for i in indices if i is not None], user_mask)
        if not any(map(differs, item.operands())):
            # One address and one value: one thread is enough.
            mask = b.both(mask, b.compare_number(CompareKind.EQ, b.thread, 0))
        if mask is not None and b.number(mask) == 0:
            continue
        b.emit(metal.Store(view.target, at, value, mask, access, bounded))
        if view.written is not None:
            written = b.constant(True, bool_)
            b.emit(metal.Store(view.written, at, written, mask, access, bounded))
    return ()


def _print(low: Lowering, item: tile.Print) -> Lowered:
    b = low.b
    place = (*(b.add(metal.ProgramId(axis)) for axis in range(3)), b.thread)
    for register, (value, mask) in enumerate(low.rows(item.value, item.mask)):
        assert value is not None
        if not differs(item.value):
            # One line per program.
            mask = b.both(mask, b.compare_number(CompareKind.EQ, b.thread, 0))
        if mask is None or b.number(mask) != 0:
            b.emit(metal.Print(value, place, register, item.label, mask))
    return ()


def _if(low: Lowering, item: tile.If) -> Lowered:
    b = low.b
    builders = (b.child(), b.child())
    for block, builder in zip((item.then, item.otherwise), builders, strict=True):
        with b.inside(builder):
            low.block(block)
            b.emit(metal.Yield(tuple(yielded(low, block))))
    condition = low.scalar(item.condition)
    made = iter(b.emit(metal.If(condition, builders[0].block(), builders[1].block())))
    return tuple(tuple(next(made) for _ in range(registers(r))) for r in item.results)


def _for(low: Lowering, item: For) -> Lowered:
    bounds = (low.scalar(item.start), low.scalar(item.end), low.scalar(item.step))
    index = argument(item.index)
    low.slots[item.index] = (index,)
    inits: list[Value] = []
    for arg, init in zip(item.carried, item.inits, strict=True):
        count = registers(arg)
        low.slots[arg] = tuple(argument(arg, register) for register in range(count))
        inits += spread(low, init, count)
    args = [slot for arg in item.carried for slot in low.slots[arg]]

    def body() -> list[Value]:
        low.block(item.body)
        return yielded(low, item.body)

    made = iter(loop(low, ThreadFor(*bounds, tuple(inits), Block((), (index, *args))), body))
    return tuple(tuple(next(made) for _ in range(registers(r))) for r in item.results)


def _yield(low: Lowering, item: tile.Yield) -> Lowered:
    # Who lowers the block builds its yield.
    return ()


def _misplaced(low: Lowering, item: Op) -> Lowered:
    raise VerificationError(
        f"{item.opcode} reached scalarise, which needs a planned program",
        item.loc,
        "run infer_ownership, plan_conversions and plan_reductions first",
    )


RULES: Rules = {
    tile.Constant: _constant,
    tile.ProgramId: _program_id,
    tile.NumPrograms: _num_programs,
    tile.Arange: _arange,
    tile.Splat: _splat,
    tile.Unary: _unary,
    tile.Binary: _binary,
    tile.Compare: _compare,
    tile.Select: _select,
    tile.Cast: _cast,
    tile.Bitcast: _bitcast,
    tile.Fma: _fma,
    tile.Reshape: _same_slots,
    Permute: _same_slots,
    tile.Tensor: _tensor,
    tile.Load: _load,
    tile.Store: _store,
    tile.Print: _print,
    tile.Convert: _misplaced,
    tile.Reduce: _misplaced,
    tile.If: _if,
    For: _for,
    tile.Yield: _yield,
    **MOVES,
    **LANES,
    **MATRIX,
    **PIPELINE,
    Operand: _misplaced,
    planned.Reduce: reduce,
}
