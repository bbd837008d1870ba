"""`metile.patch`: keeps what reproduces MLX, names what it leaves, and harms nothing (SPEC B2)."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.tuner.lora import LoRALinear

import metile_mlx as metile
from metile_mlx.nn import rms_norm
from metile_mlx.patching import measuring
from metile_mlx.patching.operations import Operations
from metile_mlx.patching.rounded_once import FUNCTIONS
from metile_mlx.patching.trial import Trial
from tests.support.public import same_bits

DIMS = 32
TOKENS = mx.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
# Everything is swapped, for MLX operations: what is tested is not the kernels.
ALL = Operations(FUNCTIONS)


class MyNorm(nn.Module):
    """Another class that is a norm."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = mx.ones((DIMS,))
        self.eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.weight, self.eps)


class Hooked(nn.RMSNorm):
    """Counts what it is called with: nothing of it is a function of MLX."""

    calls = 0

    def __call__(self, x: mx.array) -> mx.array:
        type(self).calls += 1
        return super().__call__(x)


class Block(nn.Module):
    def __init__(self, norms: list[nn.Module]) -> None:
        super().__init__()
        self.first, self.second = norms
        self.mix = nn.Linear(DIMS, DIMS)
        self.gate, self.up, self.down = (nn.Linear(DIMS, DIMS) for _ in range(3))

    def __call__(self, x: mx.array) -> mx.array:
        h = x + self.mix(self.first(x))
        y = self.second(h)
        return h + self.down(nn.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, make: Callable[[], nn.Module] = lambda: nn.RMSNorm(DIMS)) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, DIMS)
        self.blocks = [Block([make(), make()]) for _ in range(2)]
        self.norm = make()
        self.extra = {"activation": nn.GELU()}

    def __call__(self, tokens: mx.array) -> mx.array:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.embed.as_linear(self.extra["activation"](self.norm(x)))


def made(make: Callable[[], nn.Module] = lambda: nn.RMSNorm(DIMS), seed: int = 3) -> Model:
    mx.random.seed(seed)
    model = Model(make)
    mx.eval(model.parameters())
    return model


def classes(model: nn.Module) -> dict[str, tuple[int, type]]:
    return {path: (id(module), type(module)) for path, module in model.named_modules()}


def test_norms_run_on_our_kernels_and_come_back() -> None:
    model = made()
    before, expected = classes(model), model(TOKENS)
    parameters = {path: id(value) for path, value in tree_flatten(model.parameters())}
    report = metile.patch(model, sample=TOKENS)
    assert report
    norms = {s.path for s in report.swaps if s.kind == "norm"}
    assert norms == {"norm", *(f"blocks.{i}.{n}" for i in (0, 1) for n in ("first", "second"))}
    for path in norms:
        assert "rms_norm" in type(_at(model, path)).__call__.__code__.co_freevars[0]
    assert all(isinstance(_at(model, path), nn.RMSNorm) for path in norms)
    assert mx.allclose(model(TOKENS), expected, rtol=1e-5, atol=1e-5)
    (agreed,) = report.agreement
    assert agreed.is_met
    assert (agreed.dtype, agreed.values, agreed.tokens) == ("float32", 160, 10)
    assert {p: id(v) for p, v in tree_flatten(model.parameters())} == parameters
    report.restore()
    assert classes(model) == before
    assert same_bits(model(TOKENS), expected)
    report.restore()


def kinds_of(report: metile.PatchReport) -> set[str]:
    return {swap.kind for swap in report.swaps}


def _at(model: nn.Module, path: str) -> Any:
    return dict(model.named_modules())[path]


def test_every_kind_and_a_report_that_says_it() -> None:
    model = made()
    report = Trial(model, (TOKENS,), ALL).run()
    count = {kind: len([s for s in report.swaps if s.kind == kind]) for kind in ("norm", "gate")}
    assert count == {"norm": 5, "gate": 2}
    assert {s.text for s in report.swaps if s.kind == "residual"} == {
        "h = x + self.mix(self.first(x)); self.second(h)"
    }
    assert {s.path for s in report.swaps if s.kind == "activation"} == {"extra.activation"}
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["swapped"] is True
    assert plain["agreement"][0]["met"] is True
    text = str(report)
    assert "blocks.0 and 1 more" in text
    assert "test_patch.py:" in text
    assert "10 of 10 tokens equal" in text


def test_what_differs_is_found_by_bisection() -> None:
    """One norm of five is wrong with ours, and its sum with it; all others stay swapped."""
    epsilons = iter((1e-5, 1e-5, 1e-5, 2e-5, 1e-5))

    def wrong(x: mx.array, weight: mx.array, eps: float) -> mx.array:
        return rms_norm(x, weight, eps) * (1.01 if eps == 2e-5 else 1)

    model = made(lambda: nn.RMSNorm(DIMS, next(epsilons)))
    expected = model(TOKENS)
    report = Trial(model, (TOKENS,), Operations({**FUNCTIONS, "rms_norm": wrong})).run()
    assert [(d.path, d.kind) for d in report.declines] == [
        ("blocks.1.second", "norm"),
        ("blocks.1", "residual"),
    ]
    assert "does not reproduce MLX: float32: difference" in report.declines[0].reason
    assert report.declines[1].reason == "the norm of the sum is not swapped"
    assert len([s for s in report.swaps if s.kind == "norm"]) == 4
    assert report.agreement[0].is_met
    assert mx.allclose(model(TOKENS), expected, rtol=1e-5, atol=1e-5)


def test_what_raises_is_declined_with_its_message() -> None:
    def refuses(*_: object) -> mx.array:
        raise metile.UnsupportedError("too wide")

    model = made()
    before = classes(model)
    report = Trial(model, (TOKENS,), Operations({"rms_norm": refuses})).run()
    assert not report
    assert {d.reason for d in report.declines} == {"UnsupportedError: too wide"}
    assert len(report.declines) == 5
    assert classes(model) == before


def test_unknown_norms_are_left_alone_with_the_reason() -> None:
    """A subclass that does more, and methods that can't be read."""
    model = made(lambda: Hooked(DIMS))
    report = metile.patch(model, sample=TOKENS)
    assert not kinds_of(report) & {"norm", "residual"}
    assert {(d.path, d.reason) for d in report.declines} >= {
        ("norm", "its __call__ holds no operation of MLX's")
    }
    Hooked.calls = 0
    model(TOKENS)
    assert Hooked.calls == 5
    foreign = type("Foreign", (MyNorm,), {"__call__": mx.negative})
    report = metile.patch(made(foreign), sample=TOKENS)
    assert not kinds_of(report) & {"norm", "residual"}
    assert {d.reason for d in report.declines if d.kind == "norm"} == {
        "its __call__ is not known: it is nb_func, not a Python function"
    }


def test_a_class_of_ones_own_is_recognised_and_its_own_methods_work() -> None:
    report = metile.patch(made(MyNorm), sample=TOKENS)
    assert [s.module for s in report.swaps if s.kind == "norm"] == ["MyNorm"] * 5


def plain(x: mx.array) -> mx.array:
    return mx.maximum(x, 0)


activation, normalised = nn.silu, mx.fast.rms_norm


class ByGlobals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = mx.ones((24,))

    def __call__(self, x: mx.array) -> mx.array:
        return activation(x) * normalised(x, self.weight, 1e-5)


class NormByGlobal(ByGlobals):
    def __call__(self, x: mx.array) -> mx.array:
        return normalised(x, self.weight, 1e-5)


class Summed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = NormByGlobal()

    def __call__(self, x: mx.array) -> mx.array:
        return self.norm(x + x)


def test_a_global_that_means_another_function_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By each patch; also of a norm that a sum is computed with."""
    x = mx.random.normal((3, 24), key=mx.random.key(5))
    for make, kinds in ((ByGlobals, {"gate", "norm"}), (Summed, {"norm", "residual"})):
        report = metile.patch(make(), sample=x)
        assert {swap.kind for swap in report.swaps} == kinds
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "activation", nn.gelu)
        report = metile.patch(ByGlobals(), sample=x)
        assert {swap.kind for swap in report.swaps} == {"gate", "norm"}
        patch.setitem(globals(), "activation", plain)
        patch.setitem(globals(), "normalised", lambda x, weight, eps: x * weight)
        for make in (ByGlobals, Summed):
            model = make()
            expected = model(x)
            assert not metile.patch(model, sample=x)
            assert same_bits(model(x), expected)
    assert metile.patch(Summed(), sample=x)


def test_a_module_used_twice_is_swapped_once() -> None:
    shared = nn.RMSNorm(DIMS)
    model = made(lambda: shared)
    expected = model(TOKENS)
    report = metile.patch(model, sample=TOKENS)
    (swap,) = (s for s in report.swaps if s.kind == "norm")
    assert len(swap.path.split(", ")) == 5
    assert all(_at(model, path) is shared for path in swap.path.split(", "))
    assert mx.allclose(model(TOKENS), expected, rtol=1e-5, atol=1e-5)
    report.restore()
    assert type(shared) is nn.RMSNorm


def test_an_activation_that_other_models_share_is_not_touched() -> None:
    model, other = made(), made()
    activation = other.extra["activation"] = model.extra["activation"]
    report = Trial(model, (TOKENS,), ALL).run()
    assert type(activation) is nn.GELU
    assert model.extra["activation"] is not activation
    assert isinstance(model.extra["activation"], nn.GELU)
    assert other.extra["activation"] is activation
    model.train(False)
    report.restore()
    assert model.extra["activation"] is activation
    assert not activation.training


def test_flags_names_and_wrappers_stay() -> None:
    """Frozen and quantised parameters, LoRA, training, repr, and what is set in between."""
    model = made()
    model.blocks[0].up = nn.QuantizedLinear.from_linear(model.blocks[0].up, group_size=32)
    model.blocks[0].down = LoRALinear.from_base(model.blocks[0].down, r=4)
    model.blocks[1].freeze()
    model.eval()
    text, parameters = repr(model), tree_flatten(model.parameters())
    trainable = [path for path, _ in tree_flatten(model.trainable_parameters())]
    report = Trial(model, (TOKENS,), ALL).run()
    assert report
    assert repr(model) == text
    assert [(p, id(v)) for p, v in tree_flatten(model.parameters())] == [
        (p, id(v)) for p, v in parameters
    ]
    assert [path for path, _ in tree_flatten(model.trainable_parameters())] == trainable
    assert not any(module.training for module in model.modules())
    assert type(model.blocks[0].down) is LoRALinear
    model.train()
    model.norm.weight = mx.zeros((DIMS,))
    report.restore()
    assert all(module.training for module in model.modules())
    assert mx.array_equal(model(TOKENS), mx.zeros((2, 5, 16)))


def test_a_norm_that_is_exchanged_later_is_used_as_it_is() -> None:
    """A sum asks its norm when it runs, not when it was patched."""
    model = made()
    Trial(model, (TOKENS,), ALL).run()
    model.blocks[0].second = nn.LayerNorm(DIMS)
    plain = made()
    plain.blocks[0].second = nn.LayerNorm(DIMS)
    assert mx.allclose(model(TOKENS), plain(TOKENS), rtol=1e-5, atol=1e-5)


def test_copies_and_pickles_hold_the_original_classes() -> None:
    model = made()
    expected = model(TOKENS)
    report = Trial(model, (TOKENS,), ALL).run()
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(again.norm) is nn.RMSNorm
        assert type(again.blocks[0]) is Block
        assert same_bits(again(TOKENS), expected)
    assert report


def test_a_patched_model_is_patched_once() -> None:
    model = made()
    first = metile.patch(model, sample=TOKENS)
    second = metile.patch(model, sample=TOKENS)
    assert not second
    assert {d.reason for d in second.declines} == {"it is patched already"}
    second.restore()
    assert type(model.norm) is not nn.RMSNorm
    first.restore()
    assert type(model.norm) is nn.RMSNorm


def test_a_model_that_changes_from_run_to_run_is_left_alone() -> None:
    class Dropping(Model):
        def __call__(self, tokens: mx.array) -> mx.array:
            return super().__call__(tokens) * mx.random.uniform()

    model = Dropping()
    report = metile.patch(model, sample=TOKENS)
    assert not report
    assert all("two runs of MLX on the sample differ" in d.reason for d in report.declines)
    kinds = [d.kind for d in report.declines]
    assert {kind: kinds.count(kind) for kind in ("norm", "residual")} == {"norm": 5, "residual": 2}


def test_results_without_arrays_and_models_without_candidates() -> None:
    class Silent(Model):
        def __call__(self, tokens: mx.array) -> Any:
            super().__call__(tokens)

    for silent, sample in ((Silent(), TOKENS), (nn.RMSNorm(DIMS), mx.zeros((0, DIMS)))):
        report = metile.patch(silent, sample=(sample,))
        assert not report
        assert {d.reason for d in report.declines} == {"the model returns no numbers on the sample"}
    empty = metile.patch(nn.Linear(3, 3), sample=mx.zeros((1, 3)))
    assert (bool(empty), empty.runs, empty.declines) == (False, 0, [])


def test_a_model_that_fails_is_as_it_was() -> None:
    model = made()
    before = classes(model)
    with pytest.raises(ValueError, match="must be integral"):
        metile.patch(model, sample=(TOKENS[:, :1].astype(mx.float32),))
    assert classes(model) == before


@pytest.mark.parametrize("sample", [None, [TOKENS], "tokens"])
def test_other_samples_are_refused(sample: object) -> None:
    with pytest.raises(metile.LaunchError, match=r"sample is .*; expected an array of tokens"):
        metile.patch(made(), sample=sample)
    with pytest.raises(metile.LaunchError, match=r"model is int; expected an mlx\.nn\.Module"):
        metile.patch(3, sample=TOKENS)


def test_what_is_slower_is_dropped_when_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(kind: str, with_it: Any, without: Any, run: Any) -> Any:
        ours = {"norm": 2.0}.get(kind, 0.5)
        return measuring.Measured(kind, ours, 1.0, ours <= 1.0)

    monkeypatch.setattr(measuring, "compare", fake)
    model = made()
    report = Trial(model, (TOKENS,), ALL).run(measure=True)
    assert kinds_of(report) == {"gate", "activation"}
    reasons = {d.kind: d.reason for d in report.declines}
    assert reasons == {
        "norm": "slower: 2000.000 ms with it, 1000.000 ms without",
        "residual": "the norm of the sum is not swapped",
    }
    assert type(model.norm) is nn.RMSNorm
    assert "norm: 2000.000 ms with, 1000.000 ms without, dropped" in str(report)


def test_a_measured_patch_names_every_kind_and_says_the_same() -> None:
    model = made()
    expected = model(TOKENS)
    report = metile.patch(model, sample=TOKENS, measure=True)
    kinds = [m.kind for m in report.measured]
    assert kinds[0] == "norm"
    assert kinds_of(report) <= {m.kind for m in report.measured if m.kept}
    assert all(m.with_it > 0 and m.without > 0 for m in report.measured)
    assert mx.allclose(model(TOKENS), expected, rtol=1e-5, atol=1e-5)


def test_a_patched_model_compiles_and_a_class_that_refuses_is_left_alone() -> None:
    class Sealed(nn.RMSNorm):
        def __init_subclass__(cls) -> None:
            raise RuntimeError("no subclasses")

    model = made(lambda: Sealed(DIMS))
    expected = model(TOKENS)
    report = metile.patch(model, sample=TOKENS)
    assert {d.reason for d in report.declines if d.kind == "any"} == {
        "its class can't be derived from: no subclasses"
    }
    assert not kinds_of(report) & {"norm", "residual"}
    assert {d.reason for d in report.declines if d.kind == "residual"} == {
        "the norm of the sum is not swapped"
    }
    plain = made()
    assert metile.patch(plain, sample=TOKENS)
    compiled = mx.compile(lambda tokens: plain(tokens))
    for _ in range(2):
        assert mx.allclose(compiled(TOKENS), expected, rtol=1e-5, atol=1e-5)


def test_measuring_alternates_and_takes_medians() -> None:
    now = [0.0]
    order: list[str] = []

    def put(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    def run() -> None:
        now[0] += 3.0 if order[-1] == "with" else 2.0

    found = measuring.compare("norm", put("with"), put("without"), run, lambda: now[0])
    assert (found.with_it, found.without, found.kept) == (3.0, 2.0, False)
    assert order[:4] == ["with", "without", "without", "with"]
