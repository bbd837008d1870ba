"""`metile.rms_norm`: MLX's rounding, gradients and transforms, by kernels (SPEC B2, X7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx.nn.layouts import (
    CPU_ROWS,
    CPU_VALUES,
    CUDA_ROWS,
    gradient_rows,
    row_layout,
    rows_layout,
    rows_together,
)
from metile_mlx.runtime.export import primitives
from tests.support.functions import normal
from tests.support.public import bits, same_bits
from tests.support.rounding import exact, rounded, ulps

EPS = 1e-5
DTYPES = (mx.float16, mx.bfloat16, mx.float32)
Norm = Callable[..., mx.array]


def whole(shape: tuple[int, ...], dtype: mx.Dtype) -> mx.array:
    """Small integers: the sum of their squares is exact in f32 in any order."""
    return mx.random.randint(-8, 9, shape, key=mx.random.key(1)).astype(dtype)


def close(a: mx.array, b: mx.array, rtol: float = 1e-5) -> None:
    """F28: to `rtol` of the largest element."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    wide, other = exact(a), exact(b)
    assert np.abs(wide - other).max(initial=0) <= rtol * np.abs(other).max(initial=1e-30)


# Values


@pytest.mark.parametrize("width", [1, 31, 256, 1009, 4096])
@pytest.mark.parametrize("dtype", DTYPES)
def test_f66_bit_equal_to_mlx_given_the_same_mean_square(width: int, dtype: mx.Dtype) -> None:
    """Statistics in f32, the normalised value rounded, the weight multiplied in the dtype."""
    x, w = whole((5, width), dtype), normal((width,), dtype)
    assert same_bits(metile.rms_norm(x, w, EPS), mx.fast.rms_norm(x, w, EPS))
    assert same_bits(metile.rms_norm(x, None, EPS), mx.fast.rms_norm(x, None, EPS))


@pytest.mark.parametrize("width", [256, 1009, 4096, 8192])
@pytest.mark.parametrize("dtype", DTYPES)
def test_f66_near_mlxs_own(width: int, dtype: mx.Dtype) -> None:
    """The two add up in another order. Where that moves a normalised value to the next number of
    the dtype, the product with the weight moves by one or two of its own."""
    x, w = normal((16, width), dtype), normal((width,), dtype, seed=3)
    for weight, most in ((None, 1), (w, 2)):
        ours, theirs = metile.rms_norm(x, weight, EPS), mx.fast.rms_norm(x, weight, EPS)
        if dtype == mx.float32:
            close(ours, theirs, 1e-6)
            continue
        distance = ulps(ours, exact(theirs))
        differing, doubly = int((distance > 0).sum()), int((distance > 1).sum())
        assert distance.max() <= most
        assert differing <= x.size // 250, f"{differing} of {x.size} elements differ"
        assert doubly <= x.size // 1000, f"{doubly} of {x.size} elements differ by 2"


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_f66_the_other_order_only_when_asked_for(backend: str, dtype: mx.Dtype) -> None:
    x, w = normal((64, 16), dtype), normal((16,), dtype, seed=3)
    scale = 1 / np.sqrt((exact(x) ** 2).mean(axis=1, keepdims=True) + EPS)
    once = rounded(exact(x) * scale * exact(w), dtype)
    twice = rounded(rounded(exact(x) * scale, dtype) * exact(w), dtype)
    assert (once != twice).mean() > 0.05
    assert (exact(metile.rms_norm(x, w, EPS)) == twice).mean() > 0.99
    assert (exact(metile.rms_norm(x, w, EPS, rounding="f32")) == once).mean() > 0.99


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_leading_shape_on_every_backend(backend: str, dtype: mx.Dtype) -> None:
    w = normal((48,), dtype)
    for shape in ((48,), (1, 48), (2, 3, 48), (2, 1, 2, 48)):
        x = normal(shape, dtype)
        y = metile.rms_norm(x, w, EPS)
        assert y.shape == x.shape
        assert ulps(y, exact(mx.fast.rms_norm(x, w, EPS))).max() <= (4 if dtype.size == 4 else 1)


def test_x8_views_and_empty_arrays() -> None:
    x, w = normal((40, 6, 64)), normal((64,))
    for view in (x.transpose(1, 0, 2), x[::2], x[:, :, ::2], mx.broadcast_to(x[:1], x.shape)):
        v = w[: view.shape[-1]]
        close(metile.rms_norm(view, v, EPS), mx.fast.rms_norm(view, v, EPS), 1e-6)
    for shape in ((0, 64), (3, 0, 64), (2, 0)):
        y = metile.rms_norm(mx.zeros(shape), mx.zeros(shape[-1:]), EPS)
        assert (y.shape, y.dtype) == (shape, mx.float32)


@pytest.mark.parametrize("x_dtype", [*DTYPES, mx.int32])
@pytest.mark.parametrize("w_dtype", [*DTYPES, mx.int32])
def test_dtypes_meet_as_in_mlx(x_dtype: mx.Dtype, w_dtype: mx.Dtype) -> None:
    x, w = whole((3, 64), x_dtype), whole((64,), w_dtype)
    if x_dtype == w_dtype == mx.int32:
        with pytest.raises(metile.LaunchError, match="would be int32"):
            metile.rms_norm(x, w, EPS)
        return
    assert same_bits(metile.rms_norm(x, w, EPS), mx.fast.rms_norm(x, w, EPS))


def test_bad_arguments_are_named() -> None:
    x, w = normal((4, 32)), normal((32,))
    for bad, part in (
        (lambda: metile.rms_norm(mx.array(1.0), w, EPS), "no axis"),
        (lambda: metile.rms_norm(x, w[:-1], EPS), r"weight has shape \(31,\); expected \(32,\)"),
        (lambda: metile.rms_norm(x, w[None], EPS), r"weight has shape \(1, 32\)"),
        (lambda: metile.rms_norm(x.astype(mx.int32), None, EPS), "would be int32"),
        (lambda: metile.rms_norm(x.astype(mx.float64), None, EPS), "would be float64"),
        (lambda: metile.rms_norm(x, w, EPS, rounding="half"), "rounding is 'half'"),
    ):
        with pytest.raises(metile.LaunchError, match=part):
            bad()


@pytest.mark.parametrize("dtype", DTYPES)
def test_b1_rows_too_wide_for_registers_are_read_twice(dtype: mx.Dtype) -> None:
    """With gradients; the widest that are held in registers beside them."""
    for width in (32_768, 32_769, 151_936):
        x, w = whole((2, width), dtype), normal((width,), dtype)
        assert same_bits(metile.rms_norm(x, w, EPS), mx.fast.rms_norm(x, w, EPS))
        assert same_bits(metile.rms_norm(x, None, EPS), mx.fast.rms_norm(x, None, EPS))
    x, w, c = normal((70, 32_800)), normal((32_800,), seed=1), normal((70, 32_800), seed=2)
    made, expected = (
        mx.grad(weighted(norm, c), (0, 1))(x, w) for norm in (metile.rms_norm, mx.fast.rms_norm)
    )
    for a, b in zip(made, expected, strict=True):
        close(a, b)
    close(mx.grad(weighted(metile.rms_norm, c))(x), mx.grad(weighted(mx.fast.rms_norm, c))(x))


# Gradients


def weighted(norm: Norm, c: mx.array) -> Callable[..., mx.array]:
    return lambda x, *w: (norm(x, *(w or (None,)), EPS).astype(mx.float32) * c).sum()


@pytest.mark.parametrize("shape", [(5, 31), (2, 3, 1009), (1024, 64)])
def test_f28_gradients_equal_mlxs(shape: tuple[int, ...]) -> None:
    x, w, c = normal(shape), normal(shape[-1:], seed=1), normal(shape, seed=2)
    ours, theirs = weighted(metile.rms_norm, c), weighted(mx.fast.rms_norm, c)
    for argnums in (0, 1):
        close(mx.grad(ours, argnums)(x, w), mx.grad(theirs, argnums)(x, w))
    for a, b in zip(mx.grad(ours, (0, 1))(x, w), mx.grad(theirs, (0, 1))(x, w), strict=True):
        close(a, b)
    close(mx.grad(ours)(x), mx.grad(theirs)(x))


def test_f28_gradients_on_every_backend_and_compiled(backend: str) -> None:
    x, w, c = normal((3, 40)), normal((40,), seed=1), normal((3, 40), seed=2)
    expected = mx.grad(weighted(mx.fast.rms_norm, c), (0, 1))(x, w)
    compiled = mx.compile(mx.grad(weighted(metile.rms_norm, c), (0, 1)))
    for made in (mx.grad(weighted(metile.rms_norm, c), (0, 1))(x, w), compiled(x, w)):
        for a, b in zip(made, expected, strict=True):
            close(a, b)
    # The second call of a compiled function takes another way.
    for a, b in zip(compiled(x, w), expected, strict=True):
        close(a, b)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_gradients_have_the_dtypes_of_the_arguments(dtype: mx.Dtype) -> None:
    x, w, c = normal((6, 256), dtype), normal((256,), seed=1), normal((6, 256), seed=2)
    made = mx.grad(weighted(metile.rms_norm, c), (0, 1))(x, w)
    wide = mx.grad(weighted(mx.fast.rms_norm, c), (0, 1))(x.astype(mx.float32), w)
    assert [g.dtype for g in made] == [dtype, mx.float32]
    for a, b in zip(made, wide, strict=True):
        assert np.abs(exact(a) - exact(b)).max() <= 1e-2 * np.abs(exact(b)).max()


def test_second_derivatives_and_jvp(batchable: str) -> None:
    """X7: of the gradient kernels through the reference."""
    x, w, c = normal((4, 32)), normal((32,), seed=1), normal((4, 32), seed=2)

    def twice(norm: Norm) -> Callable[..., mx.array]:
        return lambda x, w: (mx.grad(weighted(norm, c))(x, w) ** 2).sum()

    ours, theirs = (mx.grad(twice(n), (0, 1))(x, w) for n in (metile.rms_norm, mx.fast.rms_norm))
    for a, b in zip(ours, theirs, strict=True):
        close(a, b)
    pushed = [
        mx.jvp(lambda x, w, n=n: n(x, w, EPS), [x, w], [c, w])[1][0]
        for n in (metile.rms_norm, mx.fast.rms_norm)
    ]
    close(*pushed)


AXES = ((0, None), (None, 0), (0, 0))


@pytest.mark.parametrize("axes", AXES)
def test_x7_vmap_and_gradients_under_it(batchable: str, axes: tuple[int | None, ...]) -> None:
    x = normal((3, 4, 40) if axes[0] == 0 else (4, 40))
    w = normal((3, 40) if axes[1] == 0 else (40,), seed=1)

    def gradients(norm: Norm) -> Callable[..., Any]:
        return mx.grad(lambda x, w: mx.sum(norm(x, w, EPS) ** 2 * x), (0, 1))

    expected = mx.vmap(lambda x, w: mx.fast.rms_norm(x, w, EPS), in_axes=axes)(x, w)
    slopes = mx.vmap(gradients(mx.fast.rms_norm), in_axes=axes)(x, w)
    for vmap in (mx.vmap, metile.vmap):
        close(vmap(lambda x, w: metile.rms_norm(x, w, EPS), in_axes=axes)(x, w), expected)
        for a, b in zip(vmap(gradients(metile.rms_norm), in_axes=axes)(x, w), slopes, strict=True):
            close(a, b)


@pytest.mark.emulator
def test_x7_metile_vmap_where_mlx_cant(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = normal((3, 2, 40)), normal((40,))
    monkeypatch.setenv("METILE_BACKEND", "emulator")
    made = metile.vmap(lambda x: metile.rms_norm(x, w, EPS))(x)
    close(made, mx.fast.rms_norm(x, w, EPS))


def test_x2_an_export_holds_kernels_and_nothing_to_take_their_place() -> None:
    x, w = normal((4, 64), mx.float16), normal((64,), mx.float16)
    names = primitives(lambda x, w: metile.rms_norm(x, w, EPS), x, w)
    assert "CustomKernel" in names
    assert {"CustomTransforms", "Rsqrt", "RMSNorm", "Square"}.isdisjoint(names)


def test_streams() -> None:
    stream = mx.new_stream(mx.cpu)
    x, w = normal((4, 64)), normal((64,))
    y = metile.rms_norm(x, w, EPS, stream=stream)
    gradient = mx.grad(lambda x: metile.rms_norm(x, w, EPS, stream=stream).sum())(x)
    close(y, mx.fast.rms_norm(x, w, EPS), 1e-6)
    close(gradient, mx.grad(lambda x: mx.fast.rms_norm(x, w, EPS).sum())(x), 1e-4)


# Layouts


@pytest.mark.parametrize("dtype", list(CPU_VALUES))
def test_b1_every_block_has_a_legal_layout_on_the_cpu_and_none_elsewhere(dtype: Any) -> None:
    for bit in range(5, 16):
        held = row_layout("cpu", dtype, (1 << bit) - 1, 1 << bit)
        assert held is not None
        assert held.size == 1 << bit
        assert held == metile.ThreadLayout.identity(1 << bit, held.elements_per_thread)
        for other in ("metal", "emulator", "reference"):
            assert row_layout(other, dtype, 1 << bit, 1 << bit) is None


def test_b1_a_slot_of_16_bits_is_a_line_of_memory_where_that_is_asked_for() -> None:
    """32 threads of two bytes; rows of whole 16 bytes, and wider ones, stay as they are."""
    for dtype, columns, values in (
        (metile.bf16, 1009, 32),
        (metile.bf16, 1024, 16),
        (metile.f16, 1009, 32),
        (metile.f16, 1024, 16),
        (metile.bf16, 1025, 16),
        (metile.f32, 1009, 32),
        (metile.bf16, 100, 4),
    ):
        block = max(32, 1 << (columns - 1).bit_length())
        held = row_layout("cpu", dtype, columns, block, in_lines=True)
        assert held == metile.ThreadLayout.identity(block, values)
        for backend in ("cuda", "metal"):
            few = row_layout(backend, dtype, columns, block)
            assert row_layout(backend, dtype, columns, block, in_lines=True) == few


@pytest.mark.parametrize("dtype", list(CPU_VALUES))
def test_b1_rows_of_whole_16_bytes_are_grouped_on_cuda(dtype: Any) -> None:
    """Others begin anywhere: striped. Each holds the block, in 32 to 1024 threads."""
    near = 16 // dtype.bytes
    for bit in range(5, 16):
        block = 1 << bit
        for columns in (block, block - near, block - 1):
            held = row_layout("cuda", dtype, columns, block)
            assert held is not None
            assert held.size == block
            count = min(near, held.elements_per_thread)
            first = [held.logical_index(0, register) for register in range(count)]
            is_grouped = (columns % near == 0 or dtype == metile.f32) and block // 32 >= near
            step = 1 if is_grouped else held.thread_count
            assert first == [step * register for register in range(count)]


@pytest.mark.parametrize("dtype", list(CPU_VALUES))
def test_several_rows_have_a_legal_layout(dtype: Any) -> None:
    """On CUDA with groups of 16 bytes, and no thread has elements of two rows."""
    for columns, together in CPU_ROWS.items():
        held = rows_layout("cpu", dtype, together, columns)
        assert held.size == together * columns
    near = 16 // dtype.bytes
    for kind, columns in CUDA_ROWS:
        if kind != dtype:
            continue
        together, values = CUDA_ROWS[kind, columns]
        held = rows_layout("cuda", dtype, together, columns)
        assert (held.size, held.elements_per_thread) == (together * columns, values)
        own = [held.logical_index(1, register) for register in range(held.elements_per_thread)]
        assert own[:near] == [near + register for register in range(near)]
        for thread in range(held.thread_count):
            rows = {held.logical_index(thread, slot) // columns for slot in range(len(own))}
            assert rows == {thread * together // held.thread_count}


def test_rows_together_divide_the_rows() -> None:
    """B1: on a CPU, of halves that fill their block; never where a row would be left over."""
    for rows in (1, 3, 8, 4096):
        for columns in (31, 32, 128, 250, 256, 1024, 2048, 4096):
            for backend in ("cpu", "metal", "cuda", "reference"):
                for dtype in CPU_VALUES:
                    together = rows_together(backend, dtype, rows, columns)
                    assert rows % together == 0
                    wanted = backend == "cpu" and dtype != metile.f32 and columns in CPU_ROWS
                    wanted |= backend == "cuda" and (dtype, columns) in CUDA_ROWS
                    assert (together > 1) == (wanted and rows % 8 == 0)


def test_gradient_rows_divide_the_rows() -> None:
    assert [gradient_rows(rows) for rows in (1, 7, 64, 1024, 1025, 4096)] == [1, 1, 1, 4, 1, 4]


def test_f51_two_runs_are_bit_equal() -> None:
    x, w, c = normal((1024, 48)), normal((48,)), normal((1024, 48), seed=2)
    runs = [mx.grad(weighted(metile.rms_norm, c), (0, 1))(x, w) for _ in range(2)]
    for a, b in zip(*runs, strict=True):
        assert np.array_equal(bits(a), bits(b))


def test_f71_gemma_adds_the_one_before_the_norm(backend: str) -> None:
    """In bf16 the scale is rounded; in f32 it is not: who passes `1 + w` decides."""
    x, w = normal((4, 64), mx.bfloat16), mx.full((64,), 0.05, mx.bfloat16)
    theirs = mx.fast.rms_norm(x, 1.0 + w, EPS)
    assert same_bits(metile.rms_norm(x, 1.0 + w, EPS), theirs)
    exactly = metile.rms_norm(x, 1.0 + w.astype(mx.float32), EPS)
    assert exactly.dtype == mx.float32
    assert 5e-3 < np.abs(exact(exactly) / exact(theirs) - 1).max() < 1e-2
