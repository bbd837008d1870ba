"""Activations and gated activations of MLX arrays, with gradients by kernels (SPEC B2, F28)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from metile_kernels.activations import (
    SLOPES,
    activation,
    activation_gradient,
    gated,
    gated_gradients,
    gelu_sigmoid,
    gelu_tanh,
)
from metile_kernels.activations import gelu as gelu_erf
from metile_kernels.activations import silu as silu_of
from metile_mlx.dispatch import Dispatch, empty
from metile_mlx.errors import LaunchError
from metile_mlx.nn.arrays import (
    Rounding,
    as_float,
    broadcast,
    check_arrays,
    checked_rounding,
    result_dtype,
)
from metile_mlx.nn.kernel_function import OneKernel
from metile_mlx.nn.layouts import FLAT_BLOCK, flat_layout
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.optional import mx

Approximation = Literal["none", "precise", "tanh", "fast"]
_GELUS = {"none": gelu_erf, "precise": gelu_tanh, "tanh": gelu_tanh, "fast": gelu_sigmoid}


def silu(x: mx.array, *, rounding: Rounding = "mlx", stream: Place = None) -> mx.array:
    """`x * sigmoid(x)`, as `mlx.nn.silu`; of any shape, in f16, bf16 or f32.

    Args:
        x: floats.
        rounding: "mlx": each step is rounded to the dtype, as in MLX's graph; "f32": f32, and one
            rounding at the end.
        stream: an MLX stream or device.

    Raises:
        LaunchError: another dtype, or an unknown rounding.
    """
    return _activated("silu", silu_of, x, rounding, stream)


def gelu(
    x: mx.array,
    approx: Approximation = "none",
    *,
    rounding: Rounding = "mlx",
    stream: Place = None,
) -> mx.array:
    """The Gaussian error linear unit, `x * Phi(x)`, or an approximation of it.

    Args:
        x: f16, bf16 or f32, of any shape.
        approx: as of `mlx.nn.GELU`: "none" as `mlx.nn.gelu`, by erf; "precise" or "tanh" as
            `gelu_approx`; "fast" as `gelu_fast_approx`, by a sigmoid.
        rounding, stream: as of `silu`.

    Raises:
        LaunchError: another dtype, or an unknown rounding or approximation.
    """
    return _activated("gelu", gelu_of("gelu", approx), x, rounding, stream)


def swiglu(
    gate: mx.array, up: mx.array, *, rounding: Rounding = "mlx", stream: Place = None
) -> mx.array:
    """`silu(gate) * up`.

    Args:
        gate, up: f16, bf16 or f32, of shapes that broadcast; integers of `gate` are taken as f32.
        rounding, stream: as of `silu`.

    Returns:
        An array of the dtype in which the two meet.

    Raises:
        LaunchError: another dtype, or an unknown rounding.
    """
    return _gated("swiglu", silu_of, gate, up, rounding, stream)


def geglu(
    gate: mx.array,
    up: mx.array,
    approx: Approximation = "none",
    *,
    rounding: Rounding = "mlx",
    stream: Place = None,
) -> mx.array:
    """`gelu(gate, approx) * up`; arguments and errors as of `swiglu` and `gelu`."""
    return _gated("geglu", gelu_of("geglu", approx), gate, up, rounding, stream)


def gelu_of(name: str, approx: Approximation) -> Any:
    """The inline function of an approximation. Raises LaunchError where there is none."""
    found = _GELUS.get(approx)
    if found is None:
        raise LaunchError(f"[{name}] approx is {approx!r}; expected one of {', '.join(_GELUS)}")
    return found


def _activated(
    name: str, function: Any, x: mx.array, rounding: Rounding, stream: Place
) -> mx.array:
    rounded = checked_rounding(name, rounding) == "mlx"
    dtype = result_dtype(name, x)
    if x.size == 0:
        return mx.zeros(x.shape, dtype)
    made: mx.array = Activation.of(function, rounded, stream=stream)(x)
    return made


def _gated(
    name: str, function: Any, gate: mx.array, up: mx.array, rounding: Rounding, stream: Place
) -> mx.array:
    rounded = checked_rounding(name, rounding) == "mlx"
    check_arrays(name, gate)
    if not mx.issubdtype(gate.dtype, mx.inexact):
        # As MLX's activations of integers.
        gate = gate.astype(mx.float32, stream=stream)
    dtype = result_dtype(name, gate, up)
    gate, up = broadcast(name, gate, up, stream)
    if gate.size == 0:
        return mx.zeros(gate.shape, dtype)
    # The kernel goes along the elements, whatever the shape.
    made: mx.array = Gated.of(function, rounded, dtype, stream=stream)(gate, as_float(up, dtype))
    return made


def _grid(n: int) -> int:
    return -(-n // FLAT_BLOCK)


class Activation(OneKernel):
    """A function of the elements of an array."""

    def __init__(self, function: Any, rounded: bool, *, stream: Place) -> None:
        super().__init__(stream=stream)
        self._function = function
        self._rounded = rounded

    def prepared(self, backend: str, x: mx.array) -> Dispatch:
        """To an array of the same shape and dtype."""
        return activation[_grid(x.size)].prepare(
            x, empty(x.shape, x.dtype), x.size, FUNCTION=self._function, BLOCK=FLAT_BLOCK,
            LAYOUT=flat_layout(backend), ROUND_STEPS=self._rounded, stream=self.stream,
        )  # fmt: skip

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """The gradient for the array."""
        x = primals[0]
        arguments = (x, cotangents[0], empty(x.shape, x.dtype), x.size)

        def make(backend: str) -> Dispatch:
            return activation_gradient[_grid(x.size)].prepare(
                *arguments, SLOPE=SLOPES[self._function], BLOCK=FLAT_BLOCK,
                LAYOUT=flat_layout(backend), stream=self.stream,
            )  # fmt: skip

        return (self.ready(("backward", x.shape, x.dtype), make)(*arguments),)


class Gated(OneKernel):
    """A function of the elements of an array, times those of another."""

    def __init__(self, function: Any, rounded: bool, dtype: mx.Dtype, *, stream: Place) -> None:
        super().__init__(stream=stream)
        self._function = function
        self._rounded = rounded
        self._dtype = dtype

    def prepared(self, backend: str, gate: mx.array, up: mx.array) -> Dispatch:
        """To an array of the same shape, in the dtype in which they meet."""
        output, n = empty(gate.shape, self._dtype), gate.size
        return gated[_grid(n)].prepare(
            gate, up, output, n, FUNCTION=self._function, BLOCK=FLAT_BLOCK,
            LAYOUT=flat_layout(backend), ROUND_STEPS=self._rounded, stream=self.stream,
        )  # fmt: skip

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        """Gradients for both arrays."""
        gate, up = primals
        results = empty(gate.shape, gate.dtype), empty(up.shape, up.dtype)
        arguments = (gate, up, cotangents[0], *results, gate.size)

        def make(backend: str) -> Dispatch:
            return gated_gradients[_grid(gate.size)].prepare(
                *arguments, FUNCTION=self._function, SLOPE=SLOPES[self._function],
                BLOCK=FLAT_BLOCK, LAYOUT=flat_layout(backend), stream=self.stream,
            )  # fmt: skip

        made: Sequence[mx.array] = self.ready(("backward", gate.shape, gate.dtype, up.dtype), make)(
            *arguments
        )
        return made
