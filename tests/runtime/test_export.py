"""Graphs with Metal kernels written to a file on any machine (SPEC X2, F34)."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest

from metile_mlx import dtypes
from metile_mlx.emit.source import Argument, KernelSource
from metile_mlx.errors import MetileError, UnsupportedError
from metile_mlx.nn.softmax import softmax
from metile_mlx.runtime import export, metal

SOURCE = KernelSource(
    name="double_0123",
    language="msl",
    body="uint i = thread_position_in_grid.x;\ny[i] = x[i] * 2;",
    header="",
    inputs=(Argument("x", "X", dtypes.f32),),
    outputs=(Argument("y", "Y", dtypes.f32),),
    threads=32,
    threadgroup_bytes=0,
)
X = mx.arange(32, dtype=mx.float32)


def on_metal(x: mx.array) -> mx.array:
    (y,) = metal.register(SOURCE).launch([x], [x.shape], [x.dtype], (1, 1, 1), [-1])
    return y


@mx.custom_function
def wrapped(x: mx.array) -> mx.array:
    return x * 2


@wrapped.vjp
def wrapped_vjp(primals: mx.array, cotangent: mx.array, output: mx.array) -> mx.array:
    return cotangent * 2


def double(x: mx.array) -> mx.array:
    """A kernel as it chooses for itself: Metal while exporting, else plain MLX with a gradient."""
    return on_metal(x) if export.active_target() == "metal" else wrapped(x)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.mlxfn"


def quietly(path: Path, fn: Callable[..., mx.array], *examples: mx.array, **kwargs: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", export.ExportWarning)
        export.export(path, fn, *examples, **kwargs)


def test_the_target_is_active_only_inside() -> None:
    """SPEC X2."""
    assert export.active_target() is None
    with export.exporting():
        assert export.active_target() == "metal"
        with export.exporting("reference"):
            assert export.active_target() == "reference"
        assert export.active_target() == "metal"
    with pytest.raises(KeyError), export.exporting():
        raise KeyError
    assert export.active_target() is None


def test_another_thread_is_not_affected() -> None:
    seen: list[str | None] = []
    with export.exporting():
        thread = threading.Thread(target=lambda: seen.append(export.active_target()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_targets_that_cannot_be_written_are_refused(file: Path) -> None:
    for target in ("cpu", "vulkan"):
        with pytest.raises(
            UnsupportedError, match=rf"target '{target}' can't be exported; expected one of metal"
        ):
            export.export(file, double, X, target=target)
    assert not file.exists()


def test_the_graph_holds_the_kernel_and_no_reference(file: Path) -> None:
    """SPEC X2, F34: CustomKernel, no CustomTransforms, no expansion."""
    assert export.primitives(double, X) == ["CustomKernel"]
    quietly(file, double, X)
    stored = file.read_bytes()
    assert SOURCE.body.encode() in stored
    assert b"CustomTransforms" not in stored
    assert export.active_target() is None


def test_the_reference_target_writes_plain_operations(file: Path) -> None:
    names = export.primitives(lambda x: x * 2 + 1, X, target="reference")
    assert "CustomKernel" not in names
    quietly(file, lambda x: x * 2 + 1, X, target="reference")
    (y,) = mx.import_function(str(file))(X)
    assert mx.array_equal(y, X * 2 + 1).item()


def test_where_a_file_with_a_kernel_can_be_imported(file: Path) -> None:
    """SPEC X2: with Metal it runs; without, MLX refuses the file, which holds a GPU stream."""
    quietly(file, double, X)
    if metal.available() is None:
        (y,) = mx.import_function(str(file))(X)
        assert mx.array_equal(y, X * 2).item()
        return
    with pytest.raises(ValueError, match="Cannot make gpu stream without gpu backend"):
        mx.import_function(str(file))


@pytest.mark.parametrize("shapeless", [False, True])
def test_a_function_compiled_before_is_traced_anew(file: Path, shapeless: bool) -> None:
    """SPEC X2, F34: inlined into the trace; its compiled graph is not taken, nor replaced."""

    def unwrapped(x: mx.array) -> mx.array:
        return on_metal(x) if export.active_target() == "metal" else x * 2

    # MLX can't compile a custom_function without shapes.
    compiled = mx.compile(unwrapped if shapeless else double, shapeless=shapeless)
    for fn in (compiled, lambda x: compiled(x)):
        assert mx.array_equal(compiled(X), X * 2).item()
        assert export.primitives(fn, X) == ["CustomKernel"]
        quietly(file, fn, X)
        assert SOURCE.body.encode() in file.read_bytes()
        # The Metal graph has not entered the cache either: this would raise "No Metal back-end".
        assert mx.array_equal(compiled(X), X * 2).item()


def test_a_function_first_exported_then_compiled_runs_here(file: Path) -> None:
    compiled = mx.compile(double)
    quietly(file, compiled, X)
    assert mx.array_equal(compiled(X), X * 2).item()


@pytest.mark.parametrize("fn", [wrapped, mx.checkpoint(lambda x: x * 2)])
def test_custom_transforms_are_refused(file: Path, fn: Callable[[mx.array], mx.array]) -> None:
    """SPEC X2: MLX can't write them; nothing is left behind, and an older file stays."""
    file.write_bytes(b"older")
    for call in (lambda: export.export(file, fn, X), lambda: export.primitives(fn, X)):
        with pytest.raises(UnsupportedError) as error:
            call()
        assert str(error.value) == (
            "[export] the function contains CustomTransforms, which MLX can't write to a file\n"
            "hint: leave mx.custom_function and mx.checkpoint out of the exported function"
        )
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.read_bytes() == b"older"


def test_an_unknown_primitive_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC X2: an extension's primitive, such as that of the cpu backend."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise ValueError("[export_function] Unable to get state for primitive TileKernel")

    monkeypatch.setattr(mx, "export_function", refuse)
    with pytest.raises(
        UnsupportedError, match=r"contains TileKernel, which .*\nhint: don't force backend='cpu'"
    ):
        export.primitives(double, X)


def test_errors_of_the_function_pass_unchanged(file: Path) -> None:
    def failing(x: mx.array) -> mx.array:
        raise ValueError("the function's own error")

    with pytest.raises(ValueError, match=r"^the function's own error$"):
        export.export(file, failing, X)
    assert not file.exists()


def test_operations_left_on_the_cpu_are_listed(file: Path) -> None:
    """SPEC X2: traced without Metal, MLX's operations keep a CPU stream."""
    if metal.available() is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            export.export(file, lambda x: mx.exp(double(mx.exp(x))) + x, X)
        return
    with pytest.warns(export.ExportWarning) as caught:
        export.export(file, lambda x: mx.exp(double(mx.exp(x))) + x, X)
    (warning,) = caught
    assert "3 MLX operations keep a CPU stream" in str(warning.message)
    assert ": Add (1), Exp (2). " in str(warning.message)
    assert warning.filename == __file__


def test_a_graph_of_kernels_only_warns_of_nothing(file: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        export.export(file, double, X)


def test_fast_operations_traced_for_the_cpu_are_expanded() -> None:
    """The fact behind the warning's second sentence."""
    names = export.primitives(lambda x: mx.fast.rms_norm(x, None, 1e-5), X)
    assert ("RMSNorm" in names) == (metal.available() is None)


def test_shapeless_graphs_hold_no_kernels(file: Path) -> None:
    """SPEC X2: their grid and output shapes would stay those of the trace, as operations too."""
    for fn, target in ((double, "metal"), (softmax, "metal"), (softmax, "reference")):
        with pytest.raises(UnsupportedError, match="shapeless=True with kernels"):
            export.export(file, fn, X, shapeless=True, target=target)
    assert not file.exists()
    quietly(file, lambda x: mx.exp(x), X, shapeless=True, target="reference")
    (y,) = mx.import_function(str(file))(X[:5])
    assert mx.array_equal(y, mx.exp(X[:5])).item()


def test_keywords_metadata_and_several_outputs(file: Path) -> None:
    def fn(x: mx.array, *, scale: mx.array) -> list[mx.array]:
        return [mx.abs(x) * scale, x]

    quietly(file, fn, X, scale=X, metadata="a note", target="reference")
    imported, note = mx.import_function(str(file), return_metadata=True)
    assert note == "a note"
    first, second = imported(X, scale=X)
    assert mx.array_equal(first, X * X).item()
    assert mx.array_equal(second, X).item()


def test_the_file_is_written_where_asked(tmp_path: Path) -> None:
    quietly(tmp_path / "plain", double, X)
    assert (tmp_path / "plain").stat().st_mode & 0o777 == 0o644
    with pytest.raises(MetileError, match=r"can't write '.*nowhere/f': No such file or directory"):
        export.export(tmp_path / "nowhere" / "f", double, X)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_initial_values_are_in_the_file(file: Path) -> None:
    """SPEC K7: MLX's callback does not show them, the file holds them."""

    def zeroed(x: mx.array) -> mx.array:
        (y,) = metal.register(SOURCE).launch([x], [x.shape], [x.dtype], (1, 1, 1), [-2])
        return y

    quietly(file, on_metal, X)
    plain = file.read_bytes()
    quietly(file, zeroed, X)
    # An optional float: its flag, and four more bytes when it is there.
    assert len(file.read_bytes()) == len(plain) + 4
