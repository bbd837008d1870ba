"""Masks that say the same in every program and iteration: which lanes hold, worked out exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metile_mlx.analysis.affine_forms import Form
from metile_mlx.dtypes import bool_
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind, element
from metile_mlx.ir.core import Op, Value
from metile_mlx.ir.tile import Binary, Compare, Constant, Convert, Reshape, Splat, Unary

# Per lane in row-major order, or one for all.
Held: TypeAlias = NDArray[np.bool_]

_COMPARE: dict[CompareKind, Callable[[Any, Any], Held]] = {
    CompareKind.EQ: np.equal,
    CompareKind.NE: np.not_equal,
    CompareKind.LT: np.less,
    CompareKind.LE: np.less_equal,
    CompareKind.GT: np.greater,
    CompareKind.GE: np.greater_equal,
}
_JOIN: dict[BinaryKind, Callable[[Any, Any], Held]] = {
    BinaryKind.AND: np.logical_and,
    BinaryKind.OR: np.logical_or,
    BinaryKind.XOR: np.logical_xor,
}


def lanes_held(
    mask: Value | None, defined: Mapping[Value, Op], forms: Mapping[Value, Form]
) -> Held | None:
    """Where a mask holds; everywhere without one.

    None where it is not made of comparisons of integers that are the same in every program.
    """
    if mask is None:
        return np.ones(1, np.bool_)
    match defined.get(mask):
        case Constant(value=value):
            return np.array([bool(value)])
        case Splat(src=source) | Reshape(src=source) | Convert(src=source):
            return lanes_held(source, defined, forms)
        case Unary(kind=UnaryKind.NOT, src=source):
            held = lanes_held(source, defined, forms)
            return None if held is None else ~held
        case Binary(kind=kind, lhs=lhs, rhs=rhs) if kind in _JOIN and element(lhs) == bool_:
            sides = lanes_held(lhs, defined, forms), lanes_held(rhs, defined, forms)
            if sides[0] is None or sides[1] is None:
                return None
            return _JOIN[kind](*sides)
        case Compare(kind=kind, lhs=lhs, rhs=rhs):
            one, other = forms.get(lhs, ""), forms.get(rhs, "")
            if isinstance(one, str) or isinstance(other, str):
                return None
            if not (one.is_fixed and other.is_fixed):
                return None
            return _COMPARE[kind](one.part, other.part)
        case _:
            return None
