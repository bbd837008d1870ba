"""Kernel texts compiled by nvcc as MLX assembles them, without a GPU (SPEC X3, X9)."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.emit.source import KernelSource
from metile_mlx.errors import CompileError
from metile_mlx.runtime import cuda, cuda_compile
from metile_mlx.runtime.cuda_compile import Compiled
from tests.emit import test_operations as arithmetic
from tests.end_to_end import test_sums as sums
from tests.support import cuda_cases, cuda_words

pytestmark = pytest.mark.nvcc
REGISTERS = 65536


@cache
def texts() -> tuple[KernelSource, ...]:
    """Every mechanism, dtype, register tile, sum and group; every operation and cast."""
    cases = [*cuda_words.words(), *cuda_cases.all_cases()]
    operations = [s for name, s in arithmetic.SOURCES.items() if name.startswith("msl_")]
    found = [*(case.source for case in cases), *operations]
    return (*found, *(replace(source, math_mode="fast") for source in found[::10]))


@cache
def compiled() -> tuple[Compiled, ...]:
    return tuple(cuda_compile.compile_all(texts()))


def test_every_text_compiles() -> None:
    assert len(texts()) > 200
    assert len(compiled()) == len(texts())


def test_every_threadgroup_fits_the_registers() -> None:
    """X9: the bound reaches the kernel whose definition MLX writes, and ptxas keeps it."""
    for source, made in zip(texts(), compiled(), strict=True):
        assert made.bound == source.threads, source.name
        assert made.registers * source.threads <= REGISTERS, source.name
        assert made.spilled_bytes == 0, source.name


def test_shared_memory_is_what_the_source_says() -> None:
    """Random programs reduce for nothing at times: nvcc drops memory that decides no result."""
    found = [
        (made.shared_bytes, source.threadgroup_bytes, source.name)
        for source, made in zip(texts(), compiled(), strict=True)
        if "threadgroup " in source.body and source.threadgroup_bytes
    ]
    for used, asked, name in found:
        assert used <= asked, name
    assert sum(used == asked for used, asked, _ in found) > 0.9 * len(found)


def test_groups_are_16_bytes_wide() -> None:
    """SPEC V1, V2: four f32 or eight of 16 bits, one instruction; scalars stand beside it."""
    found = dict(zip(texts(), compiled(), strict=True))
    seen = 0
    for case in cuda_cases.rows():
        made = found[case.source]
        if "adjacent" in case.name:
            registers = int(case.name.partition(" ")[0])
            groups = registers // (16 // case.source.outputs[0].dtype.bytes)
            assert (made.wide_loads, made.wide_stores) == (groups, groups), case.name
            seen += groups > 0
        if "striped" in case.name:
            assert made.wide_loads == made.wide_stores == 0, case.name
    assert seen == 12 + 2 * 6


def test_r5_ranges_remove_conditions() -> None:
    """A row that fills its block needs no bounds check: two loads and a store of eight have none.

    nvcc knows the bound on the thread index itself, so its branches are no more without ranges.
    """
    x = mx.zeros((4, 1024))
    dispatch = sums.rmsnorm[(4,)].prepare(
        x, mx.zeros((1024,)), metile.empty(x.shape, x.dtype), 1e-5, N=1024, BLOCK=1024,
        LAYOUT=sums.layout(1024, 8), backend="reference",
    )  # fmt: skip
    known, forgotten = (dispatch.device_code(propagate_ranges=on) for on in (True, False))
    assert forgotten.conditions == known.conditions + 3 * 8
    assert known.branches <= forgotten.branches


def heavy() -> metile.Dispatch:
    """1024 threads, each with 32 values and 32 weights."""
    x, w = mx.zeros((1, 32768)), mx.zeros((32768,))
    return sums.rmsnorm[(1,)].prepare(
        x, w, metile.empty(x.shape, x.dtype), 1e-5, N=32768, BLOCK=32768,
        LAYOUT=sums.layout(32768, 32), backend="reference",
    )  # fmt: skip


def test_1024_threads_of_a_kernel_that_would_need_more_than_64_registers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """X9: more could never be launched; what does not fit is spilled, which is reported."""
    bound = heavy().device_code()
    assert (bound.bound, bound.registers <= 64) == (1024, True)
    whole = cuda.helpers
    monkeypatch.setattr(cuda, "helpers", lambda s: whole(s).replace("__launch_bounds__(1024)", ""))
    free = heavy().device_code()
    assert free.bound == 0
    assert free.registers > 64


@pytest.mark.parametrize("where", ["body", "header"])
def test_a_refused_text_shows_its_msl_line(where: str) -> None:
    """X9: of the right kernel among many."""
    good = texts()[:2]
    source = replace(texts()[2], name="broken_0")
    if where == "body":
        source = replace(source, body="uint a = 1u;\nuint b = a + missing;\n")
    else:
        source = replace(source, header="inline float f(float x) {\n  return x + missing;\n}\n")
    with pytest.raises(CompileError, match=r"kernel broken_0: the compiler refuses") as raised:
        cuda_compile.compile_all([*good, source])
    file = {"body": cuda.BODY_FILE, "header": cuda.HELPERS_FILE}[where]
    assert f'{file}:2: identifier "missing" is undefined' in str(raised.value)
    assert "+ missing;" in str(raised.value)


def test_the_complete_text_compiles_as_mlx_assembles_it(tmp_path: Path) -> None:
    """The batches above put each kernel into a namespace; this one is where MLX looks for it."""
    case = next(iter(cuda_cases.rows()))
    source = cuda.named(case.source)
    text, ptx = tmp_path / "kernel.cu", tmp_path / "kernel.ptx"
    text.write_text(cuda_compile.INCLUDES + cuda.complete_text(source), encoding="ascii")
    command = [str(cuda_compile.toolkit()), "-ptx", f"-arch={cuda_compile.ARCHITECTURE}"]
    subprocess.run([*command, "-std=c++17", "-w", str(text), "-o", str(ptx)], check=True)
    name = f"custom_kernel_{source.name}"
    assert f".entry _ZN3mlx4core2cu{len(name)}{name}E" in ptx.read_text()
    assert f".maxntid {source.threads}" in ptx.read_text()
