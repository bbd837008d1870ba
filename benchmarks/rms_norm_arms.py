"""The arms of `benchmarks.rms_norm`: what each computes, and what it ought to.

A side is one framework with its own rows and weights; every arm of a side is compared with the
float64 reference of that side's data, all rows or an even sample of many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from benchmarks.harness import Arm
from benchmarks.optional import torch, triton
from metile_kernels.rmsnorm import rmsnorm_register, rmsnorm_rows

EPS = 1e-5
DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
# Bits of the mantissa, the hidden one not counted.
MANTISSA = {"f32": 23, "f16": 10, "bf16": 7}
OURS, FAST, GRAPH, COPY = "metile.rms_norm", "mx.fast.rms_norm", "f32 graph", "copy"
NEGATIVE, TRITON, TORCH, TORCH_COPY = "mx.negative", "triton", "torch rms_norm", "torch copy_"
# Arms that move rows and compute nothing, and those that round once.
MOVES = (COPY, TORCH_COPY)
ROUNDED_ONCE = (GRAPH, TRITON, TORCH)
# Rounding twice can move the second result by one step more; PyTorch may round either way.
ONE_STEP = (GRAPH, TRITON)
# Rows that are compared with float64 where there are more.
MOST_CHECKED = 1024
Float64 = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Layout:
    """Who holds a row: `striped`, `adjacent`, or `grouped`: 16 bytes of neighbours, striped.

    `vector_width` 1 leaves every access on its own. With several `rows` a program, each has threads
    of its own.
    """

    kind: str
    values: int
    vector_width: int | None = None
    rows: int = 1

    @property
    def name(self) -> str:
        """For tables."""
        several = f"{self.rows} rows " if self.rows > 1 else ""
        return f"{several}{self.kind} {self.values}" + (" x1" if self.vector_width else "")


@dataclass(frozen=True)
class Case:
    """Rows of one width and dtype."""

    dtype: str
    width: int
    rows: int

    @property
    def bytes(self) -> int:
        """Of the input, or the output."""
        return self.rows * self.width * DTYPES[self.dtype].size

    @property
    def block(self) -> int:
        """The power of two, 32 at least, that holds a row."""
        return max(32, 1 << (self.width - 1).bit_length())

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.dtype} {self.rows} x {self.width}"

    def checked_rows(self) -> list[int]:
        """The rows that are compared: all, or an even sample with the first and the last."""
        count = min(self.rows, MOST_CHECKED)
        return np.linspace(0, self.rows - 1, count).astype(int).tolist()


@metile.kernel
def copied(x, y, N: metile.constexpr, LAYOUT: metile.constexpr):
    """y = x, a row per program."""
    shape = (metile.num_programs(0), N)
    source = metile.tensor(x, shape=shape, access="read")
    destination = metile.tensor(y, shape=shape, access="write")
    columns = metile.arange(0, LAYOUT.size, layout=LAYOUT)
    row = metile.program_id(0)
    destination.store((row, columns), source.load((row, columns)))


@mx.compile
def f32_graph(x: mx.array, w: mx.array) -> mx.array:
    """All in f32, one cast at the end."""
    wide = x.astype(mx.float32)
    scale = mx.rsqrt(mx.mean(wide * wide, axis=-1, keepdims=True) + EPS)
    return (wide * scale * w.astype(mx.float32)).astype(x.dtype)


def thread_layout(layout: Layout, case: Case) -> metile.ThreadLayout | None:
    """The layout of this name on its rows, or None where it is not a legal one."""
    values, block = layout.values, case.block
    own = block // values
    # Several rows have a simdgroup each, at least.
    if own < 32 or not own * layout.rows <= 1024:
        return None
    most = 16 // DTYPES[case.dtype].size
    near = {"striped": 1, "adjacent": values}.get(layout.kind, most)
    if near > values:
        return None
    return metile.ThreadLayout.grouped(block, values, near, layout.rows)


class Side(Protocol):
    """A framework's arms over its own rows."""

    def works(self) -> Mapping[str, Callable[[], Any]]:
        """The work of each arm: a function that starts it and returns its result."""

    def wait(self, made: list[Any]) -> None:
        """Until these results are there."""

    def inputs(self) -> tuple[Float64, Float64]:
        """The rows that are checked, and the weights."""

    def sample(self, made: Any) -> Float64:
        """The same rows of a result."""


class MlxSide:
    """metile, MLX's op, its compiled graph, and copies.

    Args:
        layouts: of our kernel, those that are legal here.
        is_gpu: `mx.negative` too, which moves as much as a copy.
    """

    def __init__(self, case: Case, layouts: tuple[Layout, ...], is_gpu: bool, seed: int = 0):
        keys = mx.random.split(mx.random.key(seed), 2)
        dtype = DTYPES[case.dtype]
        self.case, self.layouts, self.is_gpu = case, layouts, is_gpu
        self.x = mx.random.normal((case.rows, case.width), key=keys[0]).astype(dtype)
        self.w = mx.random.uniform(0.5, 2, (case.width,), key=keys[1]).astype(dtype)
        mx.eval(self.x, self.w)
        self.checked = mx.array(case.checked_rows())

    def works(self) -> dict[str, Callable[[], mx.array]]:
        case, x, w = self.case, self.x, self.w
        out = metile.empty(x.shape, x.dtype)
        found: dict[str, Callable[[], mx.array]] = {
            OURS: lambda: metile.rms_norm(x, w, EPS),
            FAST: lambda: mx.fast.rms_norm(x, w, EPS),
            GRAPH: lambda: f32_graph(x, w),
        }
        for layout in self.layouts:
            held = thread_layout(layout, case)
            if held is None:
                continue
            found[layout.name] = self._normed(layout, held, out)
        striped = Layout("striped", max(1, min(16, case.block // 32)))
        held = thread_layout(striped, case)
        found[COPY] = _call(copied[(case.rows,)].prepare(x, out, N=case.width, LAYOUT=held), x, out)
        if self.is_gpu:
            found[NEGATIVE] = lambda: -x
        return found

    def _normed(
        self, layout: Layout, held: metile.ThreadLayout, out: Any
    ) -> Callable[[], mx.array]:
        """Our kernel, one row a program or several."""
        case, together = self.case, layout.rows
        arguments: tuple[Any, ...] = (self.x, self.w, out, EPS)
        options: dict[str, Any] = {
            "N": case.width,
            "BLOCK": case.block,
            "LAYOUT": held,
            "ROUND_NORMALISED": True,
        }
        schedule = metile.Schedule(layout.vector_width)
        if together == 1:
            dispatch = rmsnorm_register[(case.rows,)].prepare(
                *arguments, **options, schedule=schedule
            )
            return _call(dispatch, *arguments)
        arguments = (*arguments, case.rows)
        dispatch = rmsnorm_rows[(metile.cdiv(case.rows, together),)].prepare(
            *arguments, **options, ROWS=together, WHOLE=case.rows % together == 0,
            schedule=schedule,
        )  # fmt: skip
        return _call(dispatch, *arguments)

    def wait(self, made: list[Any]) -> None:
        mx.eval(made)
        mx.synchronize()

    def inputs(self) -> tuple[Float64, Float64]:
        return self.sample(self.x), as_float64(self.w)

    def sample(self, made: mx.array) -> Float64:
        return as_float64(made[self.checked] if len(made) == self.case.rows else made)


def _call(dispatch: metile.Dispatch, *arguments: Any) -> Callable[[], mx.array]:
    return lambda: dispatch(*arguments)


def as_float64(x: mx.array) -> Float64:
    """The values, exactly."""
    return np.array(x.astype(mx.float32)).astype(np.float64)


def rounded(values: Float64, dtype: str) -> Float64:
    """Float64 values to the nearest of the dtype; exponents beyond its range do not occur here."""
    mantissa, exponent = np.frexp(values)
    scale = 2.0 ** (MANTISSA[dtype] + 1)
    return np.ldexp(np.round(mantissa * scale) / scale, exponent)


def checker(case: Case, side: Side) -> Callable[[Arm, Any], str | None]:
    """Compares what an arm of a side returns with its own reference in float64."""
    wide, weight = side.inputs()
    normal = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + EPS)
    once = rounded(normal * weight, case.dtype)
    twice = rounded(rounded(normal, case.dtype) * weight, case.dtype)
    # An f32 result has the rounding of a sum of squares in it, and of three products.
    step = 2.0 ** -MANTISSA[case.dtype]
    allowed = 2e-6 if case.dtype == "f32" else 1.01 * step

    def check(arm: Arm, made: Any) -> str | None:
        exact = {NEGATIVE: -wide, **dict.fromkeys(MOVES, wide)}.get(arm.name)
        expected = once if arm.name in ROUNDED_ONCE else twice
        expected = expected if exact is None else exact
        found = side.sample(made[-1])
        if found.shape != expected.shape:
            return f"{case.name}: the shape is {found.shape}"
        error = np.abs(found - expected) / np.maximum(np.abs(expected), 2.0**-14)
        limit = 0.0 if exact is not None else allowed * (1 + (arm.name not in ONE_STEP))
        worst = float(error.max())
        return None if worst <= limit else f"{case.name}: relative error {worst:.3g} > {limit:.3g}"

    return check


def sides(case: Case, layouts: tuple[Layout, ...], is_gpu: bool) -> list[Side]:
    """MLX, and on a GPU PyTorch with Triton where they are installed."""
    found: list[Side] = [MlxSide(case, layouts, is_gpu)]
    if is_gpu and torch is not None and triton is not None:
        found.append(TorchSide(case))
    return found


if triton is not None:
    tl = triton.language

    @triton.jit
    def triton_kernel(x, w, y, width, eps, BLOCK: tl.constexpr):
        """The usual fused kernel: a program per row, the row in registers, f32 arithmetic."""
        row = tl.program_id(0).to(tl.int64)
        columns = tl.arange(0, BLOCK)
        inside = columns < width
        values = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(values * values, 0) / width + eps)
        weight = tl.load(w + columns, mask=inside, other=0.0).to(tl.float32)
        result = values * scale * weight
        tl.store(y + row * width + columns, result.to(y.dtype.element_ty), mask=inside)


class TorchSide:
    """A Triton kernel, PyTorch's op, and its copy, as their users call them."""

    def __init__(self, case: Case, seed: int = 0) -> None:
        dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[case.dtype]
        made = torch.Generator("cuda").manual_seed(seed)
        shape = (case.rows, case.width)
        self.case = case
        self.x = torch.randn(shape, device="cuda", generator=made).to(dtype)
        self.w = (torch.rand(case.width, device="cuda", generator=made) * 1.5 + 0.5).to(dtype)
        self.copy = torch.empty_like(self.x)
        self.checked = torch.tensor(case.checked_rows(), device="cuda")

    def works(self) -> dict[str, Callable[[], Any]]:
        x, w, width = self.x, self.w, self.case.width
        return {
            TRITON: self._triton,
            TORCH: lambda: torch.nn.functional.rms_norm(x, (width,), w, EPS),
            TORCH_COPY: lambda: self.copy.copy_(x),
        }

    def _triton(self) -> Any:
        y, block = torch.empty_like(self.x), self.case.block
        warps = min(max(block // 256, 1), 8)
        triton_kernel[(self.case.rows,)](
            self.x, self.w, y, self.case.width, EPS, BLOCK=block, num_warps=warps
        )
        return y

    def wait(self, made: list[Any]) -> None:
        torch.cuda.synchronize()

    def inputs(self) -> tuple[Float64, Float64]:
        return self.sample(self.x), self.w.double().cpu().numpy()

    def sample(self, made: Any) -> Float64:
        found: Float64 = made[self.checked].double().cpu().numpy()
        return found
