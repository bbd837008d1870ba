"""`patched()` emulates kernels in its block, as on a Mac for the modules named, and undoes it."""

from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import pytest

from metile_mlx.emulator import patch
from metile_mlx.emulator.kernel import EmulatedKernel

MODULE = """
import mlx.core as mx

def make():
    if not mx.metal.is_available():
        return None
    return mx.fast.metal_kernel(
        name="twice", input_names=["x"], output_names=["y"],
        source="uint i = thread_position_in_grid.x; y[i] = x[i] + x[i];",
    )

kernel = make()

def twice(x):
    if kernel is None or mx.default_device() != mx.gpu or not mx.metal.is_available():
        return None
    return kernel(
        inputs=[x], output_shapes=[x.shape], output_dtypes=[x.dtype],
        grid=(x.size, 1, 1), threadgroup=(min(x.size, 32), 1, 1),
    )[0]
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tmp_path / "guarded_kernels"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "twice.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "guarded_kernels.twice"


@pytest.mark.emulator
def test_a_module_that_asks_for_metal_runs_in_the_block_and_not_after(package: str) -> None:
    real, device = mx.fast.metal_kernel, mx.default_device()
    with patch.patched(package) as (module,):
        assert isinstance(module.kernel, EmulatedKernel)
        assert not mx.metal.is_available()
        assert mx.default_device() == device
        assert module.twice(mx.arange(5)).tolist() == [0, 2, 4, 6, 8]
        assert module.kernel.launches == 1
    assert mx.fast.metal_kernel is real
    assert package not in sys.modules


def test_loaded_modules_come_back_as_they_were(package: str) -> None:
    parent = __import__(package)
    before = sys.modules[package]
    with patch.patched(package) as (module,):
        assert parent.twice is module is not before
    assert parent.twice is before is sys.modules[package]
    assert before.mx is mx
    assert before.twice(mx.arange(5)) is None


@pytest.mark.emulator
def test_a_package_is_imported_anew_with_its_submodules(package: str) -> None:
    __import__(package)
    with patch.patched("guarded_kernels"):
        again = sys.modules[package]
        assert isinstance(again.kernel, EmulatedKernel)
        assert again.twice(mx.arange(3)).tolist() == [0, 2, 4]


def test_an_error_in_the_block_undoes_the_patch(package: str) -> None:
    real = mx.fast.metal_kernel
    with pytest.raises(RuntimeError, match="stop"), patch.patched(package):
        raise RuntimeError("stop")
    assert mx.fast.metal_kernel is real


def test_a_module_that_is_not_installed_is_named() -> None:
    real = mx.fast.metal_kernel
    with pytest.raises(ImportError, match="no_such_module"), patch.patched("no_such_module"):
        pass
    assert mx.fast.metal_kernel is real
    assert not mx.metal.is_available()


def test_kernels_made_by_the_caller_are_emulated() -> None:
    with patch.patched():
        kernel = mx.fast.metal_kernel(
            name="one", input_names=["x"], output_names=["y"], source="y[0] = x[0] + 1;"
        )
    assert isinstance(kernel, EmulatedKernel)
