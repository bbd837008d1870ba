"""`metile.rope` and `metile.nn.RoPE` in the place of MLX's (SPEC B2, F28, F33, X7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn

import metile_mlx as metile
from metile_mlx.nn.layouts import heads_together
from metile_mlx.runtime.export import primitives
from tests.support.functions import close, normal
from tests.support.public import same_bits
from tests.support.rounding import exact

DTYPES = (mx.float16, mx.bfloat16, mx.float32)
DEFAULT = {"traditional": False, "base": 10000.0, "scale": 1.0, "offset": 0}
Function = Callable[..., mx.array]


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"traditional": True},
    {"scale": 0.25, "base": 500.0, "offset": 77},
    {"offset": mx.array(9)},
    {"offset": mx.array([9])},
    {"offset": mx.array([9, 700], mx.int64), "traditional": True},
    {"base": None, "freqs": mx.arange(1.0, 5.0)},
    {"base": None, "freqs": mx.arange(1.0, 5.0), "traditional": True, "offset": mx.array([3, 1])},
)


@pytest.mark.parametrize("options", OPTIONS)
def test_b2_what_mlx_takes_and_gives(options: dict[str, Any]) -> None:
    """f32 to the error of its angles; f16 and bf16 are rounded once, as MLX does on Metal."""
    options = {**DEFAULT, **options}
    for shape in ((2, 7, 10), (2, 3, 7, 8), (2, 3, 2, 5, 8)):
        x = normal(shape)
        expected = mx.fast.rope(x, 8, **options)
        close(metile.rope(x, 8, **options), expected, 2e-5)
        for dtype, step in ((mx.float16, 2e-3), (mx.bfloat16, 1.6e-2)):
            close(metile.rope(x.astype(dtype), 8, **options), expected.astype(dtype), step)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_one_rounding(dtype: mx.Dtype) -> None:
    x = normal((1, 4, 16, 32), dtype)
    wide = mx.fast.rope(x.astype(mx.float32), 32, **DEFAULT).astype(dtype)
    assert (exact(metile.rope(x, 32, **DEFAULT)) == exact(wide)).mean() >= 0.999


def test_any_shape_on_every_backend(backend: str) -> None:
    for options in OPTIONS[::3]:
        x, every = normal((2, 3, 4, 12)), {**DEFAULT, **options}
        close(metile.rope(x, 8, **every), mx.fast.rope(x, 8, **every), 2e-5)


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[1], OPTIONS[6]])
def test_f51_heads_have_the_same_bits_in_any_company(options: dict[str, Any]) -> None:
    """Arrays of one offset are turned together, those of several each for itself."""
    every = {**DEFAULT, "offset": 5, **options}
    for shape in ((1, 1, 1, 8), (3, 1, 5, 8), (2, 17, 3, 10), (5, 7, 1, 66)):
        x = normal(shape, mx.bfloat16)
        made = metile.rope(x, 8, **every)
        each = {**every, "offset": mx.full(shape[0], 5, mx.int32)}
        assert same_bits(made, metile.rope(x, 8, **each))
        alone = [metile.rope(x[i : i + 1, j : j + 1], 8, **every) for i, j in np.ndindex(shape[:2])]
        assert same_bits(made, mx.concatenate(alone).reshape(shape))


def test_heads_of_a_program_divide_them() -> None:
    """On a CPU as near to 16 as there are any; of a prime number all or, of many, one."""
    wanted = {1: 1, 8: 8, 16: 16, 32: 16, 34: 17, 71: 71, 142: 71, 257: 1, 2048: 16}
    assert {heads: heads_together("cpu", heads) for heads in wanted} == wanted
    assert all(heads % heads_together("metal", heads) == 0 for heads in wanted)


def test_f10_f12_views_and_empty_arrays() -> None:
    x = normal((2, 6, 4, 16))
    for view in (x.transpose(0, 2, 1, 3), x[:, ::2], x[..., ::2], mx.broadcast_to(x[:1], x.shape)):
        made = metile.rope(view, 8, **DEFAULT)
        assert same_bits(made, metile.rope(mx.contiguous(view), 8, **DEFAULT))
    assert metile.rope(mx.zeros((2, 3, 0, 8)), 8, **DEFAULT).shape == (2, 3, 0, 8)


def test_bad_arguments_are_named() -> None:
    x = normal((2, 3, 4, 8))
    for given, options, part in (
        (x[0, 0], {}, r"\[rope\] x has shape \(4, 8\); expected \(B, ..., T, D\)"),
        (x.astype(mx.int32), {}, "would be int32"),
        (x, {"base": None}, "one of base and freqs"),
        (x, {"freqs": mx.ones(4)}, "one of base and freqs"),
        (x, {"base": -1.0}, "base is -1.0"),
        (x, {"base": None, "freqs": mx.ones(3)}, r"freqs has shape \(3,\); expected \(4,\)"),
        (x, {"offset": mx.array([1, 2, 3])}, "expected integers, one or 2 of them"),
        (x, {"offset": mx.array(1.5)}, "offset is float32"),
    ):
        with pytest.raises(metile.LaunchError, match=part):
            metile.rope(given, 8, **{**DEFAULT, **options})
    for dims in (0, 7, 10):
        with pytest.raises(metile.LaunchError, match=f"dims is {dims}; expected an even number"):
            metile.rope(x, dims, **DEFAULT)


def of(function: Function, dims: int, **options: Any) -> Function:
    return lambda x: function(x, dims, **{**DEFAULT, **options})


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[5], OPTIONS[6]])
def test_f28_gradients_equal_mlxs(options: dict[str, Any]) -> None:
    x, c = normal((2, 3, 7, 12)), normal((2, 3, 7, 12), seed=1)
    ours, theirs = (
        mx.grad(lambda x, f=f: (of(f, 8, **options)(x) * c).sum())
        for f in (metile.rope, mx.fast.rope)
    )
    close(ours(x), theirs(x), 2e-5)
    close(mx.compile(ours)(x), theirs(x), 2e-5)


@pytest.mark.parametrize("traditional", [False, True])
def test_f28_the_periods_have_a_gradient(traditional: bool) -> None:
    """By central differences; never a silent zero."""
    x, c, d = normal((2, 3, 7, 8)), normal((2, 3, 7, 8), seed=1), normal((4,), seed=2)
    freqs = mx.arange(2.0, 6.0)

    def loss(freqs: mx.array) -> mx.array:
        made = metile.rope(
            x, 8, traditional=traditional, base=None, scale=0.5, offset=2, freqs=freqs
        )
        return (made * c).sum()

    slope = (mx.grad(loss)(freqs) * d).sum().item()
    found = (loss(freqs + 1e-2 * d) - loss(freqs - 1e-2 * d)).item() / 2e-2
    assert abs(slope) > 1e-2
    assert abs(found - slope) <= 1e-2 * abs(slope)


def test_x7_second_derivatives_and_turning_back(batchable: str) -> None:
    x = normal((1, 2, 3, 8))
    square = mx.grad(lambda x: (of(metile.rope, 8)(x) ** 2).sum())
    # A turn keeps the length, so this gradient is 2 x.
    close(square(x), 2 * x, 1e-5)
    close(mx.grad(lambda x: square(x).sum())(x), mx.full(x.shape, 2.0), 1e-5)


@pytest.mark.parametrize("axis", [0, 2])
def test_f33_x7_vmap(batchable: str, axis: int) -> None:
    x = mx.moveaxis(normal((3, 2, 4, 5, 8)), 0, axis)
    expected = mx.stack([mx.fast.rope(mx.take(x, i, axis=axis), 8, **DEFAULT) for i in range(3)])
    for vmap in (mx.vmap, metile.vmap):
        close(vmap(of(metile.rope, 8), in_axes=axis)(x), expected, 2e-5)


def test_b2_the_layer_is_mlxs() -> None:
    x = normal((1, 2, 5, 16))
    for options in ({}, {"traditional": True, "base": 500.0, "scale": 0.5}):
        ours, theirs = metile.nn.RoPE(8, **options), nn.RoPE(8, **options)
        assert repr(ours) == repr(theirs)
        assert ours.parameters() == {}
        for offset in (0, 11, mx.array(4)):
            close(ours(x, offset), theirs(x, offset), 2e-5)
    layer = metile.nn.RoPE(8)
    assert primitives(lambda x: layer(x), x).count("CustomKernel") == 1
