"""The rows of `benchmarks.kernels`: for each function its inputs, its arms, and its exact values.

A row is one entry of `OPERATIONS`. Its functions take the arrays that `inputs` makes; `exact` takes
them as float64 and says what the results ought to be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

import metile_mlx as metile
from benchmarks.rms_norm_arms import DTYPES, MANTISSA, Case, Float64, as_float64

EPS = 1e-5
Arrays = Sequence[mx.array]
Function = Callable[..., Any]
Exact = Callable[..., tuple[Float64, ...]]


@dataclass(frozen=True)
class Operation:
    """One function of the library.

    Attributes:
        inputs: of a case: names of shapes, in order; see `made`.
        ours: the library's function.
        mlx: what one writes with MLX, op by op.
        graph: what `mx.compile` is given.
        exact: the results in float64.
        steps: how many units in the last place of a result, or of a sixteenth of the largest one,
            ours may be off: each rounding of the dtype counts.
        mlx_steps: as much of MLX's arms, which add up otherwise.
        inexact: what f32 work may add to that in any dtype, as a share of the same size.
    """

    inputs: tuple[str, ...]
    ours: Function
    mlx: Function
    graph: Function
    exact: Exact
    steps: float = 4
    mlx_steps: float = 64
    inexact: float = 0
    compiled: Function = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiled", mx.compile(self.graph))

    def made(self, case: Case, seed: int = 0) -> list[mx.array]:
        """The arrays of a case."""
        keys = mx.random.split(mx.random.key(seed), len(self.inputs))
        dtype = DTYPES[case.dtype]
        makers: dict[str, Callable[[mx.array], mx.array]] = {
            "rows": lambda key: mx.random.normal((case.rows, case.width), key=key).astype(dtype),
            "weights": lambda key: mx.random.uniform(0.5, 2, (case.width,), key=key).astype(dtype),
            "targets": lambda key: mx.random.randint(0, case.width, (case.rows,), key=key),
            "ids": lambda key: mx.random.randint(0, case.rows, (case.rows,), key=key),
        }
        arrays = [makers[name](key) for name, key in zip(self.inputs, keys, strict=True)]
        mx.eval(arrays)
        return arrays

    def problem(
        self, case: Case, made: Any, exact: tuple[Float64, ...], steps: float
    ) -> str | None:
        """What is wrong with the outputs of an arm, or None."""
        return problem(case, made, exact, steps, self.inexact)


def results(made: Any) -> tuple[mx.array, ...]:
    """The outputs of an arm."""
    return tuple(made) if isinstance(made, (tuple, list)) else (made,)


def numbers(x: mx.array) -> Any:
    """Floats as float64, exactly; integers as they are."""
    return as_float64(x) if mx.issubdtype(x.dtype, mx.floating) else np.array(x)


def problem(
    case: Case, made: Any, exact: tuple[Float64, ...], steps: float, inexact: float = 0
) -> str | None:
    """What is wrong with the outputs of an arm, or None."""
    found = results(made)
    if len(found) != len(exact):
        return f"{case.name}: {len(found)} outputs, expected {len(exact)}"
    for number, (one, wanted) in enumerate(zip(found, exact, strict=True)):
        if one.shape != wanted.shape:
            return f"{case.name}: output {number} has shape {one.shape}, expected {wanted.shape}"
        unit = 2.0 ** -MANTISSA[case.dtype] if mx.issubdtype(one.dtype, mx.floating) else 0.0
        size = np.abs(wanted) + np.abs(wanted).max(initial=0) / 16
        off = np.abs(numbers(one) - wanted)
        worst = float((off - (steps * unit + inexact) * size).max(initial=-np.inf))
        if not worst <= 0:
            units = float((off / np.maximum(unit * size, 1e-300)).max())
            return f"{case.name}: output {number} is {units:.3g} units off, allowed are {steps:g}"
    return None


def _norm(x: mx.array, w: mx.array) -> mx.array:
    wide = x.astype(mx.float32)
    scale = mx.rsqrt(mx.mean(wide * wide, axis=-1, keepdims=True) + EPS)
    return (wide * scale * w.astype(mx.float32)).astype(x.dtype)


def _exact_norm(x: Float64, w: Float64) -> Float64:
    made: Float64 = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPS) * w
    return made


def _layer_norm(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
    wide, weight, bias = (array.astype(mx.float32) for array in (x, w, b))
    off = wide - mx.mean(wide, axis=-1, keepdims=True)
    scale = mx.rsqrt(mx.mean(off * off, axis=-1, keepdims=True) + EPS)
    return (off * scale * weight + bias).astype(x.dtype)


def _exact_layer_norm(x: Float64, w: Float64, b: Float64) -> tuple[Float64, ...]:
    off = x - x.mean(axis=-1, keepdims=True)
    return (off / np.sqrt((off * off).mean(axis=-1, keepdims=True) + EPS) * w + b,)


BASE, OFFSET = 10000.0, 3


def _heads(x: Any) -> Any:
    """Rows as (heads, positions, features), 64 positions or fewer."""
    rows, width = x.shape
    positions = math.gcd(rows, 64)
    return x.reshape(rows // positions, positions, width)


def _of_heads(rope: Function) -> Function:
    """Of rows, with an even number of features turned."""

    def turned(x: mx.array) -> mx.array:
        dims = x.shape[1] // 2 * 2
        options = {"traditional": False, "base": BASE, "scale": 1.0, "offset": OFFSET}
        return rope(_heads(x), dims, **options).reshape(x.shape)

    return turned


def _turned(x: Any, module: Any) -> Any:
    """The formula of rope, in the operations that MLX and NumPy share."""
    heads, half = _heads(x), x.shape[1] // 2
    steps = module.exp(module.arange(half) * (-2 * math.log(BASE) / (2 * half)))
    angles = (module.arange(heads.shape[1]) + OFFSET)[:, None] * steps
    cos, sin = module.cos(angles), module.sin(angles)
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    parts = [first * cos - second * sin, first * sin + second * cos, rest]
    return module.concatenate(parts, -1).reshape(x.shape)


def _log_sum(x: Float64) -> Float64:
    most = x.max(axis=-1, keepdims=True)
    made: Float64 = most + np.log(np.exp(x - most).sum(axis=-1, keepdims=True))
    return made


def _f32(function: Function) -> Function:
    """A graph of one array that is f32 inside, with one cast at the end."""
    return lambda x: function(x.astype(mx.float32)).astype(x.dtype)


def _erf(x: Float64) -> Float64:
    """From a table, and three terms of the series around its nearest entry: within 1e-12."""
    step = 1 / 1024
    table = np.array([math.erf(k * step) for k in range(-6 * 1024, 6 * 1024 + 1)])
    near = np.clip(np.rint(x / step), -6 * 1024, 6 * 1024)
    at = near * step
    off = np.clip(x - at, -step, step)
    slope = 2 / math.sqrt(math.pi) * np.exp(-at * at)
    made: Float64 = table[near.astype(int) + 6 * 1024]
    return made + slope * (off - at * off**2 + (4 * at * at - 2) / 6 * off**3)


def _silu(x: Float64) -> Float64:
    made: Float64 = x / (1 + np.exp(-x))
    return made


def _gelu(x: Float64) -> Float64:
    return x * 0.5 * (1 + _erf(x / math.sqrt(2)))


def _of_rows(name: str, axis: int, exact: Callable[..., Float64]) -> Operation:
    """A reduction in f32 whatever the dtype. Of numbers of both signs a sum cancels."""
    plain = getattr(mx, name)
    return Operation(
        ("rows",),
        lambda x: metile.reduce(x, name, axis=axis),
        lambda x: plain(x, axis=axis),
        _f32(lambda x: plain(x, axis=axis)),
        lambda x: (exact(x, axis=axis),),
        inexact=2.0**-14,
    )


OPERATIONS: dict[str, Operation] = {
    "rms_norm": Operation(
        ("rows", "weights"),
        lambda x, w: metile.rms_norm(x, w, EPS),
        lambda x, w: mx.fast.rms_norm(x, w, EPS),
        _norm,
        lambda x, w: (_exact_norm(x, w),),
    ),
    "add_rms_norm": Operation(
        ("rows", "rows", "weights"),
        lambda x, r, w: metile.add_rms_norm(x, r, w, EPS),
        lambda x, r, w: (mx.fast.rms_norm(x + r, w, EPS), x + r),
        lambda x, r, w: (_norm(x + r, w), x + r),
        # The norm of the sum as rounded is within a step of this.
        lambda x, r, w: (_exact_norm(x + r, w), x + r),
    ),
    "layer_norm": Operation(
        ("rows", "weights", "weights"),
        lambda x, w, b: metile.layer_norm(x, w, b, EPS),
        lambda x, w, b: mx.fast.layer_norm(x, w, b, EPS),
        _layer_norm,
        _exact_layer_norm,
        steps=8,
    ),
    # Angles go to 67, with the error of an f32 of that size.
    "rope": Operation(
        ("rows",),
        _of_heads(metile.rope),
        _of_heads(mx.fast.rope),
        _f32(lambda x: _turned(x, mx)),
        lambda x: (_turned(x, np),),
        steps=8,
        inexact=2.0**-14,
    ),
    "softmax": Operation(
        ("rows",),
        lambda x: metile.softmax(x),
        lambda x: mx.softmax(x, axis=-1, precise=True),
        _f32(lambda x: mx.softmax(x, axis=-1)),
        lambda x: (np.exp(x - _log_sum(x)),),
    ),
    "log_softmax": Operation(
        ("rows",),
        lambda x: metile.log_softmax(x),
        lambda x: nn.log_softmax(x, axis=-1),
        _f32(lambda x: nn.log_softmax(x, axis=-1)),
        lambda x: (x - _log_sum(x),),
    ),
    "cross_entropy": Operation(
        ("rows", "targets"),
        lambda x, t: metile.cross_entropy(x, t),
        lambda x, t: nn.losses.cross_entropy(x, t),
        lambda x, t: nn.losses.cross_entropy(x.astype(mx.float32), t).astype(x.dtype),
        lambda x, t: ((_log_sum(x) - np.take_along_axis(x, t[:, None], -1))[:, 0],),
    ),
    "sum of rows": _of_rows("sum", -1, np.sum),
    "sum of columns": _of_rows("sum", 0, np.sum),
    "max of rows": _of_rows("max", -1, np.max),
    "take": Operation(
        ("rows", "ids"),
        lambda table, ids: metile.take(table, ids),
        lambda table, ids: mx.take(table, ids, axis=0),
        lambda table, ids: mx.take(table, ids, axis=0),
        lambda table, ids: (table[ids],),
        steps=0,
        mlx_steps=0,
    ),
    "top1": Operation(
        ("rows",),
        lambda x: metile.top1(x),
        lambda x: (mx.max(x, axis=-1), mx.argmax(x, axis=-1)),
        lambda x: (mx.max(x, axis=-1), mx.argmax(x, axis=-1)),
        lambda x: (x.max(axis=-1), x.argmax(axis=-1)),
        steps=0,
        mlx_steps=0,
    ),
    "silu": Operation(
        ("rows",),
        lambda x: metile.silu(x),
        lambda x: nn.silu(x),
        lambda x: x * mx.sigmoid(x),
        lambda x: (_silu(x),),
    ),
    "gelu": Operation(
        ("rows",),
        lambda x: metile.gelu(x),
        lambda x: nn.gelu(x),
        lambda x: x * (1 + mx.erf(x / math.sqrt(2))) / 2,
        lambda x: (_gelu(x),),
    ),
    "swiglu": Operation(
        ("rows", "rows"),
        lambda gate, up: metile.swiglu(gate, up),
        lambda gate, up: nn.silu(gate) * up,
        lambda gate, up: gate * mx.sigmoid(gate) * up,
        lambda gate, up: (_silu(gate) * up,),
    ),
    "geglu": Operation(
        ("rows", "rows"),
        lambda gate, up: metile.geglu(gate, up),
        lambda gate, up: nn.gelu(gate) * up,
        lambda gate, up: gate * (1 + mx.erf(gate / math.sqrt(2))) / 2 * up,
        lambda gate, up: (_gelu(gate) * up,),
    ),
}
