"""The backends MLX itself runs, each a thin adapter from `Request` to its runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from metile_mlx.dtypes import bool_
from metile_mlx.emit.naming import input_passing, unique_name
from metile_mlx.emit.source import KernelSource
from metile_mlx.runtime import batching, cpu, export, metal, metal_limits
from metile_mlx.runtime.autodiff import Transforms, reference_launch, with_gradient
from metile_mlx.runtime.backend import Launch, Output, Request, Scalar, require_gpu
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.runtime.metal_limits import PipelineLimit
from metile_mlx.runtime.optional import MLX_MISSING, mx
from metile_mlx.runtime.record import CapturedKernel
from metile_mlx.target import CPU, METAL, Target


class ReferenceBackend:
    """Kernels as graphs of MLX operations, on any device (SPEC X5)."""

    name = "reference"
    target: Target | None = None

    def available(self) -> str | None:
        return f"mlx is not installed: {MLX_MISSING}" if MLX_MISSING else None

    def bind(self, request: Request) -> Launch:
        evaluate = reference_launch(request)

        def launch(arrays: Sequence[mx.array]) -> Sequence[mx.array]:
            export.note_kernel()
            return evaluate(arrays)

        # MLX differentiates the graph itself.
        return launch if request.pull is None else differentiable(launch, request)


class CpuBackend:
    """Kernels as compiled C++ (SPEC X4)."""

    name = "cpu"
    target: Target | None = CPU

    def available(self) -> str | None:
        return cpu.available()

    def bind(self, request: Request) -> Launch:
        source = _text(request)
        position = {param: i for i, param in enumerate(request.inputs)}
        init = [
            {"stored": cpu.INIT_NOTHING, "zero": cpu.INIT_ZERO}.get(
                out.fill, position.get(out.param, cpu.INIT_ZERO)
            )
            for out in request.outputs
        ]
        call = cpu.build(source).bind(
            [out.shape for out in request.outputs],
            [out.dtype for out in request.outputs],
            request.grid,
            init,
            request.stream,
            Transforms(request),
            request.input_shapes,
        )
        scalars = tuple(request.scalars[arg.param] for arg in source.inputs if arg.is_scalar)
        return lambda arrays: call(arrays, scalars)


class MetalBackend:
    """Kernels as MSL through `mx.fast.metal_kernel` (SPEC X1)."""

    name = "metal"
    target: Target | None = METAL

    def available(self) -> str | None:
        return metal.available()

    def register(self, request: Request) -> metal.MetalKernel:
        """The kernel of a request, registered once, after the pipeline's own limit (X9)."""
        pipeline_limit(request)
        return metal.register(registered_source(request))

    def check_stream(self, request: Request) -> None:
        """Raise LaunchError unless the request's stream can run its kernel."""
        require_gpu(self.name, request)

    def bind(self, request: Request) -> Launch:
        self.check_stream(request)
        kernel = self.register(request)
        outputs, zero_fill = metal_outputs(request)
        shapes = [out.shape for out in outputs]
        dtypes = [mlx_dtypes()[out.dtype] for out in outputs]
        init = [metal.ZERO if zero_fill else metal.UNINITIALISED] * len(outputs)
        inputs = metal_inputs(request)
        call = kernel.bind(shapes, dtypes, request.grid, init, request.stream)
        merges = len(outputs) > len(request.outputs)

        def launch(arrays: Sequence[mx.array]) -> Sequence[mx.array]:
            batching.decline()
            made = call(inputs(arrays))
            return _merge(request, arrays, made) if merges else made

        return differentiable(launch, request)


def differentiable(launch: Launch, request: Request) -> Launch:
    """The launch with its gradient; bare in an export, since MLX writes no custom_function."""
    wrapped = with_gradient(launch, request)
    return lambda arrays: launch(arrays) if export.active_target() else wrapped(arrays)


def registered_source(request: Request) -> KernelSource:
    """The text under a name that also covers how MLX passes each input (F02)."""
    source = _text(request)
    shapes = dict(zip(request.inputs, request.input_shapes, strict=True))
    # A 0-d array is bound as (1,), a scalar always is; neither is ever a C++ reference.
    passing = [input_passing(_size(shapes.get(arg.param, (1,))) or 1, 1) for arg in source.inputs]
    return replace(source, name=unique_name(source.name.rpartition("_")[0], source.name, passing))


def pipeline_limit(request: Request) -> PipelineLimit:
    """The limit of the request's pipeline, asked before its kernel is registered (SPEC X9).

    Raises:
        OutOfResources, CompileError: see `metal_limits.check`.
    """
    return metal_limits.check(registered_source(request), lambda: recorded(request))


def recorded(request: Request) -> CapturedKernel:
    """What MLX records for a launch of the request, on any machine (SPEC X2); registers nothing.

    Raises:
        CompileError, OutOfResources: see `metal.build`.
    """
    kernel = metal.build(registered_source(request), mx.fast.metal_kernel)
    outputs, zero_fill = metal_outputs(request)
    shapes = dict(zip(request.inputs, request.input_shapes, strict=True))
    by_param = {arg.param: arg.dtype for arg in _text(request).inputs}
    arrays = [mx.zeros(shapes[p], mlx_dtypes()[by_param[p]]) for p in request.inputs]
    return metal.record_msl(
        kernel,
        metal_inputs(request)(arrays),
        [out.shape for out in outputs],
        [mlx_dtypes()[out.dtype] for out in outputs],
        request.grid,
        [metal.ZERO if zero_fill else metal.UNINITIALISED] * len(outputs),
    )


def metal_outputs(request: Request) -> tuple[list[Output], bool]:
    """Outputs as the text has them, written masks included, and whether MLX zeroes them first."""
    outputs: list[Output] = []
    for out in request.outputs:
        outputs.append(out)
        if out.fill == "input":
            outputs.append(replace(out, dtype=bool_))
    return outputs, any(out.fill != "stored" for out in request.outputs)


def metal_inputs(request: Request) -> Callable[[Sequence[mx.array]], list[mx.array]]:
    """From the arrays of a launch to arrays and scalars in the order of the signature."""
    places: list[int | mx.array] = [
        _scalar_array(repr(request.scalars[arg.param]), arg.dtype.name)
        if arg.is_scalar
        else request.inputs.index(arg.param)
        for arg in _text(request).inputs
    ]
    return lambda arrays: [arrays[at] if isinstance(at, int) else at for at in places]


def _merge(
    request: Request, arrays: Sequence[mx.array], made: Sequence[mx.array]
) -> list[mx.array]:
    """One array per output: where no program stored, a read_write parameter keeps its input."""
    given = dict(zip(request.inputs, arrays, strict=True))
    remaining = iter(made)
    merged = []
    for out in request.outputs:
        array = next(remaining)
        if out.fill == "input":
            written = next(remaining)
            array = mx.where(written, array, given[out.param])
        merged.append(array)
    return merged


def _text(request: Request) -> KernelSource:
    assert request.source is not None
    return request.source


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


@lru_cache(maxsize=4096)
def _scalar_array(text: str, dtype: str) -> mx.array:
    """A runtime scalar as MLX binds it; equal scalars share one array."""
    value: Scalar = text == "True" if dtype == "bool" else float(text)
    if dtype == "i32":
        value = int(text)
    by_name = {ours.name: theirs for ours, theirs in mlx_dtypes().items()}
    return mx.array([value], dtype=by_name[dtype])
