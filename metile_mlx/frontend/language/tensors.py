"""Array parameters and their declared views: `tensor`, `Tensor.load`, `Tensor.store` (SPEC K2)."""

from __future__ import annotations

from typing import overload

from metile_mlx.dtypes import DType, i32
from metile_mlx.errors import CompileError
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.types import (
    Access,
    ArrayLike,
    Extents,
    IndexLike,
    MaskLike,
    Scalar,
    ScalarLike,
    Tile,
    TileLike,
)
from metile_mlx.frontend.operators import MUL, binary
from metile_mlx.frontend.rules import outside, rule
from metile_mlx.frontend.values import describe, is_number
from metile_mlx.ir import tile
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Value
from metile_mlx.ir.types import PointerType, ScalarType, TensorType

ACCESS = ("read", "write", "read_write")


class Pointer:
    """Addresses `array + offsets` of the automatic path (SPEC K6)."""

    def __add__(self, other: IndexLike) -> Pointer:
        raise outside("Pointer")

    def __radd__(self, other: IndexLike) -> Pointer:
        raise outside("Pointer")


class Array:
    """An array parameter: `def k(source: metile.Array, ...)`. Declare views of it with `tensor`."""

    @property
    def dtype(self) -> DType:
        """The dtype of the elements, a compile-time constant."""
        raise outside("Array")

    @property
    def size(self) -> int:
        """Not known in a kernel: pass extents as parameters."""
        raise outside("Array")

    def __add__(self, other: IndexLike) -> Pointer:
        raise outside("Array")

    def __radd__(self, other: IndexLike) -> Pointer:
        raise outside("Array")


class Tensor:
    """A declared view of an array parameter (SPEC K2). Make it with `metile.tensor`."""

    @property
    def dtype(self) -> DType:
        """The dtype of the elements, a compile-time constant."""
        raise outside("Tensor")

    @overload
    def load(  # type: ignore[overload-overlap]
        self,
        indices: Scalar | int | tuple[Scalar | int, ...],
        mask: Scalar | bool | None = None,
        fill: ScalarLike = 0,
    ) -> Scalar: ...
    @overload
    def load(
        self,
        indices: IndexLike | tuple[IndexLike, ...],
        mask: MaskLike | None = None,
        fill: ScalarLike = 0,
    ) -> Tile: ...
    def load(
        self,
        indices: IndexLike | tuple[IndexLike, ...],
        mask: MaskLike | None = None,
        fill: ScalarLike = 0,
    ) -> Tile | Scalar:
        """Read elements; lanes outside the declared bounds or masked off give `fill` (SPEC K2).

        Args:
            indices: one i32 index per dimension, uniform or tile; a single index for rank 1.
            mask: bool, uniform or tile; None reads every lane that is in bounds.
            fill: a number or uniform scalar, converted to the tensor's dtype.

        Returns:
            A tile of the indices' shape and the tensor's dtype; a scalar at uniform indices.

        Raises:
            CompileError: wrong number or dtype of indices, a mask that is not bool, a fill that the
                dtype can't hold, access "write", or a load after a store to the same array (K7).
        """
        raise outside("Tensor.load")

    def store(
        self,
        indices: IndexLike | tuple[IndexLike, ...],
        value: TileLike,
        mask: MaskLike | None = None,
    ) -> None:
        """Write elements; lanes outside the declared bounds or masked off write nothing (SPEC K2).

        Args:
            indices: as for `load`.
            value: a tile, scalar or Python number. A float of another float dtype is rounded to the
                tensor's, once, here; a Python number takes the tensor's dtype. Any other difference
                of dtype is an error.
            mask: as for `load`.

        Raises:
            CompileError: as for `load`; access "read"; a value of another kind of dtype.
        """
        raise outside("Tensor.store")


def tensor(
    param: ArrayLike,
    shape: Extents,
    strides: Extents | None = None,
    access: Access = "read",
) -> Tensor:
    """Declare a view of an array parameter, at kernel entry (SPEC K2).

    Args:
        param: an array parameter.
        shape: extents: ints, constexprs, runtime int parameters or `num_programs(axis)`; one value
            for rank 1.
        strides: the same, in elements; None is row-major.
        access: "read", "write" or "read_write".

    Raises:
        CompileError: not an array parameter; an extent computed in the kernel; inside a loop or a
            runtime branch; another access than an earlier view's.
    """
    raise outside("tensor")


@rule(tensor)
def _tensor(build: Build, param: object, shape: object, strides: object, access: object) -> Value:
    if not isinstance(param, Value) or not isinstance(param.type, PointerType):
        raise build.error(f"param is {describe(param)}, expected an array parameter", "param")
    if access not in ACCESS:
        allowed = ", ".join(repr(name) for name in ACCESS)
        raise build.error(f"access is {describe(access)}, expected one of {allowed}", "access")
    check_entry(build)
    before = build.tensors.access.setdefault(param, str(access))
    if before != access:
        raise build.error(
            f"{param.name} is declared access={access!r} and access={before!r}",
            "access",
            "give both views access='read_write'",
        )
    extents = _extents(build, shape, "shape")
    steps = _row_major(build, extents) if strides is None else _extents(build, strides, "strides")
    item = tile.Tensor(
        param,
        tuple(build.lift(extent, i32) for extent in extents),
        tuple(build.lift(step, i32) for step in steps),
        str(access),
    )
    made = build.add(item, f"{param.name}_view")
    build.tensors.params[made] = param
    return made


def check_entry(build: Build) -> None:
    """Raise unless the call stands at the top level of the kernel."""
    if build.loops or build.branches:
        where = "a loop" if build.loops else "a runtime `if`"
        raise build.error(
            f"declared inside {where}; tensors are declared at kernel entry",
            hint="move the declaration to the top of the kernel",
        )


def _extents(build: Build, extents: object, argument: str) -> tuple[Value | int, ...]:
    parts = extents if isinstance(extents, tuple) else (extents,)
    if not parts:
        raise build.error(f"{argument} is empty, expected at least one entry", argument)
    made: list[Value | int] = []
    for part in parts:
        is_known = isinstance(part, Value) and (
            part in build.params or part in build.lazy_scalars or part in build.grid_extents
        )
        if isinstance(part, Value) and is_known and part.type == ScalarType(i32):
            made.append(part)
        elif isinstance(part, int) and not isinstance(part, bool):
            if part < 0:
                raise build.error(
                    f"an entry of {argument} is {part}, expected at least 0", argument
                )
            made.append(part)
        else:
            raise build.error(
                f"an entry of {argument} is {describe(part)}, expected an int, a constexpr, a "
                "runtime int parameter itself or num_programs(axis)",
                argument,
                "compute it on the host and pass it as a parameter",
            )
    return tuple(made)


def _row_major(build: Build, shape: tuple[Value | int, ...]) -> tuple[Value | int, ...]:
    step: Value | int = 1
    steps: list[Value | int] = []
    for extent in reversed(shape):
        steps.append(step)
        if len(steps) < len(shape):
            step = extent if step == 1 else _product(build, extent, step)
    return tuple(reversed(steps))


def _product(build: Build, extent: Value | int, step: Value | int) -> Value | int:
    if extent == 1:
        return step
    product = binary(build, MUL, extent, step)
    assert isinstance(product, Value | int)
    return product


@rule(Tensor.load, "load")
def _load(build: Build, self: Value, indices: object, mask: object, fill: object) -> Value:
    type_ = self.type
    assert isinstance(type_, TensorType)
    param = build.tensors.params.get(self, self)
    stored = build.tensors.stored.get(param)
    if stored is not None and self not in build.shared:
        raise build.error(
            f"{param.name} was stored to in line {stored.line}; a load can't see stores of the "
            "same launch",
            hint="load before the first store and keep the value, or use a second kernel",
        )
    if self not in build.shared:
        build.tensors.loaded.setdefault(param, build.call.loc)
    # The fill the user left out is no constant of the program (SPEC K2).
    filling = _fill(build, fill, type_.dtype) if "fill" in build.call.arguments else None
    item = tile.Load(self, _indices(build, self, indices), _mask(build, mask), filling)
    return build.add(item, f"{self.name}_load")


def load_whole(build: Build, array: Value, offset: Value, mask: object, fill: object) -> Value:
    """`metile.load(array + offset)`: as through a view of all elements."""
    return _load(build, build.whole(array, "read"), offset, mask, fill)


def store_whole(build: Build, array: Value, offset: Value, value: object, mask: object) -> None:
    """`metile.store(array + offset, value)`: as through a view of all elements."""
    _store(build, build.whole(array, "write"), offset, value, mask)


def load_at(build: Build, tensor: Value, indices: tuple[Value, ...], fill: object) -> Value:
    """`Tensor.load` for another rule."""
    return _load(build, tensor, indices, None, fill)


def store_at(build: Build, tensor: Value, indices: tuple[Value, ...], value: Value) -> None:
    """`Tensor.store` for another rule."""
    _store(build, tensor, indices, value, None)


@rule(Tensor.store, "store")
def _store(build: Build, self: Value, indices: object, value: object, mask: object) -> None:
    type_ = self.type
    assert isinstance(type_, TensorType)
    if type_.access == "read":
        raise build.error(
            f"{self.name} is declared access='read'",
            hint="declare access='write' or 'read_write' to store to it",
        )
    where = _indices(build, self, indices)
    build.run(tile.Store(self, where, _stored(build, self, value), _mask(build, mask)))
    if self not in build.shared:
        build.tensors.stored.setdefault(build.tensors.params[self], build.call.loc)


def _stored(build: Build, self: Value, value: object) -> Value:
    """The value in the tensor's dtype; see `Tensor.store` for what converts by itself."""
    assert isinstance(self.type, TensorType)
    dtype = self.type.dtype
    build.expect_number(value, "value")
    if not isinstance(value, Value):
        try:
            return build.lift(value, dtype)
        except CompileError as error:
            raise build.error(error.message, "value", error.hint) from None
    if element(value) == dtype or (element(value).is_float and dtype.is_float):
        return build.cast(value, dtype)
    raise build.error(
        f"value is {element(value)}, {self.name} holds {dtype}",
        "value",
        f"cast it: metile.cast(value, {dtype!r})",
    )


def _indices(build: Build, self: Value, indices: object) -> tuple[Value, ...]:
    assert isinstance(self.type, TensorType)
    parts = indices if isinstance(indices, tuple) else (indices,)
    if len(parts) != self.type.rank:
        raise build.error(
            f"{self.name} has {self.type.rank} dimension{'s' * (self.type.rank != 1)}, got "
            f"{len(parts)} ind{'ices' if len(parts) != 1 else 'ex'}",
            "indices",
            "give one index per dimension",
        )
    made: list[Value] = []
    for part in parts:
        value = build.number(part, "indices") if is_number(part) else None
        if value is None or element(value) != i32:
            what = describe(part) if value is None else str(element(value))
            raise build.error(
                f"an index of {self.name} is {what}, expected i32",
                "indices",
                None if value is None else "cast the index: metile.cast(index, metile.i32)",
            )
        made.append(value)
    return tuple(made)


def _mask(build: Build, mask: object) -> Value | None:
    if mask is None or mask is True:
        return None
    value = build.number(mask, "mask")
    if element(value).name != "bool":
        raise build.error(
            f"mask is {element(value)}, expected bool", "mask", "compare: mask=(x != 0)"
        )
    return value


def _fill(build: Build, fill: object, dtype: DType) -> Value:
    build.expect_number(fill, "fill")
    if not isinstance(fill, Value):
        try:
            return build.lift(fill, dtype)
        except CompileError as error:
            raise build.error(error.message, "fill", error.hint) from None
    if fill.type != ScalarType(element(fill)):
        raise build.error(f"fill is {describe(fill)}, expected a uniform scalar", "fill")
    if element(fill) != dtype and not (element(fill).is_float and dtype.is_float):
        raise build.error(
            f"fill is {element(fill)}, the tensor holds {dtype}", "fill", "cast it first"
        )
    return build.cast(fill, dtype)
