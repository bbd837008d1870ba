"""Hand-written MSL for the words of `msl_cuda.h` that compiled kernels do not use everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from metile_mlx.dtypes import DType, bf16, f16, f32, i32, u32
from metile_mlx.emit.source import Argument, KernelSource
from tests.support.arithmetic import Array, from_bf16, to_bf16
from tests.support.cuda_cases import Case

LANES = np.arange(64, dtype=np.uint32)


def case(
    name: str,
    body: str,
    inputs: dict[str, tuple[DType, Array]],
    outputs: dict[str, tuple[DType, Array]],
    grid: tuple[int, int, int] = (1, 1, 1),
    threads: int = 64,
) -> Case:
    """A kernel of this body; `outputs` are the right ones."""
    source = KernelSource(
        name=f"{name.replace(' ', '_')}_0",
        language="msl",
        body=body,
        header="",
        inputs=tuple(Argument(n, n, dtype) for n, (dtype, _) in inputs.items()),
        outputs=tuple(Argument(n, n, dtype) for n, (dtype, _) in outputs.items()),
        threads=threads,
        threadgroup_bytes=0,
    )
    return Case(
        "words",
        name,
        source,
        tuple(data for _, data in inputs.values()),
        tuple((data.shape, dtype) for dtype, data in outputs.values()),
        tuple(data for _, data in outputs.values()),
        None,
        grid,
        True,
    )


def attributes() -> Case:
    """Each attribute by name, in a grid of three axes."""
    names = (
        "thread_position_in_grid.x", "threadgroup_position_in_grid.y",
        "threadgroup_position_in_grid.z", "threads_per_grid.x", "threads_per_threadgroup.x",
        "threadgroups_per_grid.x", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
        "thread_index_in_threadgroup", "simdgroups_per_threadgroup", "threads_per_simdgroup",
        "thread_execution_width", "dispatch_threads_per_threadgroup.x",
        "dispatch_simdgroups_per_threadgroup", "thread_position_in_threadgroup.y",
    )  # fmt: skip
    count, groups = len(names), (3, 2, 2)
    lines = [
        "uint group = (threadgroup_position_in_grid.z * threadgroups_per_grid.y",
        "  + threadgroup_position_in_grid.y) * threadgroups_per_grid.x",
        "  + threadgroup_position_in_grid.x;",
        f"uint at = (group * 64u + thread_position_in_threadgroup.x) * {count}u;",
        *(f"y[at + {i}u] = {name};" for i, name in enumerate(names)),
    ]
    right = np.zeros((2, 2, 3, 64, count), np.uint32)
    right[..., 0] = np.arange(3 * 64).reshape(1, 1, 3, 64)
    right[..., 1] = np.arange(2).reshape(1, 2, 1, 1)
    right[..., 2] = np.arange(2).reshape(2, 1, 1, 1)
    for i, value in ((3, 192), (4, 64), (5, 3), (9, 2), (10, 32), (11, 32), (12, 64), (13, 2)):
        right[..., i] = value
    right[..., 6], right[..., 7], right[..., 8] = LANES % 32, LANES // 32, LANES
    return case("attributes", "\n".join(lines), {}, {"y": (u32, right)}, groups)


def lanes() -> Case:
    """Shuffles by every rule, and combinations of a simdgroup, on words and on halves."""
    body = """\
uint t = thread_position_in_threadgroup.x;
uint v = x[t];
y[t] = simd_shuffle(v, ushort(31u - t % 32u));
y[64u + t] = simd_shuffle_xor(v, ushort(5));
y[128u + t] = simd_broadcast(v, ushort(7));
y[192u + t] = simd_sum(v);
y[256u + t] = simd_max(v);
y[320u + t] = simd_min(v);
h[t] = simd_sum(half(float(t)));
f[t] = simd_max(float(t) * -0.5f);
ulong w = ulong(v) << 32;
y[384u + t] = uint(simd_shuffle(w, ushort(t % 32u ^ 1u)) >> 32);"""
    x = (LANES * np.uint32(2654435761)) >> np.uint32(7)
    group = x.reshape(2, 32)
    rows = [
        group[:, ::-1],
        group[:, np.arange(32) ^ 5],
        np.repeat(group[:, 7:8], 32, 1),
        np.repeat(group.sum(1, dtype=np.uint32, keepdims=True), 32, 1),
        np.repeat(group.max(1, keepdims=True), 32, 1),
        np.repeat(group.min(1, keepdims=True), 32, 1),
        group[:, np.arange(32) ^ 1],
    ]
    h = np.repeat(np.array([496, 1520], np.float16), 32)
    f = np.repeat(np.array([-0.0, -16], np.float32), 32)
    outputs = {"y": (u32, np.stack(rows)), "h": (f16, h), "f": (f32, f)}
    return case("lanes", body, {"x": (u32, x)}, outputs)


def rounding(dtype: DType) -> Case:
    """Products and sums round one by one: nothing is contracted, and halves are never widened."""
    rng = np.random.default_rng(3)
    kind = np.float16 if dtype == f16 else np.float32
    a, b, c = (rng.standard_normal(4096).astype(kind) for _ in range(3))
    word = "half" if dtype == f16 else "float"
    body = f"""\
uint i = thread_position_in_grid.x;
{word} product = a[i] * b[i];
{word} total = product + c[i];
{word} less = product - c[i];
y[i] = total;
z[i] = less / b[i];"""
    product = a * b
    return case(
        f"rounding of {dtype}",
        body,
        {"a": (dtype, a), "b": (dtype, b), "c": (dtype, c)},
        {"y": (dtype, product + c), "z": (dtype, (product - c) / b)},
        (64, 1, 1),
    )


def matrices(dtype: DType) -> Case:
    """c + a * b of 8 by 8 matrices of small integers, b read transposed, strides of 8 and 16."""
    rng = np.random.default_rng(4)
    a, b, c = (rng.integers(-8, 9, (8, 8)).astype(np.float32) for _ in range(3))
    word = {f32: "float", f16: "half", bf16: "bfloat"}[dtype]
    body = f"""\
threadgroup {word} tile[128];
uint t = thread_position_in_threadgroup.x;
tile[t / 8u * 16u + t % 8u] = a[t];
tile[t / 8u * 16u + t % 8u + 8u] = a[t];
threadgroup_barrier(mem_flags::mem_threadgroup);
simdgroup_matrix<{word}, 8, 8> left, right;
simdgroup_matrix<float, 8, 8> sum;
simdgroup_load(left, &tile[8], 16);
simdgroup_load(right, b, 8, ulong2(0, 0), true);
simdgroup_load(sum, c, 8);
simdgroup_multiply_accumulate(sum, left, right, sum);
if (simdgroup_index_in_threadgroup == 0u) {{ simdgroup_store(sum, y, 8); }}"""

    def stored(x: Array) -> Array:
        return {f32: x, f16: x.astype(np.float16)}.get(dtype, to_bf16(x))

    inputs = {"a": (dtype, stored(a)), "b": (dtype, stored(b)), "c": (f32, c)}
    return case(f"matrices of {dtype}", body, inputs, {"y": (f32, a @ b.T + c)})


def conversions() -> Case:
    """Between f32, halves and integers, to nearest even or truncated, and bits kept."""
    body = """\
uint i = thread_position_in_grid.x;
float v = x[i];
h[i] = half(v);
b[i] = bfloat(v);
n[i] = int(v);
w[i] = float(half(v)) - float(bfloat(v));
k[i] = as_type<uint>(v) ^ uint(as_type<ushort>(half(v)));"""
    x = (np.random.default_rng(5).standard_normal(4096) * 300).astype(np.float32)
    half, brain = x.astype(np.float16), to_bf16(x)
    return case(
        "conversions",
        body,
        {"x": (f32, x)},
        {
            "h": (f16, half),
            "b": (bf16, brain),
            "n": (i32, x.astype(np.int32)),
            "w": (f32, half.astype(np.float32) - np.asarray(from_bf16(brain), np.float32)),
            "k": (u32, x.view(np.uint32) ^ half.view(np.uint16).astype(np.uint32)),
        },
        (64, 1, 1),
    )


def words() -> Iterator[Case]:
    """All of them."""
    yield attributes()
    yield lanes()
    yield conversions()
    for dtype in (f32, f16):
        yield rounding(dtype)
    for dtype in (f32, f16, bf16):
        yield matrices(dtype)
