"""Activations and gated activations, and their gradients, element by element (SPEC B1).

The functions are inline functions of a tile, in the order of operations of those in `mlx.nn`:

| here | in mlx.nn |
|---|---|
| `relu` | `relu` |
| `silu` | `silu` |
| `gelu` | `gelu`, by erf |
| `gelu_tanh` | `gelu_approx` |
| `gelu_sigmoid` | `gelu_fast_approx` |

`SLOPES` has the derivative of each. The kernels take one as a constexpr. With `ROUND_STEPS` each
step is rounded to the dtype of the input, as in MLX's graph; else all is f32 and rounded once. The
numbers of elements are arguments, so one text serves all shapes.
"""

import math
from functools import partial

import mlx.core as mx
import numpy as np

import metile_mlx as metile

_erf = np.vectorize(math.erf, otypes=[np.float64])


@metile.inline
def relu(x):
    """x, or 0 where x is less."""
    return metile.maximum(x, 0)


@metile.inline
def relu_slope(x):
    """The derivative of `relu`; MLX's, 0, at 0."""
    return metile.where(x > 0, 1.0, 0.0)


@metile.inline
def silu(x):
    """x * sigmoid(x)."""
    return x * metile.sigmoid(x)


@metile.inline
def silu_slope(x):
    """The derivative of `silu`."""
    s = metile.sigmoid(x)
    return s * (1 + x * (1 - s))


@metile.inline
def gelu(x):
    """x times the normal distribution's integral up to x."""
    return x * (1 + metile.erf(x / math.sqrt(2))) / 2


@metile.inline
def gelu_slope(x):
    """The derivative of `gelu`."""
    density = metile.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return (1 + metile.erf(x * math.sqrt(0.5))) / 2 + x * density


@metile.inline
def gelu_tanh(x):
    """`gelu` by tanh: at most 0.0005 off."""
    # One rounding, as of MLX's power.
    wide = metile.cast(x, metile.f32)
    cube = metile.cast(wide * wide * wide, x.dtype)
    return 0.5 * x * (1 + metile.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * cube)))


@metile.inline
def gelu_tanh_slope(x):
    """The derivative of `gelu_tanh`."""
    square = x * x
    t = metile.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * square * x))
    # Where x * x is infinite, so is its product with the 0 that 1 - t * t has become: none is made.
    inner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * metile.minimum(square, 1e4))
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner


@metile.inline
def gelu_sigmoid(x):
    """`gelu` by a sigmoid: at most 0.015 off."""
    return x * metile.sigmoid(1.702 * x)


@metile.inline
def gelu_sigmoid_slope(x):
    """The derivative of `gelu_sigmoid`."""
    s = metile.sigmoid(1.702 * x)
    return s * (1 + 1.702 * x * (1 - s))


SLOPES = {
    relu: relu_slope,
    silu: silu_slope,
    gelu: gelu_slope,
    gelu_tanh: gelu_tanh_slope,
    gelu_sigmoid: gelu_sigmoid_slope,
}


_IN_MLX = {
    relu: lambda x: mx.maximum(x, 0),
    silu: lambda x: x * mx.sigmoid(x),
    gelu: lambda x: x * (1 + mx.erf(x / math.sqrt(2))) / 2,
    gelu_tanh: lambda x: (
        0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    ),
    gelu_sigmoid: lambda x: x * mx.sigmoid(1.702 * x),
}


def activation_reference(x: mx.array, function: object) -> mx.array:
    """One of this module's functions (`silu`, `gelu`, ...) in MLX's operations, f32."""
    return _IN_MLX[function](x.astype(mx.float32))


def gated_reference(gates: mx.array, values: mx.array, function: object) -> mx.array:
    """function(gates) * values in MLX's operations, f32; function as of `activation_reference`."""
    return activation_reference(gates, function) * values.astype(mx.float32)


@metile.inline
def elements(BLOCK, LAYOUT):
    """The elements of this program: one per thread, or in the layout asked for."""
    return metile.program_id(0) * BLOCK + metile.arange(0, BLOCK, layout=LAYOUT)


@metile.inline
def loaded(source, i, ROUND_STEPS):
    """In the dtype whose rounding the steps have."""
    value = source.load(i)
    return value if ROUND_STEPS else metile.cast(value, metile.f32)


@metile.kernel
def activation(
    inputs,
    output,
    n: int,
    FUNCTION: metile.constexpr,
    BLOCK: metile.constexpr = 1024,
    LAYOUT: metile.constexpr = None,
    ROUND_STEPS: metile.constexpr = False,
):
    """FUNCTION of n elements; the grid is n / BLOCK, rounded up.

    Args:
        FUNCTION: `silu`, `gelu`, `gelu_tanh`, `gelu_sigmoid`, or an inline function like them.
        BLOCK, LAYOUT: elements of a program, and who holds which; one per thread if it is None.
        ROUND_STEPS: round each step to the dtype of the inputs.
    """
    i = elements(BLOCK, LAYOUT)
    x = loaded(metile.tensor(inputs, shape=(n,)), i, ROUND_STEPS)
    metile.tensor(output, shape=(n,), access="write").store(i, FUNCTION(x))


@metile.kernel
def activation_gradient(
    inputs,
    cotangents,
    gradient,
    n: int,
    SLOPE: metile.constexpr,
    BLOCK: metile.constexpr = 1024,
    LAYOUT: metile.constexpr = None,
):
    """cotangent * SLOPE(x) in f32, rounded once; SLOPE as in `SLOPES`."""
    i = elements(BLOCK, LAYOUT)
    x = loaded(metile.tensor(inputs, shape=(n,)), i, False)
    cotangent = loaded(metile.tensor(cotangents, shape=(n,)), i, False)
    metile.tensor(gradient, shape=(n,), access="write").store(i, cotangent * SLOPE(x))


@metile.kernel
def gated(
    gates,
    values,
    output,
    n: int,
    FUNCTION: metile.constexpr,
    BLOCK: metile.constexpr = 1024,
    LAYOUT: metile.constexpr = None,
    ROUND_STEPS: metile.constexpr = False,
):
    """FUNCTION(gate) * value of n elements: swiglu with `silu`, geglu with a `gelu`.

    Args:
        FUNCTION, BLOCK, LAYOUT: as of `activation`.
        ROUND_STEPS: round each step to the dtype of the gates, the product to the one in which
            gates and values meet.
    """
    i = elements(BLOCK, LAYOUT)
    gate = loaded(metile.tensor(gates, shape=(n,)), i, ROUND_STEPS)
    value = loaded(metile.tensor(values, shape=(n,)), i, ROUND_STEPS)
    metile.tensor(output, shape=(n,), access="write").store(i, FUNCTION(gate) * value)


@metile.kernel
def gated_gradients(
    gates,
    values,
    cotangents,
    gate_gradient,
    value_gradient,
    n: int,
    FUNCTION: metile.constexpr,
    SLOPE: metile.constexpr,
    BLOCK: metile.constexpr = 1024,
    LAYOUT: metile.constexpr = None,
):
    """c * value * SLOPE(gate) and c * FUNCTION(gate) in f32, each rounded once."""
    i = elements(BLOCK, LAYOUT)
    gate = loaded(metile.tensor(gates, shape=(n,)), i, False)
    value = loaded(metile.tensor(values, shape=(n,)), i, False)
    cotangent = loaded(metile.tensor(cotangents, shape=(n,)), i, False)
    of_gate = metile.tensor(gate_gradient, shape=(n,), access="write")
    of_gate.store(i, cotangent * value * SLOPE(gate))
    of_value = metile.tensor(value_gradient, shape=(n,), access="write")
    of_value.store(i, cotangent * FUNCTION(gate))


def exactly(name, x):
    """A function of the table above in float64, of a NumPy array."""
    if name == "relu":
        return np.maximum(x, 0)
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "gelu":
        return x * (1 + _erf(x / math.sqrt(2))) / 2
    if name == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x / (1 + np.exp(-1.702 * x))


_BY_NAME = {
    "relu": relu,
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "gelu_sigmoid": gelu_sigmoid,
}


def _selftest(name, is_gated, dtype, backend):
    generator = np.random.default_rng(0)
    # From -2 on: beyond, the 1 of a gelu takes digits away.
    x = mx.array(generator.uniform(-2, 6, 1100).astype(np.float32)).astype(dtype)
    expected = exactly(name, np.array(x.astype(mx.float32)).astype(np.float64))
    output, ulps = metile.empty(x.shape, dtype), 400 if dtype == mx.float32 else 2.5
    if not is_gated:
        arguments = (x, output, x.size)
        dispatch = activation[2].prepare(*arguments, FUNCTION=_BY_NAME[name], backend=backend)
        return dispatch, arguments, expected, ulps
    up = mx.array(generator.standard_normal(1100).astype(np.float32)).astype(dtype)
    arguments = (x, up, output, x.size)
    dispatch = gated[2].prepare(*arguments, FUNCTION=_BY_NAME[name], backend=backend)
    expected = expected * np.array(up.astype(mx.float32)).astype(np.float64)
    return dispatch, arguments, expected, ulps


SELFTESTS = [
    (f"{'gated ' if is_gated else ''}{name}, {of}", partial(_selftest, name, is_gated, dtype))
    for name in _BY_NAME
    for is_gated in (False, True)
    for of, dtype in (("f32", mx.float32), ("f16", mx.float16), ("bf16", mx.bfloat16))
]
