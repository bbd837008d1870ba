"""What runs under a runtime condition, and what its two ways leave (SPEC K5), on every backend."""

# ruff: noqa: SIM108 (a branch is what is tested)

from __future__ import annotations

import mlx.core as mx
import pytest

import metile_mlx as metile

pytestmark = pytest.mark.usefixtures("gpu")


@metile.inline
def noted(out: metile.Tensor, at: int, value: int) -> metile.Scalar:
    out.store(at, value)
    return value > 0


@metile.kernel
def chosen(y, n):
    """Each call stores to an element of its own: what Python would not call must not run."""
    out = metile.tensor(y, shape=8, access="write")
    one = noted(out, 0, 5) if n > 0 else noted(out, 1, 6)
    both = n > 0 and noted(out, 2, 7)
    either = n > 0 or noted(out, 3, 8)
    none = n > 0 and noted(out, 4, -9) and noted(out, 5, 10)
    out.store(6, metile.cast(one, metile.i32) + 2 * metile.cast(both, metile.i32))
    out.store(7, metile.cast(either, metile.i32) + 2 * metile.cast(none, metile.i32))


def test_what_python_would_not_evaluate_stores_nothing(backend: str) -> None:
    """SPEC K5: a conditional expression, `and` and `or` over inline functions that store."""
    out = metile.empty(8, mx.int32)
    assert chosen[1](out, 1, backend=backend).tolist() == [5, 0, 7, 0, -9, 0, 3, 1]
    assert chosen[1](out, 0, backend=backend).tolist() == [0, 6, 0, 8, 0, 0, 1, 1]


@metile.kernel
def own_on_one_side(y, n):
    out = metile.tensor(y, shape=(2, 32), access="write")
    t = metile.thread_id()
    first, second = 3, 4
    if n > 0:
        first = t * 2
    else:
        second = t
    out.store((0, t), first)
    for _ in metile.tile_range(n):
        if n > 1:
            second += t
    out.store((1, t), second)


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_scalar_of_each_threads_own_on_one_side_only(n: int, backend: str) -> None:
    made = own_on_one_side[1](metile.empty((2, 32), mx.int32), n, backend=backend)
    threads = list(range(32))
    assert made[0].tolist() == ([2 * t for t in threads] if n else [3] * 32)
    expected = {0: threads, 1: [4] * 32, 2: [4 + 2 * t for t in threads]}
    assert made[1].tolist() == expected[n]


@metile.kernel
def moved(x, y, n):
    source = metile.tensor(x, shape=64)
    i = metile.arange(0, 64)
    value = source.load(i)
    if n > 3:
        other = value
    else:
        other = source.load(63 - i)
    again = other if n < 10 else value
    metile.tensor(y, shape=64, access="write").store(i, again)


@pytest.mark.parametrize("dtype", [mx.int8, mx.uint16, mx.int64])
def test_a_branch_may_choose_what_has_no_arithmetic(dtype: mx.Dtype, backend: str) -> None:
    x = (mx.arange(64) - 32).astype(dtype)
    out = metile.empty(64, dtype)
    assert mx.array_equal(moved[1](x, out, 4, backend=backend), x)
    assert mx.array_equal(moved[1](x, out, 3, backend=backend), x[::-1])


@metile.kernel
def chained(y, n):
    out = metile.tensor(y, shape=8, access="write")
    if 0 < n < noted(out, 0, 5):
        out.store(1, 1)


def test_a_store_behind_the_first_comparison_of_a_chain_is_refused() -> None:
    with pytest.raises(metile.CompileError, match="behind the first comparison") as caught:
        chained[1](metile.empty(8, mx.int32), 1)
    assert caught.value.loc is not None
    assert caught.value.loc.column == 16


@metile.inline
def scaled(x: mx.array, factor: int) -> metile.Tile:
    return metile.tensor(x, shape=32).load(metile.arange(0, 32)) * factor


@metile.kernel
def declared(x, y, n, STORES: metile.constexpr):
    out = metile.tensor(y, shape=33, access="write")
    value = scaled(x, 2) if n > 3 else scaled(x, 3)
    both = n > 3 and metile.sum(scaled(x, 1)) > 0
    if STORES:
        both = noted(out, 32, 1) if n > 3 else metile.sum(scaled(x, 1)) > 0
    out.store(metile.arange(0, 32), value + metile.cast(both, metile.i32))


def test_a_way_that_stores_nothing_may_declare_its_tensor(backend: str) -> None:
    """Both ways are computed then. One that may not run declares none, as under an `if`."""
    x, out = mx.arange(32), metile.empty(33, mx.int32)
    made = [declared[1](x, out, n, STORES=False, backend=backend) for n in (3, 4)]
    assert made[0].tolist() == [3 * i for i in range(32)] + [0]
    assert made[1].tolist() == [2 * i + 1 for i in range(32)] + [0]
    with pytest.raises(metile.CompileError, match="declared in what may not run, beside a store"):
        declared[1](x, out, 3, STORES=True, backend=backend)
