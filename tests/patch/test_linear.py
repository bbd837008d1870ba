"""`metile.patch(linear=True)`: layers on `metile.matmul` only where that was faster (SPEC B2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

import metile_mlx as metile
from metile_mlx.patching import products
from metile_mlx.patching.operations import OURS_AND_LINEAR
from metile_mlx.patching.rewriting import KINDS, rewritten
from metile_mlx.patching.rounded_once import LINEAR
from tests.support.functions import close
from tests.support.public import same_bits
from tests.support.rows import normal

DIMS = 24
ROWS = normal((2, 3, DIMS))


class Attention(nn.Module):
    """Two layers, one without a bias, and a product of two results."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.value = nn.Linear(DIMS, 8), nn.Linear(DIMS, 8, bias=False)
        self.quantized = nn.QuantizedLinear(64, 8)

    def __call__(self, x: mx.array) -> mx.array:
        k, v = self.key(x.reshape(-1, DIMS)), self.value(x.reshape(-1, DIMS))
        wide = self.quantized(mx.tile(k, (1, 8)))
        return (k @ v.T) @ v + wide


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing was measured before, and nothing is compiled."""
    monkeypatch.setenv("METILE_BACKEND", "reference")
    monkeypatch.setenv("METILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(products, "_verdicts", {})


def timed(monkeypatch: pytest.MonkeyPatch, ours: float, theirs: float) -> list[int]:
    """Seconds of ours and of MLX; returns a note for each measurement."""
    notes: list[int] = []

    def measured(works: Mapping[int, Any], *_: object) -> dict[int, float]:
        for work in works.values():
            work()
        notes.append(len(works))
        return {0: ours, 1: theirs}

    monkeypatch.setattr(products, "measured", measured)
    return notes


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of what ran on ours."""
    found: list[tuple[int, ...]] = []

    def matmul(x: mx.array, *rest: Any, **named: Any) -> mx.array:
        found.append(x.shape)
        return metile.matmul(x, *rest, **named)

    monkeypatch.setattr(products, "matmul", matmul)
    return found


def model() -> Attention:
    mx.random.seed(0)
    return Attention()


def test_layers_that_are_faster_run_on_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rows like the sample's; any other number of rows runs on MLX, bit for bit."""
    timed(monkeypatch, 1.0, 2.0)
    made, more = model(), normal((5, DIMS), seed=1)
    expected, others = made(ROWS), made(more)
    report = metile.patch(made, sample=ROWS, linear=True)
    paths = {swap.path for swap in report.swaps if swap.kind == "linear"}
    assert paths == {"key", "value"}
    ran = counted(monkeypatch)
    close(made(ROWS), expected)
    assert ran == [(6, DIMS)] * 2
    assert same_bits(made(more), others)
    assert len(ran) == 2
    assert [found.chosen for found in report.layers] == [products.OURS] * 2
    assert "6 x 24 by 8 and a bias, float32, reference" in str(report)
    assert report.to_dict()["layers"]
    report.restore()
    assert same_bits(made(ROWS), expected)


def test_gradients_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, 1.0, 2.0)
    layer = nn.Linear(DIMS, 8)

    def loss(x: mx.array) -> mx.array:
        return (layer(x) ** 2).sum()

    expected = nn.value_and_grad(layer, loss)(ROWS)[1]
    assert metile.patch(layer, sample=ROWS, linear=True)
    made = nn.value_and_grad(layer, loss)(ROWS)[1]
    for name in ("weight", "bias"):
        close(made[name], expected[name])


def test_layers_that_are_slower_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, 2.0, 1.0)
    made = model()
    report = metile.patch(made, sample=ROWS, linear=True)
    reasons = {d.path: d.reason for d in report.declines if d.kind == "linear"}
    slower = "slower: 6 x 24 by 8, float32, reference takes 2000.000 ms on ours, 1000.000 ms on MLX"
    assert reasons["value"] == slower
    # A product of two results is nobody's layer.
    assert reasons["(model)"] == "no product of its weight and rows of its dtype ran on the sample"
    assert "quantized" not in reasons
    assert not report
    assert type(made.key) is nn.Linear


def test_a_layer_whose_result_is_wrong_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = timed(monkeypatch, 1.0, 2.0)
    monkeypatch.setattr(products, "matmul", lambda *a, **n: 1.001 * metile.matmul(*a, **n))
    report = metile.patch(model(), sample=ROWS, linear=True)
    reasons = [d.reason for d in report.declines if d.path == "key"]
    assert len(reasons) == 1
    assert "its result differs from MLX's by" in reasons[0]
    assert notes == []


def test_a_measurement_is_kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """For its shapes, dtype and bias; another process reads it."""
    notes = timed(monkeypatch, 1.0, 2.0)
    for _ in range(2):
        assert metile.patch(model(), sample=ROWS, linear=True).layers
        products._verdicts.clear()
    assert len(notes) == 2
    metile.patch(model(), sample=normal((7, DIMS)), linear=True)
    assert len(notes) == 4


def test_nothing_is_measured_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = timed(monkeypatch, 1.0, 2.0)
    report = metile.patch(model(), sample=ROWS)
    assert (report.layers, notes) == ([], [])
    assert not report


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_is_checked_and_agrees(
    monkeypatch: pytest.MonkeyPatch, dtype: mx.Dtype
) -> None:
    timed(monkeypatch, 1.0, 2.0)
    made = nn.Linear(DIMS, 40)
    made.set_dtype(dtype)
    report = metile.patch(made, sample=ROWS.astype(dtype), linear=True)
    assert report
    assert report.agreement[0].is_met


def test_what_the_kernels_do_not_know_runs_on_mlx(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b = normal((3, 8)), normal((5, 8), seed=1), normal((5,), seed=2)
    found = products.verdict(products.Layer(3, 8, 5, mx.float32, False, "reference"))
    monkeypatch.setattr(products, "_verdicts", dict.fromkeys(_every(), found))
    ran = counted(monkeypatch)
    half = w.astype(mx.float16)
    for made, expected in (
        (products.linear(x, half), x @ half.T),
        (products.linear(x[0], normal((4, 8))[0]), x[0] @ normal((4, 8))[0].T),
        (products.linear(x[:0], w), x[:0] @ w.T),
        (products.addmm(normal((3, 5)), x, w), mx.addmm(normal((3, 5)), x, w.T)),
        (products.addmm(b, x.astype(mx.float16), half), mx.addmm(b, x.astype(mx.float16), half.T)),
    ):
        assert same_bits(made, expected)
    assert ran == []


def _every() -> list[products.Layer]:
    return [
        products.Layer(rows, 8, 5, dtype, biased, "reference")
        for rows in (0, 1, 3)
        for dtype in (mx.float32, mx.float16)
        for biased in (False, True)
    ]


class Written(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = normal((5, 8)), normal((5,), seed=1)

    def __call__(self, x: mx.array) -> mx.array:
        """Twice what is found, and three times what only looks like it."""
        parts = (self.bias, x, self.weight.T)
        a = mx.addmm(self.bias, x, self.weight.T) + x @ self.weight.T
        b = mx.addmm(self.bias, x, self.weight.T, alpha=2.0) + x @ self.weight.swapaxes(0, 1)
        return a + b + mx.addmm(*parts)


def test_what_is_written_is_found_and_means_the_same() -> None:
    module, x = Written(), normal((3, 8), seed=2)
    found = rewritten(Written.__call__, KINDS, OURS_AND_LINEAR, frozenset())
    assert [site.function for site in found.sites] == ["addmm", "linear"]
    assert found.function is not None
    assert same_bits(found.function(module, x), module(x))
    for name, function in LINEAR.items():
        arguments = (module.bias, x, module.weight)[0 if name == "addmm" else 1 :]
        plain: Callable[..., mx.array] = products.FUNCTIONS[name]
        close(function(*arguments), plain(*arguments))
