"""`metile.nn.using`: modules of mlx.nn on our kernels inside a block, and only there (SPEC B2)."""

from __future__ import annotations

import contextvars
import importlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

import metile_mlx as metile

# `metile.nn.using` is the function.
block = importlib.import_module("metile_mlx.nn.using")
DIMS = 24
X = mx.random.normal((3, DIMS), key=mx.random.key(1))


class Renamed(nn.RMSNorm):
    """Has no `__call__` of its own."""


class Doubled(nn.RMSNorm):
    def __call__(self, x: mx.array) -> mx.array:
        return super().__call__(x) * 2


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each call that ran on our function."""
    calls: list[str] = []

    def noted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            calls.append(name)
            return function(*arguments, **named)

        return call

    for name in (
        "rms_norm", "layer_norm", "silu", "gelu", "softmax", "log_softmax", "embedded", "rope",
    ):  # fmt: skip
        monkeypatch.setattr(block, name, noted(name, getattr(block, name)))
    return calls


@pytest.mark.parametrize("kind", [nn.RMSNorm, Renamed, Doubled])
def test_inside_the_block_modules_run_on_our_kernels(kind: type, ours: list[str]) -> None:
    method, module = nn.RMSNorm.__call__, kind(DIMS)
    expected = module(X)
    assert ours == []
    with metile.nn.using():
        assert mx.allclose(module(X), expected, rtol=1e-5, atol=1e-6)
        assert ours == ["rms_norm"]
        with metile.nn.using():
            module(X)
        module(X)
        assert ours == ["rms_norm"] * 3
    assert nn.RMSNorm.__call__ is method
    module(X)
    assert ours == ["rms_norm"] * 3


IDS = mx.array([[0, 5], [-1, 2]])
PLANE = X.reshape(1, 3, DIMS)
OTHERS = {
    "layer norm": (nn.LayerNorm(DIMS), X),
    "no bias": (nn.LayerNorm(DIMS, bias=False), X),
    "no weight": (nn.LayerNorm(DIMS, affine=False), X),
    "silu": (nn.SiLU(), X),
    **{f"gelu {a}": (nn.GELU(a), X) for a in ("none", "precise", "tanh", "fast")},
    "softmax": (nn.Softmax(), X),
    "log softmax": (nn.LogSoftmax(), X),
    "embedding": (nn.Embedding(7, DIMS), IDS),
    "rope": (nn.RoPE(8, traditional=True, base=100.0, scale=0.5), PLANE),
    "rope from 7 on": (partial(nn.RoPE(8), offset=mx.array(7)), PLANE),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_do_too(name: str, ours: list[str]) -> None:
    module, x = OTHERS[name]
    methods, expected = [kind.__call__ for kind in block._methods()], module(x)
    with metile.nn.using():
        assert mx.allclose(module(x), expected, rtol=1e-5, atol=1e-6)
    assert len(ours) == 1
    assert [kind.__call__ for kind in block._methods()] == methods


def test_every_module_of_ours_has_one_of_mlxs_that_using_knows() -> None:
    kinds = [getattr(metile.nn, name) for name in metile.nn.__all__]
    names = {kind.__name__ for kind in kinds if isinstance(kind, type)}
    assert {kind.__name__ for kind in block._methods()} == names
    assert all(getattr(nn, name) in block._methods() for name in names)


def test_another_thread_keeps_mlxs_and_the_last_to_leave_restores(ours: list[str]) -> None:
    method, module = nn.RMSNorm.__call__, nn.RMSNorm(DIMS)
    inside, leave = threading.Event(), threading.Event()
    seen: list[int] = []

    def work() -> None:
        module(X)
        seen.append(len(ours))
        with metile.nn.using():
            inside.set()
            leave.wait(30)
            module(X)
            seen.append(len(ours))

    with metile.nn.using():
        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(30)
    assert nn.RMSNorm.__call__ is not method
    module(X)
    assert ours == []
    leave.set()
    thread.join()
    assert seen == [0, 1]
    assert nn.RMSNorm.__call__ is method


def test_gradients_are_ours_and_an_error_leaves_the_block(ours: list[str]) -> None:
    method, module = nn.RMSNorm.__call__, nn.RMSNorm(DIMS)
    slope = mx.grad(lambda x: module(x).sum())
    expected = slope(X)
    with metile.nn.using():
        assert mx.allclose(slope(X), expected, rtol=1e-4, atol=1e-5)
        assert ours == ["rms_norm"]
    with pytest.raises(metile.LaunchError, match="weight has shape"), metile.nn.using():
        nn.RMSNorm(DIMS + 1)(X)
    assert nn.RMSNorm.__call__ is method


def test_what_others_put_there_stays(ours: list[str]) -> None:
    def own(self: nn.Module, x: mx.array) -> mx.array:
        return x

    module, method = nn.RMSNorm(DIMS), nn.RMSNorm.__call__
    try:
        with metile.nn.using():
            nn.RMSNorm.__call__ = own
        assert module(X) is X
        with metile.nn.using():
            assert module(X) is X
        assert nn.RMSNorm.__call__ is own
    finally:
        nn.RMSNorm.__call__ = method
    assert ours == []


def test_other_dtypes_run_on_mlx(ours: list[str]) -> None:
    """float64, and integers, which its activations take."""
    norm, x = nn.RMSNorm(DIMS), X.astype(mx.float64)
    layer = nn.LayerNorm(DIMS)
    with mx.stream(mx.cpu):
        for module in (norm, layer):
            module.set_dtype(mx.float64)
        whole = mx.arange(-3, 4)
        table = nn.Embedding(7, DIMS)
        table.set_dtype(mx.float64)
        cases = [(norm, x), (layer, x), (nn.SiLU(), x), (nn.GELU(), x), (nn.SiLU(), whole)]
        cases += [(nn.Softmax(), x), (nn.Softmax(), whole), (nn.LogSoftmax(), x), (table, IDS)]
        expected = [module(given) for module, given in cases]
        with metile.nn.using():
            for (module, given), wanted in zip(cases, expected, strict=True):
                made = module(given)
                assert made.dtype == wanted.dtype
                assert mx.array_equal(made, wanted)
    assert ours == []


def test_left_in_another_context_the_block_ends(ours: list[str]) -> None:
    """As an asynchronous generator may be; the classes and the first context have MLX's again."""
    method, module = nn.RMSNorm.__call__, nn.RMSNorm(DIMS)
    entered, manager = contextvars.copy_context(), metile.nn.using()
    entered.run(manager.__enter__)
    entered.run(module, X)
    assert ours == ["rms_norm"]
    manager.__exit__(None, None, None)
    assert nn.RMSNorm.__call__ is method
    with metile.nn.using():
        entered.run(module, X)
        assert ours == ["rms_norm"]
        module(X)
        assert ours == ["rms_norm"] * 2
    assert nn.RMSNorm.__call__ is method


def test_blocks_may_be_left_in_any_order(ours: list[str]) -> None:
    """Whoever was asked to keep one open still has it when the one around it is left."""
    method, module = nn.RMSNorm.__call__, nn.RMSNorm(DIMS)
    first, second = metile.nn.using(), metile.nn.using()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    module(X)
    assert ours == ["rms_norm"]
    second.__exit__(None, None, None)
    module(X)
    assert ours == ["rms_norm"]
    assert nn.RMSNorm.__call__ is method


def test_patch_inside_the_block_compares_with_mlx(ours: list[str]) -> None:
    method, model = nn.RMSNorm.__call__, nn.Sequential(nn.RMSNorm(DIMS))
    with metile.nn.using():
        report = metile.patch(model, sample=X)
        assert [swap.kind for swap in report.swaps] == ["norm"]
        assert ours == []
        model(X)
        assert ours == []
        nn.RMSNorm(DIMS)(X)
        assert ours == ["rms_norm"]
    assert nn.RMSNorm.__call__ is method
    report.restore()
    assert type(model.layers[0]) is nn.RMSNorm
