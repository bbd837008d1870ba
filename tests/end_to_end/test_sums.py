"""Sums over register tiles through the public API, on every backend (SPEC R2, R4, K2, X10)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile

pytestmark = pytest.mark.usefixtures("gpu")


@metile.kernel
def totals(x, y, N: metile.constexpr, LAYOUT: metile.constexpr):
    """y[row] = the sum of row `row` of x: N of LAYOUT.size elements."""
    source = metile.tensor(x, shape=(metile.num_programs(0), N), access="read")
    target = metile.tensor(y, shape=metile.num_programs(0), access="write")
    row = metile.program_id(0)
    values = source.load((row, metile.arange(0, LAYOUT.size, layout=LAYOUT)))
    target.store(row, metile.sum(metile.cast(values, metile.f32)))


@metile.kernel
def rmsnorm(
    inputs,
    weights,
    output,
    eps,
    N: metile.constexpr,
    BLOCK: metile.constexpr,
    LAYOUT: metile.constexpr = None,
):
    rows = metile.num_programs(0)
    x = metile.tensor(inputs, shape=(rows, N), access="read")
    weight = metile.tensor(weights, shape=(N,), access="read")
    y = metile.tensor(output, shape=(rows, N), access="write")
    row = metile.program_id(0)
    columns = metile.arange(0, BLOCK, layout=LAYOUT)
    value = metile.cast(x.load((row, columns)), metile.f32)
    w = metile.cast(weight.load(columns), metile.f32)
    total = metile.sum(value * value)
    scale = metile.rsqrt(total / N + eps)
    y.store((row, columns), value * scale * w)


@metile.kernel
def standardised(x, y, N: metile.constexpr, LAYOUT: metile.constexpr):
    """Two sums in a row, the second over what the first gave."""
    rows = metile.num_programs(0)
    source = metile.tensor(x, shape=(rows, N), access="read")
    target = metile.tensor(y, shape=(rows, N), access="write")
    row, columns = metile.program_id(0), metile.arange(0, LAYOUT.size, layout=LAYOUT)
    value = source.load((row, columns))
    mean = metile.sum(value) / N
    centred = metile.where(columns < N, value - mean, 0.0)
    variance = metile.sum(centred * centred) / N
    target.store((row, columns), centred * metile.rsqrt(variance))


@metile.kernel
def selected(x, y, N: metile.constexpr, LAYOUT: metile.constexpr):
    """Integers and masks that follow from a sum."""
    source = metile.tensor(x, shape=(metile.num_programs(0), N), access="read")
    target = metile.tensor(y, shape=(metile.num_programs(0), N), access="write")
    row, columns = metile.program_id(0), metile.arange(0, LAYOUT.size, layout=LAYOUT)
    total = metile.sum(source.load((row, columns)))
    low = metile.cast(total, metile.i32) & 7
    target.store((row, columns), columns + low, mask=(low > 2) & (row < 2))


@metile.kernel
def implicit(x, y, N: metile.constexpr):
    """Without a layout: one value per thread, two dimensions."""
    source = metile.tensor(x, shape=(metile.num_programs(0), N), access="read")
    target = metile.tensor(y, shape=metile.num_programs(0), access="write")
    row = metile.program_id(0)
    values = metile.reshape(source.load((row, metile.arange(0, 128))), (4, 32))
    target.store(row, metile.sum(values))


def layout(size: int, registers: int, adjacent: bool = False) -> metile.ThreadLayout:
    if not adjacent:
        return metile.ThreadLayout.identity(size, elements_per_thread=registers)
    bits, low = size.bit_length() - 1, registers.bit_length() - 1
    return metile.ThreadLayout(
        (*range(bits - low, bits), *range(bits - low)), elements_per_thread=registers
    )


def sums_of(x: mx.array, owner: metile.ThreadLayout, backend: str) -> mx.array:
    rows, n = x.shape
    return totals[(rows,)](x, metile.empty((rows,), mx.float32), N=n, LAYOUT=owner, backend=backend)


@pytest.mark.parametrize("n", [3, 5, 31, 33, 48, 96])
def test_f48_any_number_of_participants(n: int, backend: str) -> None:
    """Every other lane adds nothing: sum(1..48) is 1176."""
    x = mx.arange(1, n + 1).astype(mx.float32)[None]
    for size, registers in ((128, 1), (128, 2), (128, 4)):
        assert sums_of(x, layout(size, registers), backend).tolist() == [n * (n + 1) / 2]


@pytest.mark.parametrize("n", [64, 96, 100, 127, 128])
def test_f49_the_whole_threadgroup_is_summed(n: int, backend: str) -> None:
    """128 threads in four simdgroups, two rows at a time; and ones of 4096 elements."""
    x = mx.stack([mx.ones((n,)), mx.full((n,), 2.0)])
    assert sums_of(x, layout(128, 1), backend).tolist() == [n, 2 * n]
    assert sums_of(mx.ones((1, 4096)), layout(4096, 16), backend).tolist() == [4096]


@pytest.mark.parametrize("adjacent", [False, True])
@pytest.mark.parametrize("registers", [1, 2, 4, 8, 16, 32])
def test_every_number_of_registers(registers: int, adjacent: bool, backend: str) -> None:
    """SPEC R1, R2: striped and adjacent owners of 1024 elements, ragged."""
    x = mx.arange(2 * 1009).reshape(2, 1009).astype(mx.float32)
    expected = mx.array(np.array(x).astype(np.float64).sum(axis=1).astype(np.float32))
    found = sums_of(x, layout(1024, registers, adjacent), backend)
    assert mx.allclose(found, expected, rtol=2e-7).item()


@pytest.mark.parametrize("registers", [1, 4])
def test_integers_and_masks_of_a_total(registers: int, backend: str) -> None:
    """SPEC R2: what follows from a sum is the same everywhere, and known where it is used."""
    x = mx.zeros((3, 100))
    x[:, 0] = mx.array([1.0, 4.0, 6.0])
    owner = layout(128, registers)
    y = metile.empty((3, 100), mx.int32)
    found = selected[(3,)](x, y, N=100, LAYOUT=owner, backend=backend)
    columns = mx.arange(100)
    zero = mx.zeros_like(columns)
    assert mx.array_equal(found, mx.stack([zero, columns + 4, zero])).item()


def test_the_largest_tile(backend: str) -> None:
    x = mx.ones((1, 32768))
    assert sums_of(x, layout(32768, 32), backend).tolist() == [32768]


def test_two_sums_in_a_row(backend: str) -> None:
    """F43: each in its own memory; the uniform result broadcasts into later arithmetic."""
    x = mx.random.normal((7, 1000), key=mx.random.key(1)) + 3
    exact = np.array(x).astype(np.float64)
    exact -= exact.mean(axis=1, keepdims=True)
    exact /= np.sqrt((exact * exact).mean(axis=1, keepdims=True))
    for registers in (1, 4, 32):
        found = standardised[(7,)](
            x,
            metile.empty(x.shape, x.dtype),
            N=1000,
            LAYOUT=layout(1024, registers),
            backend=backend,
        )
        np.testing.assert_allclose(np.array(found), exact, rtol=2e-6, atol=2e-6)


def test_a_tile_without_a_layout(backend: str) -> None:
    x = mx.arange(300).reshape(3, 100).astype(mx.float32)
    found = implicit[(3,)](x, metile.empty((3,), mx.float32), N=100, backend=backend)
    assert found.tolist() == mx.sum(x, axis=1).tolist()


def normed(x: mx.array, w: mx.array, backend: str, registers: int = 4, eps: float = 1e-5) -> Any:
    n = x.shape[1]
    block = 1 << max(n - 1, 127).bit_length()
    return rmsnorm[(x.shape[0],)](
        x,
        w,
        metile.empty(x.shape, x.dtype),
        eps,
        N=n,
        BLOCK=block,
        LAYOUT=layout(block, registers),
        backend=backend,
    )


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("n", [1, 31, 1000, 1009, 1023, 1024])
def test_rmsnorm_of_ragged_rows(n: int, dtype: mx.Dtype, backend: str) -> None:
    """f32 arithmetic, one rounding at the store: within a unit of the dtype of f64."""
    keys = mx.random.split(mx.random.key(n))
    x = mx.random.normal((3, n), key=keys[0]).astype(dtype)
    w = mx.random.normal((n,), key=keys[1]).astype(dtype)
    wide = np.array(x.astype(mx.float32)).astype(np.float64)
    scale = 1 / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + np.float32(1e-5))
    exact = wide * scale * np.array(w.astype(mx.float32))
    found = np.array(normed(x, w, backend).astype(mx.float32))
    unit = {mx.float32: 2**-20, mx.float16: 2**-10, mx.bfloat16: 2**-7}[dtype]
    np.testing.assert_allclose(found, exact, rtol=unit, atol=1e-6)


def test_f67_squares_and_sums_are_f32(backend: str) -> None:
    """300 everywhere in f16 (its square overflows), ones in bf16 (a sum there stalls at 256)."""
    w = mx.random.normal((4096,), key=mx.random.key(0))
    half = normed(mx.full((2, 4096), 300.0, mx.float16), w.astype(mx.float16), backend, 16, 0.0)
    assert mx.array_equal(half[1], w.astype(mx.float16)).item()
    ones = normed(mx.ones((2, 4096), mx.bfloat16), mx.ones((4096,), mx.bfloat16), backend, 16)
    assert mx.array_equal(ones, mx.ones_like(ones)).item()


def test_f67_outliers_and_rows_of_nan_stay_where_they_are(backend: str) -> None:
    x = mx.random.normal((4, 1009), key=mx.random.key(5))
    x[1, 17] = 3e4
    x[2, 3] = float("nan")
    found = normed(x, mx.ones((1009,)), backend)
    assert mx.isnan(found[2]).all().item()
    wide = np.array(x).astype(np.float64)
    exact = wide / np.sqrt((wide * wide).mean(axis=1, keepdims=True) + 1e-5)
    for row in (0, 1, 3):
        np.testing.assert_allclose(np.array(found[row]), exact[row], rtol=2e-6)


def test_a_row_does_not_depend_on_the_others(backend: str) -> None:
    """The order of additions is fixed: row 0 of 1 and of 17 rows is bit-equal."""
    x, w = mx.random.normal((17, 1009), key=mx.random.key(6)), mx.ones((1009,))
    assert mx.array_equal(normed(x, w, backend)[0], normed(x[:1], w, backend)[0]).item()


def test_k2_the_grid_is_an_extent_the_host_checks() -> None:
    """SPEC X10: rows are `num_programs(0)`; an array that is too small says which grid it met."""
    x = mx.ones((3, 100))
    with pytest.raises(metile.LaunchError) as caught:
        totals[(4,)](x, metile.empty((4,), mx.float32), N=100, LAYOUT=layout(128, 1), backend="cpu")
    assert caught.value.message == (
        "[tensor] x: its view needs 400 elements (shape (4, 100), strides (100, 1), with "
        "num_programs(0)=4), the array given has 300"
    )


def test_gradients_go_through_the_reference() -> None:
    """SPEC X7: the default VJP of a kernel with a sum."""
    x, w = mx.random.normal((3, 100), key=mx.random.key(7)), mx.ones((100,))

    def ours(x: mx.array) -> mx.array:
        return mx.sum(normed(x, w, "cpu", 1) ** 3)

    def theirs(x: mx.array) -> mx.array:
        return mx.sum(mx.fast.rms_norm(x, w, 1e-5) ** 3)

    assert mx.allclose(mx.grad(ours)(x), mx.grad(theirs)(x), rtol=1e-4, atol=1e-4).item()


@pytest.mark.parametrize("adjacent", [False, True])
def test_c6_a_register_tile_that_changes_owners(adjacent: bool, backend: str) -> None:
    """To the same owners, and from striped to adjacent ones."""
    x = mx.random.normal((1, 1024), key=mx.random.key(11))
    owners = {"A": layout(1024, 4), "B": layout(1024, 4, adjacent)}
    found = convert[(1,)](x, metile.empty(x.shape, x.dtype), **owners, backend=backend)
    assert mx.array_equal(found, x).item()


@metile.kernel
def convert(x, y, A: metile.constexpr, B: metile.constexpr):
    source = metile.tensor(x, shape=(1, A.size), access="read")
    target = metile.tensor(y, shape=(1, A.size), access="write")
    value = source.load((0, metile.arange(0, A.size, layout=A)))
    target.store((0, metile.arange(0, A.size, layout=B)), metile.convert_layout(value, B))


@metile.kernel
def shifted(x, y, n, A: metile.constexpr):
    """Rows checked at run time, columns at the end of a shorter source."""
    source = metile.tensor(x, shape=(n, 50), access="read")
    target = metile.tensor(y, shape=(n, 64), access="write")
    row, columns = metile.program_id(0), metile.arange(0, 64, layout=A)
    target.store((row, columns), source.load((row, columns), fill=-1.0))


def test_a_short_source_beside_whole_rows(backend: str) -> None:
    """A loop whose stores are guarded by the row still runs where a column is masked off."""
    x = mx.arange(150).reshape(3, 50).astype(mx.float32)
    out = metile.empty((3, 64), mx.float32)
    found = shifted[(4,)](x, out, 3, A=layout(64, 1), backend=backend)
    assert mx.array_equal(found[:, :50], x).item()
    assert mx.array_equal(found[:, 50:], mx.full((3, 14), -1.0)).item()


@metile.kernel
def gated(x, y, N: metile.constexpr):
    """A branch on a total: the same in every thread, so a condition like any other (SPEC C2)."""
    rows = metile.num_programs(0)
    source = metile.tensor(x, shape=(rows, N), access="read")
    target = metile.tensor(y, shape=(rows, N), access="write")
    row, columns = metile.program_id(0), metile.arange(0, 128)
    value = source.load((row, columns))
    total = metile.sum(value)
    factor = 1.0
    if total > 100.0:
        factor = 100.0 / total
        value = value * factor
    target.store((row, columns), value + factor)


def test_a_branch_on_a_total(backend: str) -> None:
    x = mx.stack([mx.ones((100,)), mx.full((100,), 2.0), mx.full((100,), 4.0)])
    found = gated[(3,)](x, metile.empty(x.shape, x.dtype), N=100, backend=backend)
    assert found.tolist() == [[2.0] * 100, [1.5] * 100, [1.25] * 100]


@metile.kernel
def within(x, y, LAYOUT: metile.constexpr):
    """Whether a row's total lies between two numbers: cheap work on what follows from a total."""
    rows = metile.num_programs(0)
    source = metile.tensor(x, shape=(rows, LAYOUT.size), access="read")
    target = metile.tensor(y, shape=(rows, LAYOUT.size), access="write")
    row, columns = metile.program_id(0), metile.arange(0, LAYOUT.size, layout=LAYOUT)
    total = metile.sum(source.load((row, columns)))
    target.store((row, columns), (total > 1.0) & (total < 3.0))


def test_masks_that_follow_from_a_total(backend: str) -> None:
    """R2: uniform, yet known only after all threads."""
    x = mx.array([[v] + [0.0] * 63 for v in (0.0, 1.0, 2.0, 3.0)])
    y = metile.empty(x.shape, mx.bool_)
    found = within[4](x, y, LAYOUT=layout(64, 2), backend=backend)
    assert found.all(axis=1).tolist() == [False, False, True, False]
    assert found.any(axis=1).tolist() == [False, False, True, False]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_sums_under_vmap(backend: str) -> None:
    """SPEC X7: batches of rows, on the backends MLX can batch."""
    x = mx.arange(2 * 3 * 100).reshape(2, 3, 100).astype(mx.float32)
    found = mx.vmap(lambda part: sums_of(part, layout(128, 4), backend))(x)
    assert found.tolist() == mx.sum(x, axis=2).tolist()


def test_a_repeated_number_is_summed_too(backend: str) -> None:
    """A tile that is the same everywhere: every slot, lane and simdgroup counts."""
    for registers in (1, 4, 32):
        found = repeated[(2,)](
            metile.empty((2,), mx.float32), 3.0, LAYOUT=layout(1024, registers), backend=backend
        )
        assert found.tolist() == [3 * 1024 + 1024, 3 * 1024 + 2048]


@metile.kernel
def repeated(y, value: float, LAYOUT: metile.constexpr):
    target = metile.tensor(y, shape=metile.num_programs(0), access="write")
    row = metile.program_id(0)
    tile = metile.full((LAYOUT.size,), value, metile.f32, layout=LAYOUT)
    total = metile.sum(tile + metile.cast(row + 1, metile.f32))
    target.store(row, total)
