"""Linear layers of a model on `metile.matmul`, where that was measured to be faster than MLX.

What counts is the shape of the rows and of the weight, their dtype, and the backend: a `Layer`. It
is measured once, and kept in the cache folder for this device, these versions and this text of the
kernels. A layer that was not measured, or is not faster, runs as the method has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from metile_mlx.autotune import measured_on
from metile_mlx.backends import BACKENDS
from metile_mlx.nn.arrays import FLOATS
from metile_mlx.nn.matmul import matmul
from metile_mlx.nn.product import kernel_texts
from metile_mlx.nn.tiles import product_tiles
from metile_mlx.runtime import cache, export
from metile_mlx.runtime.backend import choose
from metile_mlx.runtime.optional import mx
from metile_mlx.tuning import ROUNDS, Candidate, Clock, Store, TuningReport, evaluated, measured

OURS, MLX = "metile.matmul", "MLX"


@dataclass(frozen=True)
class Layer:
    """`rows` rows of `inputs` numbers, times a weight of (outputs, inputs)."""

    rows: int
    inputs: int
    outputs: int
    dtype: mx.Dtype
    is_biased: bool
    backend: str

    def __str__(self) -> str:
        dtype = str(self.dtype).rpartition(".")[2]
        biased = " and a bias" if self.is_biased else ""
        return f"{self.rows} x {self.inputs} by {self.outputs}{biased}, {dtype}, {self.backend}"


# Layers that were asked for in this process: their measurements.
_verdicts: dict[Layer, TuningReport] = {}
# While a sample is looked at: what ran, with the identity of its weight.
_notes: ContextVar[list[tuple[int, Layer]] | None] = ContextVar("metile_products", default=None)


def linear(x: Any, w: Any) -> Any:
    """`x @ w.T`."""
    return _product(None, x, w) if _runs_on_ours(None, x, w) else x @ w.T


def addmm(bias: Any, x: Any, w: Any) -> Any:
    """`mx.addmm(bias, x, w.T)`."""
    return _product(bias, x, w) if _runs_on_ours(bias, x, w) else mx.addmm(bias, x, w.T)


FUNCTIONS: dict[str, Callable[..., Any]] = {"linear": linear, "addmm": addmm}


def _product(bias: Any, x: Any, w: Any) -> mx.array:
    return matmul(x, w, bias=bias, transpose_y=True)


def _runs_on_ours(bias: Any, x: Any, w: Any) -> bool:
    layer = _layer_of(bias, x, w)
    if layer is None:
        return False
    notes = _notes.get()
    if notes is not None:
        notes.append((id(w), layer))
    found = _verdicts.get(layer)
    return found is not None and found.chosen == OURS


def _layer_of(bias: Any, x: Any, w: Any) -> Layer | None:
    """None where the kernels are not made for it, or there is nothing to do."""
    given = [x, w] if bias is None else [x, w, bias]
    if not all(isinstance(a, mx.array) and a.dtype in FLOATS for a in given):
        return None
    if w.ndim != 2 or x.ndim == 0 or x.shape[-1] != w.shape[1] or 0 in (x.size, w.size):
        return None
    if len({a.dtype for a in given}) > 1 or (bias is not None and bias.shape != w.shape[:1]):
        return None
    backend = export.active_target() or choose(None, None, BACKENDS).name
    rows = x.size // x.shape[-1]
    return Layer(rows, w.shape[1], w.shape[0], x.dtype, bias is not None, backend)


@contextmanager
def noted() -> Iterator[list[tuple[int, Layer]]]:
    """What runs inside: `id` of the weight, and the layer."""
    found: list[tuple[int, Layer]] = []
    token = _notes.set(found)
    try:
        yield found
    finally:
        _notes.reset(token)


def verdict(layer: Layer, clock: Clock = time.perf_counter) -> TuningReport:
    """Whether ours is faster, measured now where nobody has before."""
    found = _verdicts.get(layer)
    if found is None:
        store = Store(_key(layer))
        with store.locked():
            kept = store.read((OURS, MLX))
            found = _measured(layer, clock) if kept is None else kept[1]
            if kept is None:
                store.write(found)
        _verdicts[layer] = found
    return found


def reason(found: TuningReport) -> str:
    """Why a layer stays MLX's."""
    ours, theirs = found.candidates
    layer = found.key["layer"]
    if ours.seconds is None or theirs.seconds is None:
        return f"{layer}: {ours.left_out}"
    return (
        f"slower: {layer} takes {ours.seconds * 1e3:.3f} ms on ours, {theirs.seconds * 1e3:.3f} ms "
        "on MLX"
    )


def _key(layer: Layer) -> str:
    tiles = product_tiles(layer.backend, 1, layer.rows, layer.outputs, layer.inputs)
    return cache.key(
        str(layer), repr(tiles), *kernel_texts(), *measured_on(BACKENDS[layer.backend])
    )


def _measured(layer: Layer, clock: Clock) -> TuningReport:
    """Checked against f32, then timed by turns."""
    arrays = _arrays(layer)
    bias, x, w = arrays
    works = {
        0: lambda: evaluated(_product(bias, x, w)),
        1: lambda: evaluated(x @ w.T if bias is None else mx.addmm(bias, x, w.T)),
    }
    wrong = _wrong(works[0]()[0], *arrays)
    if wrong:
        times: dict[int, float] = {}
        chosen, how = MLX, wrong
    else:
        times = measured(works, clock, ROUNDS)
        chosen = OURS if times[0] < times[1] else MLX
        how = f"the faster of two, by the medians of {ROUNDS} rounds"
    candidates = tuple(
        Candidate(name, times.get(index), wrong if index == 0 else "")
        for index, name in enumerate((OURS, MLX))
    )
    return TuningReport("linear", layer.backend, {"layer": str(layer)}, chosen, how, candidates)


def _arrays(layer: Layer) -> tuple[mx.array | None, mx.array, mx.array]:
    keys = mx.random.split(mx.random.key(0), 3)
    shapes = ((layer.outputs,), (layer.rows, layer.inputs), (layer.outputs, layer.inputs))
    bias, x, w = (
        mx.random.normal(shape, key=key).astype(layer.dtype)
        for shape, key in zip(shapes, keys, strict=True)
    )
    mx.eval(bias, x, w)
    return bias if layer.is_biased else None, x, w


def _wrong(made: mx.array, bias: mx.array | None, x: mx.array, w: mx.array) -> str:
    """Differences as a share of the terms that were added: of sums in f32, and one rounding."""
    wide = [a.astype(mx.float32) for a in (x, w)]
    expected, size = wide[0] @ wide[1].T, mx.abs(wide[0]) @ mx.abs(wide[1]).T
    if bias is not None:
        expected, size = expected + bias, size + mx.abs(bias)
    allowed = 2.0**-19 + (0 if x.dtype == mx.float32 else float(mx.finfo(x.dtype).eps))
    apart: Any = mx.max(mx.abs(made.astype(mx.float32) - expected) / mx.maximum(size, 1e-30)).item()
    return "" if apart <= allowed else f"its result differs from MLX's by {apart:.1e} of its terms"
