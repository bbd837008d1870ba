"""Kernels inside MLX graphs: laziness, compile, gradients, vmap, streams, threads, caches (X7)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx import specialise
from tests.support.public import device_of, same_bits

LAZY = ("cpu", "reference")
pytestmark = pytest.mark.usefixtures("gpu")


@metile.kernel
def weighted(x, w, k, y, s, rows, COLUMNS: metile.constexpr):
    """y = x * x * w + k; s = sin(x)."""
    source = metile.tensor(x, shape=(rows, COLUMNS), access="read")
    weights = metile.tensor(w, shape=(COLUMNS,), access="read")
    shifts = metile.tensor(k, shape=(COLUMNS,), access="read")
    first = metile.tensor(y, shape=(rows, COLUMNS), access="write")
    second = metile.tensor(s, shape=(rows, COLUMNS), access="write")
    row, i = metile.program_id(0), metile.arange(0, 64)
    value = source.load((row, i))
    shift = metile.cast(shifts.load(i), metile.f32)
    first.store((row, i), value * value * weights.load(i) + shift)
    second.store((row, i), metile.sin(value))


def ours(x: mx.array, w: mx.array, k: mx.array, **options: Any) -> tuple[mx.array, mx.array]:
    rows, columns = x.shape
    out = metile.empty(x.shape, mx.float32)
    made = weighted[(rows,)](x, w, k, out, out, rows, COLUMNS=columns, **options)
    assert isinstance(made, tuple)
    return made


def theirs(x: mx.array, w: mx.array, k: mx.array) -> tuple[mx.array, mx.array]:
    return x * x * w + k.astype(mx.float32), mx.sin(x)


def close(actual: Any, expected: Any) -> bool:
    """Trees of arrays, equal up to rounding."""
    if isinstance(expected, (list, tuple)):
        return len(actual) == len(expected) and all(map(close, actual, expected))
    return actual.shape == expected.shape and bool(mx.allclose(actual, expected, 1e-5, 1e-5))


ROWS, COLUMNS = 5, 40
X = mx.random.normal((ROWS, COLUMNS), key=mx.random.key(1))
W = mx.random.normal((COLUMNS,), key=mx.random.key(2))
K = mx.arange(COLUMNS, dtype=mx.int32)


def total(fn: Callable[..., tuple[mx.array, mx.array]]) -> Callable[..., mx.array]:
    """A scalar that depends on every element of both outputs, each with its own weight."""

    def summed(x: mx.array, w: mx.array, k: mx.array) -> mx.array:
        y, s = fn(x, w, k)
        weight = mx.arange(y.size, dtype=mx.float32).reshape(y.shape) / y.size
        return (y * weight).sum() + (s * (1 - weight)).sum()

    return summed


def on(backend: str) -> Callable[..., tuple[mx.array, mx.array]]:
    return lambda x, w, k: ours(x, w, k, backend=backend)


def test_values(backend: str) -> None:
    assert close(ours(X, W, K, backend=backend), theirs(X, W, K))


@pytest.mark.parametrize("backend", LAZY)
def test_nothing_is_evaluated_by_a_call(backend: str) -> None:
    """SPEC X7: neither inputs nor outputs take memory before someone evaluates."""
    size = 1 << 22

    @metile.kernel
    def twice(x, y, n):
        source = metile.tensor(x, shape=(n,), access="read")
        target = metile.tensor(y, shape=(n,), access="write")
        i = metile.program_id(0) * 1024 + metile.arange(0, 1024)
        target.store(i, source.load(i) * 2)

    twice[(1,)](mx.zeros((9,)), metile.empty((9,), metile.f32), 9, backend=backend)
    mx.synchronize()
    before = mx.get_active_memory()
    x = mx.arange(size, dtype=mx.float32)
    made = twice[(size // 1024,)](x, metile.empty((size,), metile.f32), size, backend=backend)
    assert mx.get_active_memory() - before < size
    mx.eval(made)
    assert mx.get_active_memory() - before >= 4 * size
    assert made[-1].item() == 2 * (size - 1)


@pytest.mark.parametrize("backend", LAZY)
def test_compile(backend: str) -> None:
    """SPEC X7: traced once, beside MLX operations, and again for another shape."""
    traced = []

    @mx.compile
    def step(x: mx.array, w: mx.array, k: mx.array) -> mx.array:
        traced.append(x.shape)
        y, s = ours(x + 1, w * 2, k, backend=backend)
        return mx.exp(-y * y) + s

    def plain(x: mx.array, w: mx.array, k: mx.array) -> mx.array:
        y, s = theirs(x + 1, w * 2, k)
        return mx.exp(-y * y) + s

    for _ in range(3):
        assert close(step(X, W, K), plain(X, W, K))
        assert close(step(X[:2], W, K), plain(X[:2], W, K))
    assert traced == [X.shape, (2, COLUMNS)]


def test_gradients(backend: str) -> None:
    """F28, SPEC X7: of every float input, through both outputs."""
    expected = mx.grad(total(theirs), argnums=(0, 1))(X, W, K)
    assert close(mx.grad(total(on(backend)), argnums=(0, 1))(X, W, K), expected)


def test_value_and_gradient(backend: str) -> None:
    value, gradient = mx.value_and_grad(total(on(backend)))(X, W, K)
    assert close((value, gradient), mx.value_and_grad(total(theirs))(X, W, K))


@pytest.mark.parametrize("backend", LAZY)
def test_gradients_inside_compile(backend: str) -> None:
    """F28: a second call of a compiled gradient too."""
    compiled = mx.compile(mx.grad(total(on(backend)), argnums=(0, 1)))
    expected = mx.grad(total(theirs), argnums=(0, 1))(X, W, K)
    assert close(compiled(X, W, K), expected)
    assert close(compiled(X, W, K), expected)


def test_second_order_gradients(backend: str) -> None:
    """SPEC X7: the VJP of the VJP."""

    def norm_of_gradient(
        fn: Callable[..., tuple[mx.array, mx.array]],
    ) -> Callable[..., mx.array]:
        return lambda x, w, k: mx.grad(total(fn))(x, w, k).square().sum()

    ours_ = mx.grad(norm_of_gradient(on(backend)), argnums=(0, 1))(X, W, K)
    assert close(ours_, mx.grad(norm_of_gradient(theirs), argnums=(0, 1))(X, W, K))


def test_jvp(backend: str) -> None:
    tangents = [mx.cos(X), mx.ones_like(W)]
    expected = mx.jvp(lambda x, w: theirs(x, w, K), [X, W], tangents)
    assert close(mx.jvp(lambda x, w: ours(x, w, K, backend=backend), [X, W], tangents), expected)


def test_jvp_with_respect_to_one_input(backend: str) -> None:
    expected = mx.jvp(lambda w: theirs(X, w, K), [W], [mx.cos(W)])
    assert close(mx.jvp(lambda w: ours(X, w, K, backend=backend), [W], [mx.cos(W)]), expected)


def test_integer_inputs_have_zero_cotangents(backend: str) -> None:
    """SPEC X7: never an error, never garbage."""
    cotangents = [mx.ones_like(X), mx.ones_like(X)]
    _, pulled = mx.vjp(on(backend), [X, W, K], cotangents)
    assert close(pulled[:2], mx.vjp(theirs, [X, W, K], cotangents)[1][:2])
    assert pulled[2].shape == K.shape
    assert not pulled[2].any()


@metile.kernel
def accumulate(x, y, n, limit):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="read_write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    target.store(i, target.load(i) * source.load(i), mask=i < limit)


def test_gradients_of_partial_and_read_write_stores(backend: str) -> None:
    """SPEC K7, X5: what no program stores passes the input's gradient on unchanged."""
    x, y = X[0], X[1]

    def kernel(x: mx.array, y: mx.array) -> mx.array:
        return accumulate[(2,)](x, y, COLUMNS, 25, backend=backend).square().sum()

    def plain(x: mx.array, y: mx.array) -> mx.array:
        return mx.where(mx.arange(COLUMNS) < 25, x * y, y).square().sum()

    expected = mx.grad(plain, argnums=(0, 1))(x, y)
    assert close(mx.grad(kernel, argnums=(0, 1))(x, y), expected)


BATCHED = mx.random.normal((3, ROWS, COLUMNS), key=mx.random.key(4))
WEIGHTS = mx.random.normal((3, COLUMNS), key=mx.random.key(5))
AXES = [(0, None), (1, None), (None, 0), (0, 0), (1, 1), (0, 1)]


def arguments(axes: tuple[int | None, int | None]) -> tuple[mx.array, mx.array]:
    x = X if axes[0] is None else mx.moveaxis(BATCHED, 0, axes[0])
    w = W if axes[1] is None else mx.moveaxis(WEIGHTS, 0, axes[1])
    return x, w


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("backend", LAZY)
def test_mx_vmap(axes: tuple[int | None, int | None], backend: str) -> None:
    """F33, SPEC X7."""
    x, w = arguments(axes)
    made = mx.vmap(lambda x, w: ours(x, w, K, backend=backend), axes)(x, w)
    assert close(made, mx.vmap(lambda x, w: theirs(x, w, K), axes)(x, w))


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_metile_vmap(axes: tuple[int | None, int | None], backend: str) -> None:
    """F33, SPEC X7: everywhere, on Metal too."""
    x, w = arguments(axes)
    made = metile.vmap(lambda x, w: ours(x, w, K, backend=backend), axes, 1)(x, w)
    assert close(made, mx.vmap(lambda x, w: theirs(x, w, K), axes, 1)(x, w))


def test_metile_vmap_of_gradients(backend: str) -> None:
    made = metile.vmap(mx.grad(lambda x, w: total(on(backend))(x, w, K)), (0, 0))(BATCHED, WEIGHTS)
    expected = mx.vmap(mx.grad(lambda x, w: total(theirs)(x, w, K)), (0, 0))(BATCHED, WEIGHTS)
    assert close(made, expected)


@pytest.mark.parametrize("backend", LAZY)
def test_gradients_of_vmap(backend: str) -> None:
    def summed(fn: Callable[..., tuple[mx.array, mx.array]]) -> Callable[..., mx.array]:
        each = mx.vmap(lambda x, w: fn(x, w, K), (0, 0))
        return lambda x, w: sum(part.square().sum() for part in each(x, w))

    made = mx.grad(summed(on(backend)), argnums=(0, 1))(BATCHED, WEIGHTS)
    assert close(made, mx.grad(summed(theirs), argnums=(0, 1))(BATCHED, WEIGHTS))


def batched(backend: str) -> Callable[[mx.array, mx.array, mx.array], mx.array]:
    """A partial read_write store and a scalar that is an MLX array."""

    @metile.kernel
    def shifted(x, y, n, shift):
        source = metile.tensor(x, shape=(n,), access="read")
        target = metile.tensor(y, shape=(n,), access="read_write")
        i = metile.arange(0, 32)
        target.store(i, source.load(i) * target.load(i) + shift, mask=i < 5)

    return lambda x, y, shift: shifted[(1,)](x, y, 8, shift, backend=backend)


def shifted(x: mx.array, y: mx.array, shift: mx.array) -> mx.array:
    return mx.where(mx.arange(8) < 5, x * y + shift, y)


@pytest.mark.parametrize("axes", [(None, None, 0), (0, None, 0), (None, 0, None), (0, 0, 0)])
def test_vmap_over_inputs_kept_and_lazy_scalars(axes: tuple[Any, ...], backend: str) -> None:
    """F33: what no program stores is each entry's own; a scalar may differ from entry to entry."""
    rows = mx.random.normal((3, 3, 8), key=mx.random.key(6))
    shifts = mx.array([1.0, -2.0, 4.0])
    arguments = [rows[0], rows[1], shifts]
    given = [x if axis == 0 else x[0] for x, axis in zip(arguments, axes, strict=True)]
    made = metile.vmap(batched(backend), axes)(*given)
    assert close(made, mx.vmap(shifted, axes)(*given))


def test_vmap_of_vmap(backend: str) -> None:
    """F33: an outer product of batches."""
    x, y = (
        mx.random.normal((3, 8), key=mx.random.key(7)),
        mx.random.normal((2, 8), key=mx.random.key(9)),
    )
    shift = mx.array(0.5)
    inner = metile.vmap(batched(backend), (0, None, None))
    made = metile.vmap(inner, (None, 0, None))(x, y, shift)
    expected = mx.vmap(mx.vmap(shifted, (0, None, None)), (None, 0, None))(x, y, shift)
    assert close(made, expected)


@pytest.mark.parametrize("backend", LAZY)
def test_transforms_of_transforms(backend: str) -> None:
    """SPEC X7: compiled, checkpointed, batched and differentiated in several orders."""
    rows = mx.random.normal((2, 3, 8), key=mx.random.key(8))
    x, y, shift = rows[0], rows[1], mx.array(0.5)

    def orders(fn: Callable[..., mx.array]) -> list[mx.array]:
        def loss(x: mx.array) -> mx.array:
            return fn(x, y[0], shift).square().sum()

        def push(x: mx.array) -> mx.array:
            return mx.jvp(lambda x: fn(x, y[0], shift), [x], [x])[1][0]

        return [
            mx.compile(mx.vmap(lambda x, y: fn(x, y, shift)))(x, y),
            mx.vmap(mx.grad(loss))(x),
            mx.compile(mx.vmap(mx.grad(loss)))(x),
            mx.grad(mx.checkpoint(loss))(x[0]),
            mx.vmap(push)(x),
            mx.jvp(mx.vmap(lambda x: fn(x, y[0], shift)), [x], [y])[1][0],
        ]

    assert close(orders(batched(backend)), orders(shifted))


@pytest.mark.parametrize("backend", LAZY)
def test_streams(backend: str) -> None:
    """SPEC X4, X7: given as a stream, as a device, or by MLX's context; several in one graph."""
    device = device_of(backend)
    streams = [mx.new_stream(device) for _ in range(3)]
    expected = theirs(X, W, K)
    parts = [ours(X, W, K, backend=backend, stream=s) for s in [*streams, device, None]]
    parts.append(ours(X, W, K, backend=backend, stream=mx.new_thread_local_stream(device)))
    with mx.stream(streams[1]):
        parts.append(ours(X, W, K, backend=backend))
    assert close(parts, [expected] * 7)
    chain = X
    for s in [*streams, *streams]:
        chain = ours(chain, W, K, backend=backend, stream=s)[1]
    plain = X
    for _ in range(6):
        plain = mx.sin(plain)
    assert close(chain, plain)


def test_two_kernels_of_one_name_in_one_eval(backend: str, gpu: Any) -> None:
    """F01: different bodies have different registered names."""

    def doubling() -> metile.Kernel:
        @metile.kernel
        def scale(x, y, n):
            source = metile.tensor(x, shape=(n,), access="read")
            target = metile.tensor(y, shape=(n,), access="write")
            i = metile.arange(0, 64)
            target.store(i, source.load(i) * 2)

        return scale

    def shifting() -> metile.Kernel:
        @metile.kernel
        def scale(x, y, n):
            source = metile.tensor(x, shape=(n,), access="read")
            target = metile.tensor(y, shape=(n,), access="write")
            i = metile.arange(0, 64)
            target.store(i, source.load(i) + 100)

        return scale

    x = mx.arange(64, dtype=mx.float32)
    out = metile.empty((64,), metile.f32)
    a = doubling()[(1,)](x, out, 64, backend=backend)
    b = shifting()[(1,)](x, out, 64, backend=backend)
    mx.eval(a, b)
    assert mx.array_equal(a, x * 2)
    assert mx.array_equal(b, x + 100)
    if backend == "metal":
        assert len({s.name for s in gpu.sources if s.name.startswith("scale_")}) == 2


def test_dtypes_of_one_kernel_in_one_eval(backend: str) -> None:
    """F02: one kernel with f16 and f32 in one graph."""

    @metile.kernel
    def double(x, y, n):
        source = metile.tensor(x, shape=(n,), access="read")
        target = metile.tensor(y, shape=(n,), access="write")
        i = metile.arange(0, 64)
        target.store(i, source.load(i) * 2)

    x = mx.arange(64, dtype=mx.float32)
    made = []
    for dtype in (mx.float16, mx.float32, mx.bfloat16):
        given = x.astype(dtype)
        made.append(double[(1,)](given, metile.empty((64,), dtype), 64, backend=backend))
    mx.eval(made)
    for part in made:
        assert same_bits(part, (x * 2).astype(part.dtype))


FACTOR = 2.0


def new_affine() -> metile.Kernel:
    """A kernel of its own, with empty caches."""

    @metile.kernel
    def affine(x, y, n, shift, SIGN: metile.constexpr = 1):
        source = metile.tensor(x, shape=(n,), access="read")
        target = metile.tensor(y, shape=(n,), access="write")
        i = metile.program_id(0) * 32 + metile.arange(0, 32)
        target.store(i, source.load(i) * FACTOR * SIGN + shift)

    return affine


class Counts:
    """Translations, texts and registrations since it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, gpu: Any) -> None:
        self._translated: list[object] = []
        self._texts: list[object] = []
        self._gpu, self._before = gpu, len(gpu.sources)
        translate, compile_kernel = specialise.translate, specialise.compile_kernel
        monkeypatch.setattr(
            specialise, "translate", lambda *a: self._translated.append(a) or translate(*a)
        )
        monkeypatch.setattr(
            specialise, "compile_kernel", lambda *a: self._texts.append(a) or compile_kernel(*a)
        )

    def __call__(self) -> tuple[int, int, int]:
        registered = len(self._gpu.sources) - self._before
        return len(self._translated), len(self._texts), registered


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch, gpu: Any) -> Counts:
    return Counts(monkeypatch, gpu)


def test_thousands_of_calls_compile_once(counts: Counts) -> None:
    """F04: three alternating shapes of one specialisation are one text."""
    affine = new_affine()
    inputs = [mx.ones((size,)) for size in (40, 64, 200)]
    for turn in range(3000):
        x = inputs[turn % 3]
        out = metile.empty(x.shape, metile.f32)
        affine[(metile.cdiv(x.size, 32),)](x, out, x.size, 1.0, backend="cpu")
    assert counts() == (1, 1, 0)


def test_metal_registers_once_for_many_shapes(counts: Counts) -> None:
    """F04: the row count is no part of the text or of the name."""
    affine = new_affine()
    for turn in range(30):
        x = mx.ones((40 + turn % 3,))
        affine[(2,)](x, metile.empty(x.shape, metile.f32), x.size, 1.0, backend="metal")
    assert counts() == (1, 1, 1)


@pytest.mark.parametrize("backend", LAZY)
def test_a_stream_belongs_to_the_dispatch(backend: str) -> None:
    """SPEC K8: one dispatch for each stream, and the same one again for the same stream."""
    out = metile.empty(X.shape, mx.float32)
    first, second = mx.new_stream(mx.cpu), mx.new_stream(mx.cpu)
    prepared = [
        weighted[(ROWS,)].prepare(
            X, W, K, out, out, ROWS, COLUMNS=COLUMNS, backend=backend, stream=stream
        )
        for stream in (first, second, None, first)
    ]
    assert prepared[0] is prepared[3]
    assert len(set(map(id, prepared))) == 3


def test_prepare_is_of_its_own_scalars(backend: str) -> None:
    """SPEC K7, E, X10: also after a call with others; compiled once for all of them."""
    affine = new_affine()
    x, out = mx.ones((64,)), metile.empty((64,), metile.f32)

    def prepare(n: int) -> metile.Dispatch:
        return affine[(2,)].prepare(x, out, n, 1.0, backend=backend)

    first = prepare(64)
    assert [c.proven for c in first.execution_report.coverage] == [True]
    assert [c.proven for c in prepare(40).execution_report.coverage] == [False]
    assert prepare(64) is first
    assert prepare(40)(x, out, 64, 2.0)[63].item() == first(x, out, 64, 2.0)[63].item()
    with pytest.raises(metile.LaunchError, match="the array given has 64"):
        prepare(65)


def test_equal_streams_share_a_dispatch() -> None:
    """F04: MLX makes a new object at each `default_stream` or `Device`, with a hash of its own."""
    affine = new_affine()
    x, out = mx.ones((40,)), metile.empty((40,), metile.f32)
    for place in (lambda: mx.default_stream(mx.cpu), lambda: mx.Device(mx.cpu, 0)):
        made = [affine[(2,)].prepare(x, out, 40, 1.0, stream=place()) for _ in range(3)]
        assert len(set(map(id, made))) == 1


@pytest.mark.parametrize("backend", LAZY)
def test_eight_threads_compile_and_call_at_once(backend: str, counts: Counts) -> None:
    """F31: 4 specialisations, each translated once; right results; no stream made at import."""

    @metile.kernel
    def power(x, y, n, TIMES: metile.constexpr):
        source = metile.tensor(x, shape=(n,), access="read")
        target = metile.tensor(y, shape=(n,), access="write")
        i = metile.program_id(0) * 32 + metile.arange(0, 32)
        value = source.load(i)
        made = value
        for _ in range(TIMES):
            made = made * value
        target.store(i, made)

    start = threading.Barrier(8)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            x = mx.arange(50, dtype=mx.float32) / 50 + number
            start.wait()
            for turn in range(100):
                times = (turn + number) % 4
                out = metile.empty((50,), metile.f32)
                made = power[(2,)](x, out, 50, TIMES=times, backend=backend)
                assert mx.allclose(made, x ** (times + 1))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert counts()[:2] == (4, 4 if backend == "cpu" else 0)


def test_new_scalar_values_recompile_nothing(counts: Counts, backend: str) -> None:
    """SPEC K1, K7: 200 values, more than a dispatch remembers, through calls and a Dispatch."""
    affine = new_affine()
    x, out = mx.ones((40,)), metile.empty((40,), metile.f32)
    dispatch = affine[(2,)].prepare(x, out, 40, 0.0, backend=backend)
    before = counts()
    for value in range(200 if backend != "metal" else 10):
        assert affine[(2,)](x, out, 40, float(value), backend=backend)[7].item() == 2 + value
        assert dispatch(x, mx.zeros((40,)), 40, -float(value))[39].item() == 2 - value
    assert counts()[:2] == before[:2]
    assert counts()[2] <= 1


def test_scalars_of_equal_value_stay_apart(backend: str) -> None:
    """0.0 and -0.0, True and 1 and 1.0 are equal in Python and not to a kernel."""

    @metile.kernel
    def fill(y, value):
        target = metile.tensor(y, shape=(32,), access="write")
        target.store(
            metile.arange(0, 32), metile.full(32, 0.0, metile.f32) + metile.cast(value, metile.f32)
        )

    @metile.kernel
    def negate(y, value):
        target = metile.tensor(y, shape=(32,), access="write")
        target.store(metile.arange(0, 32), metile.full(32, 1.0, metile.f32) * value)

    out = metile.empty((32,), metile.f32)
    assert [
        fill[(1,)](out, value, backend=backend)[0].item() for value in (True, 1, 1.0, False, 0)
    ] == [1, 1, 1, 0, 0]
    signs = [
        str(negate[(1,)](out, value, backend=backend)[0].item())
        for value in (0.0, -0.0, 0.0, float("inf"), float("nan"), float("nan"), -0.0)
    ]
    assert signs == ["0.0", "-0.0", "0.0", "inf", "nan", "nan", "-0.0"]


def test_a_changed_global_recompiles(
    counts: Counts, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SPEC K1: outside values belong to the specialisation; the old one is still there after."""
    affine = new_affine()
    x, out = mx.ones((40,)), metile.empty((40,), metile.f32)

    def call() -> object:
        return affine[(2,)](x, out, 40, 0.5, backend=backend)[3].item()

    assert call() == 2.5
    with monkeypatch.context() as patch:
        patch.setattr("tests.end_to_end.test_graphs.FACTOR", 5.0)
        assert call() == 5.5
    assert call() == 2.5
    assert counts()[0] == 2


def test_a_global_that_changes_during_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEC K1: what was compiled meanwhile may be of either value, so no later call gets it."""
    affine = new_affine()
    x, out = mx.ones((40,)), metile.empty((40,), metile.f32)
    translate = specialise.translate

    with monkeypatch.context() as patch:

        def late(*args: Any) -> Any:
            patch.setattr("tests.end_to_end.test_graphs.FACTOR", 5.0)
            return translate(*args)

        patch.setattr(specialise, "translate", late)
        affine[(2,)](x, out, 40, 0.5)
    assert affine[(2,)](x, out, 40, 0.5)[3].item() == 2.5


def test_constexprs_of_equal_value_and_other_type_recompile(counts: Counts, backend: str) -> None:
    """SPEC K1: 1, True and 1.0 are equal in Python; the kernels differ."""
    affine = new_affine()
    x, out = mx.ones((40,)), metile.empty((40,), metile.f32)
    for sign in (1, 1.0, 1):
        assert affine[(2,)](x, out, 40, 0.5, SIGN=sign, backend=backend)[3].item() == 2.5
    assert counts()[0] == 2


@pytest.mark.parametrize(
    ("constants", "kernels"),
    [
        (((2,), (2.0,), (True,), (2,)), 3),
        (((0.0,), (-0.0,), (0.0,)), 2),
        (((1, (2,)), (1, (2.0,))), 2),
        ((2, np.float64(2.0), np.int64(2), 2.0), 2),
    ],
)
def test_constexprs_are_told_apart_in_tuples_and_from_numpy(
    constants: tuple[object, ...], kernels: int, counts: Counts
) -> None:
    """SPEC K1: (2,) and (2.0,) are equal and hash alike in Python; the kernels differ."""

    @metile.kernel
    def filled(y, CONSTANT: metile.constexpr):
        target = metile.tensor(y, shape=(32,), access="write")
        target.store(metile.arange(0, 32), 1)

    for constant in constants:
        filled[1](metile.empty(32, metile.f32), CONSTANT=constant)
    assert counts()[0] == kernels


def test_what_an_inline_constexpr_reads_belongs_to_the_specialisation(backend: str) -> None:
    """SPEC K1: a function handed over as a constexpr, whose closure variable changes."""
    factor = 2

    @metile.inline
    def scaled(value):
        return value * factor

    @metile.kernel
    def apply(x, y, FUNCTION: metile.constexpr):
        i = metile.arange(0, 32)
        target = metile.tensor(y, shape=(32,), access="write")
        target.store(i, FUNCTION(metile.tensor(x, shape=(32,)).load(i)))

    x, out = mx.ones((32,)), metile.empty(32, metile.f32)
    assert apply[1](x, out, FUNCTION=scaled, backend=backend)[0].item() == 2
    factor = 5
    assert apply[1](x, out, FUNCTION=scaled, backend=backend)[0].item() == 5


def test_lazy_scalars_stay_lazy(backend: str) -> None:
    """SPEC X10: a scalar given as an MLX array, of size 1, with a gradient of its own."""
    affine = new_affine()
    x, out = mx.arange(40, dtype=mx.float32), metile.empty((40,), metile.f32)

    def call(shift: mx.array) -> mx.array:
        return affine[(2,)](x, out, 40, shift, backend=backend)

    assert mx.array_equal(call(mx.array(3.0)), x * 2 + 3)
    assert mx.array_equal(call(mx.array([3.0])), x * 2 + 3)
    assert mx.grad(lambda shift: call(shift).sum())(mx.array(3.0)).item() == 40
