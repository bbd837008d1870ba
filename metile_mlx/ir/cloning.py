"""Copies of ops that stand in another place, and so make values of their own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from metile_mlx.ir.core import Op, Value


def cloned(ops: Iterable[Op], mapping: dict[Value, Value]) -> list[Op]:
    """Ops without blocks again, over mapped operands; `mapping` learns what their results are."""
    made = []
    for item in ops:
        results = tuple(Value(value.type, value.name, value.loc) for value in item.results)
        made.append(replace(item.with_operands(mapping), results=results))
        mapping.update(zip(item.results, results, strict=True))
    return made
