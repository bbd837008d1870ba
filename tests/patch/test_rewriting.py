"""What is recognised in a method, and what is not: other things stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn

from metile_mlx.patching.forms import norm_form
from metile_mlx.patching.operations import Operations
from metile_mlx.patching.rewriting import KINDS, rewritten
from metile_mlx.patching.rounded_once import FUNCTIONS

CALLS: list[str] = []
NORMS = {"norm"}


def noted(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        CALLS.append(name)
        return FUNCTIONS[name](*arguments, **named)

    return call


NOTED = Operations({name: noted(name) for name in FUNCTIONS})


@partial(mx.compile, shapeless=True)
def flipped(a: mx.array, b: mx.array) -> mx.array:
    """up first"""
    return a * nn.gelu_approx(b)


@mx.compile
def clamped(a: mx.array, b: mx.array) -> mx.array:
    return nn.silu(mx.minimum(a, 1)) * b


def silu(x: mx.array) -> mx.array:
    """Not MLX's."""
    return x + 1


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(8)
        self.weight = mx.random.normal((8,))
        self.eps = 1e-5


class Written(Module):
    def __call__(self, x: mx.array, r: mx.array) -> mx.array:
        """Everything once."""
        y = mx.fast.rms_norm(x, weight=1.0 + self.weight, eps=self.eps)
        z = mx.fast.layer_norm(y, self.weight, None, self.eps)
        gate = r * nn.silu(z) + nn.gelu(y) * z + flipped(z, r)
        h = x + gate
        if x.size:
            later = nn.silu(h) + self.norm(h)
        return later + self.norm(x + r)


def test_everything_is_found_and_means_the_same() -> None:
    module = Written()
    x, r = (mx.random.normal((3, 8), key=mx.random.key(k)) for k in (1, 2))
    expected = module(x, r)
    found = rewritten(Written.__call__, KINDS, NOTED, NORMS)
    kinds = [(site.kind, site.function) for site in found.sites]
    assert sorted(kinds) == [
        ("activation", "silu"),
        ("gate", "geglu"),
        ("gate", "geglu_approx"),
        ("gate", "swiglu"),
        ("norm", "layer_norm"),
        ("norm", "rms_norm"),
        ("residual", "add_norm"),
    ]
    assert found.function is not None
    CALLS.clear()
    assert mx.allclose(found.function(module, x, r), expected, rtol=1e-5, atol=1e-6)
    assert sorted(CALLS) == sorted(name for _, name in kinds)
    residual = next(site for site in found.sites if site.kind == "residual")
    assert (residual.text, residual.norm) == ("self.norm(x + r)", "norm")
    assert residual.where.startswith("test_rewriting.py:")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "linear"])
def test_kinds_are_swapped_one_by_one(kind: str) -> None:
    found = rewritten(Written.__call__, (kind,), NOTED, NORMS)
    assert {site.kind for site in found.sites} == {kind}
    few = Operations({"rms_norm": FUNCTIONS["rms_norm"]})
    assert bool(rewritten(Written.__call__, (kind,), few, NORMS).sites) == (kind == "norm")


class Straight(Module):
    def __call__(self, x: mx.array, r: mx.array) -> tuple[mx.array, ...]:
        x = x + r
        r = (x * 2).astype(x.dtype)
        z = mx.exp(self.norm(x)) * r
        h = x + z
        if r.size:
            z = -h
        return h + self.norm(h) * self.norm(h), h, z


def test_a_sum_is_fused_with_the_norm_that_follows_it() -> None:
    """Each of two sums of the same name, with statements in between."""
    module = Straight()
    x, r = (mx.random.normal((3, 8), key=mx.random.key(k)) for k in (1, 2))
    found = rewritten(Straight.__call__, ("residual",), NOTED, NORMS)
    assert [site.text for site in found.sites] == [
        "x = x + r; self.norm(x)",
        "h = x + z; self.norm(h)",
    ]
    assert found.function is not None
    CALLS.clear()
    for made, expected in zip(found.function(module, x, r), module(x, r), strict=True):
        assert mx.array_equal(made, expected)
    assert CALLS == ["add_norm", "add_norm"]


def unlike() -> list[Callable[..., Any]]:  # noqa: C901
    def reassigned(self: Any, x: Any, r: Any) -> Any:
        h = x + r
        h = h * 2
        return self.norm(h)

    def assigned_in_a_branch(self: Any, x: Any, r: Any) -> Any:
        h = x + r
        if x.size:
            h = h * 2
        return self.norm(h)

    def other_block(self: Any, x: Any, r: Any) -> Any:
        h = x + r
        for _ in range(2):
            r = self.norm(h)
        return r

    def conditional(self: Any, x: Any, r: Any) -> Any:
        h = x + r
        return self.norm(h) if x.size else h

    def other_self(self: Any, x: Any, r: Any) -> Any:
        h = x + r
        self = self.inner
        return self.norm(h)

    def in_place(self: Any, x: Any, r: Any) -> Any:
        x += r
        return self.norm(x)

    def renamed_on_the_way(self: Any, x: Any, r: Any) -> Any:
        h = x + r
        return (h := r) + self.norm(h)

    def with_more_arguments(self: Any, x: Any, r: Any) -> Any:
        h = x + r
        return self.norm(h, 1)

    def changed_inside(self: Any, x: Any, r: Any) -> Any:
        h = x + r

        def change() -> None:
            nonlocal h
            h = r

        change()
        return self.norm(h)

    def own_silu(self: Any, x: Any, r: Any) -> Any:
        return silu(x) * r

    def hidden_module(self: Any, nn: Any, r: Any) -> Any:
        return nn.silu(r) * r + mx.fast.rms_norm_like(r)

    def clamped_gate(self: Any, x: Any, r: Any) -> Any:
        return clamped(x, r)

    def in_a_lambda(self: Any, x: Any, r: Any) -> Any:
        return (lambda mx: mx.fast.rms_norm(x, None, 1e-5))(r)

    def in_a_comprehension(self: Any, x: Any, r: Any) -> Any:
        return [nn.silu(nn) for nn in x]

    return [item for item in locals().values() if callable(item)]


@pytest.mark.parametrize("method", unlike(), ids=lambda method: method.__name__)
def test_what_only_looks_alike_stays(method: Callable[..., Any]) -> None:
    assert rewritten(method, KINDS, NOTED, NORMS).function is None


def added(h: mx.array) -> mx.array:
    """In place."""
    h += 1.0
    return h


def change_sums() -> list[Callable[..., Any]]:  # noqa: C901, PLR0915
    """The sum is another one when its norm is asked, if `flag` says so."""

    def subscript(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        if flag:
            h[0] = 0
        return self.norm(h)

    def nested_subscript(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        if flag:
            h[0][1] = 5
        return self.norm(h)

    def augmented_subscript(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        if flag:
            h[0] *= 3
        return self.norm(h)

    def callee(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        if flag:
            added(h)
        return self.norm(h)

    def callee_before_in_the_statement(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        return (added(h) if flag else r) + self.norm(h)

    def callee_of_the_starred(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        return dict(b=self.norm(h), *[{"a": added(h)} if flag else {}])["b"]  # noqa: B026

    def alias(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        y = h
        if flag:
            y += 1.0
        return self.norm(h)

    def alias_in_a_list(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        for y in [h]:
            if flag:
                y += 1.0
        return self.norm(h)

    def method_in_place(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        if flag:
            h.__iadd__(1.0)
        return self.norm(h)

    def by_a_closure(self: Any, x: Any, r: Any, flag: bool) -> Any:
        def change() -> None:
            nonlocal x
            x = r

        x = x + r
        if flag:
            change()
        return self.norm(x)

    def caught(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        try:
            h * (1 // (not flag))
        except ZeroDivisionError as h:
            return r
        return self.norm(h)

    def left_before(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        if flag:
            return h
        return self.norm(h)

    def other_norm(self: Any, x: Any, r: Any, flag: bool) -> Any:
        h = x + r
        if flag:
            self.norm.weight = r[0]
        return self.norm(h)

    return [item for item in locals().values() if callable(item)]


@pytest.mark.parametrize("method", change_sums(), ids=lambda method: method.__name__)
def test_a_sum_that_may_be_another_one_at_its_norm_is_left_alone(
    method: Callable[..., Any],
) -> None:
    """Behind a flag that a sample would not have set."""
    found = rewritten(method, KINDS, NOTED, NORMS)
    assert found.function is None, found.sites


class Ordered(Module):
    def __call__(self, first: Callable[..., Any], second: Callable[..., Any]) -> Any:
        return first() * nn.silu(second()) + flipped(first(), second())


def test_arguments_are_evaluated_in_the_order_in_which_they_stand() -> None:
    order: list[str] = []

    def first() -> mx.array:
        order.append("first")
        return mx.ones((2,))

    def second() -> mx.array:
        order.append("second")
        return mx.ones((2,))

    found = rewritten(Ordered.__call__, KINDS, NOTED, NORMS).function
    assert found is not None
    found(Ordered(), first, second)
    assert order == ["first", "second"] * 2


class Gemma(Module):
    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, 1.0 + self.weight, self.eps)


class Scaled(Module):
    def __call__(self, x: mx.array) -> mx.array:
        return 2 * mx.fast.rms_norm(x, self.weight, self.eps)


class ByInput(Module):
    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, x[0], self.eps)


def test_norms_that_are_nothing_else_have_a_form() -> None:
    module = Gemma()
    form = norm_form(Gemma.__call__)
    assert form is not None
    weight, eps = form(module, None)
    assert mx.array_equal(weight, 1.0 + module.weight)
    assert eps == module.eps
    assert norm_form(nn.RMSNorm.__call__) is not None
    for other in (Scaled.__call__, ByInput.__call__, nn.LayerNorm.__call__, len):
        assert norm_form(other) is None
