"""Launches of compiled CPU kernels: lazy, on streams, any strides, any size (SPEC X4, X7, X8)."""

from __future__ import annotations

import math

import mlx.core as mx
import pytest

from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i8, i32, i64, u32, u64
from metile_mlx.errors import LaunchError
from metile_mlx.runtime import cpu
from tests.support.cpu_kernels import kernel_source, pointwise, programs

COUNTER = kernel_source(
    "counter",
    "out[program] = __atomic_add_fetch(&runs, 1, __ATOMIC_SEQ_CST);",
    {"x": f32},
    {"out": i32},
    header="static int runs = 0;",
)
DOUBLE = pointwise("double_it", "x[i] * 2.0f")
SHIFT = pointwise("double_it", "x[i] + 100.0f")
ADD = pointwise("add", "x[i] + y[i]", ("x", "y"))


def run(source, arrays, shape, **options):
    """One launch of a pointwise kernel."""
    n = math.prod(shape)
    return cpu.build(source).launch(arrays, [n], [shape], [f32], programs(n), [-1], **options)[0]


def equal(actual: mx.array, expected: mx.array) -> bool:
    return actual.dtype == expected.dtype and mx.array_equal(actual, expected).item()


def test_launches_run_at_evaluation_and_not_before() -> None:
    kernel = cpu.build(COUNTER)
    arrays = [kernel.launch([mx.zeros(1)], [], [(1,)], [i32], (1,), [-1])[0] for _ in range(3)]
    start = kernel.launch([mx.zeros(1)], [], [(1,)], [i32], (1,), [-1])[0].item()
    assert [array.item() for array in reversed(arrays)] == [start + 1, start + 2, start + 3]


def test_two_kernels_of_one_name_in_one_evaluation_f01() -> None:
    x = mx.arange(64, dtype=mx.float32)
    a, b = run(DOUBLE, [x], (64,)), run(SHIFT, [x], (64,))
    mx.eval(a, b)
    assert equal(a, x * 2)
    assert equal(b, x + 100)


def test_kernel_inside_mx_compile_between_mlx_ops() -> None:
    def function(x: mx.array) -> mx.array:
        return mx.exp(-run(DOUBLE, [mx.abs(x)], x.shape)) + 1

    x = mx.random.normal((5, 33))
    compiled = mx.compile(function)
    for value in (x, x + 1):
        assert mx.allclose(compiled(value), mx.exp(-2 * mx.abs(value)) + 1)


def test_compile_merges_equal_launches_only() -> None:
    kernel = cpu.build(COUNTER)

    def function(x: mx.array) -> list[mx.array]:
        def launch(start: int) -> mx.array:
            return kernel.launch([x], [], [(1,)], [i32], (1,), [start])[0]

        return [launch(-1) * 1, launch(-1) * 1000, launch(-2) * 1]

    same, thousand, other = mx.compile(function)(mx.zeros(1))
    assert thousand.item() == 1000 * same.item()
    assert other.item() != same.item()


def test_compile_keeps_launches_with_other_scalars_apart() -> None:
    source = pointwise("scalar_in_compile", "x[i] * n")
    kernel = cpu.build(source)

    def function(x: mx.array) -> list[mx.array]:
        return [kernel.launch([x], [n], [(4,)], [f32], (1,), [-2])[0] for n in (3, 4)]

    three, four = mx.compile(function)(mx.ones(4))
    assert three.tolist() == [3, 3, 3, 0]
    assert four.tolist() == [4, 4, 4, 4]


def test_explicit_stream_and_the_callers_default_stream() -> None:
    stream = mx.new_stream(mx.cpu)
    x = mx.arange(70, dtype=mx.float32)
    assert equal(run(DOUBLE, [x + 1], (70,), stream=stream) + 1, (x + 1) * 2 + 1)
    assert equal(run(DOUBLE, [x], (70,), stream=mx.cpu), x * 2)
    with mx.stream(stream):
        assert equal(run(DOUBLE, [x], (70,)), x * 2)


VIEWS = {
    "transposed": lambda x: x.transpose(1, 0, 2),
    "rows": lambda x: x[::2],
    "columns": lambda x: x[..., ::2],
    "middle": lambda x: x[:, 1:5, 3:40],
    "reversed": lambda x: x[:, ::-1, ::-3],
    "broadcast": lambda x: mx.broadcast_to(x[0, 0], (3, 4, 64)),
    "broadcast middle": lambda x: mx.broadcast_to(x[:, :1], (4, 5, 64)),
    "scalar": lambda x: mx.broadcast_to(x[1, 2, 3], (7, 9)),
    "0-d": lambda x: x[1, 2, 3],
    "permuted and sliced": lambda x: x.transpose(2, 0, 1)[5::7, 1:, ::2],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_views_give_the_result_of_their_contiguous_copy_f10(view) -> None:
    x = mx.random.normal((4, 6, 64))
    given = view(x)
    assert equal(run(DOUBLE, [given], given.shape), mx.contiguous(given) * 2)


@pytest.mark.parametrize("dtype", [mx.int8, mx.float16, mx.float32, mx.int64])
def test_strided_copies_of_every_item_size(dtype: mx.Dtype) -> None:
    ours = {mx.int8: i8, mx.float16: f16, mx.float32: f32, mx.int64: i64}[dtype]
    kernel = cpu.build(
        kernel_source(f"copy_{ours}", "out[program] = x[program];", {"x": ours}, {"out": ours})
    )
    x = mx.arange(3 * 5 * 7).reshape(3, 5, 7).astype(dtype).transpose(2, 0, 1)[1::2]
    out = kernel.launch([x], [], [x.shape], [ours], (x.size,), [-1])[0]
    assert equal(out, x)


def test_large_views_are_copied_by_many_threads() -> None:
    x = mx.random.normal((700, 900)).T
    assert equal(run(DOUBLE, [x], x.shape), x * 2)


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9])
def test_small_and_empty_arrays_f12(n: int) -> None:
    x = mx.arange(n, dtype=mx.float32)
    assert equal(run(DOUBLE, [x], (n,)), x * 2)
    assert run(DOUBLE, [mx.zeros((3, 0, n))], (3, 0, n)).shape == (3, 0, n)


def test_nothing_runs_for_empty_outputs_or_an_empty_grid_f12() -> None:
    kernel = cpu.build(COUNTER)
    x = mx.zeros(1)
    before = kernel.launch([x], [], [(1,)], [i32], (1,), [-1])[0].item()
    mx.eval(kernel.launch([x], [], [(0,)], [i32], (5,), [-1]))
    empty = kernel.launch([x], [], [(3,)], [i32], (5, 0), [-1])[0]
    assert empty.tolist() == [0, 0, 0]
    assert kernel.launch([x], [], [(1,)], [i32], (1,), [-1])[0].item() == before + 1


def test_outputs_start_as_zero_or_as_a_copy_of_an_input_k7() -> None:
    kernel = cpu.build(
        kernel_source(
            "write_even",
            "if (program % 2 == 0) { a[program] = -1.0f; b[program] = x[program] * 2.0f; }",
            {"x": f32},
            {"a": f32, "b": f32},
        )
    )
    x = mx.arange(8, dtype=mx.float32)[::-1]
    a, b = kernel.launch([x], [], [(8,)] * 2, [f32] * 2, (8,), [-2, 0])
    assert a.tolist() == [-1, 0, -1, 0, -1, 0, -1, 0]
    assert b.tolist() == [14, 6, 10, 4, 6, 2, 2, 0]
    assert x.tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


def test_a_temporary_input_is_never_the_output_buffer_f36() -> None:
    """Programs read what others write at the same place, so donation would be seen."""
    kernel = cpu.build(
        kernel_source(
            "reverse", "out[program] = x[n - 1 - program];", {"x": f32}, {"out": f32}, {"n": i32}
        )
    )
    n = 50_000
    x = mx.arange(n, dtype=mx.float32)
    out = kernel.launch([x + 1], [n], [(n,)], [f32], (n,), [0])[0]
    assert equal(out, (x + 1)[::-1])


def test_programs_are_counted_over_three_axes_x_fastest_f20() -> None:
    kernel = cpu.build(
        kernel_source(
            "where",
            "const uint64_t x = program % grid[0], y = program / grid[0] % grid[1];"
            "out[program] = x + 10 * y + 100 * (program / grid[0] / grid[1]);",
            {},
            {"out": i32},
        )
    )
    out = kernel.launch([], [], [(5, 3, 2)], [i32], (2, 3, 5), [-1])[0]
    x, y, z = mx.arange(2), mx.arange(3)[:, None], mx.arange(5)[:, None, None]
    assert equal(out, x + 10 * y + 100 * z)


def test_every_program_of_a_large_grid_runs_exactly_once() -> None:
    kernel = cpu.build(
        kernel_source(
            "count_runs",
            "for (int i = 0; i < 8; ++i) out[program] += 1 + program % 3;",
            {},
            {"out": u32},
        )
    )
    n = 1_000_003
    for _ in range(3):
        out = kernel.launch([], [], [(n,)], [u32], (n,), [-2])[0]
        assert equal(out, (8 * (1 + mx.arange(n) % 3)).astype(mx.uint32))


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        (i32, -(2**31), -(2**31)),
        (u32, 2**32 - 1, 2**32 - 1),
        (i64, -(2**63), -(2**63)),
        (u64, 2**64 - 1, 2**64 - 1),
        (f32, 3, 3.0),
        (f32, -0.0, -0.0),
        (bool_, True, True),
    ],
)
def test_scalars_arrive_with_their_value(dtype: DType, value: object, expected: object) -> None:
    kernel = cpu.build(
        kernel_source(f"scalar_{dtype}", "out[0] = s;", {}, {"out": dtype}, {"s": dtype})
    )
    out = kernel.launch([], [value], [()], [dtype], (1,), [-1])[0].item()
    assert (out, math.copysign(1, out)) == (expected, math.copysign(1, expected))


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_half_scalars_arrive_as_their_bits(dtype: DType) -> None:
    kernel = cpu.build(
        kernel_source(f"scalar_{dtype}", "out[0] = s;", {}, {"out": dtype}, {"s": dtype})
    )
    out = kernel.launch([], [0.1], [()], [dtype], (1,), [-1])[0]
    assert equal(out, mx.array(0.1, out.dtype))


class Index:
    """An integer that is not an int, as numpy's are."""

    def __index__(self) -> int:
        return 5


def test_scalars_may_be_anything_with_an_index() -> None:
    x = mx.ones(8)
    out = cpu.build(DOUBLE).launch([x], [Index()], [(8,)], [f32], (1,), [-2])[0]
    assert out.tolist() == [2, 2, 2, 2, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("arrays", "scalars", "message"),
    [
        ([], [4], "kernel add takes 2 arrays, 0 given"),
        ([0, 1, 2], [4], "kernel add takes 2 arrays, 3 given"),
        ([0, "i"], [4], "kernel add: array 'y' has dtype mlx.core.int32, compiled for "),
        ([0, 7.5], [4], "kernel add: array 'y' must be an mlx.core.array, float given"),
        ([0, 1], [], "kernel add takes 1 scalars, 0 given"),
        ([0, 1], [2**31], "scalar 'n' = 2147483648 (int) does not fit mlx.core.int32"),
        ([0, 1], [1.0], "scalar 'n' = 1.0 (float) is not an integer"),
    ],
)
def test_wrong_arguments_are_launch_errors_x10(arrays, scalars, message: str) -> None:
    x = mx.zeros(4)
    given = [
        {"i": mx.zeros(4, mx.int32)}.get(a, a) if isinstance(a, (str, float)) else x for a in arrays
    ]
    with pytest.raises(LaunchError) as error:
        cpu.build(ADD).launch(given, scalars, [(4,)], [f32], (1,), [-1])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": (1, 1, 1, 1)}, "grid (1, 1, 1, 1) must be one to three counts"),
        ({"grid": (-1,)}, "grid (-1,) must be one to three counts"),
        ({"grid": (2**31 - 1,) * 3}, "has more than 2^63 programs"),
        ({"shapes": [(2**31,)]}, "output 'out' has shape (2147483648,)"),
        ({"shapes": []}, "has 1 outputs; given 0 shapes"),
        ({"dtypes": [f16]}, "output 'out' is compiled for f32, f16 given"),
        ({"init": [2]}, "output 'out' starts as 2"),
        ({"stream": mx.gpu}, "kernel add is compiled for the cpu backend; a GPU stream was given"),
        ({"stream": mx.Device(mx.gpu)}, "a GPU stream was given"),
    ],
)
def test_wrong_geometry_is_a_launch_error_x8(change: dict, message: str) -> None:
    given = {"shapes": [(4,)], "dtypes": [f32], "grid": (1,), "init": [-1]} | change
    with pytest.raises(LaunchError) as error:
        cpu.build(ADD).bind(**given)
    assert message in str(error.value)


def test_bound_kernels_check_the_shapes_they_were_prepared_for_x10() -> None:
    call = cpu.build(ADD).bind([(4,)], [f32], (1,), [-1], input_shapes=[(4,), (4,)])
    assert call([mx.ones(4), mx.ones(4)], [4])[0].tolist() == [2, 2, 2, 2]
    with pytest.raises(LaunchError, match=r"array 'y' has shape \(3,\), prepared for \(4,\)"):
        call([mx.ones(4), mx.ones(3)], [4])


def test_a_copied_output_needs_an_input_of_its_shape() -> None:
    with pytest.raises(LaunchError, match="output 0 starts as a copy of array 'y' "):
        cpu.build(ADD).launch([mx.ones(4), mx.ones(3)], [4], [(4,)], [f32], (1,), [1])


def test_shapeless_compile_is_refused() -> None:
    compiled = mx.compile(lambda x: run(DOUBLE, [x], x.shape), shapeless=True)
    with pytest.raises(ValueError, match="kernel double_it is compiled for fixed shapes"):
        compiled(mx.ones(4))
