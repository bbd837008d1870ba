"""Metal: a `KernelSource` registered once with MLX, launched, and recorded (SPEC X1, X2).

What MLX 0.32.4 does, each fact held by a test:

- Building a kernel works on any machine. *Calling* it without a Metal device raises "No Metal
  back-end", except while `mx.export_function` traces on the same thread; that state nests and is
  per thread, so a text can be recorded inside `mx.compile`, `mx.grad`, `mx.vmap` or another export,
  on any thread.
- `grid` counts threads and each of its entries is a C++ `int`; a grid smaller than the threadgroup
  silently shrinks the threadgroup.
- `init_value` is one float for all outputs, cast to each dtype: 0 is exact for every dtype, bool
  included; other values of wide integers are not (F27), so nothing but 0 is ever asked for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from metile_mlx.dtypes import MLX_NAMES
from metile_mlx.emit.reserved import is_legal, shape_arguments_in
from metile_mlx.emit.source import Argument, KernelSource
from metile_mlx.errors import CompileError, LaunchError, OutOfResources
from metile_mlx.locks import Lock
from metile_mlx.runtime.backend import Launch, Place
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.runtime.optional import MLX_MISSING, mx
from metile_mlx.runtime.record import MATH_MODES, Grid
from metile_mlx.runtime.record import CapturedKernel as CapturedKernel
from metile_mlx.runtime.record import capture as capture
from metile_mlx.target import METAL, Target

# Entries of `init`: what an output holds where no program stores.
UNINITIALISED = -1
ZERO = -2

MAX_GRID = 2**31 - 1
MAX_TOTAL_THREADS = 2**32 - 1
_CACHE_SIZE = 1024


def available() -> str | None:
    """None when Metal kernels run here, else why not. Asks MLX, not the platform (SPEC X6, F29)."""
    if MLX_MISSING is not None:
        return f"mlx is not installed: {MLX_MISSING}"
    if mx.metal.is_available():
        return None
    return "MLX finds no Metal device (mx.metal.is_available() is False)"


def check_text(source: KernelSource) -> None:
    """Refuse text MLX would lose or misread: non-ASCII, illegal argument names (F06, SPEC X1).

    Raises:
        CompileError: names the character and its line, or the argument.
    """
    for part, text in (("name", source.name), ("header", source.header), ("body", source.body)):
        for number, line in enumerate(text.splitlines(), 1):
            if not line.isascii():
                char = next(c for c in line if not c.isascii())
                raise CompileError(
                    f"[metal] the {part} of kernel {source.name!a} holds {char!a} in line "
                    f"{number}; MLX hands Metal ASCII only and would lose the whole text",
                    hint="spell the name or the comment in ASCII",
                )
    inputs = [argument.name for argument in source.inputs]
    for argument in source.inputs + source.outputs:
        if not is_legal(argument.name, inputs):
            raise CompileError(
                f"[metal] kernel {source.name}: argument name {argument.name!a} is reserved",
                hint=f"rename the parameter {argument.param!a}",
            )


def buffer_count(source: KernelSource) -> int:
    """Buffers of the kernel after MLX's additions (SPEC X1).

    MLX binds a buffer more for each `<input>_shape`, `_strides` or `_ndim` that the body mentions.
    """
    names = [argument.name for argument in source.inputs]
    arguments = len(source.inputs) + len(source.outputs)
    return arguments + len(shape_arguments_in(source.body, names))


def check_limits(source: KernelSource, target: Target = METAL) -> None:
    """The limits known without a device (SPEC X9): threads, threadgroup memory, buffers.

    Raises:
        OutOfResources: names the kernel, what it asks for, what is allowed and what to change.
    """
    buffers = buffer_count(source)
    checks = (
        (source.threads, target.max_threads, "threads per threadgroup", "use a smaller tile"),
        (
            source.threadgroup_bytes,
            target.threadgroup_bytes,
            "bytes of threadgroup memory",
            "use smaller tiles or fewer cross-group conversions at once",
        ),
        (buffers, target.max_buffers, "buffers", "pass fewer arrays and scalars"),
    )
    for asked, allowed, what, change in checks:
        if allowed is not None and asked > allowed:
            raise OutOfResources(
                f"[{target.name}] kernel {source.name} needs {asked} {what}; allowed are {allowed}",
                hint=change,
            )


def grid_in_threads(name: str, grid: Sequence[int], threads: int) -> Grid:
    """MLX's grid for `grid` programs of `threads` threads each: the product owns this step (F15).

    Raises:
        LaunchError: not three non-negative integers.
        OutOfResources: an axis or the total is more than MLX and Metal can count (SPEC X8).
    """
    if len(grid) != 3 or any(n < 0 for n in grid):
        raise LaunchError(
            f"[metal] kernel {name}: grid is {grid!r}; expected three integers >= 0, in programs"
        )
    x, y, z = grid[0] * threads, grid[1], grid[2]
    hint = "give each program more work, so that fewer programs are needed"
    for axis, count in zip("xyz", (x, y, z), strict=True):
        if count > MAX_GRID:
            raise OutOfResources(
                f"[metal] kernel {name}: grid {grid} has {count} threads along {axis}; "
                f"allowed are {MAX_GRID}",
                hint=hint,
            )
    if x * y * z > MAX_TOTAL_THREADS:
        raise OutOfResources(
            f"[metal] kernel {name}: grid {grid} has {x * y * z} threads in all; "
            f"allowed are {MAX_TOTAL_THREADS}",
            hint=hint,
        )
    return x, y, z


def _bindable(x: mx.array, place: Mapping[str, Any]) -> mx.array:
    """`x` as the text expects it: never 0-dimensional (F09), never without memory (F12)."""
    if x.size == 0:
        # Bounds keep every lane away from it; a buffer without memory can't be bound.
        return mx.zeros((1,), x.dtype, **place)
    return mx.reshape(x, (1,), **place) if x.ndim == 0 else x


@dataclass(frozen=True)
class MetalKernel:
    """A registered kernel. Make one with `register`.

    Attributes:
        source: what was registered.
        function: what `mx.fast.metal_kernel` returned.
        math_mode: the mode MLX was asked for, or None where this MLX has no such option (F24).
    """

    source: KernelSource
    function: Callable[..., Sequence[mx.array]]
    math_mode: str | None
    # What errors name.
    label: ClassVar[str] = "metal"

    def launch(
        self,
        inputs: Sequence[mx.array],
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
        grid: Grid,
        init: Sequence[int],
        stream: Place = None,
    ) -> Sequence[mx.array]:
        """Lazy outputs of one launch.

        Args:
            inputs: an array per input, of its dtype; a scalar is an array of shape () or (1,).
            shapes: shape of each output. An empty one is never bound; if all are, nothing is
                launched.
            dtypes: MLX dtype of each output.
            grid: programs along x, y, z. No programs: zeros, without a launch (F12).
            init: per output `UNINITIALISED` (-1: all is stored) or `ZERO` (-2). MLX fills all
                outputs or none.
            stream: a GPU stream or device; None is MLX's default GPU stream.

        Raises:
            LaunchError: counts or dtypes that do not fit the kernel.
            OutOfResources: a grid too large to count.
        """
        self._check_inputs(inputs)
        return self.bind(shapes, dtypes, grid, init, stream)(inputs)

    def bind(
        self,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
        grid: Grid,
        init: Sequence[int],
        stream: Place = None,
    ) -> Launch:
        """`launch` of all but the inputs: these are checked now, and inputs are not at a call.

        A call of MLX's own operations takes a microsecond or two, so what can be known before is.

        Raises:
            LaunchError, OutOfResources: see `launch`.
        """
        self._check_outputs(shapes, dtypes, init)
        threads = self._threads(grid)
        stream = self._stream(stream)
        place = self._place(stream)
        if 0 in threads or all(0 in shape for shape in shapes):
            return lambda _: [mx.zeros(s, d, **place) for s, d in zip(shapes, dtypes, strict=True)]
        call = self._bound(shapes, dtypes, threads, init, stream)
        if not any(0 in shape for shape in shapes):
            return call
        return lambda inputs: [
            mx.zeros(shape, out.dtype, **place) if 0 in shape else out
            for out, shape in zip(call(inputs), shapes, strict=True)
        ]

    def _bound(
        self,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
        threads: Grid,
        init: Sequence[int],
        stream: Place,
    ) -> Launch:
        """MLX's launch of the inputs; an empty output gets one element, since MLX must bind it."""
        function, place = self.function, self._place(stream)
        fixed: dict[str, Any] = {
            "grid": threads,
            "threadgroup": (self.source.threads, 1, 1),
            "output_shapes": [(1,) if 0 in shape else tuple(shape) for shape in shapes],
            "output_dtypes": list(dtypes),
        }
        if stream is not None:
            fixed["stream"] = stream
        if ZERO in init:
            fixed["init_value"] = 0
        return lambda inputs: function(inputs=[_bindable(x, place) for x in inputs], **fixed)

    def _threads(self, grid: Grid) -> Grid:
        return grid_in_threads(self.source.name, grid, self.source.threads)

    def _stream(self, stream: Place) -> Place:
        """What MLX is given as the stream of a launch; None leaves it to MLX."""
        return stream

    def _place(self, stream: Place) -> dict[str, Any]:
        """Where MLX's own operations around a launch run."""
        return {"stream": stream} if stream is not None and mx.metal.is_available() else {}

    def _check_inputs(self, inputs: Sequence[mx.array]) -> None:
        self._check_count("inputs", len(inputs), len(self.source.inputs))
        self._check_dtypes(self.source.inputs, [x.dtype for x in inputs])

    def _check_outputs(
        self,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
        init: Sequence[int],
    ) -> None:
        outputs = self.source.outputs
        self._check_count("output shapes", len(shapes), len(outputs))
        self._check_count("output dtypes", len(dtypes), len(outputs))
        self._check_count("init entries", len(init), len(outputs))
        self._check_dtypes(outputs, dtypes)
        for value in init:
            if value not in (UNINITIALISED, ZERO):
                raise LaunchError(
                    f"[{self.label}] kernel {self.source.name}: init {value}; expected -1 (unset) "
                    "or -2 (zero)"
                )

    def _check_count(self, what: str, given: int, needed: int) -> None:
        if given != needed:
            raise LaunchError(
                f"[{self.label}] kernel {self.source.name}: {given} {what} given, {needed} needed"
            )

    def _check_dtypes(self, arguments: Sequence[Argument], dtypes: Sequence[mx.Dtype]) -> None:
        for argument, dtype in zip(arguments, dtypes, strict=True):
            # MLX takes the types of the signature from the arrays, so a wrong one changes the text.
            if dtype != mlx_dtypes()[argument.dtype]:
                raise LaunchError(self._wrong_dtype(argument, dtype))

    def _wrong_dtype(self, argument: Argument, given: mx.Dtype) -> str:
        short = str(given).rpartition(".")[2]
        return (
            f"[{self.label}] kernel {self.source.name}: parameter {argument.param!r} is "
            f"{MLX_NAMES.get(short, short)}; the kernel was compiled for {argument.dtype}"
        )


_registered: OrderedDict[KernelSource, MetalKernel] = OrderedDict()
_lock = Lock()


def build(source: KernelSource, metal_kernel: Callable[..., Any]) -> MetalKernel:
    """`source` registered through `metal_kernel`: `mx.fast.metal_kernel` or one like it.

    An MLX that knows no `compile_options` refuses the keyword; the kernel is then built without it
    (F24).

    Raises:
        CompileError: text that MLX would lose or misread.
        OutOfResources: a static limit is exceeded; nothing is registered.
    """
    assert source.language == "msl", source.language
    assert source.math_mode in MATH_MODES, source.math_mode
    check_text(source)
    check_limits(source)
    arguments = {
        "name": source.name,
        "input_names": [argument.name for argument in source.inputs],
        "output_names": [argument.name for argument in source.outputs],
        "source": source.body,
        "header": source.header,
    }
    try:
        function = metal_kernel(**arguments, compile_options={"math_mode": source.math_mode})
    except TypeError:
        return MetalKernel(source, metal_kernel(**arguments), None)
    return MetalKernel(source, function, source.math_mode)


def register(source: KernelSource) -> MetalKernel:
    """The kernel of `source`, built at first use and kept: one registration a source (F04, F31).

    The least recently used of more than 1024 sources is dropped. Errors as in `build`.
    """
    with _lock:
        kernel = _registered.get(source)
        if kernel is None:
            kernel = build(source, mx.fast.metal_kernel)
            _registered[source] = kernel
            if len(_registered) > _CACHE_SIZE:
                _registered.popitem(last=False)
        _registered.move_to_end(source)
        return kernel


def record_msl(
    kernel: MetalKernel,
    inputs: Sequence[mx.array],
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[mx.Dtype],
    grid: Grid,
    init: Sequence[int],
) -> CapturedKernel:
    """What MLX records for `kernel.launch(...)` of the same arguments, on any machine (SPEC X2).

    Only shapes and dtypes of `inputs` are used. A launch that would be skipped (empty outputs, no
    programs) is recorded all the same, with outputs of one element. Errors as in `launch`.
    """
    kernel._check_inputs(inputs)
    kernel._check_outputs(shapes, dtypes, init)
    threads = grid_in_threads(kernel.source.name, grid, kernel.source.threads)
    call = kernel._bound(shapes, dtypes, threads, init, None)

    def launch(*arrays: mx.array) -> Sequence[mx.array]:
        return call(arrays)

    # Fresh lazy arrays: `inputs` may belong to another trace, and nothing may be evaluated.
    (captured,) = capture(launch, *(mx.zeros(x.shape, x.dtype) for x in inputs))
    return replace(captured, init_value=0.0 if ZERO in init else None)
