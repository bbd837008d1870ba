"""A runtime `if`: what its two sides leave in each name becomes one value (SPEC K5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from metile_mlx.dtypes import DType
from metile_mlx.errors import CompileError, OwnershipError
from metile_mlx.frontend.build import Build, Scope
from metile_mlx.frontend.values import MISSING, Unbound, constant_key, describe, is_number
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Value
from metile_mlx.ir.tile import If, Splat, Yield
from metile_mlx.ir.types import ScalarType, TileType

Side = tuple[Scope, Mapping[str, object]]


def merge(
    build: Build, condition: Value, names: Iterable[str], sides: Sequence[Side], line: int
) -> dict[str, object]:
    """Append the `tile.if` of two translated sides; what each name holds afterwards.

    A name that both sides leave with the same value keeps it; one that only one side has becomes
    `Unbound`; the others become results of the op, in the dtype in which the two values meet.

    Raises:
        CompileError: two values of a name that no single value can stand for.
    """
    after: dict[str, object] = {}
    merged: list[str] = []
    yields: list[list[Value]] = [[], []]
    for name in names:
        left, right = (side.get(name, MISSING) for _, side in sides)
        if left is MISSING and right is MISSING:
            continue
        if left is right or (_is_plain(left, right) and constant_key(left) == constant_key(right)):
            after[name] = left
        elif any(value is MISSING or isinstance(value, Unbound) for value in (left, right)):
            after[name] = Unbound(
                f"{name!r} is assigned on only one side of the `if` in line {line}",
                "assign it before the `if`, or on both sides",
            )
        else:
            merged.append(name)
            for scope, value, made in zip(
                (scope for scope, _ in sides),
                (left, right),
                yields,
                strict=True,
            ):
                made.append(_side(build, scope, name, value, (left, right), line))
    for name, left_value, right_value in zip(merged, *yields, strict=True):
        _check_owners(name, left_value, right_value, line)
    blocks = []
    for (scope, _), made in zip(sides, yields, strict=True):
        with build.inside(scope):
            build.run(Yield(tuple(made)))
        blocks.append(scope.builder.block())
    results = build.branch(If(condition, blocks[0], blocks[1]), tuple(merged))
    after.update(zip(merged, results, strict=True))
    return after


def _is_plain(left: object, right: object) -> bool:
    return not isinstance(left, Value) and not isinstance(right, Value)


def _side(
    build: Build, scope: Scope, name: str, value: object, both: tuple[object, object], line: int
) -> Value:
    """One side's value in the type both sides agree on, built at the end of that side."""
    if not all(is_number(item) for item in both):
        raise CompileError(
            f"{name!r} is {describe(both[0])} or {describe(both[1])} after the `if` in line {line}",
            hint="a runtime choice is between tiles, scalars and numbers; decide with a constexpr",
        )
    tiles = [item.type for item in both if isinstance(item, Value) and _is_tile(item)]
    with build.inside(scope):
        made = build.lift(value, chosen(build, both))
        shape = next((type_.shape for type_ in tiles if isinstance(type_, TileType)), None)
        if shape is None or _is_tile(made):
            if isinstance(made.type, TileType) and made.type.shape != shape:
                raise CompileError(
                    f"{name!r} has two shapes after the `if` in line {line}: "
                    f"{describe(both[0])}, {describe(both[1])}"
                )
            return made
        if made.type != ScalarType(element(made)):
            raise CompileError(f"{name!r} is a tile or {describe(made)} after the `if`")
        return build.add(Splat(made, shape), name)


def chosen(build: Build, both: tuple[object, object]) -> DType:
    """The dtype of a choice: one that has no arithmetic may be chosen, too."""
    dtypes = {element(item) for item in both if isinstance(item, Value)}
    if len(dtypes) == 1 and all(isinstance(item, Value) for item in both):
        return dtypes.pop()
    return build.common(*both)


def _check_owners(name: str, left: Value, right: Value, line: int) -> None:
    """Ownership is decided later, but one name can't stand for two stated owners."""
    layouts = [value.type.layout for value in (left, right) if isinstance(value.type, TileType)]
    if len(set(layouts)) > 1:
        first, second = (f"{layout!r}" if layout else "no stated layout" for layout in layouts)
        raise OwnershipError(
            f"{name!r} has two owners after the `if` in line {line}: {first} and {second}",
            hint="convert it before or after the `if`: a branch and explicit thread layouts do not "
            "go together; use metile.where(condition, a, b), or a constexpr",
        )


def _is_tile(value: Value) -> bool:
    return isinstance(value.type, TileType)
