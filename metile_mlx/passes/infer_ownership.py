"""Decide who owns every element of every tile, and reject programs in which owners disagree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from metile_mlx.analysis.uniformity import proven_uniform
from metile_mlx.context import Context
from metile_mlx.dtypes import bf16, bool_, f16, f32, i32, u32
from metile_mlx.errors import CompileError, LayoutError, OwnershipError
from metile_mlx.ir.core import Block, Builder, Func, Op, Value, walk
from metile_mlx.ir.lanes import DECLARED, LaneReduce, LaneShuffle, Sync
from metile_mlx.ir.loops import For
from metile_mlx.ir.matrix import Coordinate, Dot, Operand
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.tile import Arange, Convert, If, Reduce, Select, Splat, Tensor
from metile_mlx.ir.types import ScalarType, TileType
from metile_mlx.layout.operand import Layout, OperandLayout
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.matrix_owners import MatrixOwners, assign
from metile_mlx.report import ValueLayout, place
from metile_mlx.target import MAX_THREADS, MAX_TILE, SIMD_WIDTH

CONVERTIBLE = (f16, bf16, f32, i32, u32, bool_)
"""Dtypes that convert_layout moves (SPEC C1)."""


def infer_ownership(func: Func, ctx: Context) -> Func:
    """Give every tile a layout and the kernel its number of threads. Stage.TILE to Stage.OWNED.

    A tile for which no layout is stated has the identity: one element per thread, never several
    (SPEC O6); in a kernel with matrix products, what passes/matrix_owners.py chooses. A kernel
    without tiles runs on one simdgroup. Values whose layout was stated stay the same objects.
    Appends a ValueLayout for each named tile to the report.

    Raises:
        OwnershipError: two owners meet in one operation (SPEC O3), a value of each thread's own
            meets an owned tile (O4), or a construct outside the explicit subset (O5).
        LayoutError: sizes that no threadgroup has (O6) or that disagree within the kernel (O5).
        CompileError: a schedule or dtype that explicit ownership excludes (C1, C5, V3); a reduction
            under a condition that is not proven uniform (C2).
    """
    ops = tuple(walk(func.body))
    statement = _first_statement(ops)
    if statement is not None:
        _check_explicit(ops, statement, ctx)
    _check_meetings(func)
    matrix = assign(func, ctx)
    threads = _check_sizes(ops) if matrix is None else matrix.threads
    owners = _Owners(matrix)
    body = owners.block(func.body)
    ctx.report.value_layouts.extend(owners.facts)
    if body is func.body and threads == func.threads:
        return func
    return replace(func, body=body, threads=threads)


class _Owners:
    """Rebuilds ops over decided layouts, checking that the owners in each op agree."""

    def __init__(self, matrix: MatrixOwners | None) -> None:
        self.matrix = matrix
        self.mapping: dict[Value, Value] = {}
        self.implicit: set[Value] = set()
        self.facts: list[ValueLayout] = []

    def block(self, block: Block) -> Block:
        args = tuple(self._argument(arg) for arg in block.args)
        kept = tuple(made for item in block.ops for made in self.ops(item))
        if len(kept) != len(block.ops):
            return Block(kept, args)
        pairs = zip((*args, *kept), (*block.args, *block.ops), strict=True)
        return block if all(new is old for new, old in pairs) else Block(kept, args)

    def ops(self, item: Op) -> tuple[Op, ...]:
        """The op; before a product, what hands its operands to the simdgroups."""
        if not isinstance(item, Dot) or self.matrix is None:
            return (self.op(item),)
        builder = Builder(item.loc)
        handed: dict[str, Any] = {}
        for name, wanted in zip("ab", self.matrix.operands[item.result], strict=True):
            here = self.mapping.get(getattr(item, name), getattr(item, name))
            if isinstance(wanted, OperandLayout) and wanted != _layout(here):
                handed[name] = builder.add(Operand(here, wanted), here.name)
        made = self.op(item)
        return (*builder.ops, replace(made, **handed) if handed else made)

    def _chosen(self, value: Value) -> Layout:
        """The owners of a tile for which none are stated."""
        return (
            ThreadLayout.identity(_size(value))
            if self.matrix is None
            else self.matrix.layouts[value]
        )

    def _argument(self, arg: Value) -> Value:
        if not isinstance(arg.type, TileType) or arg.type.layout is not None:
            return arg
        return self._value(arg, arg.type.with_layout(self._chosen(arg)))

    def op(self, item: Op) -> Op:
        new = item.with_operands(self.mapping)
        changes: dict[str, Any] = {
            name: inner
            for name in item.field_names
            if isinstance(part := getattr(item, name), Block)
            and (inner := self.block(part)) is not part
        }
        if isinstance(item, Arange | Splat | Coordinate) and item.layout is None:
            changes["layout"] = self._chosen(item.result)
        if changes:
            new = replace(new, **changes)
        self._check(new)
        if new is not item:
            pairs = zip(item.results, new.infer(), strict=True)
            new = replace(new, results=tuple(self._value(old, type_) for old, type_ in pairs))
        self._report(new)
        return new

    def _value(self, old: Value, type_: Any) -> Value:
        if type_ == old.type:
            return old
        made = Value(type_, old.name, old.loc)
        self.mapping[old] = made
        if isinstance(old.type, TileType) and old.type.layout is None:
            self.implicit.add(made)
        return made

    def _report(self, item: Op) -> None:
        for value in item.results:
            if value.name and isinstance(value.type, TileType):
                self.facts.append(
                    ValueLayout(
                        value.name,
                        str(value.type.dtype),
                        repr(value.type.layout),
                        value not in self.implicit,
                        place(value.loc),
                    )
                )

    def _check(self, item: Op) -> None:
        """All tiles of an op have one owner; only a conversion has two (SPEC O2, O3)."""
        if isinstance(item, Convert | Dot):
            return
        tiles = [value for value in item.operands() if isinstance(value.type, TileType)]
        for other in tiles[1:]:
            if _layout(other) != _layout(tiles[0]):
                raise self._conflict(item, tiles[0], other)

    def _conflict(self, item: Op, lhs: Value, rhs: Value) -> OwnershipError:
        moved, kept = (lhs, rhs) if lhs in self.implicit else (rhs, lhs)
        hint = f"use metile.convert_layout({moved.name or 'value'}, {_layout(kept)!r})"
        if moved in self.implicit:
            hint += ", or state the owner where it is made: metile.arange(..., layout=...)"
        return OwnershipError(
            f"[{_label(item)}] {_named(lhs)} and {_named(rhs)} have different owners: "
            f"{_named(lhs)} has {self._owner(lhs)}, {_named(rhs)} has {self._owner(rhs)}",
            item.loc,
            hint,
        )

    def _owner(self, value: Value) -> str:
        note = " (implicit: no layout is stated for it)" if value in self.implicit else ""
        return f"{_layout(value)!r}{note}"


def _first_statement(ops: tuple[Op, ...]) -> Op | None:
    """The first op that states a layout: the program is explicit when there is one."""
    for item in ops:
        stated = isinstance(item, Arange | Splat) and item.layout is not None
        if stated or isinstance(item, Convert | Permute):
            return item
    return None


def _check_explicit(ops: tuple[Op, ...], statement: Op, ctx: Context) -> None:
    """The limits of programs that state layouts (SPEC O4, O5, C1, V3)."""
    where = f"explicit thread layouts (one is stated in line {statement.loc.line})"
    if ctx.schedule.vector_width not in (None, 1):
        raise CompileError(
            f"Schedule(vector_width={ctx.schedule.vector_width}) is not available beside {where}",
            statement.loc,
            "use vector_width=None, or 1 to turn grouping off",
        )
    if any(isinstance(item, DECLARED) for item in ops):
        made_by = {value: item for item in ops for value in item.results}
        for item in ops:
            _check_broadcast(item, made_by)
    for item in ops:
        if isinstance(item, DECLARED):
            raise OwnershipError(
                f"[{item.construct}] is not available beside {where}",
                item.loc,
                "explicit ownership is for straight-line programs over tensor descriptors",
            )
        if isinstance(item, If):
            raise OwnershipError(
                f"[if] a branch is not available beside {where}",
                item.loc,
                "use metile.where(condition, a, b), mask= of load and store, or a constexpr",
            )
        if isinstance(item, Tensor) and item.whole:
            call = "load" if item.access == "read" else "store"
            raise OwnershipError(
                f"[{call}] pointer arithmetic on {item.param.name} is not available beside {where}",
                item.loc,
                f"declare a view: metile.tensor({item.param.name}, shape=...)",
            )
        if isinstance(item, Dot):
            raise OwnershipError(
                f"[dot] a matrix product is not available beside {where}",
                item.loc,
                "leave the layouts out: a product has owners of its own",
            )
        if isinstance(item, For):
            raise OwnershipError(
                f"[tile_range] a runtime loop is not available beside {where}",
                item.loc,
                "unroll it: for i in range(N) with a constexpr N; or leave the layouts out",
            )
        _check_dtype(item)


def _check_broadcast(item: Op, made_by: dict[Value, Op]) -> None:
    """A scalar that differs between threads never meets an owned tile (SPEC O4)."""
    if isinstance(item, DECLARED):
        return
    own = [v for v in item.operands() if isinstance(v.type, ScalarType) and not v.type.uniform]
    owned = [v for v in item.operands() if isinstance(v.type, TileType) and v.type.layout]
    if own and owned:
        raise OwnershipError(
            f"[{_label(item)}] {_named(own[0])} is {_construct(own[0], made_by)}, a value of each "
            f"thread's own, and meets {_named(owned[0])} with {_layout(owned[0])!r}: only uniform "
            "scalars broadcast",
            item.loc,
            "number the elements with metile.arange(0, size, layout=...) instead",
        )


def _construct(value: Value, made_by: dict[Value, Op]) -> str:
    """The construct of the automatic path a per-thread scalar comes from."""
    item = made_by[value]
    if isinstance(item, DECLARED):
        return item.construct
    source = next(
        v for v in item.operands() if isinstance(v.type, ScalarType) and not v.type.uniform
    )
    return f"computed from {_construct(source, made_by).removeprefix('computed from ')}"


def _check_dtype(item: Op) -> None:
    if isinstance(item, Convert):
        assert isinstance(item.src.type, TileType)
        if item.src.type.dtype not in CONVERTIBLE:
            names = ", ".join(str(dtype) for dtype in CONVERTIBLE)
            raise CompileError(
                f"[convert_layout] {_named(item.src)} is {item.src.type.dtype}, expected one of "
                f"{names}",
                item.loc,
                "cast it first: metile.cast(value, metile.i32)",
            )


def _check_meetings(func: Func) -> None:
    """Every thread takes part where threads meet, or none of the threadgroup does (SPEC C2)."""
    if not any(isinstance(item, _MEET) for item in walk(func.body)):
        return
    proven = proven_uniform(func)

    def visit(block: Block, doubt: tuple[Op, Value] | None) -> None:
        for item in block.ops:
            if isinstance(item, _MEET) and doubt is not None:
                raise _doubtful(item, *doubt)
            unproven = [value for value in _deciding(item) if value not in proven]
            inside = (item, unproven[0]) if unproven else doubt
            for inner in item.blocks():
                visit(inner, inside)

    visit(func.body, None)


_MEET = (Reduce, LaneReduce, LaneShuffle, Sync, Dot)


def _deciding(item: Op) -> tuple[Value, ...]:
    """The values that decide whether, or how often, the blocks of an op run."""
    match item:
        case If():
            return (item.condition,)
        case For():
            return (item.start, item.end, item.step)
        case _:
            return ()


def _doubtful(item: Op, around: Op, value: Value) -> CompileError:
    what = "condition" if isinstance(around, If) else "bound"
    where = "runtime `if`" if isinstance(around, If) else "loop"
    return CompileError(
        f"[{_label(item)}] {_what(item)} under the {where} of line {around.loc.line}, whose {what} "
        f"{_named(value)} is not proven to be the same in all threads: it comes from memory",
        item.loc,
        "all threads take part in it: move it outside, or decide with runtime scalars, program_id "
        "and arithmetic on them",
    )


def _what(item: Op) -> str:
    if isinstance(item, Reduce):
        return "a reduction"
    if isinstance(item, Dot):
        return "a matrix product"
    return "a barrier" if isinstance(item, Sync) else "an exchange between lanes"


def _check_sizes(ops: tuple[Op, ...]) -> int:
    """The number of threads: every tile is legal and like the first one (SPEC O5)."""
    first: Value | None = None
    for item in ops:
        for value in item.results:
            if not isinstance(value.type, TileType):
                continue
            _check_tile(item, value, value.type)
            if first is None:
                first = value
            elif _size(first) != _size(value):
                raise LayoutError(
                    f"[{_label(item)}] {_named(value)} has {_size(value)} elements but "
                    f"{_named(first)} has {_size(first)} ({place(first.loc)})",
                    item.loc,
                    "a kernel has one tile size; use the larger one and mask the rest",
                )
            elif _registers(first) != _registers(value):
                raise _other_registers(item, value, first)
    return _size(first) // _registers(first) if first is not None else SIMD_WIDTH


def _other_registers(item: Op, value: Value, first: Value) -> LayoutError:
    """One kernel has one number of elements per thread; an unstated one is 1 (SPEC O5, O6)."""
    stated = [v for v in (value, first) if _layout(v) is not None]
    hint = "a kernel has one elements_per_thread; give all its layouts the same"
    if len(stated) == 1:
        hint = f"state the owner of the other one: layout={_layout(stated[0])!r}"
    return LayoutError(
        f"[{_label(item)}] {_named(value)} has {_per_thread(value)} but {_named(first)} has "
        f"{_per_thread(first)} ({place(first.loc)})",
        item.loc,
        hint,
    )


def _per_thread(value: Value) -> str:
    count = _registers(value)
    text = f"{count} element{'s' if count > 1 else ''} per thread"
    return text if _layout(value) is not None else f"{text} (no layout is stated for it)"


def _registers(value: Value) -> int:
    layout = _layout(value)
    return layout.elements_per_thread if layout is not None else 1


def _check_tile(item: Op, value: Value, tile: TileType) -> None:
    if tile.layout is None:
        if not SIMD_WIDTH <= tile.size <= MAX_THREADS or tile.size & (tile.size - 1):
            raise LayoutError(
                f"[{_label(item)}] {_named(value)} has {tile.size} elements; a tile without a "
                f"layout has one per thread: a power of two from {SIMD_WIDTH} to {MAX_THREADS}",
                item.loc,
                _smaller_or_owned(tile.size),
            )
        return
    if tile.layout.size != tile.size:
        raise LayoutError(
            f"[{_label(item)}] {_named(value)} has {tile.size} elements but {tile.layout!r} owns "
            f"{tile.layout.size}",
            item.loc,
            "give a layout of the tile's size",
        )


def _smaller_or_owned(size: int) -> str:
    """What to do about a tile that has too many elements to have one per thread."""
    hint = (
        "use a tile of such a size; mask what is too much, and cover more with more programs (a "
        "larger grid)"
    )
    if MAX_THREADS < size <= MAX_TILE and size & (size - 1) == 0:
        per_thread = size // MAX_THREADS
        hint += (
            "; or state who owns several elements per thread: "
            f"layout=metile.ThreadLayout.identity({size}, elements_per_thread={per_thread})"
        )
    return hint


def _layout(value: Value) -> Layout | None:
    return value.type.layout if isinstance(value.type, TileType) else None


def _size(value: Value) -> int:
    assert isinstance(value.type, TileType)
    return value.type.size


def _named(value: Value) -> str:
    return f"'{value.name}'" if value.name else f"the value of line {value.loc.line}"


def _label(item: Op) -> str:
    """What a user calls the operation."""
    if isinstance(item, Select):
        return "where"
    if isinstance(item, Convert):
        return "convert_layout"
    if isinstance(item, Splat):
        return "full"
    if isinstance(item, DECLARED):
        return item.construct
    kind = getattr(item, "kind", None)
    return str(kind.value) if kind is not None else item.opcode.removeprefix("tile.")
