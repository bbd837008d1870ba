"""`emulator.metal_kernel` takes and does what `mx.fast.metal_kernel` takes and does."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx import emulator
from metile_mlx.errors import CompileError, LaunchError

DOUBLE = "uint i = thread_position_in_grid.x;\ny[i] = x[i] * 2;"
SUM_ROWS = (
    "uint i = thread_position_in_grid.x;\nfloat sum = 0;\n"
    "for (int k = 0; k < x_shape[1]; ++k) sum += x[elem_to_loc(long(i * x_shape[1] + k), x_shape, "
    "x_strides, x_ndim)];\ny[i] = sum;"
)


def kernel(source: str = DOUBLE, name: str = "api", **options: Any) -> emulator.EmulatedKernel:
    return emulator.metal_kernel(
        name=name, input_names=["x"], output_names=["y"], source=source, **options
    )


def call(
    made: emulator.EmulatedKernel, x: mx.array, n: int | None = None, **options: Any
) -> mx.array:
    n = x.size if n is None else n
    arguments: dict[str, Any] = {
        "inputs": [x],
        "output_shapes": [(n,)],
        "output_dtypes": [x.dtype],
        "grid": (n, 1, 1),
        "threadgroup": (32, 1, 1),
    }
    return made(**{**arguments, **options})[0]


def test_signature_is_that_of_mlx() -> None:
    """Names and defaults, as MLX's own docstring states them."""
    doc = (mx.fast.metal_kernel.__doc__ or "").splitlines()[0]
    ours = inspect.signature(emulator.metal_kernel)
    for name, parameter in ours.parameters.items():
        assert f"{name}: " in doc
        if parameter.default is not inspect.Parameter.empty:
            assert (
                f" = {parameter.default!r}" in doc.partition(f"{name}: ")[2].partition(",")[0] + ","
            )
    assert doc.count(": ") == len(ours.parameters)


@pytest.mark.emulator
def test_outputs_are_lazy() -> None:
    before = emulator.completed_runs()
    y = call(kernel(), mx.arange(64).astype(mx.float32))
    assert emulator.completed_runs() == before
    assert np.array_equal(np.array(y), np.arange(64) * 2)
    assert emulator.completed_runs() == before + 1


@pytest.mark.emulator
def test_it_runs_in_a_graph_with_other_operations() -> None:
    x = mx.random.normal((64,))
    y = call(kernel(), mx.exp(x) + 1) - 1
    assert mx.allclose(y, 2 * (mx.exp(x) + 1) - 1)


@pytest.mark.emulator
def test_it_runs_inside_compile_and_is_traced_once() -> None:
    calls = 0
    made = kernel()

    @mx.compile
    def f(x: mx.array) -> mx.array:
        nonlocal calls
        calls += 1
        return call(made, x * 3) + 1

    for start in range(3):
        x = mx.arange(start, start + 64).astype(mx.float32)
        assert mx.array_equal(f(x), x * 6 + 1)
    assert calls == 1


@pytest.mark.emulator
def test_templates_specialise_the_text() -> None:
    source = "uint i = thread_position_in_grid.x;\nT v = x[i];\ny[i] = B ? v * T(N) : v;"
    made = kernel(source)
    x = mx.arange(16).astype(mx.float16)
    for flag, factor in ((True, 3), (True, 5), (False, 5)):
        y = call(made, x, template=[("T", mx.float16), ("N", factor), ("B", flag)])
        assert mx.array_equal(y, x * (factor if flag else 1))


@pytest.mark.emulator
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8",
              "uint16", "uint32", "uint64"],
)  # fmt: skip
def test_every_dtype_passes_through(dtype: str) -> None:
    x = mx.arange(1, 33).astype(getattr(mx, dtype))
    assert mx.array_equal(call(kernel(), x), x * 2)


@pytest.mark.emulator
def test_bool_and_complex_arrays() -> None:
    flags = mx.array([True, False] * 8)
    assert mx.array_equal(
        call(kernel("uint i = thread_position_in_grid.x;\ny[i] = !x[i];"), flags), ~flags
    )
    z = mx.arange(8).astype(mx.complex64) * mx.array(1 + 2j)
    assert mx.array_equal(
        call(kernel("uint i = thread_position_in_grid.x;\ny[i] = x[i] * x[i];"), z), z * z
    )


@pytest.mark.emulator
@pytest.mark.parametrize("size", [1, 7, 8, 9])
def test_small_inputs_and_scalars(size: int) -> None:
    """F08, F09: `constant` arrays, 0-dimensional references, Python numbers."""
    made = emulator.metal_kernel(
        name="small", input_names=["x", "eps", "n"], output_names=["y"],
        source="uint i = thread_position_in_grid.x;\ny[i] = x[i] + eps + n;",
    )  # fmt: skip
    x = mx.arange(size).astype(mx.float32)
    for eps in (0.5, mx.array(0.5)):
        (y,) = made(
            inputs=[x, eps, 2], output_shapes=[x.shape], output_dtypes=[x.dtype],
            grid=(size, 1, 1), threadgroup=(32, 1, 1),
        )  # fmt: skip
        assert mx.array_equal(y, x + 2.5)


@pytest.mark.emulator
def test_init_value_fills_outputs_of_each_type() -> None:
    """F27: through one float, as MLX does it."""
    made = kernel("if (x[0] < 0) y[0] = 0;")
    for dtype, value in ((mx.float32, 0.5), (mx.int32, 7), (mx.float16, -2.0), (mx.bool_, 1)):
        y = call(made, mx.zeros((8,)), init_value=value, output_dtypes=[dtype])
        assert y.tolist() == mx.full((8,), value, dtype).tolist()


@pytest.mark.emulator
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32"])
def test_atomic_outputs(dtype: str) -> None:
    made = emulator.metal_kernel(
        name="histogram", input_names=["x"], output_names=["y"], atomic_outputs=True,
        source="uint i = thread_position_in_grid.x;\n"
        "atomic_fetch_add_explicit(&y[int(x[i]) % 10], 1, memory_order_relaxed);",
    )  # fmt: skip
    x = mx.arange(100000).astype(mx.float32)
    with emulator.options(checked=False):
        y = call(made, x, 100000, output_shapes=[(10,)], output_dtypes=[getattr(mx, dtype)],
                 init_value=0)  # fmt: skip
        assert y.tolist() == [10000] * 10


LAYOUTS = {
    "transposed": lambda x: x.T,
    "strided": lambda x: x[::2, ::3],
    "reversed": lambda x: x[::-1],
    "offset": lambda x: x[3:, 1:],
    "broadcast": lambda x: mx.broadcast_to(x[:1], (5, x.shape[1])),
}


@pytest.mark.emulator
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("is_contiguous", [True, False])
def test_inputs_of_any_layout(layout: str, is_contiguous: bool) -> None:
    """F10: a copy, or the array's own strides."""
    x = LAYOUTS[layout](mx.arange(84).reshape(7, 12).astype(mx.float32))
    made = kernel(SUM_ROWS, ensure_row_contiguous=is_contiguous)
    emulator.take()
    with emulator.options(checked=True):
        y = call(made, x, x.shape[0], threadgroup=(8, 1, 1))
        mx.eval(y)
    report = emulator.take()
    assert not report, str(report)
    assert mx.array_equal(y, x.sum(axis=1))


@pytest.mark.emulator
def test_strides_show_whether_mlx_copied() -> None:
    source = "y[0] = x_strides[0]; y[1] = x_strides[1]; if (false) y[2] = x[0];"
    x = mx.arange(84).reshape(7, 12).T
    for is_contiguous, strides in ((True, [7, 1]), (False, [1, 12])):
        made = kernel(source, ensure_row_contiguous=is_contiguous)
        y = call(made, x, 2, output_dtypes=[mx.int64], grid=(1, 1, 1))
        assert y.tolist() == strides


@pytest.mark.emulator
def test_several_outputs_and_a_header() -> None:
    made = emulator.metal_kernel(
        name="two", input_names=["x"], output_names=["y", "z"],
        header="template <typename T>\nT twice(T v) { return v + v; }\n",
        source="uint i = thread_position_in_grid.x;\ny[i] = twice(x[i]);\nz[i] = int(x[i]);",
    )  # fmt: skip
    x = mx.arange(32).astype(mx.float32)
    y, z = made(
        inputs=[x], output_shapes=[(32,), (4, 8)], output_dtypes=[mx.float32, mx.int32],
        grid=(32, 1, 1), threadgroup=(32, 1, 1),
    )  # fmt: skip
    assert mx.array_equal(y, x * 2)
    assert mx.array_equal(z.reshape(-1), mx.arange(32))


@pytest.mark.emulator
@pytest.mark.parametrize("mode", ["safe", "relaxed", "fast"])
def test_math_modes(mode: str) -> None:
    made = kernel("uint i = thread_position_in_grid.x;\ny[i] = exp(x[i]);",
                  compile_options={"math_mode": mode})  # fmt: skip
    x = mx.linspace(-3, 3, 32)
    assert mx.allclose(call(made, x), mx.exp(x), rtol=1e-6)


@pytest.mark.emulator
def test_the_math_mode_is_what_the_kernel_is_compiled_with() -> None:
    """`safe` rounds each operation, `relaxed` may fuse them, `fast` may also reorder them."""
    body = "uint i = thread_position_in_grid.x;\nfloat a = x[0], b = x[1];\n"
    sources = {"contract": body + "y[i] = a * a - b;", "reorder": body + "y[i] = (a + b) - b;"}
    a = np.float32(1 + 2**-12)
    inputs = {"contract": (a, np.float32(a * a)), "reorder": (np.float32(1), np.float32(1e8))}
    done = {}
    for mode in ("safe", "relaxed", "fast"):
        for name, source in sources.items():
            x = mx.array(np.array(inputs[name]))
            made = kernel(source, compile_options={"math_mode": mode})
            done[mode, name] = call(made, x, 2, threadgroup=(1, 1, 1))[0].item()
    fused = float(np.float64(a) * np.float64(a) - np.float64(inputs["contract"][1]))
    assert fused != 0
    assert [done[mode, "contract"] for mode in ("safe", "relaxed", "fast")] == [0, fused, fused]
    assert [done[mode, "reorder"] for mode in ("safe", "relaxed", "fast")] == [0, 0, 1]


@pytest.mark.emulator
def test_verbose_prints_the_text(capfd: pytest.CaptureFixture[str]) -> None:
    made = kernel()
    for _ in range(2):
        call(made, mx.zeros((8,)), verbose=True)
        assert "y[i] = x[i] * 2;" in capfd.readouterr().out
    call(made, mx.zeros((8,)))
    assert "y[i]" not in capfd.readouterr().out


@pytest.mark.emulator
def test_gpu_streams_become_the_cpu_stream() -> None:
    """Third-party code asks for the GPU by name."""
    x = mx.ones((8,))
    for stream in (mx.gpu, mx.cpu, mx.default_stream(mx.cpu), None):
        assert mx.array_equal(call(kernel(), x, stream=stream), x * 2)


def test_what_can_not_be_launched_is_refused() -> None:
    made, x = kernel(), mx.zeros((8,))
    with pytest.raises(LaunchError, match=r"\(64, 32, 1\) has 2048 threads; 1 to 1024"):
        call(made, x, threadgroup=(64, 32, 1))
    with pytest.raises(LaunchError, match=r"\(32, 0, 1\) has 0 threads"):
        call(made, x, threadgroup=(32, 0, 1))
    with pytest.raises(LaunchError, match=r"grid \(-8, 1, 1\) has a negative extent"):
        call(made, x, grid=(-8, 1, 1))
    with pytest.raises(LaunchError, match="three extents"):
        call(made, x, grid=(8,))
    with pytest.raises(ValueError, match="inputs"):
        call(made, x, inputs=[x, x])


@pytest.mark.emulator
def test_text_that_does_not_compile_is_shown_with_its_lines() -> None:
    with pytest.raises(
        CompileError, match=r"kernel\.metal:5:\d+: error: use of undeclared"
    ) as caught:
        call(kernel("uint i = 0;\ny[i] = lost;"), mx.zeros((8,)))
    assert "5 | y[i] = lost;" in str(caught.value)


@pytest.mark.emulator
def test_text_that_only_the_strict_front_refuses_does_not_run() -> None:
    source = "threadgroup float s[8];\nuint i = thread_position_in_grid.x;\ns[i] = x[i];\n"
    source += "const device float* p = s;\ny[i] = p[i];"
    with pytest.raises(CompileError, match=r"address-space-mismatch") as caught:
        call(kernel(source), mx.zeros((8,)), threadgroup=(8, 1, 1))
    assert "const device float* p = s;" in str(caught.value)


@pytest.mark.emulator
def test_gradients_are_not_implemented_as_in_mlx() -> None:
    """F28: an error, never a zero."""
    with pytest.raises(ValueError, match="CustomKernel"):
        mx.grad(lambda x: call(kernel(), x).sum())(mx.ones((8,)))


@pytest.mark.emulator
def test_threads_build_and_run_at_once() -> None:
    """F31."""
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            with mx.stream(mx.new_stream(mx.cpu)):
                made = kernel(
                    f"y[thread_position_in_grid.x] = x[0] + {index % 3};", f"thread_{index % 3}"
                )
                for _ in range(5):
                    assert call(made, mx.ones((8,))).tolist() == [1 + index % 3] * 8
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.emulator
def test_two_bodies_of_one_name() -> None:
    """F01: both dispatched before one evaluation."""
    x = mx.arange(64).astype(mx.float32)
    a = call(kernel("uint i = thread_position_in_grid.x;\ny[i] = x[i] * 2;", "scale"), x)
    b = call(kernel("uint i = thread_position_in_grid.x;\ny[i] = x[i] + 100;", "scale"), x)
    mx.eval(a, b)
    assert mx.array_equal(a, x * 2)
    assert mx.array_equal(b, x + 100)


@pytest.mark.emulator
def test_checked_raises_on_leaving_and_holds_the_report() -> None:
    racy = kernel(
        "threadgroup float s[32];\nuint i = thread_position_in_grid.x;\ns[i] = x[i];\n"
        "y[i] = s[31 - i];"
    )
    with (
        pytest.raises(emulator.EmulatorError, match="data race on threadgroup memory") as caught,
        emulator.checked(),
    ):
        mx.eval(call(racy, mx.ones((32,))))
    assert {finding.fault for finding in caught.value.report.findings} >= {emulator.Fault.RACE}
    with emulator.checked(schedules=3):
        mx.eval(call(kernel(), mx.ones((32,))))


@pytest.mark.emulator
def test_an_error_inside_checked_is_not_hidden() -> None:
    with pytest.raises(KeyError), emulator.checked():
        raise KeyError("mine")
