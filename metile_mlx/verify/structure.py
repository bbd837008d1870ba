"""SSA, op sets and types: what holds at every stage, whatever the program means."""

from __future__ import annotations

from collections.abc import Iterable

from metile_mlx.context import Stage
from metile_mlx.dtypes import bool_, i32
from metile_mlx.errors import CompileError
from metile_mlx.ir import matrix, metal, planned, stated, tile
from metile_mlx.ir.core import Block, Effect, Func, Op, Value, walk
from metile_mlx.ir.lanes import (
    DECLARED,
    SharedAlloc,
    ThreadLaneReduce,
    ThreadLaneShuffle,
    ThreadSync,
)
from metile_mlx.ir.loops import For, Loop, ThreadFor, fits
from metile_mlx.ir.permute import Permute
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.ir.types import PointerType, ScalarType, Type
from metile_mlx.verify.findings import Finding

_OWNED = frozenset({
    tile.Constant, tile.ProgramId, tile.NumPrograms, tile.Arange, tile.Splat, tile.Unary,
    tile.Binary, tile.Compare, tile.Select, tile.Cast, tile.Bitcast, tile.Fma, tile.Reshape,
    Permute,
    tile.Tensor, tile.Load, tile.Store, tile.Convert, tile.Reduce, tile.If, tile.Yield,
    tile.Print, For, *DECLARED, matrix.Coordinate, matrix.Dot, matrix.Operand,
})  # fmt: skip
_COMMUNICATION = frozenset({
    planned.Scratch, planned.ScratchStore, planned.ScratchLoad, planned.Barrier, planned.Shuffle,
    planned.Reduce, planned.Choose, SoftwarePipeline,
})  # fmt: skip
_METAL = frozenset({
    metal.Constant, metal.ThreadIndex, metal.ProgramId, metal.NumPrograms, metal.Unary,
    metal.Binary, metal.Compare, metal.Select, metal.Cast, metal.Bitcast, metal.Fma, metal.Load,
    metal.Store, metal.ThreadgroupAlloc, metal.ThreadgroupStore, metal.ThreadgroupLoad,
    metal.Barrier, metal.Shuffle, metal.SimdReduce, metal.If, metal.Yield, metal.LoadGroup,
    metal.Extract, metal.StoreGroup, metal.Print, stated.AxisReduction, ThreadFor,
    ThreadLaneReduce, ThreadLaneShuffle, SharedAlloc, ThreadSync,
    matrix.FragmentMultiply, matrix.BlockMultiply,
})  # fmt: skip

LEGAL: dict[Stage, frozenset[type[Op]]] = {
    Stage.TILE: _OWNED,
    Stage.OWNED: _OWNED,
    Stage.PLANNED: (_OWNED - {tile.Convert}) | _COMMUNICATION,
    Stage.THREAD: _METAL,
}
"""The ops a Func may hold at each stage. Of the planned ones, the first leave operands and
reductions."""

# The ops that hold blocks.
_BRANCHES = (tile.If, metal.If)

# What infer and verify raise on operands of kinds they never expected.
_BROKEN = (AssertionError, AttributeError, IndexError, TypeError, ValueError)


def is_threaded(func: Func) -> bool:
    """Whether a program is one of threads; one of which nothing is left is one of any kind."""
    return all(type(item) in _METAL for item in func.body.ops)


def check_structure(func: Func, stage: Stage, before: Func | None = None) -> list[Finding]:
    """Dominance, unique definitions, legal ops, right types, terminators; all that is broken.

    The types of an op follow from the op alone, so those that `before` held already, as the same
    objects, are not derived again, nor those that a Builder has checked as it made them.
    """
    checker = _Structure(func, stage, () if before is None else before.body.ops)
    checker.params()
    checker.block(func.body, set(func.params), None)
    return checker.findings


class _Structure:
    def __init__(self, func: Func, stage: Stage, checked: Iterable[Op]) -> None:
        self.func = func
        self.stage = stage
        self.legal = LEGAL[stage]
        self.checked = frozenset(map(id, checked))
        self.defined: set[Value] = set(func.params)
        self.findings: list[Finding] = []

    def add(self, item: Op | None, message: str, fatal: bool = True) -> None:
        self.findings.append(Finding(item, message, fatal))

    def params(self) -> None:
        if len(self.defined) != len(self.func.params):
            self.add(None, "a parameter is listed twice, expected each Value once")
        for param in self.func.params:
            type_ = param.type
            if isinstance(type_, ScalarType):
                legal = type_.uniform
            else:
                legal = isinstance(type_, PointerType) and (
                    self.stage is Stage.THREAD or not type_.writable
                )
            if not legal:
                self.add(
                    None,
                    f"parameter {param.name} is {type_}, expected an array or a uniform scalar",
                )

    def block(self, block: Block, visible: set[Value], parent: Op | None) -> None:
        """Check a block; `visible` are the Values that dominate its start, and grows."""
        for arg in block.args:
            self.define(arg, parent)
            visible.add(arg)
        # Of all that is verified this meets most ops, so what nearly always holds is asked at once.
        for item in block.ops:
            if type(item) not in self.legal:
                self.add(item, f"{item.opcode} is no op of stage {self.stage.name}")
            operands = item.operands()
            if not visible.issuperset(operands):
                for value in operands:
                    if value not in visible:
                        self.add(item, self.undominated(value))
            if item.block_fields:
                self.regions(item, visible)
            if not item.is_typed and id(item) not in self.checked:
                self.types(item)
            for value in item.results:
                self.define(value, item)
            visible.update(item.results)
        self.terminator(block, parent)

    def regions(self, item: Op, visible: set[Value]) -> None:
        for inner in item.blocks():
            self.block(inner, set(visible), item)
        if isinstance(item, _BRANCHES):
            self.branch(item)
        elif isinstance(item, Loop):
            self.loop(item)

    def define(self, value: Value, item: Op | None) -> None:
        if value in self.defined:
            self.add(item, f"{value!r} is defined twice, expected one definition")
        self.defined.add(value)

    def undominated(self, value: Value) -> str:
        if value in self.defined:
            return f"uses {value!r} outside the block that defines it"
        if any(value in item.results for item in walk(self.func.body)):
            return f"uses {value!r} before its definition"
        return f"uses {value!r}, which nothing in this kernel defines"

    def types(self, item: Op) -> None:
        """The op accepts its operands, and its results have the types it computes from them."""
        try:
            item.verify()
            expected = item.infer()
        except CompileError as error:
            self.add(item, error.message, fatal=False)
            return
        except _BROKEN:
            self.add(item, "its operands have kinds it can't take")
            return
        found = tuple(value.type for value in item.results)
        if found != expected:
            self.add(item, f"results are {_list(found)}, expected {_list(expected)}", fatal=False)

    def branch(self, item: tile.If | metal.If) -> None:
        if item.condition.type != ScalarType(bool_):
            self.add(item, f"condition is {item.condition.type}, expected a uniform bool")
        then, otherwise = (
            tuple(value.type for value in block.ops[-1].operands()) if block.ops else ()
            for block in (item.then, item.otherwise)
        )
        alike = len(then) == len(otherwise) and all(map(_alike, then, otherwise))
        if not alike:
            self.add(item, f"branches yield {_list(then)} and {_list(otherwise)}, expected one")

    def loop(self, item: Loop) -> None:
        """The arguments are an index and what is carried, each of one type throughout."""
        args = tuple(value.type for value in item.body.args)
        if args[:1] != (ScalarType(i32),):
            self.add(item, f"binds {_list(args)}, expected an i32 index first")
        yields = item.yields if item.body.ops else ()
        for name, values in (("starts with", item.inits), ("yields", yields)):
            types = tuple(value.type for value in values)
            same = len(types) == len(args) - 1 and all(map(fits, types, args[1:]))
            if not same:
                self.add(item, f"{name} {_list(types)}, expected {_list(args[1:])}")

    def terminator(self, block: Block, parent: Op | None) -> None:
        for item in block.ops[:-1] if parent is not None else block.ops:
            if item.effect is Effect.TERMINATOR:
                self.add(item, "expected only at the end of a nested block")
        if parent is not None and not (block.ops and block.ops[-1].effect is Effect.TERMINATOR):
            self.add(parent, "a nested block doesn't end in a yield")


def _alike(a: Type, b: Type) -> bool:
    """Whether one result may stand for both: of two scalars one may be each thread's own."""
    return fits(a, b) or fits(b, a)


def _list(types: tuple[object, ...]) -> str:
    return "(" + ", ".join(str(type_) for type_ in types) + ")"
