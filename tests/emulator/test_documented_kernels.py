"""Kernels of the kinds MLX's documentation shows: elementwise, strided, grid sample both ways."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx import emulator
from metile_mlx.emulator import front
from metile_mlx.emulator import kernel as emulated

pytestmark = pytest.mark.emulator

EXP = emulator.metal_kernel(
    name="documented_exp",
    input_names=["x"],
    output_names=["y"],
    source="""
    uint i = thread_position_in_grid.x;
    T v = x[i];
    y[i] = metal::exp(v);
    """,
)

EXP_STRIDED = emulator.metal_kernel(
    name="documented_exp_strided",
    input_names=["x"],
    output_names=["y"],
    source="""
    uint i = thread_position_in_grid.x;
    // `y` is contiguous, `x` may be any view, also one with negative strides.
    auto at = elem_to_loc<int64_t>(i, x_shape, x_strides, x_ndim);
    T v = x[at];
    y[i] = metal::exp(v);
    """,
    ensure_row_contiguous=False,
)

# Both directions begin with the four pixels around a point and how far it is from the first.
AROUND = """
struct Around {
  int left, top;
  float right_part, bottom_part;
};

inline Around around(float gx, float gy, int width, int height) {
  float px = ((gx + 1.0) * width - 1.0) * 0.5;
  float py = ((gy + 1.0) * height - 1.0) * 0.5;
  float left = metal::floor(px);
  float top = metal::floor(py);
  return Around{int(left), int(top), px - left, py - top};
}

inline bool is_inside(int column, int row, int width, int height) {
  return column >= 0 && row >= 0 && column < width && row < height;
}
"""

SAMPLE = emulator.metal_kernel(
    name="grid_sample",
    input_names=["image", "points"],
    output_names=["out"],
    header=AROUND,
    source="""
    uint i = thread_position_in_grid.x;
    int height = image_shape[1], width = image_shape[2], channels = image_shape[3];
    int count = points_shape[1];
    int channel = i % channels;
    int point = i / channels;
    int batch = point / count;
    auto a = around(points[2 * point], points[2 * point + 1], width, height);
    float sum = 0.0;
    for (int corner = 0; corner < 4; ++corner) {
      int dx = corner & 1, dy = corner >> 1;
      int column = a.left + dx, row = a.top + dy;
      float weight = (dx ? a.right_part : 1.0 - a.right_part)
          * (dy ? a.bottom_part : 1.0 - a.bottom_part);
      if (is_inside(column, row, width, height)) {
        sum += weight * image[((batch * height + row) * width + column) * channels + channel];
      }
    }
    out[i] = sum;
    """,
)

# Channels are padded to whole simdgroups, so that a simdgroup works on one point.
SAMPLE_GRADIENT = emulator.metal_kernel(
    name="grid_sample_gradient",
    input_names=["image", "points", "cotangent"],
    output_names=["image_gradient", "points_gradient"],
    header=AROUND,
    source="""
    int height = image_shape[1], width = image_shape[2], channels = image_shape[3];
    int count = points_shape[1];
    int padded = (channels + 31) / 32 * 32;
    int channel = thread_position_in_grid.x % padded;
    int point = thread_position_in_grid.x / padded;
    int batch = point / count;
    auto a = around(points[2 * point], points[2 * point + 1], width, height);
    float2 slope = 0.0;
    if (channel < channels) {
      float given = cotangent[point * channels + channel];
      for (int corner = 0; corner < 4; ++corner) {
        int dx = corner & 1, dy = corner >> 1;
        int column = a.left + dx, row = a.top + dy;
        if (is_inside(column, row, width, height)) {
          float across = dx ? a.right_part : 1.0 - a.right_part;
          float down = dy ? a.bottom_part : 1.0 - a.bottom_part;
          int at = ((batch * height + row) * width + column) * channels + channel;
          atomic_fetch_add_explicit(
              &image_gradient[at], given * across * down, memory_order_relaxed);
          float value = image[at] * given;
          slope += value * float2(dx ? down : -down, dy ? across : -across);
        }
      }
    }
    float x_slope = simd_sum(slope.x) * width * 0.5;
    float y_slope = simd_sum(slope.y) * height * 0.5;
    if (thread_index_in_simdgroup == 0) {
      atomic_fetch_add_explicit(&points_gradient[2 * point], x_slope, memory_order_relaxed);
      atomic_fetch_add_explicit(&points_gradient[2 * point + 1], y_slope, memory_order_relaxed);
    }
    """,
    atomic_outputs=True,
)


def exp(kernel: emulated.EmulatedKernel, x: mx.array) -> mx.array:
    return kernel(
        inputs=[x],
        template=[("T", x.dtype)],
        grid=(x.size, 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
    )[0]


def forward(image: mx.array, points: mx.array) -> mx.array:
    batch, count, _ = points.shape
    channels = image.shape[3]
    return SAMPLE(
        inputs=[image, points],
        grid=(batch * count * channels, 1, 1),
        threadgroup=(64, 1, 1),
        output_shapes=[(batch, count, channels)],
        output_dtypes=[mx.float32],
    )[0]


@mx.custom_function
def grid_sample(image: mx.array, points: mx.array) -> mx.array:
    return forward(image, points)


@grid_sample.vjp
def grid_sample_vjp(primals: Any, cotangent: mx.array, _: mx.array) -> Any:
    image, points = primals
    batch, count, _two = points.shape
    padded = (image.shape[3] + 31) // 32 * 32
    return SAMPLE_GRADIENT(
        inputs=[image, points, cotangent],
        grid=(batch * count * padded, 1, 1),
        threadgroup=(64, 1, 1),
        output_shapes=[image.shape, points.shape],
        output_dtypes=[mx.float32, mx.float32],
        init_value=0,
    )


def grid_sample_ops(image: mx.array, points: mx.array) -> mx.array:
    """The same with MLX's operations."""
    batch, height, width, channels = image.shape
    pixels = image.reshape(batch * height * width, channels)
    px = ((points[..., 0] + 1) * width - 1) / 2
    py = ((points[..., 1] + 1) * height - 1) / 2
    left, top = mx.floor(px), mx.floor(py)
    total = mx.zeros((*points.shape[:2], channels))
    for dx in (0, 1):
        for dy in (0, 1):
            column, row = left + dx, top + dy
            across = px - left if dx else 1 - (px - left)
            down = py - top if dy else 1 - (py - top)
            is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
            at = mx.clip(row, 0, height - 1) * width + mx.clip(column, 0, width - 1)
            at = mx.stop_gradient(at).astype(mx.int32) + mx.arange(batch)[:, None] * height * width
            weight = mx.where(is_inside, across * down, 0)
            total = total + weight[..., None] * pixels[at]
    return total


@pytest.fixture
def sampled() -> tuple[mx.array, mx.array]:
    """An image of 37 channels, and points inside, on the edge and outside of it."""
    rng = np.random.default_rng(0)
    image = rng.standard_normal((2, 5, 6, 37)).astype(np.float32)
    points = rng.uniform(-1.3, 1.3, (2, 7, 2)).astype(np.float32)
    return mx.array(image), mx.array(points)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_elementwise(dtype: mx.Dtype) -> None:
    x = mx.random.normal((4, 70), key=mx.random.key(0)).astype(dtype)
    with emulator.checked():
        y = exp(EXP, x)
        mx.eval(y)
    expected = np.exp(np.array(x.astype(mx.float32), dtype=np.float64))
    bits = {mx.float32: 23, mx.float16: 10, mx.bfloat16: 7}[dtype]
    np.testing.assert_allclose(np.array(y.astype(mx.float32)), expected, rtol=2.0**-bits)


VIEWS = {
    "transposed": lambda x: x.T,
    "every second": lambda x: x[::2],
    "a column": lambda x: x[:, 1:2],
    "reversed": lambda x: x[::-1],
    "broadcast": lambda x: mx.broadcast_to(x[1:2], (5, 16)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kernel", [EXP, EXP_STRIDED], ids=["copied", "strided"])
def test_views(view: str, kernel: emulated.EmulatedKernel) -> None:
    """A kernel that may ask for strides reads the view, the other one MLX's copy of it (F10)."""
    x = VIEWS[view](mx.random.normal((8, 16), key=mx.random.key(1)))
    with emulator.checked():
        y = exp(kernel, x)
        mx.eval(y)
    np.testing.assert_allclose(np.array(y), np.exp(np.array(x)), rtol=1e-6)


def test_unsigned_location_of_a_reversed_view_is_out_of_bounds() -> None:
    """A `uint` holds no negative offset: the address is 4 billion elements off (F10, F21)."""
    kernel = emulator.metal_kernel(
        name="unsigned_location",
        input_names=["x"],
        output_names=["y"],
        source="""
        uint i = thread_position_in_grid.x;
        uint at = elem_to_loc(i, x_shape, x_strides, x_ndim);
        y[i] = metal::exp(T(x[at]));
        """,
        ensure_row_contiguous=False,
    )
    with pytest.raises(emulator.EmulatorError) as caught, emulator.checked():
        mx.eval(exp(kernel, mx.zeros((8, 16))[::-1]))
    (found,) = caught.value.report.findings
    assert found.fault is emulator.Fault.BOUNDS
    assert found.thread is not None
    assert found.thread.index == 16


def test_grid_sample(sampled: tuple[mx.array, mx.array]) -> None:
    with emulator.checked(schedules=2):
        out = grid_sample(*sampled)
        mx.eval(out)
    np.testing.assert_allclose(np.array(out), np.array(grid_sample_ops(*sampled)), atol=1e-5)


def test_gradient_of_grid_sample(sampled: tuple[mx.array, mx.array]) -> None:
    """Many threads add to one pixel: atomics race with nothing, and the sums are right."""
    weights = mx.random.normal((2, 7, 37), key=mx.random.key(2))

    def gradients(function: Any) -> list[np.ndarray]:
        loss = mx.grad(lambda image, points: (function(image, points) * weights).sum(), (0, 1))
        found = loss(*sampled)
        mx.eval(found)
        return [np.array(each) for each in found]

    with emulator.checked():
        found = gradients(grid_sample)
    for ours, expected in zip(found, gradients(grid_sample_ops), strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-4)


def test_gradient_inside_a_compiled_function(sampled: tuple[mx.array, mx.array]) -> None:
    def loss(image: mx.array, points: mx.array) -> mx.array:
        return (grid_sample(image, points) ** 2).sum()

    plain, compiled = mx.grad(loss), mx.compile(mx.grad(loss))
    np.testing.assert_allclose(
        np.array(compiled(*sampled)), np.array(plain(*sampled)), rtol=1e-5, atol=1e-5
    )


def test_texts_pass_the_strict_front(
    sampled: tuple[mx.array, mx.array], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    real = emulated.EmulatedKernel._launch

    def launch(self: Any, captured: Any, *rest: Any) -> Any:
        texts.append(captured.text)
        return real(self, captured, *rest)

    monkeypatch.setattr(emulated.EmulatedKernel, "_launch", launch)
    exp(EXP, mx.zeros(8))
    exp(EXP_STRIDED, mx.zeros(8))
    image, points = sampled
    mx.grad(lambda i, p: grid_sample(i, p).sum(), (0, 1))(image, points)
    assert len(texts) == 4
    for text in texts:
        result = front.examine(text)
        assert not result.findings, f"{result}\n{text}"
