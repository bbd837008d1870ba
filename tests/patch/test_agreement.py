"""What counts as reproducing MLX: 1e-5 in f32, MLX's own spread in f16 and bf16, equal tokens."""

from __future__ import annotations

import math

import mlx.core as mx
import pytest

from metile_mlx.patching import agreement
from metile_mlx.patching.agreement import compare, difference, spread, tolerance

NAN, INF = math.nan, math.inf


def logits(*rows: list[float], dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array([list(row) for row in rows]).astype(dtype)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ([1.0, 2.0, -4.0], [1.0, 2.0, -4.0], 0.0),
        ([1.0, 2.5, -4.0], [1.0, 2.0, -4.0], 0.125),
        ([NAN, 2.0, INF], [NAN, 2.0, INF], 0.0),
        ([NAN, 2.0, 1.0], [1.0, 2.0, 1.0], INF),
        ([1.0, 2.0, 1.0], [NAN, 2.0, 1.0], INF),
        ([INF, 2.0, 1.0], [-INF, 2.0, 1.0], INF),
        ([0.0, 0.0, 0.0], [0.0, 0.0, 0.0], 0.0),
        ([0.0, 1e-30, 0.0], [0.0, 0.0, 0.0], INF),
    ],
)
def test_differences_are_shares_of_the_largest_magnitude_of_the_row(
    ours: list[float], theirs: list[float], expected: float
) -> None:
    other = [100.0, 100.0, 100.0]
    assert difference(logits(ours, other), logits(theirs, other)) == expected


def test_other_shapes_dtypes_and_integers_differ() -> None:
    x = logits([1.0, 2.0])
    assert difference(x, x[0]) == INF
    assert difference(x, x.astype(mx.float16)) == INF
    assert difference(x[:0], x[:0]) == 0
    assert difference(mx.array(3.0), mx.array(2.0)) == 0.5
    whole = mx.array([1, 2])
    assert (difference(whole, whole), difference(whole, whole + 1)) == (0, INF)


def test_f32_is_strict_in_values_and_in_every_token() -> None:
    theirs = logits([1.0, 1.000001, 0.0], [3.0, 1.0, 2.0])
    (same,) = compare([theirs], [theirs], [1e-5])
    assert same.is_met
    assert (same.values, same.tokens, same.tokens_equal, same.tokens_close) == (6, 2, 2, 0)
    (flipped,) = compare([logits([1.000001, 1.0, 0.0], [3.0, 1.0, 2.0])], [theirs], [1e-5])
    assert (flipped.is_met, flipped.tokens_equal) == (False, 1)
    (far,) = compare([theirs * 1.0001], [theirs], [1e-5])
    assert (far.is_met, far.tokens_equal) == (False, 2)
    (lost,) = compare([theirs * NAN], [theirs], [1e-5])
    assert not lost.is_met


def test_a_padded_vocabulary_and_a_single_row_have_tokens() -> None:
    """Logits of -inf are no magnitude; results of one axis are a row."""
    for shape in ((1, 3), (3,)):
        theirs = mx.array([1.0, 1.5, -INF]).astype(mx.float16).reshape(shape)
        ours = mx.array([1.5, 1.0, -INF]).astype(mx.float16).reshape(shape)
        (found,) = compare([ours], [theirs], [0.2])
        assert (found.is_met, found.tokens, found.tokens_equal) == (False, 1, 0)
        (same,) = compare([theirs], [theirs], [0.2])
        assert (same.is_met, same.tokens, same.tokens_equal) == (True, 1, 1)
    one, other = mx.array([1.0, 1.000001]), mx.array([1.000001, 1.0])
    (flipped,) = compare([one], [other], [1e-5])
    assert (flipped.is_met, flipped.tokens) == (False, 1)


def test_in_f16_only_clear_tokens_are_compared_and_both_are_counted() -> None:
    theirs = logits([1.0, 1.001, 0.0], [3.0, 1.0, 2.0], dtype=mx.float16)
    ours = logits([1.001, 1.0, 0.0], [3.0, 1.0, 2.0], dtype=mx.float16)
    (found,) = compare([ours], [theirs], [2e-3])
    assert (found.is_met, found.tokens, found.tokens_equal, found.tokens_close) == (True, 1, 1, 1)
    (narrow,) = compare([ours], [theirs], [5e-4])
    assert (narrow.is_met, narrow.tokens, narrow.tokens_equal) == (False, 2, 1)
    assert "1 of 1 tokens equal (1 too close to tell)" in str(found)


def test_the_spread_is_the_largest_of_any_two_evaluations() -> None:
    one, two, three = (logits([4.0, x]) for x in (1.0, 1.5, 0.5))
    assert spread([[one], [two]]) == [0.125]
    assert spread([[one, one], [two, one], [three, one]]) == [0.25, 0.0]
    assert spread([[one]]) == [0.0]


def test_tolerances() -> None:
    """f32 does not depend on a spread; the others are never below their eps."""
    assert tolerance(mx.float32, 0.5) == 1e-5
    assert tolerance(mx.int32, 0.5) == 0
    assert tolerance(mx.float16, 0.0) == 2**-10
    assert tolerance(mx.bfloat16, 0.0) == 2**-7
    assert tolerance(mx.float16, 0.01) == 0.01


def test_several_equal_samples() -> None:
    tokens = mx.arange(6).reshape(2, 3)
    several = agreement.repeated((tokens,))
    assert several is not None
    assert several[0].shape == (6, 3)
    first = agreement.first_of([several[0] * 2], [tokens])
    assert first is not None
    assert mx.array_equal(first[0], tokens * 2)
    assert agreement.first_of([tokens], [tokens]) is None
    assert agreement.first_of([mx.array(1)], [mx.array(1)]) is None
    assert agreement.repeated((tokens, tokens)) is None
    assert agreement.repeated((tokens[0],)) is None


def test_arrays_are_found_in_any_nesting() -> None:
    x, y, z = (mx.array([k]) for k in range(3))
    assert [a.item() for a in agreement.arrays_in({"a": x, "b": [(y, None), 3, {"c": z}]})] == [
        0,
        1,
        2,
    ]
