"""CPU kernels and their process: threads, forks, exit, floating-point state (SPEC X4, X7)."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx.dtypes import f32
from metile_mlx.runtime import cpu
from tests.support.cpu_kernels import kernel_source, pointwise, programs

ROOT = Path(__file__).resolve().parents[2]
IMPORTS = """
import os, sys
import mlx.core as mx
from metile_mlx.dtypes import f32
from metile_mlx.runtime import cpu
from tests.support.cpu_kernels import kernel_source, pointwise, programs
DOUBLE = pointwise("double_it", "x[i] * 2.0f")
def double(x, **options):
    n = x.size
    return cpu.build(DOUBLE).launch([x], [n], [(n,)], [f32], programs(n), [-1], **options)[0]
SLOW = kernel_source(
    "slow",
    "float value = x[program];"
    "for (int i = 0; i < 4000; ++i) value = std::sin(value) + 1.0f; out[program] = value;",
    {"x": f32},
    {"out": f32},
)
"""


def script(text: str, *, error: str = "") -> str:
    """Output of a Python process that ran `text` and exited as it should."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS + text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, error), done.stderr
    return done.stdout


def test_eight_threads_compile_and_launch_at_once_f31() -> None:
    # The body of each is new to this process, so that all threads meet at the compiler.
    sources = [pointwise("threads", f"x[i] * {k}.0f + {os.getpid()}.0f") for k in range(4)]
    barrier = threading.Barrier(8)
    kernels: list[set[cpu.CpuKernel]] = [set() for _ in sources]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            barrier.wait()
            x = mx.arange(100 + number, dtype=mx.float32)
            for turn in range(100):
                which = (turn + number) % len(sources)
                kernel = cpu.build(sources[which])
                kernels[which].add(kernel)
                out = kernel.launch([x], [x.size], [x.shape], [f32], programs(x.size), [-1])[0]
                assert mx.array_equal(out, x * which + os.getpid())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [len(found) for found in kernels] == [1, 1, 1, 1]


def test_a_forked_child_launches_with_a_pool_of_its_own() -> None:
    output = script("""
x = mx.arange(64, dtype=mx.float32)
slow = lambda **o: cpu.build(SLOW).launch([x], [], [(64,)], [f32], (64,), [-1], **o)[0]
expected = slow().tolist()
mx.synchronize()
child = os.fork()
if child == 0:
    stream = mx.new_stream(mx.cpu)  # MLX's default stream has lost its thread
    ok = slow(stream=stream).tolist() == expected
    # This thread, the stream's, and the pool's other workers.
    ok = ok and len(os.listdir("/proc/self/task")) == 1 + cpu.thread_count()
    os._exit(0 if ok else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), slow().tolist() == expected)
""")
    assert output == "0 True\n"


@pytest.mark.parametrize("how", ["", "sys.exit(0)", "del out"])
def test_exit_with_pending_work_is_clean(how: str) -> None:
    """Launches end throughout the interpreter's shutdown, and what they hold is dropped there."""
    script(f"""
class Transforms:
    pass
x = mx.ones(64)
for _ in range(100):
    out = cpu.build(SLOW).launch(
        [x], [], [(64,)], [f32], (64,), [-1], transforms=Transforms()
    )[0]
    mx.async_eval(out)
{how}
""")


def test_exit_with_a_graph_that_was_never_evaluated_is_clean() -> None:
    script("""
compiled = mx.compile(lambda x: double(x) + 1)
kept = [double(mx.ones(8), transforms=object()), compiled(mx.ones(8))]
""")


def test_transforms_are_released_with_the_last_array() -> None:
    class Transforms:
        pass

    kernel = cpu.build(pointwise("double_it", "x[i] * 2.0f"))
    transforms = Transforms()
    alive = weakref.ref(transforms)
    out = kernel.launch([mx.ones(4)], [4], [(4,)], [f32], (1,), [-1], transforms=transforms)[0]
    del transforms
    assert alive() is not None
    mx.eval(out)
    del out
    mx.synchronize()
    # What the stream's thread dropped last is released by the next launch.
    mx.eval(kernel.launch([mx.ones(4)], [4], [(4,)], [f32], (1,), [-1]))
    gc.collect()
    assert alive() is None


def test_subnormals_survive_loading_and_running_kernels() -> None:
    n = 100_000
    tiny = np.full(n, 1e-40, np.float32)
    kernel = cpu.build(
        kernel_source(
            "subnormal",
            "for (int i = 0; i < 32; ++i) out[program * 32 + i] = x[program * 32 + i] * 0.5f;",
            {"x": f32},
            {"out": f32},
        )
    )
    out = kernel.launch([mx.array(tiny)], [], [(n,)], [f32], (n // 32,), [-1])[0]
    assert np.array_equal(np.array(out), tiny * np.float32(0.5))
    assert (tiny * np.float32(0.5) != 0).all()


def test_kernels_of_two_streams_run_at_once_and_apart() -> None:
    streams = [mx.new_stream(mx.cpu) for _ in range(3)]
    x = mx.random.normal((200_000,))
    kernel = cpu.build(pointwise("double_it", "x[i] * 2.0f"))
    for _ in range(5):
        outs = [
            kernel.launch([x + k], [x.size], [x.shape], [f32], programs(x.size), [-1], stream=s)[0]
            for k, s in enumerate(streams)
        ]
        mx.eval(outs)
        for k, out in enumerate(outs):
            assert mx.array_equal(out, (x + k) * 2)
