"""What MLX is given for a CUDA kernel, and what is refused before it is (SPEC X3, X8, X9)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx import dtypes
from metile_mlx.dtypes import bf16, bool_, f16, f32, i8, i32, u64
from metile_mlx.emit.reserved import ATTRIBUTES
from metile_mlx.emit.source import Argument, KernelSource
from metile_mlx.errors import BackendError, LaunchError, OutOfResources
from metile_mlx.runtime import backend, cuda

BODY = "uint i = thread_position_in_grid.x;\ny[i] = metile_twice(x[i]);\n"
HELPER = "inline float metile_twice(float x) {\n  return x + x;\n}\n"
SOURCE = KernelSource(
    name="twice_0123",
    language="msl",
    body=BODY,
    header=HELPER,
    inputs=(Argument("x", "X", f32), Argument("n", "N", i32, is_scalar=True)),
    outputs=(Argument("y", "Y", f32),),
    threads=64,
    threadgroup_bytes=0,
)
X = mx.zeros((5, 8))
N = mx.array([3], mx.int32)


class Registrar:
    """Stands for `mx.fast.cuda_kernel`; takes only the arguments that one has."""

    def __init__(self) -> None:
        self.built: list[dict[str, Any]] = []
        self.launched: list[dict[str, Any]] = []

    def __call__(
        self,
        *,
        name: str,
        input_names: list[str],
        output_names: list[str],
        source: str,
        header: str,
    ) -> Any:
        self.built.append({"name": name, "source": source, "header": header})
        return self.launch

    def launch(self, **call: Any) -> list[mx.array]:
        self.launched.append(call)
        shapes, kinds = call["output_shapes"], call["output_dtypes"]
        return [mx.ones(shape, dtype) for shape, dtype in zip(shapes, kinds, strict=True)]


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
        "stream": mx.cpu,
    }
    return cuda.build(source, registrar).launch(**{**call, **changes})


def test_the_body_is_the_msl_and_keeps_its_line_numbers(registrar: Registrar) -> None:
    """X3: nothing of it is rewritten."""
    cuda.build(SOURCE, registrar)
    (built,) = registrar.built
    directive, _, rest = built["source"].partition("\n")
    assert (directive, rest) == (f'#line 1 "{cuda.BODY_FILE}"', BODY)
    assert built["header"].isascii()
    assert HELPER in built["header"]


def test_the_declaration_repeats_the_signature_mlx_writes(registrar: Registrar) -> None:
    """X9: same name, namespace and parameters, so the bound on threads is the definition's too."""
    every = tuple(Argument(f"p{i}", f"p{i}", d) for i, d in enumerate((f16, bf16, bool_, i8, u64)))
    source = replace(SOURCE, inputs=SOURCE.inputs + every, threads=1024)
    text = cuda.complete_text(source)
    declared, defined = re.findall(r"custom_kernel_twice_0123\((.*?)\)", text, re.DOTALL)
    assert declared == defined
    assert "void __launch_bounds__(1024)\ncustom_kernel_twice_0123(" in text
    for parameter in (
        "const float* x", "const int32_t* n", "const __half* p0", "const __nv_bfloat16* p1",
        "const bool* p2", "const int8_t* p3", "const uint64_t* p4", "    float* y)",
    ):  # fmt: skip
        assert parameter in text
    spaces = [
        text.rindex("namespace mlx::core::cu {", 0, text.index(found))
        for found in ("void __launch_bounds__(1024)", "__global__ void custom_kernel_twice_0123(")
    ]
    assert spaces[0] < spaces[1]


def test_every_dtype_has_its_type_in_the_signature() -> None:
    assert set(cuda.TYPES) == set(dtypes.ALL)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_every_attribute_of_mlx_has_a_meaning(name: str) -> None:
    assert re.search(rf"(?m)^#define {name} \S", cuda.prelude())


def test_names_cover_the_header_and_the_math_mode() -> None:
    """F01: MLX caches modules by name; the header is part of what the name stands for."""
    names = {
        cuda.named(source).name
        for source in (
            SOURCE,
            replace(SOURCE, math_mode="fast"),
            replace(SOURCE, threads=128),
            replace(SOURCE, header=HELPER + "// other\n"),
        )
    }
    assert len(names) == 4
    assert all(re.fullmatch(r"twice_[0-9a-f]{16}", name) for name in names)


def test_strict_rounding_follows_the_math_mode() -> None:
    assert "#define METILE_STRICT 1" in cuda.header(SOURCE)
    assert "#define METILE_STRICT 0" in cuda.header(replace(SOURCE, math_mode="relaxed"))


def test_mlx_gets_threads_a_zero_fill_and_no_scalar_without_dimensions(
    registrar: Registrar,
) -> None:
    """F09, F15: a 0-dimensional input would have no `<input>_shape` in the signature."""
    launch(registrar, grid=(3, 2, 1), init=[-2], inputs=[X, mx.array(3, mx.int32)])
    (call,) = registrar.launched
    assert (call["grid"], call["threadgroup"]) == ((192, 2, 1), (64, 1, 1))
    assert call["init_value"] == 0
    assert call["stream"] == mx.cpu
    assert [x.shape for x in call["inputs"]] == [(5, 8), (1,)]


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_empty_outputs_launch_nothing(registrar: Registrar, shape: tuple[int, ...]) -> None:
    """F12."""
    (y,) = launch(registrar, inputs=[mx.zeros(shape), N], shapes=[shape])
    assert (y.shape, registrar.launched) == (shape, [])


@pytest.mark.parametrize(
    ("grid", "what"),
    [
        ((2**25, 1, 1), "2147483648 threads along x; allowed are 2147483647"),
        ((1, 65536, 1), "65536 programs along y; allowed are 65535"),
        ((1, 1, 65536), "65536 programs along z; allowed are 65535"),
    ],
)
def test_grids_cuda_cannot_count_are_refused(
    registrar: Registrar, grid: tuple[int, int, int], what: str
) -> None:
    """X8: an error, never a wrap."""
    with pytest.raises(OutOfResources, match=what):
        launch(registrar, grid=grid)
    assert not registrar.launched
    assert cuda.grid_in_threads("k", (1, 65535, 65535), 64) == (64, 65535, 65535)


def test_a_malformed_grid_and_a_wrong_dtype_are_refused(registrar: Registrar) -> None:
    with pytest.raises(LaunchError, match=r"\[cuda\] kernel twice_0123: grid is \(1, -1, 1\)"):
        launch(registrar, grid=(1, -1, 1))
    with pytest.raises(LaunchError, match=r"\[cuda\] .* parameter 'X' is f16; .* compiled for f32"):
        launch(registrar, inputs=[X.astype(mx.float16), N])


def test_f18_more_shared_memory_than_the_device_has_is_refused(
    registrar: Registrar, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X9: the driver is asked before anything is registered."""
    monkeypatch.setattr(cuda, "shared_memory", lambda: 16384)
    cuda.build(replace(SOURCE, threadgroup_bytes=16384), registrar)
    with pytest.raises(OutOfResources, match=r"16388 bytes of threadgroup memory; .* 16384"):
        cuda.build(replace(SOURCE, threadgroup_bytes=16388), registrar)
    assert len(registrar.built) == 1
    with pytest.raises(
        OutOfResources, match="32772 bytes of threadgroup memory; allowed are 32768"
    ):
        cuda.build(replace(SOURCE, threadgroup_bytes=32772), registrar)


def test_messages_of_the_compiler_show_the_msl_line() -> None:
    """X9: NVRTC's log, as MLX raises it."""
    log = (
        'kernel.metal(2): error: identifier "q" is undefined\n  y[i] = q;\n\n'
        'helpers.metal(1): error #20: identifier "r" is undefined\n'
        "1 error detected in the compilation.\n"
    )
    message = str(cuda.refused(SOURCE, f"Failed to compile kernel: {log}"))
    assert 'kernel.metal:2: identifier "q" is undefined\n    y[i] = metile_twice(x[i]);' in message
    assert 'helpers.metal:1: identifier "r" is undefined\n    inline float metile_twice' in message
    assert "nothing of ours" in str(cuda.refused(SOURCE, "nothing of ours"))


@metile.kernel
def doubled(x, y, n):
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    metile.tensor(y, shape=n, access="write").store(i, metile.tensor(x, shape=n).load(i) * 2)


def test_a_kernel_compiles_for_cuda_on_any_machine() -> None:
    """X2, X9: the report names both limits of the device, and what nobody here could check."""
    y = metile.empty(100, mx.float32)
    made = doubled[4].prepare(mx.zeros(100), y, 100, target="cuda")
    report = made.execution_report
    assert (report.target, report.backend) == ("cuda", "cuda")
    limits = {limit.name: limit for limit in report.limits}
    assert limits["threads by __launch_bounds__"].checked
    shared = limits["shared memory of the device, bytes"]
    assert shared.checked is isinstance(cuda.shared_memory(), int)
    assert made.msl.count("[[kernel]]") == 1


def test_naming_cuda_where_there_is_none_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """X6."""
    reason = "MLX finds no CUDA device (mx.cuda.is_available() is False)"
    assert cuda.available() == (None if mx.cuda.is_available() else reason)
    monkeypatch.setattr(cuda, "available", lambda: reason)
    monkeypatch.setattr(backend, "_proven", {})
    with pytest.raises(BackendError, match="'cuda' can't run here: MLX finds no CUDA device"):
        doubled[4](mx.zeros(100), metile.empty(100, mx.float32), 100, backend="cuda")
