"""`metile.device_print` on every backend: who has which value, and who can't print."""

from __future__ import annotations

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx import emulator

TURNED = metile.ThreadLayout((4, 3, 2, 1, 0))
PRINTING = ("cpu", pytest.param("emulator", marks=pytest.mark.emulator))


@metile.kernel
def kinds(x, out, n, DTYPE: metile.constexpr):
    source = metile.tensor(x, shape=(n,))
    result = metile.tensor(out, shape=(n,), access="write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    value = metile.cast(source.load(i), DTYPE)
    metile.device_print(value, 'a label: 50% "quoted" \\n', mask=i == 1)
    metile.device_print(metile.program_id(0), "program")
    metile.device_print(value, mask=i == 33)
    result.store(i, source.load(i))


@metile.kernel
def turned(x, out, OWNER: metile.constexpr):
    i = metile.arange(0, 32)
    value = metile.tensor(x, shape=32).load(i)
    moved = metile.convert_layout(value, OWNER)
    metile.device_print(value, "before", mask=value == 3)
    metile.device_print(moved, "after", mask=moved == 3)
    metile.tensor(out, shape=32, access="write").store(metile.arange(0, 32, layout=OWNER), moved)


@metile.kernel
def branched(out, n, flag):
    if flag:
        metile.device_print(n, "taken")
    metile.tensor(out, shape=32, access="write").store(metile.arange(0, 32), n)


SHOWN = {
    "f32": "-2.5",
    "f16": "-2.5",
    "bf16": "-2.5",
    "i32": "-2",
    "u8": "254",
    "i64": "-2",
    "u64": "18446744073709551614",
    "bool_": "True",
}


@pytest.mark.parametrize("backend", PRINTING)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "i32", "i64", "bool_"])
def test_each_dtype_prints(backend: str, dtype: str, capfd: pytest.CaptureFixture[str]) -> None:
    x = mx.full((40,), -2.5)
    y = kinds[2](x, metile.empty(40, mx.float32), 40, DTYPE=getattr(metile, dtype), backend=backend)
    assert mx.array_equal(y, x)
    assert sorted(capfd.readouterr().err.splitlines()) == [
        f'a label: 50% "quoted" \\n: program (0, 0, 0), thread 1, register 0: {SHOWN[dtype]}',
        "program: program (0, 0, 0), thread 0, register 0: 0",
        "program: program (1, 0, 0), thread 0, register 0: 1",
        f"value: program (1, 0, 0), thread 1, register 0: {SHOWN[dtype]}",
    ]


@pytest.mark.parametrize("backend", PRINTING)
@pytest.mark.parametrize("dtype", ["u8", "u64"])
def test_unsigned_integers_print(
    backend: str, dtype: str, capfd: pytest.CaptureFixture[str]
) -> None:
    theirs = {"u8": mx.uint8, "u64": mx.uint64}[dtype]
    x = mx.zeros(40, theirs) - mx.array(2, theirs)
    y = kinds[2](x, metile.empty(40, theirs), 40, DTYPE=getattr(metile, dtype), backend=backend)
    mx.eval(y)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("value")]
    assert lines == [f"value: program (1, 0, 0), thread 1, register 0: {SHOWN[dtype]}"]


@pytest.mark.parametrize("backend", PRINTING)
def test_a_line_names_the_owner(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    """SPEC C1: after a conversion another thread has the element."""
    x = mx.arange(32)
    mx.eval(turned[1](x, metile.empty(32, mx.int32), OWNER=TURNED, backend=backend))
    assert sorted(capfd.readouterr().err.splitlines()) == [
        "after: program (0, 0, 0), thread 24, register 0: 3",
        "before: program (0, 0, 0), thread 3, register 0: 3",
    ]


@pytest.mark.parametrize("backend", PRINTING)
def test_only_the_branch_taken_prints(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    out = metile.empty(32, mx.int32)
    mx.eval(branched[1](out, 7, False, backend=backend))
    assert capfd.readouterr().err == ""
    mx.eval(branched[1](out, 7, True, backend=backend))
    assert capfd.readouterr().err == "taken: program (0, 0, 0), thread 0, register 0: 7\n"


@pytest.mark.emulator
def test_several_orders_of_threads_print_once(capfd: pytest.CaptureFixture[str]) -> None:
    with emulator.checked(schedules=4):
        mx.eval(branched[1](metile.empty(32, mx.int32), 7, True, backend="emulator"))
    assert capfd.readouterr().err.count("taken") == 1


def test_the_reference_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    y = branched[1](metile.empty(32, mx.int32), 7, True, backend="reference")
    assert y.tolist() == [7] * 32
    assert capfd.readouterr().err == ""


def test_metal_refuses_at_the_line_of_the_call() -> None:
    with pytest.raises(metile.UnsupportedError, match="compiled for metal can't print") as caught:
        branched[1].prepare(metile.empty(32, mx.int32), 7, True, target="metal")
    assert 'metile.device_print(n, "taken")' in str(caught.value)


@metile.kernel
def bad_label(out, n):
    metile.device_print(n, n)


@metile.kernel
def foreign_label(out, n):
    metile.device_print(n, "\N{GREEK SMALL LETTER LAMDA}")


@metile.kernel
def bad_mask(out, n):
    metile.device_print(metile.arange(0, 32), mask=n)


@metile.kernel
def wide_mask(out, n):
    metile.device_print(n, mask=metile.arange(0, 32) == 3)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (bad_label, "label is"),
        (foreign_label, "expected printable ASCII"),
        (bad_mask, "mask is i32, expected bool"),
        (wide_mask, "the mask is a tile and the value is a scalar"),
    ],
)
def test_bad_calls_are_refused(kernel: metile.Kernel, message: str) -> None:
    with pytest.raises(metile.CompileError, match=message):
        kernel[1].prepare(metile.empty(32, mx.int32), 7, backend="cpu")
