"""`metile.matmul`: values, what follows, gradients, transforms, errors (SPEC B2, X7, F12, F28)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

import metile_mlx as metile
from metile_mlx.nn.tiles import product_tiles
from metile_mlx.runtime.export import primitives
from tests.support.functions import close
from tests.support.profile import count
from tests.support.public import compilations, same_bits
from tests.support.rounding import exact
from tests.support.rows import DTYPES, near, normal

Shapes = tuple[tuple[int, ...], tuple[int, ...]]
# Of matrices, vectors, batches that have one matrix, that broadcast, and that are all their own.
SHAPES: Sequence[Shapes] = (
    ((5, 7), (7, 8)),
    ((1, 1), (1, 1)),
    ((7,), (7, 6)),
    ((5, 7), (7,)),
    ((8,), (8,)),
    ((2, 1, 3, 7), (7, 5)),
    ((5, 7), (3, 7, 8)),
    ((2, 1, 5, 7), (3, 7, 2)),
    ((2, 4, 7), (2, 7, 3)),
)
EMPTY: Sequence[Shapes] = (
    ((0, 7), (7, 9)),
    ((5, 0), (0, 9)),
    ((5, 7), (7, 0)),
    ((0,), (0,)),
    ((2, 0, 7), (7, 3)),
    ((0, 0), (0, 0)),
)


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles nothing; tests that say so run on other backends too."""
    monkeypatch.setenv("METILE_BACKEND", "reference")


def pair(shapes: Shapes, dtype: mx.Dtype = mx.float32) -> tuple[mx.array, mx.array]:
    x, y = (normal(shape, dtype, seed) for seed, shape in enumerate(shapes, 1))
    return x, y


def check(made: mx.array, x: mx.array, y: mx.array) -> None:
    expected, size = exact(x) @ exact(y), np.abs(exact(x)) @ np.abs(exact(y))
    near(made, np.asarray(expected), (x.shape, y.shape), size)


def weighted(of: Callable[..., mx.array], seed: int = 9) -> Callable[..., mx.array]:
    """The sum with N(0, 1) weights."""

    def loss(*arguments: mx.array) -> mx.array:
        made = of(*arguments)
        return (made.astype(mx.float32) * normal(made.shape, seed=seed)).sum()

    return loss


def gradients(of: Callable[..., mx.array], *arguments: mx.array) -> list[mx.array]:
    return list(mx.grad(weighted(of), list(range(len(arguments))))(*arguments))


def swapped(x: mx.array, y: mx.array) -> mx.array:
    return metile.matmul(x, mx.swapaxes(y, -1, -2), transpose_y=True)


def test_b2_every_shape_on_every_backend(backend: str) -> None:
    """Elsewhere than on the reference in one dtype: tests of the kernel have them all."""
    for shapes in SHAPES:
        for dtype in DTYPES if backend == "reference" else DTYPES[:1]:
            x, y = pair(shapes, dtype)
            made = metile.matmul(x, y)
            assert (made.shape, made.dtype) == ((x @ y).shape, dtype)
            check(made, x, y)


@pytest.mark.parametrize("dtype", DTYPES)
def test_b2_sizes_around_tiles_and_parts_of_k(
    dtype: mx.Dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if DTYPES.index(dtype) < count(ci=1, full=3):
        monkeypatch.setenv("METILE_BACKEND", "cpu")
    for m, n, k in ((65, 70, 257), (3, 5, 3000), (1, 1, 5000), (7, 8, 9), (1, 1, 1)):
        x, y = pair(((m, k), (k, n)), dtype)
        check(metile.matmul(x, y), x, y)
    assert product_tiles("cpu", 1, 3, 5, 3000).splits > 1


def test_f10_x8_views_and_matrices_that_lie_the_other_way_round() -> None:
    x, y = normal((6, 40, 16)), normal((16, 24), seed=1)
    for a in (x[:, ::2], x[..., ::-1], x.transpose(1, 0, 2), mx.broadcast_to(x[:1], x.shape)):
        check(metile.matmul(a, y), a, y)
    check(metile.matmul(x, y.T[::3].T), x, y.T[::3].T)
    stored = mx.contiguous(y.T)
    assert same_bits(metile.matmul(x, stored, transpose_y=True), metile.matmul(x, y))
    turned = mx.contiguous(x.swapaxes(1, 2))
    for made in (
        metile.matmul(turned, y, transpose_x=True),
        metile.matmul(turned, stored, transpose_x=True, transpose_y=True),
    ):
        check(made, x, y)


FOLLOW: dict[Any, Callable[[mx.array], mx.array]] = {
    None: lambda x: x,
    "relu": lambda x: mx.maximum(x, 0),
    "silu": nn.silu,
    "gelu": nn.gelu,
    "gelu_tanh": nn.gelu_approx,
    "gelu_sigmoid": nn.gelu_fast_approx,
}


def linear(x: mx.array, w: mx.array, b: mx.array, r: mx.array, name: Any) -> mx.array:
    return metile.matmul(x, w, bias=b, activation=name, residual=r, scale=0.5, transpose_y=True)


def plain(x: mx.array, w: mx.array, b: mx.array, r: mx.array, name: Any) -> mx.array:
    wide = [a.astype(mx.float32) for a in (x, w, b, r)]
    made = FOLLOW[name](0.5 * (wide[0] @ wide[1].T) + wide[2]) + wide[3]
    return made.astype(mx.result_type(x, w, b, r))


def inputs(dtype: mx.Dtype) -> tuple[mx.array, ...]:
    """A batch of rows, weights, a bias and a residual for every row."""
    shapes = ((2, 3, 20), (17, 20), (17,), (3, 17))
    return tuple(normal(shape, dtype, seed) for seed, shape in enumerate(shapes))


def test_b2_what_follows_is_done_in_f32_and_rounded_once(backend: str) -> None:
    for number, name in enumerate(FOLLOW):
        dtype = DTYPES[number % 3]
        if backend != "reference" and name != "gelu_tanh":
            continue
        given = inputs(dtype)
        made, expected = linear(*given, name), plain(*given, name)
        close(
            made,
            expected,
            {mx.float32: 1e-6}.get(dtype, 2.0**-9 if dtype == mx.float16 else 2.0**-6),
        )
        # A wider bias widens the result, as in MLX.
        if dtype == mx.float16:
            wide = linear(given[0], given[1], given[2].astype(mx.float32), given[3], name)
            assert wide.dtype == mx.float32


def test_f28_gradients_equal_mlxs_on_every_backend(backend: str) -> None:
    for number, shapes in enumerate(SHAPES):
        if backend == "reference" or number == 0:
            arguments = pair(shapes)
            ours = swapped if number % 2 == 0 and arguments[1].ndim > 1 else metile.matmul
            for made, expected in zip(
                gradients(ours, *arguments), gradients(mx.matmul, *arguments), strict=True
            ):
                close(made, expected, 4e-6)
    given = inputs(mx.float32)
    for name in FOLLOW if backend == "reference" else ("relu",) if backend == "cpu" else ():
        for made, expected in zip(
            gradients(lambda *a, n=name: linear(*a, n), *given),
            gradients(lambda *a, n=name: plain(*a, n), *given),
            strict=True,
        ):
            close(made, expected)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_f28_gradients_in_the_dtype_of_the_arguments(dtype: mx.Dtype) -> None:
    given = inputs(dtype)
    for made, expected in zip(
        gradients(lambda *a: linear(*a, "silu"), *given),
        gradients(lambda *a: plain(*a, "silu"), *(x.astype(mx.float32) for x in given)),
        strict=True,
    ):
        assert made.dtype == dtype
        close(made.astype(mx.float32), expected, 4 * float(mx.finfo(dtype).eps))


def test_f28_finite_differences() -> None:
    """In a direction of each argument, of losses in float64: the slope to 1 part in 100."""
    given, step = inputs(mx.float32), 2.0**-9
    made = gradients(lambda *a: linear(*a, "gelu"), *given)
    weights = exact(normal((2, 3, 17), seed=9))

    def loss(*arguments: mx.array) -> float:
        return float((exact(linear(*arguments, "gelu")) * weights).sum())

    for index, x in enumerate(given):
        direction = normal(x.shape, seed=20 + index)

        def moved(by: float, i: int = index, d: mx.array = direction) -> tuple[mx.array, ...]:
            return (*given[:i], given[i] + by * d, *given[i + 1 :])

        slope = (loss(*moved(step)) - loss(*moved(-step))) / (2 * step)
        expected = float((exact(made[index]) * exact(direction)).sum())
        assert abs(slope - expected) <= 0.01 * abs(expected) + 1e-3, index


@pytest.mark.parametrize("transposed", ["nn", "nt", "tn", "tt"])
def test_f28_gradients_of_every_way_of_storing(transposed: str) -> None:
    """Where all batches have one matrix of either, too."""
    for shapes in (((3, 5, 8), (3, 8, 9)), ((3, 5, 8), (1, 8, 9)), ((1, 5, 8), (3, 8, 9))):
        x, y = (
            mx.contiguous(mx.swapaxes(a, 1, 2)) if how == "t" else a
            for a, how in zip(pair(shapes), transposed, strict=True)
        )
        flags = {"transpose_x": transposed[0] == "t", "transpose_y": transposed[1] == "t"}

        def theirs(x: mx.array, y: mx.array) -> mx.array:
            turned = (
                mx.swapaxes(a, 1, 2) if how == "t" else a
                for a, how in zip((x, y), transposed, strict=True)
            )
            return mx.matmul(*turned)

        for made, expected in zip(
            gradients(lambda *a, f=flags: metile.matmul(*a, **f), x, y),
            gradients(theirs, x, y),
            strict=True,
        ):
            close(made, expected, 4e-6)


def test_x7_second_derivatives() -> None:
    """Of products through products, of what follows through the reference."""
    given = inputs(mx.float32)[:3]

    def twice(of: Callable[..., mx.array]) -> Callable[..., list[mx.array]]:
        def first(*arguments: mx.array) -> mx.array:
            return mx.grad(weighted(lambda *a: of(*a) ** 2))(*arguments)

        return lambda *a: gradients(first, *a)

    def ours(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return metile.matmul(x, w, bias=b, activation="silu", transpose_y=True)

    def theirs(x: mx.array, w: mx.array, b: mx.array) -> mx.array:
        return nn.silu(x @ w.T + b)

    for made, expected in zip(twice(ours)(*given), twice(theirs)(*given), strict=True):
        close(made, expected, 1e-4)


def test_x7_vmap(batchable: str) -> None:
    """MLX's over either argument; ours too."""
    x, y = normal((4, 5, 8)), normal((4, 8, 7), seed=1)
    for axes in ((0, 0), (0, None), (None, 0)):
        given = [a if axis == 0 else a[0] for a, axis in zip((x, y), axes, strict=True)]
        expected = mx.vmap(mx.matmul, axes)(*given)
        for mapped in (mx.vmap, metile.vmap):
            close(mapped(metile.matmul, axes)(*given), expected, 4e-6)
    slope = mx.grad(lambda x: (metile.matmul(x, y[0]) ** 2).sum())
    close(mx.vmap(slope)(x), slope(x.reshape(-1, 8)).reshape(x.shape), 4e-6)


@pytest.mark.emulator
def test_x7_our_vmap_where_mlx_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METILE_BACKEND", "emulator")
    x, y = normal((3, 5, 8)), normal((8, 7), seed=1)
    close(metile.vmap(metile.matmul, (0, None))(x, y), x @ y, 4e-6)


def test_x7_compile_streams_and_export(batchable: str) -> None:
    given = inputs(mx.float32)
    compiled = mx.compile(lambda *a: gradients(lambda *b: linear(*b, "relu"), *a)[0])
    for _ in range(2):
        expected = gradients(lambda *a: plain(*a, "relu"), *given)[0]
        close(compiled(*given), expected)
    stream = mx.new_stream(mx.cpu)
    close(metile.matmul(given[0], given[1].T, stream=stream), given[0] @ given[1].T, 4e-6)
    assert primitives(lambda *a: linear(*a, "relu"), *given).count("CustomKernel") == 1
    parts = primitives(metile.matmul, *pair(((1, 4096), (4096, 8))))
    assert parts.count("CustomKernel") == 2


@pytest.mark.emulator
def test_k8_a_schedule_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METILE_BACKEND", "emulator")
    x, y = pair(((7, 40), (40, 8)), mx.float16)
    made = [
        metile.matmul(x, y, schedule=metile.Schedule(staging=staging))
        for staging in ("device", "threadgroup")
    ]
    assert same_bits(*made)


def test_f12_nothing_is_launched_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METILE_BACKEND", "cpu")
    with compilations() as found:
        for shapes in EMPTY:
            for dtype in DTYPES:
                x, y = pair(shapes, dtype)
                assert same_bits(metile.matmul(x, y), x @ y), shapes
        x, y = pair(((5, 0), (0, 9)))
        bias, rest = normal((9,)), normal((5, 9), seed=1)
        made = metile.matmul(x, y, bias=bias, residual=rest, activation="relu")
        assert same_bits(made, mx.broadcast_to(mx.maximum(bias, 0), (5, 9)) + rest)
        for made, like in zip(gradients(metile.matmul, x, y), (x, y), strict=True):
            assert made.shape == like.shape
    assert found == []


def test_f04_a_new_size_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its tiles are of the same size."""
    monkeypatch.setenv("METILE_BACKEND", "cpu")
    for m, n in ((5, 7), (70, 70)):
        mx.eval(metile.matmul(normal((m, 9)), normal((9, n))))
    with compilations() as found:
        for m, n, k in ((1, 1, 1), (8, 8, 300), (200, 71, 12)):
            mx.eval(metile.matmul(normal((m, k)), normal((k, n))))
    assert found == []


def test_f51_two_runs_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METILE_BACKEND", "cpu")
    for shapes in (((70, 300), (300, 65)), ((2, 5000), (5000, 3))):
        x, y = pair(shapes)
        assert same_bits(metile.matmul(x, y), metile.matmul(x, y))


def test_bad_arguments_are_named() -> None:
    x, y = pair(((5, 7), (7, 9)))
    cases: Sequence[tuple[tuple[Any, ...], dict[str, Any], str]] = (
        ((x, x), {}, "x has 7 columns and y 5 rows"),
        ((x, y), {"transpose_y": True}, "x has 7 columns and y 9 rows.*with transpose_y"),
        ((x, mx.array(1.0)), {}, r"y has shape \(\); expected a vector"),
        ((x, y[:, 0]), {"transpose_y": True}, r"transpose_y is given and y has shape \(7,\)"),
        ((mx.zeros((2, 5, 7)), mx.zeros((3, 7, 9))), {}, r"\(2,\) and \(3,\), do not broadcast"),
        ((x, y), {"bias": mx.zeros(5)}, r"bias has shape \(5,\); expected \(9,\)"),
        ((x, y), {"residual": mx.zeros((5, 8))}, "does not broadcast"),
        ((x, y), {"activation": "tanh"}, "activation is 'tanh'; expected None or one of relu"),
        ((x.astype(mx.int32), y.astype(mx.int32)), {}, "would be int32"),
        ((x, y.astype(mx.complex64)), {}, "would be complex64"),
    )
    for arguments, named, message in cases:
        with pytest.raises(metile.LaunchError, match=message):
            metile.matmul(*arguments, **named)


def test_integers_take_the_dtype_of_the_floats() -> None:
    x, y = mx.array([[1, 2], [3, 4]]), mx.array([[1, 0], [2, 1]], mx.float16)
    assert same_bits(metile.matmul(x, y), mx.array([[5, 2], [11, 4]], mx.float16))
