"""`@metile.kernel`: a Python function that runs as a kernel, specialised per call (SPEC K7)."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, overload

from metile_mlx.backends import BACKENDS
from metile_mlx.context import Schedule
from metile_mlx.dispatch import (
    ArrayArgument,
    Dispatch,
    Empty,
    Options,
    ScalarArgument,
    integer,
    own_dtype,
)
from metile_mlx.dtypes import bool_, f32, i32
from metile_mlx.errors import CompileError, LaunchError
from metile_mlx.frontend.definition import Definition, InlineFunction, Parameter
from metile_mlx.frontend.usage import array_params, may_be_arrays
from metile_mlx.frontend.values import MISSING, ArraySpec, ScalarSpec, as_constant, constant_key
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.locks import Lock
from metile_mlx.runtime import export
from metile_mlx.runtime.backend import Backend, Grid, Place, choose
from metile_mlx.runtime.optional import mx
from metile_mlx.specialise import Spec, Specialisation, specialise

MATH_MODES = ("safe", "relaxed", "fast")
# Specialisations and dispatches kept per kernel (F04).
_KEPT = 512

_SCALAR_DTYPES = {int: i32, float: f32, bool: bool_}


class Kernel:
    """A kernel; `kernel[grid](...)` launches it. Made by `@metile.kernel`."""

    def __init__(
        self, function: Callable[..., Any], schedule: Schedule, relaxed: str | None = None
    ) -> None:
        functools.update_wrapper(self, function)
        self.definition = Definition.of(function)
        self.schedule = schedule
        self._names = tuple(p.name for p in self.definition.params)
        self._index = {name: i for i, name in enumerate(self._names)}
        self._runtime = tuple(
            (i, p) for i, p in enumerate(self.definition.params) if not p.is_constexpr
        )
        self._constexprs = tuple(
            (i, p) for i, p in enumerate(self.definition.params) if p.is_constexpr
        )
        self._relaxed = self._relaxed_by(relaxed)
        self._specialisations: OrderedDict[object, Specialisation] = OrderedDict()
        self._dispatches: OrderedDict[object, Dispatch] = OrderedDict()
        self._lock = Lock()

    def __getitem__(self, grid: int | Sequence[int]) -> Launcher:
        """The kernel over a grid of programs: an int or up to three ints."""
        return Launcher(self, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise LaunchError(
            f"[{self.definition.name}] a kernel is launched over a grid of programs",
            hint=f"{self.definition.name}[(programs,)](...)",
        )

    def __reduce__(self) -> str:
        """As a function's: copies are the kernel itself, a pickle is its name."""
        return self.definition.fn.__qualname__

    def __repr__(self) -> str:
        return f"<metile kernel {self.definition.name}({', '.join(self._names)})>"

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """One value per parameter, in order.

        Raises:
            LaunchError: wrong arity, unknown or doubled names, a missing argument or constexpr.
        """
        values = list(args)
        if len(values) > len(self._names):
            raise LaunchError(
                f"[{self.definition.name}] {len(values)} arguments given; the kernel takes "
                f"{len(self._names)}: {', '.join(self._names)}"
            )
        values += [MISSING] * (len(self._names) - len(values))
        for name, value in kwargs.items():
            index = self._index.get(name)
            if index is None:
                raise LaunchError(
                    f"[{self.definition.name}] unknown argument {name!r}; the kernel takes "
                    f"{', '.join(self._names)}"
                )
            if index < len(args):
                raise LaunchError(f"[{self.definition.name}] argument {name!r} is given twice")
            values[index] = value
        for index, value in enumerate(values):
            if value is MISSING:
                values[index] = self._default(self.definition.params[index])
        return values

    def _default(self, parameter: Parameter) -> Any:
        if parameter.default is not MISSING:
            return parameter.default
        what = "constexpr" if parameter.is_constexpr else "argument"
        raise LaunchError(
            f"[{self.definition.name}] missing {what} {parameter.name!r}",
            hint=f"pass {parameter.name}=..." if parameter.is_constexpr else None,
        )

    def read_arrays(
        self, dispatch: Dispatch, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """The arrays among the arguments of a call that the kernel reads, in order."""
        values = self.bind(args, kwargs)
        return dispatch.inputs([values[i] for i, _ in self._runtime])

    def _relaxed_by(self, name: str | None) -> int | None:
        if name is not None and name not in {p.name for _, p in self._constexprs}:
            raise CompileError(
                f"relaxed={name!r} names no constexpr parameter of the kernel",
                self.definition.loc,
                f"add {name}: metile.constexpr = False",
            )
        return None if name is None else self._index[name]

    def options(
        self, schedule: Schedule | None, math_mode: str | None, stream: Place, values: list[Any]
    ) -> Options:
        """What a call asks for; the math mode it leaves open follows from its constexprs."""
        if math_mode is None:
            by = self._relaxed
            math_mode = "relaxed" if by is not None and values[by] else "safe"
        elif math_mode not in MATH_MODES:
            raise LaunchError(
                f"math_mode is {math_mode!r}; expected one of {', '.join(MATH_MODES)}"
            )
        return Options(_checked_schedule(schedule, self.schedule), math_mode, stream)

    def dispatch(
        self, grid: Grid, values: list[Any], backend: Backend, options: Options
    ) -> tuple[Dispatch, tuple[Any, ...]]:
        """The dispatch for these values, from the cache or new, and its scalars."""
        key, scalars = self._key(grid, values, backend, options)
        found = self._dispatches.get(key)
        if found is None:
            found = self._make(key, grid, values, backend, options)
        return found, scalars

    def _key(
        self, grid: Grid, values: list[Any], backend: Backend, options: Options
    ) -> tuple[object, tuple[Any, ...]]:
        """What tells the dispatch of these values from others, and their scalars, converted."""
        constexprs = tuple([token(values[i]) for i, _ in self._constexprs])
        facts: list[object] = []
        scalars: list[Any] = []
        for index, parameter in self._runtime:
            value = values[index]
            kind = type(value)
            if kind is mx.array or kind is Empty:
                facts.append((kind is Empty, value.shape, value.dtype))
                continue
            if kind not in _SCALAR_DTYPES or parameter.annotation is float:
                values[index] = value = self._scalar(parameter, value)
                kind = type(value)
            facts.append(kind)
            scalars.append(value)
        key = (
            grid,
            tuple(facts),
            constexprs,
            self.definition.environment(),
            backend.name,
            options.schedule,
            options.math_mode,
            # MLX's streams are equal by value and hash by identity.
            None if options.stream is None else repr(options.stream),
        )
        return key, tuple(scalars)

    def _make(
        self, key: object, grid: Grid, values: list[Any], backend: Backend, options: Options
    ) -> Dispatch:
        arrays: list[ArrayArgument] = []
        scalars: list[ScalarArgument] = []
        specs: dict[str, Spec] = {}
        for position, (index, parameter) in enumerate(self._runtime):
            value, name = values[index], parameter.name
            if isinstance(value, mx.array | Empty):
                specs[name] = self._array_spec(name, value)
                arrays.append(ArrayArgument(position, name, tuple(value.shape), value.dtype))
            else:
                specs[name] = ScalarSpec(_SCALAR_DTYPES[type(value)])
                scalars.append(ScalarArgument(position, name, type(value)))
        constants = {p.name: values[i] for i, p in self._constexprs}
        with self._lock:
            found = self._dispatches.get(key)
            if found is None:
                special = self._specialise(specs, constants)
                self._check_outputs(special, arrays, values)
                found = Dispatch(special, backend, grid, arrays, scalars, options)
                found.prepare(tuple(values[self._index[s.name]] for s in scalars))
                # Not where an outside value changed meanwhile: it may be of either value.
                if self._key(grid, values, backend, options)[0] == key:
                    keep(self._dispatches, key, found)
        return found

    def _specialise(
        self, specs: Mapping[str, Spec], constants: Mapping[str, object]
    ) -> Specialisation:
        def key() -> object:
            return (
                tuple(specs.items()),
                tuple([(name, token(value)) for name, value in constants.items()]),
                self.definition.environment(),
            )

        before = key()
        found = self._specialisations.get(before)
        if found is None:
            found = specialise(self.definition, specs, constants)
            if key() == before:
                keep(self._specialisations, before, found)
        return found

    def _array_spec(self, name: str, value: Any) -> Spec:
        dtype = own_dtype(value.dtype, f"{self.definition.name}: {name}")
        if isinstance(value, Empty) or name in array_params(self.definition):
            return ArraySpec(dtype)
        if value.size != 1 and name in may_be_arrays(self.definition):
            return ArraySpec(dtype)
        if value.size != 1:
            raise LaunchError(
                f"[{self.definition.name}] {name!r} is used as a scalar and given an array of "
                f"shape {tuple(value.shape)}",
                hint=f"declare it with metile.tensor({name}, ...) to load from it",
            )
        return ScalarSpec(dtype, lazy=True)

    def _scalar(self, parameter: Parameter, value: Any) -> int | float | bool:
        """A Python number of `value`; NumPy numbers and numbers for `float` parameters convert."""
        if isinstance(value, bool):
            return value
        if parameter.annotation is float and isinstance(value, int | float):
            return float(value)
        if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
            converted = value.item()
            if type(converted) in _SCALAR_DTYPES:
                return converted  # type: ignore[no-any-return]
        if type(value) in _SCALAR_DTYPES:
            return value  # type: ignore[no-any-return]
        raise LaunchError(
            f"[{self.definition.name}] {parameter.name!r} is of type {type(value).__name__}; "
            "expected an mx.array, metile.empty(...), int, float or bool",
            hint="convert NumPy arrays with mx.array(x)" if hasattr(value, "shape") else None,
        )

    def _check_outputs(
        self, special: Specialisation, arrays: Sequence[ArrayArgument], values: Sequence[Any]
    ) -> None:
        if not special.writes:
            # A store of a path that is not there yet is named before a missing output is.
            special.owned(Schedule())
            raise CompileError(
                f"[{self.definition.name}] the kernel writes nothing",
                loc=self.definition.loc,
                hint="declare an output: metile.tensor(out, shape=..., access='write')",
            )
        for array in arrays:
            empty = isinstance(values[self._index[array.name]], Empty)
            if empty and array.name in special.reads:
                raise LaunchError(
                    f"[{self.definition.name}] {array.name!r} is read and given metile.empty",
                    hint="pass an array",
                )


class Launcher:
    """A kernel over a grid; call it, or `prepare` a Dispatch for many calls."""

    __slots__ = ("_grid", "_kernel")

    def __init__(self, kernel: Kernel, grid: int | Sequence[int]) -> None:
        self._kernel = kernel
        self._grid = _checked_grid(kernel.definition.name, grid)

    def __call__(
        self,
        *args: Any,
        schedule: Schedule | None = None,
        backend: str | None = None,
        target: str | None = None,
        stream: Place = None,
        math_mode: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Launch and return the written arrays, lazy: one array, or a tuple in parameter order.

        Args:
            args: arrays, runtime scalars and constexprs, by position or by name. An output is
                `metile.empty(shape, dtype)`, or an array used only for its shape and dtype.
            schedule: how to compile; the kernel's own by default.
            backend: metal, cuda, cpu, emulator or reference; else METILE_BACKEND, else the
                device's own.
            target: as backend: what to compile for.
            stream: an MLX stream or device.
            math_mode: safe, relaxed or fast; handed to MLX's Metal compiler. Safe by default, or
                relaxed where the constexpr that `@metile.kernel(relaxed=...)` names is true.

        Raises:
            LaunchError: arguments that do not fit the kernel.
            CompileError: the kernel can't be compiled for them.
            OutOfResources: it needs more than the target has.
            BackendError: the backend asked for can't run here.
        """
        kernel = self._kernel
        place = backend_of(backend, target, stream, compile_only=False)
        values = kernel.bind(args, kwargs)
        options = kernel.options(schedule, math_mode, stream, values)
        dispatch, scalars = kernel.dispatch(self._grid, values, place, options)
        runtime = [values[i] for i, _ in kernel._runtime]
        return dispatch.run(dispatch.inputs(runtime), scalars)

    def prepare(
        self,
        *args: Any,
        schedule: Schedule | None = None,
        backend: str | None = None,
        target: str | None = None,
        stream: Place = None,
        math_mode: str | None = None,
        **kwargs: Any,
    ) -> Dispatch:
        """Compile for these arguments and return a Dispatch for calls with others like them.

        Args and errors as in a call; with `target="metal"` the text is compiled and can be read
        (`.msl`) on a machine without Metal.
        """
        kernel = self._kernel
        place = backend_of(backend, target, stream, compile_only=backend is None)
        values = kernel.bind(args, kwargs)
        options = kernel.options(schedule, math_mode, stream, values)
        dispatch, scalars = kernel.dispatch(self._grid, values, place, options)
        return dispatch.prepared_for(scalars)


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(
    *, schedule: Schedule = ..., relaxed: str | None = ...
) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(
    function: Callable[..., Any] | None = None,
    /,
    *,
    schedule: Schedule | None = None,
    relaxed: str | None = None,
) -> Kernel | Callable[[Callable[..., Any]], Kernel]:
    """Make a kernel of a plain Python function (SPEC K1).

    The source is read once and translated, never executed.

    Args:
        function: the kernel.
        schedule: of calls that name none.
        relaxed: name of a constexpr parameter; calls where it is true and that name no math mode
            are compiled with `relaxed`.

    Raises:
        CompileError: there is no source to read, or the signature is not one a kernel can have.
    """
    default = _checked_schedule(schedule, Schedule())
    if function is not None:
        return Kernel(function, default)
    return lambda f: Kernel(f, default, relaxed)


def backend_of(
    backend: str | None, target: str | None, stream: Place, compile_only: bool
) -> Backend:
    if backend is not None and target not in (None, backend):
        raise LaunchError(
            f"backend={backend!r} and target={target!r} are given; expected one, or the same",
            hint="target= compiles without running; backend= is where a call runs",
        )
    name = backend or target
    exported = export.active_target()
    if exported is not None and name in (None, exported):
        return BACKENDS[exported]
    if name is not None and compile_only and name in BACKENDS:
        return BACKENDS[name]
    return choose(name, stream, BACKENDS)


def _checked_grid(name: str, grid: int | Sequence[int]) -> Grid:
    given: tuple[Any, ...] = tuple(grid) if isinstance(grid, (tuple, list)) else (grid,)
    extents = tuple([integer(extent) for extent in given])
    if not 1 <= len(extents) <= 3 or not all(0 <= e < 2**31 for e in extents):
        raise LaunchError(
            f"[{name}] grid is {grid!r}; expected one to three integers of 0 to {2**31 - 1}: the "
            "number of programs along each axis"
        )
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _checked_schedule(schedule: Schedule | None, default: Schedule) -> Schedule:
    if schedule is None:
        return default
    if not isinstance(schedule, Schedule):
        raise LaunchError(f"schedule is {schedule!r}; expected a metile.Schedule")
    return schedule


def token(value: object) -> Hashable:
    """The key of a constexpr: equal exactly when the front end sees the same value.

    An inline function brings the outside values that its body reads.
    """
    kind = type(value)
    if kind is int or kind is str or kind is ThreadLayout:
        return value
    if isinstance(value, InlineFunction):
        return constant_key(value), value.definition.environment()
    held = as_constant(value)
    return held if type(held) is int else constant_key(held)


def keep(cache: OrderedDict[object, Any], key: object, value: Any) -> None:
    """Remember, dropping the oldest beyond the limit."""
    cache[key] = value
    if len(cache) > _KEPT:
        cache.popitem(last=False)
