"""F04: one text and one registration for a specialisation, however many calls and shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.runtime import cpu
from metile_mlx.target import MAX_TILE
from tests.nn.test_row_functions import FUNCTIONS as OF_ROWS
from tests.nn.test_row_functions import Arrays, Function, alone
from tests.support.public import compilations
from tests.support.rows import normal

Shape = tuple[int, ...]
EPS = 1e-5


def function(ours: Callable[..., mx.array], arrays: int = 1, scales: int = 0) -> Function:
    """Of arrays of one shape, and of scales of their last axis."""

    def arguments(shape: Shape, dtype: mx.Dtype, seed: int) -> Arrays:
        shapes = [shape] * arrays + [shape[-1:]] * scales
        return tuple(normal(each, dtype, seed + i) for i, each in enumerate(shapes))

    return Function(ours, ours, arguments)


def both(pair: tuple[mx.array, mx.array]) -> mx.array:
    return pair[0] + pair[1]


# A width that a row has in registers is a constexpr of these; wider rows learn it when they run.
NORMS = {
    "rms_norm": function(lambda x, w: metile.rms_norm(x, w, EPS), 1, 1),
    "add_rms_norm": function(lambda x, r, w: both(metile.add_rms_norm(x, r, w, EPS)), 2, 1),
    "layer_norm": function(lambda x, w, b: metile.layer_norm(x, w, b, EPS), 1, 2),
}
# One text for every shape.
ANY_SHAPE = {
    **OF_ROWS,
    "silu": function(metile.silu),
    **{f"gelu {a}": function(lambda x, a=a: metile.gelu(x, a)) for a in ("none", "tanh", "fast")},
    "swiglu": function(metile.swiglu, 2),
    "geglu": function(metile.geglu, 2),
    "rope": Function(
        lambda x: metile.rope(
            mx.repeat(x.reshape(1, -1, 1, x.shape[-1]), 2, axis=-1), 2, traditional=False,
            base=1e4, scale=1.0, offset=x.shape[-1],
        ),
        metile.silu,
        alone,
    ),
}  # fmt: skip
EVERY = NORMS | ANY_SHAPE


@contextmanager
def registrations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Keys of the texts whose functions are handed to MLX inside."""
    found: list[str] = []
    load: Any = cpu._load

    def noting(path: Any, key: str, *rest: Any) -> Any:
        found.append(key)
        return load(path, key, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(cpu, "_load", noting)
        yield found


def gradients(of: Function, shape: Shape) -> None:
    """Values and gradients of all floats, evaluated."""
    arguments = of.arguments(shape, mx.float32, 0)
    floats = [i for i, a in enumerate(arguments) if mx.issubdtype(a.dtype, mx.floating)]
    mx.eval(mx.value_and_grad(lambda *a: of.ours(*a).sum(), floats)(*arguments))


@pytest.mark.parametrize("name", ANY_SHAPE)
def test_f04_a_new_row_count_or_width_compiles_nothing(name: str) -> None:
    """Nor does a gradient."""
    gradients(ANY_SHAPE[name], (3, 5))
    with compilations() as found:
        for shape in itertools.product((1, 4, 1000), (2, 8, 1025)):
            gradients(ANY_SHAPE[name], shape)
    assert found == []


@pytest.mark.parametrize("name", NORMS)
def test_f04_a_new_row_count_of_a_norm_compiles_nothing(name: str) -> None:
    """Gradients of many rows, by fours, are the one text more."""
    for rows in (3, 1024):
        gradients(NORMS[name], (rows, 40))
    with compilations() as found:
        for rows in (1, 2, 4, 5, 1023, 1025, 1028):
            gradients(NORMS[name], (rows, 40))
    assert found == []


@pytest.mark.parametrize("name", NORMS)
def test_f04_a_new_width_of_a_norm_of_wide_rows_compiles_nothing(name: str) -> None:
    gradients(NORMS[name], (1, MAX_TILE + 1))
    with compilations() as found:
        for shape in ((2, MAX_TILE + 1), (1, MAX_TILE + 5), (1, 50_000)):
            gradients(NORMS[name], shape)
    assert found == []


@pytest.mark.parametrize("name", EVERY)
def test_f04_one_registration_for_many_calls_of_three_shapes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000, by turns; where the width is a constexpr of the kernel, each has its own."""
    of = EVERY[name]
    cases = [of.arguments(shape, mx.bfloat16, 0) for shape in ((1, 33), (5, 33), (2, 3, 9))]
    with registrations(monkeypatch) as registered:
        for number in range(10_000):
            made = of.ours(*cases[number % 3])
            if number < 3 or number % 500 == 0:
                mx.eval(made)
        mx.eval(made)
    assert len(registered) == len(set(registered))
    assert len(registered) <= (2 if name in NORMS else 1)
