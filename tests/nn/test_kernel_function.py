"""`metile_mlx.nn.kernel_function`: caches, gradients and transforms of kernels in functions."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.nn import kernel_function
from metile_mlx.nn.kernel_function import KEPT_FUNCTIONS, KernelFunction, OneKernel
from metile_mlx.runtime.backend import Place
from metile_mlx.runtime.export import primitives
from tests.support.public import compilations

BLOCK = 32


@metile.kernel
def product_and_sum(x, y, product, total, n: int, factor: float):
    i = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    a, b = metile.tensor(x, shape=n).load(i), metile.tensor(y, shape=n).load(i)
    metile.tensor(product, shape=n, access="write").store(i, factor * a * b)
    metile.tensor(total, shape=n, access="write").store(i, a + b)


@metile.kernel
def gradients(x, y, of_product, of_total, x_gradient, y_gradient, n: int, factor: float):
    i = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    a, b = metile.tensor(x, shape=n).load(i), metile.tensor(y, shape=n).load(i)
    p, t = metile.tensor(of_product, shape=n).load(i), metile.tensor(of_total, shape=n).load(i)
    metile.tensor(x_gradient, shape=n, access="write").store(i, factor * b * p + t)
    metile.tensor(y_gradient, shape=n, access="write").store(i, factor * a * p + t)


class ProductAndSum(KernelFunction):
    """factor * x * y and x + y of flat arrays; of one array, of it and itself."""

    def __init__(self, factor: float, *, stream: Place) -> None:
        super().__init__(stream=stream)
        self.factor = factor
        self.pulled = 0

    def forward(self, x: mx.array, y: mx.array | None = None) -> tuple[mx.array, mx.array]:
        empty = metile.empty(x.shape, x.dtype)
        arguments = (x, x if y is None else y, empty, empty, x.size, self.factor)
        grid = metile.cdiv(x.size, BLOCK)
        made: tuple[mx.array, mx.array] = self.ready(
            ("forward", x.shape, x.dtype),
            lambda _: product_and_sum[grid].prepare(*arguments, stream=self.stream),
        )(*arguments)
        return made

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        self.pulled += 1
        assert [out.shape for out in outputs] == [primals[0].shape] * 2
        x, y = primals[0], primals[-1]
        empty = metile.empty(x.shape, x.dtype)
        arguments = (x, y, *cotangents, empty, empty, x.size, self.factor)
        grid = metile.cdiv(x.size, BLOCK)
        made = self.ready(
            ("backward", x.shape, x.dtype),
            lambda _: gradients[grid].prepare(*arguments, stream=self.stream),
        )(*arguments)
        return made if len(primals) == 2 else (made[0] + made[1],)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[object, Any]:
    found: dict[object, Any] = {}
    monkeypatch.setattr(ProductAndSum, "_kept", found)
    return found


def numbers(shape: tuple[int, ...] = (40,), seed: int = 0) -> mx.array:
    return mx.random.randint(-8, 9, shape, key=mx.random.key(seed)).astype(mx.float32)


def test_f04_one_function_for_each_stream_however_it_was_found(kept: dict[object, Any]) -> None:
    """MLX hands out a new object at each question; two streams never share one."""
    x = numbers()
    for _ in range(20):
        ProductAndSum.of(2.0, stream=mx.default_stream(mx.cpu))(x, x)
    assert len(kept) == 1
    for _ in range(20):
        stream = mx.new_stream(mx.cpu)
        function = ProductAndSum.of(2.0, stream=stream)
        assert function.stream == stream
        assert mx.array_equal(function(x, x)[0], 2 * x * x)
    assert len(kept) == 21


def test_f04_functions_of_many_options_are_dropped(kept: dict[object, Any]) -> None:
    for number in range(3 * KEPT_FUNCTIONS):
        made = ProductAndSum.of(number / 7, stream=None)
        assert ProductAndSum.of(number / 7, stream=None) is made
    assert 0 < len(kept) <= KEPT_FUNCTIONS


def test_families_share_no_function() -> None:
    class Other(ProductAndSum):
        pass

    assert type(Other.of(2.0, stream=None)) is Other
    assert type(ProductAndSum.of(2.0, stream=None)) is ProductAndSum


def test_f04_one_text_for_all_sizes_and_few_kernels_kept(
    kept: dict[object, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_function, "KEPT_KERNELS", 8)
    function = ProductAndSum.of(3.0, stream=None)
    with compilations() as found:
        for size in range(1, 40):
            x = numbers((size,))
            assert mx.array_equal(function(x, x)[1], x + x)
            assert len(function._ready) <= 8
    assert found in ([], ["product_and_sum"])


def test_kernels_are_kept_per_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    function = ProductAndSum(1.0, stream=None)
    made = []
    for backend in ("cpu", "reference", "cpu"):
        monkeypatch.setenv("METILE_BACKEND", backend)
        function.ready(("a",), lambda backend: made.append(backend) or backend)
    assert made == ["cpu", "reference"]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_f28_x7_gradients_are_those_of_backward(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one output or both, of one array or two, eager, compiled, batched, twice."""
    monkeypatch.setenv("METILE_BACKEND", backend)
    function = ProductAndSum(2.0, stream=None)
    x, y, c = numbers(), numbers(seed=1), numbers(seed=2)

    def loss(product_and_sum: Callable[..., Any]) -> Callable[..., mx.array]:
        def of(*arrays: mx.array) -> mx.array:
            product, total = product_and_sum(*arrays)
            return (c * product).sum() + (total * total).sum()

        return of

    def plain(a: mx.array, b: mx.array | None = None) -> tuple[mx.array, mx.array]:
        b = a if b is None else b
        return 2 * a * b, a + b

    for transform in (lambda f: f, mx.compile):
        made = transform(mx.grad(loss(function), (0, 1)))(x, y)
        expected = mx.grad(loss(plain), (0, 1))(x, y)
        assert all(mx.array_equal(a, b) for a, b in zip(made, expected, strict=True))
    assert mx.array_equal(mx.grad(loss(function))(x), mx.grad(loss(plain))(x))
    assert function.pulled == 3
    only_product = mx.grad(lambda x: function(x, y)[0].sum())(x)
    assert mx.array_equal(only_product, 2 * y)
    twice = mx.grad(lambda x: (mx.grad(loss(function))(x) ** 2).sum())(x)
    assert mx.array_equal(twice, mx.grad(lambda x: (mx.grad(loss(plain))(x) ** 2).sum())(x))
    many = numbers((3, 40), seed=3)
    for vmap in (mx.vmap, metile.vmap):
        batched = vmap(lambda x, y: function(x, y)[0], in_axes=(0, None))(many, y)
        assert mx.array_equal(batched, 2 * many * y)


class Product(OneKernel):
    """x * y and x + y in one kernel, and gradients that say so: ten times what they are."""

    def prepared(self, backend: str, x: mx.array, y: mx.array) -> metile.Dispatch:
        empty = metile.empty(x.shape, x.dtype)
        return product_and_sum[metile.cdiv(x.size, BLOCK)].prepare(
            x, y, empty, empty, x.size, 1.0, stream=self.stream
        )

    def backward(
        self,
        primals: Sequence[mx.array],
        cotangents: Sequence[mx.array],
        outputs: Sequence[mx.array],
    ) -> Sequence[mx.array]:
        (x, y), (of_product, of_total) = primals, cotangents
        assert [out.shape for out in outputs] == [x.shape] * 2
        return 10 * (y * of_product + of_total), 10 * (x * of_product + of_total)


def test_f28_x7_one_kernel_has_its_own_gradient_and_nothing_around_it(batchable: str) -> None:
    """Of one argument or both; compiled and batched; forward mode is the reference's."""
    function = Product(stream=None)
    x, y, c = numbers(), numbers(seed=1), numbers(seed=2)

    def loss(x: mx.array, y: mx.array) -> mx.array:
        product, total = function(x, y)
        return (c * product).sum() + total.sum()

    for transform in (lambda f: f, mx.compile):
        made = transform(mx.grad(loss, (0, 1)))(x, y)
        assert mx.array_equal(made[0], 10 * (c * y + 1))
        assert mx.array_equal(made[1], 10 * (c * x + 1))
    assert mx.array_equal(mx.grad(loss, 1)(x, y), 10 * (c * x + 1))
    many = numbers((3, 40), seed=3)
    for vmap in (mx.vmap, metile.vmap):
        made = vmap(mx.grad(loss), in_axes=(0, None))(many, y)
        assert mx.array_equal(made, mx.broadcast_to(10 * (c * y + 1), (3, 40)))
    _, pushed = mx.jvp(function, [x, y], [c, mx.zeros_like(y)])
    assert mx.array_equal(pushed[0], c * y)
    names = primitives(lambda x, y: function(x, y), x, y)
    assert "CustomKernel" in names
    assert "CustomTransforms" not in names


def test_f04_a_function_that_is_dropped_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though its kernels hold its gradient where Python can't see it."""
    monkeypatch.setattr(Product, "_kept", {})
    monkeypatch.setattr(kernel_function, "KEPT_FUNCTIONS", 1)
    function = Product.of(stream=None)
    mx.eval(function(numbers(), numbers()))
    seen = weakref.ref(function)
    del function
    gc.collect()
    assert seen() is not None
    Product.of(stream=mx.new_stream(mx.cpu))
    gc.collect()
    assert seen() is None


def test_x2_an_export_holds_kernels_and_no_custom_function() -> None:
    function = ProductAndSum(2.0, stream=None)
    names = primitives(lambda x, y: function(x, y), numbers(), numbers(seed=1))
    assert "CustomKernel" in names
    assert "CustomTransforms" not in names
