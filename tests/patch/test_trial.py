"""`metile.patch` runs a model to find out: it leaves no trace, and keeps what it has compared."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

import metile_mlx as metile
from metile_mlx.nn import rms_norm
from metile_mlx.patching import measuring
from metile_mlx.patching.operations import Operations
from metile_mlx.patching.rounded_once import FUNCTIONS
from metile_mlx.patching.trial import Trial
from tests.patch.test_patch import ALL, DIMS, TOKENS, Model, MyNorm, kinds_of, made
from tests.support.public import same_bits


class Moving(nn.Module):
    """Its statistics, a count in place, what it kept last and a number move when it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.batch, self.norm = nn.BatchNorm(DIMS), nn.RMSNorm(DIMS)
        self.count = mx.array(0)
        self.history: list[mx.array] = []
        self.number = 0

    def __call__(self, x: mx.array) -> mx.array:
        self.count += 1
        self.number += 1
        self.last = self.norm(self.batch(x))
        self.history.append(self.last)
        return self.last


@pytest.mark.parametrize("measure", [False, True])
def test_what_runs_change_in_a_model_is_put_back(measure: bool) -> None:
    model, x = Moving(), mx.random.normal((4, DIMS), key=mx.random.key(1))
    before = {path: (id(a), mx.array(a)) for path, a in tree_flatten(model)}
    mx.eval(before)
    key = mx.array(mx.random.state[0])
    mx.eval(key)
    report = metile.patch(model, sample=x, measure=measure)
    assert report or measure
    after = dict(tree_flatten(model))
    assert after.keys() == before.keys()
    assert "history.0" not in after
    for path, (identity, value) in before.items():
        assert id(after[path]) == identity, path
        assert same_bits(after[path], value), path
    assert (model.number, model.history, "last" in model) == (0, [], False)
    assert mx.array_equal(mx.random.state[0], key)


def test_the_random_state_goes_on_as_it_would_have() -> None:
    class Drawing(Model):
        def __call__(self, tokens: mx.array) -> mx.array:
            return super().__call__(tokens) * mx.random.uniform()

    model = Drawing()
    mx.random.seed(7)
    expected = mx.random.normal((3,))
    mx.random.seed(7)
    assert not metile.patch(model, sample=TOKENS)
    assert mx.array_equal(mx.random.normal((3,)), expected)


class Vanishing(nn.Module):
    """0 as MLX computes it, and not where it is rounded once."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(DIMS)
        self.norm.weight = mx.random.uniform(0.5, 2, (DIMS,), key=mx.random.key(2))

    def __call__(self, x: mx.array) -> mx.array:
        written = type(self).normed(x, self.norm["weight"])
        return mx.abs(self.norm(x) - written).sum(-1, keepdims=True)

    @staticmethod
    def normed(x: mx.array, weight: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, weight, 1e-5)


def test_an_unbounded_spread_of_mlx_accepts_nothing() -> None:
    def wrong(x: mx.array, weight: mx.array, eps: float) -> mx.array:
        return mx.full(x.shape, 100.0, dtype=x.dtype)

    model, x = Vanishing(), mx.random.normal((4, DIMS), key=mx.random.key(1))
    model.set_dtype(mx.float16)
    assert mx.all(model(x.astype(mx.float16)) == 0)
    report = Trial(model, (x.astype(mx.float16),), Operations({"rms_norm": wrong})).run()
    assert not report, str(report)
    assert {d.reason[:49] for d in report.declines} == {
        "two evaluations of the sample by MLX differ witho"
    }


def test_what_is_left_after_measuring_has_been_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the gates, the norms, whose errors they had undone, do not reproduce MLX."""
    factor = [1.0]

    def wrong(x: mx.array, weight: mx.array, eps: float) -> mx.array:
        return rms_norm(x, weight, eps) * factor[0]

    def fake(kind: str, with_it: Any, without: Any, run: Any) -> Any:
        if kind == "gate":
            factor[0] = 1.01
        return measuring.Measured(kind, 2.0, 1.0, kind != "gate")

    monkeypatch.setattr(measuring, "compare", fake)
    model = made()
    expected = model(TOKENS)
    report = Trial(model, (TOKENS,), Operations({**FUNCTIONS, "rms_norm": wrong})).run(measure=True)
    assert kinds_of(report) == {"activation"}
    assert all(item.is_met for item in report.agreement)
    assert {d.kind for d in report.declines} == {"gate", "norm", "residual"}
    assert mx.allclose(model(TOKENS), expected, rtol=1e-5, atol=1e-5)


def test_a_kind_that_went_with_another_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(kind: str, with_it: Any, without: Any, run: Any) -> Any:
        return measuring.Measured(kind, 2.0, 1.0, False)

    monkeypatch.setattr(measuring, "compare", fake)
    report = Trial(made(), (TOKENS,), ALL).run(measure=True)
    assert [m.kind for m in report.measured] == ["norm", "gate", "activation"]
    assert not report


def test_a_run_that_says_something_else_at_the_end_is_no_swap() -> None:
    runs = [0]

    def wearing(x: mx.array, weight: mx.array, eps: float) -> mx.array:
        runs[0] += 1
        return rms_norm(x, weight, eps) * (1 if runs[0] <= 5 else 1.01)

    model = made()
    report = Trial(model, (TOKENS,), Operations({"rms_norm": wearing})).run()
    assert not report
    assert len(report.declines) == 5
    assert {d.reason[:31] for d in report.declines} == {"did not reproduce MLX once more"}
    assert type(model.norm) is nn.RMSNorm


class Keeping(nn.Module):
    """Without arrays, until it runs."""

    def __call__(self, x: mx.array) -> mx.array:
        self.last = mx.fast.rms_norm(x, None, 1e-5)
        return self.last


def test_what_a_module_without_arrays_keeps_is_there_after_restore() -> None:
    model = nn.Sequential(Keeping())
    module = model.layers[0]
    x = mx.random.normal((4, DIMS), key=mx.random.key(1))
    report = Trial(model, (x,), ALL).run()
    assert report
    assert "last" not in model.layers[0]
    kept = model(x)
    report.restore()
    assert model.layers[0] is module
    assert module.last is kept


def test_a_class_is_derived_from_once() -> None:
    """What its `__init_subclass__` notes does not grow with modules and patches."""
    noted: list[str] = []

    class Noting(MyNorm):
        def __init_subclass__(cls) -> None:
            noted.append(cls.__name__)

    for _ in range(2):
        assert Trial(made(Noting), (TOKENS,), ALL).run()
    # One to ask, and one with the operations.
    assert noted == ["Noting"] * 2


class Alternating(nn.Module):
    """Behind a flag that the sample does not set, the norm is another one at the sum's norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other = nn.RMSNorm(DIMS), nn.RMSNorm(DIMS)
        self.other.weight = 2 * self.other.weight
        self.flag = False

    def alternate(self) -> None:
        if self.flag:
            self.norm, self.other = self.other, self.norm

    def __call__(self, x: mx.array) -> mx.array:
        h = x + x
        self.alternate()
        return self.norm(h)


def test_a_norm_that_a_method_exchanges_is_not_computed_with_its_sum() -> None:
    x, module = mx.random.normal((2, DIMS)), Alternating()
    expected = module(x)
    assert kinds_of(metile.patch(module, sample=x)) == {"norm"}
    module.flag = True
    assert mx.allclose(module(x), 2 * expected, rtol=1e-5)
