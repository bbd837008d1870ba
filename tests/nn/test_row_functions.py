"""What every function of rows keeps: MLX's values and gradients, transforms, one text (X7, B2).

A function is a line of FUNCTIONS; what is special to a family stands in its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

import metile_mlx as metile
from metile_mlx.runtime.export import primitives
from tests.support.functions import close
from tests.support.profile import count
from tests.support.public import same_bits
from tests.support.rounding import exact
from tests.support.rows import DTYPES, normal

Arrays = tuple[mx.array, ...]


@dataclass(frozen=True)
class Function:
    """One of ours, MLX's own, and arguments for both.

    Attributes:
        ours, theirs: from the arguments to an array.
        arguments: of a shape (..., N), a dtype and a seed: floats to be differentiated first, then
            one array at most whose leading axes are those of the shape.
        axes: of vmap: which of the arguments have an axis to be mapped over.
        exact: only data moves.
    """

    ours: Callable[..., mx.array]
    theirs: Callable[..., mx.array]
    arguments: Callable[[tuple[int, ...], mx.Dtype, int], Arrays]
    axes: Sequence[tuple[int | None, ...]] = ((0,),)
    exact: bool = False


def alone(shape: tuple[int, ...], dtype: mx.Dtype, seed: int) -> Arrays:
    return (normal(shape, dtype, seed, scale=2),)


def coarse(shape: tuple[int, ...], dtype: mx.Dtype, seed: int) -> Arrays:
    """Small integers, many of them equal."""
    return (mx.random.randint(-3, 4, shape, key=mx.random.key(seed)).astype(dtype),)


def with_targets(shape: tuple[int, ...], dtype: mx.Dtype, seed: int) -> Arrays:
    width = shape[-1]
    targets = mx.random.randint(0, width, shape[:-1], key=mx.random.key(seed + 1))
    return (*alone(shape, dtype, seed), targets)


def with_ids(shape: tuple[int, ...], dtype: mx.Dtype, seed: int) -> Arrays:
    """A table of 11 rows, and more numbers than rows."""
    ids = mx.random.randint(-11, 11, (*shape[:-1], 7), key=mx.random.key(seed + 1))
    return (*alone((11, shape[-1]), dtype, seed), ids)


def reduced(operation: Any, axis: int) -> Function:
    return Function(
        lambda x: metile.reduce(x, operation, axis=axis),
        lambda x: getattr(mx, operation)(x, axis=axis),
        coarse if operation in ("max", "min") else alone,
    )


def plain_log_softmax(x: mx.array) -> mx.array:
    """`mlx.nn.log_softmax` without its mx.compile, which crashes on one element (MLX 0.32.4)."""
    wide = x.astype(mx.float32)
    return (wide - mx.logsumexp(wide, axis=-1, keepdims=True)).astype(x.dtype)


FUNCTIONS = {
    "softmax": Function(metile.softmax, lambda x: mx.softmax(x, axis=-1, precise=True), alone),
    "log_softmax": Function(metile.log_softmax, plain_log_softmax, alone),
    "cross_entropy": Function(
        metile.cross_entropy,
        lambda x, t: nn.losses.cross_entropy(x.astype(mx.float32), t).astype(x.dtype),
        with_targets,
        ((0, 0), (0, None), (None, 0)),
    ),
    **{
        f"{operation} of {what}": reduced(operation, axis)
        for operation in ("sum", "mean", "max", "min")
        for what, axis in (("rows", -1), ("columns", 0))
    },
    "take": Function(
        metile.take, lambda t, i: mx.take(t, i, axis=0), with_ids, ((None, 0),), exact=True
    ),
    "top1": Function(lambda x: metile.top1(x)[0], lambda x: mx.max(x, axis=-1), alone),
}
NAMES = list(FUNCTIONS)


RTOL = {mx.float32: 2e-6, mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}


def agree(function: Function, *arguments: mx.array) -> None:
    made, expected = function.ours(*arguments), function.theirs(*arguments)
    if function.exact:
        assert same_bits(made, expected)
    else:
        close(made, expected, RTOL[made.dtype])


def gradient(of: Callable[..., mx.array], seed: int = 9) -> Callable[..., mx.array]:
    """Of the first argument, for N(0, 1) cotangents."""

    def loss(*arguments: mx.array) -> mx.array:
        made = of(*arguments)
        return (made.astype(mx.float32) * normal(made.shape, seed=seed)).sum()

    return mx.grad(loss)


@pytest.mark.parametrize("name", NAMES)
def test_b2_any_shape_on_every_backend(backend: str, name: str) -> None:
    function = FUNCTIONS[name]
    number = len(DTYPES) if backend != "emulator" else count(ci=1, full=len(DTYPES))
    for dtype in DTYPES[:number]:
        for shape in ((1, 1), (5, 8), (2, 3, 9), (33,), (2, 1, 2, 48)):
            agree(function, *function.arguments(shape, dtype, len(shape)))


@pytest.mark.parametrize("name", NAMES)
def test_f10_x8_views(name: str) -> None:
    """Transposed, sliced and broadcast, in front and within rows."""
    function = FUNCTIONS[name]
    x, *others = function.arguments((40, 6, 64), mx.float32, 0)
    views = [x[..., ::2], mx.broadcast_to(x[:1], x.shape)]
    if not others:
        views += [x.transpose(1, 0, 2), x.transpose(0, 2, 1), x[::3]]
    for view in views:
        width = view.shape[-1]
        agree(function, view, *(mx.remainder(a, min(width, 11)) for a in others))


@pytest.mark.parametrize("name", NAMES)
def test_f28_gradients_equal_mlxs_on_every_backend_and_compiled(backend: str, name: str) -> None:
    """The second call of a compiled function takes another way than the first."""
    function = FUNCTIONS[name]
    arguments = function.arguments((3, 40), mx.float32, 1)
    expected = gradient(function.theirs)(*arguments)
    close(gradient(function.ours)(*arguments), expected)
    if backend == "cpu":
        compiled = mx.compile(gradient(function.ours))
        for _ in range(2):
            close(compiled(*arguments), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_f28_gradients_in_the_dtype_of_the_argument(name: str, dtype: mx.Dtype) -> None:
    function = FUNCTIONS[name]
    arguments = function.arguments((2, 3, 33), dtype, 2)
    made = gradient(function.ours)(*arguments)
    wide, *others = arguments
    expected = gradient(function.theirs)(wide.astype(mx.float32), *others)
    assert made.dtype == dtype
    close(made.astype(mx.float32), expected, 4 * RTOL[dtype])


@pytest.mark.parametrize("name", NAMES)
def test_f28_finite_differences(name: str) -> None:
    """In a direction, of losses in f32: the slope to 1 part in 100."""
    function = FUNCTIONS[name]
    x, *others = function.arguments((4, 21), mx.float32, 3)
    # No two of the numbers are equal.
    x = normal(x.shape, seed=3, scale=2)
    direction, step = normal(x.shape, seed=4), 2.0**-9
    given = normal(function.ours(x, *others).shape, seed=9)

    def loss(x: mx.array) -> float:
        return float((exact(function.ours(x, *others)) * exact(given)).sum())

    slope = (loss(x + step * direction) - loss(x - step * direction)) / (2 * step)
    expected = float((exact(gradient(function.ours)(x, *others)) * exact(direction)).sum())
    assert abs(slope - expected) <= 0.01 * abs(expected) + 1e-3


@pytest.mark.parametrize("name", NAMES)
def test_x7_second_derivatives_and_jvp(batchable: str, name: str) -> None:
    """Of the gradient kernels, through the reference."""
    function = FUNCTIONS[name]
    x, *others = function.arguments((3, 12), mx.float32, 5)

    def twice(of: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def first(x: mx.array) -> mx.array:
            return gradient(lambda x: of(x, *others) ** 2)(x)

        return mx.grad(lambda x: (first(x) ** 2).sum())

    close(twice(function.ours)(x), twice(function.theirs)(x), 1e-4)
    # Of equal elements a reference takes another part than MLX.
    x, direction = normal(x.shape, seed=7), normal(x.shape, seed=6)
    pushed = [
        mx.jvp(lambda x, f=of: f(x, *others), [x], [direction])[1][0]
        for of in (function.ours, function.theirs)
    ]
    close(*pushed)
    slopes = [
        mx.jvp(lambda x, f=of: gradient(f)(x, *others), [x], [direction])[1][0]
        for of in (function.ours, function.theirs)
    ]
    close(*slopes, 1e-4)


CASES = [(name, axes) for name, function in FUNCTIONS.items() for axes in function.axes]


def batched(function: Function, axes: Sequence[int | None]) -> Arrays:
    """Arguments with an axis of 3 in front where they are mapped over."""
    many = [function.arguments((4, 40), mx.float32, seed) for seed in range(3)]
    return tuple(
        mx.stack([arguments[i] for arguments in many]) if axis == 0 else many[0][i]
        for i, axis in enumerate(axes)
    )


@pytest.mark.parametrize(("name", "axes"), CASES)
def test_f33_x7_vmap_and_gradients_under_it(
    batchable: str, name: str, axes: Sequence[int | None]
) -> None:
    """As a loop over the mapped axis, wherever it stands."""
    function = FUNCTIONS[name]
    arguments = batched(function, axes)

    def each(of: Callable[..., mx.array]) -> mx.array:
        return mx.stack(
            [
                of(*(a if axis is None else a[i] for a, axis in zip(arguments, axes, strict=True)))
                for i in range(3)
            ]
        )

    moved = [
        a if axis is None else mx.moveaxis(a, 0, -1)
        for a, axis in zip(arguments, axes, strict=True)
    ]
    last = tuple(axis if axis is None else -1 for axis in axes)
    for vmap in (mx.vmap, metile.vmap):
        close(vmap(function.ours, in_axes=axes)(*arguments), each(function.theirs), 2e-6)
        close(vmap(function.ours, in_axes=last)(*moved), each(function.theirs), 2e-6)
        made = vmap(gradient(function.ours), in_axes=axes)(*arguments)
        close(made, each(gradient(function.theirs)))


@pytest.mark.emulator
@pytest.mark.parametrize(("name", "axes"), CASES)
def test_x7_metile_vmap_where_mlx_cant(
    name: str, axes: Sequence[int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = FUNCTIONS[name]
    arguments = batched(function, axes)
    expected = mx.vmap(function.theirs, in_axes=axes)(*arguments)
    monkeypatch.setenv("METILE_BACKEND", "emulator")
    close(metile.vmap(function.ours, in_axes=axes)(*arguments), expected, 2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_x2_an_export_holds_kernels_and_nothing_to_take_their_place(name: str) -> None:
    function = FUNCTIONS[name]
    names = primitives(function.ours, *function.arguments((4, 64), mx.float16, 0))
    assert "CustomKernel" in names
    assert {"CustomTransforms", "Exp", "Softmax", "LogSumExp", "Reduce"}.isdisjoint(names)


@pytest.mark.parametrize("name", NAMES)
def test_streams(name: str) -> None:
    function = FUNCTIONS[name]
    arguments = function.arguments((4, 64), mx.float32, 0)
    with mx.stream(mx.new_stream(mx.cpu)):
        close(function.ours(*arguments), function.theirs(*arguments), 2e-6)
        close(gradient(function.ours)(*arguments), gradient(function.theirs)(*arguments))


@pytest.mark.parametrize("name", NAMES)
def test_f51_two_runs_are_bit_equal(name: str) -> None:
    function = FUNCTIONS[name]
    arguments = function.arguments((300, 48), mx.float32, 0)
    for of in (function.ours, gradient(function.ours)):
        assert same_bits(of(*arguments), of(*arguments))
