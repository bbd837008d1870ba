"""What user functions refuse, and what MLX's dtypes of results are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx.errors import LaunchError
from metile_mlx.patching import rounded_once

X, W, IDS = mx.ones((2, 8)), mx.ones((8,)), mx.array([0, 1])
ROPE = {"traditional": False, "base": 100.0, "scale": 1.0, "offset": 0}
# Each of its arguments in turn is no array.
CALLS: list[tuple[str, Callable[..., Any], list[mx.array]]] = [
    ("rms_norm", partial(metile.rms_norm, eps=1e-5), [X, W]),
    ("add_rms_norm", partial(metile.add_rms_norm, eps=1e-5), [X, X, W]),
    ("layer_norm", partial(metile.layer_norm, eps=1e-5), [X, W, W]),
    ("softmax", metile.softmax, [X]),
    ("log_softmax", metile.log_softmax, [X]),
    ("cross_entropy", metile.cross_entropy, [X, IDS]),
    ("silu", metile.silu, [X]),
    ("gelu", metile.gelu, [X]),
    ("swiglu", metile.swiglu, [X, X]),
    ("geglu", metile.geglu, [X, X]),
    ("reduce", partial(metile.reduce, operation="sum"), [X]),
    ("take", metile.take, [X, IDS]),
    ("top1", metile.top1, [X]),
    ("matmul", metile.matmul, [X, X.T]),
    ("rope", lambda x: metile.rope(x, 8, **ROPE), [X[None]]),
    ("rope", lambda f: metile.rope(X[None], 8, **{**ROPE, "base": None}, freqs=f), [W[:4]]),
]


@pytest.mark.parametrize(("name", "call", "arrays"), CALLS)
@pytest.mark.parametrize("other", [np.ones((2, 8), np.float32), [1.0], 3], ids=lambda v: type(v))
def test_what_is_no_array_is_named(
    name: str, call: Callable[..., Any], arrays: list[mx.array], other: object
) -> None:
    shown = {np.ndarray: "numpy.ndarray"}.get(type(other), type(other).__name__)
    for index in range(len(arrays)):
        given = [*arrays[:index], other, *arrays[index + 1 :]]
        with pytest.raises(LaunchError) as error:
            call(*given)
        assert str(error.value) == (
            f"[{name}] an argument is {shown}; expected an mx.array\n"
            "hint: mx.array(...) makes one of a number, a list or a NumPy array"
        )


def test_nothing_stands_only_for_what_is_optional() -> None:
    for call in (
        lambda: metile.add_rms_norm(X, None, W, 1e-5),
        lambda: metile.swiglu(X, None),
        lambda: metile.swiglu(None, X),
        lambda: metile.matmul(X, None),
    ):
        with pytest.raises(LaunchError, match="an argument is NoneType"):
            call()


def test_gates_that_do_not_broadcast_are_told() -> None:
    for call in (metile.swiglu, metile.geglu):
        with pytest.raises(LaunchError, match=r"shapes \(2, 8\) and \(3, 8\) do not broadcast"):
            call(X, mx.ones((3, 8)))


def test_a_complex_gate_is_refused() -> None:
    """Not taken without its imaginary part."""
    for call in (metile.swiglu, metile.geglu):
        with pytest.raises(LaunchError, match="the result would be complex64"):
            call(X.astype(mx.complex64), X)


@pytest.mark.parametrize("offset", [2.5, mx.array(2.5), "2", None, 2**31, mx.array([1, 2, 3])])
def test_offsets_of_rope_are_integers(offset: Any) -> None:
    """A float is not cut off, as MLX doesn't."""
    with pytest.raises(LaunchError, match=r"\[rope\] offset is "):
        metile.rope(X[None], 8, **{**ROPE, "offset": offset})
    made = metile.rope(X[None], 8, **{**ROPE, "offset": np.int64(3)})
    assert mx.array_equal(made, metile.rope(X[None], 8, **{**ROPE, "offset": 3}))


def test_a_bias_without_a_weight_leaves_the_dtype_of_x() -> None:
    """As `mx.fast.layer_norm`, in the gradients too."""
    dtype = mx.bfloat16
    x = mx.random.normal((3, 8), key=mx.random.key(1)).astype(dtype)
    bias = mx.random.normal((8,), key=mx.random.key(2))
    expected = mx.fast.layer_norm(x, None, bias, 1e-5)
    for function in (metile.layer_norm, rounded_once.layer_norm):
        made = function(x, None, bias, 1e-5)
        assert made.dtype == expected.dtype == dtype
        assert mx.allclose(made, expected, rtol=2e-2, atol=2e-2)
    slopes = mx.grad(lambda *a: metile.layer_norm(a[0], None, a[1], 1e-5).sum(), (0, 1))(x, bias)
    assert [slope.dtype for slope in slopes] == [dtype, mx.float32]
    assert mx.allclose(slopes[1], mx.full((8,), 3.0))
