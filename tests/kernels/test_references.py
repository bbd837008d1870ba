"""Plain MLX operations beside every family of `metile_kernels`: kernels compute the same (B1).

How exact kernels are is said against float64, in the file of each family. Gradient kernels are
compared with MLX's gradients of the references.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import mlx.core as mx
import pytest

import metile_kernels
import metile_mlx as metile
from metile_kernels import (
    activations,
    add_rmsnorm,
    cross_entropy,
    gather,
    gemm,
    gemm_split,
    layernorm,
    norm_weights,
    permutations,
    program_order,
    reductions,
    rmsnorm,
    rope,
    softmax,
    top1,
)
from tests.support.functions import close
from tests.support.public import same_bits
from tests.support.rows import DTYPES, normal

EPS = 1e-5
SHAPES = ((3, 31), (1, 1), (2, 1025))
# Shares of the largest magnitude.
RTOL = {mx.float32: 4e-6, mx.float16: 2.0**-10, mx.bfloat16: 2.0**-7}
# What a kernel made, and what the reference says.
Pair = tuple[mx.array, mx.array]


def out(*shape: int, dtype: mx.Dtype = mx.float32) -> metile.Empty:
    return metile.empty(shape, dtype)


def gradients(
    reference: Callable[..., mx.array], primals: Sequence[mx.array], cotangent: mx.array
) -> list[mx.array]:
    """MLX's, in f32."""
    return list(mx.vjp(reference, [p.astype(mx.float32) for p in primals], [cotangent])[1])


def of_softmax(x: mx.array, c: mx.array) -> Iterator[Pair]:
    rows, width = x.shape
    empty = out(rows, width, dtype=x.dtype)
    yield softmax.softmax[rows](x, empty, width), softmax.softmax_reference(x)
    yield softmax.softmax[rows](x, empty, width, LOG=True), softmax.log_softmax_reference(x)
    if x.dtype == mx.float32:
        y = softmax.softmax_reference(x)
        made = softmax.softmax_gradient[rows](y, c, empty, width)
        yield made, *gradients(softmax.softmax_reference, [x], c)
        made = softmax.log_softmax_gradient[rows](x, c, empty, width)
        yield made, *gradients(softmax.log_softmax_reference, [x], c)


def of_cross_entropy(x: mx.array, c: mx.array) -> Iterator[Pair]:
    """The last target is outside, where there are several."""
    rows, width = x.shape
    targets = mx.array([0, width - 1, width][:rows], mx.int32)
    expected = cross_entropy.cross_entropy_reference(x, targets)
    found = out(rows)
    made = cross_entropy.cross_entropy[rows](x, targets, found, found, found, width)
    inside = slice(min(rows, 2))
    assert (
        mx.isnan(made[0]).tolist() == mx.isnan(expected[0]).tolist() == [False, False, True][:rows]
    )
    for one, other in zip(made, expected, strict=True):
        yield one[inside], other[inside]
    if x.dtype == mx.float32:
        made = cross_entropy.cross_entropy_gradient[rows](
            x, targets, *expected[1:], c[:, 0], mx.zeros(rows), out(rows, width), width
        )
        (wanted,) = gradients(
            lambda x: cross_entropy.cross_entropy_reference(x, targets)[0], [x], c[:, 0]
        )
        yield made[inside], wanted[inside]
        assert all(bool(mx.all(mx.isnan(found[2:]))) for found in (made, wanted))


def of_norms(x: mx.array, c: mx.array) -> Iterator[Pair]:
    (rows, width), dtype = x.shape, x.dtype
    w, b = normal((width,), dtype, 2), normal((width,), dtype, 3)
    r, empty = normal(x.shape, dtype, 4), out(rows, width, dtype=dtype)
    expected = rmsnorm.rmsnorm_reference(x, w, EPS)
    yield rmsnorm.rmsnorm[rows](x, w, empty, width, EPS), expected
    shifted = layernorm.layernorm_reference(x, w, b, EPS)
    yield layernorm.layernorm[rows](x, w, b, empty, width, EPS), shifted
    normed, total = add_rmsnorm.add_rmsnorm_reference(x, r, w, EPS)
    made = add_rmsnorm.add_rmsnorm[rows](x, r, w, empty, empty, width, EPS)
    assert same_bits(made[1], total)
    yield made[0], normed
    if (width, dtype) == (31, mx.float32):
        sizes = {"N": width, "BLOCK": 32}
        yield rmsnorm.rmsnorm_register[rows](x, w, empty, EPS, **sizes), expected
        yield layernorm.layernorm_register[rows](x, w, b, empty, EPS, **sizes), shifted
        yield add_rmsnorm.add_rmsnorm_register[rows](x, r, w, empty, empty, EPS, **sizes)[0], normed
    if dtype == mx.float32:
        yield from gradients_of_norms(x, w, b, c)


def gradients_of_norms(x: mx.array, w: mx.array, b: mx.array, c: mx.array) -> Iterator[Pair]:
    (rows, width), empty, number = x.shape, out(*x.shape), out(x.shape[0])
    of_x, of_w = gradients(lambda x, w: rmsnorm.rmsnorm_reference(x, w, EPS), [x, w], c)
    made, roots = rmsnorm.rmsnorm_gradients[rows](x, w, c, x, empty, number, width, EPS)
    # Of one column nothing is left: its normalised value is its sign.
    if width > 1:
        yield made, of_x
    none = mx.zeros(rows)
    parts, _ = norm_weights.norm_weight_gradients_reference(x, c, none, roots, 2)
    yield parts.sum(axis=0), of_w
    of_x, of_w, of_b = gradients(
        lambda x, w, b: layernorm.layernorm_reference(x, w, b, EPS), [x, w, b], c
    )
    made, means, roots = layernorm.layernorm_gradients[rows](
        x, w, c, empty, number, number, width, EPS
    )
    if width > 1:
        yield made, of_x
    wanted = norm_weights.norm_weight_gradients_reference(x, c, means, roots, 2)
    pieces = out(metile.cdiv(rows, 2), width)
    made = norm_weights.norm_weight_gradients[metile.cdiv(width, 256), metile.cdiv(rows, 2)](
        x, c, means, roots, pieces, pieces, rows, width, 2, CENTRED=True, BIASED=True
    )
    for one, part, whole in zip(made, wanted, (of_w, of_b), strict=True):
        yield one, part
        yield part.sum(axis=0), whole


def of_activations(x: mx.array, c: mx.array) -> Iterator[Pair]:
    flat, up, n = x.reshape(-1), normal((x.size,), x.dtype, 5), x.size
    grid, empty = metile.cdiv(n, 1024), out(n, dtype=x.dtype)
    for function, slope in activations.SLOPES.items():
        made = activations.activation[grid](flat, empty, n, FUNCTION=function)
        yield made, activations.activation_reference(flat, function)
        if x.dtype != mx.float32 or function is not activations.gelu_tanh:
            continue
        made = activations.gated[grid](flat, up, empty, n, FUNCTION=function)
        yield made, activations.gated_reference(flat, up, function)
        (wanted,) = gradients(
            lambda x, f=function: activations.activation_reference(x, f), [flat], c.reshape(-1)
        )
        yield (
            activations.activation_gradient[grid](flat, c.reshape(-1), empty, n, SLOPE=slope),
            wanted,
        )
        both = gradients(
            lambda x, u, f=function: activations.gated_reference(x, u, f), [flat, up], c.reshape(-1)
        )
        made = activations.gated_gradients[grid](
            flat, up, c.reshape(-1), empty, empty, n, FUNCTION=function, SLOPE=slope
        )
        yield from zip(made, both, strict=True)


def of_reductions(x: mx.array, c: mx.array) -> Iterator[Pair]:
    (rows, width), grid = x.shape, metile.cdiv(x.shape[1], 256)
    groups = (rows // reductions.GROUP,) * 2
    # Few different numbers, so that several are the largest.
    coarse = mx.round(x)
    for operation in ("sum", "mean", "max", "min"):
        along, down = (reductions.reduce_reference(x, operation, axis) for axis in (1, 0))
        yield reductions.reduce_rows[rows](x, out(rows), width, OPERATION=operation), along
        made = reductions.reduce_columns[grid, 1](
            x, out(1, width), rows, width, *groups, float(rows), OPERATION=operation
        )
        yield made[0], down
        if operation != "max" or x.dtype != mx.float32:
            continue
        for axis, given in ((1, c[:, 0]), (0, c[0])):
            extremes = reductions.reduce_reference(coarse, operation, axis)
            (wanted,) = gradients(
                lambda x, axis=axis: reductions.reduce_reference(x, "max", axis), [coarse], given
            )
            if axis == 1:
                launch = reductions.extreme_rows_gradient[rows]
                yield launch(coarse, extremes, given, out(rows, width), width), wanted
            else:
                launch = reductions.extreme_columns_gradient[grid]
                yield launch(coarse, extremes, given, out(rows, width), rows, width), wanted


def of_top1(x: mx.array, c: mx.array) -> Iterator[Pair]:
    """Rows with equal elements, with NaN, and others; nothing is rounded."""
    rows, width = x.shape
    x = mx.round(x)
    x[-1, width // 2 :] = float("nan")
    empty = metile.empty(rows, x.dtype), metile.empty(rows, mx.uint32)
    made, expected = top1.top1[rows](x, *empty, width), top1.top1_reference(x)
    assert same_bits(made[1], expected[1])
    assert mx.array_equal(made[0], expected[0], equal_nan=True)
    wanted = gradients(lambda x: top1.top1_reference(x)[0], [x], c[:, 0])[0]
    gradient = top1.top1_gradient[rows](made[1], c[:, 0], out(rows, width), width)
    yield gradient, wanted


def of_gather(x: mx.array, c: mx.array) -> Iterator[Pair]:
    """Numbers from both ends, and outside of the table on both sides."""
    rows, width = x.shape
    ids = mx.array([0, -1, rows - 1, rows, -rows - 1], mx.int32)
    for table in (x, mx.round(x).astype(mx.int32)):
        made = gather.gather[5](table, ids, out(5, width, dtype=table.dtype), rows, width)
        expected = gather.gather_reference(table, ids)
        assert same_bits(made[:3], expected[:3])
        assert mx.array_equal(made, expected, equal_nan=True)
        yield made[:3].astype(mx.float32), expected[:3].astype(mx.float32)


def of_rope(x: mx.array, c: mx.array) -> Iterator[Pair]:
    """Rows as positions of one head, of two arrays; the odd feature does not turn."""
    (rows, width), half = x.shape, x.shape[1] // 2
    if half == 0:
        return
    both = mx.stack([x, c.astype(x.dtype)])[:, None]
    periods, offsets = mx.exp(mx.arange(half) / half), mx.array([0, 9], mx.int32)
    plane = rows * width
    for traditional in (False, True):
        made = rope.rope[rows, 2, 1](
            both, offsets, periods, metile.empty(both.shape, x.dtype), width, plane, plane, plane,
            half, 1, 1, 0.5, 0.0, 1.0, TRADITIONAL=traditional, BLOCK=32, GIVEN=True,
        )  # fmt: skip
        expected = rope.rope_reference(
            both, 2 * half, traditional=traditional, offsets=offsets, periods=periods, scale=0.5
        )
        yield made, expected


def of_gemm(x: mx.array, c: mx.array) -> Iterator[Pair]:
    """x times its own transpose, whole and in parts of eight columns."""
    (rows, width), dtype = x.shape, x.dtype
    bias, rest = normal((rows,), dtype, 2), normal((1, rows, rows), dtype, 3)
    a, b = x[None], mx.contiguous(x.T)[None]
    tiles = {"BM": 8, "BN": 16, "BK": 8}
    sizes, splits = (1, rows, rows, width, 0, width, 0, rows), metile.cdiv(width, 8)
    programs, options = gemm.grid(1, rows, rows, 8, 16), {**tiles, "backend": "reference"}
    empty = out(1, rows, rows, dtype=dtype)
    made = gemm.gemm[programs](
        a, b, bias, rest, empty, *sizes, 0.5, SCALED=True, BIASED=True, RESIDUAL=True,
        FUNCTION=activations.silu, **options,
    )  # fmt: skip
    yield made, gemm.gemm_reference(a, b, bias, rest, activations.silu, 0.5)
    parts = gemm_split.gemm_split[(*programs[:2], splits)](
        a, b, out(splits, rows, rows), *sizes, 8, SPLITS=splits, **options
    )
    yield parts, gemm_split.gemm_split_reference(a, b, 8)
    made = gemm_split.add_parts[1, 1](
        parts, bias, rest, empty, splits, rows * rows, rows, 1.0, backend="reference"
    )
    yield made, gemm_split.add_parts_reference(parts, splits)


# References of what only moves, or is rounded step by step, are the oracle of their own file.
MOVED = {
    name
    for module in (permutations, program_order)
    for name in dir(module)
    if name.endswith("_reference")
}
FAMILIES = {
    softmax: of_softmax,
    cross_entropy: of_cross_entropy,
    rmsnorm: of_norms,
    layernorm: of_norms,
    add_rmsnorm: of_norms,
    norm_weights: of_norms,
    activations: of_activations,
    reductions: of_reductions,
    top1: of_top1,
    gather: of_gather,
    gemm: of_gemm,
    gemm_split: of_gemm,
    rope: of_rope,
}


@pytest.mark.parametrize("family", dict.fromkeys(FAMILIES.values()), ids=lambda f: f.__name__)
def test_b1_kernels_compute_what_the_operations_beside_them_do(
    family: Callable[[mx.array, mx.array], Iterator[Pair]],
) -> None:
    for dtype in DTYPES:
        for shape in SHAPES:
            x, c = normal(shape, dtype, 1, 2), normal(shape, seed=9)
            for number, (made, expected) in enumerate(family(x, c)):
                assert expected.dtype == mx.float32, number
                close(made.astype(mx.float32), expected, RTOL[made.dtype])


def modules() -> list[ModuleType]:
    """Those with kernels of the library; `mechanisms` are kernels for the selftest."""
    names = [found.name for found in pkgutil.iter_modules(metile_kernels.__path__)]
    return [
        importlib.import_module(f"metile_kernels.{name}")
        for name in names
        if not name.startswith("_") and name != "mechanisms"
    ]


def test_b1_every_kernel_has_a_reference_by_its_name() -> None:
    """Or one that its docstring names; each is documented, and compared here or in its file."""
    for module in modules():
        kernels = [item for item in vars(module).values() if isinstance(item, metile.Kernel)]
        own = [kernel for kernel in kernels if kernel.__module__ == module.__name__]
        assert own, module
        stems = [
            name.removesuffix("_reference")
            for name, item in vars(module).items()
            if name.endswith("_reference") and inspect.isfunction(item) and inspect.getdoc(item)
        ]
        assert module in FAMILIES or set(stems) <= {n.removesuffix("_reference") for n in MOVED}
        for kernel in own:
            document = inspect.getdoc(kernel) or ""
            assert any(
                f"{kernel.__name__}_".startswith(f"{stem}_") or f"`{stem}_reference`" in document
                for stem in stems
            ), f"{module.__name__}.{kernel.__name__}"
