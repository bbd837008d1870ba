"""Compute each expression once, and nothing that no store or barrier needs."""

from __future__ import annotations

from metile_mlx.context import Context
from metile_mlx.ir.core import Func
from metile_mlx.ir.dead_code import eliminate_dead_code
from metile_mlx.ir.rewrite import eliminate_common_subexpressions


def clean_up(func: Func, ctx: Context) -> Func:
    """Needs and leaves any stage; returns the same Func when nothing was redundant."""
    return eliminate_dead_code(eliminate_common_subexpressions(func))
