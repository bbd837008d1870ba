"""`Dispatch`: one kernel made ready for arrays of given shapes and dtypes (SPEC K7)."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from metile_mlx.analysis.views import size_name, with_grid
from metile_mlx.context import Schedule
from metile_mlx.dtypes import MLX_NAMES, DType
from metile_mlx.emit.source import KernelSource
from metile_mlx.errors import LaunchError
from metile_mlx.explain import explain
from metile_mlx.report import Coverage, ExecutionReport, Limit
from metile_mlx.runtime import cuda, cuda_compile, metal
from metile_mlx.runtime.backend import Backend, Grid, Launch, Output, Place, Pull, Request, Scalar
from metile_mlx.runtime.backends import pipeline_limit, recorded
from metile_mlx.runtime.cpu import MAX_EXTENT, mlx_dtypes
from metile_mlx.runtime.optional import mx
from metile_mlx.specialise import Specialisation, TextKey
from metile_mlx.target import CUDA, METAL, Target

# Launches kept per dispatch, one for each set of scalars; dropped all at once when full (F04).
_KEPT = 64


@dataclass(frozen=True)
class Empty:
    """An output argument that is only a shape and a dtype; make one with `metile.empty`."""

    shape: tuple[int, ...]
    dtype: Any


def empty(shape: int | Sequence[int], dtype: Any) -> Empty:
    """An output argument: shape and dtype of the array a kernel returns (SPEC K7).

    Args:
        shape: extents, or one extent.
        dtype: a metile dtype (`metile.f32`) or an MLX dtype (`mx.float32`).

    Raises:
        LaunchError: an extent MLX can't count, or a dtype no kernel can write.
    """
    given = shape if isinstance(shape, tuple | list) else (shape,)
    extents = tuple([integer(extent) for extent in given])
    if not all(0 <= extent <= MAX_EXTENT for extent in extents):
        raise LaunchError(f"[empty] shape is {shape!r}; expected integers of 0 to {MAX_EXTENT}")
    if isinstance(dtype, DType):
        return Empty(extents, mlx_dtypes()[dtype])
    if not isinstance(dtype, mx.Dtype):
        raise LaunchError(
            f"[empty] dtype is {dtype!r}; expected a metile dtype or an MLX dtype",
            hint="metile.f32, or mx.float32",
        )
    own_dtype(dtype, "empty")
    return Empty(extents, dtype)


def integer(value: object) -> int:
    """The value of an integer of any type, NumPy's too, else -1.

    An MLX array is none: it would have to be evaluated.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool | mx.array):
        return -1
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return -1


def own_dtype(dtype: Any, name: str) -> DType:
    """Our dtype of an MLX dtype.

    Raises:
        LaunchError: MLX dtypes that kernels do not know (float64, complex64).
    """
    found = MLX_NAMES.get(_short(dtype))
    if found is None:
        raise LaunchError(
            f"[{name}] dtype {_short(dtype)} is not supported; expected one of "
            f"{', '.join(MLX_NAMES)}"
        )
    return found


@dataclass(frozen=True)
class ArrayArgument:
    """An array parameter as prepared: only arrays of this shape and dtype are taken."""

    position: int
    name: str
    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class ScalarArgument:
    """A runtime scalar parameter; `kind` is the Python type of its values."""

    position: int
    name: str
    kind: type


@dataclass(frozen=True)
class Options:
    """What a call asked for besides its arguments."""

    schedule: Schedule
    math_mode: str
    stream: Place


class Dispatch:
    """A kernel ready to run: call it with arrays of the prepared shapes and dtypes.

    A call takes the runtime parameters in order, constexprs left out, and returns what the kernel
    writes as lazy arrays. Runtime scalars may have new values; nothing is recompiled for them.

    Raises:
        LaunchError: when called with arrays of another shape or dtype, or with scalars for which a
            declared view does not fit its array (SPEC X10).
    """

    def __init__(
        self,
        specialisation: Specialisation,
        backend: Backend,
        grid: Grid,
        arrays: Sequence[ArrayArgument],
        scalars: Sequence[ScalarArgument],
        options: Options,
    ) -> None:
        self._specialisation = specialisation
        self._backend = backend
        self._options = options
        self._arrays = tuple(arrays)
        self._scalars = tuple(scalars)
        self._arity = len(arrays) + len(scalars)
        self._scalar_positions = tuple(s.position for s in scalars)
        self._kinds = tuple(s.kind for s in scalars)
        self._sizes = {a.name: math.prod(a.shape) for a in arrays}
        self._inputs = [a for a in arrays if a.name in specialisation.reads]
        self._input_positions = tuple(a.position for a in self._inputs)
        self._single = len(specialisation.writes) == 1
        # Of arrays that are reached by pointers.
        names = {param.name for param in specialisation.func.params}
        sizes = {size_name(array): size for array, size in self._sizes.items()}
        self._implicit = {name: size for name, size in sizes.items() if name in names}
        self._launches: dict[tuple[object, ...], Launch] = {}
        self._values: tuple[Scalar, ...] = ()
        self.grid = grid

    def __call__(self, *args: Any) -> Any:
        if len(args) != self._arity:
            raise LaunchError(self._arity_message(len(args)))
        for argument in self._arrays:
            given = args[argument.position]
            try:
                same = given.shape == argument.shape and given.dtype == argument.dtype
            except AttributeError:
                same = False
            if not same:
                raise LaunchError(self._array_message(argument, given))
        scalars = tuple([args[i] for i in self._scalar_positions])
        if tuple(map(type, scalars)) != self._kinds:
            scalars = self._converted(scalars)
        return self.run([args[i] for i in self._input_positions], scalars)

    def run(self, arrays: Sequence[Any], scalars: tuple[Scalar, ...]) -> Any:
        """Launch with the arrays that are read and all scalars, both already checked for type."""
        # 0.0 == -0.0, so a zero float is keyed by its text.
        key = tuple([s if s or type(s) is not float else repr(s) for s in scalars])
        launch = self._launches.get(key)
        if launch is None:
            launch = self._bind(scalars, key)
        made = launch(arrays)
        return made[0] if self._single else tuple(made)

    def unchecked(self, pull: Pull | None = None) -> Launch:
        """The bare launch with the prepared scalars, without the checks of a call.

        Args:
            pull: the gradient, in place of the reference's: from the arrays that are read, the
                cotangents of what is written and what is written, to one for each of the arrays.

        Returns:
            A function of the arrays that are read, in parameter order and of the prepared shapes
            and dtypes, which returns the list of lazy outputs.
        """
        request = self._request(self._values, self._backend.target)
        return self._backend.bind(replace(request, pull=pull))

    def inputs(self, arguments: Sequence[Any]) -> list[Any]:
        """The arrays that are read, of all runtime arguments."""
        return [arguments[i] for i in self._input_positions]

    def reference_request(self) -> Request:
        """The prepared launch as the reference backend takes it, whatever backend this is for."""
        return self._request(self._values, None)

    def prepare(self, scalars: tuple[Scalar, ...]) -> None:
        """Check the arguments and compile, as the first call would.

        Raises:
            LaunchError, CompileError, OutOfResources: as a call.
        """
        self._values = scalars
        self._check_scalars(scalars)
        if self._backend.target is None:
            self._specialisation.owned(self._options.schedule)
        request = self._request(scalars, self._backend.target)
        if request.source is not None and self._backend.target is not None:
            metal.check_limits(request.source, self._backend.target)
            if self._backend.target == METAL:
                # Before this dispatch is kept, so that one that can't run never is.
                pipeline_limit(request)

    def prepared_for(self, scalars: tuple[Scalar, ...]) -> Dispatch:
        """This dispatch, or one like it whose report and text are of these scalars.

        Raises:
            LaunchError, CompileError, OutOfResources: as a call.
        """
        if repr(scalars) == repr(self._values):
            return self
        made = Dispatch(
            self._specialisation,
            self._backend,
            self.grid,
            self._arrays,
            self._scalars,
            self._options,
        )
        made._launches = self._launches
        made.prepare(scalars)
        return made

    @property
    def threadgroup(self) -> Grid:
        """Threads of a threadgroup."""
        return (self.execution_report.threads, 1, 1)

    @cached_property
    def execution_report(self) -> ExecutionReport:
        """What the compiler did and how the launch with the prepared scalars runs (SPEC E)."""
        return self._report()

    def explain(self) -> str:
        """The execution report as text."""
        return explain(self.execution_report)

    @cached_property
    def msl(self) -> str:
        """The Metal text of this dispatch as MLX records it, on any machine (SPEC K7, X2)."""
        own = self._backend.target
        is_msl = own is not None and own.language == "msl"
        return recorded(self._request(self._values, own if is_msl else METAL)).text

    def device_code(self, *, propagate_ranges: bool = True) -> cuda_compile.Compiled:
        """What nvcc makes of the text for CUDA, on a machine without a GPU too (SPEC X9).

        Registers, spills, shared memory, the width of memory accesses and the number of branches;
        takes seconds. Without `propagate_ranges` it is of a text whose bounds checks are all there.

        Raises:
            BackendError: there is no nvcc.
            CompileError: nvcc refuses the text.
        """
        key = self._text_key(self._values, CUDA, self._outputs(self._values))
        text = self._specialisation.text(replace(key, propagate_ranges=propagate_ranges))
        return cuda_compile.compile_all([text.source])[0]

    def _bind(self, scalars: tuple[Scalar, ...], key: tuple[object, ...]) -> Launch:
        self._check_scalars(scalars)
        launch = self._backend.bind(self._request(scalars, self._backend.target))
        if len(self._launches) >= _KEPT:
            self._launches.clear()
        self._launches[key] = launch
        return launch

    def _converted(self, scalars: tuple[Any, ...]) -> tuple[Scalar, ...]:
        """NumPy's numbers as Python's, and integers as floats where a float is expected."""
        found = []
        for argument, given in zip(self._scalars, scalars, strict=True):
            is_numpy = hasattr(given, "item") and not isinstance(given, mx.array)
            value = given.item() if is_numpy else given
            found.append(float(value) if argument.kind is float and type(value) is int else value)
        self._check_scalars(tuple(found))
        return tuple(found)

    def _named(self, scalars: tuple[Scalar, ...]) -> dict[str, Scalar]:
        named = {s.name: value for s, value in zip(self._scalars, scalars, strict=True)}
        return {**named, **self._implicit}

    def _host_numbers(self, scalars: tuple[Scalar, ...]) -> dict[str, int]:
        """What views may depend on."""
        named = self._named(scalars)
        return with_grid({n: v for n, v in named.items() if isinstance(v, int)}, self.grid)

    def _check_scalars(self, scalars: tuple[Any, ...]) -> None:
        for argument, value in zip(self._scalars, scalars, strict=True):
            if type(value) is not argument.kind:
                # An array is not shown: that would evaluate it.
                given = "" if isinstance(value, mx.array) else f"{value!r}, "
                raise LaunchError(
                    f"[{self._specialisation.func.name}] scalar {argument.name!r} is {given}of "
                    f"type {type(value).__name__}; prepared for {argument.kind.__name__}"
                )
            if isinstance(value, int) and not -(2**31) <= value < 2**31:
                raise LaunchError(
                    f"[{self._specialisation.func.name}] scalar {argument.name!r} = {value} does "
                    f"not fit i32 ({-(2**31)} to {2**31 - 1})"
                )

    def _request(self, scalars: tuple[Scalar, ...], target: Target | None) -> Request:
        outputs = self._outputs(scalars)
        source = None
        if target is not None:
            source = self._specialisation.text(self._text_key(scalars, target, outputs)).source
        return Request(
            self._specialisation.func,
            source,
            tuple(a.name for a in self._inputs),
            tuple(a.shape for a in self._inputs),
            outputs,
            self._named(scalars),
            self.grid,
            self._options.stream,
        )

    def _text_key(
        self, scalars: tuple[Scalar, ...], target: Target, outputs: Sequence[Output]
    ) -> TextKey:
        bits = self._specialisation.checks(self._host_numbers(scalars), self._sizes)
        # The CPU starts a read_write output as a copy; elsewhere a written mask is merged after.
        masked = frozenset(out.param for out in outputs if out.fill == "input")
        return TextKey(
            target,
            self._options.schedule,
            self._options.math_mode,
            target.index_bits or bits,
            frozenset() if target.language == "cpp" else masked,
        )

    def _outputs(self, scalars: tuple[Scalar, ...]) -> tuple[Output, ...]:
        numbers = self._host_numbers(scalars)
        self._specialisation.checks(numbers, self._sizes)
        proofs = {proof.param: proof for proof in self._specialisation.coverage}
        found = []
        for array in self._arrays:
            proof = proofs.get(array.name)
            if proof is None:
                continue
            stored = proof.proven(numbers, self.grid, self._sizes[array.name])
            unstored = "input" if array.name in self._specialisation.reads else "zero"
            fill = "stored" if stored else unstored
            found.append(Output(array.name, array.shape, own_dtype(array.dtype, array.name), fill))
        return tuple(found)

    def _report(self) -> ExecutionReport:
        outputs = self._outputs(self._values)
        target = self._backend.target
        if target is None:
            report = self._specialisation.owned(self._options.schedule)
            report.notes.append("reference: a graph of MLX operations; nothing was compiled")
        else:
            key = self._text_key(self._values, target, outputs)
            report = self._specialisation.fresh_report(key)
            report.limits += _limits(report, self._specialisation.text(key).source, target)
            if target == CUDA:
                report.limits += cuda.limits(self._specialisation.text(key).source)
            if target == METAL:
                pipeline = pipeline_limit(self._request(self._values, target))
                report.limits.append(
                    Limit(
                        "maxTotalThreadsPerThreadgroup",
                        report.threads,
                        pipeline.allowed or target.max_threads,
                        pipeline.allowed is not None,
                        pipeline.note,
                    )
                )
        report.backend = self._backend.name
        report.grid = self.grid
        numbers = self._host_numbers(self._values)
        proofs = {proof.param: proof for proof in self._specialisation.coverage}
        how = {"cpu": ("zero-filled first", "copied from the input first")}.get(
            self._backend.name, ("MLX's init_value=0", "merged through a written mask")
        )
        for name in self._specialisation.checks.unchecked(numbers):
            report.notes.append(
                f"{name}: its size is not checked, since a scalar it depends on is an MLX array"
            )
        for out in outputs:
            fill = {"stored": "", "zero": how[0], "input": how[1]}[out.fill]
            reason = proofs[out.param].explain(numbers, self.grid, self._sizes[out.param])
            report.coverage.append(Coverage(out.param, out.fill == "stored", fill, reason))
        return report

    def _arity_message(self, given: int) -> str:
        named = {a.position: a.name for a in self._arrays} | {
            s.position: s.name for s in self._scalars
        }
        names = ", ".join(named[position] for position in sorted(named))
        return (
            f"[{self._specialisation.func.name}] {given} arguments given; this dispatch takes "
            f"{self._arity}: {names}"
        )

    def _array_message(self, argument: ArrayArgument, given: Any) -> str:
        if isinstance(given, (mx.array, Empty)):
            what = f"{_short(given.dtype)} of shape {tuple(given.shape)}"
        else:
            what = f"of type {type(given).__name__}"
        return (
            f"[{self._specialisation.func.name}] array {argument.name!r} is {what}; prepared for "
            f"{_short(argument.dtype)} of shape {argument.shape}"
        )


def _short(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def _limits(report: ExecutionReport, source: KernelSource, target: Target) -> list[Limit]:
    memory = sum(allocation.bytes for allocation in report.allocations)
    found = [
        Limit("threads per threadgroup", report.threads, target.max_threads, True),
        Limit("threadgroup memory, bytes", memory, target.threadgroup_bytes, True),
    ]
    if target.max_buffers is not None:
        found.append(Limit("buffers", metal.buffer_count(source), target.max_buffers, True))
    return found
