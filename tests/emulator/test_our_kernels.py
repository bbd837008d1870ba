"""Our own kernels as the MSL that MLX generates, under the checker; and that faults would show.

What the rest of the suite launches is run the same way when each test file is done (conftest.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx import compiler, emulator
from metile_mlx.context import Context
from metile_mlx.emit.source import KernelSource
from metile_mlx.emulator import build
from metile_mlx.ir.core import Func
from tests.end_to_end import test_conversions_run as conversions
from tests.support import emulated
from tests.support.mutate import without_barrier
from tests.support.public import DTYPES, same_bits

TURNED = metile.ThreadLayout((3, 4, 5, 0, 1, 2))


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", DTYPES)
def test_conversions_are_race_free_and_move_every_bit(dtype: str) -> None:
    """SPEC C1, C3: all pairs of owners of the end-to-end test, in several orders of threads."""
    cases = conversions.cases(dtype)
    dispatches = [case.prepare("emulator") for case in cases]
    launches = [emulated.make(dispatch, dispatch._values) for dispatch in dispatches]
    recorded = [launch.recorded() for launch in launches if launch is not None]
    assert len(recorded) == len(cases)
    build.prebuild([(kernel.name, kernel.text) for kernel in recorded], checked=True)
    before = emulator.completed_runs()
    with emulator.checked(schedules=3):
        made = [case.run(dispatch) for case, dispatch in zip(cases, dispatches, strict=True)]
        mx.eval(*made)
    assert emulator.completed_runs() == before + len(cases)
    for case, output in zip(cases, made, strict=True):
        assert same_bits(output, case.expected()), case


@metile.kernel
def collide(y, n):
    here = metile.full(32, metile.program_id(0), metile.i32)
    metile.tensor(y, shape=n, access="write").store(metile.arange(0, 32), here)


@metile.kernel
def turned(x, y, OWNER: metile.constexpr):
    """Two exchanges through one scratch."""
    i = metile.arange(0, 64)
    moved = metile.convert_layout(metile.tensor(x, shape=64).load(i), OWNER)
    again = metile.convert_layout(moved + 1, metile.ThreadLayout((5, 4, 3, 2, 1, 0)))
    j = metile.arange(0, 64, layout=metile.ThreadLayout((5, 4, 3, 2, 1, 0)))
    metile.tensor(y, shape=64, access="write").store(j, again)


def faults_of(run: Callable[[], mx.array]) -> list[str]:
    """What the suite would say of the kernels that `run` launches."""
    collector = emulated.Collector()
    with emulated.collecting(collector):
        mx.eval(run())
    tally = emulated.Tally()
    faults = emulated.run_all(collector, tally)
    assert tally == emulated.Tally(kernels=1)
    return faults


@pytest.mark.emulator
@pytest.mark.faulty
def test_a_race_is_reported_with_the_numbered_text() -> None:
    (fault,) = faults_of(lambda: collide[3](metile.empty(32, mx.int32), 32))
    assert "data race on device memory y[0]" in fault
    assert "y[tid] = program_0;" in fault
    assert "\n 1 | [[kernel]] void custom_kernel_collide" in fault


def changed_text(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str, count: int = -1
) -> Callable[[], mx.array]:
    """A launch on the CPU of `turned`, whose MSL is emitted wrong."""
    emit = compiler.EMITTERS["msl"]

    def changed(func: Func, ctx: Context) -> KernelSource:
        made = emit(func, ctx)
        assert old in made.body
        fields = {**vars(made), "body": made.body.replace(old, new, count)}
        return KernelSource(**fields)

    monkeypatch.setitem(compiler.EMITTERS, "msl", changed)
    turned._specialisations.clear()
    turned._dispatches.clear()
    x = mx.arange(64).astype(mx.float32)
    return lambda: turned[1](x, metile.empty(64, mx.float32), OWNER=TURNED, backend="cpu")


@pytest.mark.emulator
def test_the_text_as_it_is_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    assert faults_of(changed_text(monkeypatch, "barrier", "barrier")) == []


@pytest.mark.emulator
@pytest.mark.faulty
@pytest.mark.parametrize("barrier", [0, 1, 2])
def test_each_barrier_that_the_text_lacks_is_missed(
    barrier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC C2: publish, release and publish; the last release orders nothing."""
    emit = compiler.EMITTERS["msl"]

    def changed(func: Func, ctx: Context) -> KernelSource:
        return without_barrier(emit(func, ctx), barrier)

    run = changed_text(monkeypatch, "barrier", "barrier")
    monkeypatch.setitem(compiler.EMITTERS, "msl", changed)
    (fault,) = faults_of(run)
    assert "data race on threadgroup memory scratch_f32" in fault


@pytest.mark.emulator
@pytest.mark.faulty
def test_a_wrong_value_is_shown_with_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    (fault,) = faults_of(changed_text(monkeypatch, "+ 1.0f", "+ 2.0f"))
    assert "emulator: y differs from the reference in 64 elements" in fault
    assert "stored by program (0, 0, 0), thread" in fault
    assert "+ 2.0f" in fault


@pytest.mark.emulator
@pytest.mark.faulty
@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("device float* wrong = scratch_f32;", "address-space-mismatch"),
        ("double wide = 1;", "Metal has no 'double'"),
        ("float lost = nothing_here;", "use of undeclared"),
    ],
)
def test_a_text_that_is_refused_is_shown_with_its_lines(
    new: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = "  threadgroup_barrier("
    (fault,) = faults_of(changed_text(monkeypatch, barrier, f"  {new}\n{barrier}", 1))
    assert message in fault
    assert re.search(rf"\n *\d+ \|   {re.escape(new)}\n", fault), fault


@pytest.mark.parametrize(
    ("grid", "counted"),
    [(40000, emulated.Tally(too_large=1)), (0, emulated.Tally(without_threads=1))],
)
def test_launches_that_are_left_out_are_counted(grid: int, counted: emulated.Tally) -> None:
    collector, tally = emulated.Collector(), emulated.Tally()
    with emulated.collecting(collector):
        mx.eval(collide[grid](metile.empty(32, mx.int32), 32, backend="cpu"))
    assert emulated.run_all(collector, tally) == []
    assert tally == counted


@pytest.mark.emulator
def test_what_the_profile_leaves_out_is_counted_and_always_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted, x = emulated.Collector(), mx.zeros(64)
    with emulated.collecting(noted):
        for mask in (1, 2, 4):
            owner = metile.ThreadLayout((3, 4, 5, 0, 1, 2), xor_mask=mask)
            turned[1].prepare(x, metile.empty(64, mx.float32), OWNER=owner, backend="cpu")
    assert len({emulated.place(each) for each in noted.found.values()}) == 3
    texts: list[str] = []
    monkeypatch.setattr(emulated, "examine", lambda _, text: texts.append(text) or [])
    ran = []
    for found in (noted.found, dict(reversed(noted.found.items()))):
        texts.clear()
        collector, tally = emulated.Collector(found=dict(found)), emulated.Tally()
        assert emulated.run_all(collector, tally, 1) == []
        assert tally == emulated.Tally(kernels=1, left_out=2)
        ran.append(texts.copy())
    assert ran[0] == ran[1]
    assert len(ran[0]) == 1


@pytest.mark.emulator
@pytest.mark.faulty
def test_a_kernel_that_is_compiled_and_not_launched_is_run() -> None:
    collector, tally = emulated.Collector(), emulated.Tally()
    with emulated.collecting(collector):
        collide[3].prepare(metile.empty(32, mx.int32), 32, target="metal")
    (fault,) = emulated.run_all(collector, tally)
    assert "data race on device memory y[0]" in fault
    assert tally == emulated.Tally(kernels=1)


@pytest.mark.faulty
def test_the_mark_keeps_faults_on_purpose_out() -> None:
    collector = emulated.Collector(on=False)
    with emulated.collecting(collector):
        mx.eval(collide[2](metile.empty(32, mx.int32), 32, backend="cpu"))
    assert collector.take() == []
