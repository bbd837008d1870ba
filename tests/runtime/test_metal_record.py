"""The text MLX records for a kernel, read on any machine (SPEC X1, X2)."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from metile_mlx import dtypes
from metile_mlx.emit.naming import input_passing
from metile_mlx.emit.reserved import ATTRIBUTES, RESERVED, legal_identifier
from metile_mlx.emit.source import Argument, KernelSource
from metile_mlx.runtime import metal
from metile_mlx.runtime.cpu import mlx_dtypes

BODY = "uint i = thread_position_in_grid.x;\ny[i] = x[i];"
SOURCE = KernelSource(
    name="record_0123",
    language="msl",
    body=BODY,
    header="// a header\n",
    inputs=(Argument("x", "X", dtypes.f32),),
    outputs=(Argument("y", "Y", dtypes.f32),),
    threads=64,
    threadgroup_bytes=0,
)


def record(source: KernelSource, *inputs: mx.array, **changes: Any) -> metal.CapturedKernel:
    call: dict[str, Any] = {
        "shapes": [(64,)] * len(source.outputs),
        "dtypes": [mlx_dtypes()[output.dtype] for output in source.outputs],
        "grid": (2, 3, 5),
        "init": [-1] * len(source.outputs),
    }
    return metal.record_msl(metal.register(source), inputs, **{**call, **changes})


def parameters(text: str) -> list[str]:
    """The parameters of the recorded signature."""
    match = re.search(r"\[\[kernel\]\] void \w+\(\n(.*?)\) \{\n", text, re.S)
    assert match is not None
    return [line.strip() for line in match[1].split(",\n")]


def test_everything_mlx_hands_over_is_kept() -> None:
    """SPEC X2."""
    source = replace(SOURCE, math_mode="relaxed")
    assert record(source, mx.zeros((64,)), init=[-2]) == metal.CapturedKernel(
        name="custom_kernel_record_0123_float_float",
        text="// a header\n"
        "[[kernel]] void custom_kernel_record_0123_float_float(\n"
        "  const device float* x [[buffer(0)]],\n"
        "  device float* y [[buffer(1)]],\n"
        "  uint3 thread_position_in_grid [[thread_position_in_grid]]) {\n"
        f"{BODY}\n}}\n",
        grid=(128, 3, 5),
        threadgroup=(64, 1, 1),
        shape_flags=((False, False, False),),
        ensure_row_contiguous=True,
        math_mode="relaxed",
        init_value=0.0,
        inputs=(((64,), "float32"),),
        outputs=(((64,), "float32"),),
    )
    assert record(SOURCE, mx.zeros((64,))).init_value is None


@pytest.mark.parametrize("mode", ["safe", "relaxed", "fast"])
def test_the_math_mode_is_recorded(mode: str) -> None:
    """F24."""
    assert record(replace(SOURCE, math_mode=mode), mx.zeros((8,))).math_mode == mode


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9])
def test_small_inputs_are_constant(size: int) -> None:
    """F08, SPEC X1: fewer than 8 elements; a 0-dimensional scalar never is a reference."""
    space = input_passing(size, 1)
    captured = record(SOURCE, mx.zeros((size,)))
    assert parameters(captured.text)[0] == f"const {space} float* x [[buffer(0)]]"
    scalar = parameters(record(SOURCE, mx.array(1.0)).text)[0]
    assert scalar == "const constant float* x [[buffer(0)]]"


@pytest.mark.parametrize("dtype", dtypes.ALL)
def test_every_dtype_has_its_metal_type(dtype: dtypes.DType) -> None:
    """SPEC K4."""
    source = replace(
        SOURCE, inputs=(Argument("x", "X", dtype),), outputs=(Argument("y", "Y", dtype),)
    )
    names = {dtypes.f32: "float", dtypes.bool_: "bool"}
    kind = names.get(dtype, f"{mlx_dtypes()[dtype]}_t".rpartition(".")[2])
    captured = record(source, mx.zeros((64,), mlx_dtypes()[dtype]))
    assert parameters(captured.text)[:2] == [
        f"const device {kind}* x [[buffer(0)]]",
        f"device {kind}* y [[buffer(1)]]",
    ]


def test_every_attribute_of_ours_is_one_of_mlx() -> None:
    """SPEC X1: each makes a parameter, in this order and of this type; there are 20."""
    body = "\n".join(f"// {name}" for name in reversed(ATTRIBUTES))
    captured = record(replace(SOURCE, body=body), mx.zeros((64,)))
    assert parameters(captured.text)[2:] == [
        f"{kind} {name} [[{name}]]" for name, kind in ATTRIBUTES.items()
    ]
    assert len(ATTRIBUTES) == 20


def test_nasty_variable_names_add_no_parameter() -> None:
    """SPEC X1: a body whose variables bear all the reserved names; the signature is as declared."""
    wanted = [*ATTRIBUTES, *sorted(RESERVED), "x_shape", "x_strides", "x_ndim", "max_shape", "λ"]
    taken = {"x", "y", "i"}
    lines = [BODY]
    for name in wanted:
        legal = legal_identifier(name, taken, inputs=["x"])
        taken.add(legal)
        lines.append(f"float {legal} = x[i];")
    captured = record(replace(SOURCE, body="\n".join(lines)), mx.zeros((64,)))
    assert parameters(captured.text) == [
        "const device float* x [[buffer(0)]]",
        "device float* y [[buffer(1)]]",
        "uint3 thread_position_in_grid [[thread_position_in_grid]]",
    ]
    assert captured.shape_flags == ((False, False, False),)


def test_shape_arguments_are_seen_in_the_flags() -> None:
    captured = record(replace(SOURCE, body=f"{BODY} // x_shape x_ndim"), mx.zeros((64,)))
    assert captured.shape_flags == ((True, False, True),)


def test_a_skipped_launch_has_a_text_all_the_same() -> None:
    """F12, SPEC K7: `.msl` of a call on empty arrays."""
    assert BODY in record(SOURCE, mx.zeros((0,)), shapes=[(0,)]).text
    assert BODY in record(SOURCE, mx.zeros((64,)), grid=(0, 1, 1)).text


def test_a_kernel_without_inputs_is_recorded() -> None:
    source = replace(SOURCE, inputs=(), body="y[thread_position_in_grid.x] = 1;")
    assert parameters(record(source).text)[0] == "device float* y [[buffer(0)]]"


def test_recording_evaluates_nothing() -> None:
    """A terabyte of input costs nothing; a lazy one is not computed."""
    captured = record(SOURCE, mx.zeros((1 << 14, 1 << 24)), shapes=[(1 << 14, 1 << 24)])
    assert captured.inputs == (((1 << 14, 1 << 24), "float32"),)


def copy_kernel(x: mx.array) -> mx.array:
    (y,) = metal.register(SOURCE).launch([x], [x.shape], [x.dtype], (1, 1, 1), [-1])
    return y


def test_calls_outside_a_trace_need_metal() -> None:
    """SPEC X2, F29: what MLX says where there is no Metal; after a failed trace too."""

    def failing(x: mx.array) -> mx.array:
        copy_kernel(x)
        raise KeyError("the function's own error")

    with pytest.raises(KeyError, match="the function's own error"):
        metal.capture(failing, mx.zeros((64,)))
    if metal.available() is None:
        assert mx.array_equal(copy_kernel(mx.ones((64,))), mx.ones((64,))).item()
        return
    for call in (copy_kernel, mx.compile(copy_kernel)):
        with pytest.raises(RuntimeError, match=r"\[metal_kernel\] No Metal back-end"):
            call(mx.zeros((64,)))


def inside_compile(body: Callable[[mx.array], mx.array], x: mx.array) -> None:
    mx.eval(mx.compile(body)(x))


def inside_grad(body: Callable[[mx.array], mx.array], x: mx.array) -> None:
    mx.eval(mx.grad(lambda x: body(x).sum())(x))


def inside_vmap(body: Callable[[mx.array], mx.array], x: mx.array) -> None:
    mx.eval(mx.vmap(body)(x.reshape(8, 8)))


def inside_export(body: Callable[[mx.array], mx.array], x: mx.array) -> None:
    mx.export_function(lambda event: None, body, x)


@pytest.mark.parametrize("outer", [inside_compile, inside_grad, inside_vmap, inside_export])
def test_recording_works_inside_any_trace(
    outer: Callable[[Callable[[mx.array], mx.array], mx.array], None],
) -> None:
    """SPEC X2, X7: so `.msl` can be asked for while MLX traces."""
    seen: list[metal.CapturedKernel] = []

    def body(x: mx.array) -> mx.array:
        seen.append(record(SOURCE, x))
        return x * 2

    outer(body, mx.zeros((64,)))
    assert seen
    assert all(BODY in captured.text for captured in seen)


def test_threads_record_at_once() -> None:
    """F31: MLX's export state is per thread."""
    failures: list[BaseException] = []

    def work(index: int) -> None:
        try:
            source = replace(SOURCE, name=f"thread_{index % 4}")
            for _ in range(50):
                assert source.name in record(source, mx.zeros((64,))).text
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_capture_lists_kernels_in_order_and_leaves_dead_ones_out() -> None:
    """SPEC X2."""

    def two(x: mx.array) -> mx.array:
        copy_kernel(x + 1)
        wide = copy_kernel(x)
        return copy_kernel(mx.exp(wide[:8]))

    captured = metal.capture(two, mx.zeros((64,)))
    assert [kernel.inputs[0][0] for kernel in captured] == [(64,), (8,)]


def test_two_bodies_of_one_function_have_two_texts() -> None:
    """F01: the recorded kernels differ in name and text."""
    bodies = ("y[0] = x[0] * 2;", "y[0] = x[0] + 100;")
    sources = [replace(SOURCE, name=f"scale_{i}", body=b) for i, b in enumerate(bodies)]
    captured = [record(source, mx.zeros((64,))) for source in sources]
    assert len({kernel.name for kernel in captured}) == 2
    assert all(body in kernel.text for body, kernel in zip(bodies, captured, strict=True))
