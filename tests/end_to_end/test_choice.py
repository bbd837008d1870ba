"""Which backend a call runs on, and what works without a compiler or without mlx (X6, F29)."""

from __future__ import annotations

import os
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx import config
from metile_mlx.backends import BACKENDS
from metile_mlx.runtime import cpu
from tests.support.public import python

KERNEL = """
@metile.kernel
def transpose8(x, y, n, LAYOUT: metile.constexpr = metile.ThreadLayout((3, 4, 5, 0, 1, 2))):
    source = metile.tensor(x, shape=(n, 8, 8), access="read")
    target = metile.tensor(y, shape=(n, 8, 8), access="write")
    batch, i = metile.program_id(0), metile.arange(0, 64)
    value = metile.convert_layout(source.load((batch, i // 8, i % 8)), LAYOUT)
    owned = metile.arange(0, 64, layout=LAYOUT)
    target.store((batch, owned % 8, owned // 8), value)
"""


def script(folder: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `text` as a file of its own, so that its kernels have source."""
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return python(str(path), **environment)


@metile.kernel
def copy(x, y, n):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    target.store(i, source.load(i))


X = mx.arange(40, dtype=mx.float32)
OUT = metile.empty((40,), metile.f32)


def ran_on(**options: object) -> str:
    """The backend of a prepared call, which also returns the right values."""
    dispatch = copy[(2,)].prepare(X, OUT, 40, **options)  # type: ignore[arg-type]
    assert mx.array_equal(copy[(2,)](X, OUT, 40, **options), X)
    return dispatch.execution_report.backend


def test_the_device_decides_when_nothing_is_named() -> None:
    """F29: by what MLX says of the stream's device, never by the platform's name."""
    assert ran_on() == "cpu"
    assert ran_on(stream=mx.cpu) == "cpu"
    assert ran_on(stream=mx.new_stream(mx.cpu)) == "cpu"


def test_argument_before_environment_before_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METILE_BACKEND", "reference")
    assert ran_on() == "reference"
    assert ran_on(backend="cpu") == "cpu"
    assert ran_on(target="cpu") == "cpu"
    monkeypatch.setenv("METILE_BACKEND", "")
    assert ran_on() == "cpu"


def test_x6_the_environment_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a call looks for what has changed since, too: set, empty, not set, a dictionary."""
    assert ran_on() == "cpu"
    monkeypatch.setenv("METILE_BACKEND", "vulkan")
    with pytest.raises(metile.MetileError, match="names no backend"):
        ran_on()
    monkeypatch.setenv("METILE_BACKEND", "cpu")
    assert ran_on() == "cpu"
    monkeypatch.setenv("CXX", "/missing")
    with pytest.raises(metile.BackendError, match="CXX=/missing can't be used"):
        ran_on()
    monkeypatch.delenv("CXX")
    assert ran_on() == "cpu"
    seen = {config.backend_texts()}
    for name in ("METILE_BACKEND", "CXX"):
        monkeypatch.setenv(name, "\u00e4")
        seen.add(config.backend_texts())
    assert len(seen) == 3
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", {**os.environ, "METILE_BACKEND": "reference"})
        assert config.backend_texts() == ("reference", "\u00e4")


def test_a_metal_kernel_where_there_is_no_metal() -> None:
    if mx.metal.is_available():
        assert ran_on(backend="metal") == "metal"
        return
    with pytest.raises(metile.BackendError) as caught:
        copy[(2,)](X, OUT, 40, backend="metal")
    assert str(caught.value) == (
        "backend 'metal' can't run here: MLX finds no Metal device (mx.metal.is_available() is "
        "False)\nhint: python -m metile_mlx doctor lists what can"
    )


@pytest.mark.parametrize("how", ["argument", "environment"])
def test_a_backend_that_does_not_exist(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"backend": "vulkan"} if how == "argument" else {}
    if how == "environment":
        monkeypatch.setenv("METILE_BACKEND", "vulkan")
    with pytest.raises(metile.MetileError) as caught:
        copy[(2,)](X, OUT, 40, **options)  # type: ignore[arg-type]
    names = "expected one of metal, cuda, cpu, emulator, reference"
    assert (
        str(caught.value)
        == {
            "argument": f"backend 'vulkan' does not exist; {names}",
            "environment": f"METILE_BACKEND='vulkan' names no backend; {names}",
        }[how]
    )


@pytest.mark.parametrize("backend", [None, "cpu", "reference", "emulator"])
def test_what_is_no_stream_is_refused(backend: str | None) -> None:
    with pytest.raises(metile.LaunchError) as caught:
        copy[(2,)](X, OUT, 40, stream="cpu", backend=backend)
    assert str(caught.value) == "stream is 'cpu'; expected an MLX stream or device"


CPU_PLACES = [mx.cpu, mx.Device(mx.cpu), mx.new_stream(mx.cpu), mx.new_thread_local_stream(mx.cpu)]


@pytest.mark.parametrize("place", CPU_PLACES, ids=lambda place: type(place).__name__)
@pytest.mark.parametrize("backend", ["metal", "cuda"])
def test_a_cpu_stream_is_refused_where_only_a_gpu_runs(
    backend: str, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X6: by us, before anything is registered; MLX raises a ValueError that names no kernel."""
    monkeypatch.setattr(f"metile_mlx.runtime.{backend}.available", lambda: None)
    monkeypatch.setattr("metile_mlx.runtime.backend._proven", {})
    with pytest.raises(metile.LaunchError) as caught:
        copy[(2,)](X, OUT, 40, backend=backend, stream=place)
    assert str(caught.value) == (
        f"[{backend}] kernel copy: stream is {place!r}; the {backend} backend takes streams and "
        "devices of the GPU\nhint: leave stream= out, pass mx.gpu or mx.new_stream(mx.gpu), or "
        "use backend='cpu'"
    )


@pytest.mark.parametrize("backend", ["metal", "cuda"])
@pytest.mark.parametrize("place", [None, mx.gpu, mx.Device(mx.gpu)])
def test_a_gpu_stream_reaches_the_kernel(
    place: Any, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X6, with the registered kernel stubbed: `stream=` comes through as it is."""
    launched: list[Any] = []

    class Kernel:
        def bind(self, *arguments: Any) -> Any:
            launched.append(arguments[-1])
            return lambda arrays: [mx.zeros(40)]

    monkeypatch.setattr(f"metile_mlx.runtime.{backend}.available", lambda: None)
    monkeypatch.setattr("metile_mlx.runtime.backend._proven", {})
    monkeypatch.setattr(type(BACKENDS[backend]), "register", lambda self, request: Kernel())
    copy[(2,)](X, OUT, 40, backend=backend, stream=place)
    assert launched == [place]


def test_target_and_backend_must_agree() -> None:
    with pytest.raises(metile.LaunchError) as caught:
        copy[(2,)].prepare(X, OUT, 40, backend="cpu", target="metal")
    assert str(caught.value) == (
        "backend='cpu' and target='metal' are given; expected one, or the same\n"
        "hint: target= compiles without running; backend= is where a call runs"
    )


RUN = (
    """
import mlx.core as mx
import metile_mlx as metile
"""
    + KERNEL
    + """
x = mx.random.normal((7, 8, 8))
for turn in range(3):
    y = transpose8[(7,)](x, metile.empty(x.shape, x.dtype), 7)
    assert mx.array_equal(y, x.transpose(0, 2, 1))
print(transpose8[(7,)].prepare(x, metile.empty(x.shape, x.dtype), 7).execution_report.backend)
"""
)


def test_without_a_compiler_the_reference_runs_and_says_so_once(tmp_path: Path) -> None:
    """SPEC X6, F29."""
    done = script(tmp_path, RUN, CXX="/missing")
    assert (done.returncode, done.stdout) == (0, "reference\n"), done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert "script.py:" in done.stderr.splitlines()[0]
    assert (
        "kernels run on the reference backend (MLX operations), because 'cpu' can't run here"
        in (done.stderr)
    )
    assert "/missing" in done.stderr


def test_without_a_compiler_asking_for_the_cpu_raises(tmp_path: Path) -> None:
    """SPEC X6: a backend that was named is never replaced."""
    done = script(tmp_path, RUN, CXX="/missing", METILE_BACKEND="cpu")
    assert done.returncode == 1
    assert "BackendError: backend 'cpu' can't run here: " in done.stderr
    assert "/missing" in done.stderr
    assert "RuntimeWarning" not in done.stderr


def test_the_reference_by_environment_needs_no_compiler(tmp_path: Path) -> None:
    done = script(tmp_path, RUN, CXX="/missing", METILE_BACKEND="reference")
    assert (done.returncode, done.stdout, done.stderr) == (0, "reference\n", "")


WITHOUT_MLX = (
    """
import sys
sys.modules["mlx"] = sys.modules["mlx.core"] = None
import metile_mlx as metile
from metile_mlx.compiler import compile_kernel
from metile_mlx.context import Context
from metile_mlx.frontend.translate import translate
from metile_mlx.frontend.values import ArraySpec, ScalarSpec
from metile_mlx.target import CPU, METAL
"""
    + KERNEL
    + """
specs = {"x": ArraySpec(metile.f32), "y": ArraySpec(metile.f32), "n": ScalarSpec(metile.i32)}
constants = {"LAYOUT": metile.ThreadLayout((3, 4, 5, 0, 1, 2))}
func = translate(transpose8.definition, specs, constants)
metal = compile_kernel(func, Context(METAL))
assert metal.body.count("threadgroup_barrier(mem_flags::mem_threadgroup);") == 2
assert "metile_entry" in compile_kernel(func, Context(CPU)).body
try:
    translate(transpose8.definition, specs, {"LAYOUT": metile.ThreadLayout.identity(32)})
except metile.CompileError as error:
    print(str(error).splitlines()[0].partition("script.py")[2])
try:
    transpose8[(1,)](1, 2, 3)
except metile.BackendError as error:
    print(error)
"""
)


def test_without_mlx_everything_but_running_works(tmp_path: Path) -> None:
    """F29: import, translate, verify, both texts; running says what is missing."""
    done = script(tmp_path, WITHOUT_MLX)
    assert (done.returncode, done.stderr) == (0, "")
    error, *message = done.stdout.splitlines()
    assert error == (
        ":16:13: error: [convert_layout] the tile has 64 elements, "
        "ThreadLayout((0, 1, 2, 3, 4)) owns 32"
    )
    assert message == [
        "backend 'reference' can't run here: mlx is not installed: import of mlx.core halted; "
        "None in sys.modules",
        "hint: pip install 'metile-mlx[cpu]'",
    ]


def test_importing_makes_no_stream_and_touches_no_compiler(tmp_path: Path) -> None:
    """F31, SPEC X7: a thread may import it first; nothing is built before a kernel runs."""
    done = script(
        tmp_path,
        """
        import threading
        def work():
            import metile_mlx
            import mlx.core as mx
            assert mx.array_equal(mx.arange(3) + 1, mx.array([1, 2, 3]))
            print("imported")
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """,
        CXX="/missing",
        METILE_CACHE_DIR=str(tmp_path / "cache"),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "imported\n", "")
    assert not (tmp_path / "cache").exists()


def test_a_text_the_compiler_refuses_shows_its_message_and_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SPEC X4: planted by a macro that breaks the text; nothing is kept as compiled."""

    @metile.kernel
    def broken(x, y, FACTOR: metile.constexpr):
        source = metile.tensor(x, shape=(32,), access="read")
        target = metile.tensor(y, shape=(32,), access="write")
        i = metile.arange(0, 32)
        target.store(i, source.load(i) * FACTOR)

    # A text that no earlier run has left in the cache.
    factor = time.time_ns() % 2**20
    monkeypatch.setattr(
        cpu,
        "translation_unit",
        lambda group, make=cpu.translation_unit: make(group) + "\n#error no",
    )
    x, out = mx.zeros((32,)), metile.empty((32,), metile.f32)
    for _ in range(2):
        with pytest.raises(metile.CompileError) as caught:
            broken[(1,)](x, out, FACTOR=factor, backend="cpu")
        assert "can't compile kernel broken_" in caught.value.message
        assert "#error no" in caught.value.message
        assert caught.value.hint is not None
        kept = Path(caught.value.hint.removeprefix("the text is kept in "))
        assert "metile_entry" in kept.read_text(encoding="utf-8")
    monkeypatch.undo()
    assert broken[(1,)](x + 1, out, FACTOR=factor, backend="cpu")[5].item() == factor
