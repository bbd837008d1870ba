"""What a backend is, and which one a call runs on (SPEC X6)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from metile_mlx import config
from metile_mlx.dtypes import DType
from metile_mlx.emit.source import KernelSource
from metile_mlx.errors import BackendError, LaunchError, MetileError
from metile_mlx.ir.core import Func
from metile_mlx.locks import Lock
from metile_mlx.runtime.optional import MLX_MISSING, mx
from metile_mlx.target import Target

Grid = tuple[int, int, int]
Scalar = int | float | bool
# Lazy outputs of one launch, in the order of `Request.outputs`.
# Both are texts: without mlx there is nothing to evaluate, and kernels still compile and print.
Launch: TypeAlias = "Callable[[Sequence[mx.array]], Sequence[mx.array]]"
# (arrays that are read, cotangents of the outputs, outputs) -> a cotangent for each of the arrays.
Pull: TypeAlias = (
    "Callable[[Sequence[mx.array], Sequence[mx.array], Sequence[mx.array]], Sequence[mx.array]]"
)
Place: TypeAlias = "mx.Stream | mx.ThreadLocalStream | mx.Device | mx.DeviceType | None"


@dataclass(frozen=True)
class Output:
    """One array a launch returns.

    Attributes:
        param: the kernel parameter it is written through.
        shape: of the array given for that parameter.
        dtype: its element type.
        fill: what the elements hold that no program stores: `stored` when there are none, `zero`,
            or `input` for a read_write parameter (SPEC K7).
    """

    param: str
    shape: tuple[int, ...]
    dtype: DType
    fill: str


@dataclass(frozen=True)
class Request:
    """All that is fixed before the arrays of a launch are known.

    Attributes:
        func: the kernel at Stage.TILE.
        source: its text for the backend's target, or None where the backend runs `func` itself.
        inputs: array parameters that are read, in the order `Launch` takes them.
        input_shapes: their shapes.
        outputs: in parameter order.
        scalars: runtime scalars by parameter name.
        grid: programs per axis.
        stream: where to run; None is MLX's default at the time of the call.
        pull: the gradient of the launch; None is that of the reference.
    """

    func: Func
    source: KernelSource | None
    inputs: tuple[str, ...]
    input_shapes: tuple[tuple[int, ...], ...]
    outputs: tuple[Output, ...]
    scalars: Mapping[str, Scalar]
    grid: Grid
    stream: Place
    pull: Pull | None = None


class Backend(Protocol):
    """A way to run kernels. `target` is None for the reference, which compiles nothing."""

    name: str
    target: Target | None

    def available(self) -> str | None:
        """None when it runs here, else the reason."""

    def bind(self, request: Request) -> Launch:
        """Build what is missing and return a function of the input arrays."""


_DOCTOR = "python -m metile_mlx doctor lists what can"
_warned = False
# What ran for a name, a device and the environment; dropped all at once when full (F04).
_proven: dict[tuple[object, ...], str] = {}
_KEPT = 64
_lock = Lock()


def wanted(name: str | None, stream: Place) -> tuple[str, bool]:
    """The backend a call asks for and whether it was named: argument, environment, then device.

    The device is the stream's, else MLX's default: a GPU is Metal or CUDA as MLX itself says.

    Raises:
        LaunchError: `stream` is neither a stream nor a device.
    """
    kind = _kind(stream)
    named = name or config.backend()
    if named is not None:
        return named, True
    if MLX_MISSING is not None:
        return "reference", False
    if kind == mx.DeviceType.gpu:
        return ("metal" if mx.metal.is_available() else "cuda"), False
    return "cpu", False


def _kind(stream: Place) -> object:
    """The type of the device that a call runs on, if MLX is there."""
    if stream is not None:
        return _device_type(stream)
    return None if MLX_MISSING else mx.default_device().type


def _device_type(place: object) -> object:
    device = place.device if isinstance(place, mx.Stream | mx.ThreadLocalStream) else place
    kind = device.type if isinstance(device, mx.Device) else device
    if not isinstance(kind, mx.DeviceType):
        raise LaunchError(f"stream is {place!r}; expected an MLX stream or device")
    return kind


def require_gpu(label: str, request: Request) -> None:
    """Refuse a CPU stream for a backend whose kernels only a GPU runs.

    Args:
        label: the backend's name.

    Raises:
        LaunchError: the request's stream is a CPU's; MLX would raise a ValueError that names no
            kernel.
    """
    place = request.stream
    if place is not None and _device_type(place) != mx.DeviceType.gpu:
        raise LaunchError(
            f"[{label}] kernel {request.func.name}: stream is {place!r}; the {label} backend takes "
            "streams and devices of the GPU",
            hint="leave stream= out, pass mx.gpu or mx.new_stream(mx.gpu), or use backend='cpu'",
        )


def choose(name: str | None, stream: Place, backends: Mapping[str, Backend]) -> Backend:
    """The backend of a call (SPEC X6).

    Raises:
        BackendError: the backend named by the call or by METILE_BACKEND can't run here; says why.
        MetileError: no backend has that name.

    Warns:
        RuntimeWarning: once, when the device's own backend can't run and `reference` takes over.
    """
    # What ran once can run again; asking anew costs more than the rest of a warm call.
    facts = (name, _kind(stream), config.backend_texts())
    proven = _proven.get(facts)
    if proven is not None:
        return backends[proven]
    asked, named = wanted(name, stream)
    if asked not in config.BACKENDS:
        allowed = ", ".join(config.BACKENDS)
        raise MetileError(f"backend {asked!r} does not exist; expected one of {allowed}")
    backend = backends.get(asked)
    reason = backend.available() if backend else f"the {asked} backend is not supported yet"
    if backend is not None and reason is None:
        if len(_proven) >= _KEPT:
            _proven.clear()
        _proven[facts] = asked
        return backend
    if named or asked == "reference":
        hint = "pip install 'metile-mlx[cpu]'" if MLX_MISSING else _DOCTOR
        raise BackendError(f"backend {asked!r} can't run here: {reason}", hint=hint)
    _warn_once(asked, reason or "")
    return backends["reference"]


def _warn_once(asked: str, reason: str) -> None:
    global _warned
    with _lock:
        if _warned:
            return
        _warned = True
    warnings.warn(
        f"metile: kernels run on the reference backend (MLX operations), because {asked!r} "
        f"can't run here: {reason}",
        RuntimeWarning,
        # The line that calls or prepares the kernel.
        stacklevel=5,
    )
