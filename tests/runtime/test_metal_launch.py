"""Registration and launch of Metal kernels, with MLX's registrar stubbed (SPEC X1, X8, X9)."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from metile_mlx import dtypes
from metile_mlx.emit.source import Argument, KernelSource
from metile_mlx.errors import CompileError, LaunchError, OutOfResources
from metile_mlx.runtime import metal
from metile_mlx.runtime.cpu import mlx_dtypes

BODY = "uint i = thread_position_in_grid.x;\ny[i] = x[i];"
SOURCE = KernelSource(
    name="copy_0123",
    language="msl",
    body=BODY,
    header="",
    inputs=(Argument("x", "X", dtypes.f32), Argument("n", "N", dtypes.i32, is_scalar=True)),
    outputs=(Argument("y", "Y", dtypes.f32),),
    threads=64,
    threadgroup_bytes=0,
)
X = mx.zeros((5, 8))
N = mx.array([3], mx.int32)


class Registrar:
    """Stands for `mx.fast.metal_kernel`: keeps what it is given, launches lazily on any machine."""

    def __init__(self) -> None:
        self.built: list[dict[str, Any]] = []
        self.launched: list[dict[str, Any]] = []

    def __call__(self, **arguments: Any) -> Any:
        self.built.append(arguments)
        return self.launch

    def launch(self, **call: Any) -> list[mx.array]:
        self.launched.append(call)
        shapes, kinds = call["output_shapes"], call["output_dtypes"]
        return [mx.ones(shape, dtype) for shape, dtype in zip(shapes, kinds, strict=True)]


class OldRegistrar(Registrar):
    """An MLX without `compile_options`."""

    def __call__(self, **arguments: Any) -> Any:
        if "compile_options" in arguments:
            raise TypeError("metal_kernel(): incompatible function arguments.")
        return super().__call__(**arguments)


@pytest.fixture
def registrar() -> Registrar:
    return Registrar()


def launch(registrar: Registrar, source: KernelSource = SOURCE, **changes: Any) -> list[mx.array]:
    call: dict[str, Any] = {
        "inputs": [X, N],
        "shapes": [(5, 8)],
        "dtypes": [mx.float32],
        "grid": (1, 1, 1),
        "init": [-1],
    }
    return metal.build(source, registrar).launch(**{**call, **changes})


def test_what_is_known_before_a_launch_is_checked_and_made_once(registrar: Registrar) -> None:
    """A bound launch hands MLX what `launch` does, and refuses outputs before any input."""
    kernel = metal.build(SOURCE, registrar)
    call = kernel.bind([(5, 8)], [mx.float32], (1, 1, 1), [-2])
    assert registrar.launched == []
    for _ in range(2):
        call([X, N])
    launch(registrar, init=[-2])
    one, two, whole = registrar.launched
    assert one == two == whole
    assert one["output_shapes"] is two["output_shapes"]
    for wrong in (
        ([(5, 8)], [mx.float16], (1, 1, 1), [-1]),
        ([(5, 8)], [mx.float32], (1, 1, 1), [0]),
        ([], [], (1, 1, 1), []),
        ([(5, 8)], [mx.float32], (1, 1, -1), [-1]),
    ):
        with pytest.raises(LaunchError, match="kernel copy_0123"):
            kernel.bind(*wrong)


def test_registration_passes_the_source_as_it_is(registrar: Registrar) -> None:
    """SPEC X1."""
    kernel = metal.build(replace(SOURCE, header="// h\n", math_mode="fast"), registrar)
    assert registrar.built == [
        {
            "name": "copy_0123",
            "input_names": ["x", "n"],
            "output_names": ["y"],
            "source": BODY,
            "header": "// h\n",
            "compile_options": {"math_mode": "fast"},
        }
    ]
    assert kernel.math_mode == "fast"


def test_an_mlx_without_math_modes_still_registers() -> None:
    """F24: the option is detected by trying it, and its absence is visible."""
    old = OldRegistrar()
    kernel = metal.build(SOURCE, old)
    assert [sorted(call) for call in old.built] == [
        ["header", "input_names", "name", "output_names", "source"]
    ]
    assert kernel.math_mode is None


def test_a_wrong_call_of_the_registrar_is_not_hidden() -> None:
    def broken(**arguments: Any) -> Any:
        raise TypeError("something else")

    with pytest.raises(TypeError, match="something else"):
        metal.build(SOURCE, broken)


@pytest.mark.parametrize(
    ("grid", "threads", "expected"),
    [
        ((24, 1, 1), 256, (24 * 256, 1, 1)),
        ((24, 64, 1), 256, (24 * 256, 64, 1)),
        ((257, 1, 1), 256, (257 * 256, 1, 1)),
        ((2, 3, 5), 32, (64, 3, 5)),
    ],
)
def test_mlx_gets_its_grid_in_threads(
    registrar: Registrar,
    grid: tuple[int, int, int],
    threads: int,
    expected: tuple[int, int, int],
) -> None:
    """F15, F20: groups times group size along x, the other axes as given."""
    launch(registrar, replace(SOURCE, threads=threads), grid=grid)
    (call,) = registrar.launched
    assert call["grid"] == expected
    assert call["threadgroup"] == (threads, 1, 1)


def test_the_largest_grids_that_can_be_counted() -> None:
    """SPEC X8: an error one past the limit of an axis and of the total, never a wrap."""
    assert metal.grid_in_threads("k", (2**25 - 1, 1, 1), 64) == (2**31 - 64, 1, 1)
    with pytest.raises(
        OutOfResources, match=r"kernel k: grid .* 2147483648 threads along x; allowed"
    ):
        metal.grid_in_threads("k", (2**25, 1, 1), 64)
    with pytest.raises(OutOfResources, match="2147483648 threads along z"):
        metal.grid_in_threads("k", (1, 1, 2**31), 32)
    assert metal.grid_in_threads("k", (1, 2**16 - 1, 2**11), 32) == (32, 2**16 - 1, 2**11)
    with pytest.raises(OutOfResources, match="4294967296 threads in all; allowed are 4294967295"):
        metal.grid_in_threads("k", (1, 2**16, 2**11), 32)


@pytest.mark.parametrize("grid", [(1, 1), (1, 1, 1, 1), (-1, 1, 1), (1, 1, -2)])
def test_a_malformed_grid_is_refused(registrar: Registrar, grid: tuple[int, ...]) -> None:
    with pytest.raises(LaunchError, match=r"grid is .*; expected three integers >= 0, in programs"):
        launch(registrar, grid=grid)
    assert not registrar.launched


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 64)])
def test_empty_outputs_launch_nothing(registrar: Registrar, shape: tuple[int, ...]) -> None:
    """F12."""
    (y,) = launch(registrar, inputs=[mx.zeros(shape), N], shapes=[shape])
    assert (y.shape, y.dtype) == (shape, mx.float32)
    assert not registrar.launched


@pytest.mark.parametrize("grid", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_no_programs_give_zeros(registrar: Registrar, grid: tuple[int, int, int]) -> None:
    """F12, SPEC K7: what no program stores is zero."""
    (y,) = launch(registrar, grid=grid)
    assert not registrar.launched
    assert mx.array_equal(y, mx.zeros((5, 8))).item()


def test_an_empty_array_beside_others_is_never_bound(registrar: Registrar) -> None:
    """F12: buffers without memory are replaced by one element that bounds keep out of reach."""
    source = replace(SOURCE, outputs=(*SOURCE.outputs, Argument("z", "Z", dtypes.f16)))
    y, z = launch(
        registrar,
        source,
        inputs=[mx.zeros((0, 4)), N],
        shapes=[(2,), (0, 3)],
        dtypes=[mx.float32, mx.float16],
        init=[-2, -1],
    )
    (call,) = registrar.launched
    assert [x.shape for x in call["inputs"]] == [(1,), (1,)]
    assert call["output_shapes"] == [(2,), (1,)]
    assert (y.shape, z.shape, z.dtype) == ((2,), (0, 3), mx.float16)


def test_zero_dimensional_inputs_become_vectors(registrar: Registrar) -> None:
    """F09, SPEC X1: so that `n[0]` is right everywhere."""
    launch(registrar, inputs=[mx.array(1.0), mx.array(3, mx.int32)])
    (call,) = registrar.launched
    assert [x.shape for x in call["inputs"]] == [(1,), (1,)]


def test_zero_fill_is_the_only_fill_asked_of_mlx(registrar: Registrar) -> None:
    """F27: one output that needs zeros makes MLX fill all; any other value is refused."""
    source = replace(SOURCE, outputs=(*SOURCE.outputs, Argument("z", "Z", dtypes.i32)))
    both: dict[str, Any] = {"shapes": [(5, 8)] * 2, "dtypes": [mx.float32, mx.int32]}
    launch(registrar, source, **both, init=[-1, -1])
    launch(registrar, source, **both, init=[-1, -2])
    assert ["init_value" in call for call in registrar.launched] == [False, True]
    assert registrar.launched[1]["init_value"] == 0
    with pytest.raises(LaunchError, match=r"init 0; expected -1 \(unset\) or -2 \(zero\)"):
        launch(registrar, source, **both, init=[0, -1])


@pytest.mark.parametrize("dtype", dtypes.ALL)
def test_zero_as_a_float_is_zero_in_every_dtype(dtype: dtypes.DType) -> None:
    """F27: MLX makes the fill by casting one float."""
    zero = mx.array(0.0, mlx_dtypes()[dtype])
    assert not mx.view(zero.reshape(1), mx.uint8).any().item()


def test_a_stream_is_passed_on(registrar: Registrar) -> None:
    launch(registrar, stream=mx.gpu)
    launch(registrar)
    assert [call.get("stream") for call in registrar.launched] == [mx.gpu, None]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": [X]}, "1 inputs given, 2 needed"),
        ({"shapes": []}, "0 output shapes given, 1 needed"),
        ({"dtypes": [mx.float32] * 2}, "2 output dtypes given, 1 needed"),
        ({"init": [-1, -1]}, "2 init entries given, 1 needed"),
        (
            {"inputs": [X.astype(mx.float16), N]},
            "parameter 'X' is f16; the kernel was compiled for f32",
        ),
        (
            {"inputs": [X, mx.array([3.0])]},
            "parameter 'N' is f32; the kernel was compiled for i32",
        ),
        ({"dtypes": [mx.complex64]}, "parameter 'Y' is complex64; the kernel was compiled for f32"),
    ],
)
def test_arguments_that_do_not_fit_never_reach_mlx(
    registrar: Registrar, change: dict[str, Any], message: str
) -> None:
    """SPEC D, F02: MLX would take the types of the signature from the arrays."""
    with pytest.raises(LaunchError) as error:
        launch(registrar, **change)
    assert str(error.value) == f"[metal] kernel copy_0123: {message}"
    assert not registrar.launched


@pytest.mark.parametrize(
    ("part", "text", "line"),
    [
        ("body", "// ok\n// \N{GREEK SMALL LETTER EPSILON}", 2),
        ("header", "// µ\n", 1),
        ("name", "µ", 1),
    ],
)
def test_text_that_is_not_ascii_is_refused(
    registrar: Registrar, part: str, text: str, line: int
) -> None:
    """F06."""
    changes: dict[str, Any] = {part: text}
    expected = rf"the {part} of kernel .* holds '\\.*' in line {line};"
    with pytest.raises(CompileError, match=expected):
        metal.build(replace(SOURCE, **changes), registrar)
    assert not registrar.built


@pytest.mark.parametrize("name", ["half", "grid_size", "my_grid_size", "x_shape", "__n", "1n", "λ"])
def test_argument_names_that_mlx_or_msl_own_are_refused(registrar: Registrar, name: str) -> None:
    """SPEC X1."""
    bad = replace(SOURCE, inputs=(SOURCE.inputs[0], Argument(name, "N", dtypes.i32)))
    with pytest.raises(CompileError, match=r"argument name .* is reserved\nhint: .*'N'"):
        metal.build(bad, registrar)
    assert not registrar.built


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threads": 1056}, "needs 1056 threads per threadgroup; allowed are 1024"),
        (
            {"threadgroup_bytes": 32772},
            "needs 32772 bytes of threadgroup memory; allowed are 32768",
        ),
    ],
)
def test_static_limits(registrar: Registrar, changes: dict[str, Any], message: str) -> None:
    """SPEC X9, F17, F18: exceeded limits are errors, and nothing is registered."""
    with pytest.raises(OutOfResources) as error:
        metal.build(replace(SOURCE, **changes), registrar)
    assert error.value.message == f"[metal] kernel copy_0123 {message}"
    assert error.value.hint
    assert not registrar.built


def test_limits_are_inclusive(registrar: Registrar) -> None:
    """F18: exactly 32 KiB and 1024 threads are fine."""
    metal.build(replace(SOURCE, threads=1024, threadgroup_bytes=32768), registrar)
    assert len(registrar.built) == 1


def with_inputs(count: int, body: str = BODY) -> KernelSource:
    inputs = tuple(Argument(f"a{i}", f"a{i}", dtypes.f32) for i in range(count))
    return replace(SOURCE, inputs=inputs, body=body)


def test_buffers_are_counted_after_mlx_additions(registrar: Registrar) -> None:
    """SPEC X1: at most 31, the shape arguments the body mentions included."""
    assert metal.buffer_count(with_inputs(30)) == 31
    metal.build(with_inputs(30), registrar)
    with pytest.raises(OutOfResources, match="needs 32 buffers; allowed are 31"):
        metal.build(with_inputs(31), registrar)
    mentions = with_inputs(28, f"{BODY} // a0_shape a0_strides a27_ndim")
    assert metal.buffer_count(mentions) == 28 + 1 + 3
    with pytest.raises(OutOfResources, match="needs 32 buffers"):
        metal.build(mentions, registrar)


def test_the_buffer_count_is_that_of_mlx() -> None:
    """SPEC X1: the same number as in the signature MLX writes."""
    source = with_inputs(3, f"{BODY.replace('x[', 'a1[')} // a0_shape a1_strides a1_ndim a2_shape")
    inputs = [mx.zeros((4, 4))] * 3
    kernel = metal.register(source)
    text = metal.record_msl(kernel, inputs, [(4, 4)], [mx.float32], (1, 1, 1), [-1]).text
    assert text.count("[[buffer(") == metal.buffer_count(source) == 8


def test_one_registration_per_source(monkeypatch: pytest.MonkeyPatch, registrar: Registrar) -> None:
    """F04, F31: 8 threads, 4 sources, and 10,000 calls make 4 registrations."""
    monkeypatch.setattr(mx.fast, "metal_kernel", registrar)
    sources = [replace(SOURCE, name=f"cached_{i}") for i in range(4)]
    kernels: list[metal.MetalKernel] = []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for i in range(1250):
            kernels.append(metal.register(sources[i % 4]))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registrar.built) == 4
    assert len({id(kernel) for kernel in kernels}) == 4
    assert len(kernels) == 10_000


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch, registrar: Registrar) -> None:
    """F04: the least recently used source goes first."""
    monkeypatch.setattr(mx.fast, "metal_kernel", registrar)
    monkeypatch.setattr(metal, "_CACHE_SIZE", 2)
    monkeypatch.setattr(metal, "_registered", type(metal._registered)())
    first, second, third = (replace(SOURCE, name=f"bounded_{i}") for i in range(3))
    for source in (first, second, first, third, first, second):
        metal.register(source)
    assert [call["name"] for call in registrar.built] == [
        "bounded_0",
        "bounded_1",
        "bounded_2",
        "bounded_1",
    ]


def test_availability_asks_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC X6, F29: by capability; the reason names what was asked."""
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert metal.available() is None
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    assert metal.available() == "MLX finds no Metal device (mx.metal.is_available() is False)"
    monkeypatch.setattr(metal, "MLX_MISSING", "No module named 'mlx'")
    assert metal.available() == "mlx is not installed: No module named 'mlx'"
