"""A hand-written MSL kernel with a race, what the emulator reports, and the kernel put right.

    python examples/check_my_kernel.py

Each threadgroup reverses its 64 elements through `threadgroup` memory. The first version forgets
the barrier between writing and reading; it needs no Mac to be found out.
"""

from __future__ import annotations

import mlx.core as mx

from metile_mlx import emulator

RACY = """
    threadgroup float scratch[64];
    uint i = thread_position_in_grid.x;
    uint t = thread_index_in_threadgroup;
    scratch[t] = x[i];
    y[i] = scratch[63 - t];
"""
FIXED = RACY.replace("    y[i]", "    threadgroup_barrier(mem_flags::mem_threadgroup);\n    y[i]")


def reverse_blocks(source: str, x: mx.array) -> mx.array:
    """Each run of 64 elements reversed, by an `mx.fast.metal_kernel` of this body."""
    kernel = mx.fast.metal_kernel(
        name="reverse_blocks", input_names=["x"], output_names=["y"], source=source
    )
    return kernel(
        inputs=[x],
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
        grid=(x.size, 1, 1),
        threadgroup=(64, 1, 1),
    )[0]


def check(source: str, x: mx.array) -> tuple[mx.array, emulator.Report]:
    """Runs the kernel under the checker, in four orders of its threads."""
    emulator.take()
    with emulator.patched(), emulator.options(checked=True, schedules=4):
        y = reverse_blocks(source, x)
        mx.eval(y)
    return y, emulator.take()


def main() -> None:
    reason = emulator.available()
    if reason is not None:
        raise SystemExit(reason)
    x = mx.arange(256).astype(mx.float32)
    expected = x.reshape(4, 64)[:, ::-1].reshape(-1)

    _, report = check(RACY, x)
    print(f"without the barrier: {report}\n")
    if not any(finding.fault is emulator.Fault.RACE for finding in report.findings):
        raise SystemExit("the race was not found")

    y, report = check(FIXED, x)
    print(f"with the barrier: {report}")
    if report or not mx.array_equal(y, expected).item():
        raise SystemExit("the fixed kernel is not clean")
    print("and the result is right")


if __name__ == "__main__":
    main()
