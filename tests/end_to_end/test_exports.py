"""Models with kernels of the public API, traced for a Mac on any machine (SPEC X2, F34)."""

from __future__ import annotations

import warnings
from pathlib import Path

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.runtime.export import primitives
from metile_mlx.runtime.record import capture
from tests.support.public import parameter_names, parameters


@metile.kernel
def scale(x, w, y, rows, COLUMNS: metile.constexpr):
    source = metile.tensor(x, shape=(rows, COLUMNS), access="read")
    weights = metile.tensor(w, shape=(COLUMNS,), access="read")
    target = metile.tensor(y, shape=(rows, COLUMNS), access="write")
    row, i = metile.program_id(0), metile.arange(0, 64)
    target.store((row, i), source.load((row, i)) * weights.load(i))


@metile.kernel
def partial(x, y, n, limit):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="read_write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    target.store(i, source.load(i) + target.load(i), mask=i < limit)


@metile.kernel
def spread(x, y, n):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(32,), access="write")
    i = metile.arange(0, 32)
    target.store(i, source.load(i % n))


def scaled(x: mx.array, w: mx.array) -> mx.array:
    rows, columns = x.shape
    out = metile.empty(x.shape, x.dtype)
    return scale[(rows,)](x, w, out, rows, COLUMNS=columns)


def model(x: mx.array, w: mx.array) -> mx.array:
    return mx.tanh(scaled(x * 2, w)) + scaled(x, w)


X, W = mx.random.normal((3, 40)), mx.random.normal((40,))


def test_the_graph_holds_the_kernels_and_no_reference() -> None:
    """SPEC X2, F34: CustomKernel, no CustomTransforms, no expansion; nothing to ask of a Mac."""
    assert sorted(primitives(model, X, W)) == sorted(
        ["CustomKernel", "CustomKernel", "Broadcast", "Multiply", "Tanh", "Add"]
    )


def test_a_compiled_model_exports() -> None:
    """SPEC X2: after it ran here, and it runs here again afterwards."""
    compiled = mx.compile(model)
    expected = model(X, W)
    assert mx.allclose(compiled(X, W), expected)
    assert primitives(compiled, X, W).count("CustomKernel") == 2
    assert mx.allclose(compiled(X, W), expected)


CANNOT = {
    "vjp": lambda x: mx.grad(lambda x: model(x, W).sum())(x),
    "jvp": lambda x: mx.jvp(lambda x: model(x, W), [x], [x])[1][0],
    "vmap": lambda x: mx.vmap(lambda x: model(x, W))(x[None]),
}


@pytest.mark.parametrize("name", CANNOT)
def test_transforms_that_cannot_be_written(name: str) -> None:
    """SPEC X2, X7: our error, which says what to do."""
    with pytest.raises(metile.UnsupportedError) as caught:
        primitives(CANNOT[name], X)
    change = "export the function without its gradient, or with target='reference'"
    assert str(caught.value) == (
        f"[export] the function takes the {name} of a Metal kernel, which MLX does not know, and "
        "ours is a custom_function that it can't write to a file\n"
        f"hint: {'use metile.vmap' if name == 'vmap' else change}"
    )


def test_metile_vmap_exports() -> None:
    """SPEC X7: one kernel for each entry of the batch."""
    batched = metile.vmap(scaled, (0, None))
    assert primitives(batched, mx.stack([X, X]), W).count("CustomKernel") == 2


def test_export_writes_a_file_and_warns_of_operations_left_on_the_cpu(tmp_path: Path) -> None:
    """F34: from a machine without Metal; calls after it run here as before."""
    path = tmp_path / "model.mlxfn"
    if mx.metal.is_available():
        metile.export(path, model, X, W, target="metal")
    else:
        with pytest.warns(metile.ExportWarning, match=r"4 MLX operations keep a CPU stream"):
            metile.export(path, model, X, W, target="metal")
    data = path.read_bytes()
    assert b"CustomKernel" in data
    assert b"custom_kernel_scale_" in data
    assert b"CustomTransforms" not in data
    assert mx.allclose(scaled(X, W), X * W)


def test_export_of_a_kernel_alone_warns_of_nothing(tmp_path: Path) -> None:
    metile.export(tmp_path / "kernel.mlxfn", scaled, X, W, target="metal")
    assert primitives(scaled, X, W) == ["CustomKernel"]


def test_the_reference_exports_and_imports_anywhere(tmp_path: Path) -> None:
    """F34: the fallback goes into a file only when asked for."""
    path = tmp_path / "model.mlxfn"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", metile.ExportWarning)
        metile.export(path, model, X, W, target="reference")
    assert b"CustomKernel" not in path.read_bytes()
    (made,) = mx.import_function(str(path))(X, W)
    assert mx.allclose(made, model(X, W))


def test_written_masks_are_merged_in_the_graph() -> None:
    """SPEC K7: the read_write output of a partial store is a select over the written mask."""
    x, y = mx.ones((40,)), mx.zeros((40,))
    names = primitives(lambda x, y: partial[(2,)](x, y, 40, 7), x, y)
    assert names == ["CustomKernel", "Select"]


def test_a_forced_backend_that_cannot_be_written_says_so() -> None:
    def forced(x: mx.array, w: mx.array) -> mx.array:
        out = metile.empty(x.shape, x.dtype)
        return scale[(3,)](x, w, out, 3, COLUMNS=40, backend="cpu")

    with pytest.raises(metile.UnsupportedError) as caught:
        primitives(forced, X, W)
    assert caught.value.hint == (
        "don't force backend='cpu' inside an exported function: only Metal kernels can be written"
    )


def test_the_environment_does_not_reach_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """F34: METILE_BACKEND says where to run, the target of an export what to write."""
    monkeypatch.setenv("METILE_BACKEND", "reference")
    assert primitives(scaled, X, W) == ["CustomKernel"]


def test_the_msl_of_a_dispatch_is_the_text_in_the_graph() -> None:
    """SPEC K7, X2."""
    out = metile.empty(X.shape, X.dtype)
    dispatch = scale[(3,)].prepare(X, W, out, 3, COLUMNS=40)
    assert dispatch.execution_report.backend == "cpu"
    metal = scale[(3,)].prepare(X, W, out, 3, COLUMNS=40, target="metal")

    def traced(x: mx.array, w: mx.array) -> mx.array:
        return scaled(x, w)

    texts: list[str] = []

    def record(event: dict[str, object]) -> None:
        if event["type"] == "primitive" and event["name"] == "CustomKernel":
            texts.append(event["arguments"][1])  # type: ignore[index]

    with metile.runtime.export.exporting("metal"):
        mx.export_function(record, traced, X, W)
        (kernel,) = capture(traced, X, W)
    assert texts == [metal.msl] == [dispatch.msl] == [kernel.text]
    assert (kernel.grid, kernel.threadgroup) == ((3 * 64, 1, 1), (64, 1, 1))
    assert kernel.math_mode in ("safe", None)
    assert kernel.ensure_row_contiguous
    assert parameter_names(kernel.text)[:4] == ["x", "w", "rows", "y"]


@pytest.mark.parametrize(
    ("shape", "space"),
    [((), "constant"), ((1,), "constant"), ((7,), "constant"), ((8,), "device"), ((9,), "device")],
)
def test_inputs_are_pointers_of_any_size(shape: tuple[int, ...], space: str) -> None:
    """F08, F09, SPEC X1: a 0-d array is no reference, and nothing aliases an address space."""
    w = mx.zeros(shape)

    def call(w: mx.array) -> mx.array:
        return spread[(1,)](w, metile.empty((32,), metile.f32), w.size)

    with metile.runtime.export.exporting("metal"):
        (kernel,) = capture(call, w)
    assert parameters(kernel.text)[0] == f"const {space} float* x [[buffer(0)]]"
    assert kernel.text.count("device") == (2 if space == "device" else 1)


@pytest.mark.parametrize("mode", ["safe", "relaxed", "fast"])
def test_the_math_mode_reaches_mlx(mode: str) -> None:
    """F24, SPEC K8."""

    def relaxed(x: mx.array, w: mx.array) -> mx.array:
        out = metile.empty(x.shape, x.dtype)
        return scale[(3,)](x, w, out, 3, COLUMNS=40, math_mode=mode)

    with metile.runtime.export.exporting("metal"):
        (kernel,) = capture(relaxed, X, W)
    assert kernel.math_mode in (mode, None)


@pytest.mark.parametrize("programs", [(24, 1, 1), (24, 64, 1), (257, 1, 1)])
def test_the_recorded_grid_counts_threads(programs: tuple[int, int, int]) -> None:
    """F15: programs x threads along x, programs along y and z."""

    @metile.kernel
    def numbers(y, n):
        target = metile.tensor(y, shape=(n, 256), access="write")
        p = metile.program_id(0) + metile.program_id(1) * metile.num_programs(0)
        i = metile.arange(0, 256)
        target.store((p, i), p * 256 + i + 1)

    count = programs[0] * programs[1]

    def launched() -> mx.array:
        return numbers[programs](metile.empty((count, 256), mx.int32), count)

    with metile.runtime.export.exporting("metal"):
        (kernel,) = capture(launched)
    assert kernel.grid == (programs[0] * 256, programs[1], programs[2])
    assert kernel.threadgroup == (256, 1, 1)
    assert mx.array_equal(launched().flatten(), mx.arange(1, count * 256 + 1))
