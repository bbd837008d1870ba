"""Matrix products in one thread's program: fragments of simdgroups, or whole tiles on a CPU."""

from __future__ import annotations

from math import prod

from metile_mlx.dtypes import i32
from metile_mlx.ir import matrix
from metile_mlx.ir.core import Value
from metile_mlx.ir.types import TileType
from metile_mlx.layout.fragments import EDGE, Product, product_of
from metile_mlx.layout.operand import OperandLayout
from metile_mlx.passes.lowering import Lowered, Lowering, Rules, Slots


def _coordinate(low: Lowering, item: matrix.Coordinate) -> Lowered:
    """The element's bits that count along the axis."""
    assert isinstance(item.result.type, TileType)
    layout = item.result.type.layout
    assert layout is not None
    behind = prod(item.shape[item.axis + 1 :])
    shift, last = behind.bit_length() - 1, item.shape[item.axis] - 1
    found = []
    for register in range(layout.elements_per_thread):
        columns, constant = low.columns(layout.map, register)
        own = tuple(column >> shift & last for column in columns)
        found.append(low.b.cast(low.b.thread_map(own, constant >> shift & last), i32))
    return (tuple(found),)


def _dot(low: Lowering, item: matrix.Dot) -> Lowered:
    a, b, acc = (low.slots[value] for value in (item.a, item.b, item.acc))
    assert isinstance(item.a.type, TileType)
    if not isinstance(item.a.type.layout, OperandLayout):
        return (low.b.emit(matrix.BlockMultiply(a, b, acc, item.shape)),)
    return (_fragments(low, product_of(item.shape, low.func.threads), a, b, acc),)


def _fragments(low: Lowering, product: Product, a: Slots, b: Slots, acc: Slots) -> Slots:
    """Step by step of K, each simdgroup all fragments of its block."""
    found = list(acc)
    rows = product.rows // product.simdgroups_m // EDGE
    columns = product.columns // product.simdgroups_n // EDGE
    for k in range(product.depth // EDGE):
        for row in range(rows):
            left = _pair(a, product.fragment("left", row, k))
            for column in range(columns):
                right = _pair(b, product.fragment("right", k, column))
                at = product.fragment("accumulator", row, column)
                step = matrix.FragmentMultiply(left, right, _pair(found, at))
                found[at : at + 2] = low.b.emit(step)
    return tuple(found)


def _pair(slots: Slots | list[Value], first: int) -> tuple[Value, Value]:
    return slots[first], slots[first + 1]


MATRIX: Rules = {
    matrix.Coordinate: _coordinate,
    matrix.Dot: _dot,
}
