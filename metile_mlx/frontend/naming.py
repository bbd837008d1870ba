"""Readable names for values the user did not name: `positions // 8` is `positions_div_8`."""

from __future__ import annotations

from metile_mlx.frontend.values import Number
from metile_mlx.ir.core import Value

LONGEST = 30
"""A derived name longer than this is replaced by its operation's word."""


def constant_name(value: Number) -> str:
    """`c8`, `c_neg1`, `c0_5`, `c2` for 2.0; True and False as `true` and `false`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value).removesuffix(".0").replace("-", "neg").replace("+", "").replace(".", "_")
    return f"c{'' if text[0].isdigit() else '_'}{text}"


def part(value: Value) -> str:
    """How a value appears inside a derived name: constants without their prefix."""
    name = value.name
    if name.startswith("c") and name[1:2].isdigit():
        return name[1:]
    return name.removeprefix("c_") if name.startswith("c_neg") else name


def infix(word: str, lhs: Value, rhs: Value) -> str:
    """`a_plus_b`, or `plus` when that gets long."""
    return _capped(f"{lhs.name}_{word}_{part(rhs)}", word)


def prefix(word: str, *operands: Value) -> str:
    """`exp_x`, or `exp` when that gets long."""
    return _capped("_".join([word, *(part(operand) for operand in operands)]), word)


def suffix(value: Value, word: str) -> str:
    """`x_f32`, or `f32` when that gets long."""
    return _capped(f"{part(value)}_{word}", f"as_{word}")


def _capped(name: str, word: str) -> str:
    return name if len(name) <= LONGEST else word
