"""`metile.testing.check`: what it compares, what it shows, and who stores the element it shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.analysis.exact import exact_outputs
from metile_mlx.backends import BACKENDS
from metile_mlx.context import Schedule
from metile_mlx.emulator import Fault, toolchain
from metile_mlx.owners import find_owner
from metile_mlx.runtime.backend import Launch, Request
from metile_mlx.runtime.backends import CpuBackend
from metile_mlx.testing import CheckError, CheckReport, check
from tests.support.public import payload, random_layout

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
def activation(x, y, signs, n):
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    value = metile.tensor(x, shape=n).load(i)
    metile.tensor(y, shape=n, access="write").store(i, metile.exp(value))
    metile.tensor(signs, shape=n, access="write").store(i, metile.cast(value > 0, metile.i32))


@metile.kernel
def collide(y, n):
    here = metile.full(32, metile.program_id(0), metile.i32)
    metile.tensor(y, shape=n, access="write").store(metile.arange(0, 32), here)


@metile.kernel
def bump(x, n, start, schedules):
    """`schedules` is a parameter of `check` too."""
    values = metile.tensor(x, shape=n, access="read_write")
    i = start + metile.arange(0, 32)
    values.store(i, values.load(i) + 1, mask=i < schedules)


class Wrong(CpuBackend):
    """Element `at` of the first output comes out as `value`."""

    def __init__(self, at: int, value: float) -> None:
        self.at = at
        self.value = value

    def bind(self, request: Request) -> Launch:
        launch = super().bind(request)

        def changed(arrays: Sequence[mx.array]) -> Sequence[mx.array]:
            first, *rest = launch(arrays)
            flat = mx.flatten(first)
            flat[self.at] = self.value
            return [mx.reshape(flat, first.shape), *rest]

        return changed


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Iterator[Wrong]:
    """The cpu backend gets one element wrong."""
    backend = Wrong(0, 0)
    monkeypatch.setitem(BACKENDS, "cpu", backend)
    kernels = (transpose8, activation, bump)
    for kernel in kernels:
        kernel._dispatches.clear()
    yield backend
    for kernel in kernels:
        kernel._dispatches.clear()


@pytest.mark.emulator
def test_all_three_agree() -> None:
    x = payload("f32", (5, 8, 8))
    report = check(transpose8, 5, x, metile.empty(x.shape, x.dtype), 5, schedules=4)
    assert report.ok
    assert [(c.run, c.output, c.bitwise, c.largest) for c in report.comparisons] == [
        ("cpu", "y", True, 0.0),
        ("emulator", "y", True, 0.0),
    ]
    assert (report.backend, report.not_emulated, report.schedules) == ("cpu", "", 4)
    assert report.findings is not None
    assert report.findings.launches == 1
    assert "ok" in str(report)


def test_the_first_difference_is_shown_with_its_owner(wrong: Wrong) -> None:
    wrong.at, wrong.value = 3 * 64 + 2 * 8 + 5, 77.0
    x = mx.random.normal((5, 8, 8), key=mx.random.key(3))
    with pytest.raises(CheckError) as caught:
        check(transpose8, 5, x, metile.empty(x.shape, x.dtype), 5)
    report = caught.value.report
    (difference,) = [c.difference for c in report.comparisons if c.difference]
    assert (difference.index, difference.count) == ((3, 2, 5), 1)
    assert (difference.expected, difference.found) == (x[3, 5, 2].item(), 77.0)
    owner = difference.owner
    assert owner is not None
    # Element (column, row) = (2, 5) of the result is element 5 * 8 + 2 of the tile.
    assert (owner.program, owner.element) == ((3, 0, 0), 42)
    assert (owner.thread, owner.register) == (COLUMNS.owner(42), 0)
    text = str(caught.value)
    assert "cpu: y differs from the reference in 1 elements (bitwise)" in text
    assert f"y[3, 2, 5]: expected {difference.expected!r}, found 77.0" in text
    assert f"program (3, 0, 0), thread {owner.thread}, register 0 (element 42 of the tile)" in text
    assert "test_testing.py:" in text


def test_an_element_that_nobody_stores_is_said_to_have_no_owner(wrong: Wrong) -> None:
    wrong.at, wrong.value = 7, 99
    with pytest.raises(CheckError, match="stored by no program"):
        check(bump, 1, mx.arange(8), 8, 2, 5)


def test_tolerance_is_for_arithmetic_only(wrong: Wrong) -> None:
    """`y` is computed, `signs` only compared and cast."""
    x = mx.random.normal((70,), key=mx.random.key(5))
    out = (metile.empty(70, mx.float32), metile.empty(70, mx.int32), 70)
    right = mx.exp(x[40]).item()
    wrong.at, wrong.value = 40, right * (1 + 5e-6)
    report = check(activation, 3, x, *out)
    allowed = {(c.output, c.bitwise, c.rtol, c.atol) for c in report.comparisons}
    assert allowed == {("y", False, 1e-5, 1e-6), ("signs", True, 0.0, 0.0)}
    wrong.value = right * 1.01
    with pytest.raises(CheckError, match=r"cpu: y differs .* in 1 elements \(rtol 1e-05"):
        check(activation, 3, x, *out)
    assert check(activation, 3, x, *out, rtol=0.1).ok
    wrong.value = float("nan")
    with pytest.raises(CheckError, match="found nan"):
        check(activation, 3, x, *out, rtol=10.0, atol=10.0)


def test_nan_and_infinity_agree_with_themselves() -> None:
    x = mx.array([float("nan"), float("inf"), float("-inf"), 200.0, 0.0] * 8)
    assert check(activation, 2, x, metile.empty(40, mx.float32), metile.empty(40, mx.int32), 40).ok


@pytest.mark.emulator
@pytest.mark.faulty
def test_findings_of_the_checker_fail_the_check() -> None:
    with pytest.raises(CheckError) as caught:
        check(collide, 3, metile.empty(32, mx.int32), 32)
    findings = caught.value.report.findings
    assert findings is not None
    assert Fault.RACE in {each.fault for each in findings.findings}
    assert "data race on device memory y[0]" in str(caught.value)


def test_a_parameter_named_like_an_option_is_passed_by_position() -> None:
    assert check(bump, 1, mx.arange(8), 8, 2, 5).schedules == 3


@pytest.mark.emulator
def test_the_chosen_backend_runs_beside_the_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(report: CheckReport) -> list[str]:
        return [c.run for c in report.comparisons]

    arguments = (mx.arange(8), 8, 2, 5)
    assert runs(check(bump, 1, *arguments)) == ["cpu", "emulator"]
    assert runs(check(bump, 1, *arguments, backend="reference")) == ["emulator"]
    monkeypatch.setenv("METILE_BACKEND", "emulator")
    assert runs(check(bump, 1, *arguments)) == ["emulator"]


def test_without_clang_it_says_that_nothing_was_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "CANDIDATES", ("no-such-clang",))
    report = check(bump, 1, mx.arange(8), 8, 2, 5)
    assert report.ok
    assert report.findings is None
    assert [c.run for c in report.comparisons] == ["cpu"]
    assert "emulator: not run: the emulator needs clang 16 or newer" in str(report)


@metile.kernel
def scattered(x, y, rows, pitch, SIZE: metile.constexpr, OWNER: metile.constexpr):
    """Two stores, the second over a part of the first, which races; rows of a wider array."""
    source = metile.tensor(x, shape=(rows, SIZE))
    target = metile.tensor(y, shape=(rows, SIZE), strides=(pitch, 1), access="write")
    row = metile.program_id(0) + metile.program_id(1) * metile.num_programs(0)
    i = metile.arange(0, SIZE, layout=OWNER)
    value = source.load((row, i))
    target.store((row, SIZE - 1 - i), value)
    target.store((row, i), value, mask=(i < 7) & (row == 1))


@pytest.mark.faulty
@pytest.mark.parametrize("seed", range(6))
def test_owners_are_those_of_the_layout(seed: int) -> None:
    """SPEC L1: for every element, the thread that the layout names and the program of its row."""
    rng = Random(seed)
    size = 32 << seed % 3
    layout = random_layout(rng, size)
    rows, pitch = 5, size + 3
    x = mx.zeros((rows, size))
    dispatch = scattered[3, 2].prepare(
        x, metile.empty((rows, pitch), x.dtype), rows, pitch, SIZE=size, OWNER=layout, backend="cpu"
    )
    request = dispatch.reference_request()
    for at in [*rng.sample(range(rows * pitch), 12), pitch, pitch + 6, pitch + 7]:
        row, column = divmod(at, pitch)
        owner = find_owner(request, {"x": x}, Schedule(), "y", at)
        if column >= size:
            assert owner is None
            continue
        is_second = row == 1 and column < 7
        element = column if is_second else size - 1 - column
        assert owner is not None
        assert owner.program == (row % 3, row // 3, 0)
        assert (owner.element, owner.thread) == (element, layout.owner(element))
        assert owner.register == layout.register(element)
        assert ("mask=" in owner.loc.text) == is_second


@metile.kernel
def origins(x, a, b, c, d, n, flag):
    i = metile.arange(0, 32)
    source = metile.tensor(x, shape=n)
    value = source.load(i)
    moved = metile.where(value > 0, value, source.load(i // 2 + 1))
    metile.tensor(a, shape=n, access="write").store(i, moved)
    chosen = moved
    if flag:
        chosen = moved * 2
    metile.tensor(b, shape=n, access="write").store(i, chosen)
    metile.tensor(c, shape=n, access="write").store(i, metile.cast(value + 1, metile.i32))
    metile.tensor(d, shape=n, access="write").store(i, value, mask=value * 2 > 1)


def test_only_values_that_were_never_rounded_are_exact() -> None:
    x = mx.zeros(32)
    out = [metile.empty(32, mx.float32), metile.empty(32, mx.float32)]
    outputs = (*out, metile.empty(32, mx.int32), metile.empty(32, mx.float32))
    dispatch = origins[1].prepare(x, *outputs, 32, True, backend="cpu")
    assert exact_outputs(dispatch.reference_request().func) == {"a"}
