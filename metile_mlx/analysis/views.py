"""What views ask of the array given (elements, offsets, index width), and loops of their step
(SPEC X8, X10, K5).

Everything here runs on the host, for numbers a compilation doesn't know: the scalars of one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from metile_mlx.dtypes import DType
from metile_mlx.errors import CompileError, LaunchError, Loc
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import NOWHERE, Func, Op, Value, definitions, walk
from metile_mlx.ir.loops import For
from metile_mlx.ir.tile import Binary, Constant, Load, NumPrograms, Tensor
from metile_mlx.ir.types import PointerType

INT32_MAX = 2**31 - 1
# Calls remembered per kernel; a decode loop brings a new scalar with each step.
REMEMBERED = 256


def grid_name(axis: int) -> str:
    """How views call the grid's extent along an axis; no parameter can have such a name."""
    return f"num_programs({axis})"


def size_name(param: str) -> str:
    """How views call the number of elements of an array; no parameter can have such a name."""
    return f"size({param})"


def with_grid(scalars: Mapping[str, int], grid: tuple[int, int, int]) -> dict[str, int]:
    """All numbers views may depend on: the scalars of a call and the extents of its grid."""
    return {**scalars, **{grid_name(axis): extent for axis, extent in enumerate(grid)}}


@dataclass(frozen=True)
class HostExpr:
    """A number the host can work out: `factor` times the product of the scalars `names`.

    A name is that of a scalar parameter, or `grid_name` of an axis.
    """

    factor: int
    names: tuple[str, ...] = ()

    def evaluate(self, scalars: Mapping[str, int]) -> int:
        """The exact value, never wrapped.

        Raises:
            KeyError: `scalars` lacks one of `names`: that scalar is an MLX array in this call.
        """
        value = self.factor
        for name in self.names:
            value *= scalars[name]
        return value

    def __mul__(self, other: HostExpr) -> HostExpr:
        return HostExpr(self.factor * other.factor, tuple(sorted(self.names + other.names)))

    def __str__(self) -> str:
        shown = [str(self.factor)] if self.factor != 1 or not self.names else []
        return " * ".join([*shown, *self.names])


@dataclass(frozen=True)
class View:
    """One `metile.tensor` declaration; extents and strides are in elements.

    `names` are the scalars its extents and strides depend on, extents of the grid among them. Where
    the scalars of a call lack one of them (it was given as an MLX array and is not known yet)
    nothing can be checked and offsets are 64 bits wide.
    """

    param: str
    access: str
    dtype: DType
    shape: tuple[HostExpr, ...]
    strides: tuple[HostExpr, ...]
    loc: Loc = field(default=NOWHERE, compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The scalars the view depends on, sorted."""
        return tuple(sorted({n for e in (*self.shape, *self.strides) for n in e.names}))

    def geometry(self, scalars: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Extents and strides as numbers.

        Raises:
            LaunchError: a negative extent or stride, or one past 2**31 - 1.
            KeyError: a scalar of `names` is missing.
        """
        shape = tuple(expr.evaluate(scalars) for expr in self.shape)
        strides = tuple(expr.evaluate(scalars) for expr in self.strides)
        for what, exprs, values in (
            ("extent", self.shape, shape),
            ("stride", self.strides, strides),
        ):
            for dimension, (expr, value) in enumerate(zip(exprs, values, strict=True)):
                # The stride of a dimension with one element is multiplied by 0 only.
                unused = what == "stride" and shape[dimension] <= 1
                if value < 0 or (value > INT32_MAX and not unused):
                    source = f" ({expr})" if expr.names else ""
                    is_pointer = size_name(self.param) in expr.names
                    raise LaunchError(
                        f"[tensor] {self.param}: {what} {dimension} of its view is {value}{source},"
                        f" expected 0 to {INT32_MAX}",
                        self.loc,
                        "a pointer's offsets are i32: declare a view of several dimensions, "
                        f"metile.tensor({self.param}, ...)"
                        if is_pointer
                        else f"pass scalars that make the {what}s of {self.param} fit",
                    )
        return shape, strides


def views(func: Func) -> tuple[View, ...]:
    """Every view a kernel at Stage.TILE declares, in program order.

    Raises:
        CompileError: an extent or stride that is not a constant, a scalar parameter, an extent of
            the grid, or a product of these: the host could not check it.
    """
    defined = definitions(func)
    params = frozenset(func.params)
    return tuple(view_of(op, defined, params) for op in walk(func.body) if isinstance(op, Tensor))


def host_number(
    value: Value, defined: Mapping[Value, Op], params: frozenset[Value]
) -> HostExpr | None:
    """A uniform integer as the host can work it out, None where it can't."""
    match defined.get(value):
        case None if value in params:
            return HostExpr(1, (value.name,))
        case Constant(value=number):
            return HostExpr(int(number))
        case NumPrograms(axis=axis):
            return HostExpr(1, (grid_name(axis),))
        case Binary(kind=BinaryKind.MUL, lhs=lhs, rhs=rhs):
            left = host_number(lhs, defined, params)
            right = host_number(rhs, defined, params)
            return None if left is None or right is None else left * right
        case Load(given=True):
            # A scalar that is still an MLX array: the scalars of a call lack this name.
            return HostExpr(1, (value.name,))
        case _:
            return None


def view_of(tensor: Tensor, defined: Mapping[Value, Op], params: frozenset[Value]) -> View:
    """The view one declaration makes; `defined` and `params` are those of its kernel.

    Raises:
        CompileError: as `views`.
    """

    def host(value: Value) -> HostExpr:
        found = host_number(value, defined, params)
        if found is None:
            raise CompileError(
                f"[tensor] {value.name or 'an extent or stride'} of {tensor.param.name} is "
                "computed, expected a number, a scalar parameter, num_programs(axis), or a "
                "product of them",
                tensor.loc,
                "compute it in Python and pass it as a scalar argument",
            )
        return found

    pointer = tensor.param.type
    assert isinstance(pointer, PointerType)
    return View(
        tensor.param.name,
        tensor.access,
        pointer.dtype,
        tuple(host(value) for value in tensor.shape),
        tuple(host(value) for value in tensor.strides),
        tensor.loc,
    )


@dataclass(frozen=True)
class Step:
    """The step of a runtime loop, where it is a scalar parameter: at least 1 (SPEC K5)."""

    name: str
    loc: Loc = field(default=NOWHERE, compare=False)

    def check(self, scalars: Mapping[str, int]) -> None:
        """Nothing where the call gives it as an MLX array.

        Raises:
            LaunchError: it is below 1.
        """
        value = scalars.get(self.name, 1)
        if value < 1:
            raise LaunchError(
                f"[tile_range] step is {value} ({self.name}), expected at least 1",
                self.loc,
                f"pass a positive {self.name}, or count up and compute the index from it",
            )


def steps(func: Func) -> tuple[Step, ...]:
    """The steps of a kernel at Stage.TILE that a call can check."""
    loops = (op for op in walk(func.body) if isinstance(op, For) and op.step in func.params)
    return tuple(Step(loop.step.name, loop.loc) for loop in loops)


def required_elements(view: View, scalars: Mapping[str, int]) -> int:
    """Elements an array must have: the last reachable one plus one, 0 when an extent is 0.

    Raises:
        LaunchError: as `View.geometry`.
        KeyError: a scalar of `view.names` is missing.
    """
    shape, strides = view.geometry(scalars)
    if 0 in shape:
        return 0
    return 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))


def max_offset(view: View, scalars: Mapping[str, int]) -> int:
    """The largest offset an in-bounds index reaches, in elements; -1 when there is none.

    Raises:
        As `required_elements`.
    """
    return required_elements(view, scalars) - 1


def needs_64_bit(views: tuple[View, ...], scalars: Mapping[str, int]) -> bool:
    """Whether an offset can pass 2**31 - 1; yes where a view's scalars are not known (SPEC X8).

    Raises:
        LaunchError: as `View.geometry`.
    """
    return any(
        not scalars.keys() >= set(view.names) or max_offset(view, scalars) > INT32_MAX
        for view in views
    )


class ViewChecks:
    """The checks of one kernel's views and loops, remembered per set of scalars: the warm path.

    >>> checks = ViewChecks(views(func), steps(func))
    >>> index_bits = checks({"n": 512}, {"source": 32768, "result": 32768})
    """

    __slots__ = ("_facts", "_steps", "names", "views")

    def __init__(self, views: tuple[View, ...], steps: tuple[Step, ...] = ()) -> None:
        self.views = views
        self._steps = steps
        names = {name for view in views for name in view.names} | {step.name for step in steps}
        self.names = tuple(sorted(names))
        self._facts = lru_cache(REMEMBERED)(self._work_out)

    def __call__(self, scalars: Mapping[str, int], sizes: Mapping[str, int]) -> int:
        """Check arrays of these sizes and return the index width they need, 32 or 64.

        Args:
            scalars: the call's integer scalars, one given as an MLX array left out; and the extents
                of its grid (`with_grid`) where a view depends on them.
            sizes: elements of each array, by parameter name.

        Raises:
            LaunchError: an array smaller than its view, an illegal extent or stride, or a step of a
                loop below 1.
        """
        needs, bits = self._facts(*map(scalars.get, self.names))
        for param, needed in needs:
            if sizes[param] < needed:
                raise self._too_small(param, needed, sizes[param], scalars)
        return bits

    def unchecked(self, scalars: Mapping[str, int]) -> tuple[str, ...]:
        """Parameters whose views can't be checked: `scalars` lacks one they need (SPEC X10)."""
        return tuple(
            dict.fromkeys(v.param for v in self.views if not scalars.keys() >= set(v.names))
        )

    def _work_out(self, *values: int | None) -> tuple[tuple[tuple[str, int], ...], int]:
        """((parameter, elements needed), ...) and the index width, for values of `names`."""
        known = {n: v for n, v in zip(self.names, values, strict=True) if v is not None}
        for step in self._steps:
            step.check(known)
        needs: dict[str, int] = {}
        for view in self.views:
            if known.keys() >= set(view.names):
                needed = required_elements(view, known)
                needs[view.param] = max(needed, needs.get(view.param, 0))
        return tuple(needs.items()), 64 if needs_64_bit(self.views, known) else 32

    def _too_small(
        self, param: str, needed: int, given: int, scalars: Mapping[str, int]
    ) -> LaunchError:
        view = next(
            v
            for v in self.views
            if v.param == param
            and scalars.keys() >= set(v.names)
            and required_elements(v, scalars) == needed
        )
        shape, strides = view.geometry(scalars)
        used = ", ".join(f"{name}={scalars[name]}" for name in view.names)
        return LaunchError(
            f"[tensor] {param}: its view needs {needed} elements (shape {shape}, strides {strides}"
            f"{f', with {used}' if used else ''}), the array given has {given}",
            view.loc,
            "pass a larger array, or declare the shape it has",
        )


def check(views: tuple[View, ...], scalars: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """`ViewChecks` for one call.

    Raises:
        LaunchError: as `ViewChecks.__call__`.
    """
    return ViewChecks(views)(scalars, sizes)
