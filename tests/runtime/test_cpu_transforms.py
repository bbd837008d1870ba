"""vmap and gradients of CPU kernels (SPEC X7; F28, F33)."""

from __future__ import annotations

import mlx.core as mx
import pytest

from metile_mlx.dtypes import f32, i32
from metile_mlx.errors import MetileError
from metile_mlx.runtime import cpu
from tests.support.cpu_kernels import kernel_source

# Row sums of w * x * x: one row a program, the weight shared by all rows.
NORM = kernel_source(
    "weighted",
    "float sum = 0; for (int i = 0; i < n; ++i) {"
    " sum += x[program * n + i] * x[program * n + i] * w[i];"
    " y[program * n + i] = x[program * n + i] * w[i]; } s[program] = sum;",
    {"x": f32, "w": f32},
    {"y": f32, "s": f32},
    {"n": i32},
)
SCALE = kernel_source(
    "scale", "out[program] = x[program] * k[program];", {"x": f32, "k": i32}, {"out": f32}
)


def reference(x: mx.array, w: mx.array) -> list[mx.array]:
    return [x * w, (x * x * w).sum(axis=-1)]


class Reference:
    """The transforms of NORM, by MLX's own rules for the same arithmetic."""

    def __init__(self) -> None:
        self.argnums: list[list[int]] = []

    def vjp(self, primals, cotangents, argnums, outputs):
        assert [o.shape for o in outputs] == [c.shape for c in cotangents]
        self.argnums.append(argnums)
        _, pulled = mx.vjp(lambda *p: reference(*p), primals, cotangents)
        return [pulled[i] for i in argnums]

    def jvp(self, primals, tangents, argnums):
        self.argnums.append(argnums)
        full = [mx.zeros_like(p) for p in primals]
        for i, tangent in zip(argnums, tangents, strict=True):
            full[i] = tangent
        _, pushed = mx.jvp(lambda *p: reference(*p), primals, full)
        return pushed


def norm(x: mx.array, w: mx.array, transforms: object = None) -> list[mx.array]:
    rows, n = x.shape
    return cpu.build(NORM).launch(
        [x, w], [n], [(rows, n), (rows,)], [f32, f32], (rows,), [-1, -1], transforms=transforms
    )


def close(actual: mx.array, expected: mx.array) -> bool:
    return (
        actual.shape == expected.shape
        and mx.allclose(actual, expected, rtol=1e-5, atol=1e-5).item()
    )


@pytest.fixture
def x() -> mx.array:
    return mx.random.normal((3, 5, 8), key=mx.random.key(1))


@pytest.fixture
def w() -> mx.array:
    return mx.random.normal((8,), key=mx.random.key(2))


@pytest.mark.parametrize("axes", [(0, None), (1, None), (2, None), (None, 0), (0, 1), (1, 0)])
def test_vmap_equals_a_python_loop_f33(axes: tuple[int | None, int | None], x: mx.array) -> None:
    length = {0: 3, 1: 5, 2: 8}[axes[0]] if axes[0] is not None else 3
    first = x if axes[0] is not None else x[0]
    rows = {0: 8, 1: 8, 2: 5}.get(axes[0], 8)
    shape = {0: (length, rows), 1: (rows, length), None: (rows,)}[axes[1]]
    second = mx.random.normal(shape)
    actual = mx.vmap(norm, in_axes=axes)(first, second)

    def item(array: mx.array, axis: int | None, i: int) -> mx.array:
        return array if axis is None else mx.take(array, mx.array(i), axis=axis)

    loop = [norm(item(first, axes[0], i), item(second, axes[1], i)) for i in range(length)]
    for k in range(2):
        assert mx.array_equal(actual[k], mx.stack([each[k] for each in loop]))


def test_nested_vmap_equals_loops_f33(w: mx.array) -> None:
    x = mx.random.normal((2, 5, 3, 8))
    v = mx.stack([w, w + 1, w - 2])
    inner = mx.vmap(norm, in_axes=(1, 0))  # over the axis of 3
    actual = mx.vmap(inner, in_axes=(0, None))(x, v)
    for i in range(2):
        for j in range(3):
            for k, expected in enumerate(norm(x[i, :, j], v[j])):
                assert mx.array_equal(actual[k][i, j], expected)


def test_vmap_over_zero_size_and_copied_outputs() -> None:
    kernel = cpu.build(
        kernel_source(
            "touch", "if (program == 0) o[0] = x[0] + 1.0f;", {"x": f32, "y": f32}, {"o": f32}
        )
    )

    def launch(x: mx.array, y: mx.array) -> mx.array:
        return kernel.launch([x, y], [], [(2,)], [f32], (2,), [1])[0]

    y = mx.array([7.0, 8.0])
    x = mx.array([[1.0, 2.0], [3.0, 4.0]])
    assert mx.vmap(launch, in_axes=(0, None))(x, y).tolist() == [[2, 8], [4, 8]]
    assert mx.vmap(launch, in_axes=(None, 0))(y, x).tolist() == [[8, 2], [8, 4]]
    assert mx.vmap(launch, in_axes=(0, None))(mx.zeros((0, 2)), y).shape == (0, 2)


def loss(function, x: mx.array, w: mx.array) -> mx.array:
    y, s = function(x, w)
    return (mx.sin(y) * 3).sum() + (s * s).sum()


def test_gradient_goes_through_the_transforms_f28(x: mx.array, w: mx.array) -> None:
    transforms = Reference()
    ours = mx.grad(lambda x, w: loss(lambda *a: norm(*a, transforms), x, w), argnums=(0, 1))
    theirs = mx.grad(lambda x, w: loss(reference, x, w), argnums=(0, 1))
    for function in (ours, mx.compile(ours)):
        for actual, expected in zip(function(x[0], w), theirs(x[0], w), strict=True):
            assert close(actual, expected)
    assert transforms.argnums == [[0, 1], [0, 1]]


def test_jvp_goes_through_the_transforms(x: mx.array, w: mx.array) -> None:
    tangent = mx.ones_like(x[0])
    _, actual = mx.jvp(lambda x: norm(x, w, Reference()), [x[0]], [tangent])
    _, expected = mx.jvp(lambda x: reference(x, w), [x[0]], [tangent])
    assert all(close(a, e) for a, e in zip(actual, expected, strict=True))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_gradient_of_a_vmapped_kernel(axes: tuple[int | None, int | None], x: mx.array) -> None:
    """An input without the vmapped axis gets the sum over it."""
    first = x if axes[0] == 0 else x[0]
    second = mx.random.normal((3, 8)) if axes[1] == 0 else mx.random.normal((8,))

    def grad(function):
        mapped = mx.vmap(function, in_axes=axes)
        return mx.grad(lambda x, w: loss(mapped, x, w), argnums=(0, 1))(first, second)

    for actual, expected in zip(
        grad(lambda *a: norm(*a, Reference())), grad(reference), strict=True
    ):
        assert close(actual, expected)


def test_gradient_and_jvp_of_a_doubly_vmapped_kernel(w: mx.array) -> None:
    x = mx.random.normal((2, 3, 5, 8))
    v = mx.random.normal((3, 8))

    def mapped(function):
        return mx.vmap(mx.vmap(function, in_axes=(0, 0)), in_axes=(0, None))

    ours = mapped(lambda *a: norm(*a, Reference()))
    theirs = mapped(reference)
    for argnum in (0, 1):
        actual = mx.grad(lambda x, w: loss(ours, x, w), argnum)(x, v)
        assert close(actual, mx.grad(lambda x, w: loss(theirs, x, w), argnum)(x, v))
    tangents = [mx.random.normal(x.shape), mx.random.normal(v.shape)]
    _, actual = mx.jvp(ours, [x, v], tangents)
    _, expected = mx.jvp(theirs, [x, v], tangents)
    assert all(close(a, e) for a, e in zip(actual, expected, strict=True))


def test_vmap_of_a_gradient(x: mx.array, w: mx.array) -> None:
    def grad(function):
        return mx.vmap(mx.grad(lambda x, w: loss(function, x, w)), in_axes=(0, None))(x, w)

    assert close(grad(lambda *a: norm(*a, Reference())), grad(reference))


def test_gradient_without_transforms_is_our_error_f28(x: mx.array, w: mx.array) -> None:
    with pytest.raises(MetileError, match="kernel weighted has no gradient: vjp was asked for"):
        mx.grad(lambda x: loss(norm, x, w))(x[0])
    with pytest.raises(MetileError, match="kernel weighted has no gradient: jvp was asked for"):
        mx.jvp(lambda x: norm(x, w), [x[0]], [x[0]])


def test_errors_of_a_transform_arrive_as_they_are(x: mx.array, w: mx.array) -> None:
    class Failing:
        def vjp(self, primals, cotangents, argnums, outputs):
            raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        mx.grad(lambda x: loss(lambda *a: norm(*a, Failing()), x, w))(x[0])


def test_a_transform_must_return_one_array_an_argument(x: mx.array, w: mx.array) -> None:
    class Short:
        def vjp(self, primals, cotangents, argnums, outputs):
            return []

    with pytest.raises(MetileError, match="its vjp returned 0 arrays, expected 1"):
        mx.grad(lambda x: loss(lambda *a: norm(*a, Short()), x, w))(x[0])


def test_integer_inputs_get_zero_cotangents() -> None:
    class Product:
        def vjp(self, primals, cotangents, argnums, outputs):
            assert argnums == [0]
            return [cotangents[0] * primals[1]]

    kernel = cpu.build(SCALE)

    def function(x: mx.array) -> mx.array:
        whole = (x * 10).astype(mx.int32)
        out = kernel.launch([x, whole], [], [(3,)], [f32], (3,), [-1], transforms=Product())
        return out[0].sum()

    assert mx.grad(function)(mx.array([1.0, 2.0, 3.0])).tolist() == [10, 20, 30]
