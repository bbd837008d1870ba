"""The emulator as a backend of our own kernels: Metal's text, run and checked (SPEC X6)."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx import emulator
from metile_mlx.backends import BACKENDS
from metile_mlx.emulator import EmulatorError, Fault, toolchain
from tests.support.public import python, same_bits

COLUMNS = metile.ThreadLayout((3, 4, 5, 0, 1, 2))


@metile.kernel
def transpose8(x, y, n, LAYOUT: metile.constexpr = COLUMNS):
    source = metile.tensor(x, shape=(n, 8, 8), access="read")
    target = metile.tensor(y, shape=(n, 8, 8), access="write")
    batch, i = metile.program_id(0), metile.arange(0, 64)
    value = metile.convert_layout(source.load((batch, i // 8, i % 8)), LAYOUT)
    owned = metile.arange(0, 64, layout=LAYOUT)
    target.store((batch, owned % 8, owned // 8), value)


@metile.kernel
def bump(x, n, start, stop, by):
    values = metile.tensor(x, shape=n, access="read_write")
    i = start + metile.arange(0, 32)
    values.store(i, values.load(i) + by, mask=i < stop)


@metile.kernel
def square(x, y, n):
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    value = metile.tensor(x, shape=n).load(i)
    metile.tensor(y, shape=n, access="write").store(i, value * value)


@metile.kernel
def collide(y, n):
    """Each program stores its own number to the same elements."""
    here = metile.full(32, metile.program_id(0), metile.i32)
    metile.tensor(y, shape=n, access="write").store(metile.arange(0, 32), here)


X = mx.random.normal((5, 8, 8), key=mx.random.key(1))


def transposed(**options: object) -> mx.array:
    out = metile.empty(X.shape, X.dtype)
    made: mx.array = transpose8[5](X, out, 5, **options)  # type: ignore[arg-type]
    return made


@pytest.mark.emulator
def test_runs_checked_and_moves_every_bit() -> None:
    before = emulator.completed_runs()
    with emulator.checked(schedules=4):
        y = transposed(backend="emulator")
        mx.eval(y)
    assert emulator.completed_runs() == before + 1
    assert same_bits(y, mx.contiguous(mx.transpose(X, (0, 2, 1))))


@pytest.mark.emulator
def test_the_environment_chooses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METILE_BACKEND", "emulator")
    before = emulator.completed_runs()
    assert same_bits(transposed(), transposed(backend="cpu"))
    assert emulator.completed_runs() == before + 1


@pytest.mark.emulator
def test_it_is_never_chosen_by_itself() -> None:
    before = emulator.completed_runs()
    mx.eval(transposed(), transposed(backend="reference"))
    assert emulator.completed_runs() == before


@pytest.mark.emulator
def test_the_text_is_the_one_metal_gets() -> None:
    out = metile.empty(X.shape, X.dtype)
    own = transpose8[5].prepare(X, out, 5, backend="emulator")
    metal = transpose8[5].prepare(X, out, 5, target="metal")
    assert own.msl == metal.msl
    assert own.execution_report.backend == "emulator"
    assert "backend emulator" in own.explain()


@pytest.mark.emulator
def test_what_nobody_stores_is_the_input_s() -> None:
    """SPEC K7: a read_write output is merged through its written mask."""
    x = mx.arange(8)
    with emulator.checked():
        y = bump[1](x, 8, 2, 5, 100, backend="emulator")
        mx.eval(y)
    assert y.tolist() == [0, 1, 102, 103, 104, 5, 6, 7]


@pytest.mark.emulator
def test_gradients_compile_and_vmap() -> None:
    """SPEC X7: as on Metal, so `metile.vmap` launches once per entry."""
    x = mx.arange(40).astype(mx.float32)
    out = metile.empty(40, mx.float32)

    def run(x: mx.array) -> mx.array:
        made: mx.array = square[2](x, out, 40, backend="emulator")
        return made

    assert same_bits(mx.grad(lambda x: run(x).sum())(x), 2 * x)
    assert same_bits(mx.compile(lambda x: run(x) + 1)(x), x * x + 1)
    rows = mx.stack([x, x + 1, x + 2])
    before = emulator.completed_runs()
    assert same_bits(metile.vmap(run)(rows), rows * rows)
    assert emulator.completed_runs() == before + 3


@pytest.mark.emulator
@pytest.mark.faulty
def test_a_race_between_programs_is_found_when_checked_only() -> None:
    y = collide[3](metile.empty(32, mx.int32), 32, backend="emulator")
    mx.eval(y)
    with pytest.raises(EmulatorError) as caught, emulator.checked():
        mx.eval(collide[3](metile.empty(32, mx.int32), 32, backend="emulator"))
    (finding,) = caught.value.report.findings
    assert finding.fault is Fault.RACE
    assert finding.array == "y"
    assert finding.thread is not None
    assert finding.other is not None
    assert finding.thread.group != finding.other.group


def test_without_clang_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "CANDIDATES", ("no-such-clang",))
    monkeypatch.setenv("CXX", "no-such-clang")
    reason = BACKENDS["emulator"].available()
    assert reason is not None
    assert "the emulator needs clang 16 or newer" in reason
    with pytest.raises(metile.BackendError, match="'emulator' can't run here"):
        transposed(backend="emulator")


def test_the_package_works_without_mlx(tmp_path: Path) -> None:
    """F29: importing the emulator's table of backends needs no mlx."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "sys.modules['mlx.core'] = None\n"
        "import metile_mlx\n"
        "from metile_mlx.backends import BACKENDS\n"
        "print(BACKENDS['emulator'].available())\n"
    )
    done = python(str(script))
    assert done.returncode == 0, done.stderr
    assert "mlx is not installed" in done.stdout
