"""Transposes, a bit reversal and a Hadamard transform as conversions of owners, with their reports.

    python examples/rearrangements.py

Each runs on the backend at hand, is compared bit for bit with MLX operations, and prints how the
compiler moves its values: which registers, lanes and simdgroups they cross, what that costs, and
which other ways there were.
"""

from __future__ import annotations

import mlx.core as mx

import metile_mlx as metile
from metile_kernels.permutations import (
    FOURS,
    NEAR,
    bit_reversing,
    hadamard,
    hadamard_reference,
    rearranged,
    rearranged_reference,
    transposing,
)

ROWS = 256
DTYPES = (mx.float32, mx.float16, mx.bfloat16)
REARRANGEMENTS = {
    "two 8x8 blocks transposed, 4 elements a thread": (
        transposing(8, 8, 2),
        metile.ThreadLayout.grouped(128, 4),
    ),
    "a 64x64 tile transposed, 16 elements a thread": (
        transposing(64, 64),
        metile.ThreadLayout.grouped(4096, 16),
    ),
    "bit reversal of 1024, 4 elements a thread": (
        bit_reversing(1024),
        metile.ThreadLayout.grouped(1024, 4),
    ),
}
TRANSFORMS = {
    "Hadamard transform of 1024, 4 elements a thread": (None, None),
    "the same, with owners that make far partners near from stage 7 on": (7, NEAR),
}


def same_bits(a: mx.array, b: mx.array) -> bool:
    kind = mx.uint16 if a.dtype.size == 2 else mx.uint32
    return bool(mx.array_equal(a.view(kind), b.view(kind)))


def show(title: str, dispatch: metile.Dispatch) -> None:
    """The conversions of a kernel and all ways there were to carry them out."""
    report = dispatch.execution_report
    print(f"{title}: {report.threads} threads in a program")
    for fact in report.layout_conversions:
        candidates = ", ".join(f"{c.mechanism} {c.total}" for c in fact.candidates)
        rule = f", {fact.lane_rule}" if fact.lane_rule else ""
        print(f"  {fact.mechanism}{rule}, {fact.barriers} barriers; costs: {candidates}")
    print(
        f"  {sum(a.bytes for a in report.allocations)} bytes of threadgroup memory, "
        f"{len(report.grouped_loads)} grouped loads, {len(report.grouped_stores)} grouped stores"
    )


def main() -> None:
    for title, (order, layout) in REARRANGEMENTS.items():
        for dtype in DTYPES:
            x = mx.random.normal((ROWS, layout.size), key=mx.random.key(0)).astype(dtype)
            out = metile.empty(x.shape, dtype)
            dispatch = rearranged[ROWS].prepare(x, out, ROWS, ORDER=order, LAYOUT=layout)
            found = dispatch(x, out, ROWS)
            assert same_bits(found, rearranged_reference(x, order)), f"{title}: differs in {dtype}"
        show(title, dispatch)
    for title, (split, second) in TRANSFORMS.items():
        for dtype in DTYPES:
            x = mx.random.normal((ROWS, 1024), key=mx.random.key(1)).astype(dtype)
            out = metile.empty(x.shape, dtype)
            dispatch = hadamard[ROWS].prepare(
                x, out, ROWS, BITS=10, LAYOUT=FOURS, SPLIT=split, SECOND=second
            )
            found = dispatch(x, out, ROWS)
            assert same_bits(found, hadamard_reference(x)), f"{title}: differs in {dtype}"
        show(title, dispatch)
    print(f"all equal MLX's operations bit for bit, on {dispatch.execution_report.backend}")


if __name__ == "__main__":
    main()
