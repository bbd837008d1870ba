"""A batched 8x8 transpose by ownership: the kernel of the source document, run and checked.

    python examples/transpose8.py            # or: make demo

Loads contiguous elements, changes who owns them, stores contiguous elements. Runs inside an
`mx.compile`d function next to MLX operations, compares bit for bit with `mx.transpose`, prints what
the compiler did, and writes the graph for a Mac to `transpose8.mlxfn`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import mlx.core as mx

import metile_mlx as metile

TRANSPOSED = metile.ThreadLayout((3, 4, 5, 0, 1, 2))
BLOCKS = 4096
DTYPES = (mx.float32, mx.float16)


@metile.kernel
def transpose8(source, destination, batches, OUTPUT_LAYOUT: metile.constexpr):
    inputs = metile.tensor(source, shape=(batches, 8, 8), access="read")
    outputs = metile.tensor(destination, shape=(batches, 8, 8), access="write")
    batch = metile.program_id(0)
    positions = metile.arange(0, 64)
    values = inputs.load((batch, positions // 8, positions % 8))
    converted = metile.convert_layout(values, OUTPUT_LAYOUT)
    owned = metile.arange(0, 64, layout=OUTPUT_LAYOUT)
    outputs.store((batch, owned % 8, owned // 8), converted)


def transpose(x: mx.array) -> mx.array:
    """Transpose the last two axes of (blocks, 8, 8) as a lazy MLX operation."""
    return transpose8[(x.shape[0],)](
        x, metile.empty(x.shape, x.dtype), x.shape[0], OUTPUT_LAYOUT=TRANSPOSED
    )


def blocks(dtype: mx.Dtype) -> mx.array:
    """Random blocks with -0.0, NaN and infinities in them."""
    x = mx.random.normal((BLOCKS, 8, 8), key=mx.random.key(0)).astype(dtype)
    special = mx.array([-0.0, float("nan"), float("inf"), float("-inf")], dtype=dtype)
    x[::7, 0, 4:] = special
    x[1::7, 3:7, 1] = special
    return x


def bits(x: mx.array) -> mx.array:
    return x.view(mx.uint16 if x.dtype.size == 2 else mx.uint32)


def same_bits(a: mx.array, b: mx.array) -> bool:
    return bool(mx.array_equal(bits(a), bits(mx.contiguous(b))))


def median_ms(fns: list[Callable[[mx.array], mx.array]], x: mx.array) -> list[float]:
    """Median time of one operation in milliseconds; the functions take turns."""
    launches, rounds = 20, 30
    samples: list[list[float]] = [[] for _ in fns]
    for round_ in range(rounds + 3):
        for fn, times in zip(fns, samples, strict=True):
            start = time.perf_counter()
            mx.eval([fn(x) for _ in range(launches)])
            if round_ >= 3:
                times.append((time.perf_counter() - start) / launches * 1e3)
    return [statistics.median(times) for times in samples]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--export", default="transpose8.mlxfn", help="graph for a Mac")
    path = parser.parse_args().export

    step = mx.compile(lambda x: mx.abs(transpose(x * 1)) + transpose(mx.abs(x)))
    for dtype in DTYPES:
        x = blocks(dtype)
        assert same_bits(transpose(x), mx.transpose(x, (0, 2, 1))), "differs from mx.transpose"
        expected = mx.abs(mx.transpose(x, (0, 2, 1))) * 2
        assert mx.array_equal(step(x), expected, equal_nan=True), "differs inside mx.compile"
        print(f"{dtype}: {BLOCKS} blocks equal mx.transpose bit for bit, in mx.compile too")

    x = blocks(DTYPES[0])
    dispatch = transpose8[(BLOCKS,)].prepare(
        x, metile.empty(x.shape, x.dtype), BLOCKS, OUTPUT_LAYOUT=TRANSPOSED
    )
    print("\n" + dispatch.explain())
    print("\nWho owns which element of a block (thread.register):\n" + TRANSPOSED.table())
    print("\nThe Metal text as MLX records it:\n" + dispatch.msl)

    print(f"\nran on: {dispatch.execution_report.backend}, MLX device {mx.default_device()}")
    for dtype in DTYPES:
        x = blocks(dtype)
        mx.eval(x)
        ours, theirs = median_ms(
            [transpose, lambda y: mx.contiguous(mx.transpose(y, (0, 2, 1)))], x
        )
        print(
            f"{dtype}: {ours:.3f} ms a transpose, MLX's contiguous transpose {theirs:.3f} ms, "
            f"{theirs / ours:.2f} times as fast"
        )

    metile.export(path, lambda y: transpose(y) + 1, blocks(DTYPES[0]), target="metal")
    print(f"wrote {path}: load it on a Mac with mx.import_function({path!r})")


if __name__ == "__main__":
    main()
