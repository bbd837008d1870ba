"""Who stores an element of an output: the program, the thread and the register slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from metile_mlx.compiler import lower
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.dtypes import DType, bool_, i32
from metile_mlx.errors import Loc
from metile_mlx.ir.arith import BinaryKind, join
from metile_mlx.ir.core import Builder, Func, Op, Value
from metile_mlx.ir.rewrite import rewrite
from metile_mlx.ir.tile import (
    Arange,
    Binary,
    Constant,
    NumPrograms,
    Print,
    ProgramId,
    Reshape,
    Store,
    Tensor,
)
from metile_mlx.ir.types import PointerType, TileType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.runtime.backend import Grid, Request
from metile_mlx.runtime.optional import mx
from metile_mlx.runtime.reference import evaluate
from metile_mlx.target import METAL


@dataclass(frozen=True)
class Owner:
    """Who stores an element of an output.

    Attributes:
        program: its position in the grid.
        thread: its index in the threadgroup.
        register: the register slot that holds the value.
        element: which element of the tile it is.
        loc: the store.
    """

    program: Grid
    thread: int
    register: int
    element: int
    loc: Loc

    def __str__(self) -> str:
        return (
            f"program {self.program}, thread {self.thread}, register {self.register} "
            f"(element {self.element} of the tile), {self.loc}"
        )


def find_owner(
    request: Request, arrays: Mapping[str, mx.array], schedule: Schedule, param: str, at: int
) -> Owner | None:
    """Who stores element `at` (row-major) of the output `param`; None where nobody does.

    The kernel's own indices decide: it runs as MLX operations with each value replaced by the
    number of the store, the program and the element of the tile. Of several stores the last in
    program order is named.
    """
    func = lower(request.func, Context(METAL, schedule), Stage.OWNED)
    marks = _Marks(func, param)
    outputs: dict[str, tuple[tuple[int, ...], DType]] = {
        out.param: (out.shape, out.dtype) for out in request.outputs
    }
    shape, _ = outputs[param]
    outputs |= {mark.name: (shape, i32) for mark in marks.params}
    marked = rewrite(replace(func, params=(*func.params, *marks.params)), marks.rule)
    made = evaluate(marked, arrays, request.scalars, outputs, request.grid)
    store, program, element = (
        int(np.array(made[mark.name]).reshape(-1)[at]) for mark in marks.params
    )
    if store == 0:
        return None
    layout, loc = marks.stores[store - 1]
    x, y, _ = request.grid
    return Owner(
        (program % x, program // x % y, program // (x * y)),
        layout.owner(element) if layout else 0,
        layout.register(element) if layout else 0,
        element,
        loc,
    )


class _Marks:
    """Stores of one parameter become stores of who makes them; all others vanish.

    Attributes:
        params: outputs for the number of the store (from 1), the program, and the element.
        stores: of each store, its owners and its place.
    """

    def __init__(self, func: Func, param: str) -> None:
        self.param = param
        # No Python name has a dot.
        self.params = tuple(
            Value(PointerType(i32), f"{param}.{what}", func.loc)
            for what in ("store", "program", "element")
        )
        self.stores: list[tuple[ThreadLayout | None, Loc]] = []
        self._tensors: dict[Value, tuple[Value, ...]] = {}

    def rule(self, item: Op, b: Builder) -> tuple[Value, ...] | None:
        if isinstance(item, Tensor) and item.param.name == self.param and item.access != "read":
            b.ops.append(item)
            self._tensors[item.result] = tuple(
                b.add(Tensor(param, item.shape, item.strides, "write")) for param in self.params
            )
            return item.results
        if isinstance(item, Print):
            return ()
        if not isinstance(item, Store):
            return None
        if item.tensor in self._tensors:
            self._mark(item, b)
        return ()

    def _mark(self, item: Store, b: Builder) -> None:
        masks = () if item.mask is None else (item.mask,)
        where = join((*item.indices, *masks), bool_)
        layout = where.owners if isinstance(where, TileType) else None
        self.stores.append((layout, item.loc))
        values = (
            b.add(Constant(len(self.stores), i32)),
            _program(b),
            _element(b, where) if isinstance(where, TileType) else b.add(Constant(0, i32)),
        )
        for tensor, value in zip(self._tensors[item.tensor], values, strict=True):
            b.emit(Store(tensor, item.indices, value, item.mask))


def _program(b: Builder) -> Value:
    """The number of the program, x fastest."""
    total = b.add(ProgramId(2))
    for axis in (1, 0):
        scaled = b.add(Binary(BinaryKind.MUL, total, b.add(NumPrograms(axis))))
        total = b.add(Binary(BinaryKind.ADD, scaled, b.add(ProgramId(axis))))
    return total


def _element(b: Builder, where: TileType) -> Value:
    flat = b.add(Arange(b.add(Constant(0, i32)), where.size, where.layout))
    return flat if len(where.shape) == 1 else b.add(Reshape(flat, where.shape))
