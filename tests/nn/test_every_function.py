"""What every function with a gradient keeps (SPEC B2, X7; F10, F28, F33).

Functions of rows of any width have more of this in a file of their own; a line of FUNCTIONS adds
one of any kind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

import metile_mlx as metile
from metile_mlx.runtime.export import primitives
from tests.nn.test_row_functions import FUNCTIONS as OF_ROWS
from tests.support.functions import close
from tests.support.public import same_bits
from tests.support.rounding import exact
from tests.support.rows import normal

EPS = 1e-5
# Of the first argument, as F33 has it.
ROWS, WIDTH = 5, 64
Shape = tuple[int, ...]
Of = Callable[..., mx.array]
ROPE = {"traditional": False, "base": 1e4, "scale": 1.0, "offset": 3}


@dataclass(frozen=True)
class Function:
    """One of ours and MLX's own, both of floats to an array.

    Attributes:
        extra: how many arguments there are besides the first, each a row as wide as that.
        like: how many there are of the first's shape.
    """

    ours: Of
    theirs: Of
    like: int = 1
    extra: int = 0
    rank: int = 2

    def shapes(self, shape: Shape = (ROWS, WIDTH)) -> list[Shape]:
        front = (1,) * (self.rank - len(shape))
        return [(*front, *shape)] * self.like + [shape[-1:]] * self.extra

    def arguments(self, shape: Shape = (ROWS, WIDTH)) -> list[mx.array]:
        return [normal(each, seed=seed) for seed, each in enumerate(self.shapes(shape))]


def both(pair: tuple[mx.array, mx.array]) -> mx.array:
    return pair[0] + 2 * pair[1]


def gelu(approx: Any, theirs: Of) -> dict[str, Function]:
    return {
        f"gelu {approx}": Function(partial(metile.gelu, approx=approx), theirs),
        f"geglu {approx}": Function(
            partial(metile.geglu, approx=approx), lambda g, u: theirs(g) * u, like=2
        ),
    }


FUNCTIONS = {
    "rms_norm": Function(
        lambda x, w: metile.rms_norm(x, w, EPS), lambda x, w: mx.fast.rms_norm(x, w, EPS), extra=1
    ),
    "rms_norm without weight": Function(
        lambda x: metile.rms_norm(x, None, EPS), lambda x: mx.fast.rms_norm(x, None, EPS)
    ),
    "add_rms_norm": Function(
        lambda x, r, w: both(metile.add_rms_norm(x, r, w, EPS)),
        lambda x, r, w: both((mx.fast.rms_norm(x + r, w, EPS), x + r)),
        like=2,
        extra=1,
    ),
    "layer_norm": Function(
        lambda x, w, b: metile.layer_norm(x, w, b, EPS),
        lambda x, w, b: mx.fast.layer_norm(x, w, b, EPS),
        extra=2,
    ),
    "silu": Function(metile.silu, nn.silu),
    "swiglu": Function(metile.swiglu, lambda g, u: nn.silu(g) * u, like=2),
    **gelu("none", nn.gelu),
    **gelu("tanh", nn.gelu_approx),
    **gelu("fast", nn.gelu_fast_approx),
    "rope": Function(
        lambda x: metile.rope(x, 8, **ROPE), lambda x: mx.fast.rope(x, 8, **ROPE), rank=4
    ),
    "matmul": Function(
        lambda x, y: metile.matmul(x, y, transpose_y=True), lambda x, y: x @ y.T, like=2
    ),
}
NAMES = list(FUNCTIONS)


def test_every_function_is_here() -> None:
    named = {name.partition(" ")[0] for name in (*FUNCTIONS, *OF_ROWS)}
    named |= {"reduce"} if "sum of rows" in OF_ROWS else set()
    every = {name: getattr(metile.nn, name) for name in metile.nn.__all__}
    functions = {name for name, item in every.items() if not isinstance(item, type)}
    assert functions - {"using"} <= named


def weighted(of: Of) -> Of:
    def loss(*arguments: mx.array) -> mx.array:
        made = of(*arguments)
        return (made * normal(made.shape, seed=9)).sum()

    return loss


def gradients(of: Of, number: int) -> Callable[..., list[mx.array]]:
    """Of so many arguments; of one MLX gives an array, no tuple."""
    made = mx.grad(weighted(of), tuple(range(number)))
    return lambda *arguments: [made(*arguments)] if number == 1 else list(made(*arguments))


@pytest.mark.parametrize("name", NAMES)
def test_f28_finite_differences_and_mlxs_gradients(name: str) -> None:
    """Of each argument, in a direction: the slope to 1 part in 100."""
    function = FUNCTIONS[name]
    arguments, step = function.arguments(), 2.0**-8
    found = gradients(function.ours, len(arguments))(*arguments)
    for made, theirs in zip(
        found, gradients(function.theirs, len(arguments))(*arguments), strict=True
    ):
        close(made, theirs, 2e-5)

    def loss(position: int, by: mx.array) -> float:
        moved = [a + by if i == position else a for i, a in enumerate(arguments)]
        made = function.ours(*moved)
        return float((exact(made) * exact(normal(made.shape, seed=9))).sum())

    for position, slope in enumerate(found):
        direction = normal(slope.shape, seed=20 + position)
        ends = [loss(position, sign * step * direction) for sign in (1, -1)]
        expected = float((exact(slope) * exact(direction)).sum())
        assert abs((ends[0] - ends[1]) / (2 * step) - expected) <= 0.01 * abs(expected) + 5e-3


def axes_of(function: Function) -> Iterator[tuple[int | None, ...]]:
    """Each argument alone, along its first and its second axis, and all of them."""
    number = function.like + function.extra
    for position in range(number):
        for axis in (0, 1):
            yield tuple(axis if i == position else None for i in range(number))
    if number > 1:
        yield (0,) * number


@pytest.mark.parametrize("name", NAMES)
def test_f33_x7_vmap_and_gradients_under_it(batchable: str, name: str) -> None:
    """As a loop over the mapped axis."""
    function = FUNCTIONS[name]
    shapes = function.shapes()
    for axes in axes_of(function):
        arguments = [
            normal(shape if axis is None else (3, *shape), seed=seed)
            for seed, (shape, axis) in enumerate(zip(shapes, axes, strict=True))
        ]
        moved = [
            a if axis is None else mx.moveaxis(a, 0, axis)
            for a, axis in zip(arguments, axes, strict=True)
        ]

        def each(of: Callable[..., Any], arguments=arguments, axes=axes) -> list[Any]:
            pairs = list(zip(arguments, axes, strict=True))
            return [of(*(a if axis is None else a[i] for a, axis in pairs)) for i in range(3)]

        expected = mx.stack(each(function.theirs))
        of_theirs = each(gradients(function.theirs, len(axes)))
        slopes = [mx.stack([found[k] for found in of_theirs]) for k in range(len(axes))]
        for vmap in (mx.vmap, metile.vmap):
            close(vmap(function.ours, in_axes=axes)(*moved), expected, 5e-6)
            made = vmap(gradients(function.ours, len(axes)), in_axes=axes)(*moved)
            for one, right in zip(made, slopes, strict=True):
                close(one, right, 2e-5)


def ids(low: int, high: int, *shape: int) -> mx.array:
    return mx.random.randint(low, high, shape, key=mx.random.key(7))


MANY = normal((3, ROWS, WIDTH))
TARGETS, NUMBERS = ids(0, WIDTH, 3, ROWS), ids(-ROWS, ROWS, 3, 7)
HEADS, PERIODS = normal((3, 2, 4, 5, 8)), mx.arange(1.0, 13.0).reshape(3, 4)
# What options and arrays of integers add: ours, MLX's, and for each the axes and arguments.
OPTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any], bool]] = {
    "top1": (metile.top1, lambda x: (mx.max(x, axis=-1), mx.argmax(x, axis=-1)), [MANY], False),
    **{
        f"cross_entropy {how}": (
            partial(metile.cross_entropy, reduction=how),
            partial(nn.losses.cross_entropy, reduction=how),
            [MANY, TARGETS],
            True,
        )
        for how in ("mean", "sum")
    },
    "take": (metile.take, lambda t, i: mx.take(t, i, axis=0), [MANY, NUMBERS], True),
    **{
        f"reduce {axis} {kept}": (
            partial(metile.reduce, operation="mean", axis=axis, keepdims=kept),
            partial(mx.mean, axis=axis, keepdims=kept),
            [MANY],
            True,
        )
        for axis in (0, -1)
        for kept in (False, True)
    },
    "rope from other positions": (
        lambda x, o: metile.rope(x, 8, **{**ROPE, "offset": o}),
        lambda x, o: mx.fast.rope(x, 8, **{**ROPE, "offset": o}),
        [HEADS, mx.array([3, 9, 20])],
        True,
    ),
    "rope of other periods": (
        lambda x, f: metile.rope(x, 8, **{**ROPE, "base": None}, freqs=f),
        lambda x, f: mx.fast.rope(x, 8, **{**ROPE, "base": None}, freqs=f),
        [HEADS, PERIODS],
        False,
    ),
    "matmul and what follows": (
        lambda x, w, b: metile.matmul(x, w, bias=b, activation="silu", transpose_y=True),
        lambda x, w, b: nn.silu(x @ w.T + b),
        [MANY, normal((3, 7, WIDTH), seed=2), normal((3, 7), seed=4)],
        True,
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_f33_x7_vmap_with_options_and_integers(name: str) -> None:
    """Each argument alone, and all of them; gradients of the first where MLX has them here."""
    ours, theirs, given, slopes = OPTIONS[name]
    alone = [tuple(0 if i == k else None for i in range(len(given))) for k in range(len(given))]

    def squares(of: Callable[..., Any]) -> Callable[..., Any]:
        return mx.grad(lambda *arguments: (of(*arguments) ** 2).sum())

    for axes in {*alone, (0,) * len(given)}:
        arguments = [a if axis == 0 else a[0] for a, axis in zip(given, axes, strict=True)]
        pairs = [(ours, theirs), *([(squares(ours), squares(theirs))] if slopes else [])]
        for one, other in pairs:
            rows = [
                other(*(a[i] if axis == 0 else a for a, axis in zip(arguments, axes, strict=True)))
                for i in range(3)
            ]
            each = list(zip(*rows, strict=True)) if isinstance(rows[0], tuple) else [rows]
            for vmap in (mx.vmap, metile.vmap):
                made = vmap(one, in_axes=axes)(*arguments)
                found = made if isinstance(made, (tuple, list)) else [made]
                for a, b in zip(found, each, strict=True):
                    close(a, mx.stack(list(b)), 2e-5)


@pytest.mark.emulator
@pytest.mark.parametrize("name", ["layer_norm", "gelu none", "geglu none", "silu", "rope"])
def test_x7_metile_vmap_where_mlx_cant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have such a test in their files."""
    function = FUNCTIONS[name]
    many = [normal((3, *shape), seed=i) for i, shape in enumerate(function.shapes((2, 40)))]
    expected = mx.stack([function.theirs(*(a[i] for a in many)) for i in range(3)])
    monkeypatch.setenv("METILE_BACKEND", "emulator")
    close(metile.vmap(function.ours)(*many), expected, 5e-6)


@pytest.mark.parametrize("name", NAMES)
def test_x2_an_export_holds_kernels_and_nothing_to_take_their_place(name: str) -> None:
    function = FUNCTIONS[name]
    names = primitives(function.ours, *[a.astype(mx.float16) for a in function.arguments()])
    assert "CustomKernel" in names
    others = {"CustomTransforms", "RMSNorm", "LayerNorm", "RoPE", "Rsqrt", "Sigmoid", "Erf", "Tanh"}
    assert others.isdisjoint(names)


@pytest.mark.parametrize("name", NAMES)
def test_x7_another_stream(name: str) -> None:
    function = FUNCTIONS[name]
    arguments, slopes = function.arguments(), gradients(function.ours, len(function.shapes()))
    expected, right = function.ours(*arguments), slopes(*arguments)
    with mx.stream(mx.new_stream(mx.cpu)):
        assert same_bits(function.ours(*arguments), expected)
        assert all(same_bits(a, b) for a, b in zip(slopes(*arguments), right, strict=True))


def test_f31_x7_many_threads_at_once() -> None:
    """Each function and its gradient, in eight threads that begin with another one each."""
    cases = [
        (f.ours, f.arguments(), gradients(f.ours, len(f.shapes()))) for f in FUNCTIONS.values()
    ]
    expected = [[of(*arguments), *slopes(*arguments)] for of, arguments, slopes in cases]
    mx.eval(expected)
    start, failures = threading.Barrier(8), []

    def work(first: int) -> None:
        try:
            start.wait()
            for number in range(len(cases)):
                position = (first + number) % len(cases)
                of, arguments, slopes = cases[position]
                made = [of(*arguments), *slopes(*arguments)]
                assert all(same_bits(a, b) for a, b in zip(made, expected[position], strict=True))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


COTANGENTS: dict[str, Callable[[Shape], mx.array]] = {
    "transposed": lambda shape: mx.transpose(normal(shape[::-1], seed=9)),
    "every second": lambda shape: normal((*shape[:-1], 2 * shape[-1]), seed=9)[..., ::2],
    "a row of all": lambda shape: mx.broadcast_to(normal(shape[-1:], seed=9), shape),
}


@pytest.mark.parametrize("name", [*NAMES, *OF_ROWS])
def test_f10_cotangents_that_are_views(name: str) -> None:
    """Bit for bit what a copy of them gives."""
    if name in FUNCTIONS:
        of, arguments = FUNCTIONS[name].ours, FUNCTIONS[name].arguments()
        rest: list[mx.array] = []
    else:
        of = OF_ROWS[name].ours
        first, *rest = OF_ROWS[name].arguments((ROWS, WIDTH), mx.float32, 0)
        arguments = [first]

    def applied(*arguments: mx.array) -> mx.array:
        return of(*arguments, *rest)

    shape = applied(*arguments).shape
    for make in COTANGENTS.values():
        view = make(shape)
        made, right = (mx.vjp(applied, arguments, [c])[1] for c in (view, mx.contiguous(view)))
        assert all(same_bits(a, b) for a, b in zip(made, right, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_b2_odd_single_and_no_elements(name: str) -> None:
    """With gradients; of nothing there are none, or zeros."""
    function = FUNCTIONS[name]
    even = 8 if name == "rope" else 0
    for shape in ((1, 1), (3, 1), (1, 7), (5, 33)):
        given = function.arguments((shape[0], shape[1] + even))
        close(function.ours(*given), function.theirs(*given), 5e-6)
        for made, right in zip(
            gradients(function.ours, len(given))(*given),
            gradients(function.theirs, len(given))(*given),
            strict=True,
        ):
            # Of one column a norm's slope is what is left of larger numbers.
            assert mx.allclose(made, right, rtol=2e-5, atol=2e-5)
    empty = [mx.zeros(shape) for shape in function.shapes((0, 8))]
    made = function.ours(*empty)
    assert (made.shape, made.dtype) == (function.theirs(*empty).shape, mx.float32)
    for slope, given in zip(gradients(function.ours, len(empty))(*empty), empty, strict=True):
        assert mx.array_equal(slope, mx.zeros(given.shape))
