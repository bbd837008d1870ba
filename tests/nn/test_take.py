"""`metile.take` and `metile.nn.Embedding`: any ids, and what lies outside (SPEC B2, F12, F53)."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

import metile_mlx as metile
from metile_mlx.runtime.export import primitives
from tests.support.functions import close
from tests.support.public import same_bits
from tests.support.rows import normal


@pytest.mark.parametrize("dtype", [mx.int8, mx.int32, mx.int64, mx.uint8, mx.uint32, mx.uint64])
def test_ids_of_any_integer_dtype_and_shape(dtype: mx.Dtype) -> None:
    """The highest of each is outside, and does not wrap to one inside."""
    table = normal((5, 33), mx.float16)
    highest = {1: 127, 2: 32767, 4: 2**31 - 1, 8: 2**32 + 3}[dtype.size]
    ids = mx.array([[4, 0], [3, highest]], dtype)
    made = metile.take(table, ids)
    assert made.shape == (2, 2, 33)
    assert same_bits(made.reshape(4, 33)[:3], table[mx.array([4, 0, 3])])
    assert mx.all(mx.isnan(made[1, 1]))
    assert same_bits(metile.take(table, mx.array(3, dtype)), table[3])


def test_f53_what_lies_outside_has_no_gradient() -> None:
    table, ids = normal((5, 8)), mx.array([1, 5, -1, -6, 1, 2**31 - 1])
    c = normal((6, 8), seed=1)
    made = mx.grad(lambda table: (mx.nan_to_num(metile.take(table, ids)) * c).sum())(table)
    inside = mx.array([0, 2, 4])
    expected = mx.grad(lambda table: (table[ids[inside]] * c[inside]).sum())(table)
    assert mx.allclose(made, expected)


def test_gradients_of_many_equal_ids_are_added_in_f32() -> None:
    """A sum of f16 ones stalls at 2048."""
    table, ids = mx.zeros((2, 3), mx.float16), mx.zeros((5000,), mx.int32)
    made = mx.grad(lambda table: metile.take(table, ids).astype(mx.float32).sum())(table)
    assert made.tolist() == [[5000] * 3, [0] * 3]
    assert made.dtype == mx.float16


def test_tables_of_integers() -> None:
    table = mx.random.randint(0, 2**31 - 1, (6, 40)).astype(mx.uint32)
    assert same_bits(metile.take(table, mx.array([5, -6])), table[mx.array([5, 0])])
    assert metile.take(table, mx.array([6])).tolist() == [[0] * 40]


def test_f12_nothing() -> None:
    table = mx.zeros((3, 8), mx.bfloat16)
    for made, shape in (
        (metile.take(table, mx.zeros((0, 2), mx.int32)), (0, 2, 8)),
        (metile.take(table[:, :0], mx.array([1])), (1, 0)),
    ):
        assert (made.shape, made.dtype) == (shape, mx.bfloat16)
    assert mx.all(mx.isnan(metile.take(table[:0], mx.array([0]))))


def test_bad_arguments_are_named() -> None:
    table = normal((5, 8))
    for given, ids, part in (
        (table[0], mx.array([0]), r"table has shape \(8,\)"),
        (table, mx.array([0.0]), "ids are float32; expected integers"),
        (table, mx.array([True]), "ids are bool; expected integers"),
    ):
        with pytest.raises(metile.LaunchError, match=part):
            metile.take(given, ids)


def test_b2_the_layer_is_mlxs() -> None:
    """Parameters of either load into the other; what it does besides taking rows is MLX's."""
    ours, theirs = metile.nn.Embedding(11, 64), nn.Embedding(11, 64)
    assert repr(ours) == repr(theirs)
    assert ours.weight.shape == (11, 64)
    ours.load_weights(tree_flatten(theirs.parameters()))
    for ids in (mx.array([[0, 10], [-1, 5]]), mx.array(3), mx.zeros((0, 2), mx.uint8), 3):
        assert same_bits(ours(ids), theirs(ids))
    hidden = normal((2, 64))
    assert same_bits(ours.as_linear(hidden), theirs.as_linear(hidden))
    ids, c = mx.array([1, 1, 10]), normal((3, 64))
    slopes = [
        nn.value_and_grad(layer, lambda x, layer=layer: (layer(x) * c).sum())(ids)[1]["weight"]
        for layer in (ours, theirs)
    ]
    close(*slopes)
    assert primitives(lambda x: ours(x), ids).count("CustomKernel") == 1
    quantized = ours.to_quantized(group_size=32, bits=8)
    assert mx.allclose(quantized(ids), ours(ids), atol=2e-2)
