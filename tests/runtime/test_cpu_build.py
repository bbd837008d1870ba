"""Building CPU kernels: one compilation each, errors with the compiler's words (SPEC X4, X6)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from metile_mlx.dtypes import f32
from metile_mlx.errors import BackendError, CompileError
from metile_mlx.runtime import cpu, cpu_module, toolchain
from metile_mlx.runtime.toolchain import CompilerFailed, Toolchain
from tests.support.cpu_kernels import kernel_source, pointwise

ROOT = Path(__file__).resolve().parents[2]


def result(kernel: cpu.CpuKernel, n: int = 4) -> list[float]:
    x = mx.arange(n, dtype=mx.float32)
    out: list[float] = kernel.launch([x], [n], [(n,)], [f32], (1,), [-1])[0].tolist()
    return out


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text handed to the compiler during the test."""
    texts: list[str] = []
    original = Toolchain.compile_kernel

    def record(self: Toolchain, text: str, folder: Path) -> Path:
        texts.append(text)
        return original(self, text, folder)

    monkeypatch.setattr(Toolchain, "compile_kernel", record)
    return texts


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache folder without kernels; the module that is loaded stays."""
    cpu.available()
    monkeypatch.setenv("METILE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_kernel_is_compiled_once_and_found_again(
    empty_cache: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    toolchain.find()
    del compilations[:]
    source = pointwise("once", "x[i] + 41.0f")
    assert cpu.build(source) is cpu.build(source)
    monkeypatch.setattr(cpu, "_kernels", {})
    assert result(cpu.build(source)) == [41, 42, 43, 44]
    assert len(compilations) == 1


def test_a_damaged_file_of_the_cache_is_made_anew(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = pointwise("damaged", "x[i] + 3.0f")
    monkeypatch.setattr(cpu, "_kernels", {})

    def publish(filename: str, build: Callable[[Path], Path]) -> Path:
        path = original(filename, build)
        if not damaged:
            damaged.append(path)
            path.write_bytes(path.read_bytes()[:100])
        return path

    toolchain.find()
    damaged: list[Path] = []
    original = cpu.cache.publish
    monkeypatch.setattr(cpu.cache, "publish", publish)
    assert result(cpu.build(source)) == [3, 4, 5, 6]
    assert len(damaged) == 1


def test_text_header_and_arguments_make_another_kernel_f02() -> None:
    source = pointwise("keyed", "x[i] + 1.0f")
    others = [
        replace(source, body=source.body.replace("1.0f", "2.0f")),
        replace(source, header=source.header + "\nstatic int unused;"),
        replace(source, name="renamed"),
        replace(source, outputs=(replace(source.outputs[0], param="another"),)),
    ]
    assert len({cpu.build(each) for each in [source, *others, source]}) == 5


def test_many_kernels_in_one_compilation(empty_cache: Path, compilations: list[str]) -> None:
    """Helpers of one name and different bodies stay apart, macros too."""
    toolchain.find()
    del compilations[:]
    sources = [
        replace(
            pointwise(f"many{k % 2}", f"helper(x[i]) + {k}.0f"),
            header=f"#include <cmath>\nstatic float helper(float v) {{ return v * {k}.0f; }}",
        )
        for k in range(9)
    ]
    kernels = cpu.build_many([*sources, sources[0]])
    assert [result(kernel)[3] for kernel in kernels] == [4 * k for k in range(9)] + [0]
    assert len(compilations) == 1
    assert cpu.build(sources[5]) is kernels[5]
    assert len(compilations) == 1


@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_both_compilers_give_one_result(compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", compiler)
    assert toolchain.find().command == (compiler,)
    kernel = cpu.build(pointwise("both", "x[i] * 0.1f + 1.0f / 3.0f"))
    x = mx.arange(4, dtype=mx.float32)
    # Contracted to a fused multiply-add some of these would round differently.
    assert result(kernel) == (x * 0.1 + mx.array(1.0) / 3).tolist()


def test_a_text_that_does_not_compile_shows_the_message_and_is_kept(empty_cache: Path) -> None:
    source = kernel_source("broken", "out[program] = no_such_name;", {"x": f32}, {"out": f32})
    with pytest.raises(CompileError) as error:
        cpu.build(source)
    assert "can't compile kernel broken:" in error.value.message
    assert "no_such_name" in error.value.message
    assert error.value.hint is not None
    kept = Path(error.value.hint.rpartition(" ")[2])
    assert kept.parent.parent == empty_cache
    assert "out[program] = no_such_name;" in kept.read_text()
    with pytest.raises(CompileError):
        cpu.build(source)


def test_a_missing_compiler_makes_cpu_unavailable_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cpu.available() is None
    monkeypatch.setenv("CXX", "/no/such/compiler")
    reason = cpu.available()
    assert reason is not None
    assert reason.startswith("the C++ compiler CXX=/no/such/compiler can't be used: not found")
    with pytest.raises(BackendError, match="CXX=/no/such/compiler"):
        cpu.build(pointwise("nowhere", "x[i]"))


def test_four_processes_build_the_same_kernel_at_once(tmp_path: Path) -> None:
    program = """
import mlx.core as mx
from metile_mlx.dtypes import f32
from metile_mlx.runtime import cache, cpu, cpu_module, toolchain
from tests.support.cpu_kernels import pointwise
assert cpu.available() is None, cpu.available()
input()
kernel = cpu.build(pointwise("raced", "x[i] + 5.0f"))
print(kernel.launch([mx.ones(3)], [3], [(3,)], [f32], (1,), [-1])[0].tolist())
"""
    # The module itself takes seconds to build: linked from the cache of the tests.
    assert cpu.available() is None
    folder = tmp_path / "cache"
    folder.mkdir(0o700)
    for module in toolchain.cache.folder().glob(f"{cpu_module.NAME}*.so"):
        (folder / module.name).symlink_to(module)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "METILE_CACHE_DIR": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0] for process in processes] == [
        "[6.0, 6.0, 6.0]\n"
    ] * 4
    assert len(list(folder.glob("kernel-*.so"))) == 1
    assert not list(folder.glob("build-*"))


@pytest.fixture
def fresh_module(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> Callable[[str], None]:
    """Makes the next `available()` load a module again; its object files come from a text."""
    monkeypatch.setattr(cpu_module, "_loaded", [])

    def use(initialiser: str) -> None:
        def run(self: Toolchain, arguments: list[str]) -> None:
            target = Path(arguments[arguments.index("-o") + 1])
            text = target.with_suffix(".c.cpp")
            text.write_text(f'extern "C" void* PyInit_{cpu_module.NAME}() {{ {initialiser} }}')
            if arguments[0] == "-shared":
                subprocess.run(
                    [*self.command, "-shared", "-fPIC", str(text), "-o", str(target)], check=True
                )

        toolchain.find()
        monkeypatch.setattr(Toolchain, "run", run)

    return use


def test_a_module_that_crashes_does_so_in_another_process(
    fresh_module: Callable[[str], None], empty_cache: Path
) -> None:
    fresh_module("__builtin_trap();")
    reason = cpu.available()
    assert reason is not None
    assert "a process that imported it was killed by signal" in reason
    assert not list(empty_cache.glob(f"{cpu_module.NAME}*.so"))


def test_a_module_that_fails_to_import_gives_its_reason(
    fresh_module: Callable[[str], None],
) -> None:
    fresh_module("return 0;")
    reason = cpu.available()
    assert reason is not None
    assert "a process that imported it failed: SystemError" in reason


def test_files_of_the_present_folder_do_not_stand_for_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may be started in a folder with an mlx.py that it does not import."""
    module = cpu_module.MODULE.built(toolchain.find())
    (tmp_path / "mlx.py").write_text("raise AssertionError")
    monkeypatch.chdir(tmp_path)
    cpu_module._check(module)


def test_a_module_that_does_not_compile_gives_the_message(
    fresh_module: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(self: Toolchain, arguments: list[str]) -> None:
        raise CompilerFailed("nb_combined.cpp:1: fatal error: no such header")

    fresh_module("")
    monkeypatch.setattr(Toolchain, "run", run)
    reason = cpu.available()
    assert reason is not None
    assert "can't build the module of the cpu backend:\nnb_combined.cpp:1: fatal" in reason
