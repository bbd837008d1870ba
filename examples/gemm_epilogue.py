"""A matrix product whose bias and GELU are done on the accumulator, before it is stored.

    python examples/gemm_epilogue.py                          # cpu, metal or cuda
    METILE_BACKEND=emulator python examples/gemm_epilogue.py  # the Metal text, on a CPU

Prints what the compiler did (pipelines, allocations, who holds which values), how far the result is
from float64 beside MLX's, and the time of both.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable

import mlx.core as mx
import numpy as np
from mlx import nn

import metile_mlx as metile


@metile.inline
def gelu(x):
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + metile.tanh(inner))


@metile.kernel
def linear_gelu(
    A, B, bias, C, M, N, K, BM: metile.constexpr, BN: metile.constexpr, BK: metile.constexpr
):
    a = metile.tensor(A, shape=(M, K))
    b = metile.tensor(B, shape=(K, N))
    added = metile.tensor(bias, shape=(M, N), strides=(0, 1))  # each row has the same bias
    c = metile.tensor(C, shape=(M, N), access="write")
    row, column = metile.program_id(1) * BM, metile.program_id(0) * BN
    total = metile.zeros((BM, BN), metile.f32)
    for k in metile.tile_range(0, K, BK):
        left = metile.tile_load(a, (row, k), (BM, BK))
        right = metile.tile_load(b, (k, column), (BK, BN))
        total = metile.dot(left, right, total)
    total = gelu(total + metile.tile_load(added, (row, column), (BM, BN)))
    metile.tile_store(c, (row, column), total)


def milliseconds(work: Callable[[], mx.array], rounds: int = 7) -> float:
    """The median of some calls, after one that compiles."""
    mx.eval(work())
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        mx.eval(work())
        times.append(time.perf_counter() - start)
    return 1e3 * sorted(times)[rounds // 2]


def pipelines(dispatch: metile.Dispatch) -> str:
    """How tiles of the next step are copied while the present ones are multiplied."""
    found = []
    for loop in dispatch.execution_report.pipelines:
        if loop.declined:
            found.append(f"  {loop.loop}: {loop.declined}")
            continue
        found.append(f"  {loop.loop}: {loop.slots} slots, {loop.barriers} barriers a step")
        for phase in loop.phases:
            done = f"{phase.copies} copies, {phase.products} products"
            found.append(f"    {phase.name}: {done}, barriers: {', '.join(phase.barriers) or '-'}")
    return "\n".join(["pipelines:" if found else "pipelines: none", *found])


def gelu64(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def exact(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def main() -> None:
    is_small = os.environ.get("METILE_BACKEND") in ("emulator", "reference")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=72 if is_small else 512, help="M, N and K")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    options = parser.parse_args()

    dtype: mx.Dtype = getattr(mx, options.dtype)
    m, n, k = options.size, options.size + 1, options.size - 1  # no multiples of the tiles
    mx.random.seed(0)
    x, w, bias = (mx.random.normal(s).astype(dtype) for s in ((m, k), (k, n), (n,)))
    w = (w / math.sqrt(k)).astype(dtype)

    tiles = {"BM": 64, "BN": 64, "BK": 16} if not is_small else {"BM": 32, "BN": 32, "BK": 16}
    programs = (metile.cdiv(n, tiles["BN"]), metile.cdiv(m, tiles["BM"]))
    arguments = (x, w, bias, metile.empty((m, n), dtype), m, n, k)
    schedule = metile.Schedule(staging="threadgroup", double_buffer=True)
    dispatch = linear_gelu[programs].prepare(*arguments, **tiles, schedule=schedule)
    print(dispatch.explain())
    print(pipelines(dispatch))

    ours, theirs = dispatch(*arguments), nn.gelu_approx(mx.addmm(bias, x, w))
    expected = gelu64(exact(x) @ exact(w) + exact(bias))
    largest = np.abs(expected).max()
    errors = [np.abs(exact(made) - expected).max() / largest for made in (ours, theirs)]
    # Partial sums of k products, and one rounding.
    allowed = (
        4e-7 * math.sqrt(k) + {"float32": 0, "float16": 2**-10, "bfloat16": 2**-7}[options.dtype]
    )
    times = [
        milliseconds(lambda: dispatch(*arguments)),
        milliseconds(lambda: nn.gelu_approx(mx.addmm(bias, x, w))),
    ]
    print(f"\n{m} x {n} x {k}, {options.dtype}, {dispatch.execution_report.backend}")
    for name, error, took in zip(("meTile", "MLX"), errors, times, strict=True):
        print(f"{name:<8} largest error {error:.1e} of the largest value, {took:9.3f} ms")
    if errors[0] > allowed:
        raise SystemExit(f"the result is wrong: {errors[0]:.1e} is more than {allowed:.1e}")
    print(f"right: within {allowed:.1e} of float64")


if __name__ == "__main__":
    main()
