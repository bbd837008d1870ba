"""What patched methods call: our kernels where they fit, else what the method says."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from metile_mlx.patching import modules, ours, rounded_once
from metile_mlx.patching.modules import Candidate, Installation, places
from metile_mlx.patching.operations import OURS
from metile_mlx.patching.recognition import known
from tests.support.public import same_bits

DIMS = 40
DTYPES = (mx.float32, mx.float16, mx.bfloat16)


class Gemma(nn.RMSNorm):
    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, 1.0 + self.weight, self.eps)


@pytest.fixture(params=[nn.RMSNorm, Gemma])
def norm(request: pytest.FixtureRequest) -> Any:
    """A norm with swapped operations."""
    made = request.param(DIMS)
    made.weight = mx.random.normal((DIMS,), key=mx.random.key(1))
    installation = Installation()
    (place,) = places(made)
    installation.put([Candidate(place, "norm", ())], OURS)
    yield made
    installation.take_out()


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each call of a function of metile_mlx.nn."""
    calls: list[str] = []
    function = ours.add_rms_norm

    def noted(*arguments: Any, **named: Any) -> Any:
        calls.append("add_rms_norm")
        return function(*arguments, **named)

    monkeypatch.setattr(ours, "add_rms_norm", noted)
    return calls


def rows(seed: int, dtype: mx.Dtype, shape: tuple[int, ...] = (2, 3, DIMS)) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_and_its_norm_come_from_one_kernel(
    norm: Any, dtype: mx.Dtype, kernels: list[str]
) -> None:
    norm.set_dtype(dtype)
    a, b = rows(2, dtype), rows(3, dtype)
    total, normed = ours.add_norm(a, b, norm)
    assert kernels == ["add_rms_norm"]
    assert same_bits(total, a + b)
    expected = type(norm).__mro__[1].__call__(norm, a + b)
    tolerance = 2 * mx.finfo(dtype).eps
    assert mx.allclose(normed, expected, rtol=tolerance, atol=tolerance)
    assert normed.dtype == dtype


@pytest.mark.parametrize(
    "other",
    [1.5, rows(3, mx.float16), rows(3, mx.float32, (3, DIMS)), rows(3, mx.float32, (1, 1, 1))],
    ids=["scalar", "another dtype", "fewer axes", "one element"],
)
def test_terms_that_differ_are_added_by_mlx(norm: Any, other: Any, kernels: list[str]) -> None:
    a = rows(2, mx.float32)
    total, normed = ours.add_norm(a, other, norm)
    assert kernels == []
    assert same_bits(total, a + other)
    assert same_bits(normed, norm(a + other))


def test_a_norm_that_is_not_swapped_is_called(kernels: list[str]) -> None:
    a, b = rows(2, mx.float32), rows(3, mx.float32)
    for norm in (nn.RMSNorm(DIMS), nn.LayerNorm(DIMS), mx.negative):
        total, normed = ours.add_norm(a, b, norm)
        assert same_bits(total, a + b)
        assert same_bits(normed, norm(a + b))
    assert kernels == []
    assert modules.refusal(places(nn.RMSNorm(DIMS))[0]) is None


ACTIVATIONS = {
    "silu": nn.silu,
    "gelu": nn.gelu,
    "gelu_approx": nn.gelu_approx,
    "gelu_fast_approx": nn.gelu_fast_approx,
}
GATES = {"swiglu": nn.silu} | {
    name.replace("gelu", "geglu"): activation
    for name, activation in ACTIVATIONS.items()
    if name != "silu"
}


def close(made: mx.array, expected: mx.array) -> bool:
    """Within a few units of the last place of f32; f16 and bf16 are rounded as MLX does."""
    share = 4 * mx.finfo(expected.dtype).eps
    return made.dtype == expected.dtype and bool(
        mx.allclose(made, expected, rtol=share, atol=share).item()
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_mlxs(name: str, dtype: mx.Dtype) -> None:
    x = rows(4, dtype)
    assert close(ours.FUNCTIONS[name](x), ACTIVATIONS[name](x))
    whole = mx.arange(-4, 4)
    assert close(ours.FUNCTIONS[name](whole), ACTIVATIONS[name](whole))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", GATES)
def test_gates_are_mlxs(name: str, dtype: mx.Dtype) -> None:
    gate, up = mx.split(rows(5, dtype, (3, 2 * DIMS)), 2, axis=-1)
    assert close(ours.FUNCTIONS[name](gate=gate, up=up), GATES[name](gate) * up)
    for other in (2.0, up[:1], up.astype(mx.float32)):
        expected = GATES[name](gate) * other
        assert close(ours.FUNCTIONS[name](up=other, gate=gate), expected)


def test_everything_that_is_recognised_is_there() -> None:
    """A function that only the other evaluation knows would never be swapped."""
    assert set(ours.FUNCTIONS) == set(rounded_once.FUNCTIONS)
    # `addmm` is a linear layer's, which `linear=True` asks for.
    others = {"rms_norm", "layer_norm", "addmm"}
    assert set(ACTIVATIONS) | others == {name for _, name in known()}


def test_norms_of_float64_are_mlxs(norm: Any, kernels: list[str]) -> None:
    """As is a weight of float64 alone."""
    wide = [rows(k, mx.float32).astype(mx.float64) for k in (2, 3)]
    cases = [(mx.fast.rms_norm, "rms_norm", ()), (mx.fast.layer_norm, "layer_norm", (None,))]
    with mx.stream(mx.cpu):
        for dtype in (mx.float64, mx.float32):
            x = wide[0].astype(dtype)
            for theirs, name, bias in cases:
                weight = mx.ones((DIMS,), mx.float64)
                made = ours.FUNCTIONS[name](x, weight, *bias, eps=1e-5)
                assert mx.array_equal(made, theirs(x, weight, *bias, eps=1e-5))
                assert made.dtype == mx.float64
        norm.set_dtype(mx.float64)
        for a, b in (wide, [x.astype(mx.float32) for x in wide]):
            total, normed = ours.add_norm(a, b, norm)
            assert kernels == []
            assert mx.array_equal(total, a + b)
            assert mx.array_equal(normed, norm(a + b))
            assert normed.dtype == mx.float64
